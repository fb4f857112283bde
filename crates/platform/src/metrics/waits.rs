//! Waits that belong to no part of a run: for a server to do something.

use crate::queue::Locked;
use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

/// The waits of a run: one thread records them, another reports them.
#[derive(Debug, Default)]
pub struct Waits {
    now: Mutex<Option<&'static str>>,
    over: Mutex<Vec<Wait>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Reason, as in "waited for …".
    pub what: &'static str,
    pub time: Duration,
}

impl Waits {
    /// Runs `work` and records its time as a wait for `name`.
    pub fn record<T>(&self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let set = |now| *self.now.locked() = now;
        set(Some(name));
        let start = Instant::now();
        let result = work();
        set(None);
        self.over.locked().push(Wait {
            what: name,
            time: start.elapsed(),
        });
        result
    }

    /// Returns the reason of the current wait.
    pub fn now(&self) -> Option<&'static str> {
        *self.now.locked()
    }

    /// Returns the waits that are over and took at least a second.
    pub fn long_waits(&self) -> Vec<Wait> {
        let waits = self.over.locked();
        waits
            .iter()
            .filter(|wait| wait.time >= Duration::from_secs(1))
            .copied()
            .collect()
    }
}
