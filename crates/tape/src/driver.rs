//! A drive by the calls of `st`: which record was written when the medium ends, and where the head is.

use crate::{
    device::{Device, DeviceStatus, Operation, RecordLimits},
    drive::{Drive, DriveError, DriveResult, Fault, Place, ReadOutcome, RecordOutcome, Space},
};
use rustix::io::Errno;
use std::io;

/// A refused record is tried again this often. Behind the early warning `st` refuses every second
/// write before the drive is asked; a third refusal in a row at the same place is the end.
const REFUSALS_AT_THE_END: u32 = 3;

/// A drive that is used by the calls of `st`.
///
/// `ENOSPC` does not say whether the record is on the medium: a drive may take the record and report
/// the early warning with it, or refuse it. So after `ENOSPC` the place is asked for: if it is one
/// more than was counted, the record counts as written. Where the drive has no places, the last
/// record of the medium is read and compared.
pub struct TapeDrive<D> {
    device: Box<D>,
    name: String,
    limits: RecordLimits,
    /// The number of the next record; `None` if only the drive knows.
    next: Option<u64>,
    has_places: bool,
    /// The length of all records in fixed mode; else 0.
    block_bytes: u32,
    /// The early warning was met; it stays so until a rewind or locate.
    is_near_end: bool,
}

impl<D: Device> TapeDrive<D> {
    /// Takes a device; `name` is for messages.
    pub fn new(device: D, name: impl Into<String>) -> Self {
        let mut device = Box::new(device);
        let limits = device.limits();
        let next = device.place().ok();
        let status = device.status().unwrap_or_default();
        Self {
            device,
            name: name.into(),
            limits,
            next: next.or_else(|| status.at_start.then_some(0)),
            has_places: next.is_some(),
            block_bytes: status.block_bytes,
            is_near_end: false,
        }
    }

    /// Returns the device, such as for the counters of a simulated one.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device for changes, such as of the parameters of a simulated one.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Makes the error of a call.
    fn failed(&mut self, action: &'static str, error: io::Error) -> DriveError {
        let fault = self.fault(&error);
        if fault != Fault::RecordTooLong {
            self.next = None;
        }
        DriveError {
            fault,
            action,
            device: self.name.clone(),
            error,
        }
    }

    fn fault(&mut self, error: &io::Error) -> Fault {
        match Errno::from_io_error(error) {
            Some(Errno::IO) if self.has_lost_its_place() => Fault::PositionLost,
            Some(Errno::IO) => Fault::Medium,
            Some(Errno::ACCESS | Errno::ROFS | Errno::PERM) => Fault::WriteProtected,
            Some(Errno::NOMEDIUM | Errno::NXIO) => Fault::NoMedium,
            Some(Errno::BUSY) => Fault::Busy,
            Some(Errno::NOMEM) => Fault::RecordTooLong,
            Some(Errno::INVAL | Errno::OVERFLOW) => Fault::RecordRefused,
            _ => Fault::System,
        }
    }

    /// A drive that had places and refuses to tell its own has been reset.
    fn has_lost_its_place(&mut self) -> bool {
        self.has_places && self.device.place().is_err()
    }

    /// Writes a record or a mark until it is taken or the medium is at its end.
    fn put(&mut self, action: &'static str, what: Put<'_>) -> DriveResult<RecordOutcome> {
        let mut refusals = 0;
        while refusals < REFUSALS_AT_THE_END {
            match what.to(&mut *self.device) {
                Ok(()) => return Ok(self.taken(what)),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOSPC) => {
                    self.is_near_end = true;
                    if self.is_on_medium(what) {
                        return Ok(self.taken(what));
                    }
                    refusals += 1;
                }
                Err(error) => return Err(self.failed(action, error)),
            }
        }
        Ok(RecordOutcome::Full)
    }

    fn taken(&mut self, what: Put<'_>) -> RecordOutcome {
        let blocks = match what {
            Put::Record(bytes) => self.blocks_of(bytes.len()),
            Put::Mark => 1,
        };
        self.next = self.next.map(|next| next + blocks);
        // `st` sets the bit after the write that met the early warning, before it refuses any.
        if !self.is_near_end {
            self.is_near_end = self.device.status().is_ok_and(|status| status.near_end);
        }
        if self.is_near_end {
            return RecordOutcome::TakenNearEnd;
        }
        RecordOutcome::Taken
    }

    /// The number of blocks that the drive counts for a record: more than one in fixed mode.
    fn blocks_of(&self, bytes: usize) -> u64 {
        (bytes as u64)
            .checked_div(self.block_bytes.into())
            .unwrap_or(1)
    }

    /// Is what `ENOSPC` was answered for on the medium all the same?
    fn is_on_medium(&mut self, what: Put<'_>) -> bool {
        match (self.device.place(), self.next, what) {
            (Ok(place), Some(next), _) => place > next,
            (_, _, Put::Record(bytes)) => self.last_record_is(bytes),
            (_, _, Put::Mark) => false,
        }
    }

    /// Reads the last record again. The head is behind it afterwards.
    fn last_record_is(&mut self, bytes: &[u8]) -> bool {
        if self.device.operate(Operation::BackwardRecords(1)).is_err() {
            // A mark is last, and the head is before it.
            let _ = self.device.operate(Operation::ForwardMarks(1));
            return false;
        }
        let mut found = vec![0; bytes.len()];
        match self.device.read(&mut found) {
            Ok(len) => found[..len] == *bytes,
            Err(_) => false,
        }
    }

    fn operate(&mut self, action: &'static str, operation: Operation) -> DriveResult<()> {
        let done = self.device.operate(operation);
        done.map_err(|error| self.failed(action, error))
    }

    /// Operates, and asks the drive for its place afterwards.
    fn go(&mut self, action: &'static str, operation: Operation) -> DriveResult<()> {
        self.is_near_end = false;
        self.operate(action, operation)?;
        self.next = self.device.place().ok();
        Ok(())
    }

    /// Goes to a record by reading over all before it, for a drive without places.
    fn count_forward(&mut self, block: u64) -> DriveResult<()> {
        self.rewind()?;
        let one = if self.block_bytes > 0 {
            self.block_bytes
        } else {
            self.limits.most_bytes
        };
        let mut buffer = vec![0; one as usize];
        for _ in 0..block {
            if self.read(&mut buffer)? == ReadOutcome::EndOfData {
                return Err(self.failed("find the place on", Errno::IO.into()));
            }
        }
        Ok(())
    }
}

/// A record or a mark.
#[derive(Clone, Copy)]
enum Put<'a> {
    Record(&'a [u8]),
    Mark,
}

impl Put<'_> {
    fn to(self, device: &mut dyn Device) -> io::Result<()> {
        match self {
            Self::Mark => device.operate(Operation::MarkNow),
            Self::Record(bytes) => match device.write(bytes)? {
                len if len == bytes.len() => Ok(()),
                // A short record in fixed mode: the rest has no room.
                _ => Err(Errno::NOSPC.into()),
            },
        }
    }
}

impl<D: Device> Drive for TapeDrive<D> {
    fn limits(&self) -> RecordLimits {
        self.limits
    }

    fn record(&mut self, bytes: &[u8]) -> DriveResult<RecordOutcome> {
        self.put("write to", Put::Record(bytes))
    }

    fn mark(&mut self) -> DriveResult<RecordOutcome> {
        self.put("write a mark to", Put::Mark)
    }

    fn flush(&mut self) -> DriveResult<()> {
        let mut refusals = 0;
        loop {
            match self.device.operate(Operation::MarksAndWait(0)) {
                // The medium has room for what is in the buffer: the early warning comes before.
                Err(error)
                    if Errno::from_io_error(&error) == Some(Errno::NOSPC) && refusals < 2 =>
                {
                    refusals += 1;
                }
                done => return done.map_err(|error| self.failed("write to", error)),
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> DriveResult<ReadOutcome> {
        let most = buffer.len().min(self.limits.most_bytes as usize);
        let found = match self.device.read(&mut buffer[..most]) {
            Ok(0) => match self.device.status() {
                Ok(status) if status.at_end_of_data => ReadOutcome::EndOfData,
                _ => ReadOutcome::Mark,
            },
            Ok(len) => ReadOutcome::Record(len),
            Err(error) => return Err(self.failed("read", error)),
        };
        let blocks = match found {
            ReadOutcome::Record(len) => self.blocks_of(len),
            ReadOutcome::Mark => 1,
            ReadOutcome::EndOfData => 0,
        };
        self.next = self.next.map(|next| next + blocks);
        Ok(found)
    }

    fn position(&mut self) -> DriveResult<Place> {
        if self.has_places
            && let Ok(positions) = self.device.buffer_positions()
        {
            self.next = Some(positions.next);
            return Ok(Place {
                next: positions.next,
                on_medium: Some(positions.on_medium),
            });
        }
        match self.device.place() {
            Ok(place) => self.next = Some(place),
            Err(error) if self.has_places || self.next.is_none() => {
                return Err(self.failed("ask for the place of", error));
            }
            Err(_) => {}
        }
        Ok(Place {
            next: self.next.unwrap_or_default(),
            on_medium: None,
        })
    }

    fn locate(&mut self, block: u64) -> DriveResult<()> {
        if self.has_places {
            return self.go("find the place on", Operation::Seek(block));
        }
        self.count_forward(block)
    }

    fn space(&mut self, over: Space) -> DriveResult<()> {
        let operation = match over {
            Space::Marks(count @ 0..) => Operation::ForwardMarks(count.unsigned_abs()),
            Space::Marks(count) => Operation::BackwardMarks(count.unsigned_abs()),
            Space::Records(count @ 0..) => Operation::ForwardRecords(count.unsigned_abs()),
            Space::Records(count) => Operation::BackwardRecords(count.unsigned_abs()),
            Space::EndOfData => Operation::EndOfData,
        };
        self.go("find the place on", operation)
    }

    fn status(&mut self) -> DriveResult<DeviceStatus> {
        let status = self.device.status();
        status.map_err(|error| self.failed("ask for the state of", error))
    }

    fn lowest_rate(&mut self) -> f64 {
        self.device.lowest_rate()
    }

    fn rewind(&mut self) -> DriveResult<()> {
        self.go("rewind", Operation::Rewind)?;
        self.next = Some(0);
        Ok(())
    }

    fn erase(&mut self) -> DriveResult<()> {
        self.operate("erase", Operation::Erase)
    }

    fn unload(&mut self) -> DriveResult<()> {
        self.operate("unload", Operation::Unload)?;
        self.next = None;
        Ok(())
    }

    fn close(self: Box<Self>) -> DriveResult<()> {
        let name = self.name;
        self.device.close().map_err(|error| DriveError {
            fault: Fault::Medium,
            action: "close",
            device: name,
            error,
        })
    }
}
