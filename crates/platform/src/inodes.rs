//! Tells a file system without free inodes from one without free space: the system has the same
//! error for both.

use fullbore_format::error::NoInodes;
use rustix::{
    fs::{CWD, Mode, OFlags, fstatvfs, openat},
    io::Errno,
};
use std::{io, os::fd::AsFd, path::Path};

/// Returns the error of creating an object in `dir`: [`NoInodes`] if no inodes are left, else the
/// system's.
pub(super) fn creation_error(error: Errno, dir: impl AsFd) -> io::Error {
    match error {
        Errno::NOSPC if lacks_inodes(dir) => io::Error::new(io::ErrorKind::StorageFull, NoInodes),
        other => other.into(),
    }
}

/// The same for an object at `path`.
pub fn creation_error_at(error: io::Error, path: &Path) -> io::Error {
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
    // The parent directory may be missing too, so look at all ancestors.
    let existing = path.ancestors().skip(1).find_map(|dir| open(dir).ok());
    match (Errno::from_io_error(&error), existing) {
        (Some(errno), Some(dir)) => creation_error(errno, dir),
        _ => error,
    }
}

/// Returns whether no inodes are left. Some file systems, such as btrfs, have no fixed number of
/// inodes and report 0 in total.
fn lacks_inodes(dir: impl AsFd) -> bool {
    fstatvfs(dir).is_ok_and(|fs| fs.f_files > 0 && fs.f_ffree == 0)
}
