//! Closing many files at once.

use super::places;
use fullbore_platform::uring::FileRing;
use std::{
    collections::HashSet,
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Mutex,
};

/// One of these tests at a time: 300 files each are a third of the usual limit.
static ONE: Mutex<()> = Mutex::new(());

fn opened(dir: &Path, count: usize) -> Vec<OwnedFd> {
    (0..count)
        .map(|i| OwnedFd::from(File::create(dir.join(format!("{i}"))).unwrap()))
        .collect()
}

/// The files in `dir` that this process has open. What a child between its fork and its exec still holds does not count,
/// as it would with locks; and descriptors are numbers that the next open takes again, so they say nothing.
fn open_files(dir: &Path) -> HashSet<PathBuf> {
    let dir = dir.canonicalize().unwrap();
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let files = fds.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    files.filter(|file| file.parent() == Some(&dir)).collect()
}

#[test]
fn every_file_is_closed_once_after_a_flush_or_a_drop() {
    let _one = ONE.lock();
    for (dir, _root) in places() {
        for count in [0, 1, 63, 64, 65, 200] {
            let mut ring = FileRing::new();
            let fds = opened(dir.path(), count);
            assert_eq!(open_files(dir.path()).len(), count);
            fds.into_iter().for_each(|fd| ring.close(fd));
            ring.flush();
            assert_eq!(open_files(dir.path()), HashSet::new());
            opened(dir.path(), count)
                .into_iter()
                .for_each(|fd| ring.close(fd));
            drop(ring);
            assert_eq!(open_files(dir.path()), HashSet::new());
        }
    }
}

#[test]
fn files_of_others_stay_open() {
    let (dir, _root) = places().remove(1);
    let other = File::create(dir.path().join("other")).unwrap();
    let mut ring = FileRing::new();
    for _ in 0..640 {
        ring.close(File::open("/dev/null").unwrap().into());
    }
    assert!(other.as_raw_fd() > 2 && other.metadata().unwrap().is_file());
}

#[test]
fn no_more_than_64_files_wait() {
    let _one = ONE.lock();
    let (dir, _root) = places().remove(1);
    let mut ring = FileRing::new();
    for (i, fd) in opened(dir.path(), 130).into_iter().enumerate() {
        ring.close(fd);
        assert!(open_files(dir.path()).len() <= 64 + 129 - i, "{i}");
    }
}

#[test]
fn many_threads_close_at_once() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let mut ring = FileRing::new();
                for _ in 0..1000 {
                    ring.close(File::open("/dev/null").unwrap().into());
                }
            });
        }
    });
}
