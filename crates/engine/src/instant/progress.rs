//! How far an instant restore is.

use super::{
    begin::ServedTree,
    plan_file::{InstantPlan, UNIT_BYTES},
    state_dir::StateDir,
    unit_map::{MapNumber, Phase, UnitMap},
};
use fullbore_format::error::Result;
use std::{path::Path, time::Duration};

/// Numbers of an instant restore.
#[derive(Debug, Clone, Copy)]
pub struct InstantProgress {
    /// Bytes of placeholders, and of those that are here.
    pub total_bytes: u64,
    pub here_bytes: u64,
    /// Bytes that somebody waited for.
    pub asked_bytes: u64,
    /// Bytes whose content is damaged in the backup.
    pub damaged_bytes: u64,
    /// Events that were answered or wait.
    pub events: u64,
    /// Workers that were started.
    pub workers: u64,
    /// Events of dead processes that were taken over.
    pub retaken: u64,
    /// Process that answers.
    pub guardian: u64,
    /// Process that fills.
    pub worker: u64,
    pub phase: Phase,
    /// Whether a process serves.
    pub is_served: bool,
}

impl InstantProgress {
    /// Reads the numbers of the restore of a target.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](fullbore_format::error::ErrorKind::NotFound) if there is none; the system's.
    pub fn of(target: &Path) -> Result<Self> {
        let state = StateDir::of(target)?;
        let plan = InstantPlan::read(&state)?;
        let map = UnitMap::open(&state, &plan)?;
        Ok(Self::read(&state, &plan, &map))
    }

    fn read(state: &StateDir, plan: &InstantPlan, map: &UnitMap) -> Self {
        let (here, bad) = map.counts();
        let total_bytes = plan.bytes();
        let bytes = |units: u64| units.saturating_mul(UNIT_BYTES).min(total_bytes);
        Self {
            total_bytes,
            here_bytes: bytes(here),
            asked_bytes: bytes(map.number(MapNumber::Asked)),
            damaged_bytes: bytes(bad),
            events: map.number(MapNumber::Events),
            workers: map.number(MapNumber::Workers),
            retaken: map.number(MapNumber::Retaken),
            guardian: map.number(MapNumber::Guardian),
            worker: map.number(MapNumber::Worker),
            phase: map.phase(),
            is_served: state.is_served(),
        }
    }
}

impl ServedTree {
    /// Returns the numbers of now.
    pub fn progress(&self) -> InstantProgress {
        InstantProgress::read(&self.state, &self.plan, &self.map)
    }

    /// Bytes that were written before the tree was served.
    pub fn early_bytes(&self) -> u64 {
        self.plan.head.early_bytes
    }

    /// Time since the start of the command.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}
