//! The side with the drive: answers questions.

use super::{
    call::{
        AHEAD_BYTES, BATCH_BYTES, BATCH_ITEMS, FoundEnd, MOST_RECORD_BYTES, PushedItem, RingWords,
        StatusWords, StopWord, TapeAnswer, TapeCall, TapeUse, WriteWord, not_understood, packed,
        unpacked,
    },
    failure::FarFailure,
    rights::{TapeRights, keeps_backups},
};
use crate::{
    DriveError, DriveResult, PaceSettings, ReadOutcome, RecordOutcome, Space,
    device::DeviceStatus,
    ring_drive::{DriveRing, RingDrive, RingItem, RingSettings, RingStop},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::memory;
use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Bytes of a batch at most: one record more than fits.
const MOST_BATCH_BYTES: usize = BATCH_BYTES + MOST_RECORD_BYTES as usize;
/// A batch waits this long for those before it, which may be sent again by another connection.
const TURN: Duration = Duration::from_secs(120);
/// Bytes that batches under way bring after a ring has stopped, at most.
const MOST_LATE_BYTES: u64 = 4 * MOST_BATCH_BYTES as u64;

/// Opens a drive by its name on this host, for a use.
type OpenDrive = dyn Fn(&OsStr, TapeUse) -> Result<Box<dyn RingDrive>> + Send + Sync;

/// The drives of this host, for one session with another one.
pub struct ServedDrive {
    rights: TapeRights,
    open: Box<OpenDrive>,
    state: Mutex<ServedState>,
    turn: Condvar,
}

#[derive(Default)]
struct ServedState {
    drive: ServedPlace,
    usage: Option<TapeUse>,
    /// The number of the next batch.
    next_batch: u64,
    /// Whether the next record replaces no backup.
    is_checked: bool,
    /// Items that a stopped ring did not take, in their order.
    late: VecDeque<RingItem>,
    late_bytes: u64,
    /// Records that a tape did not take, by their serial numbers.
    held: BTreeMap<u64, Arc<Vec<u8>>>,
    next_serial: u64,
}

#[derive(Default)]
enum ServedPlace {
    #[default]
    Closed,
    Open(Box<dyn RingDrive>),
    Ring(Box<dyn DriveRing>),
}

impl fmt::Debug for ServedDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServedDrive").field(&self.rights).finish()
    }
}

/// Returns the bytes of memory that the answer to a question takes at most.
pub fn question_room(question: &[u8]) -> usize {
    match unpacked(question) {
        Ok((TapeCall::Read { most, count }, _)) => {
            let most = most.min(MOST_RECORD_BYTES) as usize;
            most.saturating_mul(count as usize)
                .min(AHEAD_BYTES)
                .max(most)
        }
        _ => 0,
    }
}

impl ServedDrive {
    /// Serves drives that `open` opens.
    pub fn new(
        rights: TapeRights,
        open: impl Fn(&OsStr, TapeUse) -> Result<Box<dyn RingDrive>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            rights,
            open: Box::new(open),
            state: Mutex::default(),
            turn: Condvar::new(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, ServedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a question, from any thread.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] for what is not allowed, [`ErrorKind::Corrupt`] for a question that is none. Errors of the
    /// drive are answers.
    pub fn answer(&self, question: &[u8]) -> Result<Vec<u8>> {
        let (call, body): (TapeCall, _) = unpacked(question)?;
        let mut state = self.locked();
        if let TapeCall::Push { number, items } = &call {
            state.check_usage(&call)?;
            state = self.wait_for_turn(state, *number)?;
            let answer = state.push(items, body);
            state.next_batch += 1;
            self.turn.notify_all();
            return Ok(packed(&answer?, b""));
        }
        let mut found = Vec::new();
        let answer = match call {
            TapeCall::Open { drive, usage } => self.open(&mut state, &drive, usage)?,
            call => {
                state.check_usage(&call)?;
                state.answer(call, body, self.rights.only_appends(), &mut found)?
            }
        };
        let answer = answer.unwrap_or_else(|error| TapeAnswer::Failed(FarFailure::of(&error)));
        Ok(packed(&answer, &found))
    }

    fn open(
        &self,
        state: &mut ServedState,
        name: &[u8],
        usage: TapeUse,
    ) -> Result<DriveResult<TapeAnswer>> {
        self.rights.check(name, usage)?;
        if !matches!(state.drive, ServedPlace::Closed) {
            return Err(not_understood().because("a drive is open"));
        }
        let drive = (self.open)(OsStr::from_bytes(name), usage)?;
        let limits = drive.limits();
        let usual_buffer_bytes = drive.usual_buffer_bytes();
        state.drive = ServedPlace::Open(drive);
        state.usage = Some(usage);
        state.is_checked = false;
        Ok(Ok(TapeAnswer::Opened {
            least_bytes: limits.least_bytes,
            most_bytes: limits.most_bytes.min(MOST_RECORD_BYTES),
            usual_buffer_bytes,
        }))
    }

    fn wait_for_turn<'a>(
        &'a self,
        state: MutexGuard<'a, ServedState>,
        number: u64,
    ) -> Result<MutexGuard<'a, ServedState>> {
        let is_early = |state: &mut ServedState| state.next_batch < number;
        let waited = self.turn.wait_timeout_while(state, TURN, is_early);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.next_batch == number {
            true => Ok(state),
            false => Err(not_understood().because("a batch of records is missing")),
        }
    }

    /// Ends the use of the drive, as the session has ended. All that came is written, so that a backup that was cut
    /// off restores as far as possible.
    ///
    /// # Errors
    /// Those of the drive.
    pub fn end(&self) -> Result<()> {
        let mut state = self.locked();
        let drive = match std::mem::take(&mut state.drive) {
            ServedPlace::Closed => return Ok(()),
            ServedPlace::Open(drive) => drive,
            ServedPlace::Ring(ring) => ring.finish()?.drive,
        };
        drive.close().map_err(DriveError::into_error)
    }
}

impl ServedState {
    /// Refuses what was not asked for when the drive was opened.
    fn check_usage(&self, call: &TapeCall) -> Result<()> {
        let usage = self.usage.ok_or_else(|| {
            let message = "cannot do this: no drive was opened";
            Error::new(ErrorKind::Permission, message)
        })?;
        if call.usage() <= usage {
            return Ok(());
        }
        let message = "cannot do this with the drive: the other side has opened it for another use";
        Err(Error::new(ErrorKind::Permission, message))
    }

    fn drive(&mut self) -> Result<&mut dyn RingDrive> {
        match &mut self.drive {
            ServedPlace::Open(drive) => Ok(&mut **drive),
            _ => Err(not_understood().because("the drive is not open")),
        }
    }

    fn answer(
        &mut self,
        call: TapeCall,
        body: &[u8],
        only_appends: bool,
        found: &mut Vec<u8>,
    ) -> Result<DriveResult<TapeAnswer>> {
        let done = |result: DriveResult<()>| Ok(result.map(|()| TapeAnswer::Done));
        match call {
            TapeCall::Record | TapeCall::Mark | TapeCall::BeginRing { .. } => {
                if let Err(error) = self.check_place(only_appends)? {
                    return Ok(Err(error));
                }
            }
            TapeCall::Flush
            | TapeCall::Status
            | TapeCall::LowestRate
            | TapeCall::Position
            | TapeCall::FinishRing => {}
            // The head moves.
            _ => self.is_checked = false,
        }
        match call {
            TapeCall::Open { .. } | TapeCall::Push { .. } => Err(not_understood()),
            TapeCall::Close => {
                self.drive()?;
                let ServedPlace::Open(drive) = std::mem::take(&mut self.drive) else {
                    return Err(not_understood());
                };
                self.usage = None;
                done(drive.close())
            }
            TapeCall::Record if !(1..=MOST_RECORD_BYTES as usize).contains(&body.len()) => {
                Err(not_understood())
            }
            TapeCall::Record => written(self.drive()?.record(body)),
            TapeCall::Mark => written(self.drive()?.mark()),
            TapeCall::Flush => done(self.drive()?.flush()),
            TapeCall::Read { most, count } => Ok(Ok(self.read(most, count, found)?)),
            TapeCall::Position => Ok(self.drive()?.position().map(|place| TapeAnswer::Place {
                next: place.next,
                on_medium: place.on_medium,
            })),
            TapeCall::Locate(block) => done(self.drive()?.locate(block)),
            TapeCall::SpaceMarks(count) => done(self.drive()?.space(Space::Marks(count))),
            TapeCall::SpaceRecords(count) => done(self.drive()?.space(Space::Records(count))),
            TapeCall::SpaceToEnd => done(self.drive()?.space(Space::EndOfData)),
            TapeCall::Status => {
                let status = self.drive()?.status();
                Ok(status.map(|status| TapeAnswer::Status(StatusWords::of(&status))))
            }
            TapeCall::LowestRate => Ok(Ok(TapeAnswer::Rate(self.drive()?.lowest_rate()))),
            TapeCall::Rewind => done(self.drive()?.rewind()),
            TapeCall::Erase => done(self.drive()?.erase()),
            TapeCall::Unload => done(self.drive()?.unload()),
            TapeCall::BeginRing {
                first,
                ring_bytes,
                lowest_rate,
                most_kept_bytes,
            } => {
                // Half of the memory for both: the other side says how much, and this one has it.
                let most = memory::within_limit(memory::machine_bytes() / 4, 0);
                self.begin_ring(
                    first,
                    RingSettings {
                        pace: PaceSettings {
                            ring_bytes: ring_bytes.min(most),
                            lowest_rate: lowest_rate.clamp(0.0, 1e12),
                        },
                        most_kept_bytes: most_kept_bytes.min(most),
                    },
                )
            }
            TapeCall::FinishRing => self.finish_ring().map(Ok),
        }
    }

    /// Refuses a write that would replace a backup, if that is not allowed.
    fn check_place(&mut self, only_appends: bool) -> Result<DriveResult<()>> {
        if !only_appends || self.is_checked {
            return Ok(Ok(()));
        }
        match keeps_backups(self.drive()?) {
            Ok(true) => {
                self.is_checked = true;
                Ok(Ok(()))
            }
            Ok(false) => {
                let message = "cannot write here: this host may only append to tapes";
                Err(Error::new(ErrorKind::Permission, message))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// Reads records up to a mark, to an error, or until they are enough for one answer.
    fn read(&mut self, most: u32, count: u32, found: &mut Vec<u8>) -> Result<TapeAnswer> {
        let most = most.min(MOST_RECORD_BYTES) as usize;
        let drive = self.drive()?;
        let mut records = Vec::new();
        let mut end = FoundEnd::More;
        let mut buffer = vec![0; most];
        while records.len() < (count as usize).clamp(1, BATCH_ITEMS)
            && (records.is_empty() || found.len() + most <= AHEAD_BYTES)
        {
            match drive.read(&mut buffer) {
                Ok(ReadOutcome::Record(len)) => {
                    found.extend_from_slice(&buffer[..len]);
                    records.push(len as u32);
                    continue;
                }
                Ok(ReadOutcome::Mark) => end = FoundEnd::Mark,
                Ok(ReadOutcome::EndOfData) => end = FoundEnd::EndOfData,
                Err(error) => end = FoundEnd::Failed(FarFailure::of(&error)),
            }
            break;
        }
        Ok(TapeAnswer::Found { records, end })
    }

    fn begin_ring(
        &mut self,
        first: u64,
        settings: RingSettings,
    ) -> Result<DriveResult<TapeAnswer>> {
        let place = self.drive()?.position();
        // After an error the ring goes back to a place that it counts from the first one.
        if place.is_ok_and(|place| place.next != first) {
            return Err(not_understood().because("the tape is at another place"));
        }
        let ServedPlace::Open(drive) = std::mem::take(&mut self.drive) else {
            return Err(not_understood());
        };
        self.drive = ServedPlace::Ring(drive.begin_ring(first, settings)?);
        self.next_batch = 0;
        Ok(Ok(TapeAnswer::Done))
    }

    /// Adds a batch to the ring. What a stopped ring does not take is kept.
    fn push(&mut self, items: &[PushedItem], mut body: &[u8]) -> Result<TapeAnswer> {
        if items.len() > BATCH_ITEMS || body.len() > MOST_BATCH_BYTES {
            return Err(not_understood());
        }
        let ServedPlace::Ring(ring) = &self.drive else {
            return Err(not_understood().because("nothing is written"));
        };
        for item in items {
            let item = match item {
                PushedItem::Mark => RingItem::Mark,
                PushedItem::Record(len) => {
                    let (record, rest) = body
                        .split_at_checked(*len as usize)
                        .filter(|_| (1..=MOST_RECORD_BYTES).contains(len))
                        .ok_or_else(not_understood)?;
                    body = rest;
                    RingItem::Record(Arc::new(record.to_vec()))
                }
                PushedItem::Held(serial) => {
                    let record = self.held.remove(serial).ok_or_else(not_understood)?;
                    RingItem::Record(record)
                }
            };
            let refused = match self.late.is_empty() {
                true => ring.push(item),
                false => Some(item),
            };
            if let Some(item) = refused {
                self.late_bytes += item.bytes();
                self.late.push_back(item);
            }
        }
        if self.late_bytes > MOST_LATE_BYTES || self.late.len() > 4 * BATCH_ITEMS {
            return Err(not_understood().because("the tape takes no more"));
        }
        Ok(TapeAnswer::Pushed {
            is_near_end: ring.is_near_end(),
            is_stopped: !self.late.is_empty(),
        })
    }

    fn finish_ring(&mut self) -> Result<TapeAnswer> {
        let ring = match std::mem::take(&mut self.drive) {
            ServedPlace::Ring(ring) => ring,
            other => {
                self.drive = other;
                return Err(not_understood().because("nothing is written"));
            }
        };
        let end = ring.finish()?;
        self.drive = ServedPlace::Open(end.drive);
        let first_serial = self.next_serial;
        let late = std::mem::take(&mut self.late);
        self.late_bytes = 0;
        let mut left = Vec::new();
        for item in end.left.into_iter().chain(late) {
            left.push(item.bytes() as u32);
            if let RingItem::Record(record) = item {
                self.held.insert(self.next_serial, record);
                self.next_serial += 1;
            }
        }
        Ok(TapeAnswer::RingEnded(RingWords {
            stop: match end.stop {
                RingStop::Ended => StopWord::Ended,
                RingStop::Full => StopWord::Full,
                RingStop::Failed(error) => StopWord::Failed(FarFailure::of(&error)),
            },
            left,
            first_serial,
            first_left: end.first_left,
            starts: end.starts,
            rewrites: end.rewrites,
        }))
    }
}

fn written(outcome: DriveResult<RecordOutcome>) -> Result<DriveResult<TapeAnswer>> {
    Ok(outcome.map(|outcome| {
        TapeAnswer::Written(match outcome {
            RecordOutcome::Taken => WriteWord::Taken,
            RecordOutcome::TakenNearEnd => WriteWord::TakenNearEnd,
            RecordOutcome::Full => WriteWord::Full,
        })
    }))
}

impl StatusWords {
    fn of(status: &DeviceStatus) -> Self {
        let flags = [
            status.online,
            status.no_medium,
            status.write_protected,
            status.at_start,
            status.at_mark,
            status.at_end_of_data,
            status.near_end,
            status.cleaning,
        ];
        let bits = flags.iter().enumerate();
        Self {
            flags: bits.fold(0, |all, (bit, is)| all | (u8::from(*is) << bit)),
            block_bytes: status.block_bytes,
            density: status.density,
        }
    }

    pub(super) fn status(self) -> DeviceStatus {
        let is = |bit: u8| self.flags & (1 << bit) != 0;
        DeviceStatus {
            online: is(0),
            no_medium: is(1),
            write_protected: is(2),
            at_start: is(3),
            at_mark: is(4),
            at_end_of_data: is(5),
            near_end: is(6),
            cleaning: is(7),
            block_bytes: self.block_bytes,
            density: self.density,
        }
    }
}
