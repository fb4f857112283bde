//! Space on a file system: free bytes, preallocation, holes.

use super::truncate;
use crate::{debug, file_system::file_system, tricks};
use rustix::{
    fs::{FallocateFlags, StatVfs},
    io::{Errno, retry_on_intr},
};
use std::{io, os::fd::AsFd};

/// File systems in memory, where preallocation writes zeros that are overwritten later.
const IN_MEMORY: [u64; 2] = [0x0102_1994 /* tmpfs */, 0x8584_58f6 /* ramfs */];

/// File systems that may compress written data, but not data in preallocated space: btrfs, ZFS,
/// bcachefs.
const COMPRESSING: [u64; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];

/// Allocates the first `len` bytes of an empty file, and sets its length to `len`. Returns false if
/// the space was not allocated; the file can still be written.
///
/// Writing 64 GiB in pieces spends time extending the file; allocated first, the file is also
/// contiguous. File systems in memory are skipped, because they would write zeros, and compressing
/// ones, because they would not compress.
///
/// # Errors
/// As [`allocate`].
pub fn preallocate(fd: impl AsFd, len: u64) -> io::Result<bool> {
    if !tricks() || len == 0 {
        return Ok(false);
    }
    let kind = file_system(&fd)?;
    if IN_MEMORY.contains(&kind) || COMPRESSING.contains(&kind) {
        return Ok(false);
    }
    allocate(fd, len)
}

/// Returns whether the file system of `fd` compresses, so that the space for data is known only
/// after writing. On btrfs with `compress=zstd`, 126 MB of text took 127 MB if the space was
/// allocated first, and 4 MB if not.
///
/// # Errors
/// The system's.
pub fn compresses(fd: impl AsFd) -> io::Result<bool> {
    Ok(COMPRESSING.contains(&file_system(fd)?))
}

/// Allocates like [`preallocate`], but on every file system, to reserve the space.
///
/// # Errors
/// `ENOSPC`, `EDQUOT` or `EFBIG` before the first byte is written; the file is empty again.
pub fn allocate(fd: impl AsFd, len: u64) -> io::Result<bool> {
    check_space(&fd, len)?;
    match retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len)) {
        Ok(()) => Ok(true),
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
            truncate(fd, 0)?;
            Err(error.into())
        }
        Err(error) => {
            debug(|| format!("fallocate is refused ({error}), files grow as they are written"));
            Ok(false)
        }
    }
}

/// Reserves space for the first `len` bytes of a file, whose length stays as it is. Returns false if the file system does not
/// have that much. Without the call of the system, only the free space is looked at.
///
/// # Errors
/// The system's.
pub fn try_reserve(fd: impl AsFd, written: u64, len: u64) -> io::Result<bool> {
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].map(Errno::raw_os_error);
    match reserve(&fd, 0, len) {
        Ok(()) => Ok(true),
        Err(error) if full.map(Some).contains(&error.raw_os_error()) => Ok(false),
        Err(error) => {
            debug(|| format!("fallocate is refused ({error}), free space is compared"));
            Ok(usable_bytes(&fd)? >= len.saturating_sub(written))
        }
    }
}

/// Makes a hole. Returns false if the file system does not support holes, or not in this range.
///
/// # Errors
/// The system's.
pub fn punch(fd: impl AsFd, offset: u64, len: u64) -> io::Result<bool> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match retry_on_intr(|| rustix::fs::fallocate(&fd, mode, offset, len)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::PERM) => Ok(false),
        done => Ok(done.map(|()| true)?),
    }
}

/// Checks that the file system has at least `len` bytes of space.
///
/// This check comes before an allocation because ext4 detects the lack only after it has taken all
/// space, and until it has released it, every other program on that disk is out of space.
///
/// # Errors
/// `ENOSPC`, or the system's.
/// `ENOSPC`, or the system's.
pub fn check_space(fd: impl AsFd, len: u64) -> io::Result<()> {
    if len > usable_bytes(fd)? {
        Err(Errno::NOSPC.into())
    } else {
        Ok(())
    }
}

/// Returns the bytes that an unprivileged process can still write to the file system of `fd`;
/// `u64::MAX` if unknown.
///
/// # Errors
/// The system's.
pub fn free_bytes(fd: impl AsFd) -> io::Result<u64> {
    free(fd, |fs| fs.f_bavail)
}

/// Returns the bytes that this process can still write. For root this includes the space that file
/// systems such as ext4 reserve for root.
///
/// # Errors
/// The system's.
pub fn usable_bytes(fd: impl AsFd) -> io::Result<u64> {
    if crate::user_id() == 0 {
        free(fd, |fs| fs.f_bfree.max(fs.f_bavail))
    } else {
        free_bytes(fd)
    }
}

fn free(fd: impl AsFd, blocks: impl Fn(&StatVfs) -> u64) -> io::Result<u64> {
    let fs = rustix::fs::fstatvfs(fd)?;
    // Some network file systems report 0 for "unknown".
    Ok(if fs.f_blocks == 0 {
        u64::MAX
    } else {
        blocks(&fs).saturating_mul(fs.f_frsize)
    })
}

/// Reserves `len` bytes at `offset` of a file that is at least as long. The bytes are zeros, and no hole.
///
/// # Errors
/// `ENOSPC`, `EOPNOTSUPP`, or the system's.
pub fn reserve(fd: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    let mode = FallocateFlags::KEEP_SIZE;
    Ok(retry_on_intr(|| {
        rustix::fs::fallocate(&fd, mode, offset, len)
    })?)
}

/// Allocates `len` bytes at `offset`, the end of the space allocated so far, and moves the end of
/// the file behind them. Returns false, and changes nothing, where [`preallocate`] would not
/// allocate either.
///
/// # Errors
/// `ENOSPC`, `EDQUOT` or `EFBIG`; the file may have become longer.
pub fn extend(fd: impl AsFd, offset: u64, len: u64) -> io::Result<bool> {
    let kind = file_system(&fd)?;
    if !tricks() || IN_MEMORY.contains(&kind) || COMPRESSING.contains(&kind) {
        return Ok(false);
    }
    check_space(&fd, len)?;
    match retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), offset, len)) {
        Ok(()) => Ok(true),
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(error.into()),
        Err(_) => Ok(false),
    }
}
