//! Limits the read rate to the user's setting, to leave the rest of a disk or a network to others.

use crate::queue::Locked;
use std::{
    num::NonZeroU64,
    sync::Mutex,
    thread::sleep,
    time::{Duration, Instant},
};

/// Maximum idle time that later reads may make up for.
const CREDIT: Duration = Duration::from_millis(100);

/// A rate limit that all readers of a run share.
#[derive(Debug)]
pub struct RateLimit {
    bytes_per_second: NonZeroU64,
    /// Time at which the bytes read so far are due.
    due: Mutex<Instant>,
}

impl RateLimit {
    /// Limits reading to this rate, over any second.
    pub fn of(bytes_per_second: NonZeroU64) -> Self {
        Self {
            bytes_per_second,
            due: Mutex::new(Instant::now()),
        }
    }

    /// Waits until `bytes` more bytes are due.
    pub fn wait_for(&self, bytes: u64) {
        let time = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.get() as f64);
        let due = {
            let mut due = self.due.locked();
            let earliest = Instant::now().checked_sub(CREDIT).unwrap_or(*due);
            *due = (*due).max(earliest) + time;
            *due
        };
        sleep(due.saturating_duration_since(Instant::now()));
    }
}
