//! Writing: the buffer, faults, the early warning and the end.

use super::{SimDevice, Warned};
use crate::sim::settings::{EarlyWarning, SimFault, SimFaultKind};
use rustix::io::Errno;
use std::{io, time::Duration};

impl SimDevice {
    /// Fails if a medium is missing, the place is lost, or an error of earlier is to be reported.
    pub(super) fn check(&mut self) -> io::Result<()> {
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
    pub(super) fn drain(&mut self) {
        self.motor.run_until(self.clock.now());
        self.settle();
    }

    /// Moves records that have left the buffer to the medium, or meets their faults.
    pub(super) fn settle(&mut self) {
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
    pub(super) fn on_medium(&self) -> u64 {
        self.cartridge.len() - self.waiting.len() as u64
    }

    pub(super) fn take_fault(&mut self, block: u64) -> Option<SimFaultKind> {
        let faults = &mut self.cartridge.head.settings.faults;
        let is_met = |fault: &SimFault| fault.block == block && fault.kind != SimFaultKind::Read;
        let found = faults.iter().position(is_met)?;
        Some(faults.remove(found).kind)
    }

    /// Loses all from a record on.
    pub(super) fn fail(&mut self, kind: SimFaultKind, block: u64) {
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
    pub(super) fn wait_for_room(&mut self, bytes: u64) -> io::Result<()> {
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
    pub(super) fn meets_end(&mut self, bytes: u64) -> io::Result<bool> {
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
    pub(super) fn begin_write(&mut self) -> io::Result<()> {
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

    pub(super) fn write_one(&mut self, record: &[u8]) -> io::Result<()> {
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

    pub(super) fn enter(&mut self, bytes: u64) {
        self.entered += bytes;
        self.waiting.push_back(self.entered);
        self.next += 1;
    }

    /// Waits until all is on the medium.
    pub(super) fn sync(&mut self) -> io::Result<()> {
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

    pub(super) fn marks(&mut self, count: u32) -> io::Result<()> {
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

    pub(super) fn put_mark(&mut self) -> io::Result<()> {
        self.cartridge.add_mark()?;
        self.motor.counters.marks += 1;
        self.enter(0);
        self.owes_mark = false;
        self.settle();
        Ok(())
    }
}
