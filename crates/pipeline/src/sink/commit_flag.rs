//! Records whether the output of this process has its final name. After that, a signal ends the
//! process without cleaning up.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

static NAMED: AtomicBool = AtomicBool::new(false);

/// Sets whether the output has its final name.
pub fn set(is_named: bool) {
    NAMED.store(is_named, SeqCst);
}

/// Returns whether the output has its final name.
pub fn is_named() -> bool {
    NAMED.load(SeqCst)
}
