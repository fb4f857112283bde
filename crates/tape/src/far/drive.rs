//! The side that uses the drive: a [`Drive`] whose calls are questions.

use super::{
    call::{
        AHEAD_BYTES, FoundEnd, MOST_RECORD_BYTES, TapeAnswer, TapeCall, TapeUse, WriteWord,
        not_understood, packed, unpacked,
    },
    failure::unanswered,
    ring::FarRing,
};
use crate::{
    device::{DeviceStatus, RecordLimits},
    drive::{Drive, DriveError, DriveResult, Fault, Place, ReadOutcome, RecordOutcome, Space},
    ring_drive::{DriveRing, RingDrive, RingSettings},
};
use fullbore_format::error::{Error, Result};
use std::{collections::VecDeque, fmt, io, sync::Arc};

/// Asks the host of a drive.
pub trait TapeChannel: fmt::Debug + Send + Sync {
    /// Asks a question. The answer has at most `max_bytes`.
    ///
    /// # Errors
    /// Those of the connection and of the other side.
    fn ask(&self, question: &[u8], max_bytes: u64) -> Result<Vec<u8>>;
}

/// No medium has so many records. Sums of places do not overflow below it.
const MOST_PLACE: u64 = 1 << 48;
/// Bytes of an answer without records.
const WORDS_BYTES: u64 = 2 << 20;

/// A channel, and how messages call the drive behind it.
#[derive(Debug, Clone)]
pub(super) struct FarChannel {
    pub(super) channel: Arc<dyn TapeChannel>,
    pub(super) name: String,
}

impl FarChannel {
    /// Asks a question whose answer has no records.
    ///
    /// # Errors
    /// As [`TapeChannel::ask`]; [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) for an answer that is none.
    pub(super) fn ask(&self, call: &TapeCall, body: &[u8]) -> Result<TapeAnswer> {
        let answer = self.channel.ask(&packed(call, body), WORDS_BYTES)?;
        match unpacked(&answer)? {
            (answer, []) => Ok(answer),
            _ => Err(not_understood()),
        }
    }
}

/// A drive of another host.
#[derive(Debug)]
pub(super) struct FarDrive {
    far: FarChannel,
    limits: RecordLimits,
    usual_buffer_bytes: u64,
    /// What was read before it was asked for.
    ahead: VecDeque<AheadItem>,
    /// The number of the first item of `ahead`, if the drive tells.
    ahead_place: Option<u64>,
    /// Records that the next question reads.
    count: u32,
}

#[derive(Debug)]
enum AheadItem {
    Record(Vec<u8>),
    Mark,
    EndOfData,
    Failed(DriveError),
}

/// Opens the drive `drive` of the host at the other end of a channel. `name` is for messages.
///
/// # Errors
/// Those of the channel, of the other host and of the drive.
pub fn open_far(
    channel: &Arc<dyn TapeChannel>,
    drive: &[u8],
    usage: TapeUse,
    name: &str,
) -> Result<Box<dyn RingDrive>> {
    let far = FarChannel {
        channel: channel.clone(),
        name: name.to_owned(),
    };
    let call = TapeCall::Open {
        drive: drive.to_vec().into(),
        usage,
    };
    let opened = far.ask(&call, b"").map_err(|error| {
        let message = format!("could not open {name:?}");
        let opened = Error::new(error.kind, message).because(error.line());
        match error.hint {
            Some(hint) => opened.hint(hint),
            None => opened,
        }
    })?;
    match opened {
        TapeAnswer::Opened {
            least_bytes,
            most_bytes: most_bytes @ 1..=MOST_RECORD_BYTES,
            usual_buffer_bytes,
        } => Ok(Box::new(FarDrive {
            far,
            limits: RecordLimits {
                least_bytes,
                most_bytes,
            },
            usual_buffer_bytes,
            ahead: VecDeque::new(),
            ahead_place: None,
            count: 1,
        })),
        TapeAnswer::Failed(failure) => Err(failure.into_error("open", name).into_error()),
        _ => Err(not_understood()),
    }
}

impl FarDrive {
    pub(super) fn of_ring(far: FarChannel, limits: RecordLimits, usual_buffer_bytes: u64) -> Self {
        Self {
            far,
            limits,
            usual_buffer_bytes,
            ahead: VecDeque::new(),
            ahead_place: None,
            count: 1,
        }
    }

    fn failed(&self, action: &'static str, error: &Error) -> DriveError {
        unanswered(error, action, &self.far.name)
    }

    fn ask(
        &mut self,
        action: &'static str,
        call: &TapeCall,
        body: &[u8],
    ) -> DriveResult<TapeAnswer> {
        match self.far.ask(call, body) {
            Ok(TapeAnswer::Failed(failure)) => Err(failure.into_error(action, &self.far.name)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(action, &error)),
        }
    }

    fn unexpected<T>(&self, action: &'static str) -> DriveResult<T> {
        Err(self.failed(action, &not_understood()))
    }

    /// Asks what is only done.
    fn order(&mut self, action: &'static str, call: &TapeCall) -> DriveResult<()> {
        match self.ask(action, call, b"")? {
            TapeAnswer::Done => Ok(()),
            _ => self.unexpected(action),
        }
    }

    fn write(
        &mut self,
        action: &'static str,
        call: &TapeCall,
        body: &[u8],
    ) -> DriveResult<RecordOutcome> {
        self.drop_ahead(true)?;
        match self.ask(action, call, body)? {
            TapeAnswer::Written(WriteWord::Taken) => Ok(RecordOutcome::Taken),
            TapeAnswer::Written(WriteWord::TakenNearEnd) => Ok(RecordOutcome::TakenNearEnd),
            TapeAnswer::Written(WriteWord::Full) => Ok(RecordOutcome::Full),
            _ => self.unexpected(action),
        }
    }

    /// Forgets what was read ahead. If the next call depends on the place of the head, the head goes back.
    fn drop_ahead(&mut self, goes_back: bool) -> DriveResult<()> {
        let was_ahead = !self.ahead.is_empty();
        self.ahead.clear();
        self.count = 1;
        match self.ahead_place.take() {
            Some(place) if was_ahead && goes_back => {
                self.order("find the place on", &TapeCall::Locate(place))
            }
            _ => Ok(()),
        }
    }

    /// Reads records. More at a time while they are asked for in their order.
    fn read_ahead(&mut self, most: usize) -> DriveResult<()> {
        let ahead = (AHEAD_BYTES / most.max(1)).max(1) as u32;
        let place = match self.count {
            1 => None,
            _ => self.far_place().ok().map(|place| place.next),
        };
        // Without places the head could not go back.
        let count = if place.is_some() {
            self.count.min(ahead)
        } else {
            1
        };
        let call = TapeCall::Read {
            most: most as u32,
            count,
        };
        let max_bytes = WORDS_BYTES + (most.max(AHEAD_BYTES)) as u64;
        let answer = self.far.channel.ask(&packed(&call, b""), max_bytes);
        let answer = answer.map_err(|error| self.failed("read", &error))?;
        let found = unpacked(&answer).map_err(|error| self.failed("read", &error))?;
        let (records, end, mut body) = match found {
            (TapeAnswer::Found { records, end }, body) => (records, end, body),
            (TapeAnswer::Failed(failure), _) => {
                return Err(failure.into_error("read", &self.far.name));
            }
            _ => return self.unexpected("read"),
        };
        if records.len() > count as usize {
            return self.unexpected("read");
        }
        for len in records {
            let Some((record, rest)) = body
                .split_at_checked(len as usize)
                .filter(|_| (1..=most).contains(&(len as usize)))
            else {
                return self.unexpected("read");
            };
            self.ahead.push_back(AheadItem::Record(record.to_vec()));
            body = rest;
        }
        match end {
            FoundEnd::More => {}
            FoundEnd::Mark => self.ahead.push_back(AheadItem::Mark),
            FoundEnd::EndOfData => self.ahead.push_back(AheadItem::EndOfData),
            FoundEnd::Failed(failure) => {
                let error = failure.into_error("read", &self.far.name);
                self.ahead.push_back(AheadItem::Failed(error));
            }
        }
        if !body.is_empty() || self.ahead.is_empty() {
            return self.unexpected("read");
        }
        self.ahead_place = place;
        self.count = self.count.saturating_mul(2);
        Ok(())
    }

    fn far_place(&mut self) -> DriveResult<Place> {
        let action = "ask for the place of";
        match self.ask(action, &TapeCall::Position, b"")? {
            TapeAnswer::Place { next, on_medium } if next <= MOST_PLACE => {
                Ok(Place { next, on_medium })
            }
            _ => self.unexpected(action),
        }
    }
}

impl Drive for FarDrive {
    fn limits(&self) -> RecordLimits {
        self.limits
    }

    fn record(&mut self, bytes: &[u8]) -> DriveResult<RecordOutcome> {
        self.write("write to", &TapeCall::Record, bytes)
    }

    fn mark(&mut self) -> DriveResult<RecordOutcome> {
        self.write("write a mark to", &TapeCall::Mark, b"")
    }

    fn flush(&mut self) -> DriveResult<()> {
        self.order("write to", &TapeCall::Flush)
    }

    fn read(&mut self, buffer: &mut [u8]) -> DriveResult<ReadOutcome> {
        let most = buffer.len().min(self.limits.most_bytes as usize);
        if self.ahead.is_empty() {
            self.read_ahead(most)?;
        }
        let item = self.ahead.pop_front();
        self.ahead_place = self.ahead_place.map(|place| place.saturating_add(1));
        match item {
            Some(AheadItem::Record(record)) if record.len() <= most => {
                buffer[..record.len()].copy_from_slice(&record);
                Ok(ReadOutcome::Record(record.len()))
            }
            // As a drive does: the record is passed.
            Some(AheadItem::Record(_)) => Err(DriveError {
                fault: Fault::RecordTooLong,
                action: "read",
                device: self.far.name.clone(),
                error: io::ErrorKind::OutOfMemory.into(),
            }),
            Some(AheadItem::Mark) => Ok(ReadOutcome::Mark),
            Some(AheadItem::EndOfData) => Ok(ReadOutcome::EndOfData),
            Some(AheadItem::Failed(error)) => Err(error),
            None => self.unexpected("read"),
        }
    }

    fn position(&mut self) -> DriveResult<Place> {
        if let (Some(next), false) = (self.ahead_place, self.ahead.is_empty()) {
            return Ok(Place {
                next,
                on_medium: None,
            });
        }
        self.far_place()
    }

    fn locate(&mut self, block: u64) -> DriveResult<()> {
        self.drop_ahead(false)?;
        self.order("find the place on", &TapeCall::Locate(block))
    }

    fn space(&mut self, over: Space) -> DriveResult<()> {
        self.drop_ahead(over != Space::EndOfData)?;
        let call = match over {
            Space::Marks(count) => TapeCall::SpaceMarks(count),
            Space::Records(count) => TapeCall::SpaceRecords(count),
            Space::EndOfData => TapeCall::SpaceToEnd,
        };
        self.order("find the place on", &call)
    }

    fn status(&mut self) -> DriveResult<DeviceStatus> {
        match self.ask("ask for the state of", &TapeCall::Status, b"")? {
            TapeAnswer::Status(words) => Ok(words.status()),
            _ => self.unexpected("ask for the state of"),
        }
    }

    fn lowest_rate(&mut self) -> f64 {
        match self.far.ask(&TapeCall::LowestRate, b"") {
            Ok(TapeAnswer::Rate(rate)) if rate.is_finite() => rate.clamp(0.0, 1e12),
            _ => 0.0,
        }
    }

    fn rewind(&mut self) -> DriveResult<()> {
        self.drop_ahead(false)?;
        self.order("rewind", &TapeCall::Rewind)
    }

    fn erase(&mut self) -> DriveResult<()> {
        self.drop_ahead(true)?;
        self.order("erase", &TapeCall::Erase)
    }

    fn unload(&mut self) -> DriveResult<()> {
        self.drop_ahead(false)?;
        self.order("unload", &TapeCall::Unload)
    }

    fn close(mut self: Box<Self>) -> DriveResult<()> {
        self.order("close", &TapeCall::Close)
    }
}

impl RingDrive for FarDrive {
    fn begin_ring(
        mut self: Box<Self>,
        first: u64,
        settings: RingSettings,
    ) -> Result<Box<dyn DriveRing>> {
        self.drop_ahead(true).map_err(DriveError::into_error)?;
        let call = TapeCall::BeginRing {
            first,
            ring_bytes: settings.pace.ring_bytes,
            lowest_rate: settings.pace.lowest_rate,
            most_kept_bytes: settings.most_kept_bytes,
        };
        let begun = self.order("write to", &call);
        begun.map_err(DriveError::into_error)?;
        let ring = FarRing::begin(self.far, first, self.limits, self.usual_buffer_bytes)?;
        Ok(Box::new(ring))
    }

    fn usual_buffer_bytes(&self) -> u64 {
        self.usual_buffer_bytes
    }
}
