//! Closing many files at once.

use std::{
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
    sync::Mutex,
};

use fullbore::platform::uring::Closer;

use super::{BOTH, places};

/// Descriptors are numbers that the next open takes again, so what is closed is seen in the file and not in the number:
/// a file is open as long as its lock is held.
fn locked(dir: &std::path::Path, count: usize) -> Vec<OwnedFd> {
    let lock = |i| {
        let file = File::create(dir.join(format!("{i}"))).unwrap();
        file.lock().unwrap();
        OwnedFd::from(file)
    };
    (0..count).map(lock).collect()
}

fn is_open(dir: &std::path::Path, i: usize) -> bool {
    File::open(dir.join(format!("{i}"))).unwrap().try_lock().is_err()
}

#[test]
fn every_file_is_closed_once_after_a_flush_or_a_drop() {
    // One at a time: 300 files each are a third of the usual limit.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    for (dir, _root) in places() {
        for tricks in BOTH {
            for count in [0, 1, 63, 64, 65, 200] {
                let mut closer = Closer::new(tricks);
                locked(dir.path(), count).into_iter().for_each(|fd| closer.close(fd));
                closer.flush();
                assert!((0..count).all(|i| !is_open(dir.path(), i)));
                locked(dir.path(), count).into_iter().for_each(|fd| closer.close(fd));
                drop(closer);
                assert!((0..count).all(|i| !is_open(dir.path(), i)));
            }
        }
    }
}

#[test]
fn files_of_others_stay_open() {
    let (dir, _root) = places().remove(1);
    let other = File::create(dir.path().join("other")).unwrap();
    for tricks in BOTH {
        let mut closer = Closer::new(tricks);
        for _ in 0..640 {
            closer.close(File::open("/dev/null").unwrap().into());
        }
    }
    assert!(other.as_raw_fd() > 2 && other.metadata().unwrap().is_file());
}

#[test]
fn no_more_than_64_files_wait() {
    let (dir, _root) = places().remove(1);
    for tricks in BOTH {
        let mut closer = Closer::new(tricks);
        for (i, fd) in locked(dir.path(), 130).into_iter().enumerate() {
            closer.close(fd);
            if i >= 64 {
                assert!(!is_open(dir.path(), i - 64), "{i}");
            }
        }
    }
}

#[test]
fn many_threads_close_at_once() {
    for tricks in BOTH {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let mut closer = Closer::new(tricks);
                    for _ in 0..1000 {
                        closer.close(File::open("/dev/null").unwrap().into());
                    }
                });
            }
        });
    }
}
