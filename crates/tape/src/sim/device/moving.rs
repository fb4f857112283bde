//! Moving the head.

use super::{SimDevice, Warned};
use crate::device::Operation;
use rustix::io::Errno;
use std::{io, time::Duration};

impl SimDevice {
    /// Before a rewind, a seek and a way back over marks, `st` writes a mark if data was written last.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        if self.owes_mark {
            // Behind the early warning too: the mark has room.
            self.put_mark()?;
        }
        self.sync()
    }

    /// Moves the head.
    pub(super) fn go(&mut self, to: u64) -> io::Result<()> {
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
    pub(super) fn over_marks(&mut self, count: u32, forward: bool) -> io::Result<()> {
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
    pub(super) fn over_records(&mut self, count: u32, forward: bool) -> io::Result<()> {
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

    pub(super) fn is_mark(&self, block: u64) -> bool {
        self.cartridge
            .block(block)
            .is_some_and(|block| block.len.is_none())
    }

    pub(super) fn seek(&mut self, block: u64) -> io::Result<()> {
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

    pub(super) fn rewind(&mut self) -> io::Result<()> {
        if !self.is_loaded {
            return Err(Errno::NOMEDIUM.into());
        }
        if !std::mem::take(&mut self.is_lost) {
            self.leave()?;
        }
        self.go(0)
    }

    pub(super) fn erase(&mut self) -> io::Result<()> {
        self.begin_write()?;
        if self.cartridge.head.settings.worm {
            return Err(Errno::ACCESS.into());
        }
        self.cartridge.truncate(self.next)
    }

    pub(super) fn move_head(&mut self, operation: Operation) -> io::Result<()> {
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
}
