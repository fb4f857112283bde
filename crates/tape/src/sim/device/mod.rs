//! The calls of `st` on a simulated drive.

mod moving;
mod writing;

use super::{
    cartridge::Cartridge,
    clock::SimClock,
    motor::{Motor, MotorCounters},
    settings::{ClockKind, EarlyWarning, SimFault, SimFaultKind, SimSettings},
};
use crate::device::{BufferPositions, Device, DeviceStatus, Operation, RecordLimits};
use rustix::io::Errno;
use std::{collections::VecDeque, io, path::Path, time::Duration};

/// A simulated drive with a cartridge.
#[derive(Debug)]
pub struct SimDevice {
    cartridge: Cartridge,
    clock: SimClock,
    motor: Motor,
    /// The number of the next record or mark.
    next: u64,
    /// Records and marks that are in the buffer: what must have left it until each is written.
    waiting: VecDeque<u64>,
    /// Bytes that ever entered the buffer.
    entered: u64,
    warned: Warned,
    /// A write error that the next call reports.
    late_error: bool,
    /// The place is not known until a rewind.
    is_lost: bool,
    /// The last operation wrote data and no mark followed.
    owes_mark: bool,
    /// How often a read met the end of the data, one after the other.
    ends_read: u32,
    at_mark: bool,
    is_loaded: bool,
}

/// How far the early warning has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Warned {
    No,
    /// The next write is refused.
    RefusesNext,
    /// The next write is taken.
    TakesNext,
}

impl SimDevice {
    /// Opens a cartridge in a file, or makes one with the default parameters.
    ///
    /// # Errors
    /// Those of the file, or the file is no cartridge.
    pub fn open(path: &Path) -> io::Result<Self> {
        let cartridge = Cartridge::open(path)?;
        let clock = match cartridge.head.settings.clock {
            ClockKind::Real => SimClock::real(),
            ClockKind::Virtual => SimClock::virtual_time(),
        };
        Ok(Self::with(cartridge, clock))
    }

    /// Makes a blank cartridge in a file that must not exist.
    ///
    /// # Errors
    /// Those of the file.
    pub fn create(path: &Path, settings: SimSettings, clock: SimClock) -> io::Result<Self> {
        Ok(Self::with(Cartridge::create(path, settings)?, clock))
    }

    fn with(cartridge: Cartridge, clock: SimClock) -> Self {
        // As /dev/nst0: the head is where the last program left it.
        let next = cartridge.head.place.min(cartridge.len());
        Self {
            motor: Motor::new(&cartridge.head.settings, cartridge.head.counters.clone()),
            cartridge,
            clock,
            next,
            waiting: VecDeque::new(),
            entered: 0,
            warned: Warned::No,
            late_error: false,
            is_lost: false,
            owes_mark: false,
            ends_read: 0,
            at_mark: false,
            is_loaded: true,
        }
    }

    /// Returns what the drive did, in this and earlier runs with the cartridge.
    pub fn counters(&self) -> &MotorCounters {
        &self.motor.counters
    }

    /// Returns the parameters.
    pub fn settings(&self) -> &SimSettings {
        &self.cartridge.head.settings
    }

    /// Changes the parameters, such as to protect a written cartridge. They are saved by a close.
    pub fn settings_mut(&mut self) -> &mut SimSettings {
        &mut self.cartridge.head.settings
    }

    /// From now on, records are stored as holes: a test of speeds needs no space. They read as zeros.
    pub fn keep_lengths_only(&mut self) {
        self.cartridge.keep_lengths_only();
    }

    /// Returns the clock of the drive.
    pub fn clock(&self) -> &SimClock {
        &self.clock
    }

    /// Returns the number of records and marks on the cartridge and in the buffer.
    pub fn blocks(&self) -> u64 {
        self.cartridge.len()
    }

    fn read_block(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(block) = self.cartridge.block(self.next) else {
            self.ends_read += 1;
            return if self.ends_read > 2 {
                Err(Errno::IO.into())
            } else {
                Ok(0)
            };
        };
        let is_bad =
            |fault: &SimFault| fault.block == self.next && fault.kind == SimFaultKind::Read;
        let is_bad = self.cartridge.head.settings.faults.iter().any(is_bad);
        self.next += 1;
        self.at_mark = block.len.is_none();
        let Some(len) = block.len else {
            return Ok(0);
        };
        self.motor.counters.read_bytes += u64::from(len);
        self.clock.advance(Duration::from_secs_f64(
            f64::from(len) / self.motor.top_rate(),
        ));
        if is_bad {
            return Err(Errno::IO.into());
        }
        let Some(room) = buffer.get_mut(..len as usize) else {
            return Err(Errno::NOMEM.into());
        };
        self.cartridge.read(block, room)?;
        Ok(len as usize)
    }
}

impl Device for SimDevice {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.begin_write()?;
        let fixed = self.cartridge.head.settings.block_bytes as usize;
        let most = self.limits().most_bytes as usize;
        if fixed == 0 {
            if record.is_empty() || record.len() > most {
                return Err(Errno::INVAL.into());
            }
            self.write_one(record)?;
            return Ok(record.len());
        }
        if record.is_empty() || !record.len().is_multiple_of(fixed) {
            return Err(Errno::INVAL.into());
        }
        let mut written = 0;
        for block in record.chunks(fixed) {
            match self.write_one(block) {
                Ok(()) => written += fixed,
                Err(error) if written == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(written)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.sync()?;
        let fixed = self.cartridge.head.settings.block_bytes as usize;
        if fixed == 0 {
            if buffer.len() > self.limits().most_bytes as usize {
                return Err(Errno::INVAL.into());
            }
            return self.read_block(buffer);
        }
        if !buffer.len().is_multiple_of(fixed) {
            return Err(Errno::INVAL.into());
        }
        let mut found = 0;
        while found < buffer.len() {
            if found > 0
                && self
                    .cartridge
                    .block(self.next)
                    .is_none_or(|block| block.len.is_none())
            {
                break;
            }
            match self.read_block(&mut buffer[found..])? {
                0 => break,
                len => found += len,
            }
        }
        Ok(found)
    }

    fn operate(&mut self, operation: Operation) -> io::Result<()> {
        match operation {
            Operation::Rewind => self.rewind(),
            Operation::MarkNow => {
                self.check()?;
                self.marks(1)
            }
            Operation::MarksAndWait(count) => {
                self.check()?;
                self.marks(count)?;
                self.sync()
            }
            Operation::Unload => {
                self.rewind()?;
                self.is_loaded = false;
                Ok(())
            }
            Operation::Load => {
                self.is_loaded = true;
                self.go(0)
            }
            _ => self.move_head(operation),
        }
    }

    fn place(&mut self) -> io::Result<u64> {
        self.drain();
        if !self.is_loaded || self.is_lost || !self.cartridge.head.settings.has_places {
            return Err(Errno::IO.into());
        }
        Ok(self.next)
    }

    fn buffer_positions(&mut self) -> io::Result<BufferPositions> {
        let next = self.place()?;
        if !self.cartridge.head.settings.tells_buffer {
            return Err(Errno::NOSYS.into());
        }
        let on_medium = self.on_medium().min(next);
        Ok(BufferPositions { next, on_medium })
    }

    fn status(&mut self) -> io::Result<DeviceStatus> {
        let settings = &self.cartridge.head.settings;
        Ok(DeviceStatus {
            online: self.is_loaded,
            no_medium: !self.is_loaded,
            write_protected: !self.cartridge.is_writable(),
            at_start: self.next == 0,
            at_mark: self.at_mark,
            at_end_of_data: self.ends_read > 0,
            near_end: self.warned != Warned::No && settings.early_warning == EarlyWarning::Refused,
            cleaning: settings.cleaning,
            block_bytes: settings.block_bytes,
            density: 0x5e,
        })
    }

    fn limits(&mut self) -> RecordLimits {
        let settings = &self.cartridge.head.settings;
        RecordLimits {
            least_bytes: settings.block_bytes.max(1),
            most_bytes: settings.most_record_bytes,
        }
    }

    fn lowest_rate(&mut self) -> f64 {
        let steps = &self.cartridge.head.settings.steps;
        steps.first().map_or(0.0, |step| *step as f64)
    }

    fn close(mut self: Box<Self>) -> io::Result<()> {
        let mut written = self.check();
        if written.is_ok() {
            written = self.leave();
        }
        if !self.is_loaded {
            written = Ok(());
        }
        self.cartridge.head.counters = self.motor.counters.clone();
        self.cartridge.head.place = self.next;
        self.cartridge.save_head()?;
        written
    }
}
