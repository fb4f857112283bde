//! A real drive behind the `st` driver.

use crate::device::{BufferPositions, Device, DeviceStatus, Operation, RecordLimits};
use fullbore_platform::tape::{TapeFile, flag, operation as op, option};
use rustix::io::Errno;
use std::{io, path::Path};

/// READ BLOCK LIMITS.
const READ_BLOCK_LIMITS: [u8; 6] = [0x05, 0, 0, 0, 0, 0];
/// READ POSITION, short form.
const READ_POSITION: [u8; 10] = [0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Flag of READ POSITION: the place is unknown.
const PLACE_UNKNOWN: u8 = 0x04;

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

    fn buffer_positions(&mut self) -> io::Result<BufferPositions> {
        let mut answer = [0; 20];
        let len = self.file.ask(&READ_POSITION, &mut answer)?;
        if len < answer.len() || answer[0] & PLACE_UNKNOWN != 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let number = |place: usize| {
            let bytes = [
                answer[place],
                answer[place + 1],
                answer[place + 2],
                answer[place + 3],
            ];
            u64::from(u32::from_be_bytes(bytes))
        };
        Ok(BufferPositions {
            next: number(4),
            on_medium: number(8),
        })
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
