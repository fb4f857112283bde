//! A buffer before a drive, emptied by a thread of its own at the pace of the drive.
//!
//! The writer of a backup pushes records and marks; it learns later that the medium is near its end,
//! is full, or has failed. Full or failed, the ring takes no more, and [`TapeRing::finish`] gives back
//! the drive with all items that are not on the medium for sure, so that they can be written to another one.

use crate::{
    Device, RecordOutcome, TapeDrive,
    kept::KeptWriter,
    pace::{Pace, PaceStep},
    ring_drive::{DriveRing, RingDrive, RingEnd, RingItem, RingSettings, RingStop},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{
    memory,
    queue::{Locked, start},
};
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Instant,
};

struct RingState {
    items: VecDeque<RingItem>,
    level: u64,
    pace: Pace,
    has_ended: bool,
    is_stopped: bool,
    is_near_end: bool,
    /// An item waits for room.
    is_pressed: bool,
}

struct SharedRing {
    state: Mutex<RingState>,
    changed: Condvar,
    clock: Instant,
    most_bytes: u64,
}

/// The buffers before a drive together, if there is memory for it: 3 s of an LTO-9 drive wait to be written, and
/// as much is in the buffer of the drive.
const BUFFER_BYTES: u64 = 2 << 30;

/// A ring before a drive.
pub(crate) struct TapeRing {
    shared: Arc<SharedRing>,
    writer: Option<JoinHandle<RingEnd>>,
}

impl Drop for TapeRing {
    /// Ends the thread of a ring that is not needed any more: what waits is not written.
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        let mut state = self.shared.state.locked();
        state.items.clear();
        state.has_ended = true;
        self.shared.changed.notify_all();
        drop(state);
        let _ = writer.join();
    }
}

impl TapeRing {
    /// Begins a thread that writes to the drive. The first item gets the number `first` on the
    /// medium, where the head is.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub(crate) fn begin(
        drive: Box<dyn RingDrive>,
        first: u64,
        settings: RingSettings,
    ) -> Result<Self> {
        let state = RingState {
            items: VecDeque::new(),
            level: 0,
            pace: Pace::new(settings.pace),
            has_ended: false,
            is_stopped: false,
            is_near_end: false,
            is_pressed: false,
        };
        let shared = Arc::new(SharedRing {
            state: Mutex::new(state),
            changed: Condvar::new(),
            clock: Instant::now(),
            most_bytes: settings.pace.ring_bytes,
        });
        let own = shared.clone();
        let kept = KeptWriter::new(drive, first, settings);
        let writer = Some(start(move || own.write(kept))?);
        Ok(Self { shared, writer })
    }
}

impl DriveRing for TapeRing {
    fn push(&self, item: RingItem) -> Option<RingItem> {
        let mut state = self.shared.state.locked();
        while !state.is_stopped
            && state.level > 0
            && state.level + item.bytes() > self.shared.most_bytes
        {
            state.is_pressed = true;
            self.shared.changed.notify_all();
            state = self.shared.wait(state);
        }
        state.is_pressed = false;
        if state.is_stopped {
            return Some(item);
        }
        let bytes = item.bytes();
        state.pace.arrived(bytes, self.shared.clock.elapsed());
        state.level += bytes;
        state.items.push_back(item);
        self.shared.changed.notify_all();
        None
    }

    fn is_near_end(&self) -> bool {
        let state = self.shared.state.locked();
        state.is_near_end || state.is_stopped
    }

    fn finish(mut self: Box<Self>) -> Result<RingEnd> {
        self.shared.state.locked().has_ended = true;
        self.shared.changed.notify_all();
        let ended = self.writer.take().and_then(|writer| writer.join().ok());
        let message = "the thread of a tape drive has failed";
        ended.ok_or_else(|| Error::new(ErrorKind::Bug, message))
    }
}

impl<D: Device + 'static> RingDrive for TapeDrive<D> {
    fn begin_ring(
        self: Box<Self>,
        first: u64,
        settings: RingSettings,
    ) -> Result<Box<dyn DriveRing>> {
        Ok(Box::new(TapeRing::begin(self, first, settings)?))
    }

    fn usual_buffer_bytes(&self) -> u64 {
        memory::within_limit(BUFFER_BYTES.min(memory::machine_bytes() / 8), 0)
    }
}

impl SharedRing {
    fn wait<'a>(&self, state: MutexGuard<'a, RingState>) -> MutexGuard<'a, RingState> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes until the end or a stop.
    fn write(&self, mut kept: KeptWriter) -> RingEnd {
        let stop = self.write_items(&mut kept);
        let mut state = self.state.locked();
        state.is_stopped = true;
        self.changed.notify_all();
        let mut left = kept.kept;
        left.append(&mut state.items);
        RingEnd {
            drive: kept.drive,
            stop,
            left,
            first_left: kept.first,
            starts: state.pace.starts(),
            rewrites: kept.rewrites,
        }
    }

    fn write_items(&self, kept: &mut KeptWriter) -> RingStop {
        while let Some(item) = self.next() {
            match kept.write(item.clone()) {
                Ok(RecordOutcome::Full) => {
                    self.put_back(item);
                    // What the drive took before has room on the medium. If it is lost all the
                    // same, it is among the items that are left.
                    let _ = kept.flush();
                    return RingStop::Full;
                }
                Err(error) => {
                    self.put_back(item);
                    return RingStop::Failed(error);
                }
                Ok(_) => self.note(&item, kept.is_near_end),
            }
        }
        match kept.flush() {
            Ok(()) => RingStop::Ended,
            Err(error) => RingStop::Failed(error),
        }
    }

    /// Waits for the next item and its time; `None` at the end.
    fn next(&self) -> Option<RingItem> {
        let mut state = self.state.locked();
        loop {
            if state.has_ended && state.items.is_empty() {
                return None;
            }
            // A mark has no bytes, and is something to write.
            let level = state.level.max(u64::from(!state.items.is_empty()));
            // Less than is full, but the next record does not fit: the ring is short for such records.
            let level = match state.is_pressed && level > 0 {
                true => level.max(self.most_bytes),
                false => level,
            };
            let has_ended = state.has_ended;
            let step = state.pace.step(level, has_ended, self.clock.elapsed());
            state = match step {
                PaceStep::Write => return state.items.pop_front(),
                PaceStep::WaitForMore => self.wait(state),
                PaceStep::WaitFor(time) => {
                    let waited = self.changed.wait_timeout(state, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn put_back(&self, item: RingItem) {
        self.state.locked().items.push_front(item);
    }

    fn note(&self, item: &RingItem, is_near_end: bool) {
        let mut state = self.state.locked();
        state.level -= item.bytes();
        state.is_near_end |= is_near_end;
        let level = state.level;
        state
            .pace
            .written(item.bytes(), level, self.clock.elapsed());
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Drive, Fault, PaceSettings, ReadOutcome,
        sim::{SimClock, SimDevice, SimFault, SimFaultKind, SimSettings},
    };

    const RECORD: usize = 4096;

    fn drive(dir: &std::path::Path, change: impl FnOnce(&mut SimSettings)) -> Box<dyn RingDrive> {
        let mut settings = SimSettings {
            capacity_bytes: 100 * RECORD as u64,
            warning_bytes: 10 * RECORD as u64,
            buffer_bytes: 8 * RECORD as u64,
            ..SimSettings::default()
        };
        change(&mut settings);
        let device =
            SimDevice::create(&dir.join("tape"), settings, SimClock::virtual_time()).unwrap();
        Box::new(TapeDrive::new(device, "sim"))
    }

    fn record(number: u64) -> Vec<u8> {
        let mut record = vec![0; RECORD];
        record[..8].copy_from_slice(&number.to_le_bytes());
        record
    }

    fn push_records(drive: Box<dyn RingDrive>, count: u64) -> (u64, bool, RingEnd) {
        let settings = RingSettings {
            pace: PaceSettings {
                ring_bytes: 16 * RECORD as u64,
                lowest_rate: 300e6,
            },
            most_kept_bytes: 32 * RECORD as u64,
        };
        let ring = drive.begin_ring(0, settings).unwrap();
        let mut pushed = 0;
        while pushed < count {
            let item = RingItem::Record(Arc::new(record(pushed)));
            if ring.push(item).is_some() {
                break;
            }
            pushed += 1;
        }
        let is_near_end = ring.is_near_end();
        (pushed, is_near_end, ring.finish().unwrap())
    }

    fn assert_records(drive: &mut dyn Drive, count: u64) {
        drive.rewind().unwrap();
        let mut buffer = vec![0; RECORD];
        for number in 0..count {
            let read = drive.read(&mut buffer).unwrap();
            assert_eq!(read, ReadOutcome::Record(RECORD), "{number}");
            assert_eq!(buffer, record(number));
        }
    }

    #[test]
    fn all_items_reach_the_drive_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let (pushed, is_near_end, mut end) = push_records(drive(dir.path(), |_| ()), 60);
        assert!(matches!(end.stop, RingStop::Ended) && end.left.is_empty());
        assert_eq!((pushed, is_near_end, end.first_left), (60, false, 60));
        assert_records(&mut *end.drive, 60);
    }

    #[test]
    fn a_ring_that_is_shorter_than_two_records_does_not_wait_for_itself() {
        let dir = tempfile::tempdir().unwrap();
        for ring_bytes in [1, RECORD as u64, 2 * RECORD as u64 - 1] {
            let _ = std::fs::remove_file(dir.path().join("tape"));
            let settings = RingSettings {
                pace: PaceSettings {
                    ring_bytes,
                    lowest_rate: 300e6,
                },
                most_kept_bytes: 32 * RECORD as u64,
            };
            let ring = drive(dir.path(), |_| ()).begin_ring(0, settings).unwrap();
            let label = RingItem::Record(Arc::new(vec![1; 100]));
            assert!(ring.push(label).is_none() && ring.push(RingItem::Mark).is_none());
            for number in 0..20 {
                let item = RingItem::Record(Arc::new(record(number)));
                assert!(ring.push(item).is_none());
            }
            let end = ring.finish().unwrap();
            assert!(matches!(end.stop, RingStop::Ended), "{ring_bytes}");
            assert_eq!(end.first_left, 22);
        }
    }

    #[test]
    fn a_full_medium_gives_back_what_did_not_fit() {
        let dir = tempfile::tempdir().unwrap();
        let (pushed, is_near_end, mut end) = push_records(drive(dir.path(), |_| ()), 500);
        assert!(matches!(end.stop, RingStop::Full) && is_near_end);
        assert_eq!(end.first_left, 100);
        assert_eq!(end.first_left + end.left.len() as u64, pushed);
        assert_eq!(end.left[0], RingItem::Record(Arc::new(record(100))));
        assert_records(&mut *end.drive, 100);
    }

    #[test]
    fn records_that_a_drive_lost_are_written_again_once() {
        let fault = |block, kind| SimFault { block, kind };
        for (kind, tells) in [
            (SimFaultKind::Write, true),
            (SimFaultKind::Write, false),
            (SimFaultKind::Reset, true),
            (SimFaultKind::Reset, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let faults = vec![fault(20, kind)];
            let with = drive(dir.path(), |settings| {
                settings.faults = faults;
                settings.tells_buffer = tells;
            });
            let (_, _, mut end) = push_records(with, 60);
            assert!(matches!(end.stop, RingStop::Ended), "{:?}", end.stop);
            assert_eq!((end.rewrites, end.first_left), (1, 60), "{kind:?} {tells}");
            assert_records(&mut *end.drive, 60);
        }
        let dir = tempfile::tempdir().unwrap();
        let faults = vec![
            fault(20, SimFaultKind::Write),
            fault(40, SimFaultKind::Write),
        ];
        let with = drive(dir.path(), |settings| settings.faults = faults);
        let (_, _, mut end) = push_records(with, 500);
        let RingStop::Failed(error) = &end.stop else {
            panic!("{:?}", end.stop);
        };
        assert_eq!((error.fault, end.rewrites), (Fault::Medium, 1));
        assert!(end.first_left <= 40, "{}", end.first_left);
        assert_eq!(
            end.left[0],
            RingItem::Record(Arc::new(record(end.first_left)))
        );
        let first_left = end.first_left;
        assert_records(&mut *end.drive, first_left);
    }
}
