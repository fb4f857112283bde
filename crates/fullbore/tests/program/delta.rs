//! Restoring into a tree that is there: it becomes the backup, and only what differs is written.

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
fn only_the_blocks_that_differ_are_written_and_in_place() {
    let place = Place::new("zstd:1");
    let path = place.at("to/big/odd");
    let inode = fs::metadata(&path).unwrap().ino();
    overwrite_at(&path, (1 << 20) + 5, b"other");
    overwrite_at(&path, (5 << 20) + 70, b"end");
    let changes = place.delta(&[]);
    assert_eq!(changes["written_bytes"], (1 << 20) + 77);
    assert_eq!(
        (&changes["changed"], fs::metadata(&path).unwrap().ino()),
        (&1.into(), inode)
    );
    place.assert_restored("two blocks");
}

/// What is there at some places of two images of a terabyte.
#[test]
fn of_a_file_over_pages_without_digests_of_blocks_nothing_is_written_if_it_is_the_same() {
    let place = Place { dir: temp() };
    write(place.at("tree/a"), noise(1, 3_000_000));
    write(place.at("tree/b"), noise(2, 100_000));
    let more = ["--digest", "crc32c", "--checkpoint-interval", "0", "-q"].map(OsString::from);
    let backup = args!["backup", place.at("tree"), "--to", place.at("repo")];
    fullbore(backup.into_iter().chain(more)).ends_with(0);
    fullbore(args![
        "restore",
        place.at("repo"),
        "--to",
        place.at("to"),
        "-q"
    ])
    .ends_with(0);
    let changes = place.delta(&[]);
    assert_eq!(
        (
            &changes["changed"],
            &changes["same"],
            &changes["written_bytes"]
        ),
        (&0.into(), &2.into(), &0.into())
    );
    for (index, len) in [
        (2_900_000, 3_000_000),
        (10, 3_000_000),
        (10, 2_000_000),
        (10, 3_500_000),
    ] {
        overwrite_at(&place.at("to/a"), index.min(len - 10), b"other");
        fs::File::options()
            .write(true)
            .open(place.at("to/a"))
            .unwrap()
            .set_len(len as u64)
            .unwrap();
        let changes = place.delta(&[]);
        assert_eq!(
            (&changes["changed"], &changes["same"]),
            (&1.into(), &1.into()),
            "{index} {len}"
        );
        place.assert_restored(&format!("{index} {len}"));
    }
}

fn assert_same_image(a: &Path, b: &Path, case: &str) {
    let [a, b] = [a, b].map(|path| fs::File::open(path).unwrap());
    assert_eq!(
        a.metadata().unwrap().len(),
        b.metadata().unwrap().len(),
        "{case}"
    );
    for (offset, len) in [
        (0, 10 << 20),
        (1 << 30, 1 << 20),
        ((1 << 39) - 4096, 7 << 20),
    ] {
        let [a, b] = [&a, &b].map(|file| {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, offset).unwrap();
            bytes
        });
        assert!(a == b, "{case}: at {offset}");
    }
}

#[test]
fn of_a_sparse_image_only_what_differs_is_written_and_in_place() {
    for no_tricks in [&[][..], &["--no-tricks"]] {
        let place = Place { dir: temp() };
        let (image, copy) = (place.at("tree/image"), place.at("to/image"));
        write(&image, b"");
        let open = |path: &Path| fs::File::options().write(true).open(path).unwrap();
        let file = open(&image);
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&noise(1, 6 << 20), 1 << 20).unwrap();
        file.write_all_at(&noise(2, 6 << 20), 1 << 39).unwrap();
        let back_up = || {
            fullbore(args![
                "backup",
                place.at("tree"),
                "--to",
                place.at("repo"),
                "-q"
            ])
            .ends_with(0)
        };
        back_up();
        fullbore(args![
            "restore",
            place.at("repo"),
            "--to",
            place.at("to"),
            "-q"
        ])
        .ends_with(0);
        let inode = fs::metadata(&copy).unwrap().ino();
        // The image goes on: holes come and go. The copy had a life of its own.
        fallocate(
            &file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            2 << 20,
            8192,
        )
        .unwrap();
        file.write_all_at(&noise(3, 12_288), 1 << 30).unwrap();
        back_up();
        let there = open(&copy);
        there.write_all_at(b"not there", 500_000).unwrap();
        there.write_all_at(b"another", (1 << 39) + 777).unwrap();
        there.set_len((1 << 40) + 5).unwrap();
        let changes = place.delta(no_tricks);
        let written = changes["written_bytes"].as_u64().unwrap();
        // A block with what was changed in the copy, and one with what is new.
        assert!((1..=2 << 20).contains(&written), "{changes}");
        let after = fs::metadata(&copy).unwrap();
        assert_eq!(after.ino(), inode);
        assert!(after.blocks() < 30_000, "{}", after.blocks());
        assert_same_image(&image, &copy, "after");
        let changes = place.delta(no_tricks);
        assert_eq!(
            (&changes["changed"], &changes["written_bytes"]),
            (&0.into(), &0.into())
        );
        open(&copy)
            .write_all_at(b"a little", (1 << 39) + (3 << 20))
            .unwrap();
        open(&copy)
            .write_all_at(&noise(9, 5 << 20), 1 << 35)
            .unwrap();
        let changes = place.delta(no_tricks);
        let written = changes["written_bytes"].as_u64().unwrap();
        assert!((1..=1 << 20).contains(&written), "{changes}");
        assert_same_image(&image, &copy, "one block, and a hole");
        assert!(fs::metadata(&copy).unwrap().blocks() < 30_000);
        fullbore(args![
            "verify",
            place.at("repo"),
            "--against",
            place.at("to")
        ])
        .ends_with(0);
    }
}

#[test]
fn of_a_file_in_chunks_only_what_differs_is_written_and_in_place() {
    let place = Place { dir: temp() };
    let (file, copy) = (place.at("tree/file"), place.at("to/file"));
    let mut content = noise(1, 6 << 20);
    for _ in 0..2 {
        write(&file, &content);
        fullbore(args![
            "backup",
            place.at("tree"),
            "--to",
            place.at("repo"),
            "-q",
            "--chunking",
            "content"
        ])
        .ends_with(0);
        content.splice(100_000..100_000, *b"moves the rest");
    }
    fullbore(args![
        "restore",
        place.at("repo"),
        "--to",
        place.at("to"),
        "-q"
    ])
    .ends_with(0);
    let inode = fs::metadata(&copy).unwrap().ino();
    for index in [5, 3 << 20, (6 << 20) + 3] {
        overwrite_at(&copy, index, b"other");
    }
    let changes = place.delta(&[]);
    let written = changes["written_bytes"].as_u64().unwrap();
    assert!((1..=2 << 20 | 100).contains(&written), "{changes}");
    assert_eq!(fs::metadata(&copy).unwrap().ino(), inode);
    place.assert_restored("in chunks");
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

#[test]
fn what_cannot_be_removed_is_named_and_all_else_is_done() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let place = Place::new("zstd:1");
    let target = place.at("to");
    for name in ["extra 1", "extra 2"] {
        write(target.join(name), name);
    }
    overwrite_at(&target.join("big/odd"), 5000, b"other");
    let args = || {
        args![
            "restore",
            place.at("repo"),
            "--to",
            target,
            "--delta",
            "--delete",
            "--quiet"
        ]
    };
    let ran = tampered("unlinkat:error=EPERM", Some(Path::new("extra 1")), args()).ends_with(1);
    assert!(
        ran.err.contains("could not remove ") && ran.err.contains("extra 1\""),
        "{}",
        ran.err
    );
    let ran = ran.has_one_error("it is skipped; the rest of the backup is restored");
    assert!(
        target.join("extra 1").exists() && !target.join("extra 2").exists(),
        "{}",
        ran.err
    );
    fs::remove_file(target.join("extra 1")).unwrap();
    assert!(
        fs::read(target.join("big/odd")).unwrap()
            == fs::read(place.at("tree").join("big/odd")).unwrap()
    );
    write(target.join("extra 1"), "");
    let ran = tampered("unlinkat:error=EIO", Some(Path::new("extra 1")), args()).ends_with(1);
    assert!(!ran.err.contains("trailing data"), "{}", ran.err);
    fullbore(args()).ends_with(0);
    place.assert_restored("at last");
}

#[test]
fn what_is_deep_is_removed_with_few_descriptors_and_little_stack() {
    let place = Place::new("zstd:1");
    let mut dir: std::os::fd::OwnedFd = fs::File::open(place.at("to")).unwrap().into();
    for _ in 0..5_000 {
        mkdirat(&dir, "d", Mode::RWXU).unwrap();
        openat(&dir, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        dir = openat(&dir, "d", OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let line = "ulimit -n 150; ulimit -s 1024; \"$1\" restore \"$2\" --to \"$3\" --delta --delete --max-delete 10000 --quiet --workers 1";
    shell(line, args![FULLBORE, place.at("repo"), place.at("to")]).ends_with(0);
    place.assert_restored("deep");
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
fn without_delete_nothing_is_removed() {
    let place = Place::new("zstd:1");
    write(place.at("to/big/mine"), b"stays");
    let changes = place.delta(&[]);
    assert_eq!(
        (
            &changes["removed"],
            fs::read(place.at("to/big/mine")).unwrap()
        ),
        (&0.into(), b"stays".to_vec())
    );
}

#[test]
fn of_selected_paths_only_what_is_below_them_is_touched() {
    let place = Place::new("zstd:1");
    overwrite_at(&place.at("to/big/exact"), 3, b"changed");
    write(place.at("to/big/extra"), b"goes");
    write(place.at("to/extra"), b"stays");
    let other = files(&place.at("tree"))
        .into_iter()
        .find(|path| place.at("to").join(path).metadata().unwrap().len() > 9);
    let other = place.at("to").join(other.unwrap());
    overwrite_at(&other, 0, b"!changed!");
    let changes = place.delta(&["--delete", "big"]);
    assert_eq!(changes["removed"], 1);
    assert!(!place.at("to/big/extra").exists() && place.at("to/extra").exists());
    assert!(fs::read(&other).unwrap().starts_with(b"!changed!"));
    assert_eq!(
        fs::read(place.at("to/big/exact")).unwrap(),
        fs::read(place.at("tree/big/exact")).unwrap()
    );
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

/// Restore over `to` and remove what does not belong.
fn replace(from: &Path, to: &Path) -> Ran {
    fullbore(args!["restore", from, "--to", to, "--delta", "--delete"])
}

/// As [`replace`], also if most of it does not belong.
fn replace_all(from: &Path, to: &Path) -> Ran {
    let all = args!["--delta", "--delete", "--max-delete", "100"];
    fullbore(args!["restore", from, "--to", to].into_iter().chain(all))
}

#[test]
fn a_name_that_belongs_further_down_does_not_belong_further_up() {
    let dir = temp();
    let (tree, repo, target) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("to"),
    );
    ["keep", "new/x", "new/deep/y", "new/deep/z"]
        .iter()
        .for_each(|name| write(tree.join(name), "x"));
    fullbore(args!["backup", tree, "--to", repo, "-q"]).ends_with(0);
    // The directory is not there yet, and then a link to another one.
    for link in [false, true] {
        let _ = fs::remove_dir_all(&target);
        ["x", "y", "deep/f", "z"]
            .iter()
            .for_each(|name| write(target.join(name), "does not belong"));
        if link {
            symlink("deep", target.join("new")).unwrap();
        }
        let ran = replace_all(&repo, &target).ends_with(0);
        assert_eq!(
            ran.out,
            "delete: \"deep\"\ndelete: \"x\"\ndelete: \"y\"\ndelete: \"z\"\n"
        );
        fullbore(args!["verify", repo, "--against", target]).ends_with(0);
    }
}

#[test]
fn what_is_restored_from_is_never_removed() {
    for name in ["mine/deep/repo", "repo", "b.tar.zst", "mine/b.tar.lz4"] {
        let dir = temp();
        let (tree, source) = (dir.path().join("t"), dir.path().join("t").join(name));
        write(tree.join("docs/f"), "before");
        fs::create_dir_all(source.parent().unwrap()).unwrap();
        fullbore(args!["backup", tree, "--to", source, "-q"]).ends_with(0);
        write(tree.join("docs/f"), "oops");
        let expected = match name.starts_with("mine") {
            true => {
                write(tree.join("mine/other/f"), "does not belong");
                "delete: \"mine/other\"\n"
            }
            false => "",
        };
        let ran = replace(&source, &tree).ends_with(0);
        assert_eq!(ran.out, expected);
        assert!(
            ran.err.contains("kept") && ran.err.contains(name),
            "{}",
            ran.err
        );
        assert_eq!(fs::read(tree.join("docs/f")).unwrap(), b"before");
        fullbore(args!["verify", source, "--data"]).ends_with(0);
        // In a directory that does not belong itself.
        let moved = tree.join("new/deep/moved.tar");
        fs::create_dir_all(tree.join("new/deep")).unwrap();
        fs::rename(&source, &moved).unwrap();
        let ran = replace(&moved, &tree).ends_with(0);
        assert!(
            ran.err.contains("new/deep/moved.tar\" is kept"),
            "{}",
            ran.err
        );
        fullbore(args!["verify", moved, "--data"]).ends_with(0);
    }
}

#[test]
fn a_directory_that_is_restored_from_does_not_make_way_for_a_file() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("t"), dir.path().join("r"));
    write(tree.join("docs/f"), "x");
    write(tree.join("way"), "a file");
    fullbore(args!["backup", tree, "--to", repo, "-q"]).ends_with(0);
    fs::remove_file(tree.join("way")).unwrap();
    write(tree.join("way/mine"), "x");
    fs::rename(&repo, tree.join("way/repo")).unwrap();
    replace(&tree.join("way/repo"), &tree)
        .ends_with(1)
        .has_one_error("way");
    assert!(tree.join("way/mine").exists());
    fullbore(args!["verify", tree.join("way/repo"), "--data"]).ends_with(0);
}

#[test]
fn what_is_mounted_and_not_in_the_backup_stays() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("t"), dir.path().join("r"));
    write(tree.join("f"), "x");
    let Some(_mount) = Mount::tmpfs(&tree.join("data"), "4m") else {
        return;
    };
    write(tree.join("data/db/rows"), "precious");
    fullbore(args![
        "backup",
        tree,
        "--to",
        repo,
        "--one-file-system",
        "-q"
    ])
    .ends_with(0);
    let Some(_other) = Mount::tmpfs(&tree.join("extra/deep"), "4m") else {
        return;
    };
    write(tree.join("extra/deep/f"), "precious");
    write(tree.join("extra/f"), "does not belong");
    write(dir.path().join("bound/f"), "precious");
    fs::create_dir(tree.join("same device")).unwrap();
    shell(
        "mount --bind \"$1\" \"$2\"",
        args![dir.path().join("bound"), tree.join("same device")],
    )
    .ends_with(0);
    let ran = replace(&repo, &tree);
    shell("umount -l \"$1\"", args![tree.join("same device")]).ends_with(0);
    let ran = ran.ends_with(0);
    assert_eq!(ran.out, "delete: \"extra/f\"\n");
    for kept in ["\"data\"", "\"extra/deep\"", "\"same device\""] {
        assert!(ran.err.contains(&format!("{kept} is kept")), "{}", ran.err);
    }
    for path in ["t/data/db/rows", "t/extra/deep/f", "bound/f"] {
        assert_eq!(
            fs::read(dir.path().join(path)).unwrap(),
            b"precious",
            "{path}"
        );
    }
}

#[test]
fn of_what_is_mounted_and_in_the_backup_the_rest_is_removed() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("t"), dir.path().join("r"));
    let Some(_mount) = Mount::tmpfs(&tree.join("data"), "4m") else {
        return;
    };
    write(tree.join("data/f"), "x");
    fullbore(args!["backup", tree, "--to", repo, "-q"]).ends_with(0);
    write(tree.join("data/more/f"), "does not belong");
    assert_eq!(
        replace(&repo, &tree).ends_with(0).out,
        "delete: \"data/more\"\n"
    );
}

#[test]
fn what_was_excluded_stays_unless_that_is_said() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("t"), dir.path().join("r"));
    ["f", "cache/f"]
        .iter()
        .for_each(|name| write(tree.join(name), "x"));
    fullbore(args![
        "backup",
        tree,
        "--to",
        repo,
        "--exclude",
        "/cache",
        "-q"
    ])
    .ends_with(0);
    assert_eq!(replace(&repo, &tree).ends_with(0).out, "");
    let all = args!["--mirror", "--delete-excluded", "--max-delete", "2"];
    let ran = fullbore(args!["restore", repo, "--to", tree].into_iter().chain(all));
    assert_eq!(ran.ends_with(0).out, "delete: \"cache\"\n");
}

#[test]
fn what_stands_beside_the_way_to_a_path_is_nobody_s_to_remove() {
    let dir = temp();
    let (home, repo, target) = (
        dir.path().join("home"),
        dir.path().join("r"),
        dir.path().join("to"),
    );
    ["alice/f", "bob/f", "carol/f"]
        .iter()
        .for_each(|name| write(home.join(name), "x"));
    let (alice, carol) = (home.join("alice"), home.join("carol"));
    fullbore(args![
        "backup",
        &alice,
        &carol,
        "--full-paths",
        "--to",
        &repo,
        "-q"
    ])
    .ends_with(0);
    let there = target.join(home.strip_prefix("/").unwrap());
    ["alice/f", "alice/new", "bob/f", "carol/f"]
        .iter()
        .for_each(|name| write(there.join(name), "x"));
    fullbore(args![
        "restore",
        &repo,
        "--to",
        &target,
        "--overwrite=all",
        "-q"
    ])
    .ends_with(0);
    let extra = home.strip_prefix("/").unwrap().join("alice/new");
    let extra = extra.display();
    let ran = fullbore(args!["verify", &repo, "--against", &target]).ends_with(1);
    assert!(
        ran.out.contains(&format!("{extra}: extra")) && !ran.out.contains("bob"),
        "{}",
        ran.out
    );
    assert_eq!(
        replace(&repo, &target).ends_with(0).out,
        format!("delete: \"{extra}\"\n")
    );
    assert!(there.join("bob/f").exists() && !there.join("alice/new").exists());
    fullbore(args!["verify", &repo, "--against", &target]).ends_with(0);
}

/// Damage the frame that holds these bytes.
fn damage(repository: &Path, bytes: &[u8]) {
    let segment = runs::segments(repository).pop().unwrap();
    let mut content = fs::read(&segment).unwrap();
    let index = content
        .windows(bytes.len())
        .position(|window| window == bytes)
        .expect("noise is stored as it is");
    content[index + 7] ^= 1;
    fs::write(&segment, content).unwrap();
}

#[test]
fn of_a_damaged_frame_only_the_files_are_lost_that_are_damaged() {
    let dir = temp();
    let (tree, repo, target) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("to"),
    );
    for i in 0..50 {
        write(tree.join(format!("f{i}")), noise(i, 2000));
        write(target.join(format!("f{i}")), "old");
    }
    fullbore(args!["backup", &tree, "--to", &repo, "--quiet"]).ends_with(0);
    damage(&repo, &noise(25, 2000)[..400]);
    let ran = fullbore(args![
        "restore",
        &repo,
        "--to",
        &target,
        "--delta",
        "--keep-going",
        "--verbose"
    ])
    .ends_with(4);
    assert!(
        ran.err.contains("lost: \"f25\"\n")
            && ran.err.contains("it holds part of 1 of 50 files: \"f25\""),
        "{}",
        ran.err
    );
    let is_there = |i: &u64| fs::read(target.join(format!("f{i}"))).unwrap() == noise(*i, 2000);
    assert_eq!((0..50).filter(|i| !is_there(i)).collect::<Vec<_>>(), [25]);
}

#[test]
fn a_file_that_was_not_written_to_is_left_when_the_backup_is_damaged() {
    let place = Place::new("zstd:1");
    let whole = |name: &str| fs::read(place.at("tree").join(name)).unwrap();
    damage(&place.at("repo"), &whole("big/small")[..400]);
    damage(&place.at("repo"), &whole("big/odd")[1 << 20..][..400]);
    damage(&place.at("repo"), &whole("big/exact")[1 << 20..][..400]);
    overwrite_at(&place.at("to/big/small"), 100, b"mine");
    overwrite_at(&place.at("to/big/odd"), 1 << 20, b"mine");
    overwrite_at(&place.at("to/big/exact"), 1 << 20, b"mine");
    overwrite_at(&place.at("to/big/exact"), 3 << 20, b"mine");
    let before = ["small", "odd"].map(|name| fs::read(place.at("to/big").join(name)).unwrap());
    let args = args![
        "restore",
        place.at("repo"),
        "--to",
        place.at("to"),
        "--delta",
        "--keep-going"
    ];
    let ran = fullbore(args).ends_with(4);
    assert_eq!(
        ["small", "odd"].map(|name| fs::read(place.at("to/big").join(name)).unwrap()),
        before
    );
    assert!(!place.at("to/big/exact").exists(), "part of it was written");
    for line in [
        "\"big/small\" is unchanged",
        "\"big/odd\" is unchanged",
        "\"big/exact\" is removed",
    ] {
        assert!(ran.err.contains(line), "{line}: {}", ran.err);
    }
}

#[test]
fn a_file_that_is_made_anew_stays_what_it_was_when_the_backup_is_damaged() {
    let place = Place::new("zstd:1");
    let (target, tree) = (place.at("to/big"), place.at("tree/big"));
    damage(
        &place.at("repo"),
        &fs::read(tree.join("exact")).unwrap()[1 << 20..][..400],
    );
    damage(
        &place.at("repo"),
        &fs::read(tree.join("small")).unwrap()[..400],
    );
    let names = ["exact", "odd", "small"];
    for option in [
        &["--delta"][..],
        &["--overwrite=all"],
        &["--delta", "--no-tricks"],
        &["--overwrite=all", "--no-tricks"],
    ] {
        // Others could have them open who may not by the backup: none of them is written to in place.
        for name in names {
            write(target.join(name), format!("what was there of {name}"));
            set_mode(&target.join(name), 0o666);
        }
        let args = args![
            "restore",
            place.at("repo"),
            "--to",
            place.at("to"),
            "--keep-going"
        ];
        let ran = fullbore(args.into_iter().chain(option.iter().map(OsString::from))).ends_with(4);
        let option = option.join(" ");
        for name in ["exact", "small"] {
            assert_eq!(
                fs::read_to_string(target.join(name)).unwrap(),
                format!("what was there of {name}"),
                "{option}"
            );
            assert!(
                ran.err.contains(&format!("\"big/{name}\" is unchanged")),
                "{option}: {}",
                ran.err
            );
        }
        assert_eq!(
            fs::read(target.join("odd")).unwrap(),
            fs::read(tree.join("odd")).unwrap(),
            "{option}"
        );
        assert_eq!(runs::names(&target), names, "{option}");
    }
}

#[test]
fn a_run_that_is_killed_costs_nothing_of_what_it_was_about_to_replace() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let place = Place::new("zstd:1");
    let target = place.at("to/big");
    let names = ["exact", "odd", "small"];
    for option in ["--delta", "--overwrite=all"] {
        for name in names {
            write(target.join(name), format!("what was there of {name}"));
            set_mode(&target.join(name), 0o666);
        }
        // Each has its content by then, and no name.
        let args = args![
            "restore",
            place.at("repo"),
            "--to",
            place.at("to"),
            option,
            "big"
        ];
        let ran = tampered("linkat:signal=KILL", None, args);
        assert_ne!(ran.code, 0, "{option}: {}", ran.err);
        for name in names {
            assert_eq!(
                fs::read_to_string(target.join(name)).unwrap(),
                format!("what was there of {name}"),
                "{option}"
            );
        }
        assert_eq!(runs::names(&target), names, "{option}");
    }
    place.delta(&[]);
    place.assert_restored("in the end");
}

#[test]
fn where_there_is_no_room_for_both_what_is_replaced_goes_first() {
    if !or_skip(is_root(), "not root") {
        return;
    }
    let place = Place { dir: temp() };
    let (tree, target) = (place.at("tree"), place.at("to"));
    let names = ["a", "b", "c"];
    names
        .iter()
        .zip(1..)
        .for_each(|(name, seed)| write(tree.join(name), noise(seed, 3 << 20)));
    write(tree.join("small"), noise(9, 300_000));
    fullbore(args!["backup", &tree, "--to", place.at("repo"), "-q"]).ends_with(0);
    fs::create_dir(&target).unwrap();
    let Some(_mount) = Mount::tmpfs(&target, "10m") else {
        return;
    };
    for option in ["--delta", "--overwrite=all"] {
        for name in names {
            write(target.join(name), noise(10, 3 << 20));
            set_mode(&target.join(name), 0o666);
        }
        write(target.join("small"), noise(11, 300_000));
        fullbore(args!["restore", place.at("repo"), "--to", &target, option]).ends_with(0);
        assert_same(&shape(&tree), &shape(&target), option);
    }
}

#[test]
fn what_is_replaced_stays_where_there_is_no_room_without_it_either() {
    if !or_skip(is_root(), "not root") {
        return;
    }
    let place = Place { dir: temp() };
    let (tree, target) = (place.at("tree"), place.at("to"));
    write(tree.join("large"), noise(1, 12 << 20));
    fullbore(args!["backup", &tree, "--to", place.at("repo"), "-q"]).ends_with(0);
    fs::create_dir(&target).unwrap();
    let Some(_mount) = Mount::tmpfs(&target, "8m") else {
        return;
    };
    write(target.join("large"), noise(2, 5 << 20));
    fullbore(args![
        "restore",
        place.at("repo"),
        "--to",
        &target,
        "--overwrite=all"
    ])
    .ends_with(1)
    .has_one_error("no space left");
    assert!(fs::read(target.join("large")).unwrap() == noise(2, 5 << 20));
}

#[test]
fn a_restore_that_fails_gives_the_directories_back_that_it_took_over() {
    if !or_skip(is_root(), "not root") {
        return;
    }
    let place = Place { dir: temp() };
    let (tree, target) = (place.at("tree"), place.at("to"));
    write(tree.join("d/e/large"), noise(1, 3 << 20));
    fullbore(args!["backup", &tree, "--to", place.at("repo"), "-q"]).ends_with(0);
    fs::create_dir(&target).unwrap();
    let Some(_mount) = Mount::tmpfs(&target, "1m") else {
        return;
    };
    fs::create_dir_all(target.join("d/e")).unwrap();
    let who = |name: &str| {
        fs::metadata(target.join(name))
            .map(|found| (found.uid(), found.gid(), found.mode() & 0o7777))
    };
    for (name, owner, mode) in [("d", 1234, 0o2775), ("d/e", 0, 0o1777)] {
        std::os::unix::fs::chown(target.join(name), Some(owner), Some(owner)).unwrap();
        set_mode(&target.join(name), mode);
    }
    for option in ["--delta", "--overwrite=all"] {
        fullbore(args!["restore", place.at("repo"), "--to", &target, option])
            .ends_with(1)
            .has_one_error("no space left");
        assert_eq!(who("d").unwrap(), (1234, 1234, 0o2775), "{option}");
        assert_eq!(who("d/e").unwrap(), (0, 0, 0o1777), "{option}");
    }
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

#[test]
fn another_name_of_a_damaged_file_does_not_become_what_stands_in_its_place() {
    let place = Place { dir: temp() };
    let (tree, target) = (place.at("tree"), place.at("to"));
    write(tree.join("a"), noise(1, 200_000));
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    fullbore(args![
        "backup",
        &tree,
        "--to",
        place.at("repo"),
        "-q",
        "--compress",
        "zstd:1"
    ])
    .ends_with(0);
    damage(&place.at("repo"), &noise(1, 200_000)[..400]);
    for option in ["--delta", "--overwrite=all"] {
        ["a", "b"]
            .iter()
            .for_each(|name| write(target.join(name), format!("what was there of {name}")));
        let args = args![
            "restore",
            place.at("repo"),
            "--to",
            &target,
            option,
            "--keep-going"
        ];
        let ran = fullbore(args).ends_with(4);
        assert!(ran.err.contains("1 hard link"), "{}", ran.err);
        for name in ["a", "b"] {
            assert_eq!(
                fs::read_to_string(target.join(name)).unwrap(),
                format!("what was there of {name}"),
                "{option}"
            );
        }
    }
}

#[test]
fn what_is_damaged_in_the_backup_is_named_and_the_rest_is_restored() {
    let place = Place::new("zstd:1");
    damage(
        &place.at("repo"),
        &fs::read(place.at("tree/big/odd")).unwrap()[1 << 20..(1 << 20) + 400],
    );
    // What is the same already needs nothing of the backup.
    place.delta(&[]);
    overwrite_at(&place.at("to/big/odd"), 1 << 20, b"changed");
    overwrite_at(&place.at("to/big/odd"), 2 << 20, b"changed");
    overwrite_at(&place.at("to/big/exact"), 0, b"changed");
    let args = args![
        "restore",
        place.at("repo"),
        "--to",
        place.at("to"),
        "--delta",
        "--keep-going"
    ];
    let ran = fullbore(args).ends_with(4);
    assert!(ran.err.contains("\"big/odd\""), "{}", ran.err);
    assert!(!place.at("to/big/odd").exists());
    assert_eq!(
        fs::read(place.at("to/big/exact")).unwrap(),
        fs::read(place.at("tree/big/exact")).unwrap()
    );
}

#[test]
fn to_remove_what_does_not_belong_is_asked_for_with_delta_only() {
    let place = Place::new("none");
    for option in ["--overwrite=all", "--plan"] {
        let ran = fullbore(args![
            "restore",
            place.at("repo"),
            "--to",
            place.at("to"),
            option,
            "--delete"
        ])
        .ends_with(2);
        assert!(ran.err.contains("--delete"), "{}", ran.err);
    }
}

#[test]
fn nothing_is_restored_into_the_repository_that_is_read() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("t"), dir.path().join("r"));
    write(tree.join("f"), "x");
    fullbore(args!["backup", tree, "--to", repo, "-q"]).ends_with(0);
    let before = runs::names(&repo);
    for more in [
        &[][..],
        &["--overwrite=all"],
        &["--delta"],
        &["--delta", "--delete"],
    ] {
        for target in [repo.join("inside"), repo.join("a/b"), repo.clone()] {
            let args = args!["restore", repo, "--to", target]
                .into_iter()
                .chain(more.iter().map(OsString::from));
            fullbore(args).ends_with(2).has_one_error("which is read");
        }
    }
    assert_eq!(runs::names(&repo), before);
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

#[test]
fn a_plan_says_what_would_be_removed_and_removes_nothing() {
    let dir = temp();
    let (tree, repository, target) = (
        dir.path().join("tree"),
        dir.path().join("repository"),
        dir.path().join("to"),
    );
    write(tree.join("a"), "1");
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    write(target.join("mine"), "2");
    let plan = args![
        "restore", repository, "--to", target, "--plan", "--delta", "--delete"
    ];
    let said = fullbore(plan.clone()).ends_with(0).out;
    assert!(said.starts_with("delete: \"mine\"\nbackup "), "{said}");
    let lines = fullbore(plan.into_iter().chain(args!["--json"]))
        .ends_with(0)
        .json();
    assert_eq!(
        (&lines[0]["path"], &lines[1]["files"]),
        (&"mine".into(), &1.into())
    );
    assert_eq!(names(&target), ["mine"]);
}
