//! CPU time of this process by kind of work, where the thread alone does not tell the kind.
//!
//! The counters are those of the whole process, as [`platform::process_cpu_seconds`] is.

use crate as platform;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Nanoseconds of compressing frames.
pub static COMPRESSING: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds of sealing and opening encrypted chunks. It is wall-clock time: a chunk takes 16 µs,
/// and the system takes half of one to tell the CPU time.
pub static SEALING: AtomicU64 = AtomicU64::new(0);

/// Returns a counter of nanoseconds in seconds.
pub fn seconds_of(nanoseconds: &AtomicU64) -> f64 {
    Duration::from_nanos(nanoseconds.load(Relaxed)).as_secs_f64()
}

/// Runs `work` and adds its CPU time to `counter`, without the time it waited for a processor.
pub fn timed_cpu<T>(counter: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let start = platform::thread_cpu_time();
    let result = work();
    let spent = platform::thread_cpu_time().saturating_sub(start);
    counter.fetch_add(spent.as_nanos() as u64, Relaxed);
    result
}

/// A time of one thread: wall clock, and CPU time of the thread.
#[derive(Debug, Clone, Copy)]
pub struct ThreadClock {
    wall: Instant,
    cpu: Duration,
}

impl ThreadClock {
    pub fn now() -> Self {
        Self {
            wall: Instant::now(),
            cpu: platform::thread_cpu_time(),
        }
    }

    /// Returns the nanoseconds since `earlier` on the same thread: wall clock, and CPU time.
    pub fn since(&self, earlier: &Self) -> [u64; 2] {
        [
            self.wall - earlier.wall,
            self.cpu.saturating_sub(earlier.cpu),
        ]
        .map(|time| time.as_nanos() as u64)
    }
}
