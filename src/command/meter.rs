//! Counters of a restore or verification, from which progress and the verdict are read.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

/// What happened so far; counted by all threads, read by anybody.
#[derive(Debug, Default)]
pub struct Meter {
    /// Nanoseconds spent reading the backup.
    pub fetch_nanos: AtomicU64,
    /// Nanoseconds spent decoding and checking.
    pub work_nanos: AtomicU64,
    /// Nanoseconds spent writing.
    pub write_nanos: AtomicU64,
    /// Stored bytes read.
    pub stored_bytes: AtomicU64,
    /// Bytes of content written.
    pub bytes: AtomicU64,
    /// Bytes of content there are; 0 while unknown.
    pub total_bytes: AtomicU64,
    /// Regular files written.
    pub files: AtomicU64,
    /// Entries planned.
    pub entries: AtomicU64,
}

impl Meter {
    /// Add the time since `start` to one of the times, and begin anew.
    pub(super) fn lap(counter: &AtomicU64, start: &mut Instant) {
        let now = Instant::now();
        counter.fetch_add((now - *start).as_nanos() as u64, Relaxed);
        *start = now;
    }
}
