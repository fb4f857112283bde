//! Directories, and opening beneath a root.

use super::{errno, places};
use fullbore_platform::{
    dir::{FileKind, open_dir, open_read, open_root, read_dir, read_link, stat, stat_fd},
    write::{create_dir_beneath, create_file, mknod_at, open_write, pwrite_all},
};
use std::{
    ffi::OsStr,
    fs,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{PermissionsExt, symlink},
            net::UnixListener,
        },
    },
    path::Path,
    time::Duration,
};

fn content(fd: impl AsFd) -> Vec<u8> {
    let mut text = Vec::new();
    fs::File::from(fd.as_fd().try_clone_to_owned().unwrap())
        .read_to_end(&mut text)
        .unwrap();
    text
}

#[test]
fn a_file_is_read_by_its_path_below_the_root() {
    for (dir, root) in places() {
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/c"), "text").unwrap();
        assert_eq!(content(open_read(&root, b"a/b/c").unwrap()), b"text");
        let names = read_dir(open_dir(&root, b"a/b").unwrap(), &mut Vec::new()).unwrap();
        assert_eq!(
            (names.len(), &*names[0].bytes, names[0].kind),
            (1, &b"c"[..], FileKind::File)
        );
        assert_eq!(errno(open_read(&root, b"a/x")), libc::ENOENT);
        assert_eq!(errno(open_dir(&root, b"a/b/c")), libc::ENOTDIR);
    }
}

#[test]
fn the_empty_path_is_the_root_itself() {
    for (_dir, root) in places() {
        let again = stat_fd(open_dir(&root, b"").unwrap()).unwrap();
        assert_eq!(again.inode, stat_fd(&root).unwrap().inode);
    }
}

#[test]
fn a_symbolic_link_anywhere_in_a_path_is_refused() {
    for (dir, root) in places() {
        fs::create_dir_all(dir.path().join("real/in")).unwrap();
        fs::write(dir.path().join("real/in/f"), "secret").unwrap();
        symlink("real", dir.path().join("link")).unwrap();
        symlink("f", dir.path().join("real/in/last")).unwrap();
        for path in [&b"link/in/f"[..], b"link", b"real/in/last"] {
            assert!(
                [libc::ELOOP, libc::ENOTDIR].contains(&errno(open_read(&root, path))),
                "{path:?}"
            );
            assert!(
                [libc::ELOOP, libc::ENOTDIR].contains(&errno(open_dir(&root, path))),
                "{path:?}"
            );
        }
        assert!(open_dir(&root, b"link/in").is_err());
        assert!(create_dir_beneath(&root, b"link/new", 0o700).is_err());
        assert!(!dir.path().join("real/new").exists());
    }
}

#[test]
fn a_path_that_leaves_the_root_is_refused() {
    for (dir, root) in places() {
        fs::create_dir(dir.path().join("a")).unwrap();
        for path in [&b".."[..], b"a/../..", b"/etc", b"/"] {
            assert_eq!(errno(open_dir(&root, path)), libc::EXDEV, "{path:?}");
        }
    }
}

#[test]
fn a_path_may_be_longer_than_the_system_takes_at_once() {
    let long = vec![vec![b'd'; 200]; 60].join(&b'/');
    for (_dir, root) in places() {
        let bottom = create_dir_beneath(&root, &long, 0o700).unwrap();
        pwrite_all(create_file(&bottom, b"x", 0o600).unwrap(), b"deep", 0).unwrap();
        let path = [&long[..], b"/x"].concat();
        assert!(path.len() > 12_000);
        assert_eq!(content(open_read(&root, &path).unwrap()), b"deep");
        let here = stat_fd(open_dir(&root, &long).unwrap()).unwrap();
        assert_eq!(here.inode, stat_fd(&bottom).unwrap().inode);
    }
}

#[test]
fn a_path_is_cut_at_the_last_slash_that_fits_whatever_its_length() {
    let (_dir, root) = places().remove(0);
    // 4,095 bytes fit one call: every length around it must open the same directory.
    let mut path = vec![vec![b'd'; 254]; 15].join(&b'/');
    let mut bottom = create_dir_beneath(&root, &path, 0o700).unwrap();
    for _ in 0..280 {
        path.extend_from_slice(b"/e");
        bottom = create_dir_beneath(&bottom, b"e", 0o700).unwrap();
        assert_eq!(
            stat_fd(open_dir(&root, &path).unwrap()).unwrap().inode,
            stat_fd(&bottom).unwrap().inode
        );
    }
}

#[test]
fn names_may_be_any_bytes() {
    for (dir, root) in places() {
        let mut expected: Vec<Vec<u8>> = vec![
            b"\xff\xfe".to_vec(),
            b" \n\t\"\\".to_vec(),
            b"...".to_vec(),
            vec![0xe4; 255],
            b"-".to_vec(),
        ];
        for name in &expected {
            fs::write(dir.path().join(OsStr::from_bytes(name)), name).unwrap();
            assert_eq!(content(open_read(&root, name).unwrap()), *name);
        }
        let names = read_dir(open_dir(&root, b"").unwrap(), &mut Vec::new()).unwrap();
        let mut found: Vec<Vec<u8>> = names.into_iter().map(|name| name.bytes).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        assert!(open_read(&root, b"a\0b").is_err());
    }
}

#[test]
fn a_directory_of_many_names_is_listed_whole() {
    let (dir, root) = places().remove(1);
    for i in 0..5000 {
        fs::write(dir.path().join(format!("a rather long name {i:06}")), "").unwrap();
    }
    let mut buffer = Vec::new();
    for _ in 0..2 {
        let names = read_dir(open_dir(&root, b"").unwrap(), &mut buffer).unwrap();
        assert_eq!(names.len(), 5000);
    }
    assert!(buffer.is_empty() && buffer.capacity() < 128 << 10);
}

#[test]
fn stat_tells_what_the_standard_library_tells() {
    use std::os::unix::fs::MetadataExt;
    for (dir, root) in places() {
        fs::write(dir.path().join("f"), vec![1; 5000]).unwrap();
        fs::set_permissions(dir.path().join("f"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::hard_link(dir.path().join("f"), dir.path().join("g")).unwrap();
        let (found, meta) = (
            stat(&root, b"f").unwrap(),
            fs::metadata(dir.path().join("f")).unwrap(),
        );
        assert_eq!(
            (found.kind, found.mode, found.size, found.nlink),
            (FileKind::File, 0o4751, 5000, 2)
        );
        assert_eq!(
            (found.dev, found.inode, found.uid, found.gid),
            (meta.dev(), meta.ino(), meta.uid(), meta.gid())
        );
        assert_eq!(
            (found.mtime.seconds, i64::from(found.mtime.nanos)),
            (meta.mtime(), meta.mtime_nsec())
        );
        assert_eq!(
            (found.ctime.seconds, i64::from(found.ctime.nanos)),
            (meta.ctime(), meta.ctime_nsec())
        );
        assert_eq!(found, stat_fd(open_read(&root, b"g").unwrap()).unwrap());
        assert!(!found.looks_sparse());
    }
    assert_eq!(
        stat(open_root(Path::new("/dev")).unwrap(), b"null")
            .unwrap()
            .rdev
            .minor,
        3
    );
}

#[test]
fn every_kind_is_told_by_the_directory_and_by_stat() {
    for (dir, root) in places() {
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("directory")).unwrap();
        fs::write(path("file"), "").unwrap();
        symlink("nowhere", path("symlink")).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        mknod_at(
            &root,
            b"fifo",
            FileKind::Fifo,
            0o600,
            stat(&root, b"file").unwrap().rdev,
        )
        .unwrap();
        let mut names = read_dir(open_dir(&root, b"").unwrap(), &mut Vec::new()).unwrap();
        names.sort_by(|a, b| a.bytes.cmp(&b.bytes));
        let expected = [
            FileKind::Directory,
            FileKind::Fifo,
            FileKind::File,
            FileKind::Socket,
            FileKind::Symlink,
        ];
        for (name, kind) in names.iter().zip(expected) {
            let found = stat(&root, &name.bytes).unwrap();
            assert_eq!(
                (name.kind, found.kind, name.inode),
                (kind, kind, found.inode)
            );
        }
        assert_eq!(names.len(), 5);
    }
}

#[test]
fn the_target_of_a_link_may_have_any_length_and_bytes() {
    for (dir, root) in places() {
        for target in [vec![b'x'; 1], b"\xff/..".to_vec(), vec![b'y'; 4000]] {
            let path = dir.path().join("l");
            symlink(OsStr::from_bytes(&target), &path).unwrap();
            assert_eq!(read_link(&root, b"l").unwrap(), target);
            fs::remove_file(path).unwrap();
        }
        fs::write(dir.path().join("f"), "").unwrap();
        assert_eq!(errno(read_link(&root, b"f")), libc::EINVAL);
    }
}

#[test]
fn opening_a_pipe_or_a_socket_does_not_wait() {
    for (dir, root) in places() {
        mknod_at(
            &root,
            b"fifo",
            FileKind::Fifo,
            0o600,
            stat_fd(&root).unwrap().rdev,
        )
        .unwrap();
        let _socket = UnixListener::bind(dir.path().join("socket")).unwrap();
        assert_eq!(
            stat_fd(open_read(&root, b"fifo").unwrap()).unwrap().kind,
            FileKind::Fifo
        );
        assert_eq!(errno(open_read(&root, b"socket")), libc::ENXIO);
    }
}

/// With privileges one call does it, without them the second: run this test both ways.
#[test]
fn a_file_of_another_owner_is_opened_all_the_same() {
    let root = open_root(Path::new("/etc")).unwrap();
    assert!(!content(open_read(&root, b"passwd").unwrap()).is_empty());
    open_dir(&root, b"").unwrap();
}

#[test]
#[allow(unsafe_code)]
fn a_file_that_somebody_holds_a_lease_on_is_opened_once_it_is_given_back() {
    const F_SETSIG: i32 = 10;
    use std::os::fd::AsRawFd;
    let (dir, root) = places().remove(0);
    let opened: [&dyn Fn() -> io::Result<OwnedFd>; 2] =
        [&|| open_read(&root, b"f"), &|| open_write(&root, b"f")];
    for open in opened {
        fs::write(dir.path().join("f"), "text").unwrap();
        let holder = fs::File::options()
            .write(true)
            .open(dir.path().join("f"))
            .unwrap();
        // SAFETY: no memory is passed. SIGCHLD instead of SIGIO, because nobody minds it.
        let leased = unsafe {
            libc::fcntl(holder.as_raw_fd(), F_SETSIG, libc::SIGCHLD);
            libc::fcntl(holder.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
        };
        if leased != 0 {
            continue;
        }
        let giving_back = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(holder);
        });
        assert_eq!(content(open().unwrap()), b"text");
        giving_back.join().unwrap();
    }
}
