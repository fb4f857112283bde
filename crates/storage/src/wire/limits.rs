//! Times of connections, and limits of their bytes.

use fullbore_platform::queue::RateLimit;
use std::{num::NonZeroU64, sync::Arc, time::Duration};

/// Times of a connection.
#[derive(Debug, Clone, Copy)]
pub struct WireTimes {
    /// Between two signs of life.
    pub beat: Duration,
    /// After which the other side is taken for dead.
    pub silence: Duration,
    /// For the greeting of the other side; a person may have to type a password before it.
    pub greeting: Duration,
    /// After which a session ends whose other side asks nothing and holds nothing.
    pub idle: Option<Duration>,
}

impl Default for WireTimes {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(3),
            silence: Duration::from_secs(60),
            greeting: Duration::from_secs(180),
            idle: None,
        }
    }
}

/// Limits of the bytes of a second, shared by all sessions that were given them.
#[derive(Debug, Clone, Default)]
pub struct WireLimits {
    upload: Option<Arc<RateLimit>>,
    download: Option<Arc<RateLimit>>,
}

/// Bytes of a frame that do not wait: a lease is lost if its renewal waits behind the data of an upload.
const SMALL_BYTES: usize = 64 << 10;

impl WireLimits {
    /// Limits the bytes a second that are sent and received.
    pub fn new(upload: Option<NonZeroU64>, download: Option<NonZeroU64>) -> Self {
        let limit = |rate: NonZeroU64| Arc::new(RateLimit::of(rate));
        Self {
            upload: upload.map(limit),
            download: download.map(limit),
        }
    }

    pub(super) fn wait_to_send(&self, bytes: usize) {
        wait(self.upload.as_deref(), bytes);
    }

    pub(super) fn wait_to_receive(&self, bytes: usize) {
        wait(self.download.as_deref(), bytes);
    }
}

fn wait(limit: Option<&RateLimit>, bytes: usize) {
    let Some(limit) = limit else { return };
    let pause = limit.reserve(bytes as u64);
    if bytes > SMALL_BYTES {
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_does_not_wait_for_a_limit_and_counts_all_the_same() {
        let limits = WireLimits::new(NonZeroU64::new(10), NonZeroU64::new(10));
        limits.wait_to_send(SMALL_BYTES);
        limits.wait_to_receive(SMALL_BYTES);
        let owed = limits.upload.as_deref().map(|limit| limit.reserve(0));
        assert!(owed.is_some_and(|owed| owed.as_secs() > 6000), "{owed:?}");
    }
}
