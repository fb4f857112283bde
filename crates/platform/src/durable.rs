//! Makes written data durable, and finds out whether that succeeded.

#![allow(unsafe_code)]

use super::write::fsync;
use rustix::io::Errno;
use std::{
    io,
    os::fd::{AsFd, IntoRawFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// How to make written data durable on a file system and learn of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMethod {
    /// One `syncfs` for the whole file system.
    Whole,
    /// `syncfs`, which hides errors of the file systems below; then `fsync` of each file.
    Asked,
    /// `fsync` of each file before it is closed, because `syncfs` does nothing.
    Each,
}

impl SyncMethod {
    pub fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Returns the method for the file system of `fd`.
///
/// `syncfs` reports errors that the kernel recorded for the file system. It does so for ext4 and
/// similar ones. Errors of an overlay are recorded for the file systems below it, and FUSE does not
/// pass the call on. An unknown file system is treated like FUSE.
///
/// # Errors
/// The system's.
pub fn sync_method(fd: impl AsFd) -> io::Result<SyncMethod> {
    /// FAT, exFAT, NTFS.
    const FOREIGN: [u64; 3] = [0x4d44, 0x2011_bab0, 0x7366_746e];
    Ok(match file_system(fd)? {
        OVERLAY => SyncMethod::Asked,
        known if NATIVE.contains(&known) || FOREIGN.contains(&known) => SyncMethod::Whole,
        _ => SyncMethod::Each,
    })
}

/// ext2 to ext4, XFS, btrfs, F2FS, bcachefs, ZFS, JFS, NILFS, tmpfs, ramfs, NFS.
pub(super) const NATIVE: [u64; 11] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0xca45_1a4e,
    0x2fc1_2fc1,
    0x3153_464a,
    0x3434,
    0x0102_1994,
    0x8584_58f6,
    0x6969,
];
pub(super) const OVERLAY: u64 = 0x794c_7630;

/// Returns the kernel's type number of the file system of `fd`.
pub(super) fn file_system(fd: impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as u64 & 0xffff_ffff)
}

/// squashfs, erofs, both orders of cramfs, romfs, ISO 9660 and UDF (linux/magic.h).
const IMAGES: [u64; 7] = [
    0x7371_7368,
    0xe0f5_e1e2,
    0x28cd_3d45,
    0x453d_cd28,
    0x7275,
    0x9660,
    0x1501_3346,
];

/// Returns whether the ctime of a file changes whenever the file does. False for file system
/// images, which can be exchanged: their times are those that the creator of the image chose.
pub fn updates_change_times(fd: impl AsFd) -> bool {
    file_system(fd).is_ok_and(|known| !IMAGES.contains(&known))
}

/// Makes everything durable on the file system of `fd`. This includes data of other programs, so
/// call it once per restore.
///
/// # Errors
/// `EIO` or `ENOSPC` if any data on this file system could not be written since `fd` was opened
/// (Linux 5.8), as far as its [`SyncMethod`] reveals that. So open `fd` before the first write.
pub fn sync_fs(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::syncfs(fd)?)
}

/// Did a file system refuse to sync a directory?
static HAS_REFUSED_DIRECTORY: AtomicBool = AtomicBool::new(false);

/// Makes the names in a directory durable, where the file system can do so.
///
/// CIFS, vboxsf, 9p and some FUSE file systems sync files and refuse to sync directories. PostgreSQL and SQLite go on then, and so does
/// this function; see [`has_refused_directory`].
///
/// # Errors
/// The system's, as of [`fsync`].
pub fn sync_dir(dir: impl AsFd) -> io::Result<()> {
    match rustix::fs::fsync(dir) {
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
            HAS_REFUSED_DIRECTORY.store(true, Relaxed);
            Ok(())
        }
        synced => Ok(synced?),
    }
}

/// Returns whether [`sync_dir`] could not make names durable in this process: after a power failure files that were written may
/// lack their names.
pub fn has_refused_directory() -> bool {
    HAS_REFUSED_DIRECTORY.load(Relaxed)
}

/// As [`sync_dir`], of a directory that is closed then; with the errors that the system reports only on close.
///
/// # Errors
/// The system's.
pub fn sync_dir_and_close(dir: impl AsFd) -> io::Result<()> {
    sync_dir(&dir)?;
    close(dir)
}

/// Makes one file durable after the last write, and returns errors that the system
/// reports only on close.
///
/// # Errors
/// The system's, as of [`fsync`].
pub fn sync_and_close(fd: impl AsFd) -> io::Result<()> {
    fsync(&fd)?;
    close(fd)
}

/// Closes a copy of a descriptor, by which the system reports errors of earlier writes.
fn close(fd: impl AsFd) -> io::Result<()> {
    let raw = fd.as_fd().try_clone_to_owned()?.into_raw_fd();
    // SAFETY: this function owns the number and does not use it again; `close` releases it even if
    // it fails.
    match unsafe { libc::close(raw) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
