//! Making durable what was written, and knowing that it is.

#![allow(unsafe_code)]

use super::write::fsync;
use std::{
    io,
    os::fd::{AsFd, IntoRawFd},
};

/// What is to be done on a file system so that what was written is durable, and an error on the way is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMethod {
    /// One call for all of it.
    Whole,
    /// That call, which hides errors of what lies below; then each file tells its own.
    Asked,
    /// Each file by itself, before it is closed: the call does nothing.
    Each,
}

impl SyncMethod {
    /// For sets of them.
    pub fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The way of the file system that `fd` is on.
///
/// `syncfs` gives the errors that are noted of a file system. Those of ext4 and its like are; an overlay's are noted of the file system
/// below it; FUSE asks its server for nothing. What is not known is taken for one of those.
///
/// # Errors
/// The system's.
pub fn way(fd: impl AsFd) -> io::Result<SyncMethod> {
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

/// What kind of file system `fd` is on, by the number it has in the kernel.
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

/// Does it change the ctime of a file that is another now? Not an image that was exchanged: there it says what its maker wanted.
pub fn keeps_change_times(fd: impl AsFd) -> bool {
    file_system(fd).is_ok_and(|known| !IMAGES.contains(&known))
}

/// Make everything durable on the file system that `fd` is on. Others' data too, so once per restore.
///
/// # Errors
/// `EIO` or `ENOSPC` if anything on this file system could not be written since `fd` was opened (Linux 5.8), as far as its
/// [`Way`] lets that be known: open it before the first write.
pub fn sync_fs(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::syncfs(fd)?)
}

/// Make one file or directory durable that will not be written any more, and hear what is only said when it is closed.
///
/// # Errors
/// The system's, as of [`fsync`].
pub fn settle(fd: impl AsFd) -> io::Result<()> {
    fsync(&fd)?;
    let raw = fd.as_fd().try_clone_to_owned()?.into_raw_fd();
    // SAFETY: the number was owned here, and is not used again; closed it is even if that fails.
    match unsafe { libc::close(raw) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
