//! The calls of `st` on a simulated drive.

use super::{
    cartridge::Cartridge,
    clock::SimClock,
    motor::{Motor, MotorCounters},
    settings::{ClockKind, EarlyWarning, SimFaultKind, SimSettings},
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
        Self {
            motor: Motor::new(&cartridge.head.settings, cartridge.head.counters.clone()),
            cartridge,
            clock,
            next: 0,
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

    /// Fails if a medium is missing, the place is lost, or an error of earlier is to be reported.
    fn check(&mut self) -> io::Result<()> {
        self.drain();
        if !self.is_loaded {
            return Err(Errno::NOMEDIUM.into());
        }
        if std::mem::take(&mut self.late_error) || self.is_lost {
            return Err(Errno::IO.into());
        }
        Ok(())
    }

    /// Lets the motor run until now; what left the buffer is on the medium, unless a fault meets it.
    fn drain(&mut self) {
        self.motor.run_until(self.clock.now());
        self.settle();
    }

    /// Moves records that have left the buffer to the medium, or meets their faults.
    fn settle(&mut self) {
        let left = self
            .entered
            .saturating_sub(self.motor.level().ceil() as u64);
        while self.waiting.front().is_some_and(|end| *end <= left) {
            let block = self.on_medium();
            if let Some(kind) = self.take_fault(block) {
                self.fail(kind, block);
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// Records below this number are on the medium.
    fn on_medium(&self) -> u64 {
        self.cartridge.len() - self.waiting.len() as u64
    }

    fn take_fault(&mut self, block: u64) -> Option<SimFaultKind> {
        let faults = &mut self.cartridge.head.settings.faults;
        let is_met =
            |fault: &super::SimFault| fault.block == block && fault.kind != SimFaultKind::Read;
        let found = faults.iter().position(is_met)?;
        Some(faults.remove(found).kind)
    }

    /// Loses all from a record on.
    fn fail(&mut self, kind: SimFaultKind, block: u64) {
        let _ = self.cartridge.truncate(block);
        self.waiting.clear();
        self.motor.lose();
        self.next = block;
        self.owes_mark = false;
        match kind {
            SimFaultKind::Reset => self.is_lost = true,
            _ => self.late_error = true,
        }
    }

    /// Waits until the buffer has room for a record.
    fn wait_for_room(&mut self, bytes: u64) -> io::Result<()> {
        loop {
            let wait = self.motor.wait_for_room(bytes);
            if wait.is_zero() {
                return Ok(());
            }
            self.clock.advance(wait);
            self.check()?;
        }
    }

    /// Answers a write at the early warning and at the end; `Ok(true)`: taken, and `ENOSPC` is the answer.
    fn meets_end(&mut self, bytes: u64) -> io::Result<bool> {
        let settings = &self.cartridge.head.settings;
        let after = self.cartridge.used_bytes() + bytes;
        if after > settings.capacity_bytes {
            return Err(Errno::NOSPC.into());
        }
        if after + settings.warning_bytes <= settings.capacity_bytes {
            return Ok(false);
        }
        let answer = (self.warned, settings.early_warning);
        self.warned = match self.warned {
            Warned::RefusesNext => Warned::TakesNext,
            Warned::No | Warned::TakesNext => Warned::RefusesNext,
        };
        match answer {
            (Warned::RefusesNext, _) => Err(Errno::NOSPC.into()),
            (Warned::No, EarlyWarning::Taken) => Ok(true),
            _ => Ok(false),
        }
    }

    /// Prepares to write behind the current place.
    fn begin_write(&mut self) -> io::Result<()> {
        self.check()?;
        if !self.cartridge.is_writable() {
            return Err(Errno::ACCESS.into());
        }
        if self.next < self.cartridge.len() {
            if self.cartridge.head.settings.worm {
                return Err(Errno::ACCESS.into());
            }
            self.sync()?;
            self.cartridge.truncate(self.next)?;
        }
        self.ends_read = 0;
        self.at_mark = false;
        Ok(())
    }

    fn write_one(&mut self, record: &[u8]) -> io::Result<()> {
        let bytes = record.len() as u64;
        let told = self.meets_end(bytes)?;
        self.wait_for_room(bytes)?;
        self.cartridge.add_record(record)?;
        self.motor.take(bytes);
        self.enter(bytes);
        self.owes_mark = true;
        self.settle();
        if told {
            Err(Errno::NOSPC.into())
        } else {
            Ok(())
        }
    }

    fn enter(&mut self, bytes: u64) {
        self.entered += bytes;
        self.waiting.push_back(self.entered);
        self.next += 1;
    }

    /// Waits until all is on the medium.
    fn sync(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.motor.counters.flushes += 1;
        let rest = Duration::from_secs_f64(self.cartridge.head.settings.mark_seconds);
        self.clock.advance(self.motor.wait_until_empty() + rest);
        self.motor.empty(self.clock.now());
        self.settle();
        self.check()
    }

    fn marks(&mut self, count: u32) -> io::Result<()> {
        if count > 0 {
            self.begin_write()?;
        }
        for _ in 0..count {
            self.put_mark()?;
        }
        // `st` answers 0 for a mark behind the early warning, and takes the write that follows it.
        if self.warned == Warned::RefusesNext {
            self.warned = Warned::TakesNext;
        }
        Ok(())
    }

    fn put_mark(&mut self) -> io::Result<()> {
        self.cartridge.add_mark()?;
        self.motor.counters.marks += 1;
        self.enter(0);
        self.owes_mark = false;
        self.settle();
        Ok(())
    }

    /// Before a rewind, a seek and a way back over marks, `st` writes a mark if data was written last.
    fn leave(&mut self) -> io::Result<()> {
        if self.owes_mark {
            // Behind the early warning too: the mark has room.
            self.put_mark()?;
        }
        self.sync()
    }

    /// Moves the head.
    fn go(&mut self, to: u64) -> io::Result<()> {
        let settings = &self.cartridge.head.settings;
        let way = self.cartridge.share_before(to) - self.cartridge.share_before(self.next);
        self.clock
            .advance(Duration::from_secs_f64(way.abs() * settings.wind_seconds));
        self.motor.counters.locates += u64::from(to != self.next);
        self.next = to;
        self.warned = Warned::No;
        self.ends_read = 0;
        self.at_mark = false;
        Ok(())
    }

    /// Goes over `count` marks: forward behind the last of them, back to before it.
    fn over_marks(&mut self, count: u32, forward: bool) -> io::Result<()> {
        let (mut at, mut left) = (self.next, count);
        while left > 0 {
            if (forward && at >= self.cartridge.len()) || (!forward && at == 0) {
                self.go(at)?;
                return Err(Errno::IO.into());
            }
            at = if forward { at + 1 } else { at - 1 };
            let passed = if forward { at - 1 } else { at };
            left -= u32::from(self.is_mark(passed));
        }
        self.go(at)?;
        self.at_mark = true;
        Ok(())
    }

    /// Goes over records; a mark or an end on the way is an error, and a mark is passed.
    fn over_records(&mut self, count: u32, forward: bool) -> io::Result<()> {
        let mut at = self.next;
        for _ in 0..count {
            if (forward && at >= self.cartridge.len()) || (!forward && at == 0) {
                self.go(at)?;
                return Err(Errno::IO.into());
            }
            at = if forward { at + 1 } else { at - 1 };
            let passed = if forward { at - 1 } else { at };
            if self.is_mark(passed) {
                self.go(at)?;
                self.at_mark = true;
                return Err(Errno::IO.into());
            }
        }
        self.go(at)
    }

    fn is_mark(&self, block: u64) -> bool {
        self.cartridge
            .block(block)
            .is_some_and(|block| block.len.is_none())
    }

    fn seek(&mut self, block: u64) -> io::Result<()> {
        if !self.cartridge.head.settings.has_places {
            return Err(Errno::IO.into());
        }
        self.leave()?;
        if block > self.cartridge.len() {
            self.go(self.cartridge.len())?;
            return Err(Errno::IO.into());
        }
        self.go(block)
    }

    fn rewind(&mut self) -> io::Result<()> {
        if !self.is_loaded {
            return Err(Errno::NOMEDIUM.into());
        }
        if !std::mem::take(&mut self.is_lost) {
            self.leave()?;
        }
        self.go(0)
    }

    fn erase(&mut self) -> io::Result<()> {
        self.begin_write()?;
        if self.cartridge.head.settings.worm {
            return Err(Errno::ACCESS.into());
        }
        self.cartridge.truncate(self.next)
    }

    fn move_head(&mut self, operation: Operation) -> io::Result<()> {
        self.check()?;
        match operation {
            Operation::Seek(block) => self.seek(block),
            Operation::Erase => self.erase(),
            Operation::BackwardMarks(count) => {
                let own = u32::from(self.owes_mark);
                self.leave()?;
                self.over_marks(count + own, false)
            }
            _ => {
                self.sync()?;
                match operation {
                    Operation::ForwardMarks(count) => self.over_marks(count, true),
                    Operation::ForwardRecords(count) => self.over_records(count, true),
                    Operation::BackwardRecords(count) => self.over_records(count, false),
                    _ => self.go(self.cartridge.len()),
                }
            }
        }
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
            |fault: &super::SimFault| fault.block == self.next && fault.kind == SimFaultKind::Read;
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

    fn close(mut self: Box<Self>) -> io::Result<()> {
        let mut written = self.check();
        if written.is_ok() {
            written = self.leave();
        }
        if !self.is_loaded {
            written = Ok(());
        }
        self.cartridge.head.counters = self.motor.counters.clone();
        self.cartridge.save_head()?;
        written
    }
}
