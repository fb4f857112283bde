//! Kinds of file systems, by the numbers that the kernel gives them (linux/magic.h).

use std::{io, os::fd::AsFd};

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
/// overlayfs.
pub(super) const OVERLAY: u64 = 0x794c_7630;

/// Returns the kernel's type number of the file system of `fd`.
pub(super) fn file_system(fd: impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as u64 & 0xffff_ffff)
}
