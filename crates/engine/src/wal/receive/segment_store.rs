//! The thread that stores whole segments, while the next one is received.
//!
//! Segments are stored in the order in which they arrive: that a segment is there says that those before it are.

use super::open_segment::FinishedSegment;
use crate::wal::compare::{conflict_of, conflicts};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::{WalPiece, WalRunIndex, pack_segment, run_object},
};
use fullbore_platform::{debug, host_name, queue::start};
use fullbore_repository::wal::WalArchive;
use jiff::Timestamp;
use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, Sender, TryRecvError, channel},
    thread::JoinHandle,
};

/// Work for the thread.
enum StoreJob {
    Segment(FinishedSegment),
    /// Pieces that a longer one has.
    Within(Vec<WalPiece>),
}

/// Gives work to the thread, and takes its results.
pub(super) struct SegmentStore {
    jobs: Option<Sender<StoreJob>>,
    results: Receiver<Result<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The thread's own.
struct StoreWork {
    archive: WalArchive,
    level: i32,
    /// Whether this host may delete pieces, as far as is known. Those that it leaves go with a prune.
    may_delete: bool,
}

impl SegmentStore {
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start(archive: WalArchive, level: i32) -> Result<Self> {
        let (jobs, work) = channel();
        let (done, results) = channel();
        let mut store = StoreWork {
            archive,
            level,
            may_delete: true,
        };
        let thread = start(move || store.run(&work, &done))?;
        Ok(Self {
            jobs: Some(jobs),
            results,
            thread: Some(thread),
        })
    }

    /// Stores a segment. Each gives one result, in the same order.
    ///
    /// # Errors
    /// That of an earlier segment.
    pub(super) fn store(&self, segment: FinishedSegment) -> Result<()> {
        self.give(StoreJob::Segment(segment))
    }

    /// Deletes pieces, if this host may.
    ///
    /// # Errors
    /// That of an earlier segment.
    pub(super) fn delete(&self, pieces: Vec<WalPiece>) -> Result<()> {
        self.give(StoreJob::Within(pieces))
    }

    fn give(&self, job: StoreJob) -> Result<()> {
        let given = self.jobs.as_ref().map(|jobs| jobs.send(job));
        match given {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Returns whether a segment was stored since the last question.
    ///
    /// # Errors
    /// That of the segment.
    pub(super) fn was_stored(&self) -> Result<bool> {
        match self.results.try_recv() {
            Ok(stored) => stored.map(|()| true),
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => Err(stopped()),
        }
    }

    /// Waits until a segment is stored.
    ///
    /// # Errors
    /// That of the segment.
    pub(super) fn wait(&self) -> Result<()> {
        self.results.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// The error with which the thread has ended.
    fn failure(&self) -> Error {
        loop {
            match self.results.recv() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error,
                Err(_) => return stopped(),
            }
        }
    }
}

impl Drop for SegmentStore {
    /// What was given is stored, unless there was an error: a server may have removed it already.
    fn drop(&mut self) {
        self.jobs.take();
        let joined = self.thread.take().map(JoinHandle::join);
        if let Some(Err(_)) = joined {
            debug(|| "the thread that stores segments has ended by a panic".to_owned());
        }
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Bug, "the thread that stores segments has ended")
}

impl StoreWork {
    fn run(&mut self, jobs: &Receiver<StoreJob>, done: &Sender<Result<()>>) {
        for job in jobs {
            match job {
                StoreJob::Within(pieces) => self.delete(&pieces),
                StoreJob::Segment(segment) => {
                    let stored = self.store(&segment);
                    let is_over = stored.is_err();
                    if done.send(stored).is_err() || is_over {
                        return;
                    }
                    self.delete(&segment.pieces);
                }
            }
        }
    }

    fn store(&self, segment: &FinishedSegment) -> Result<()> {
        store_segment(&self.archive, segment, self.level)
    }

    fn delete(&mut self, pieces: &[WalPiece]) {
        if !self.may_delete {
            return;
        }
        if let Err(error) = self.archive.delete_pieces(pieces) {
            debug(|| error.line());
            self.may_delete = error.kind != ErrorKind::Permission;
        }
    }
}

/// Stores a whole segment as a run of one, and compares it with others of its name.
///
/// # Errors
/// [`ErrorKind::Exists`] if other content is there; the storage's.
pub(super) fn store_segment(
    archive: &WalArchive,
    segment: &FinishedSegment,
    level: i32,
) -> Result<()> {
    let packed = pack_segment(segment.name, &segment.content, false, level)?;
    let digests = BTreeMap::from([(segment.name, packed.digest)]);
    let index = WalRunIndex {
        system: archive.system().to_owned(),
        segment_bytes: segment.segment_bytes,
        host: host_name(),
        stored: Timestamp::now().as_second(),
        ..WalRunIndex::default()
    };
    let (run, object) = run_object(index, &[packed], false, archive.digester())?;
    archive.put_run(&run, &object)?;
    let here = |name| (name == segment.name).then(|| segment.content.clone());
    let found = conflicts(archive, &here, &run, &digests)?;
    match conflict_of(&found, segment.name) {
        Some(conflict) => Err(conflict.error(archive)),
        None => Ok(()),
    }
}
