//! Whether what this process makes has its final name already: a signal that comes then ends the process, and nothing else.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

static NAMED: AtomicBool = AtomicBool::new(false);

/// What is being made has its final name; or it was taken back, and has it no more.
pub fn set(is_named: bool) {
    NAMED.store(is_named, SeqCst);
}

/// Has it?
pub fn is_named() -> bool {
    NAMED.load(SeqCst)
}
