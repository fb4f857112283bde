//! An access that waits: what it still needs, and when it fails.

use super::{
    event_table::WantedUnits,
    messages::WorkerRequest,
    plan_file::{InstantPlan, PlannedFile, UNIT_BYTES},
    readers::AccessNeed,
    unit_map::{BAD, DURABLE, HERE, TIMED, TIMING, UnitMap, WRITTEN, units_of},
};
use fullbore_platform::pre_content::AccessAnswer;
use std::{
    os::fd::RawFd,
    time::{Duration, Instant},
};

/// An access that waits.
#[derive(Debug)]
pub(super) struct PendingAccess {
    pub(super) number: RawFd,
    /// Its slot in the event table.
    pub(super) slot: u32,
    /// Whether this process has the descriptor of the event, so that it must be closed.
    pub(super) is_own: bool,
    pub(super) file: u32,
    need: AccessNeed,
    /// Units that are needed; `None` if the access lies behind the end of the backup's file.
    units: Option<(u64, u64)>,
    /// The first of them that was not there at the last look.
    next: u64,
    /// Whether a change has to wait until the time of the file is set.
    waits_for_time: bool,
    /// Time of the last progress.
    since: Instant,
    asked: Option<Instant>,
}

/// What a look at an access found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PendingState {
    Answer(AccessAnswer),
    Waits,
}

impl PendingAccess {
    /// Makes the access to `count` bytes at `offset`.
    pub(super) fn new(
        (number, file): (RawFd, u32),
        planned: &PlannedFile,
        need: AccessNeed,
        (offset, count): (u64, u64),
    ) -> Self {
        let units = match need {
            AccessNeed::Bytes | AccessNeed::DurableBytes => units_of(planned.size, offset, count),
            AccessNeed::DurableRest => units_of(planned.size, offset, u64::MAX),
            AccessNeed::Whole | AccessNeed::DurableWhole => units_of(planned.size, 0, u64::MAX),
            AccessNeed::Cut(_) => None,
        };
        Self {
            number,
            slot: 0,
            is_own: true,
            file,
            need,
            units,
            next: units.map_or(0, |(first, _)| first),
            waits_for_time: false,
            since: Instant::now(),
            asked: None,
        }
    }

    /// Notes a change before it can happen. Called once, before the first look.
    pub(super) fn note_change(&mut self, map: &UnitMap) {
        if self.need.may_write() {
            let before = map.set_flags(self.file as usize, WRITTEN);
            self.waits_for_time = before & TIMING != 0;
        }
    }

    /// The units that this access waits for, as the event table has them.
    pub(super) fn wanted(&self) -> WantedUnits {
        let (first, last) = self.units.unwrap_or((1, 0));
        WantedUnits {
            file: self.file,
            first,
            last,
        }
    }

    /// Looks whether the access can go on.
    pub(super) fn look(&mut self, plan: &InstantPlan, map: &UnitMap) -> PendingState {
        let file = self.file as usize;
        let is_untimed = map.flags(file) & TIMED == 0;
        let needs_time = matches!(self.need, AccessNeed::Whole | AccessNeed::DurableWhole);
        if let Some(answer) = self.pass_units(&plan.files[file], map) {
            return answer;
        }
        if let AccessNeed::Cut(size) = self.need
            && map.durable_limit(file) > size
        {
            return PendingState::Waits;
        }
        if is_untimed && (needs_time || self.waits_for_time) {
            return PendingState::Waits;
        }
        PendingState::Answer(AccessAnswer::Allow)
    }

    /// Passes the units that are there. Returns a state if not all are.
    fn pass_units(&mut self, planned: &PlannedFile, map: &UnitMap) -> Option<PendingState> {
        let (_, last) = self.units?;
        let wanted = match self.need {
            AccessNeed::Bytes | AccessNeed::Whole => HERE,
            _ => HERE | DURABLE,
        };
        let limit = map.limit(self.file as usize);
        while self.next <= last {
            let state = map.state(planned.first_unit + self.next);
            // Nothing is filled behind the limit, where the bytes are those of a writer.
            let is_behind = self.next * UNIT_BYTES >= limit;
            if state & wanted != wanted && !is_behind {
                let is_bad = state & (HERE | BAD) == BAD;
                return Some(if is_bad {
                    PendingState::Answer(AccessAnswer::Fail)
                } else {
                    PendingState::Waits
                });
            }
            self.next += 1;
            self.since = Instant::now();
        }
        None
    }

    /// Returns whether nothing came for so long that the access fails.
    pub(super) fn is_late(&self, patience: Option<Duration>) -> bool {
        patience.is_some_and(|patience| self.since.elapsed() > patience)
    }

    /// Asks again: the worker that was asked has ended.
    pub(super) fn ask_again(&mut self) {
        self.asked = None;
    }

    /// Returns what the worker is asked for now: at once, and again after `pause`.
    pub(super) fn requests(&mut self, map: &UnitMap, pause: Duration) -> Vec<WorkerRequest> {
        if self.asked.is_some_and(|asked| asked.elapsed() < pause) {
            return Vec::new();
        }
        self.asked = Some(Instant::now());
        let rest = WantedUnits {
            first: self.next,
            ..self.wanted()
        };
        let mut requests = Vec::new();
        match self.need {
            AccessNeed::Cut(size) => {
                let file = self.file;
                if size < map.durable_limit(file as usize) {
                    requests.push(WorkerRequest::Cut { file, size });
                }
            }
            AccessNeed::Whole | AccessNeed::DurableWhole => {
                requests.push(WorkerRequest::Finish(self.file));
            }
            _ => requests.push(WorkerRequest::Fetch(rest)),
        }
        if self.need.may_write() {
            requests.push(WorkerRequest::Sync);
        }
        requests
    }
}
