//! A real drive behind the `st` driver.

use crate::device::{BufferPositions, Device, DeviceStatus, Operation, RecordLimits};
use fullbore_platform::tape::{TapeFile, flag, operation as op, option};
use rustix::io::Errno;
use std::{io, path::Path};

/// READ BLOCK LIMITS.
const READ_BLOCK_LIMITS: [u8; 6] = [0x05, 0, 0, 0, 0, 0];
/// READ POSITION, short form.
const READ_POSITION: [u8; 10] = [0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// READ POSITION, extended form: numbers of 8 bytes. Its answer has 32 bytes.
const READ_POSITION_EXTENDED: [u8; 10] = [0x34, 0x08, 0, 0, 0, 0, 0, 0, 32, 0];
/// Flag of READ POSITION: the place is unknown.
const PLACE_UNKNOWN: u8 = 0x04;
/// Flag of READ POSITION: a number has no room in the answer.
const PLACE_TOO_LARGE: u8 = 0x02;

/// The limits of a drive that does not tell them.
const USUAL_LIMITS: RecordLimits = RecordLimits {
    least_bytes: 1,
    most_bytes: 256 << 10,
};
/// No longer records are used, whatever the drive takes: a reader needs a buffer of this size.
const MOST_BYTES: u32 = 16 << 20;

/// A tape device of this host, such as `/dev/nst0`.
#[derive(Debug)]
pub struct StDevice {
    file: TapeFile,
    /// Options that were changed for this run, with their states before.
    changed: Vec<(u32, bool)>,
}

impl StDevice {
    /// Opens a device, and waits until the drive is ready. A protected medium is opened for reading.
    ///
    /// Records get any length, and the compression of the drive is turned off: bytes are compressed and
    /// perhaps encrypted before. Settings that only root may change are left as they are for others.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = match TapeFile::open(path) {
            Err(error) if is_refusal(&error) => TapeFile::open_to_read(path)?,
            other => other?,
        };
        let mut device = Self {
            file,
            changed: Vec::new(),
        };
        device.prepare();
        Ok(device)
    }

    /// Opens a device only for its state.
    ///
    /// # Errors
    /// `EBUSY`, or those of the path.
    pub fn open_to_ask(path: &Path) -> io::Result<Self> {
        let file = TapeFile::open_to_ask(path)?;
        let changed = Vec::new();
        Ok(Self { file, changed })
    }

    /// Makes settings. Each may fail: a drive without compression refuses to turn it off.
    fn prepare(&mut self) {
        if self
            .file
            .registers()
            .is_ok_and(|registers| registers.block_bytes != 0)
        {
            let _ = self.file.operate(op::SET_BLOCK, 0);
        }
        let _ = self.file.operate(op::COMPRESSION, 0);
        self.set_option(option::LOGICAL_PLACES, true);
        self.set_option(option::NO_WAIT_AT_CLOSE, false);
    }

    fn set_option(&mut self, bits: u32, is_on: bool) {
        let Some(before) = self.file.options() else {
            return;
        };
        let was_on = before & bits != 0;
        if was_on != is_on && self.file.set_options(bits, is_on).is_ok() {
            self.changed.push((bits, was_on));
        }
    }
}

fn is_refusal(error: &io::Error) -> bool {
    let refusals = [Errno::ACCESS, Errno::ROFS, Errno::PERM];
    Errno::from_io_error(error).is_some_and(|error| refusals.contains(&error))
}

/// What the short form of READ POSITION says.
#[derive(Debug, PartialEq, Eq)]
enum ShortPositions {
    Known(BufferPositions),
    Unknown,
    /// The extended form tells.
    TooLarge,
}

fn short_positions(answer: &[u8]) -> ShortPositions {
    let (Some(flags), Some(next), Some(on_medium)) = (
        answer.first(),
        number::<4>(answer, 4),
        number::<4>(answer, 8),
    ) else {
        return ShortPositions::Unknown;
    };
    if flags & PLACE_UNKNOWN != 0 {
        return ShortPositions::Unknown;
    }
    if flags & PLACE_TOO_LARGE != 0 {
        return ShortPositions::TooLarge;
    }
    ShortPositions::Known(BufferPositions { next, on_medium })
}

fn extended_positions(answer: &[u8]) -> Option<BufferPositions> {
    let flags = answer.first()?;
    if flags & (PLACE_UNKNOWN | PLACE_TOO_LARGE) != 0 {
        return None;
    }
    Some(BufferPositions {
        next: number::<8>(answer, 8)?,
        on_medium: number::<8>(answer, 16)?,
    })
}

/// Reads a number of `N` bytes, at most 8, the highest first.
fn number<const N: usize>(answer: &[u8], place: usize) -> Option<u64> {
    let bytes = answer.get(place..place + N)?;
    Some(
        bytes
            .iter()
            .fold(0, |all, byte| (all << 8) | u64::from(*byte)),
    )
}

fn count(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

impl Device for StDevice {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.file.write(record)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }

    fn operate(&mut self, operation: Operation) -> io::Result<()> {
        let (code, times) = match operation {
            Operation::Rewind => (op::REWIND, 1),
            Operation::MarkNow => (op::MARKS_NOW, 1),
            Operation::MarksAndWait(marks) => (op::MARKS, count(marks)),
            Operation::ForwardMarks(marks) => (op::FORWARD_MARKS, count(marks)),
            Operation::BackwardMarks(marks) => (op::BACKWARD_MARKS, count(marks)),
            Operation::ForwardRecords(records) => (op::FORWARD_RECORDS, count(records)),
            Operation::BackwardRecords(records) => (op::BACKWARD_RECORDS, count(records)),
            Operation::EndOfData => (op::END_OF_DATA, 1),
            Operation::Seek(block) => (op::SEEK, i32::try_from(block).map_err(io::Error::other)?),
            Operation::Erase => (op::ERASE, 1),
            Operation::Unload => (op::UNLOAD, 1),
            Operation::Load => (op::LOAD, 1),
        };
        self.file.operate(code, times)
    }

    fn place(&mut self) -> io::Result<u64> {
        self.file.place()
    }

    /// The short form is asked for first, as each drive knows it. Above 2^32 records, 4 PiB of 1 MiB each, it has no room for a number.
    fn buffer_positions(&mut self) -> io::Result<BufferPositions> {
        let mut answer = [0; 20];
        let len = self.file.ask(&READ_POSITION, &mut answer)?;
        match short_positions(&answer[..len]) {
            ShortPositions::Known(positions) => return Ok(positions),
            ShortPositions::Unknown => return Err(io::ErrorKind::Unsupported.into()),
            ShortPositions::TooLarge => {}
        }
        let mut answer = [0; 32];
        let len = self.file.ask(&READ_POSITION_EXTENDED, &mut answer)?;
        let positions = extended_positions(&answer[..len]);
        positions.ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn status(&mut self) -> io::Result<DeviceStatus> {
        let registers = self.file.registers()?;
        let is_set = |bits| registers.flags & bits != 0;
        Ok(DeviceStatus {
            online: is_set(flag::ONLINE),
            no_medium: is_set(flag::DOOR_OPEN),
            write_protected: is_set(flag::WRITE_PROTECTED),
            at_start: is_set(flag::START),
            at_mark: is_set(flag::MARK),
            at_end_of_data: is_set(flag::END_OF_DATA),
            near_end: is_set(flag::END),
            cleaning: is_set(flag::CLEANING),
            block_bytes: registers.block_bytes,
            density: registers.density,
        })
    }

    fn limits(&mut self) -> RecordLimits {
        let mut answer = [0; 6];
        match self.file.ask(&READ_BLOCK_LIMITS, &mut answer) {
            Ok(6) => RecordLimits {
                least_bytes: u32::from(u16::from_be_bytes([answer[4], answer[5]])).max(1),
                most_bytes: match u32::from_be_bytes([0, answer[1], answer[2], answer[3]]) {
                    0 => MOST_BYTES,
                    most => most.min(MOST_BYTES),
                },
            },
            _ => USUAL_LIMITS,
        }
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        for (bits, was_on) in self.changed {
            // What is left changed is a setting, not data.
            let _ = self.file.set_options(bits, was_on);
        }
        self.file.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_the_short_form_has_no_room_for_are_in_the_extended_one() {
        let short = |flags: u8, len: usize| {
            let mut answer = [0; 20];
            answer[0] = flags;
            answer[4..8].copy_from_slice(&700u32.to_be_bytes());
            answer[8..12].copy_from_slice(&600u32.to_be_bytes());
            short_positions(&answer[..len])
        };
        let known = BufferPositions {
            next: 700,
            on_medium: 600,
        };
        assert_eq!(short(0, 20), ShortPositions::Known(known));
        // At the begin, and the number of bytes in the buffer is unknown.
        assert_eq!(short(0x90, 20), ShortPositions::Known(known));
        assert_eq!(short(PLACE_TOO_LARGE, 20), ShortPositions::TooLarge);
        for (flags, len) in [(PLACE_UNKNOWN, 20), (0, 11), (0, 0), (0x06, 20)] {
            assert_eq!(short(flags, len), ShortPositions::Unknown);
        }
        let mut answer = [0; 32];
        answer[8..16].copy_from_slice(&(1u64 << 40).to_be_bytes());
        answer[16..24].copy_from_slice(&((1u64 << 40) - 7).to_be_bytes());
        let positions = extended_positions(&answer).unwrap();
        assert_eq!(positions.next, 1 << 40);
        assert_eq!(positions.next - positions.on_medium, 7);
        assert_eq!(extended_positions(&answer[..23]), None);
        answer[0] = PLACE_UNKNOWN;
        assert_eq!(extended_positions(&answer), None);
    }
}
