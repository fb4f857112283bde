//! The time of a simulated drive.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// A clock: that of the machine, or one that stands still unless it is advanced. Copies are the same
/// clock.
#[derive(Debug, Clone)]
pub enum SimClock {
    /// The machine's; waiting sleeps.
    Real(Instant),
    /// Moves only by [`SimClock::advance`]; waiting advances it.
    Virtual(Arc<Mutex<Duration>>),
}

impl SimClock {
    /// Returns a clock of the machine that begins now.
    pub fn real() -> Self {
        Self::Real(Instant::now())
    }

    /// Returns a virtual clock that shows 0.
    pub fn virtual_time() -> Self {
        Self::Virtual(Arc::default())
    }

    /// Returns the time since the begin.
    pub fn now(&self) -> Duration {
        match self {
            Self::Real(begin) => begin.elapsed(),
            Self::Virtual(time) => *time.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Lets time pass: sleeps, or advances the virtual clock.
    pub fn advance(&self, by: Duration) {
        match self {
            Self::Real(_) => thread::sleep(by),
            Self::Virtual(time) => *time.lock().unwrap_or_else(PoisonError::into_inner) += by,
        }
    }
}
