//! Limits a rate of bytes to the user's setting, to leave the rest of a disk or a network to others.

use crate::queue::Locked;
use std::{
    num::NonZeroU64,
    sync::Mutex,
    thread::sleep,
    time::{Duration, Instant},
};

/// Maximum idle time that later bytes may make up for.
const CREDIT: Duration = Duration::from_millis(100);

/// A rate limit that all threads of a run share.
#[derive(Debug)]
pub struct RateLimit {
    bytes_per_second: NonZeroU64,
    /// Time at which the bytes so far are due.
    due: Mutex<Instant>,
}

impl RateLimit {
    /// Limits bytes to this rate, over any second.
    pub fn of(bytes_per_second: NonZeroU64) -> Self {
        Self {
            bytes_per_second,
            due: Mutex::new(Instant::now()),
        }
    }

    /// Waits until `bytes` more bytes are due.
    pub fn wait_for(&self, bytes: u64) {
        sleep(self.reserve(bytes));
    }

    /// Reserves `bytes` more bytes, and returns the time until they are due, for a caller that waits by itself.
    pub fn reserve(&self, bytes: u64) -> Duration {
        let time = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.get() as f64);
        let now = Instant::now();
        let mut due = self.due.locked();
        let earliest = now.checked_sub(CREDIT).unwrap_or(*due);
        *due = (*due).max(earliest) + time;
        due.saturating_duration_since(now)
    }
}
