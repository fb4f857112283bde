//! Counts the memory that a parser takes, so that a few bytes that take much of it are found.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The allocator of the system, which counts the bytes that are held.
pub struct CountedMemory;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

unsafe impl GlobalAlloc for CountedMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

/// Bytes that any input may take.
const FREE_BYTES: usize = 1 << 20;

/// Bytes of memory for each byte of input at most.
const TIMES: usize = 32;

/// Runs a parser of `len` bytes, which must stay within its budget.
pub fn within_budget<T>(len: usize, parse: impl FnOnce() -> T) -> T {
    within(FREE_BYTES + TIMES * len, parse)
}

/// Runs what may take `most` bytes of memory.
pub fn within<T>(most: usize, run: impl FnOnce() -> T) -> T {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let outcome = run();
    let taken = PEAK.load(Relaxed).saturating_sub(before);
    assert!(taken <= most, "{taken} bytes of memory, at most {most}");
    outcome
}
