//! Holds reading to a rate that the operator chose, so that others have the rest of a disk or a network.

use crate::queue::Locked;
use std::{
    num::NonZeroU64,
    sync::Mutex,
    thread::sleep,
    time::{Duration, Instant},
};

/// How long nothing may have been read for that to be made up for.
const CREDIT: Duration = Duration::from_millis(100);

/// A rate that all readers of a run share.
#[derive(Debug)]
pub struct RateLimit {
    bytes_per_second: NonZeroU64,
    /// When what was read so far is paid for.
    due: Mutex<Instant>,
}

impl RateLimit {
    /// At most so much, over any second.
    pub fn of(bytes_per_second: NonZeroU64) -> Self {
        Self {
            bytes_per_second,
            due: Mutex::new(Instant::now()),
        }
    }

    /// So many bytes were read: wait until they should have been.
    pub fn keep(&self, bytes: u64) {
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
