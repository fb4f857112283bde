//! Closing many files with one call.
//!
//! A small file costs open, read and close. The close of a file that was only read gives nothing back that anybody
//! waits for, so a thread collects them and hands 64 at a time to io_uring. Nothing is lost if it cannot be had.
#![allow(unsafe_code)]

use super::{debug, open_files_limit, tricks};
use io_uring::{IoUring, opcode, types};
use std::{
    io,
    os::fd::{IntoRawFd, OwnedFd, RawFd},
};

/// Closes handed over at once. More would hold more files open: 64 threads with 64 each are 4,096.
const BATCH: usize = 64;

/// Who may not have this many files open cannot afford that any wait to be closed.
const ENOUGH_FILES: u64 = 8192;

/// Fewer than this are closed one by one when there is no ring yet: setting one up costs as much as some dozens of calls.
const WORTH_A_RING: usize = BATCH;

/// The closes of one thread. Dropping it closes what is left.
///
/// For files that were read. Never for files that were written: some file systems report at the close that the bytes
/// did not arrive, and nobody would hear it.
pub struct Closer {
    waiting: Vec<RawFd>,
    ring: Ring,
}

enum Ring {
    /// Not needed so far.
    Later,
    Ready(Box<IoUring>),
    /// Not wanted, or refused.
    Never,
}

impl Default for Closer {
    fn default() -> Self {
        Self::new()
    }
}

impl Closer {
    /// Takes nothing from the system before the first 64 files.
    pub fn new() -> Self {
        let never = !tricks() || open_files_limit() < ENOUGH_FILES;
        let ring = if never { Ring::Never } else { Ring::Later };
        Self {
            waiting: Vec::with_capacity(BATCH),
            ring,
        }
    }

    /// Close `fd` now or with others later; at most 64 wait.
    pub fn close(&mut self, fd: OwnedFd) {
        if matches!(self.ring, Ring::Never) {
            return drop(fd);
        }
        self.waiting.push(fd.into_raw_fd());
        if self.waiting.len() == BATCH {
            self.flush();
        }
    }

    /// Close all that wait, and return when they are closed.
    pub fn flush(&mut self) {
        if self.waiting.len() >= WORTH_A_RING && matches!(self.ring, Ring::Later) {
            self.ring = set_up();
        }
        if let Ring::Ready(ring) = &mut self.ring
            && !self.waiting.is_empty()
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

/// `ENOSYS` (old kernel), `EPERM` (forbidden by a container or `kernel.io_uring_disabled`) and `ENOMEM` (locked memory,
/// before Linux 5.12) are the usual refusals.
fn set_up() -> Ring {
    match IoUring::new(BATCH as u32) {
        Ok(ring) => Ring::Ready(Box::new(ring)),
        Err(error) => {
            debug(|| format!("io_uring is refused ({error}), files are closed one by one"));
            Ring::Never
        }
    }
}

/// Close all of `fds` with one call. On an error `fds` holds those that are still open; the ring must not be used again.
fn close_all(ring: &mut IoUring, fds: &mut Vec<RawFd>) -> io::Result<()> {
    for fd in &*fds {
        let entry = opcode::Close::new(types::Fd(*fd))
            .build()
            .user_data(*fd as u64);
        // SAFETY: the entry points to no memory. There is room: the ring is as large as a batch, and empty.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    }
    let mut refused = Vec::new();
    let result = wait_for_all(ring, fds.len(), &mut refused);
    // What the kernel has taken is closed, now or soon; what it has not taken is the end of the queue.
    let taken = fds.len() - ring.submission().len();
    fds.drain(..taken);
    fds.extend(refused);
    result
}

/// Hand over what is queued and wait until all `count` are done; `refused` are those that were not.
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
            // The operation is not known (before Linux 5.6). With every other result the file is closed.
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
    // SAFETY: `fd` came from an `OwnedFd` and was not closed since. What close says of a file that was read is no news.
    unsafe { libc::close(fd) };
}
