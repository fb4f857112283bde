//! Telling a file system that has no inodes left from one that has no space left: the system has the same error for both.

use crate::error::NoInodes;
use rustix::{
    fs::{CWD, Mode, OFlags, fstatvfs, openat},
    io::Errno,
};
use std::{io, os::fd::AsFd, path::Path};

/// The error of making something in `dir`: [`NoInodes`] if that is why there is no room, else the system's.
pub(super) fn of_making(error: Errno, dir: impl AsFd) -> io::Error {
    match error {
        Errno::NOSPC if lacks_inodes(dir) => io::Error::new(io::ErrorKind::StorageFull, NoInodes),
        other => other.into(),
    }
}

/// The same, where what was to be made is called `path`.
pub fn of_making_path(error: io::Error, path: &Path) -> io::Error {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |dir: &Path| {
        openat(
            CWD,
            if dir.as_os_str().is_empty() {
                Path::new(".")
            } else {
                dir
            },
            flags,
            Mode::empty(),
        )
    };
    // The directory it is in may be missing too.
    let there = path.ancestors().skip(1).find_map(|dir| open(dir).ok());
    match (Errno::from_io_error(&error), there) {
        (Some(errno), Some(dir)) => of_making(errno, dir),
        _ => error,
    }
}

/// Some file systems, as btrfs, have no number of inodes, and say 0 of all of them.
fn lacks_inodes(dir: impl AsFd) -> bool {
    fstatvfs(dir).is_ok_and(|fs| fs.f_files > 0 && fs.f_ffree == 0)
}
