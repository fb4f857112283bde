//! The events that wait for answers, in memory that outlives the process that answers.
//!
//! A server that inherited the group inherits this memory too. Whoever takes the group over finds here the numbers
//! of the events that the dead process had read, and what each of them waits for.

use fullbore_platform::pre_content::{
    AccessEvent, EventGroup, MAX_EVENT_BYTES, events_in, shared_map::SharedMap,
};
use std::{
    io,
    os::fd::{OwnedFd, RawFd},
    sync::atomic::Ordering::{Acquire, Release},
};

/// Name of the memory in `/proc/PID/fd`.
const NAME: &str = "fullbore-events";
/// How that looks there.
pub(super) const LINK: &str = "/memfd:fullbore-events";
/// Events that wait at the same time, at most. Others stay in the kernel's queue.
const SLOTS: usize = 4096;
/// Bytes of a slot: number + 1, file + 1, first unit, last unit.
const SLOT_BYTES: usize = 32;
/// Places: whether the buffer may have events without slots, the buffer, the slots.
const READING_AT: usize = 0;
const BUFFER_AT: usize = 64;
const SLOTS_AT: usize = 4096;
const TABLE_BYTES: usize = SLOTS_AT + SLOTS * SLOT_BYTES;

/// An event of a process that died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OrphanEvent {
    pub(super) number: RawFd,
    /// Its slot in the table.
    pub(super) slot: u32,
    /// The file and the units that it waits for; `None` if that was not noted.
    pub(super) wanted: Option<WantedUnits>,
}

/// Units of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WantedUnits {
    pub(super) file: u32,
    pub(super) first: u64,
    pub(super) last: u64,
}

/// The table.
#[derive(Debug)]
pub(super) struct EventTable {
    map: SharedMap,
    free: Vec<u32>,
}

impl EventTable {
    /// Makes an empty table.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self::with(SharedMap::in_memory(NAME, TABLE_BYTES)?))
    }

    /// Maps the table of a descriptor. Events of a dead process keep their slots.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn of_fd(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self::with(SharedMap::of_fd(fd, TABLE_BYTES)?))
    }

    fn with(map: SharedMap) -> Self {
        let mut table = Self {
            map,
            free: Vec::new(),
        };
        let is_free = |slot: &u32| table.field(*slot, 0).load(Acquire) == 0;
        table.free = (0..SLOTS as u32).rev().filter(is_free).collect();
        table
    }

    pub(super) fn memory(&self) -> &SharedMap {
        &self.map
    }

    /// Returns whether another event can be read: a read returns two at most.
    pub(super) fn has_room(&self) -> bool {
        self.free.len() >= 2
    }

    /// Reads events of the group. They are noted in the table even if this process dies in the call.
    ///
    /// [`EventTable::note`] must be called for each before the next read.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn read(&self, group: &EventGroup) -> io::Result<Vec<AccessEvent>> {
        self.map.word(READING_AT).store(1, Release);
        let read = self
            .map
            .fill(BUFFER_AT, MAX_EVENT_BYTES, |buffer| group.read(buffer))?;
        Ok(events_in(&read))
    }

    /// Says that all events of the last read are noted or answered.
    pub(super) fn settle_read(&self) {
        self.map.word(READING_AT).store(0, Release);
    }

    fn field(&self, slot: u32, field: usize) -> &std::sync::atomic::AtomicU64 {
        self.map
            .long(SLOTS_AT + slot as usize * SLOT_BYTES + field * 8)
    }

    /// Notes an event that waits, and what for. Returns its slot.
    pub(super) fn note(&mut self, number: RawFd, wanted: Option<WantedUnits>) -> Option<u32> {
        let slot = self.free.pop()?;
        let file = wanted.map_or(0, |wanted| u64::from(wanted.file) + 1);
        self.field(slot, 1).store(file, Release);
        self.field(slot, 2)
            .store(wanted.map_or(0, |wanted| wanted.first), Release);
        self.field(slot, 3)
            .store(wanted.map_or(0, |wanted| wanted.last), Release);
        self.field(slot, 0).store(number as u64 + 1, Release);
        Some(slot)
    }

    /// Forgets an event that was answered. Its descriptor must still be open, so that its number is not used again
    /// before.
    pub(super) fn forget(&mut self, slot: u32) {
        self.field(slot, 0).store(0, Release);
        self.free.push(slot);
    }

    /// Returns the events of a dead process. Each keeps its slot until it is forgotten.
    pub(super) fn orphans(&mut self) -> Vec<OrphanEvent> {
        let mut orphans: Vec<_> = (0..SLOTS as u32)
            .filter_map(|slot| self.orphan(slot))
            .collect();
        if self.map.word(READING_AT).load(Acquire) != 0 {
            let buffer = self.map.copy(BUFFER_AT, MAX_EVENT_BYTES);
            for event in events_in(&buffer) {
                let is_known = orphans.iter().any(|orphan| orphan.number == event.number);
                let slot = if is_known {
                    None
                } else {
                    self.note(event.number, None)
                };
                orphans.extend(slot.and_then(|slot| self.orphan(slot)));
            }
            self.settle_read();
        }
        orphans
    }

    fn orphan(&self, slot: u32) -> Option<OrphanEvent> {
        let number = self.field(slot, 0).load(Acquire).checked_sub(1)?;
        let file = self.field(slot, 1).load(Acquire).checked_sub(1);
        let wanted = file.map(|file| WantedUnits {
            file: file as u32,
            first: self.field(slot, 2).load(Acquire),
            last: self.field(slot, 3).load(Acquire),
        });
        Some(OrphanEvent {
            number: number as RawFd,
            slot,
            wanted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn events_of_a_dead_process_are_found_with_what_they_wait_for() {
        let mut table = EventTable::new().unwrap();
        let wanted = |file| WantedUnits {
            file,
            first: 1,
            last: 2,
        };
        let slots = [7, 9].map(|number| {
            let wanted = Some(wanted(number as u32));
            table.note(number, wanted).unwrap()
        });
        table.forget(slots[0]);
        let fd = table.memory().as_fd().try_clone_to_owned().unwrap();
        let mut other = EventTable::of_fd(fd).unwrap();
        let orphans = other.orphans();
        assert_eq!(orphans.len(), 1);
        assert_eq!((orphans[0].number, orphans[0].slot), (9, slots[1]));
        assert_eq!(orphans[0].wanted, Some(wanted(9)));
        assert!(!other.free.contains(&slots[1]));
        other.forget(slots[1]);
        assert_eq!(other.orphans(), []);
    }
}
