//! A run that gets too little memory ends with an error and exit code 1, not with an abort.
//!
//! The standard library aborts the process (exit code 134) when an allocation fails, and when a thread gets a stack but no
//! signal stack. [`Allocator`] keeps a reserve for the end of a run. The first allocation that fails releases the reserve and
//! sets a mark; threads ask [`check`] before each piece of work and return an error, so the run ends as after any other error.
//! If the reserve does not suffice, the process writes a message and ends at once with exit code 1; files are left as after
//! `kill -9`. This holds even for a caller that could do without the memory (`try_reserve`).
//!
//! A limit of address space (`ulimit -v`, `LimitAS=`) is known beforehand: [`within_limit`] and [`threads_within_limit`] divide
//! it between buffers and stacks. The limit of a control group (`MemoryMax=`) makes no allocation fail: the kernel kills.

#![allow(unsafe_code)]

use crate::error::MEMORY;
use rustix::process::{Resource, getrlimit};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs, hint,
    io::{self, Write},
    ptr,
    sync::atomic::{
        AtomicBool, AtomicPtr,
        Ordering::{AcqRel, Acquire, Release},
    },
};

/// Bytes of the reserve: enough for the last buffers of a few threads of 1 MiB frames, for unwinding and for messages.
const RESERVE_BYTES: usize = 8 << 20;
/// The stack of the main thread grows while it is used. If it cannot grow, SIGSEGV ends the process (exit code 139). So it grows to
/// this at the start, or to half of its own limit (`ulimit -s`).
const MAIN_STACK_BYTES: usize = 256 << 10;
/// It grows in steps of so many bytes.
const STACK_STEP_BYTES: usize = 16 << 10;
/// Bytes that a new thread needs: 2 MiB of stack (the default of the standard library), a signal stack, guard pages, and what
/// other threads allocate between the check and the start.
const THREAD_BYTES: usize = (2 << 20) + (512 << 10);

static RESERVE: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());
static IS_SHORT: AtomicBool = AtomicBool::new(false);
/// Is a thread ending the process?
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// The allocator of the system, but a failed allocation ends the run: see the module.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: every call is passed to the system's allocator unchanged, and its answer is returned unchanged. Nothing unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises for `layout` what the system's allocator wants.
        or_again(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        or_again(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises for `at`, `layout` and `size` what the system's allocator wants. A call that failed left
        // `at` as it was.
        or_again(size, || unsafe { System.realloc(at, layout, size) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller promises that `at` was allocated here, so by the system's allocator, with `layout`.
        unsafe { System.dealloc(at, layout) }
    }
}

fn or_again(size: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let at = allocate();
    if !at.is_null() {
        return at;
    }
    IS_SHORT.store(true, Release);
    release_reserve();
    // Another thread may have released it just before: so this is tried in any case.
    let at = allocate();
    if at.is_null() { end(size) } else { at }
}

/// Write that memory ran out, and end the process. Allocates nothing and takes no lock.
fn end(size: usize) -> ! {
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
        // SAFETY: it ends the process as it is, without anything that could allocate.
        unsafe { libc::_exit(1) }
    }
    loop {
        // SAFETY: it has no conditions; the other thread ends the process.
        unsafe { libc::pause() };
    }
}

/// Map so many bytes; `None` if there is no room. The mapping takes no memory until it is used.
fn map(bytes: usize) -> Option<*mut libc::c_void> {
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping, at an address of the system's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at)
}

fn unmap(at: *mut libc::c_void, bytes: usize) {
    // SAFETY: `at` is a mapping of so many bytes that nothing refers to.
    unsafe { libc::munmap(at, bytes) };
}

fn release_reserve() {
    let at = RESERVE.swap(ptr::null_mut(), AcqRel);
    if !at.is_null() {
        unmap(at, RESERVE_BYTES);
    }
}

/// The error of the system for too little memory.
pub fn shortage() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOMEM)
}

/// Is there room for so many bytes now?
fn has_room(bytes: usize) -> bool {
    map(bytes).map(|at| unmap(at, bytes)).is_some()
}

/// Keep a reserve, and make sure of the stack of the main thread. The main thread calls this once, before anything else.
///
/// # Errors
/// `ENOMEM` if there is no room for that.
pub fn prepare() -> io::Result<()> {
    if limit().is_some() {
        share_heap();
    }
    let limit = getrlimit(Resource::Stack)
        .current
        .map_or(usize::MAX, |bytes| bytes as usize);
    let bytes = MAIN_STACK_BYTES.min(limit / 2);
    if !has_room(2 * bytes) {
        return Err(shortage());
    }
    touch_stack(bytes);
    RESERVE.store(map(RESERVE_BYTES).ok_or_else(shortage)?, Release);
    Ok(())
}

/// Let the stack grow by so many bytes now.
#[inline(never)]
fn touch_stack(bytes: usize) {
    let mut step = [0u8; STACK_STEP_BYTES];
    hint::black_box(&mut step);
    if bytes > STACK_STEP_BYTES {
        touch_stack(bytes - STACK_STEP_BYTES);
    }
    hint::black_box(&mut step); // the frame of this call stays until the deeper ones are done
}

/// Let all threads allocate from one heap: glibc reserves 64 MiB of address space for the heap of each thread.
fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a parameter of the allocator, and has no conditions.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Did every allocation succeed so far?
///
/// # Errors
/// `ENOMEM` if one failed: the memory that is left is for the end of the run.
pub fn check() -> io::Result<()> {
    if IS_SHORT.load(Acquire) {
        Err(shortage())
    } else {
        Ok(())
    }
}

/// Is there room for another thread?
///
/// # Errors
/// `ENOMEM` if not.
pub fn check_thread() -> io::Result<()> {
    if has_room(THREAD_BYTES) {
        Ok(())
    } else {
        Err(shortage())
    }
}

/// Bytes of address space that the limit leaves to this process; `None` without a limit.
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

/// `wanted` bytes for buffers, or fewer: at most half of the address space that a limit leaves, but at least `least`.
pub fn within_limit(wanted: u64, least: u64) -> u64 {
    limit().map_or(wanted, |left| wanted.min((left / 2).max(least)))
}

/// `wanted` threads, or fewer: their stacks take at most a quarter of the address space that a limit leaves. At least 1.
pub fn threads_within_limit(wanted: usize) -> usize {
    limit().map_or(wanted, |left| {
        wanted.min((left as usize / 4 / THREAD_BYTES).max(1))
    })
}
