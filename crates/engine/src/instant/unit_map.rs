//! What is there of each file: a byte for each unit, shared by the processes of an instant restore.
//!
//! The extents of a file say nothing: a server extends and punches files, and such holes must stay zeros. The map is
//! a mapped file, so it holds what is there while the kernel lives. After another boot only units count that were
//! synced when their bit was set.

use super::{
    plan_file::{InstantPlan, UNIT_BYTES},
    state_dir::StateDir,
};
use fullbore_format::error::Result;
use fullbore_platform::{boot_id, pre_content::shared_map::SharedMap};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// The content of the unit is in the page cache or on disk.
pub(super) const HERE: u8 = 1;
/// The content was synced before this bit was set.
pub(super) const SYNCED: u8 = 2;
/// The bit [`SYNCED`] is durable: the unit may be written to.
pub(super) const DURABLE: u8 = 4;
/// The content is damaged in the backup.
pub(super) const BAD: u8 = 8;

/// Somebody wrote to the file, or changed its size.
pub(super) const WRITTEN: u32 = 1;
/// All units are here, and the worker sets the time of the file back.
pub(super) const TIMING: u32 = 2;
/// All units are here, and the time of the file is as it will stay.
pub(super) const TIMED: u32 = 4;
/// All units are durable, and the mark is removed.
pub(super) const FINISHED: u32 = 8;

/// Bytes before the records of files.
const HEAD_BYTES: usize = 4096;
/// Bytes of the record of a file: its limit, its durable limit, its flags.
const FILE_BYTES: usize = 24;
/// Places in the head.
const BOOT_AT: usize = 0;
const BOOT_BYTES: usize = 64;

/// Numbers in the head of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum MapNumber {
    /// A [`Phase`].
    Phase = 0,
    /// Events that were answered.
    Events,
    /// Units that somebody waited for.
    Asked,
    /// Process that answers.
    Guardian,
    /// Process that fills.
    Worker,
    /// Workers that were started.
    Workers,
    /// Whether the rest waits until a server accepts connections.
    Hold,
    /// Events of dead processes that were answered.
    Retaken,
}

/// The state of the whole restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// Somebody serves, or did.
    Serving = 0,
    /// Everything is there.
    Whole = 1,
    /// The guardian ended because it was told to.
    Stopped = 2,
}

/// The map of one restore.
#[derive(Debug)]
pub(super) struct UnitMap {
    map: SharedMap,
    units_at: usize,
    units: usize,
}

impl UnitMap {
    /// Maps the file of a restore, and makes it if it is new.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(state: &StateDir, plan: &InstantPlan) -> Result<Self> {
        let units_at = HEAD_BYTES + plan.files.len() * FILE_BYTES;
        let units = plan.units() as usize;
        let map = SharedMap::new(state.units()?, units_at + units);
        Ok(Self {
            map: map.map_err(|e| state.error("map the units in", e))?,
            units_at,
            units,
        })
    }

    /// Fills in a new map: no unit is here, and no file is shorter than planned.
    pub(super) fn begin(&self, plan: &InstantPlan) {
        self.note_boot();
        for (index, file) in plan.files.iter().enumerate() {
            self.limit_of(index).store(file.size, Release);
            self.durable_limit_of(index).store(file.size, Release);
        }
    }

    fn note_boot(&self) {
        let id = boot_id();
        for place in 0..BOOT_BYTES {
            let byte = id.as_bytes().get(place).copied().unwrap_or_default();
            self.map.byte(BOOT_AT + place).store(byte, Release);
        }
    }

    fn is_of_this_boot(&self) -> bool {
        let mut wanted = boot_id().into_bytes();
        wanted.resize(BOOT_BYTES, 0);
        self.map.copy(BOOT_AT, BOOT_BYTES) == wanted
    }

    /// Keeps only what is surely on disk, if the machine was started since the map was written.
    pub(super) fn settle_boot(&self, plan: &InstantPlan) {
        if self.is_of_this_boot() {
            return;
        }
        for (index, file) in plan.files.iter().enumerate() {
            let units = file.first_unit..file.first_unit + file.units();
            let lost = units.filter(|unit| !self.keep_synced(*unit)).count();
            if lost > 0 {
                self.reopen(index);
            }
        }
        self.note_boot();
    }

    /// Returns whether a unit was synced. Forgets it otherwise.
    fn keep_synced(&self, unit: u64) -> bool {
        let is_synced = self.is(unit, SYNCED);
        let kept = if is_synced {
            HERE | SYNCED | DURABLE
        } else {
            0
        };
        self.byte(unit).store(kept, Release);
        is_synced
    }

    fn byte(&self, unit: u64) -> &std::sync::atomic::AtomicU8 {
        assert!((unit as usize) < self.units);
        self.map.byte(self.units_at + unit as usize)
    }

    /// Returns the bits of a unit.
    pub(super) fn state(&self, unit: u64) -> u8 {
        self.byte(unit).load(Acquire)
    }

    pub(super) fn is(&self, unit: u64, bits: u8) -> bool {
        self.state(unit) & bits == bits
    }

    pub(super) fn set(&self, unit: u64, bits: u8) {
        self.byte(unit).fetch_or(bits, AcqRel);
    }

    pub(super) fn clear(&self, unit: u64, bits: u8) {
        self.byte(unit).fetch_and(!bits, AcqRel);
    }

    fn limit_of(&self, file: usize) -> &std::sync::atomic::AtomicU64 {
        self.map.long(HEAD_BYTES + file * FILE_BYTES)
    }

    fn durable_limit_of(&self, file: usize) -> &std::sync::atomic::AtomicU64 {
        self.map.long(HEAD_BYTES + file * FILE_BYTES + 8)
    }

    fn flags_of(&self, file: usize) -> &std::sync::atomic::AtomicU32 {
        self.map.word(HEAD_BYTES + file * FILE_BYTES + 16)
    }

    /// Returns the end of what may be filled: the size in the backup, or less after a truncation.
    pub(super) fn limit(&self, file: usize) -> u64 {
        self.limit_of(file).load(Acquire)
    }

    pub(super) fn lower_limit(&self, file: usize, limit: u64) {
        self.limit_of(file).fetch_min(limit, AcqRel);
    }

    /// Returns the limit that outlives a power failure: only down to it may somebody cut the file.
    pub(super) fn durable_limit(&self, file: usize) -> u64 {
        self.durable_limit_of(file).load(Acquire)
    }

    pub(super) fn note_durable_limit(&self, file: usize, limit: u64) {
        self.durable_limit_of(file).fetch_min(limit, AcqRel);
    }

    pub(super) fn flags(&self, file: usize) -> u32 {
        self.flags_of(file).load(Acquire)
    }

    /// Sets flags of a file, and returns those that were set before.
    pub(super) fn set_flags(&self, file: usize, flags: u32) -> u32 {
        self.flags_of(file).fetch_or(flags, AcqRel)
    }

    /// Removes the flags of an end whose units are lost: the file is filled again.
    fn reopen(&self, file: usize) {
        let ended = TIMING | TIMED | FINISHED;
        self.flags_of(file).fetch_and(!ended, AcqRel);
    }

    fn number_at(&self, number: MapNumber) -> &std::sync::atomic::AtomicU64 {
        self.map.long(BOOT_BYTES + number as usize * 8)
    }

    pub(super) fn number(&self, number: MapNumber) -> u64 {
        self.number_at(number).load(Acquire)
    }

    pub(super) fn set_number(&self, number: MapNumber, value: u64) {
        self.number_at(number).store(value, Release);
    }

    pub(super) fn add(&self, number: MapNumber, more: u64) {
        self.number_at(number).fetch_add(more, AcqRel);
    }

    pub(super) fn phase(&self) -> Phase {
        match self.number(MapNumber::Phase) {
            1 => Phase::Whole,
            2 => Phase::Stopped,
            _ => Phase::Serving,
        }
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.set_number(MapNumber::Phase, phase as u64);
    }

    /// Makes everything durable that is noted so far.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn sync(&self) -> std::io::Result<()> {
        self.map.sync()
    }

    /// Returns the numbers of units that are here, and that are damaged.
    pub(super) fn counts(&self) -> (u64, u64) {
        let states = (0..self.units as u64).map(|unit| self.state(unit));
        states.fold((0, 0), |(here, bad), state| {
            (
                here + u64::from(state & HERE != 0),
                bad + u64::from(state & (HERE | BAD) == BAD),
            )
        })
    }
}

/// Returns the first and the last unit of a file that a range touches; `None` if it lies behind the end.
pub(super) fn units_of(size: u64, offset: u64, count: u64) -> Option<(u64, u64)> {
    if count == 0 || offset >= size {
        return None;
    }
    let last = offset.saturating_add(count - 1).min(size - 1);
    Some((offset / UNIT_BYTES, last / UNIT_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_the_units_up_to_the_end_of_the_file() {
        let size = 3 * UNIT_BYTES + 5;
        for (offset, count, units) in [
            (0, 1, Some((0, 0))),
            (UNIT_BYTES - 1, 2, Some((0, 1))),
            (0, u64::MAX, Some((0, 3))),
            (size - 1, 100, Some((3, 3))),
            (size, 1, None),
            (0, 0, None),
        ] {
            assert_eq!(units_of(size, offset, count), units, "{offset} {count}");
        }
    }
}
