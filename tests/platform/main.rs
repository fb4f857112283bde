//! The platform on real files, with tricks and without.

mod calls;
mod closer;
mod read;
mod walk;
mod write;

use fullbore::platform::{Tricks, dir::open_root};
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

const BOTH: [Tricks; 2] = [Tricks::Auto, Tricks::Never];

/// An empty directory on disk and one in memory, each open.
fn places() -> Vec<(TempDir, OwnedFd)> {
    let disk = Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned();
    [disk, PathBuf::from("/dev/shm")]
        .iter()
        .map(|place| empty(place))
        .collect()
}

fn empty(place: &Path) -> (TempDir, OwnedFd) {
    let dir = tempfile::tempdir_in(place).unwrap();
    let root = open_root(dir.path()).unwrap();
    (dir, root)
}

/// The number the system gave with an error.
fn errno<T>(result: std::io::Result<T>) -> i32 {
    result
        .err()
        .expect("must be refused")
        .raw_os_error()
        .expect("is the system's")
}
