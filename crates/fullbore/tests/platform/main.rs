//! The platform on real files, with tricks and, in a second process, without.

mod calls;
mod file_ring;
mod read;
mod walk;
mod write;

use fullbore_platform::{dir::open_root, tricks};
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

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

#[test]
fn the_environment_takes_tricks_away() {
    assert_eq!(tricks(), std::env::var_os("FULLBORE_NO_TRICKS").is_none());
}

/// Runs all tests once more, but those of `calls`, which choose by themselves.
#[test]
fn everything_holds_without_tricks() {
    if !tricks() {
        return; // this is the second run
    }
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "calls::"])
        .env("FULLBORE_NO_TRICKS", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success(), "{said}");
    assert!(
        said.contains("the_environment_takes_tricks_away ... ok"),
        "{said}"
    );
}
