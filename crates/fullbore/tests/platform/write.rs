//! What a restore does.

use super::{errno, places};
use fullbore_format::entry::{Device, Time};
use fullbore_platform::{
    dir::{FileKind, open_dir, open_read, read_link, stat, stat_fd},
    durable::{self, SyncMethod, sync_and_close},
    tricks,
    unopened::UnopenedObject,
    write::*,
};
use std::{
    fs,
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, symlink},
    },
    time::{Duration, Instant},
};

const NONE: Device = Device { major: 0, minor: 0 };
const MTIME: Time = Time {
    seconds: -5,
    nanos: 999_999_999,
};

#[test]
fn a_file_is_created_only_where_nothing_stands_not_even_a_link() {
    for (dir, root) in places() {
        let file = create_file(&root, b"f", 0o640).unwrap();
        pwrite_all(&file, b"world", 6).unwrap();
        pwrite_all(&file, b"hello ", 0).unwrap();
        assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"hello world");
        symlink("elsewhere", dir.path().join("l")).unwrap();
        for name in [b"f", b"l"] {
            assert_eq!(errno(create_file(&root, name, 0o640)), libc::EEXIST);
        }
        assert!(!dir.path().join("elsewhere").exists());
        unlink_at(&root, b"l").unwrap();
        create_file(&root, b"l", 0o640).unwrap();
    }
}

#[test]
fn missing_directories_are_created_on_the_way() {
    for (dir, root) in places() {
        let made = create_dir_beneath(&root, b"a/b/c", 0o700).unwrap();
        let again = create_dir_beneath(&root, b"a/b/c", 0o700).unwrap();
        assert_eq!(
            stat_fd(made).unwrap().inode,
            fs::metadata(dir.path().join("a/b/c")).unwrap().ino()
        );
        assert_eq!(stat_fd(again).unwrap().mode, 0o700);
        fs::write(dir.path().join("f"), "").unwrap();
        assert_eq!(
            errno(create_dir_beneath(&root, b"f/x", 0o700)),
            libc::ENOTDIR
        );
        assert_eq!(errno(create_dir(&root, b"a", 0o700)), libc::EEXIST);
        create_dir(&root, b"e", 0o750).unwrap();
        remove_dir_at(&root, b"e").unwrap();
        assert_eq!(errno(remove_dir_at(&root, b"a")), libc::ENOTEMPTY);
    }
}

#[test]
fn space_is_reserved_on_disk_and_not_in_memory() {
    for (i, (_dir, root)) in places().into_iter().enumerate() {
        let file = create_file(&root, b"f", 0o600).unwrap();
        let reserved = preallocate(&file, 1 << 20).unwrap();
        assert!(!reserved || (i == 0 && tricks()));
        assert_eq!(
            stat_fd(&file).unwrap().size,
            if reserved { 1 << 20 } else { 0 }
        );
        truncate(&file, 1000).unwrap();
        assert_eq!(stat_fd(&file).unwrap().size, 1000);
        assert!(free_bytes(&root).unwrap() > 0);
    }
}

/// Must never reach `fallocate`: ext4 would take the whole disk before it gave up.
#[test]
fn more_than_there_is_room_for_is_refused_and_takes_nothing() {
    let (_dir, root) = places().remove(0);
    if compresses(&root).unwrap() {
        return; // nobody knows what there is room for
    }
    assert!(usable_bytes(&root).unwrap() >= free_bytes(&root).unwrap());
    let file = create_file(&root, b"f", 0o600).unwrap();
    let result = preallocate(&file, free_bytes(&root).unwrap() + (1 << 40));
    if tricks() {
        assert_eq!(errno(result), libc::ENOSPC);
    } else {
        assert!(!result.unwrap());
    }
    assert_eq!(
        (
            stat_fd(&file).unwrap().size,
            stat_fd(&file).unwrap().blocks512
        ),
        (0, 0)
    );
}

#[test]
fn times_modes_and_owners_are_set_and_the_time_of_access_stays() {
    for (dir, root) in places() {
        let file = create_file(&root, b"f", 0o600).unwrap();
        symlink("f", dir.path().join("l")).unwrap();
        let access = fs::metadata(dir.path().join("f")).unwrap().atime();
        let me = stat_fd(&file).unwrap();
        chown_fd(&file, me.uid, me.gid).unwrap();
        let [at_file, link] =
            [&b"f"[..], b"l"].map(|name| UnopenedObject::open(root.as_fd(), name).unwrap());
        link.chown(me.uid, me.gid).unwrap();
        chmod_fd(&file, 0o4711).unwrap();
        set_times_fd(&file, MTIME).unwrap();
        assert_eq!(
            (stat_fd(&file).unwrap().mode, stat_fd(&file).unwrap().mtime),
            (0o4711, MTIME)
        );
        at_file.chmod(0o600).unwrap();
        link.set_times(Time {
            seconds: 7,
            nanos: 0,
        })
        .unwrap();
        assert_eq!(
            (
                stat(&root, b"f").unwrap().mode,
                stat(&root, b"f").unwrap().mtime
            ),
            (0o600, MTIME)
        );
        assert_eq!(stat(&root, b"l").unwrap().mtime.seconds, 7);
        assert_eq!(fs::metadata(dir.path().join("f")).unwrap().atime(), access);
        assert_eq!(errno(chown_fd(&file, u32::MAX, 0)), libc::EINVAL);
    }
}

#[test]
fn the_mode_of_a_link_is_not_the_mode_of_its_target() {
    for (dir, root) in places() {
        create_file(&root, b"f", 0o600).unwrap();
        symlink("f", dir.path().join("l")).unwrap();
        assert_eq!(
            errno(
                UnopenedObject::open(root.as_fd(), b"l")
                    .unwrap()
                    .chmod(0o777)
            ),
            libc::ENOTSUP
        );
        assert_eq!(stat(&root, b"f").unwrap().mode, 0o600);
        mknod_at(&root, b"p", FileKind::Fifo, 0o600, NONE).unwrap();
        UnopenedObject::open(root.as_fd(), b"p")
            .unwrap()
            .chmod(0o622)
            .unwrap();
        assert_eq!(stat(&root, b"p").unwrap().mode, 0o622);
    }
}

#[test]
fn links_pipes_and_devices_are_created_as_told() {
    for (_dir, root) in places() {
        symlink_at(b"\xff nowhere", &root, b"l").unwrap();
        assert_eq!(read_link(&root, b"l").unwrap(), b"\xff nowhere");
        link_at(&root, b"l", &root, b"l2").unwrap();
        assert_eq!(
            stat(&root, b"l2").unwrap().inode,
            stat(&root, b"l").unwrap().inode
        );
        assert_eq!(
            errno(mknod_at(&root, b"x", FileKind::Directory, 0o600, NONE)),
            libc::EINVAL
        );
        let null = Device { major: 1, minor: 3 };
        // Devices need privileges.
        if mknod_at(&root, b"c", FileKind::CharDevice, 0o600, null).is_ok() {
            let found = stat(&root, b"c").unwrap();
            assert_eq!((found.kind, found.rdev), (FileKind::CharDevice, null));
        }
    }
}

#[test]
fn what_was_written_can_be_made_durable() {
    for (_dir, root) in places() {
        let file = create_file(&root, b"f", 0o600).unwrap();
        pwrite_all(&file, &[1; 100_000], 0).unwrap();
        write_behind(&file, 0, 100_000);
        drop_behind(&file, 0, 100_000);
        fsync(&file).unwrap();
        fsync(open_dir(&root, b"").unwrap()).unwrap();
        sync_and_close(&file).unwrap();
        assert!(
            [SyncMethod::Whole, SyncMethod::Asked, SyncMethod::Each]
                .contains(&durable::sync_method(&root).unwrap())
        );
        durable::sync_fs(&root).unwrap();
    }
}

#[test]
fn a_lock_is_held_by_one_and_ends_with_its_descriptor() {
    for (_dir, root) in places() {
        create_file(&root, b"f", 0o600).unwrap();
        let open = || open_read(&root, b"f").unwrap();
        let (first, second) = (open(), open());
        assert!(lock_exclusive(&first).unwrap());
        assert!(!lock_exclusive(&second).unwrap());
        drop(first);
        // A child of another test may hold a copy of the first until its exec.
        let until = Instant::now() + Duration::from_secs(10);
        while !lock_exclusive(&second).unwrap() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn without_a_mask_a_file_has_the_mode_it_was_created_with() {
    let mask = Umask::clear();
    for (_dir, root) in places() {
        assert_eq!(
            stat_fd(create_file(&root, b"f", 0o666).unwrap())
                .unwrap()
                .mode,
            0o666
        );
    }
    drop(mask);
}
