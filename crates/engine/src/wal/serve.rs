//! The half that stays: it pushes segments before the server asks for them, so that no answer waits for a store.
//!
//! A push that leaves a backlog behind starts it; it ends when there was nothing to do for a while. One for each cluster and
//! repository: a lock says so. A segment that it cannot push is left to the server's own question, which gets the error.

use super::{
    pack::{PackedRun, Packing},
    push::{PushTarget, location_name, system_name},
    pushed::PushedAhead,
    server_files::{WalDirectory, segment_of, unknown_system},
    spool::{ClusterSpool, WalSpool},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::{SegmentName, WalFileName},
};
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
/// Pause before files of the spool are stored again.
const RETRY: Duration = Duration::from_secs(3);

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
    /// Has files that the repository did not take.
    pub spool: Option<WalSpool>,
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
        let name = system_name(system, self.copy_name.as_deref());
        let location = location_name(&self.storages, &self.to);
        let notes = PushedAhead::of(self.storages.state_dir(), &location, &name, &wal);
        let Some(_lock) = notes.lock() else {
            debug(|| "another process pushes ahead".to_owned());
            return Ok(0);
        };
        let spool = self.spool.as_ref().map(|spool| spool.of_cluster(&name));
        let serving = Serving {
            target: self.target(&wal, spool.as_ref())?,
            system,
            wal,
            notes,
            spool,
            packing: Packing {
                level: self.level,
                workers: self.workers.max(1),
            },
        };
        Ok(serving.run(self.idle))
    }

    /// Opens the repository. It is waited for as long as the spool has files for it.
    fn target(&self, wal: &WalDirectory, spool: Option<&ClusterSpool>) -> Result<PushTarget> {
        loop {
            let opened = PushTarget::open(&self.storages, &self.to, self.copy_name.as_ref());
            let waits = || wal.exists() && spool.is_some_and(ClusterSpool::has_files);
            match opened {
                Err(error) if error.kind == ErrorKind::Unreachable && waits() => {
                    debug(|| error.line());
                    thread::sleep(RETRY);
                }
                opened => return opened,
            }
        }
    }
}

struct Serving {
    system: u64,
    wal: WalDirectory,
    spool: Option<ClusterSpool>,
    target: PushTarget,
    notes: PushedAhead,
    packing: Packing,
}

impl Serving {
    fn run(&self, idle: Option<Duration>) -> u64 {
        let mut pushed = 0;
        let mut last_work = Instant::now();
        let mut failed: BTreeSet<SegmentName> = BTreeSet::new();
        while self.wal.exists() && idle.is_none_or(|idle| last_work.elapsed() < idle) {
            // First: the server may have removed these files, so that the spool has the only copy.
            if let Some(spool) = self.spool.as_ref().filter(|spool| spool.has_files()) {
                last_work = Instant::now();
                if let Err(error) = self.store_spooled(spool) {
                    debug(|| error.line());
                    thread::sleep(RETRY);
                }
                continue;
            }
            let mut waiting = self.wal.ready_segments();
            waiting.retain(|segment| !failed.contains(segment) && !self.is_pushed(*segment));
            if waiting.is_empty() {
                thread::sleep(LOOK);
                continue;
            }
            last_work = Instant::now();
            let (stored, refused) = self.push_runs(&self.wal, &waiting);
            pushed += stored.len() as u64;
            if let Some((segment, error)) = refused {
                debug(|| error.line());
                // Not tried again here: the server's own archive command gets the error.
                failed.insert(segment);
                thread::sleep(LOOK);
            }
        }
        pushed
    }

    fn is_pushed(&self, segment: SegmentName) -> bool {
        let stamp = self.wal.stamp(segment);
        stamp.is_none_or(|stamp| self.notes.has(segment, &stamp))
    }

    /// Stores the files of the spool. One that the repository refuses is put aside.
    ///
    /// # Errors
    /// Those after which the rest waits: the storage is away, or its key or disk is missing.
    fn store_spooled(&self, spool: &ClusterSpool) -> Result<()> {
        let names = spool.names();
        for name in names.iter().filter(|name| segment_of(**name).is_none()) {
            match self.store_other(spool, *name) {
                Ok(()) => spool.remove(&name.to_string()),
                Err(error) => put_aside(spool, &name.to_string(), error)?,
            }
        }
        let waiting: Vec<SegmentName> = names.into_iter().filter_map(segment_of).collect();
        let (stored, refused) = self.push_runs(&spool.wal(), &waiting);
        for segment in &stored {
            spool.remove(&segment.to_string());
        }
        refused.map_or(Ok(()), |(segment, error)| {
            put_aside(spool, &segment.to_string(), error)
        })
    }

    /// Stores a file of the spool that is no whole segment.
    fn store_other(&self, spool: &ClusterSpool, name: WalFileName) -> Result<()> {
        let wal = spool.wal();
        match name {
            WalFileName::Segment(segment) | WalFileName::Partial(segment) => {
                let run = self.packing.pack_run(&wal, segment, true, &|_| false)?;
                self.target.store(&run, &wal, &self.notes).map(drop)
            }
            WalFileName::History(_) | WalFileName::Backup(..) => {
                let content = wal.read_small(&name.to_string())?;
                self.target.store_small(self.system, name, &content)
            }
        }
    }

    /// Pushes all that waits. While a run is stored, the next one is compressed. Returns the segments that were pushed, and the
    /// first one that could not be, with the reason.
    fn push_runs(
        &self,
        wal: &WalDirectory,
        waiting: &[SegmentName],
    ) -> (Vec<SegmentName>, Option<(SegmentName, Error)>) {
        let all: BTreeSet<SegmentName> = waiting.iter().copied().collect();
        let pack = |first: SegmentName| {
            let run = self
                .packing
                .pack_run(wal, first, false, &|next| all.contains(&next));
            run.map_err(|error| (first, error))
        };
        let mut rest = all.clone();
        let mut pushed = Vec::new();
        let mut packed = None;
        loop {
            let next = rest.pop_first();
            let previous = packed.take();
            let (stored, made) = run_both(
                next.is_some(),
                || self.store_run(wal, previous.as_ref()),
                || next.map(pack),
            );
            match stored {
                Ok(segments) => pushed.extend(segments),
                Err(refused) => return (pushed, Some(refused)),
            }
            match made {
                Some(Ok(run)) => {
                    for (segment, _) in &run.stamps {
                        rest.remove(segment);
                    }
                    packed = Some(run);
                }
                Some(Err(refused)) => return (pushed, Some(refused)),
                None => return (pushed, None),
            }
        }
    }

    /// Stores a run, if there is one. An error has its first segment.
    fn store_run(
        &self,
        wal: &WalDirectory,
        run: Option<&PackedRun>,
    ) -> Result<Vec<SegmentName>, (SegmentName, Error)> {
        let Some((run, first)) = run.and_then(|run| Some((run, run.stamps.first()?.0))) else {
            return Ok(Vec::new());
        };
        let stored = self.target.store(run, wal, &self.notes);
        stored
            .map(|(segments, _)| segments)
            .map_err(|error| (first, error))
    }
}

/// Puts a file aside that the repository will not take later either; other errors are given back.
fn put_aside(spool: &ClusterSpool, name: &str, error: Error) -> Result<()> {
    if !matches!(error.kind, ErrorKind::Exists | ErrorKind::Corrupt) {
        return Err(error);
    }
    spool.refuse(name, &error);
    Ok(())
}
