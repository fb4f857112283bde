//! Makes a run that gets too little memory end with an error and exit code 1 instead of an abort.
//!
//! The standard library aborts the process (exit code 134) if an allocation fails, and if a thread
//! gets a stack but no signal stack. [`Allocator`] keeps a reserve for the end of a run. The first
//! allocation that fails releases the reserve and sets a flag. Threads call [`check`] before each
//! piece of work and return an error, so the run ends as after any other error. If the reserve does
//! not suffice, the process writes a message and ends at once with exit code 1; files are left as
//! after `kill -9`. This applies even to a caller that could do without the memory (`try_reserve`).
//!
//! A limit of address space (`ulimit -v`, `LimitAS=`) is known in advance: [`within_limit`] and
//! [`threads_within_limit`] divide it between buffers and stacks. With the limit of a control group
//! (`MemoryMax=`) no allocation fails: the kernel kills the process.

#![allow(unsafe_code)]

use fullbore_format::error::MEMORY;
use rustix::process::{Resource, getrlimit};
use std::{
    alloc::{GlobalAlloc, Layout},
    fs, hint,
    io::{self, Write},
    ptr,
    sync::atomic::{
        AtomicBool, AtomicPtr,
        Ordering::{AcqRel, Acquire, Release},
    },
};

/// Bytes of the reserve: enough for the last buffers of a few threads of 1 MiB frames, for
/// unwinding and for messages.
const RESERVE_BYTES: usize = 8 << 20;
/// Bytes to which the stack of the main thread grows at the start, or half of its own limit
/// (`ulimit -s`) if that is less. The stack otherwise grows on use, and if it cannot grow then,
/// SIGSEGV ends the process (exit code 139).
const MAIN_STACK_BYTES: usize = 256 << 10;
/// The same within a limit of address space: the description of all options takes more than 600 KiB.
const LIMITED_STACK_BYTES: usize = 1 << 20;
/// Step in which the stack is touched.
const STACK_STEP_BYTES: usize = 16 << 10;
/// Bytes that a new thread needs: 2 MiB of stack (the default of the standard library), a signal
/// stack, guard pages, and the allocations of other threads between the check and the start.
const THREAD_BYTES: usize = (2 << 20) + (512 << 10);

/// Size from which a buffer starts at a page: the smallest frame.
const LARGE_BYTES: usize = 64 << 10;
/// Alignment of a large buffer. A larger page of another processor is not needed for it.
const PAGE_BYTES: usize = 4096;

static RESERVE: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());
static IS_SHORT: AtomicBool = AtomicBool::new(false);
/// Whether a thread is ending the process.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// The allocator below. That of musl takes one lock for all threads, and maps again what it has just given back: a
/// backup had three times the page faults (decision 152).
#[cfg(not(target_env = "musl"))]
const HEAP: std::alloc::System = std::alloc::System;
#[cfg(target_env = "musl")]
const HEAP: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The settings of jemalloc, a text of C: two heaps for all threads, and freed pages go back to the system after a second.
#[cfg(target_env = "musl")]
// SAFETY: jemalloc looks for this name, and nothing else has it.
#[unsafe(export_name = "_rjem_malloc_conf")]
static HEAP_SETTINGS: &[u8; 30] = b"narenas:2,dirty_decay_ms:1000\0";

/// The system's allocator, or jemalloc in a program that is linked with musl, with two differences: a failed allocation ends the run
/// (see the module comment), and a large buffer starts at a page.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: every block is one of the system's allocator, or lies in one at a page, behind the address
// of that one. The size of a block tells which of both it is. No call unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let outer = outer_layout(layout);
        // SAFETY: the caller guarantees for `layout` the conditions of the system's allocator.
        let block = allocate_or_release(outer.size(), || unsafe { HEAP.alloc(outer) });
        // SAFETY: `block` is a block of `outer`.
        unsafe { inner_block(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let outer = outer_layout(layout);
        // SAFETY: as in `alloc`.
        let block = allocate_or_release(outer.size(), || unsafe { HEAP.alloc_zeroed(outer) });
        // SAFETY: as in `alloc`.
        unsafe { inner_block(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that `size` is valid for this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if is_large(layout) && is_large(new) {
            // SAFETY: as for the whole.
            return unsafe { resize_large(block, layout, new) };
        }
        if is_large(layout) || is_large(new) {
            // SAFETY: both blocks have the bytes that are copied; the old one is freed once.
            return unsafe {
                let moved = self.alloc(new);
                ptr::copy_nonoverlapping(block, moved, size.min(layout.size()));
                self.dealloc(block, layout);
                moved
            };
        }
        // SAFETY: the caller guarantees for `block`, `layout` and `size` the conditions of the
        // allocator. A failed call leaves `block` unchanged.
        allocate_or_release(size, || unsafe { HEAP.realloc(block, layout, size) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees that `block` was allocated here with `layout`; a large block
        // has the address of its outer block in front.
        unsafe {
            let outer = if is_large(layout) {
                block.cast::<*mut u8>().sub(1).read()
            } else {
                block
            };
            HEAP.dealloc(outer, outer_layout(layout));
        }
    }
}

/// Resizes a large block that stays one. The system moves it without copying where it can, and then it
/// mostly lies as before within its outer block.
///
/// # Safety
/// `block` was allocated here with `old`; `new` has the same alignment.
unsafe fn resize_large(block: *mut u8, old: Layout, new: Layout) -> *mut u8 {
    let kept = old.size().min(new.size());
    let (old_outer, new_outer) = (outer_layout(old), outer_layout(new));
    // SAFETY: a large block has the address of its outer block in front, and `from` is its layout.
    unsafe {
        let outer = block.cast::<*mut u8>().sub(1).read();
        let offset = block.addr() - outer.addr();
        let moved = allocate_or_release(new_outer.size(), || {
            HEAP.realloc(outer, old_outer, new_outer.size())
        });
        let now = PAGE_BYTES - moved.addr() % PAGE_BYTES;
        if now != offset {
            ptr::copy(moved.add(offset), moved.add(now), kept);
        }
        inner_block(moved, new)
    }
}

/// Returns whether a block starts at a page.
fn is_large(layout: Layout) -> bool {
    let most = isize::MAX as usize - 2 * PAGE_BYTES;
    (LARGE_BYTES..most).contains(&layout.size()) && layout.align() <= PAGE_BYTES
}

/// Returns the layout to request from the system's allocator: for a large block with a page more.
///
/// malloc maps each large buffer and puts 16 bytes in front of it. Zen 3 cores copy from a page to
/// a place 16 bytes behind the start of another page at a fourth of their speed (decision 69).
/// `memalign` would not use the place of a freed buffer for the next one of the same size.
fn outer_layout(layout: Layout) -> Layout {
    if !is_large(layout) {
        return layout;
    }
    Layout::from_size_align(layout.size() + PAGE_BYTES, align_of::<*mut u8>()).unwrap_or(layout)
}

/// Returns the place of a block within its outer block, and writes the address of that in front.
///
/// # Safety
/// `outer` is a block of [`outer_layout`].
unsafe fn inner_block(outer: *mut u8, layout: Layout) -> *mut u8 {
    if !is_large(layout) {
        return outer;
    }
    // At least the size of an address, as `outer` is aligned to that.
    let offset = PAGE_BYTES - outer.addr() % PAGE_BYTES;
    // SAFETY: the offset is at most the page that `outer` has more.
    unsafe {
        let block = outer.add(offset);
        block.cast::<*mut u8>().sub(1).write(outer);
        block
    }
}

fn allocate_or_release(size: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let block = allocate();
    if !block.is_null() {
        return block;
    }
    IS_SHORT.store(true, Release);
    release_reserve();
    // Another thread may have released the reserve just before, so try again in any case.
    let block = allocate();
    if block.is_null() {
        end_process(size)
    } else {
        block
    }
}

/// Writes that memory ran out, and ends the process. Allocates no memory and takes no lock.
fn end_process(size: usize) -> ! {
    let mut text = [0; 512];
    let mut free = &mut text[..];
    let _ = write!(
        free,
        "error: could not get {size} bytes of memory: cannot allocate memory\nhint:  {MEMORY}\n"
    );
    let len = 512 - free.len();
    if !IS_ENDING.swap(true, AcqRel) {
        // SAFETY: `text` has `len` bytes.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), len) };
        // SAFETY: ends the process without running code that could allocate.
        unsafe { libc::_exit(1) }
    }
    loop {
        // SAFETY: the call has no conditions; the other thread ends the process.
        unsafe { libc::pause() };
    }
}

/// Maps this number of bytes; returns `None` if there is no room. The mapping takes no memory until
/// it is used.
fn map(bytes: usize) -> Option<*mut libc::c_void> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, at an address that the system chooses.
    let address = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address)
}

fn unmap(address: *mut libc::c_void, bytes: usize) {
    // SAFETY: `at` is a mapping of this length without references to it.
    unsafe { libc::munmap(address, bytes) };
}

fn release_reserve() {
    let address = RESERVE.swap(ptr::null_mut(), AcqRel);
    if !address.is_null() {
        unmap(address, RESERVE_BYTES);
    }
}

/// Returns the system's error for too little memory.
pub fn shortage() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOMEM)
}

/// Returns whether this number of bytes can be mapped now.
fn has_room(bytes: usize) -> bool {
    map(bytes).map(|address| unmap(address, bytes)).is_some()
}

/// Sets up the reserve and grows the stack of the main thread. The main thread calls this once,
/// before anything else.
///
/// # Errors
/// `ENOMEM` if there is no room.
pub fn prepare() -> io::Result<()> {
    let is_limited = limit().is_some();
    if is_limited {
        share_heap();
    }
    let wanted = match is_limited {
        true => LIMITED_STACK_BYTES,
        false => MAIN_STACK_BYTES,
    };
    let limit = getrlimit(Resource::Stack)
        .current
        .map_or(usize::MAX, |bytes| bytes as usize);
    let bytes = wanted.min(limit / 2);
    if !has_room(2 * bytes) {
        return Err(shortage());
    }
    touch_stack(bytes);
    RESERVE.store(map(RESERVE_BYTES).ok_or_else(shortage)?, Release);
    Ok(())
}

/// Makes the stack grow by this number of bytes.
#[inline(never)]
fn touch_stack(bytes: usize) {
    let mut step = [0u8; STACK_STEP_BYTES];
    hint::black_box(&mut step);
    if bytes > STACK_STEP_BYTES {
        touch_stack(bytes - STACK_STEP_BYTES);
    }
    hint::black_box(&mut step); // keeps the frame of this call until the deeper calls return
}

/// Makes all threads allocate from one heap. glibc otherwise reserves 64 MiB of address space for
/// each thread's heap.
fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a parameter of the allocator; the call has no conditions.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Checks that no allocation has failed so far.
///
/// # Errors
/// `ENOMEM` if one failed: the remaining memory is for the end of the run.
pub fn check() -> io::Result<()> {
    if IS_SHORT.load(Acquire) {
        Err(shortage())
    } else {
        Ok(())
    }
}

/// Checks that there is room for another thread.
///
/// # Errors
/// `ENOMEM` if there is not.
pub fn check_thread() -> io::Result<()> {
    if has_room(THREAD_BYTES) {
        Ok(())
    } else {
        Err(shortage())
    }
}

/// Returns the bytes of address space that remain under the limit; `None` without a limit.
fn limit() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    // The first number is the size of the address space, in pages.
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm
        .split(' ')
        .next()
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    Some(limit.saturating_sub(pages * rustix::param::page_size() as u64))
}

/// Returns `wanted` bytes for buffers, or less: at most half of the address space that remains
/// under a limit, but at least `least`.
pub fn within_limit(wanted: u64, least: u64) -> u64 {
    limit().map_or(wanted, |left| wanted.min((left / 2).max(least)))
}

/// Returns the bytes of memory of the machine.
pub fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(info.mem_unit.into())
}

/// Returns `wanted` threads, or fewer: their stacks take at most a quarter of the address space
/// that remains under a limit. At least 1.
pub fn threads_within_limit(wanted: usize) -> usize {
    limit().map_or(wanted, |left| {
        wanted.min((left as usize / 4 / THREAD_BYTES).max(1))
    })
}

/// Gives large buffers back to the system as soon as they are freed: for a process whose buffers other hosts choose.
///
/// By itself, glibc keeps buffers of up to 32 MiB for each of its arenas once one of that size was freed: 400 MiB with 24 threads that had
/// 16 MiB each. Small buffers stay in two arenas. A buffer of 2 MiB or more costs its page faults each time then.
pub fn return_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the calls set numbers of the allocator, under its lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 2 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 << 20);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_starts_at_a_page_also_if_it_grew_from_a_small_one() {
        let layout = |bytes| Layout::from_size_align(bytes, 1).unwrap();
        let small = layout(LARGE_BYTES - 1);
        let large = layout(LARGE_BYTES);
        // SAFETY: each block is used within its size, and freed once with its last layout.
        unsafe {
            for _ in 0..8 {
                let fresh = Allocator.alloc(large);
                let zeroed = Allocator.alloc_zeroed(large);
                let grown = Allocator.alloc(small);
                *grown.add(small.size() - 1) = 7;
                let grown = Allocator.realloc(grown, small, large.size());
                assert_eq!(
                    (fresh.addr() % PAGE_BYTES, grown.addr() % PAGE_BYTES),
                    (0, 0)
                );
                assert_eq!(*grown.add(small.size() - 1), 7);
                let larger = layout(16 * LARGE_BYTES);
                let grown = Allocator.realloc(grown, large, larger.size());
                assert_eq!(
                    (grown.addr() % PAGE_BYTES, *grown.add(small.size() - 1)),
                    (0, 7)
                );
                *grown.add(larger.size() - 1) = 7;
                let grown = Allocator.realloc(grown, larger, large.size());
                let shrunk = Allocator.realloc(grown, large, small.size());
                assert_eq!(*shrunk.add(small.size() - 1), 7);
                Allocator.dealloc(shrunk, small);
                Allocator.dealloc(fresh, large);
                Allocator.dealloc(zeroed, large);
            }
        }
    }
}
