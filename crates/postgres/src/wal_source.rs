//! The WAL that a backup needs.
//!
//! Complete segments are stored while the files are read, and the replication slot advances behind
//! them, so that the server keeps little WAL (decision 29). The rest is stored at the end.

use super::{
    archiver::arrives,
    cluster_backup::ClusterBackup,
    control,
    data_dir::{DataDir, DataTree},
    file_copies::Copies,
    lsn::{Lsn, segment_name},
    request::Wal,
    session::{HeldSession, Session},
    source::ClusterSource,
    timeline::{Timelines, history_path},
    wal_reader::{SegmentFiles, WalSegments},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    page::{EntryState, Record},
};
use fullbore_pipeline::{
    frame::{Buf, Frame, Scanned, Slice},
    source::{Source, Stream},
};
use fullbore_platform as platform;
use fullbore_platform::queue::Locked;
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

/// Pause between two questions to the server for its WAL position.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Hint for WAL that the server did not keep.
const UNHELD: &str = "`ALTER ROLE … REPLICATION` lets the server keep it for the backup; or raise wal_keep_size, or use --wal archived";

/// Segments that may wait to be stored before the backup counts as falling behind.
const MAX_PENDING: u64 = 2;

/// WAL stored while the files are read.
#[derive(Debug)]
pub(super) struct FollowedWal {
    /// Names of the segments, from the segment of the start on; in the order of
    /// [`Timelines::segments`].
    named: Vec<Vec<String>>,
    /// Number of these segments in the archive.
    stored_count: u64,
    /// Number of segments that the server had completed at the last question.
    completed_count: u64,
    /// Database copies found in this WAL; `None` if the WAL is not understood.
    copies: Option<Copies>,
}

impl FollowedWal {
    /// Begins at `start`, with an empty list.
    pub(super) fn since(start: Option<Lsn>) -> Self {
        Self {
            named: Vec::new(),
            stored_count: 0,
            completed_count: 0,
            copies: start.map(Copies::since),
        }
    }

    /// Path of the first segment that is not in the archive.
    fn first_missing(&self) -> Option<Vec<u8>> {
        self.named
            .get(self.stored_count as usize)
            .map(|same| segment_path(&same[0]))
    }

    /// Reads on to `stop`; returns the databases copied until then, or `None` if the WAL is not
    /// understood.
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
                format!("could not read in the WAL which databases were copied: {error}")
            });
            self.copies = None;
        }
    }

    /// Returns the position before which the WAL is in the archive and has been searched for
    /// copies: the slot may advance to it.
    fn release_point(&mut self, files: &dyn SegmentFiles, start: Lsn, bytes: u64) -> Lsn {
        let named = std::mem::take(&mut self.named);
        let end = (start.0 / bytes + self.stored_count) * bytes;
        let segments = WalSegments {
            files,
            names: &named,
            bytes,
        };
        self.read_copies(&segments, Lsn(end));
        self.named = named;
        let read = self.copies.as_ref().map_or(end, |copies| copies.at().0);
        Lsn(end.min(read / bytes * bytes))
    }
}

/// A stream of the segments that the server completes while other streams are read.
pub(super) struct WalFollower {
    cluster: Arc<ClusterSource>,
    start: Lsn,
    over: Mutex<Option<Receiver<()>>>,
}

impl WalFollower {
    /// Follows the WAL from `start` until every sender of `ended` is dropped.
    pub(super) fn new(cluster: Arc<ClusterSource>, start: Lsn, ended: Receiver<()>) -> Self {
        Self {
            cluster,
            start,
            over: Mutex::new(Some(ended)),
        }
    }
}

impl Source for WalFollower {
    fn scan(&self) -> Result<Stream<Scanned>> {
        let facts = self.cluster.facts();
        let ended = self.over.locked().take();
        Ok(Box::new(
            ended
                .map(|ended| CompletedSegments {
                    cluster: self.cluster.clone(),
                    over: ended,
                    start: self.start,
                    timeline: facts.timeline,
                    bytes: facts.wal_segment_bytes,
                    end: Lsn(0),
                    kept: self.start,
                })
                .into_iter()
                .flat_map(Iterator::fuse),
        ))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        self.cluster.read(self.cluster.tree(), slice, buf)
    }

    fn on_stored(&self, record: &Record, _: Option<u32>) {
        let mut followed = self.cluster.followed.locked();
        match followed.first_missing() {
            Some(path) if record.state != EntryState::Whole || record.entry.path != path => {
                self.cluster
                    .failed
                    .locked()
                    .get_or_insert_with(|| self.cluster.loss_of(&path));
            }
            _ => followed.stored_count += 1,
        }
    }

    fn runs_alongside(&self) -> bool {
        true
    }

    fn is_falling_behind(&self) -> bool {
        let followed = self.cluster.followed.locked();
        followed.completed_count > followed.stored_count + MAX_PENDING
    }
}

/// The segments that the server completes, as they are completed.
struct CompletedSegments {
    cluster: Arc<ClusterSource>,
    over: Receiver<()>,
    start: Lsn,
    timeline: u32,
    bytes: u64,
    /// The server has written WAL up to here.
    end: Lsn,
    /// The slot keeps WAL from here on.
    kept: Lsn,
}

impl Iterator for CompletedSegments {
    type Item = Result<Scanned>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_completed() {
                Ok(None) => {}
                found => return self.or_end_stream(found),
            }
            if self.over.recv_timeout(POLL_INTERVAL) != Err(RecvTimeoutError::Timeout) {
                return None;
            }
            if let Err(error) = self.poll_server() {
                return self.or_end_stream(Err(error));
            }
        }
    }
}

impl CompletedSegments {
    /// Ends the stream on an error: the WAL is then stored at the end. A lost connection stays an
    /// error.
    fn or_end_stream(&self, found: Result<Option<Scanned>>) -> Option<Result<Scanned>> {
        match found {
            Err(error) if error.kind != ErrorKind::Unreachable => {
                platform::debug(|| format!("the WAL is stored at the end: {}", error.line()));
                None
            }
            found => found.transpose(),
        }
    }

    /// Returns the next segment if the server has completed it.
    fn next_completed(&mut self) -> Result<Option<Scanned>> {
        let mut followed = self.cluster.followed.locked();
        let begin = (self.start.0 / self.bytes + followed.named.len() as u64) * self.bytes;
        if begin + self.bytes > self.end.0 {
            return Ok(None);
        }
        let name = segment_name(self.timeline, Lsn(begin), self.bytes);
        let found = scan_segment(self.cluster.tree(), &name, self.bytes)?;
        followed.named.push(vec![name]);
        Ok(Some(found))
    }

    /// Asks the server for its WAL position, and advances the slot.
    fn poll_server(&mut self) -> Result<()> {
        let Some(session) = &self.cluster.session else {
            return Ok(());
        };
        self.end = self.cluster.wal_end(session)?.unwrap_or(self.end);
        let data: &dyn DataDir = &*self.cluster.data;
        let done = {
            let mut followed = self.cluster.followed.locked();
            followed.completed_count =
                (self.end.0 / self.bytes).saturating_sub(self.start.0 / self.bytes);
            followed.release_point(&data, self.start, self.bytes)
        };
        if done > self.kept {
            session.with(|session| session.advance_slot(done))?;
            self.kept = done;
        }
        Ok(())
    }
}

impl ClusterSource {
    /// Searches the WAL for database copies as it is written, until every sender of `ended` is
    /// dropped.
    ///
    /// Used without a slot: by the end of the backup the server may have removed that WAL.
    pub(super) fn watch_copies(&self, start: Lsn, ended: &Receiver<()>) {
        let Some(session) = &self.session else { return };
        let facts = self.facts();
        let bytes = facts.wal_segment_bytes;
        while ended.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            // Other calls report a lost session.
            let Ok(Some(end)) = self.wal_end(session) else {
                continue;
            };
            let numbers = start.0 / bytes..=end.0 / bytes;
            let name = |number| segment_name(facts.timeline, Lsn(number * bytes), bytes);
            let names: Vec<_> = numbers.map(|number| vec![name(number)]).collect();
            let segments = WalSegments {
                files: &&*self.data,
                names: &names,
                bytes,
            };
            self.followed.locked().copies(&segments, end);
        }
    }

    /// Returns where to follow the WAL from: from the start of the backup, unless the start is on
    /// an earlier timeline than the current one (rule 29).
    ///
    /// A segment that both timelines have is stored twice, at the end.
    pub(super) fn follow_start(&self) -> Option<Lsn> {
        let start = self.start?;
        let timeline = self.facts().timeline;
        if timeline == 1 {
            return Some(start);
        }
        let history = self.data.read_text(&history_path(timeline)).ok()?;
        let begins_on_it = Timelines::parse(&history, timeline)?.last_start() <= start;
        begins_on_it.then_some(start)
    }

    /// Returns the end of the WAL that the server has written and the backup needs, if known.
    ///
    /// On a standby this is its consistency point, as at the stop. WAL beyond it may be delayed on
    /// purpose, and a server that has it replays it.
    fn wal_end(&self, session: &HeldSession) -> Result<Option<Lsn>> {
        let facts = self.facts();
        if !facts.standby {
            return session.with(Session::wal_end).map(Some);
        }
        let (_, control) = control::read_in(&*self.data)?;
        Ok((control.min_recovery_timeline == facts.timeline)
            .then_some(Lsn(control.min_recovery_lsn)))
    }

    /// Returns the WAL files from start to stop (rule 25) that are not stored yet.
    ///
    /// With [`Wal::Included`] they are in `pg_wal`, where the slot held them; with
    /// [`Wal::Archived`] this waits until the archive has the last.
    pub(super) fn wal_files(
        &self,
        session: &HeldSession,
        timeline: u32,
        names: &[Vec<String>],
    ) -> Result<Vec<Scanned>> {
        let ends = [names.first(), names.last()];
        let ends = ends.into_iter().flatten().map(|same| same[0].clone());
        self.facts.locked().wal_segments = ends.collect();
        if let (Wal::Archived, Some(last)) = (self.wal, names.last()) {
            self.await_archive(session, &last[0])?;
            self.check_archive(names)?;
        }
        let mut files = Vec::new();
        if self.wal == Wal::Included {
            let stored = self.scan_missing_segments(names, &mut files)?;
            self.mark_archived(names, stored, &mut files)?;
        }
        // Recovery needs the history to find this timeline, and to know whether it continues from
        // here (rule 29).
        if timeline > 1 {
            let history = self.tree().look(history_path(timeline).as_bytes());
            if history.state.is_stored() {
                files.push(history);
            }
        }
        Ok(files)
    }

    /// Checks that the archive has all segments, if they can be looked for in it.
    fn check_archive(&self, names: &[Vec<String>]) -> Result<()> {
        let Some(archive) = &self.archive else {
            return Ok(());
        };
        let system = self.facts().system_identifier;
        for name in names.iter().map(|same| &same[0]) {
            if !arrives(&**archive, &system, name)? {
                let message = format!(
                    "cannot complete the backup: the archive in its repository has no WAL segment {name}"
                );
                return Err(Error::new(ErrorKind::System, message)
                    .because("the server says that it is archived")
                    .hint("`fullbore wal list` shows what is there; --wal included stores the WAL in the backup"));
            }
        }
        Ok(())
    }

    /// Adds the segments that are not stored yet to `files`. Returns the names of all segments
    /// that the backup has.
    fn scan_missing_segments(
        &self,
        names: &[Vec<String>],
        files: &mut Vec<Scanned>,
    ) -> Result<BTreeSet<String>> {
        let bytes = self.facts.locked().wal_segment_bytes;
        let mut stored: BTreeSet<String> = {
            let followed = self.followed.locked();
            if let Some(path) = followed.first_missing() {
                return Err(self.loss_of(&path));
            }
            followed.named.iter().flatten().cloned().collect()
        };
        for same in names {
            for (index, name) in same.iter().enumerate() {
                if stored.contains(name) {
                    continue;
                }
                match scan_segment(self.tree(), name, bytes) {
                    Ok(found) => files.push(found),
                    Err(_) if index == 0 => return Err(self.loss_of(&segment_path(name))),
                    Err(_) => continue, // only tools read the earlier timeline's copy
                }
                stored.insert(name.clone());
            }
        }
        Ok(stored)
    }

    /// Adds a `.done` mark for each stored segment: it keeps the restored server from archiving
    /// the segment again.
    fn mark_archived(
        &self,
        names: &[Vec<String>],
        stored: BTreeSet<String>,
        files: &mut Vec<Scanned>,
    ) -> Result<()> {
        let empty = self.late.make_file(b"")?;
        // A primary ends the last segment with the backup; a restored standby may write on in it.
        let unfinished = match names.last() {
            Some(same) if self.facts.locked().standby => &same[..],
            _ => &[],
        };
        for name in stored.iter().filter(|name| !unfinished.contains(name)) {
            let path = format!("pg_wal/archive_status/{name}.done");
            let path = path.as_bytes();
            files.push(self.late.insert_file(self.tree(), path, empty.clone())?);
        }
        Ok(())
    }

    /// Returns the error for a missing file: the reason that the session gives, or that the file is
    /// missing.
    pub(super) fn loss_of(&self, path: &[u8]) -> Error {
        let missing = || {
            let error = missing_error(path);
            match self.is_wal_held {
                true => error,
                false => error.hint(UNHELD),
            }
        };
        self.check_wal_kept().err().unwrap_or_else(missing)
    }
}

/// Scans a WAL segment; an incomplete one is an error.
fn scan_segment(tree: &dyn DataTree, name: &str, bytes: u64) -> Result<Scanned> {
    let path = segment_path(name);
    let scanned = tree.look(&path);
    if scanned.state == EntryState::Whole && scanned.entry.size() == bytes {
        return Ok(scanned);
    }
    Err(missing_error(&path))
}

fn segment_path(name: &str) -> Vec<u8> {
    format!("pg_wal/{name}").into_bytes()
}

fn missing_error(path: &[u8]) -> Error {
    let message = format!("cannot complete the backup: {} is not there", quoted(path));
    Error::new(ErrorKind::System, message)
        .hint("did someone remove it? The server keeps it for the backup")
}
