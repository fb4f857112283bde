//! A backup to several repositories: the source is read, digested and compressed once.
//!
//! Each repository has its own intent, queue, threads, commit and outcome; one that is slow or
//! fails does not keep the others from completing. All of them get the same segments under the same
//! id; an encrypted repository seals them with its own keys.
//!
//! The base is one of the first repository. A repository that lacks something of what the new
//! backup refers to gets it from another one that has committed, as `copy` does it.

mod member;
mod stream;

use crate::backup_copy::CopySession;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::Root,
    seal::seal,
};
use fullbore_pipeline::{
    segment::part_digits,
    sink::{Abilities, Destination, Partial, Place, Placed, Referred, Role, Sink, StoredSegment},
};
use fullbore_platform as platform;
use fullbore_platform::{
    metrics::meter::Meter,
    queue::{Locked, start, start_in},
};
use fullbore_repository::{
    archive::{Archive, object::Sealing},
    page_spool::PageSpool,
    writer::RepositoryWriter,
};
use fullbore_storage::Objects;
use member::MemberThread;
use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Instant,
};
use stream::FannedStream;

/// Objects that a repository gets at the same time from another one.
const COPIED_AT_ONCE: NonZeroUsize = NonZeroUsize::new(2).unwrap();

/// What became of the backup in each repository, in the order of the command line.
#[derive(Debug, Default)]
pub struct FanOutLog(Mutex<Vec<Option<MemberEnd>>>);

/// What became of the backup in one repository.
#[derive(Debug, Clone)]
pub struct MemberEnd {
    /// The error, or how it was completed.
    pub result: Result<Completed>,
    /// Seconds from the begin of the run.
    pub seconds: f64,
}

/// A repository that has the backup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Completed {
    /// Did this run make the repository?
    pub is_new: bool,
    /// Bytes that it got from another repository, because it fell behind or lacked the base.
    pub copied_bytes: u64,
}

impl FanOutLog {
    fn of(count: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![None; count])))
    }

    fn note(&self, index: usize, end: MemberEnd) {
        if let Some(place) = self.0.locked().get_mut(index) {
            // The first word counts: what follows from it is no news.
            place.get_or_insert(end);
        }
    }

    /// Returns what is known of each repository.
    pub fn ends(&self) -> Vec<Option<MemberEnd>> {
        self.0.locked().clone()
    }
}

/// The destination that is made of several repositories.
pub struct FanOut {
    members: Vec<Member>,
    /// Shared with the function that stores partial roots.
    streams: Arc<Mutex<Vec<Arc<FannedStream>>>>,
    threads: Vec<JoinHandle<()>>,
    queue_bytes: u64,
    /// The repositories that are not encrypted: the same bytes have the same checksums there.
    clear: Vec<usize>,
    log: Arc<FanOutLog>,
    begun: Instant,
}

/// One of the repositories.
struct Member {
    /// `None` once it has failed.
    writer: Option<RepositoryWriter>,
    objects: Option<Arc<dyn Objects>>,
    /// Does it lack a backup that the new one refers to?
    lacks_base: bool,
    is_new: bool,
    /// Bytes that it read from others.
    fetched: Arc<Mutex<u64>>,
}

impl Member {
    fn new(writer: RepositoryWriter) -> Self {
        Self {
            objects: Some(writer.objects().clone()),
            lacks_base: false,
            is_new: writer.abilities().is_new,
            fetched: Arc::default(),
            writer: Some(writer),
        }
    }

    fn failed() -> Self {
        Self {
            writer: None,
            objects: None,
            lacks_base: false,
            is_new: false,
            fetched: Arc::default(),
        }
    }
}

impl FanOut {
    /// Opens each repository by one of these functions. The queues of one stream have so many bytes
    /// together.
    ///
    /// # Errors
    /// That of the first repository, from which the base is read. The errors of the others are in
    /// the log.
    pub fn begin(
        open: Vec<Box<dyn FnOnce() -> Result<RepositoryWriter> + Send + '_>>,
        queue_bytes: u64,
    ) -> (Result<Self>, Arc<FanOutLog>) {
        let begun = Instant::now();
        let log = FanOutLog::of(open.len());
        let count = open.len().max(1) as u64;
        let opened: Vec<Result<RepositoryWriter>> = thread::scope(|scope| {
            let open = open.into_iter();
            let threads: Vec<_> = open.map(|open| start_in(scope, open)).collect();
            let lost = |_| Err(Error::new(ErrorKind::Bug, "a thread stopped"));
            let threads = threads.into_iter();
            threads
                .map(|thread| thread.and_then(|thread| thread.join().unwrap_or_else(lost)))
                .collect()
        });
        let mut members = Vec::new();
        let mut first_error = None;
        for (index, opened) in opened.into_iter().enumerate() {
            match opened {
                Ok(writer) => members.push(Member::new(writer)),
                Err(error) => {
                    if index == 0 {
                        first_error = Some(error.clone());
                    }
                    let seconds = begun.elapsed().as_secs_f64();
                    let result = Err(error);
                    log.note(index, MemberEnd { result, seconds });
                    members.push(Member::failed());
                }
            }
        }
        if let Some(error) = first_error {
            let writers = members.into_iter().filter_map(|member| member.writer);
            writers.for_each(|writer| Box::new(writer).abort(false));
            return (Err(error), log);
        }
        let is_clear = |member: &Member| {
            let objects = member.objects.as_ref();
            objects.is_some_and(|objects| Sealing::of(&**objects) == Sealing::Clear)
        };
        let fan_out = Self {
            clear: (0..members.len())
                .filter(|index| is_clear(&members[*index]))
                .collect(),
            members,
            streams: Arc::default(),
            threads: Vec::new(),
            queue_bytes: queue_bytes / count,
            log: log.clone(),
            begun,
        };
        (Ok(fan_out), log)
    }

    /// Notes that a repository failed, and takes it out.
    fn fail(&mut self, index: usize, error: Error) {
        let keep = error.kind != ErrorKind::Full;
        if let Some(writer) = self.members[index].writer.take() {
            let error = writer.explained(error);
            Box::new(writer).abort(keep);
            self.note(index, Err(error));
        }
    }

    fn note(&self, index: usize, result: Result<Completed>) {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.log.note(index, MemberEnd { result, seconds });
    }

    fn join_threads(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // its outcome is in the stream
        }
    }

    /// Returns the error of a stream of this repository, or of its absence.
    fn failure_of(&self, index: usize) -> Option<Error> {
        let streams = self.streams.locked();
        streams.iter().find_map(|stream| stream.failure_of(index))
    }

    fn stored_by(&self, index: usize) -> Vec<BTreeMap<u32, StoredSegment>> {
        let streams = self.streams.locked();
        { streams.iter() }
            .map(|stream| stream.stored_by(index))
            .collect()
    }
}

impl Destination for FanOut {
    fn abilities(&self) -> Abilities {
        let writers = self
            .members
            .iter()
            .find_map(|member| member.writer.as_ref());
        writers.map(RepositoryWriter::abilities).unwrap_or_default()
    }

    /// The base is one of the first repository. Another one that does not have it gets it at the
    /// end.
    fn announce_bases(&mut self, bases: &[String]) -> Result<Referred> {
        let mut first = None;
        for index in 0..self.members.len() {
            let Some(writer) = &mut self.members[index].writer else {
                continue;
            };
            match writer.announce_bases(bases) {
                Ok(referred) if index == 0 => first = Some(referred),
                Ok(referred) => {
                    // A prune there may delete what the base mentions.
                    self.members[index].lacks_base |= !referred.gone.is_empty()
                        || !referred.manifests.is_empty()
                        || !referred.tombstones.is_empty();
                }
                Err(error) if index == 0 => return Err(error),
                Err(error) => self.fail(index, error),
            }
        }
        first.ok_or_else(|| Error::new(ErrorKind::Bug, "the first destination is gone"))
    }

    fn stream(&mut self, number: u32) -> Result<Box<dyn Sink>> {
        let readable: Vec<bool> = { self.members.iter() }
            .map(|member| {
                let objects = member.objects.as_ref();
                objects.is_some_and(|objects| Sealing::of(&**objects) != Sealing::Locked)
            })
            .collect();
        let stream = Arc::new(FannedStream::new(&readable, self.queue_bytes));
        let mut spools = Vec::new();
        let mut contents = Vec::new();
        for index in 0..self.members.len() {
            let Some(writer) = &self.members[index].writer else {
                let error = Error::new(ErrorKind::Gone, "it was not opened");
                stream.over(index, Err(error));
                continue;
            };
            spools.push(writer.pages());
            contents.push(writer.contents());
            let thread = MemberThread {
                index,
                stream: stream.clone(),
                writer: writer.segments(number),
                others: { self.members.iter() }
                    .map(|member| member.objects.clone())
                    .collect(),
                name: writer.segment_key(number),
                fetched: self.members[index].fetched.clone(),
            };
            self.threads.push(start(move || thread.run())?);
        }
        self.streams.locked().push(stream.clone());
        Ok(Box::new(FannedSink {
            stream,
            spools,
            contents,
            told: BTreeSet::new(),
            is_over: false,
        }))
    }

    fn places(&self) -> Vec<Place> {
        let writers = self
            .members
            .iter()
            .filter_map(|member| member.writer.as_ref());
        writers.flat_map(RepositoryWriter::places).collect()
    }

    /// Commits the backup in each repository as soon as that has all of it. Succeeds if one of them
    /// has it; the log has the outcome of each.
    fn commit(mut self: Box<Self>, root: &[u8]) -> Result<()> {
        let root = Root::open(root, "the new root")?;
        let ends = CommitState::default();
        let members: Vec<_> = std::mem::take(&mut self.members);
        let fan_out = &*self;
        let count = members.len();
        let commit = |index: usize, member: Member| {
            let objects = member.objects.clone();
            let result = fan_out.commit_one(index, member, &root, &ends);
            ends.add(objects.filter(|_| result.is_ok()));
            fan_out.note(index, result);
        };
        let commit = &commit;
        ends.expect(count);
        thread::scope(|scope| {
            for (index, member) in members.into_iter().enumerate() {
                if let Err(error) = start_in(scope, move || commit(index, member)) {
                    ends.add(None);
                    fan_out.note(index, Err(error));
                }
            }
        });
        self.join_threads();
        let ends = self.log.ends();
        let mut errors = ends.iter().flatten().map(|end| &end.result);
        if errors.clone().any(Result::is_ok) {
            return Ok(());
        }
        let error = errors.find_map(|result| result.as_ref().err().cloned());
        Err(error.unwrap_or_else(|| Error::new(ErrorKind::Bug, "there is no destination")))
    }

    /// A partial root goes to the repositories that have all of its segments.
    fn partial(&self) -> Option<Partial> {
        let streams = self.streams.clone();
        let partials: Vec<_> = { self.members.iter() }
            .map(|member| member.writer.as_ref()?.partial())
            .collect();
        Some(Box::new(move |sealed| {
            let root = Root::open(sealed, "a partial root")?;
            for (index, partial) in partials.iter().enumerate() {
                let Some(partial) = partial else { continue };
                let streams = streams.locked().clone();
                let stored = streams.iter().map(|stream| stream.stored_by(index));
                let Some(own) = with_own_sums(&root, &stored.collect::<Vec<_>>()) else {
                    continue;
                };
                // A repository that fails here fails at the next segment, too, and by itself.
                if let Err(error) = seal(&own).and_then(|own| partial(&own)) {
                    platform::debug(|| error.line());
                }
            }
            Ok(())
        }))
    }

    fn explained(&self, error: Error) -> Error {
        let writers = self
            .members
            .iter()
            .find_map(|member| member.writer.as_ref());
        match writers {
            Some(writer) => writer.explained(error),
            None => error,
        }
    }

    fn abort(mut self: Box<Self>, keep: bool) {
        for stream in self.streams.locked().iter() {
            stream.stop();
        }
        self.join_threads();
        for index in 0..self.members.len() {
            if let Some(error) = self.failure_of(index) {
                self.fail(index, error);
            } else if let Some(writer) = self.members[index].writer.take() {
                Box::new(writer).abort(keep);
            }
        }
    }
}

impl FanOut {
    /// Commits the backup in one repository, or completes it there from another one.
    fn commit_one(
        &self,
        index: usize,
        mut member: Member,
        root: &Root,
        ends: &CommitState,
    ) -> Result<Completed> {
        let Some(writer) = member.writer.take() else {
            let known = self.log.ends().into_iter().nth(index).flatten();
            let error = known.and_then(|end| end.result.err());
            return Err(error.unwrap_or_else(|| Error::new(ErrorKind::Gone, "it failed before")));
        };
        let streams = self.streams.locked().clone();
        streams.iter().for_each(|stream| stream.wait_for(index));
        if let Some(error) = self.failure_of(index) {
            let error = writer.explained(error);
            Box::new(writer).abort(error.kind != ErrorKind::Full);
            return Err(error);
        }
        let Some(own) = with_own_sums(root, &self.stored_by(index)) else {
            Box::new(writer).abort(false);
            return Err(Error::new(
                ErrorKind::Bug,
                "segments of the backup are missing",
            ));
        };
        let mut done = Completed {
            is_new: member.is_new,
            copied_bytes: *member.fetched.locked(),
        };
        if done.copied_bytes > 0
            && let Err(error) = self.check_fetched(index)
        {
            Box::new(writer).abort(false);
            return Err(error);
        }
        let sealed = seal(&own)?;
        // What cannot be found out now is found out by the check before the commit.
        if index == 0 || !(member.lacks_base || writer.lacks(&own).unwrap_or(false)) {
            Box::new(writer).commit(&sealed)?;
            return Ok(done);
        }
        let to = writer.objects().clone();
        let Some(from) = ends.first_complete() else {
            Box::new(writer).abort(true);
            let message = "could not complete it: the base is missing there, and no other repository has the backup";
            return Err(
                Error::new(ErrorKind::Unreachable, message).hint("run the same command again")
            );
        };
        writer.hand_over(&sealed)?;
        let archive = Archive::open_backup(&from, &root.id)?;
        let copied =
            CopySession::begin(from, &to, COPIED_AT_ONCE)?.copy(&archive, &Meter::default())?;
        done.copied_bytes += copied.bytes;
        Ok(done)
    }
}

impl FanOut {
    /// Checks what a repository read from others: its checksums are those that the others made of
    /// the bytes in memory. Bytes that were read from an encrypted repository are authentic.
    fn check_fetched(&self, index: usize) -> Result<()> {
        if !self.clear.contains(&index) {
            return Ok(());
        }
        let own = self.stored_by(index);
        let differs = |other: &usize| {
            let others = self.stored_by(*other);
            own.iter().zip(&others).any(|(own, other)| {
                own.iter()
                    .any(|(number, stored)| other.get(number).is_some_and(|is| is != stored))
            })
        };
        if !self.clear.iter().any(differs) {
            return Ok(());
        }
        let message =
            "could not complete it: what it read from another repository has other checksums";
        Err(Error::corrupt(message).hint(
            "run the same command again; the storage or the memory of this machine may be damaged",
        ))
    }
}

/// Repositories that have committed, while others have not.
#[derive(Default)]
struct CommitState {
    ends: Mutex<CommitEnds>,
    changed: Condvar,
}

#[derive(Default)]
struct CommitEnds {
    complete: Vec<Arc<dyn Objects>>,
    over: usize,
    waiting: usize,
    expected: usize,
}

impl CommitState {
    /// Sets how many repositories there are.
    fn expect(&self, count: usize) {
        self.ends.locked().expected = count;
        self.changed.notify_all();
    }

    /// Notes the end of one repository, and its objects if it is complete.
    fn add(&self, complete: Option<Arc<dyn Objects>>) {
        let mut ends = self.ends.locked();
        ends.over += 1;
        ends.complete.extend(complete);
        self.changed.notify_all();
    }

    /// Waits for the first repository that is complete and can be read; `None` if none will be.
    fn first_complete(&self) -> Option<Arc<dyn Objects>> {
        let mut ends = self.ends.locked();
        ends.waiting += 1;
        loop {
            let mut complete = ends.complete.iter();
            let readable = complete.find(|objects| Sealing::of(&***objects) != Sealing::Locked);
            if let Some(objects) = readable.cloned() {
                ends.waiting -= 1;
                return Some(objects);
            }
            if ends.expected > 0 && ends.over + ends.waiting >= ends.expected {
                self.changed.notify_all(); // the others that wait see the same
                return None;
            }
            let waited = self.changed.wait(ends);
            ends = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Returns the root with the checksums that a repository has of its segments; `None` if it lacks a
/// segment.
fn with_own_sums(root: &Root, streams: &[BTreeMap<u32, StoredSegment>]) -> Option<Root> {
    let mut root = root.clone();
    for segment in &mut root.segments {
        let stream = streams.get(segment.stream.checked_sub(1)? as usize)?;
        let stored = stream.get(&segment.number)?;
        if stored.bytes != segment.bytes {
            return None;
        }
        segment.parts = part_digits(&stored.parts);
    }
    Some(root)
}

/// The sink of one stream.
struct FannedSink {
    stream: Arc<FannedStream>,
    /// The pages of each repository.
    spools: Vec<Arc<Mutex<PageSpool>>>,
    /// The lists of contents of the destinations.
    contents: Vec<Arc<Mutex<PageSpool>>>,
    /// Segments that were returned.
    told: BTreeSet<u32>,
    is_over: bool,
}

impl FannedSink {
    fn not_told(&mut self, stored: BTreeMap<u32, StoredSegment>) -> Vec<StoredSegment> {
        let stored = stored.into_values();
        stored
            .filter(|segment| self.told.insert(segment.number))
            .collect()
    }
}

impl Sink for FannedSink {
    fn put(&mut self, placed: Placed) -> Result<()> {
        if placed.role != Role::Stream {
            let message = "cannot amend a segment of a repository";
            return Err(Error::new(ErrorKind::Bug, message));
        }
        self.stream
            .put(placed.segment, placed.offset, placed.data.to_vec())
    }

    fn put_page(&mut self, page: &[u8]) -> Result<Option<u64>> {
        // The first lock orders the streams, so that a page has the same place in each manifest.
        let Some((first, others)) = self.spools.split_first() else {
            return Err(Error::new(ErrorKind::Bug, "a stream has no destination"));
        };
        let mut first = first.locked();
        for spool in others {
            spool.locked().add(page)?;
        }
        first.add(page).map(Some)
    }

    fn put_contents(&mut self, group: &[u8]) -> Result<()> {
        let mut each = self.contents.iter();
        each.try_for_each(|contents| contents.locked().add(group).map(drop))
    }

    fn end_segment(&mut self) -> Result<()> {
        self.stream.end_segment();
        Ok(())
    }

    fn sync(&mut self) -> Result<Vec<StoredSegment>> {
        let stored = self.stream.sync()?;
        Ok(self.not_told(stored))
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<StoredSegment>> {
        self.stream.finish();
        self.is_over = true;
        self.sync()
    }
}

impl Drop for FannedSink {
    /// After an error of the pipeline no bytes follow.
    fn drop(&mut self) {
        if !self.is_over {
            self.stream.stop();
        }
    }
}
