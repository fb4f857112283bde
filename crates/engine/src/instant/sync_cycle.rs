//! Makes filled units durable, in groups, and finishes the files whose units all are.
//!
//! A write is allowed only into a unit whose bit is durable. Otherwise a power failure could lose the bit and keep the
//! write, and the unit would be filled again with its older content.

use super::{
    unit_map::{DURABLE, FINISHED, SYNCED},
    worker::Worker,
};
use fullbore_format::error::{Error, Result};
use fullbore_platform::queue::Locked;
use std::{
    collections::BTreeSet,
    mem::take,
    sync::{Condvar, Mutex},
    thread,
    time::Duration,
};

/// Time between two cycles that nobody asked for.
const CYCLE: Duration = Duration::from_secs(5);
/// Pause after an error.
const PAUSE: Duration = Duration::from_millis(500);
/// Files that are synced one by one; more are synced with their file systems.
const FEW_FILES: usize = 16;

/// The units, files and cuts that are written and not yet durable.
#[derive(Debug, Default)]
pub(super) struct SyncCycle {
    state: Mutex<SyncState>,
    asked: Condvar,
}

#[derive(Debug, Default)]
struct SyncState {
    /// Files and units.
    units: Vec<(u32, u64)>,
    /// Files of which all is here.
    ended: BTreeSet<u32>,
    cuts: Vec<(u32, u64)>,
    is_asked: bool,
    /// Whether the tree itself is durable: its names, its placeholders, the plan.
    has_tree: bool,
}

impl SyncState {
    fn is_empty(&self) -> bool {
        self.units.is_empty() && self.cuts.is_empty() && self.ended.is_empty()
    }
}

impl SyncCycle {
    pub(super) fn add(&self, units: impl Iterator<Item = (u32, u64)>) {
        self.state.locked().units.extend(units);
    }

    pub(super) fn finish(&self, file: u32) {
        self.state.locked().ended.insert(file);
    }

    pub(super) fn cut(&self, file: u32, size: u64) {
        self.state.locked().cuts.push((file, size));
        self.ask();
    }

    /// Begins a cycle at once.
    pub(super) fn ask(&self) {
        self.state.locked().is_asked = true;
        self.asked.notify_all();
    }

    fn wait(&self) -> SyncState {
        let state = self.state.locked();
        let waited = self
            .asked
            .wait_timeout_while(state, CYCLE, |state| !state.is_asked);
        let mut state = waited.map_or_else(|error| error.into_inner().0, |(state, _)| state);
        state.is_asked = false;
        SyncState {
            units: take(&mut state.units),
            ended: take(&mut state.ended),
            cuts: take(&mut state.cuts),
            is_asked: false,
            has_tree: state.has_tree,
        }
    }

    fn put_back(&self, cycle: SyncState) {
        let mut state = self.state.locked();
        state.units.extend(cycle.units);
        state.ended.extend(cycle.ended);
        state.cuts.extend(cycle.cuts);
    }
}

impl Worker {
    /// Runs cycles for ever.
    pub(super) fn sync_until_done(&self) {
        loop {
            let mut cycle = self.syncs.wait();
            if cycle.is_empty() {
                continue;
            }
            if let Err(error) = self.sync_once(&mut cycle) {
                eprintln!("note: {}", error.line());
                thread::sleep(PAUSE);
            }
            self.syncs.put_back(cycle);
            self.wake();
        }
    }

    /// Makes everything of the cycle durable, and takes it out.
    fn sync_once(&self, cycle: &mut SyncState) -> Result<()> {
        if !cycle.has_tree {
            self.sync_roots()?;
            self.sync_state()?;
            self.syncs.state.locked().has_tree = true;
        }
        self.lower_limits(&cycle.cuts);
        self.sync_units(&cycle.units)?;
        let synced = self.map.sync();
        synced.map_err(|e| self.state.error("sync the units in", e))?;
        for (_, unit) in take(&mut cycle.units) {
            self.map.set(unit, DURABLE);
        }
        for (file, size) in take(&mut cycle.cuts) {
            self.map.note_durable_limit(file as usize, size);
        }
        for file in take(&mut cycle.ended) {
            let finished = self.files[file as usize].locked().finish(self, file)?;
            if !finished && self.map.flags(file as usize) & FINISHED == 0 {
                cycle.ended.insert(file);
            }
        }
        Ok(())
    }

    fn sync_state(&self) -> Result<()> {
        let opened = std::fs::File::open(&self.state.path);
        let synced = opened.and_then(fullbore_platform::durable::sync_fs);
        synced.map_err(|e| self.state.error("sync", e))
    }

    fn lower_limits(&self, cuts: &[(u32, u64)]) {
        for (index, size) in cuts {
            let mut file = self.files[*index as usize].locked();
            self.map.lower_limit(*index as usize, *size);
            if let Err(error) = file.end_content(self, *index) {
                eprintln!("note: {}", error.line());
            }
        }
    }

    fn sync_units(&self, units: &[(u32, u64)]) -> Result<()> {
        let new = units.iter().filter(|(_, unit)| !self.map.is(*unit, SYNCED));
        let files: BTreeSet<u32> = new.map(|(file, _)| *file).collect();
        if files.len() > FEW_FILES {
            self.sync_roots()?;
        } else {
            for file in files {
                self.sync_file(file)?;
            }
        }
        for (_, unit) in units {
            self.map.set(*unit, SYNCED);
        }
        Ok(())
    }

    /// Syncs one file without its lock, so that fills go on.
    fn sync_file(&self, file: u32) -> Result<(), Error> {
        let opened = self.files[file as usize].locked().for_sync(self, file)?;
        let synced = opened.map_or(Ok(()), |opened| opened.sync_data());
        synced.map_err(|e| Error::io("could not sync a restored file", e))
    }
}
