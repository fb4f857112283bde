//! What a run waits for that is none of its parts: that a server does something first.

use crate::queue::Locked;
use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

/// Waits of a run, for who waits and for who tells of it.
#[derive(Debug, Default)]
pub struct Waits {
    now: Mutex<Option<&'static str>>,
    over: Mutex<Vec<Wait>>,
}

/// One that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// For what, as in "waited for …".
    pub what: &'static str,
    /// How long.
    pub time: Duration,
}

impl Waits {
    /// Wait for `what` by doing `work`.
    pub fn during<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        let set = |now| *self.now.locked() = now;
        set(Some(what));
        let start = Instant::now();
        let result = work();
        set(None);
        self.over.locked().push(Wait {
            what,
            time: start.elapsed(),
        });
        result
    }

    /// What is waited for at this moment.
    pub fn now(&self) -> Option<&'static str> {
        *self.now.locked()
    }

    /// Waits of a second and longer that are over.
    pub fn long(&self) -> Vec<Wait> {
        let over = self.over.locked();
        over.iter()
            .filter(|wait| wait.time >= Duration::from_secs(1))
            .copied()
            .collect()
    }
}
