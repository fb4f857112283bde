//! Whose turn it is to ask for another medium, if several threads read from one drive.
//!
//! A thread that wants a medium waits until nobody reads the one in the drive any more, and until nobody wants an earlier one. So threads
//! that read ahead of each other get each medium once, in order.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// The threads that read, and those that wait for media, which have names of type `M` in the order of the backup.
#[derive(Debug)]
pub(super) struct MediaTurns<M> {
    reading: u32,
    last_read: Option<Instant>,
    waiting: BTreeMap<M, u32>,
}

impl<M: Ord> Default for MediaTurns<M> {
    fn default() -> Self {
        Self {
            reading: 0,
            last_read: None,
            waiting: BTreeMap::new(),
        }
    }
}

impl<M: Ord + Clone> MediaTurns<M> {
    /// Notes that a thread begins to read the medium in the drive.
    pub(super) fn begin_read(&mut self) {
        self.reading += 1;
    }

    /// Notes that it has read.
    pub(super) fn end_read(&mut self) {
        self.reading = self.reading.saturating_sub(1);
        self.last_read = Some(Instant::now());
    }

    /// Notes that a thread wants a medium that is not in the drive.
    pub(super) fn begin_wait(&mut self, wanted: &M) {
        *self.waiting.entry(wanted.clone()).or_default() += 1;
    }

    /// Notes that it has it, or will not get it.
    pub(super) fn end_wait(&mut self, wanted: &M) {
        if let Some(count) = self.waiting.get_mut(wanted) {
            *count -= 1;
        }
        self.waiting.retain(|_, count| *count > 0);
    }

    /// Returns whether this medium may be asked for: none is read or was within `quiet`, and no earlier one is waited for.
    pub(super) fn is_next(&self, wanted: &M, quiet: Duration) -> bool {
        let is_quiet =
            self.reading == 0 && self.last_read.is_none_or(|last| last.elapsed() > quiet);
        let first = self.waiting.keys().next();
        is_quiet && first.is_none_or(|first| wanted <= first)
    }
}
