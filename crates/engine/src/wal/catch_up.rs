//! Archives what a data directory still has: of a standby before it is promoted, of an old primary before `pg_rewind`.
//!
//! With `archive_mode = on` a standby marks what it streamed as archived, and removes it at its next checkpoint. So the marks are
//! set back first, for segments that the repository lacks.

use super::{
    pack::Packing,
    push::{PushTarget, WalPush, with_patience},
    server_files::{WalDirectory, unknown_system},
};
use fullbore_format::{
    error::{ErrorKind, Result},
    wal::{SegmentName, WalFileName},
};
use fullbore_platform::debug;
use fullbore_postgres::wal_archive::SegmentRecords;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// What a data directory had that the repository lacked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaughtUp {
    /// Segments that were stored.
    pub stored: Vec<SegmentName>,
    /// Segments that were there.
    pub there: u64,
    /// Segments that the server has not completed.
    pub open: Vec<SegmentName>,
    /// Histories that were stored, or were there.
    pub histories: u64,
}

impl WalPush {
    /// Pushes all complete segments in the data directory that the repository lacks, and all histories.
    ///
    /// # Errors
    /// As [`WalPush::run`]. What was stored before stays.
    pub fn catch_up(&self, data: &std::path::Path) -> Result<CaughtUp> {
        let wal = WalDirectory::of_cluster(data);
        let system = wal.system();
        let system =
            system.ok_or_else(|| unknown_system(format!("cannot archive the WAL of {data:?}")))?;
        let target = with_patience(self.patience, || {
            PushTarget::open(&self.storages, &self.to, self.copy_name.as_ref())
        })?;
        let mut caught = CaughtUp {
            histories: self.push_histories(&wal)?,
            ..CaughtUp::default()
        };
        let archive = target.archive(system);
        let all = wal.segments();
        let held = held_beside(&archive, &all)?;
        let (there, missing): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|segment| held.contains(segment));
        caught.there = there.len() as u64;
        let mut complete = BTreeSet::new();
        for segment in missing {
            match is_complete(&wal, segment) {
                Some(true) => drop(complete.insert(segment)),
                Some(false) => caught.open.push(segment),
                None => {} // recycled for a later segment
            }
        }
        let mut marked = complete.clone();
        marked.retain(|segment| wal.mark_ready(*segment));
        caught.stored = self.store_all(&target, &wal, system, complete)?;
        for segment in marked {
            wal.mark_done(segment);
        }
        Ok(caught)
    }

    /// Pushes all histories. Returns how many there are.
    fn push_histories(&self, wal: &WalDirectory) -> Result<u64> {
        let histories = wal.histories();
        for timeline in &histories {
            let push = self.of_file(wal, &WalFileName::History(*timeline).to_string());
            push.run()?;
        }
        Ok(histories.len() as u64)
    }

    /// Stores these segments in runs.
    fn store_all(
        &self,
        target: &PushTarget,
        wal: &WalDirectory,
        system: u64,
        mut rest: BTreeSet<SegmentName>,
    ) -> Result<Vec<SegmentName>> {
        let notes = self.notes(system, wal);
        let packing = Packing {
            level: self.level,
            workers: self.workers.max(1),
        };
        let mut all = Vec::new();
        while let Some(first) = rest.first().copied() {
            let run = packing.pack_run(wal, first, false, &|next| rest.contains(&next))?;
            run.check_system(Some(system))?;
            let (stored, _) = with_patience(self.patience, || target.store(&run, wal, &notes))?;
            for (segment, _) in &run.stamps {
                rest.remove(segment);
            }
            all.extend(stored);
        }
        Ok(all)
    }

    /// The same push, of a file in this directory.
    fn of_file(&self, wal: &WalDirectory, name: &str) -> Self {
        let path: PathBuf = wal.file(name);
        Self {
            path,
            ..self.clone()
        }
    }
}

/// Returns whether a segment is complete; `None` if the file is of another place.
fn is_complete(wal: &WalDirectory, segment: SegmentName) -> Option<bool> {
    match wal.read_segment(segment, false) {
        Ok((content, ..)) => SegmentRecords::new(&content).map(SegmentRecords::are_complete),
        Err(error) if error.kind == ErrorKind::Corrupt => {
            debug(|| error.line());
            None
        }
        Err(_) => None,
    }
}

/// Returns the segments that the repository has beside these: one listing for each log.
fn held_beside(
    archive: &fullbore_repository::wal::WalArchive,
    segments: &BTreeSet<SegmentName>,
) -> Result<BTreeSet<SegmentName>> {
    let mut logs: BTreeMap<(u32, u32), SegmentName> = BTreeMap::new();
    for segment in segments {
        logs.insert((segment.timeline, segment.log), *segment);
    }
    let mut held = BTreeSet::new();
    for segment in logs.into_values() {
        let runs = archive.runs_beside(segment)?;
        let whole = runs.iter().filter(|stored| !stored.run.is_partial);
        held.extend(whole.flat_map(|stored| stored.run.segments()));
    }
    Ok(held)
}
