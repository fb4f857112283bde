//! Restoring into a tree that is there: it becomes the backup, and only what differs is written.

mod blocks;
mod damaged;
mod removal;

use crate::runs::{
    self, FULLBORE, Mount, Ran, assert_same, fullbore, has, is_root, make_fifo, names, noise,
    or_skip, sample, set_mode, set_mtime, set_xattr, shape, shell, tampered, temp, write,
};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, mkdirat, openat};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// A tree, a backup of it, and a restore of that.
    fn new(codec: &str) -> Self {
        let place = Self { dir: temp() };
        sample(&place.at("tree"));
        for (name, len) in [
            ("big/exact", 4 << 20),
            ("big/odd", (5 << 20) + 77),
            ("big/small", 200_000),
        ] {
            write(place.at("tree").join(name), noise(len as u64, len));
        }
        fullbore(args![
            "backup",
            place.at("tree"),
            "--to",
            place.at("repo"),
            "-q",
            "--compress",
            codec
        ])
        .ends_with(0);
        fullbore(args![
            "restore",
            place.at("repo"),
            "--to",
            place.at("to"),
            "-q"
        ])
        .ends_with(0);
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn delta(&self, more: &[&str]) -> serde_json::Value {
        let args = args![
            "restore",
            self.at("repo"),
            "--to",
            self.at("to"),
            "--delta",
            "--json"
        ];
        let more = more.iter().map(std::ffi::OsString::from);
        let ran = fullbore(args.into_iter().chain(more)).ends_with(0);
        ran.json().pop().unwrap()["changes"].clone()
    }

    fn assert_restored(&self, case: &str) {
        assert_same(&shape(&self.at("tree")), &shape(&self.at("to")), case);
    }
}

fn overwrite_at(path: &Path, at: usize, bytes: &[u8]) {
    let mut content = fs::read(path).unwrap();
    content[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(path, content).unwrap();
}

#[test]
fn what_is_the_same_is_not_written() {
    for codec in ["zstd:1", "none"] {
        let place = Place::new(codec);
        let inode = fs::metadata(place.at("to/big/odd")).unwrap();
        let changes = place.delta(&["--delete"]);
        assert_eq!(
            (
                &changes["changed"],
                &changes["written_bytes"],
                &changes["removed"]
            ),
            (&0.into(), &0.into(), &0.into())
        );
        let after = fs::metadata(place.at("to/big/odd")).unwrap();
        assert_eq!(
            (inode.ino(), inode.ctime_nsec()),
            (after.ino(), after.ctime_nsec()),
            "not even its metadata"
        );
        place.assert_restored(codec);
    }
}

#[test]
fn names_pipes_and_links_that_are_the_same_are_left_alone() {
    if !or_skip(is_root(), "only root may give attributes to a pipe") {
        return;
    }
    let place = Place { dir: temp() };
    let (tree, target) = (place.at("tree"), place.at("to"));
    write(tree.join("file"), "file");
    fs::hard_link(tree.join("file"), tree.join("name")).unwrap();
    make_fifo(&tree.join("pipe"));
    make_fifo(&tree.join("plain"));
    symlink("file", tree.join("link")).unwrap();
    for name in ["pipe", "link"] {
        if !or_skip(
            set_xattr(&tree.join(name), "trusted.color", b"red"),
            "the file system has no attributes",
        ) {
            return;
        }
    }
    fullbore(args!["backup", &tree, "--to", place.at("repo"), "-q"]).ends_with(0);
    fullbore(args!["restore", place.at("repo"), "--to", &target, "-q"]).ends_with(0);
    let look = || {
        let name = |name: &str| fs::symlink_metadata(target.join(name)).unwrap();
        ["file", "name", "pipe", "plain", "link"].map(|name_in_tree| {
            (
                name(name_in_tree).ino(),
                name(name_in_tree).ctime(),
                name(name_in_tree).ctime_nsec(),
            )
        })
    };
    let before = look();
    assert_eq!(place.delta(&[])["changed"], 0);
    assert!(look() == before, "made anew");
    // What is there has a list of those who may open it, which the backup has not.
    let list = [
        [1u16, 6, 0xffff, 0xffff],
        [2, 4, 9, 0],
        [4, 4, 0xffff, 0xffff],
        [16, 4, 0xffff, 0xffff],
    ]
    .concat();
    let list = [2, 0]
        .iter()
        .chain(&list)
        .chain(&[32, 4, 0xffff, 0xffff])
        .flat_map(|word: &u16| word.to_le_bytes());
    if or_skip(
        set_xattr(
            &target.join("plain"),
            "system.posix_acl_access",
            &list.collect::<Vec<_>>(),
        ),
        "no lists",
    ) {
        let mtime = fs::metadata(tree.join("plain")).unwrap();
        set_mode(&target.join("plain"), 0o644);
        set_mtime(&target.join("plain"), mtime.mtime(), mtime.mtime_nsec());
        assert_eq!(place.delta(&[])["changed"], 1);
        assert_eq!(
            rustix::fs::getxattr(
                target.join("plain"),
                "system.posix_acl_access",
                &mut [0u8; 100]
            )
            .ok(),
            None
        );
    }
    fs::remove_file(target.join("name")).unwrap();
    fs::copy(target.join("file"), target.join("name")).unwrap();
    place.delta(&[]);
    assert_eq!(
        fs::metadata(target.join("name")).unwrap().ino(),
        fs::metadata(target.join("file")).unwrap().ino()
    );
}

#[test]
fn what_is_read_is_not_replaced_by_what_the_backup_has_in_its_place() {
    for (name, inner) in [("stored", "stored"), ("stored/deep", "stored/deep/f")] {
        let dir = temp();
        let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
        write(tree.join(inner), "what was here then");
        write(tree.join("file"), "file");
        let target = if name == "stored" {
            dir.path().join("x.tar.zst")
        } else {
            repo
        };
        fullbore(args!["backup", tree, "--to", target, "-q"]).ends_with(0);
        fs::remove_file(tree.join(inner)).unwrap();
        let _ = fs::remove_dir(tree.join(name));
        fs::rename(&target, tree.join(name)).unwrap();
        let source = tree.join(name);
        for how in ["--overwrite=all", "--delta"] {
            let before = shape(&tree);
            let ran = fullbore(args!["restore", source, "--to", tree, how]).ends_with(2);
            assert!(ran.err.contains("which is read"), "{inner}: {}", ran.err);
            assert_same(&before, &shape(&tree), inner);
            fullbore(args!["restore", source, "file", "--to", tree, how, "-q"]).ends_with(0);
        }
        fullbore(args!["verify", source, "--data"]).ends_with(0);
    }
}

#[test]
fn what_cannot_be_made_costs_nothing_of_what_is_there() {
    if !or_skip(is_root() && has("setpriv"), "not root, or no setpriv") {
        return;
    }
    let place = Place { dir: temp() };
    let (tree, target) = (place.at("tree"), place.at("to"));
    write(tree.join("a"), "content");
    fs::create_dir(tree.join("m")).unwrap();
    fs::hard_link(tree.join("a"), tree.join("m/name")).unwrap();
    if !or_skip(make_device(&tree.join("null")), "no devices here") {
        return;
    }
    fullbore(args!["backup", &tree, "--to", place.at("repo"), "-q"]).ends_with(0);
    fs::create_dir_all(target.join("m")).unwrap();
    let Some(_mount) = Mount::tmpfs(&target.join("m"), "4m") else {
        return;
    };
    write(target.join("m/name"), "what was there");
    write(target.join("null"), "what was there");
    let restore = args![
        FULLBORE,
        "restore",
        place.at("repo"),
        "--to",
        &target,
        "--delta"
    ];
    shell(
        "exec setpriv --bounding-set=-mknod --inh-caps=-all \"$@\"",
        restore,
    )
    .ends_with(1);
    for name in ["m/name", "null"] {
        assert_eq!(
            fs::read(target.join(name)).unwrap(),
            b"what was there",
            "{name}"
        );
    }
    assert_eq!(runs::names(&target), ["a", "m", "null"]);
    assert_eq!(runs::names(&target.join("m")), ["name"]);
    // Of whatever kind it is.
    fs::remove_file(target.join("null")).unwrap();
    fs::create_dir(target.join("null")).unwrap();
    fs::remove_file(target.join("a")).unwrap();
    symlink("null", target.join("a")).unwrap();
    drop(_mount);
    fullbore(args![
        "restore",
        place.at("repo"),
        "--to",
        &target,
        "--delta",
        "--delete"
    ])
    .ends_with(0);
    assert_same(&shape(&tree), &shape(&target), "in the end");
}

fn make_device(path: &Path) -> bool {
    let device = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        device,
    )
    .is_ok()
}

#[test]
fn a_user_restores_into_directories_of_his_own_that_he_may_not_write_to() {
    if !or_skip(is_root() && has("setpriv"), "not root, or no setpriv") {
        return;
    }
    let place = Place { dir: temp() };
    let (tree, target) = (place.at("tree"), place.at("to"));
    for name in ["a/b/file", "a/b/gone", "a/b/sub/deep", "a/other"] {
        write(tree.join(name), noise(name.len() as u64, 3000));
    }
    ["a/b/sub", "a/b", "a"]
        .iter()
        .for_each(|dir| set_mode(&tree.join(dir), 0o555));
    set_mode(place.dir.path(), 0o777);
    shell("chown -R 65534:65534 \"$1\"", args![place.dir.path()]).ends_with(0);
    let as_user = |args: &[OsString]| {
        let all = args![FULLBORE].into_iter().chain(args.iter().cloned());
        shell(
            "exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all \"$@\"",
            all,
        )
    };
    as_user(&args!["backup", &tree, "--to", place.at("repo"), "-q"]).ends_with(0);
    as_user(&args!["restore", place.at("repo"), "--to", &target, "-q"]).ends_with(0);
    let spoil = || {
        write(target.join("a/b/file"), "another");
        write(target.join("a/b/extra/deep"), "more than there was");
        fs::remove_file(target.join("a/b/gone")).unwrap();
        fs::remove_dir_all(target.join("a/b/sub")).unwrap();
        shell(
            "chown -R 65534:65534 \"$1\"; chmod 555 \"$1/b/extra\" \"$1/b\" \"$1\"",
            args![target.join("a")],
        )
        .ends_with(0);
    };
    spoil();
    as_user(&args![
        "restore",
        place.at("repo"),
        "--to",
        &target,
        "--delta",
        "--delete",
        "-q"
    ])
    .ends_with(0);
    assert_same(&shape(&tree), &shape(&target), "delta");
    spoil();
    // What is above what is asked for keeps its mode.
    set_mode(&target.join("a"), 0o500);
    fs::remove_dir_all(target.join("a/b")).unwrap();
    as_user(&args![
        "restore",
        place.at("repo"),
        "a/b",
        "--to",
        &target,
        "--overwrite=all",
        "-q"
    ])
    .ends_with(0);
    assert_eq!(
        fs::metadata(target.join("a")).unwrap().mode() & 0o777,
        0o500
    );
    set_mode(&target.join("a"), 0o555);
    let times = fs::metadata(tree.join("a")).unwrap();
    set_mtime(&target.join("a"), times.mtime(), times.mtime_nsec());
    assert_same(&shape(&tree), &shape(&target), "a/b");
}

#[test]
fn a_tree_that_differs_in_every_way_becomes_the_backup() {
    let place = Place::new("zstd:1");
    let target = place.at("to");
    // Shorter, longer, gone, of another kind, of another mode, later, and a file that many have.
    fs::File::options()
        .write(true)
        .open(target.join("big/exact"))
        .unwrap()
        .set_len(1_500_000)
        .unwrap();
    fs::File::options()
        .write(true)
        .open(target.join("big/odd"))
        .unwrap()
        .set_len(9 << 20)
        .unwrap();
    fs::remove_file(target.join("big/small")).unwrap();
    fs::create_dir(target.join("big/small")).unwrap();
    write(target.join("big/small/in the way"), b"x");
    overwrite_at(&target.join("holes"), 5000, b"data");
    for (index, path) in files(&place.at("tree")).into_iter().enumerate() {
        let path = target.join(path);
        match index % 6 {
            _ if path.ends_with("holes") => {}
            0 => fs::remove_file(&path).unwrap(),
            1 if !path.is_symlink() => set_mode(&path, 0o751),
            2 if !path.is_symlink() => set_mtime(&path, 1, 2),
            3 => {
                fs::remove_file(&path).unwrap();
                symlink("/etc/passwd", &path).unwrap();
            }
            _ => {}
        }
    }
    write(target.join("extra/deep/file"), b"does not belong");
    symlink("/etc", target.join("out")).unwrap();
    let ran = fullbore(args![
        "restore",
        place.at("repo"),
        "--to",
        target,
        "--delta",
        "--delete"
    ])
    .ends_with(0);
    assert_eq!(
        ran.out,
        "delete: \"big/small\"\ndelete: \"extra\"\ndelete: \"out\"\n"
    );
    place.assert_restored("everything");
    assert!(Path::new("/etc/passwd").metadata().unwrap().len() > 0);
}

/// Files below a directory, relative to it.
fn files(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut stack) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(place) = stack.pop() {
        for path in fs::read_dir(place)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            match path.is_dir() && !path.is_symlink() {
                true => stack.push(path),
                false if !path.starts_with(dir.join("big")) => {
                    found.push(path.strip_prefix(dir).unwrap().to_owned())
                }
                false => {}
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_capability_that_the_backup_does_not_have_is_taken_away() {
    let place = Place::new("zstd:1");
    let program = place.at("to/big/small");
    // Version 2, effective, all of the first 32 permitted.
    let capability = [&[1, 0, 0, 2][..], &[0xff; 4], &[0; 12]].concat();
    if !or_skip(
        runs::set_xattr(&program, "security.capability", &capability),
        "no capabilities can be set",
    ) {
        return;
    }
    place.delta(&[]);
    place.assert_restored("a capability");
    fullbore(args![
        "verify",
        place.at("repo"),
        "--against",
        place.at("to")
    ])
    .ends_with(0);
}

#[test]
fn a_file_with_other_names_is_not_written_to() {
    let place = Place::new("zstd:1");
    overwrite_at(&place.at("to/big/odd"), 9, b"kept outside");
    fs::hard_link(place.at("to/big/odd"), place.at("outside")).unwrap();
    let before = fs::read(place.at("outside")).unwrap();
    place.delta(&[]);
    assert_eq!(fs::read(place.at("outside")).unwrap(), before);
    place.assert_restored("a copy made of links");
}

#[test]
fn a_file_that_may_only_be_read_stays_if_it_is_the_same() {
    let place = Place::new("zstd:1");
    shell(
        "cp \"$(command -v sleep)\" \"$1\"/runs",
        args![place.at("tree")],
    )
    .ends_with(0);
    write(place.at("tree/immutable"), b"one");
    fullbore(args![
        "backup",
        place.at("tree"),
        "--to",
        place.at("repo"),
        "-q"
    ])
    .ends_with(0);
    place.delta(&[]);
    let inode = || fs::metadata(place.at("to/runs")).unwrap().ino();
    let before = inode();
    let mut runs = Command::new(place.at("to/runs")).arg("60").spawn().unwrap();
    // Not every file system, nor everybody, has immutable files.
    let chattr = |sign: &str| {
        let set = |path| {
            Command::new("chattr")
                .args(args![format!("{sign}i"), path])
                .stderr(Stdio::null())
                .status()
        };
        set(place.at("to/immutable")).is_ok_and(|status| status.success())
    };
    let is_immutable = chattr("+");
    assert_eq!(
        (place.delta(&[])["changed"].clone(), inode()),
        (0.into(), before)
    );
    write(place.at("tree/immutable"), b"another");
    overwrite_at(&place.at("tree/runs"), 5000, b"changed");
    fullbore(args![
        "backup",
        place.at("tree"),
        "--to",
        place.at("repo"),
        "-q"
    ])
    .ends_with(0);
    let ran = fullbore(args![
        "restore",
        place.at("repo"),
        "--to",
        place.at("to"),
        "--delta"
    ]);
    assert!(chattr("-") || !is_immutable);
    runs.kill().unwrap();
    runs.wait().unwrap();
    assert_eq!(ran.code, i32::from(is_immutable), "{}", ran.err);
    assert!(
        inode() != before
            && ran.err.contains("immutable\": operation not permitted") == is_immutable,
        "{}",
        ran.err
    );
    place.delta(&[]);
    place.assert_restored("what may be written again");
}

#[test]
fn two_files_of_the_backup_that_are_one_here_become_two() {
    let place = Place::new("zstd:1");
    for name in ["one", "other"] {
        write(place.at("tree").join(name), b"the same");
        set_mtime(&place.at("tree").join(name), 1_700_000_000, 5);
    }
    fs::hard_link(place.at("tree/one"), place.at("tree/one again")).unwrap();
    fullbore(args![
        "backup",
        place.at("tree"),
        "--to",
        place.at("repo"),
        "-q"
    ])
    .ends_with(0);
    place.delta(&[]);
    fs::remove_file(place.at("to/other")).unwrap();
    fs::hard_link(place.at("to/one"), place.at("to/other")).unwrap();
    place.delta(&[]);
    let inode = |name: &str| fs::metadata(place.at("to").join(name)).unwrap().ino();
    assert!(inode("one") == inode("one again") && inode("one") != inode("other"));
    place.assert_restored("two files");
    assert_eq!(place.delta(&[])["changed"], 0);
}

#[test]
fn a_device_in_the_place_of_a_file_is_not_opened() {
    let place = Place::new("none");
    let small = place.at("to/big/small");
    fs::remove_file(&small).unwrap();
    if !or_skip(
        make_device(&small) && has("strace"),
        "no devices here, or no strace",
    ) {
        return;
    }
    let strace = args![
        "strace",
        "-f",
        "-qq",
        "-e",
        "trace=openat",
        "-o",
        place.at("log"),
        FULLBORE
    ];
    let restore = args![
        "restore",
        place.at("repo"),
        "--to",
        place.at("to"),
        "--delta",
        "--no-tricks"
    ];
    shell("exec \"$@\"", strace.into_iter().chain(restore)).ends_with(0);
    let log = fs::read_to_string(place.at("log")).unwrap();
    assert!(
        log.contains("\"odd\"") && !log.contains("\"small\", O_RDWR|O_NO"),
        "{log}"
    );
    place.assert_restored("in place of a device");
}

#[test]
fn a_file_is_no_target() {
    let place = Place::new("none");
    for option in ["--delta", "--overwrite=all"] {
        let args = args![
            "restore",
            place.at("repo"),
            "--to",
            place.at("tree/big/odd"),
            option
        ];
        fullbore(args).ends_with(1).has_one_error("not a directory");
    }
}

/// Somebody has moved a directory elsewhere, and asks for a file in it.
#[test]
fn a_link_above_what_was_asked_for_is_not_replaced() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    write(tree.join("www/index"), "1");
    write(tree.join("www/b"), "2");
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    for how in [
        &["--overwrite=all"][..],
        &["--delta"],
        &["--delta", "--delete"],
    ] {
        let place = temp();
        let (live, moved) = (place.path().join("live"), place.path().join("moved"));
        write(moved.join("b"), "2");
        write(live.join("other"), "x");
        std::os::unix::fs::symlink(&moved, live.join("www")).unwrap();
        let args = args!["restore", repository, "--to", live, "www/index"];
        fullbore(args.into_iter().chain(runs::args(how)))
            .ends_with(1)
            .has_one_error("symbolic link");
        assert!(
            live.join("www").is_symlink() && !moved.join("index").exists(),
            "{how:?}"
        );
    }
}
