//! Any bytes of another host are read as a greeting, frames, a listing and a certificate without harm, and take memory in
//! proportion to their length.
#![no_main]

use fullbore::storage::wire::{decode_values, greet, list, name_certificate, read_frames};
use libfuzzer_sys::fuzz_target;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Counts the bytes that are held, and the most of them.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(held, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes of memory for a byte of input at most, and for the texts of errors: an object of a listing has 56 bytes and its key, and its list
/// grows by doubling.
const BYTES_PER_BYTE: usize = 48;
const FEW_BYTES: usize = 64 << 10;

fuzz_target!(|bytes: &[u8]| {
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    greet(bytes);
    list(bytes);
    read_frames(bytes);
    name_certificate(bytes);
    decode_values(bytes);
    // Most bytes are no lengths: as the header of a frame without data they come to the messages.
    let lengths = [bytes.len() as u32, 0].map(u32::to_le_bytes).concat();
    read_frames(&[&lengths, bytes].concat());
    let taken = MOST.load(Relaxed) - before;
    // A frame may claim 1 MiB, which is taken before it comes.
    assert!(taken <= (1 << 20) + FEW_BYTES + BYTES_PER_BYTE * bytes.len(), "{taken}");
});
