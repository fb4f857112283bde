//! A buffer before a drive, emptied by a thread of its own at the pace of the drive.
//!
//! The writer of a backup pushes records and marks; it learns later that the medium is near its end,
//! is full, or has failed. Then the ring takes no more, and [`TapeRing::finish`] gives back the drive,
//! with the items that it did not take. Records that it took and that are not on the medium after a
//! fault are those from [`crate::Place::on_medium`] on: the writer keeps them until
//! [`TapeRing::on_medium`] has passed them.

use crate::{
    Drive, DriveError, RecordOutcome,
    pace::{Pace, PaceSettings, PaceStep},
};
use fullbore_format::error::{Error, Result};
use fullbore_platform::queue::{Locked, start};
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How often the drive is asked which records are on the medium.
const ASKED_EVERY: Duration = Duration::from_secs(1);

/// A record or a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RingItem {
    /// The bytes of a record.
    Record(Vec<u8>),
    /// A mark that is not waited for.
    Mark,
}

impl RingItem {
    fn bytes(&self) -> u64 {
        match self {
            Self::Record(bytes) => bytes.len() as u64,
            Self::Mark => 0,
        }
    }
}

/// Why a ring took no more.
#[derive(Debug)]
pub enum RingStop {
    /// All was taken.
    Ended,
    /// The medium is behind its early warning: the last item was taken, and room for a trailer is left.
    NearEnd,
    /// The medium is at its physical end: the first item that is left was not taken.
    Full,
    /// The drive failed.
    Failed(DriveError),
}

/// What a ring leaves.
pub struct RingEnd {
    /// The drive, behind the last item that it took.
    pub drive: Box<dyn Drive>,
    /// Why it ended.
    pub stop: RingStop,
    /// Items that were not taken, in their order.
    pub left: VecDeque<RingItem>,
    /// The number of items that the drive took.
    pub taken: u64,
    /// How often writing was begun.
    pub starts: u64,
}

struct RingState {
    items: VecDeque<RingItem>,
    level: u64,
    pace: Pace,
    has_ended: bool,
    is_stopped: bool,
    on_medium: Option<u64>,
}

struct SharedRing {
    state: Mutex<RingState>,
    changed: Condvar,
    clock: Instant,
    most_bytes: u64,
}

/// A ring before a drive.
pub struct TapeRing {
    shared: Arc<SharedRing>,
    writer: JoinHandle<RingEnd>,
}

impl TapeRing {
    /// Begins a thread that writes to the drive.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn begin(drive: Box<dyn Drive>, settings: PaceSettings) -> Result<Self> {
        let state = RingState {
            items: VecDeque::new(),
            level: 0,
            pace: Pace::new(settings),
            has_ended: false,
            is_stopped: false,
            on_medium: None,
        };
        let shared = Arc::new(SharedRing {
            state: Mutex::new(state),
            changed: Condvar::new(),
            clock: Instant::now(),
            most_bytes: settings.ring_bytes,
        });
        let own = shared.clone();
        let writer = start(move || own.write(drive))?;
        Ok(Self { shared, writer })
    }

    /// Adds an item; waits for room. Returns whether the ring took it: if not, it has stopped.
    pub fn push(&self, item: RingItem) -> bool {
        let mut state = self.shared.state.locked();
        while !state.is_stopped
            && state.level > 0
            && state.level + item.bytes() > self.shared.most_bytes
        {
            state = self.shared.wait(state);
        }
        if state.is_stopped {
            return false;
        }
        let bytes = item.bytes();
        state.pace.arrived(bytes, self.shared.clock.elapsed());
        state.level += bytes;
        state.items.push_back(item);
        self.shared.changed.notify_all();
        true
    }

    /// Records and marks below this number are on the medium; `None` if the drive does not tell.
    pub fn on_medium(&self) -> Option<u64> {
        self.shared.state.locked().on_medium
    }

    /// Waits until all was taken or the ring has stopped.
    ///
    /// # Errors
    /// If the thread has panicked.
    pub fn finish(self) -> Result<RingEnd> {
        self.shared.state.locked().has_ended = true;
        self.shared.changed.notify_all();
        self.writer.join().map_err(|_| {
            Error::new(
                fullbore_format::error::ErrorKind::Bug,
                "the thread of a tape drive has failed",
            )
        })
    }
}

impl SharedRing {
    fn wait<'a>(&self, state: MutexGuard<'a, RingState>) -> MutexGuard<'a, RingState> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes until the end or a stop.
    fn write(&self, mut drive: Box<dyn Drive>) -> RingEnd {
        let mut taken = 0;
        let mut asked = self.clock.elapsed();
        let stop = loop {
            let Some(item) = self.next() else {
                break RingStop::Ended;
            };
            let outcome = match &item {
                RingItem::Record(bytes) => drive.record(bytes),
                RingItem::Mark => drive.mark(),
            };
            match outcome {
                Ok(RecordOutcome::Full) => {
                    self.put_back(item);
                    break RingStop::Full;
                }
                Err(error) => {
                    self.put_back(item);
                    break RingStop::Failed(error);
                }
                Ok(outcome) => {
                    taken += 1;
                    self.note(&item);
                    if outcome == RecordOutcome::TakenNearEnd {
                        break RingStop::NearEnd;
                    }
                }
            }
            if self.clock.elapsed() > asked + ASKED_EVERY {
                asked = self.clock.elapsed();
                let place = drive.position().ok();
                self.state.locked().on_medium = place.and_then(|place| place.on_medium);
            }
        };
        let mut state = self.state.locked();
        state.is_stopped = true;
        self.changed.notify_all();
        RingEnd {
            drive,
            stop,
            left: std::mem::take(&mut state.items),
            taken,
            starts: state.pace.starts(),
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

    fn note(&self, item: &RingItem) {
        let mut state = self.state.locked();
        state.level -= item.bytes();
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
        Fault, ReadOutcome, TapeDrive,
        sim::{SimClock, SimDevice, SimFault, SimFaultKind, SimSettings},
    };

    const RECORD: usize = 4096;

    fn drive(dir: &std::path::Path, change: impl FnOnce(&mut SimSettings)) -> Box<dyn Drive> {
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

    fn push_records(drive: Box<dyn Drive>, count: u64) -> (u64, RingEnd) {
        let settings = PaceSettings {
            ring_bytes: 16 * RECORD as u64,
            lowest_rate: 300e6,
        };
        let ring = TapeRing::begin(drive, settings).unwrap();
        let mut pushed = 0;
        while pushed < count {
            let mut record = vec![0; RECORD];
            record[..8].copy_from_slice(&pushed.to_le_bytes());
            if !ring.push(RingItem::Record(record)) {
                break;
            }
            pushed += 1;
        }
        (pushed, ring.finish().unwrap())
    }

    #[test]
    fn all_items_reach_the_drive_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let (pushed, mut end) = push_records(drive(dir.path(), |_| ()), 60);
        assert!(matches!(end.stop, RingStop::Ended) && end.left.is_empty());
        assert_eq!((pushed, end.taken), (60, 60));
        end.drive.rewind().unwrap();
        let mut buffer = vec![0; RECORD];
        for number in 0..60u64 {
            assert_eq!(
                end.drive.read(&mut buffer).unwrap(),
                ReadOutcome::Record(RECORD)
            );
            assert_eq!(buffer[..8], number.to_le_bytes());
        }
    }

    #[test]
    fn near_the_end_the_rest_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let (pushed, end) = push_records(drive(dir.path(), |_| ()), 500);
        assert!(matches!(end.stop, RingStop::NearEnd));
        assert_eq!(end.taken, 91);
        assert_eq!(end.taken + end.left.len() as u64, pushed);
        let RingItem::Record(first) = &end.left[0] else {
            panic!("no mark was pushed");
        };
        assert_eq!(first[..8], end.taken.to_le_bytes());
    }

    #[test]
    fn a_failed_drive_is_given_back_with_its_error() {
        let dir = tempfile::tempdir().unwrap();
        let fault = SimFault {
            block: 20,
            kind: SimFaultKind::Write,
        };
        let (_, mut end) = push_records(
            drive(dir.path(), |settings| settings.faults = vec![fault]),
            500,
        );
        let RingStop::Failed(error) = &end.stop else {
            panic!("{:?}", end.stop);
        };
        assert_eq!(error.fault, Fault::Medium);
        assert_eq!(end.drive.position().unwrap().on_medium, Some(20));
        assert!(end.taken >= 20);
    }
}
