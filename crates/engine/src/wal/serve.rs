//! The half that stays: it pushes segments before the server asks for them, so that no answer waits for a store.
//!
//! A push that leaves a backlog behind starts it; it ends when there was nothing to do for a while. One for each cluster and
//! repository: a lock says so. A segment that it cannot push is left to the server's own question, which gets the error.

use super::{
    pack::Packing,
    push::{PushTarget, system_name},
    pushed::PushedAhead,
    server_files::{WalDirectory, unknown_system},
};
use fullbore_format::{error::Result, wal::SegmentName};
use fullbore_platform::{debug, queue::run_both};
use fullbore_storage::Storages;
use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// Pause between two looks for new segments.
const LOOK: Duration = Duration::from_millis(200);

/// Pushes ahead of a server.
#[derive(Debug, Clone)]
pub struct WalServe {
    /// How storages are reached.
    pub storages: Storages,
    /// The data directory of the cluster.
    pub data: PathBuf,
    /// The repository.
    pub to: OsString,
    /// The name of a copy of a cluster.
    pub copy_name: Option<String>,
    /// The level of zstd.
    pub level: i32,
    /// Segments that are compressed at the same time.
    pub workers: usize,
    /// Ends after so long without work; `None` never.
    pub idle: Option<Duration>,
}

impl WalServe {
    /// Pushes segments as the server completes them.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](fullbore_format::error::ErrorKind::Usage) if there is no cluster; those of opening the repository.
    pub fn run(&self) -> Result<u64> {
        let wal = WalDirectory::of_cluster(&self.data);
        let system = wal.system();
        let system = system
            .ok_or_else(|| unknown_system(format!("cannot archive the WAL of {:?}", self.data)))?;
        let target = PushTarget::open(&self.storages, &self.to, self.copy_name.as_ref())?;
        let name = system_name(system, self.copy_name.as_deref());
        let notes = PushedAhead::of(self.storages.state_dir(), &target.location, &name, &wal);
        let Some(_lock) = notes.lock() else {
            debug(|| "another process pushes ahead".to_owned());
            return Ok(0);
        };
        let serving = Serving {
            wal,
            target,
            notes,
            packing: Packing {
                level: self.level,
                workers: self.workers.max(1),
            },
        };
        Ok(serving.run(self.idle))
    }
}

struct Serving {
    wal: WalDirectory,
    target: PushTarget,
    notes: PushedAhead,
    packing: Packing,
}

impl Serving {
    fn run(&self, idle: Option<Duration>) -> u64 {
        let mut pushed = 0;
        let mut since = Instant::now();
        let mut failed: BTreeSet<SegmentName> = BTreeSet::new();
        while self.wal.exists() && idle.is_none_or(|idle| since.elapsed() < idle) {
            let mut waiting = self.wal.ready_segments();
            waiting.retain(|segment| !failed.contains(segment) && !self.is_pushed(*segment));
            if waiting.is_empty() {
                thread::sleep(LOOK);
                continue;
            }
            since = Instant::now();
            match self.push_runs(&waiting) {
                (count, None) => pushed += count,
                (count, Some(segment)) => {
                    pushed += count;
                    failed.insert(segment);
                    thread::sleep(LOOK);
                }
            }
        }
        pushed
    }

    fn is_pushed(&self, segment: SegmentName) -> bool {
        let stamp = self.wal.stamp(segment);
        stamp.is_none_or(|stamp| self.notes.has(segment, &stamp))
    }

    /// Pushes all that waits. While a run is stored, the next one is compressed. Returns how many segments were pushed, and the
    /// one that could not be.
    fn push_runs(&self, waiting: &[SegmentName]) -> (u64, Option<SegmentName>) {
        let all: BTreeSet<SegmentName> = waiting.iter().copied().collect();
        let pack = |first: SegmentName| {
            self.packing
                .pack_run(&self.wal, first, false, &|next| all.contains(&next))
        };
        let mut rest = all.clone();
        let mut pushed = 0;
        let mut packed = None;
        loop {
            let next = rest.pop_first();
            let store = |run: &Option<super::pack::PackedRun>| match run {
                Some(run) => self
                    .target
                    .store(run, &self.wal, &self.notes)
                    .map(|(segments, _)| segments),
                None => Ok(Vec::new()),
            };
            let before = packed.take();
            let (stored, made) = run_both(next.is_some(), || store(&before), || next.map(pack));
            match stored {
                Ok(segments) => pushed += segments.len() as u64,
                Err(error) => {
                    debug(|| error.line());
                    return (
                        pushed,
                        before.and_then(|run| run.stamps.first().map(|(segment, _)| *segment)),
                    );
                }
            }
            match (made, next) {
                (Some(Ok(run)), _) => {
                    for (segment, _) in &run.stamps {
                        rest.remove(segment);
                    }
                    packed = Some(run);
                }
                (Some(Err(error)), next) => {
                    debug(|| error.line());
                    return (pushed, next);
                }
                (None, _) => return (pushed, None),
            }
        }
    }
}
