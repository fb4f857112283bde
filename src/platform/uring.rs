//! Closes many files with one call.
//!
//! A small file costs open, read and close. The close of a file that was only read returns no
//! result worth waiting for, so a thread collects files and hands 64 at a time to io_uring. Without
//! io_uring, each file is closed by itself.
#![allow(unsafe_code)]

use super::{debug, open_files_limit, tricks};
use io_uring::{IoUring, opcode, types};
use std::{
    io,
    os::fd::{IntoRawFd, OwnedFd, RawFd},
};

/// Closes that are handed over at once. A larger number would hold more files open: 64 threads with
/// 64 files each are 4,096.
const BATCH: usize = 64;

/// Minimum limit of open files. With a lower limit, files are closed at once.
const ENOUGH_FILES: u64 = 8192;

/// Files of a thread after which a ring is set up; the setup costs as much as a few dozen calls.
const WORTH_A_RING: usize = BATCH;

/// The waiting closes of one thread. Dropping it closes the rest.
///
/// Use it only for files that were read. Some file systems report write errors on close, and those
/// would be lost.
pub struct Closer {
    waiting: Vec<RawFd>,
    /// Files so far, without those that wait.
    closed: usize,
    ring: Ring,
}

enum Ring {
    /// Not needed so far.
    Later,
    Ready(Box<IoUring>),
    /// Turned off, or refused by the system.
    Never,
}

impl Default for Closer {
    fn default() -> Self {
        Self::new()
    }
}

impl Closer {
    /// Creates a closer. It uses no system resources before the first 64 files.
    pub fn new() -> Self {
        let never = !tricks() || open_files_limit() < ENOUGH_FILES;
        let ring = if never { Ring::Never } else { Ring::Later };
        Self {
            waiting: Vec::with_capacity(BATCH),
            closed: 0,
            ring,
        }
    }

    /// Creates a closer that closes each file by itself.
    pub(crate) fn plain() -> Self {
        Self {
            waiting: Vec::new(),
            closed: 0,
            ring: Ring::Never,
        }
    }

    /// Closes `fd` now or later with others; at most 64 wait.
    pub fn close(&mut self, fd: OwnedFd) {
        if matches!(self.ring, Ring::Never) {
            return drop(fd);
        }
        self.waiting.push(fd.into_raw_fd());
        if self.waiting.len() == BATCH {
            self.flush();
        }
    }

    /// Closes all waiting files before it returns.
    pub fn flush(&mut self) {
        let waiting = self.waiting.len();
        self.closed += waiting;
        if waiting > 1 && self.closed >= WORTH_A_RING && matches!(self.ring, Ring::Later) {
            self.ring = set_up();
        }
        if let Ring::Ready(ring) = &mut self.ring
            && waiting > 1
            && let Err(error) = close_all(ring, &mut self.waiting)
        {
            debug(|| format!("io_uring is refused ({error}), files are closed one by one"));
            self.ring = Ring::Never;
        }
        self.waiting.drain(..).for_each(close_one);
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Sets up a ring. The usual refusals are `ENOSYS` (old kernel), `EPERM` (forbidden by a container
/// or `kernel.io_uring_disabled`) and `ENOMEM` (locked memory, before Linux 5.12).
fn set_up() -> Ring {
    match IoUring::new(BATCH as u32) {
        Ok(ring) => Ring::Ready(Box::new(ring)),
        Err(error) => {
            debug(|| format!("io_uring is refused ({error}), files are closed one by one"));
            Ring::Never
        }
    }
}

/// Closes all of `fds` with one call. After an error, `fds` holds those that are still open, and
/// the ring must not be used again.
fn close_all(ring: &mut IoUring, fds: &mut Vec<RawFd>) -> io::Result<()> {
    for fd in &*fds {
        let entry = opcode::Close::new(types::Fd(*fd))
            .build()
            .user_data(*fd as u64);
        // SAFETY: the entry points to no memory. It fits, because the ring has the size of a batch
        // and is empty.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    }
    let mut refused = Vec::new();
    let result = wait_for_all(ring, fds.len(), &mut refused);
    // Files that the kernel has taken are closed, now or soon; the rest is at the end of the queue.
    let taken = fds.len() - ring.submission().len();
    fds.drain(..taken);
    fds.extend(refused);
    result
}

/// Hands over the queue and waits for all `count` results. Files that the kernel did not close are
/// added to `refused`.
fn wait_for_all(ring: &mut IoUring, count: usize, refused: &mut Vec<RawFd>) -> io::Result<()> {
    let mut done = 0;
    while done < count {
        // A signal may end the wait early, with or without an error.
        match ring.submit_and_wait(count - done) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for completion in ring.completion() {
            done += 1;
            // EINVAL: the kernel does not know the operation (before Linux 5.6). With every other
            // result the file is closed.
            if completion.result() == -libc::EINVAL {
                refused.push(completion.user_data() as RawFd);
            }
        }
    }
    if refused.is_empty() {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }
}

fn close_one(fd: RawFd) {
    // SAFETY: `fd` came from an `OwnedFd` and was not closed since. The result is ignored, because
    // the file was only read.
    unsafe { libc::close(fd) };
}
