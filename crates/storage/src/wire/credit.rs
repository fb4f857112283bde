//! Room for the data of uploads: how much one side may send before the other has stored what came earlier.
//!
//! Both halves are numbers that neither wait nor send. The tests try every order of the steps of two sides.

use super::{end::violated, outlet::FRAME_COST};
use fullbore_format::error::Result;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire},
};

/// Room that a frame with so many bytes of an upload takes: a frame with one byte takes memory for more than that.
pub(super) fn append_cost(data_bytes: usize) -> u64 {
    (data_bytes + FRAME_COST) as u64
}

/// Bytes that this side may send.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SendCredit {
    window: u64,
    left: u64,
}

impl SendCredit {
    /// The other side has room for so many bytes, and nothing is sent yet.
    pub(super) fn new(window: u64) -> Self {
        Self {
            window,
            left: window,
        }
    }

    pub(super) fn has(&self, bytes: u64) -> bool {
        self.left >= bytes
    }

    /// Takes room for what is sent next; the caller has seen that it is there.
    pub(super) fn take(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Gets room back.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if so much was not sent.
    pub(super) fn give(&mut self, bytes: u64) -> Result<()> {
        let left = self.left.saturating_add(bytes);
        if left > self.window {
            return Err(violated("it stored more than was sent"));
        }
        self.left = left;
        Ok(())
    }
}

/// Bytes that came from the other side.
#[derive(Debug)]
pub(super) struct ReceiveCredit {
    window: u64,
    /// Bytes that were stored before the other side is told so: each message is a system call on both sides.
    step: u64,
    /// Bytes that wait to be stored.
    waiting: AtomicU64,
    /// Bytes that were stored, and of which the other side was not told.
    untold: AtomicU64,
}

impl ReceiveCredit {
    /// Room for `window` bytes. A frame has at most `window - step + 1` bytes, or the sender might wait for ever.
    pub(super) fn new(window: u64, step: u64) -> Self {
        Self {
            window,
            step,
            waiting: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    /// Takes data that is here.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if there was no room for it.
    pub(super) fn arrive(&self, bytes: u64) -> Result<()> {
        if self.waiting.fetch_add(bytes, AcqRel) + bytes > self.window {
            return Err(violated("it sends more of an upload than it may"));
        }
        Ok(())
    }

    /// Data was stored, or dropped. Returns the bytes to tell the other side of, if it is time.
    pub(super) fn stored(&self, bytes: u64) -> Option<u64> {
        self.waiting.fetch_sub(bytes, AcqRel);
        let left = |sum: u64| if sum < self.step { sum } else { 0 };
        let before = self
            .untold
            .fetch_update(AcqRel, Acquire, |untold| Some(left(untold + bytes)));
        let sum = before.unwrap_or_else(|untold| untold) + bytes;
        (sum >= self.step).then_some(sum)
    }
}

#[cfg(test)]
mod tests;
