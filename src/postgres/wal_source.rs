//! The WAL that a backup needs. What is complete of it is stored while the files are read, and the slot moved on behind that, so
//! that the server keeps little (decision 29); the rest is known at the end.

use super::{
    control,
    file_copies::{Copies, WalSegments},
    lsn::{Lsn, segment_name},
    request::Wal,
    session::{HeldSession, Session},
    source::ClusterSource,
    stopped::small_text,
    timeline::{Timelines, history_of},
};
use crate::{
    error::{Error, ErrorKind, Result, quoted},
    format::page::{EntryState, Record},
    frame::{Buf, Frame, Scanned, Slice},
    platform,
    queue::Locked,
    source::{Source, Stream, tree::SourceTree},
};
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

/// How often the server is asked for more.
const EVERY: Duration = Duration::from_secs(1);

/// Segments that may wait to be stored.
const IN_TIME: u64 = 2;

/// What was stored while the files were read.
#[derive(Debug)]
pub(super) struct FollowedWal {
    /// Names of the segments, from the one that holds the start; as [`Segments`] has them.
    named: Vec<Vec<String>>,
    /// How many of them are in the archive,
    laid: u64,
    /// and how many the server had completed when it was last asked.
    complete: u64,
    /// What they tell; none where they are not understood.
    copies: Option<Copies>,
}

impl FollowedWal {
    /// From the start on.
    pub(super) fn since(start: Option<Lsn>) -> Self {
        Self {
            named: Vec::new(),
            laid: 0,
            complete: 0,
            copies: start.map(Copies::since),
        }
    }

    /// The first that is not in the archive.
    fn next(&self) -> Option<Vec<u8>> {
        self.named
            .get(self.laid as usize)
            .map(|same| path_of(&same[0]))
    }

    /// Databases that were copied up to `stop`, if that can be known.
    pub(super) fn copies(&mut self, segments: &WalSegments<'_>, stop: Lsn) -> Option<&Copies> {
        self.read_copies(segments, stop);
        self.copies.as_ref()
    }

    fn read_copies(&mut self, segments: &WalSegments<'_>, end: Lsn) {
        if let Some(Err(error)) = self
            .copies
            .as_mut()
            .map(|copies| copies.read(segments, end))
        {
            platform::debug(|| {
                format!("the WAL does not tell which databases were copied: {error}")
            });
            self.copies = None;
        }
    }

    /// The WAL before this is in the archive, and nothing more is to be known of it.
    fn is_done_with(&mut self, directory: &Path, start: Lsn, bytes: u64) -> Lsn {
        let named = std::mem::take(&mut self.named);
        let end = (start.0 / bytes + self.laid) * bytes;
        let segments = WalSegments {
            directory: directory.to_owned(),
            names: &named,
            bytes,
        };
        self.read_copies(&segments, Lsn(end));
        self.named = named;
        let read = self.copies.as_ref().map_or(end, |copies| copies.at().0);
        Lsn(end.min(read / bytes * bytes))
    }
}

/// A stream of the segments that are completed while other streams are read.
pub(super) struct Follower {
    cluster: Arc<ClusterSource>,
    start: Lsn,
    over: Mutex<Option<Receiver<()>>>,
}

impl Follower {
    /// Of WAL from `start`, until nobody holds the other end of `over`.
    pub(super) fn new(cluster: Arc<ClusterSource>, start: Lsn, over: Receiver<()>) -> Self {
        Self {
            cluster,
            start,
            over: Mutex::new(Some(over)),
        }
    }
}

impl Source for Follower {
    fn scan(&self) -> Result<Stream<Scanned>> {
        let facts = self.cluster.facts();
        let follow = |over| Following {
            cluster: self.cluster.clone(),
            over,
            start: self.start,
            timeline: facts.timeline,
            bytes: facts.wal_segment_bytes,
            end: Lsn(0),
            kept: self.start,
        };
        let over = self.over.locked().take();
        Ok(Box::new(
            over.map(follow).into_iter().flat_map(Iterator::fuse),
        ))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        self.cluster.read(self.cluster.tree(), slice, buf)
    }

    fn on_stored(&self, record: &Record, _: Option<u32>) {
        let mut followed = self.cluster.followed.locked();
        match followed.next() {
            Some(path) if record.state != EntryState::Whole || record.entry.path != path => {
                self.cluster
                    .failed
                    .locked()
                    .get_or_insert_with(|| self.cluster.missing(&path));
            }
            _ => followed.laid += 1,
        }
    }

    fn runs_alongside(&self) -> bool {
        true
    }

    fn is_falling_behind(&self) -> bool {
        let followed = self.cluster.followed.locked();
        followed.complete > followed.laid + IN_TIME
    }
}

struct Following {
    cluster: Arc<ClusterSource>,
    over: Receiver<()>,
    start: Lsn,
    timeline: u32,
    /// Of a segment.
    bytes: u64,
    /// Up to here the server has written.
    end: Lsn,
    /// From here on the slot keeps it.
    kept: Lsn,
}

impl Iterator for Following {
    type Item = Result<Scanned>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.complete() {
                Ok(None) => {}
                found => return self.or_leave(found),
            }
            if self.over.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                return None;
            }
            if let Err(error) = self.ask() {
                return self.or_leave(Err(error));
            }
        }
    }
}

impl Following {
    /// What cannot be followed comes at the end, if only the server is still there.
    fn or_leave(&self, found: Result<Option<Scanned>>) -> Option<Result<Scanned>> {
        match found {
            Err(error) if error.kind != ErrorKind::Unreachable => {
                platform::debug(|| format!("the WAL is stored at the end: {}", error.line()));
                None
            }
            found => found.transpose(),
        }
    }

    /// The next segment, if the server has come to its end.
    fn complete(&mut self) -> Result<Option<Scanned>> {
        let mut followed = self.cluster.followed.locked();
        let begin = (self.start.0 / self.bytes + followed.named.len() as u64) * self.bytes;
        if begin + self.bytes > self.end.0 {
            return Ok(None);
        }
        let name = segment_name(self.timeline, Lsn(begin), self.bytes);
        let found = segment(self.cluster.tree(), &name, self.bytes)?;
        followed.named.push(vec![name]);
        Ok(Some(found))
    }

    fn ask(&mut self) -> Result<()> {
        let Some(session) = &self.cluster.session else {
            return Ok(());
        };
        self.end = self.cluster.wal_end(session)?.unwrap_or(self.end);
        let directory = self.cluster.data.join("pg_wal");
        let done = {
            let mut followed = self.cluster.followed.locked();
            followed.complete = (self.end.0 / self.bytes).saturating_sub(self.start.0 / self.bytes);
            followed.is_done_with(&directory, self.start, self.bytes)
        };
        if done > self.kept {
            session.with(|session| session.keep_from(done))?;
            self.kept = done;
        }
        Ok(())
    }
}

impl ClusterSource {
    /// Without a slot the server may have removed what is to be known of the WAL when the backup ends: which databases were copied is
    /// read as it is written, until nobody holds the other end of `over`.
    pub(super) fn watch_copies(&self, start: Lsn, over: &Receiver<()>) {
        let facts = self.facts();
        let (timeline, bytes) = (facts.timeline, facts.wal_segment_bytes);
        let names = |end: Lsn| {
            (start.0 / bytes..=end.0 / bytes)
                .map(|at| vec![segment_name(timeline, Lsn(at * bytes), bytes)])
        };
        while over.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
            let Some(session) = &self.session else { return };
            // That the session is lost, others notice.
            let Ok(Some(end)) = self.wal_end(session) else {
                continue;
            };
            let names: Vec<_> = names(end).collect();
            self.followed.locked().copies(
                &WalSegments {
                    directory: self.data.join("pg_wal"),
                    names: &names,
                    bytes,
                },
                end,
            );
        }
    }

    /// From where the WAL can be followed: from the start, unless that is on a timeline before the one of now (rule 29). Of a segment
    /// that both have, both are stored, at the end.
    pub(super) fn followed_from(&self) -> Option<Lsn> {
        let timeline = self.facts().timeline;
        let begins_on_it = |start: &Lsn| {
            let read = || small_text(&self.data.join(history_of(timeline))).ok();
            let way = if timeline == 1 {
                None
            } else {
                Some(read().and_then(|text| Timelines::of(&text, timeline)))
            };
            way.is_none_or(|way| way.is_some_and(|way| way.begin() <= *start))
        };
        self.start.filter(begins_on_it)
    }

    /// Up to where the server has written WAL that the backup needs, if that can be known. Of a standby it is what it is consistent
    /// with, as at the stop: what it has beyond, it may be meant to delay, and a server that has it replays it.
    fn wal_end(&self, session: &HeldSession) -> Result<Option<Lsn>> {
        let facts = self.facts();
        if !facts.standby {
            return session.with(Session::wal_end).map(Some);
        }
        let (_, control) = control::read(&control::path(&self.data))?;
        Ok((control.min_recovery_timeline == facts.timeline)
            .then_some(Lsn(control.min_recovery_lsn)))
    }

    /// The WAL from start to stop (rule 25), as far as it is not stored yet: it is in `pg_wal`, as the slot held it, or it is in the
    /// archive.
    pub(super) fn wal_files(
        &self,
        session: &HeldSession,
        timeline: u32,
        names: &[Vec<String>],
    ) -> Result<Vec<Scanned>> {
        let bytes = {
            let mut facts = self.facts.locked();
            facts.wal_segments = [names.first(), names.last()]
                .into_iter()
                .flatten()
                .map(|same| same[0].clone())
                .collect();
            facts.wal_segment_bytes
        };
        if let (Wal::Archived, Some(last)) = (self.wal, names.last()) {
            self.await_archive(session, &last[0])?;
        }
        let tree = self.tree();
        // Without it recovery does not find the way to this timeline, and nobody knows whether it led on from here (rule 29).
        let history = (timeline > 1).then(|| tree.look(history_of(timeline).as_bytes()));
        let history = history.filter(|history| history.state.is_stored());
        if self.wal != Wal::Included {
            return Ok(history.into_iter().collect());
        }
        let mut stored: BTreeSet<String> = {
            let followed = self.followed.locked();
            followed
                .next()
                .map_or(Ok(()), |path| Err(self.missing(&path)))?;
            followed.named.iter().flatten().cloned().collect()
        };
        let mut files = Vec::new();
        for same in names {
            for (at, name) in same.iter().enumerate() {
                if stored.contains(name) {
                    continue;
                }
                match segment(tree, name, bytes) {
                    Ok(found) => files.push(found),
                    Err(_) if at == 0 => return Err(self.missing(&path_of(name))),
                    Err(_) => continue, // what an earlier timeline has of it, only tools look at
                }
                stored.insert(name.clone());
            }
        }
        let empty = self.late.file_of(b"")?;
        // A primary ends the last segment with the backup; that of a standby the restored server may write on.
        let unfinished = names
            .last()
            .filter(|_| self.facts.locked().standby)
            .map_or(&[][..], |same| same);
        for name in stored.iter().filter(|name| !unfinished.contains(name)) {
            // So that the restored server does not archive it again.
            let path = format!("pg_wal/archive_status/{name}.done");
            files.push(self.late.stand_in(tree, path.as_bytes(), empty.clone())?);
        }
        files.extend(history);
        Ok(files)
    }

    /// What the server kept is not there, and why.
    pub(super) fn missing(&self, path: &[u8]) -> Error {
        self.holds().err().unwrap_or_else(|| missing(path))
    }
}

/// A segment of the WAL, whole.
fn segment(tree: &SourceTree, name: &str, bytes: u64) -> Result<Scanned> {
    let path = path_of(name);
    let scanned = tree.look(&path);
    if scanned.state == EntryState::Whole && scanned.entry.size() == bytes {
        return Ok(scanned);
    }
    Err(missing(&path))
}

fn path_of(name: &str) -> Vec<u8> {
    format!("pg_wal/{name}").into_bytes()
}

fn missing(path: &[u8]) -> Error {
    let what = format!("cannot complete the backup: {} is not there", quoted(path));
    Error::new(ErrorKind::System, what)
        .hint("was it removed by hand? The server itself keeps it for the backup")
}
