//! The time that leases are measured by.

use fullbore_platform as platform;
use fullbore_platform::queue::Locked;
use std::{fmt, sync::Mutex, thread, time::Duration};

/// A clock that never goes back. No two clocks are ever compared.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the time since a moment that stays the same.
    fn now(&self) -> Duration;

    /// Waits, at most for `time`. Returns earlier if the thread is unparked, or for no reason.
    fn sleep(&self, time: Duration);
}

/// The clock of the system, which goes on while the system is suspended.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        platform::since_boot()
    }

    fn sleep(&self, time: Duration) {
        thread::park_timeout(time);
    }
}

/// A clock that a test moves.
#[derive(Debug, Default)]
pub struct TestClock(Mutex<Duration>);

impl TestClock {
    /// Moves the clock forward.
    pub fn advance(&self, time: Duration) {
        *self.0.locked() += time;
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        *self.0.locked()
    }

    /// Waits a moment of real time, so that the callers, which all ask for the time again, see it when it was moved.
    fn sleep(&self, _time: Duration) {
        thread::park_timeout(Duration::from_millis(1));
    }
}
