//! Which objects a backup is of where file systems are mounted in one another.

use crate::runs;
use crate::runs::{Mount, fullbore, has, is_root, or_skip, set_mode, shell, temp};
use std::{ffi::OsString, fs, path::Path};

/// A tmpfs.
fn mount(at: &Path) -> Option<Mount> {
    Mount::tmpfs(at, "8m")
}

/// What `shell` mounts at its last argument; `None`, said, if that is not permitted.
fn mount_by(line: &str, args: &[&Path]) -> Option<Mount> {
    let mounted = is_root() && shell(line, args.iter().map(OsString::from)).code == 0;
    or_skip(mounted, "that cannot be mounted here").then(|| Mount::at(args[args.len() - 1]))
}

fn files(dir: &Path, names: &[&str]) {
    names
        .iter()
        .for_each(|name| runs::write(dir.join(name), name));
}

/// What a backup of `tree` by these options holds, the root left out: the same in a repository and in one file, and as much
/// as the dry run says.
fn stored(tree: &Path, options: &[&str]) -> Vec<String> {
    let dir = temp();
    let backup = |target: &Path, more: &[&str]| {
        let options = options.iter().chain(more).map(OsString::from);
        fullbore(
            args!["backup", tree, "--to", target, "--json"]
                .into_iter()
                .chain(options),
        )
        .ends_with(0)
    };
    let list = |source: OsString| -> Vec<String> {
        let entries = fullbore(args!["list", source, "--json"])
            .ends_with(0)
            .json();
        entries
            .iter()
            .map(|entry| entry["path"].as_str().unwrap().to_owned())
            .skip(1)
            .collect()
    };
    let (repository, file) = (dir.path().join("r"), dir.path().join("x.tar.zst"));
    let dry = backup(&repository, &["--dry-run"]).json().pop().unwrap();
    backup(&repository, &[]);
    backup(&file, &[]);
    let names = list(format!("{}@latest", repository.display()).into());
    assert_eq!(names, list(file.into()), "in a repository and in one file");
    assert_eq!(
        dry["entries"],
        names.len() + 1,
        "as the dry run says: {names:?}"
    );
    names
}

#[test]
fn a_mount_behind_a_mount_of_another_device_is_stored() {
    let dir = temp();
    let (tree, away) = (dir.path().join("t"), dir.path().join("away"));
    files(&tree, &["a/f", "z"]);
    files(&away, &["inner/deep", "file"]);
    let Some(_other) = mount(&tree.join("mnt")) else {
        return;
    };
    files(&tree, &["mnt/back/covered", "mnt/file", "mnt/g"]);
    let bind = "mount --bind \"$1\" \"$2\"";
    let Some(_back) = mount_by(bind, &[&away.join("inner"), &tree.join("mnt/back")]) else {
        return;
    };
    let Some(_file) = mount_by(bind, &[&away.join("file"), &tree.join("mnt/file")]) else {
        return;
    };
    fs::create_dir(tree.join("mnt/back/third")).unwrap();
    let Some(_third) = mount(&tree.join("mnt/back/third")) else {
        return;
    };
    files(&tree, &["mnt/back/third/h"]);
    let all = [
        "a",
        "a/f",
        "mnt",
        "mnt/back",
        "mnt/back/deep",
        "mnt/back/third",
        "mnt/back/third/h",
        "mnt/file",
        "mnt/g",
        "z",
    ];
    assert_eq!(stored(&tree, &[]), all);
    let (target, back) = (dir.path().join("r"), dir.path().join("b"));
    fullbore(args!["backup", tree, "--to", target, "--quiet"]).ends_with(0);
    fullbore(args!["verify", target, "--data", "--against", tree]).ends_with(0);
    fullbore(args!["restore", target, "--to", back, "--quiet"]).ends_with(0);
    assert_eq!(fs::read(back.join("mnt/back/deep")).unwrap(), b"inner/deep");
    assert_eq!(fs::read(back.join("mnt/file")).unwrap(), b"file");
}

#[test]
fn what_leaves_out_a_directory_leaves_out_what_is_mounted_in_it() {
    let dir = temp();
    let tree = dir.path().join("t");
    files(
        &tree,
        &[
            "a",
            "cache/.nobackup",
            "cache/m/covered",
            "cache/x",
            "data/y",
        ],
    );
    let Some(_data) = mount(&tree.join("data/db")) else {
        return;
    };
    let Some(_cache) = mount(&tree.join("cache/m")) else {
        return;
    };
    let Some(_inner) = mount(&tree.join("cache/m/inner")) else {
        return;
    };
    let Some(_marked) = mount(&tree.join("marked")) else {
        return;
    };
    files(
        &tree,
        &[
            "data/db/rows",
            "cache/m/c",
            "cache/m/inner/d",
            "marked/.nobackup",
            "marked/e",
        ],
    );
    let rest = [
        "a",
        "cache",
        "cache/.nobackup",
        "cache/m",
        "cache/m/c",
        "cache/m/inner",
        "cache/m/inner/d",
        "cache/x",
    ];
    let marked = ["marked", "marked/.nobackup", "marked/e"];
    assert_eq!(
        stored(&tree, &["--exclude", "/data"]),
        [&rest[..], &marked].concat()
    );
    assert_eq!(
        stored(&tree, &["--exclude", "/data/db/"]),
        [&rest[..], &["data", "data/y"], &marked].concat()
    );
    let all = [
        "a",
        "cache",
        "data",
        "data/db",
        "data/db/rows",
        "data/y",
        "marked",
    ];
    assert_eq!(stored(&tree, &["--exclude-if-present", ".nobackup"]), all);
    let tag = "Signature: 8a477f597d28d172789f06886806bc55";
    fs::write(tree.join("cache/m/CACHEDIR.TAG"), tag).unwrap();
    let all = [
        "a",
        "cache",
        "cache/.nobackup",
        "cache/m",
        "cache/m/CACHEDIR.TAG",
        "cache/x",
        "marked",
    ];
    assert_eq!(
        stored(
            &tree,
            &[
                "--exclude-caches",
                "--exclude",
                "/data",
                "--exclude",
                "/marked/*"
            ]
        ),
        all
    );
}

/// Mounts an automounter's directory, and what it would mount there when somebody comes: a tmpfs, and a directory that is
/// given. One more directory waits for somebody to come.
const AUTOMOUNT: &str = "mkfifo \"$1\" && exec 9<>\"$1\" && group=$(cut -d' ' -f5 /proc/$$/stat) && cd \"$3\" &&
    mount -t autofs -o fd=9,pgrp=$group,minproto=5,maxproto=5,indirect autofs . && cd \"$3\" &&
    mkdir -p bob ghost sub/alice sub/ghost && mount --bind \"$2\" bob && mount -t tmpfs tmpfs sub/alice && echo > sub/alice/f";

#[test]
fn what_an_automounter_has_mounted_is_stored_and_nothing_is_mounted_for_the_backup() {
    let dir = temp();
    let (tree, away) = (dir.path().join("t"), dir.path().join("away"));
    files(&tree, &["home/covered", "z"]);
    files(&away, &["deep"]);
    let Some(_home) = mount_by(
        AUTOMOUNT,
        &[&dir.path().join("pipe"), &away, &tree.join("home")],
    ) else {
        return;
    };
    let all = [
        "home",
        "home/bob",
        "home/bob/deep",
        "home/sub",
        "home/sub/alice",
        "home/sub/alice/f",
        "z",
    ];
    assert_eq!(stored(&tree, &[]), all);
    assert_eq!(stored(&tree, &["-x"]), ["home", "z"]);
}

#[test]
fn a_file_system_that_the_backup_goes_to_is_stored_as_an_empty_directory() {
    let dir = temp();
    let tree = dir.path().join("t");
    files(&tree, &["a"]);
    let Some(_disk) = mount(&tree.join("disk")) else {
        return;
    };
    fullbore(args!["backup", tree, "--to", tree.join("disk"), "--quiet"]).ends_with(0);
    let ran = fullbore(args![
        "list",
        format!("{}@latest", tree.join("disk").display()),
        "--json"
    ])
    .ends_with(0);
    let names: Vec<_> = ran
        .json()
        .iter()
        .map(|entry| entry["path"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["", "a", "disk"]);
}

#[test]
fn a_list_can_stay_on_the_file_system_of_its_directory() {
    let dir = temp();
    let (tree, list) = (dir.path().join("t"), dir.path().join("list"));
    files(&tree, &["a/f", "z"]);
    let Some(_other) = mount(&tree.join("m")) else {
        return;
    };
    files(&tree, &["m/g", "m/sub/h"]);
    let stored = |names: &[&str], options: &[&str]| {
        fs::write(&list, names.join("\n")).unwrap();
        stored(
            &tree,
            &[&["--files-from", list.to_str().unwrap()], options].concat(),
        )
    };
    let names = ["a/f", "m/g", "m/sub", "m/sub/h", "z"];
    assert_eq!(
        stored(&names, &[]),
        ["a", "a/f", "m", "m/g", "m/sub", "m/sub/h", "z"]
    );
    assert_eq!(stored(&names, &["-x"]), ["a", "a/f", "z"]);
    assert_eq!(stored(&["m", "m/sub/h", "z"], &["-x"]), ["m", "z"]);
}

#[test]
fn the_directories_above_whole_paths_on_two_devices_are_stored_once() {
    let dir = temp();
    let tree = dir.path().join("t");
    files(&tree, &["a/f"]);
    let Some(_other) = mount(&tree.join("m")) else {
        return;
    };
    files(&tree, &["m/g"]);
    let target = dir.path().join("r");
    let backup = |more: &[&str]| {
        let paths = args![
            "backup",
            tree.join("a"),
            tree.join("m"),
            "--full-paths",
            "--to",
            target,
            "--json"
        ];
        fullbore(paths.into_iter().chain(runs::args(more)))
            .ends_with(0)
            .json()
            .pop()
            .unwrap()
    };
    assert_eq!(backup(&["--dry-run"])["entries"], backup(&[])["entries"]);
}

#[test]
fn patterns_for_directories_hold_where_directories_do_not_say_what_is_one() {
    let dir = temp();
    let (image, tree) = (dir.path().join("image"), dir.path().join("t"));
    fs::create_dir(&tree).unwrap();
    let ext2 = "truncate -s 1M \"$1\" && mke2fs -q -t ext2 -O ^filetype \"$1\" && mount -o loop \"$1\" \"$2\"";
    let Some(_ext2) = mount_by(ext2, &[&image, &tree]) else {
        return;
    };
    files(&tree, &["a/target/x", "b/target", "c/keep/y", "c/z"]);
    let all = [
        "a",
        "b",
        "b/target",
        "c",
        "c/keep",
        "c/keep/y",
        "lost+found",
    ];
    assert_eq!(
        stored(
            &tree,
            &[
                "--exclude",
                "target/",
                "--exclude",
                "/c/*",
                "--exclude",
                "!/c/keep/"
            ]
        ),
        all
    );
}

#[test]
fn times_that_the_file_system_cannot_keep_are_noted() {
    let dir = temp();
    let (image, tree, target) = (
        dir.path().join("image"),
        dir.path().join("t"),
        dir.path().join("target"),
    );
    fs::create_dir(&target).unwrap();
    let ext3 =
        "truncate -s 8M \"$1\" && mke2fs -q -t ext3 -I 128 \"$1\" && mount -o loop \"$1\" \"$2\"";
    let Some(_ext3) = mount_by(ext3, &[&image, &target]) else {
        return;
    };
    files(&tree, &["d/whole", "d/fine", "d/late"]);
    std::os::unix::fs::symlink("whole", tree.join("link")).unwrap();
    let times = "touch -d @1000000000 \"$1\"/d/whole && touch -d @1000000000.5 \"$1\"/d/fine && touch -hd @7.25 \"$1\"/link \
                 && touch -d @4102444800 \"$1\"/d/late && touch -d @1000000000.5 \"$1\"/d && touch -d @1000000000 \"$1\"";
    shell(times, args![tree]).ends_with(0);
    let destination = dir.path().join("x.tar.zst");
    fullbore(args!["backup", tree, "--to", destination]).ends_with(0);
    let restored = |to_dir: &Path, more: &[&str]| {
        let args = args!["restore", destination, "--to", to_dir, "--json"];
        fullbore(args.into_iter().chain(runs::args(more)))
            .ends_with(0)
            .json()
            .pop()
            .unwrap()["notes"]
            .clone()
    };
    let note =
        "exact time not restored (the file system cannot store it): 4 entries, the first is \"d\"";
    let there = target.join("r");
    assert_eq!(restored(&there, &[]), serde_json::json!([note]));
    assert_eq!(restored(&there, &["--delta"]), serde_json::json!([note]));
    assert_eq!(restored(&dir.path().join("r"), &[]), serde_json::json!([]));
}

#[test]
fn what_the_file_system_compresses_needs_less_room_than_it_is_long() {
    let dir = temp();
    let (image, tree, target) = (
        dir.path().join("image"),
        dir.path().join("t"),
        dir.path().join("target"),
    );
    fs::create_dir(&target).unwrap();
    let btrfs = "truncate -s 256M \"$1\" && mkfs.btrfs -q \"$1\" && mount -o loop,compress=zstd \"$1\" \"$2\"";
    let Some(_btrfs) = mount_by(btrfs, &[&image, &target]) else {
        return;
    };
    runs::write(tree.join("large"), runs::text(1, 1000).repeat(300_000));
    let destination = dir.path().join("r");
    fullbore(args!["backup", tree, "--to", destination]).ends_with(0);
    for more in [&[][..], &["--overwrite=all"], &["--delta"]] {
        let args = args![
            "restore",
            destination,
            "--to",
            target.join("back"),
            "--quiet"
        ];
        fullbore(args.into_iter().chain(runs::args(more))).ends_with(0);
        assert!(
            fs::read(target.join("back/large")).unwrap() == fs::read(tree.join("large")).unwrap()
        );
        let room = rustix::fs::statvfs(&target).unwrap();
        let used = (room.f_blocks - room.f_bfree) * room.f_frsize;
        assert!(used < 100_000_000, "{more:?}: {used}");
    }
}

#[test]
fn what_ext4_keeps_for_root_is_roots_to_use() {
    let dir = temp();
    let (image, tree, target) = (
        dir.path().join("image"),
        dir.path().join("t"),
        dir.path().join("target"),
    );
    fs::create_dir(&target).unwrap();
    let ext4 =
        "truncate -s 32M \"$1\" && mke2fs -q -t ext4 -m 40 \"$1\" && mount -o loop \"$1\" \"$2\"";
    let Some(_ext4) = mount_by(ext4, &[&image, &target]) else {
        return;
    };
    let room = rustix::fs::statvfs(&target).unwrap();
    let [free, to_all] = [room.f_bfree, room.f_bavail].map(|blocks| blocks * room.f_frsize);
    assert!(to_all < 20_000_000 && free > 22_000_000, "{free} {to_all}");
    runs::write(tree.join("large"), runs::noise(1, 21_000_000));
    let destination = dir.path().join("r");
    fullbore(args!["backup", tree, "--to", destination]).ends_with(0);
    fullbore(args!["restore", destination, "--to", target.join("back")]).ends_with(0);
}

#[test]
fn a_mount_that_cannot_be_entered_is_named_and_the_rest_is_stored() {
    let dir = temp();
    let tree = dir.path().join("t");
    files(&tree, &["a", "z"]);
    if !or_skip(is_root() && has("setpriv"), "not root, or no setpriv") {
        return;
    }
    let Some(_closed) = mount_by(
        "mkdir \"$1\" && mount -t tmpfs -o mode=700 none \"$1\"",
        &[&tree.join("m")],
    ) else {
        return;
    };
    set_mode(dir.path(), 0o755);
    let line = "exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all \"$@\"";
    let program = OsString::from(env!("CARGO_BIN_EXE_fullbore"));
    let target = dir.path().join("to");
    fs::create_dir(&target).unwrap();
    set_mode(&target, 0o777);
    for target in [target.join("r"), target.join("x.tar.zst")] {
        let all = std::iter::once(program.clone()).chain(args!["backup", tree, "--to", target]);
        let ran = shell(line, all).ends_with(3);
        assert!(ran.err.contains("not captured: \"m\""), "{}", ran.err);
        let listed = fullbore(args!["list", format!("{}@latest", target.display())]);
        assert!(
            listed.out.contains(" a\n") && listed.out.contains(" z\n"),
            "{}{}",
            listed.out,
            listed.err
        );
    }
}

/// Its times are those that were given to it, and say nothing of what is in it.
#[test]
fn an_image_that_was_exchanged_is_read_again() {
    if !or_skip(has("mksquashfs"), "there is no mksquashfs") {
        return;
    }
    let dir = temp();
    let (made, tree, repository) = (
        dir.path().join("made"),
        dir.path().join("tree"),
        dir.path().join("repository"),
    );
    let image = |content: &str| {
        files(&made, &["a"]);
        runs::write(made.join("a"), content);
        let path = dir.path().join(content);
        shell(
            "mksquashfs \"$1\" \"$2\" -all-time 0 -mkfs-time 0 -quiet >&2",
            args![made, path],
        )
        .ends_with(0);
        path
    };
    fs::create_dir_all(tree.join("m")).unwrap();
    for content in ["1", "2"] {
        let line = "mount -o loop,ro \"$1\" \"$2\"";
        let Some(_image) = mount_by(line, &[&image(content), &tree.join("m")]) else {
            return;
        };
        fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
        let target = dir.path().join(format!("to {content}"));
        fullbore(args!["restore", repository, "--to", target]).ends_with(0);
        assert_eq!(fs::read_to_string(target.join("m/a")).unwrap(), content);
    }
}
