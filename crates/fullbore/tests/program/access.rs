//! Modes, owners and access lists are those of the backup, whatever the target was like before.

use crate::runs;
use crate::runs::{
    Mount, assert_same, fullbore, has, is_root, noise, or_skip, set_mode, set_mtime, set_xattr,
    shape, shell, tampered, temp, write,
};
use std::{
    fs,
    os::unix::fs::{MetadataExt, chown, symlink},
    path::Path,
};

const DELTA: &[&str] = &["--delta"];
const OVER: &[&str] = &["--overwrite=all"];

fn backup(tree: &Path, to: &Path) {
    fullbore(args!["backup", tree, "--to", to, "-q"]).ends_with(0);
}

#[track_caller]
fn restore(from: &Path, to: &Path, more: &[&str]) {
    let more = more.iter().map(std::ffi::OsString::from);
    fullbore(
        args!["restore", from, "--to", to, "-q"]
            .into_iter()
            .chain(more),
    )
    .ends_with(0);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Modes that a list or a mask would change, with a link and a private file in front of them.
fn modes(tree: &Path) {
    write(tree.join(".key"), "private");
    for (name, bits) in [
        ("b.txt", 0o664),
        ("c.sh", 0o755),
        ("d/e", 0o644),
        ("large", 0o666),
        (".key", 0o600),
    ] {
        write(
            tree.join(name),
            noise(1, if name == "large" { 5 << 20 } else { 100 }),
        );
        set_mode(&tree.join(name), bits);
    }
    symlink("b.txt", tree.join(".a link")).unwrap();
    runs::make_fifo(&tree.join("fifo"));
    set_mode(&tree.join("fifo"), 0o666);
    set_mode(&tree.join("d"), 0o775);
}

/// What is made in `dir` gets this access list.
fn inherits(dir: &Path, list: &str) -> bool {
    fs::create_dir_all(dir).unwrap();
    let ran = shell(
        "find \"$2\" -type d -exec setfacl -d -m \"$1\" {} +",
        args![list, dir],
    );
    or_skip(ran.code == 0, "no access lists here")
}

#[test]
fn setuid_and_setgid_survive_a_restore_in_place() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    for (name, bits, len) in [("sgid", 0o2755, 100), ("suid", 0o4755, 5 << 20)] {
        write(path("tree").join(name), noise(1, len));
        set_mode(&path("tree").join(name), bits);
    }
    backup(&path("tree"), &path("repo"));
    restore(&path("repo"), &path("to"), &[]);
    set_mtime(&path("to/sgid"), 1, 2);
    let mut content = noise(1, 5 << 20);
    content[3 << 20] ^= 1;
    fs::write(path("to/suid"), content).unwrap();
    set_mode(&path("to/suid"), 0o4755);
    restore(&path("repo"), &path("to"), DELTA);
    assert_same(&shape(&path("tree")), &shape(&path("to")), "setuid");
}

#[test]
fn a_default_access_list_of_the_target_changes_no_mode_and_leaves_no_list() {
    for list in ["u::rwx,g::r-x,o::---", "u:1234:rwx,g::r-x,o::---"] {
        let dir = temp();
        let path = |name: &str| dir.path().join(name);
        modes(&path("tree"));
        backup(&path("tree"), &path("repo"));
        if !inherits(&path("to"), list) {
            return;
        }
        restore(&path("repo"), &path("to"), &[]);
        assert_same(&shape(&path("tree")), &shape(&path("to")), list);
        for (way, how) in [DELTA, OVER].into_iter().enumerate() {
            inherits(&path("to"), list);
            fs::remove_file(path("to/b.txt")).unwrap();
            fs::remove_dir_all(path("to/d")).unwrap();
            write(path("to/large"), "shorter");
            restore(&path("repo"), &path("to"), how);
            assert_same(
                &shape(&path("tree")),
                &shape(&path("to")),
                &format!("{list} {way}"),
            );
        }
    }
}

#[test]
fn a_default_access_list_changes_no_mode_of_a_foreign_tar() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    modes(&path("tree"));
    shell(
        "tar -C \"$1\" -cf \"$2\" '.a link' .key b.txt c.sh d fifo large",
        args![path("tree"), path("x.tar")],
    )
    .ends_with(0);
    if !inherits(&path("to"), "u:1234:rwx,g::r-x,o::---") {
        return;
    }
    restore(&path("x.tar"), &path("to"), &[]);
    let (mut before, mut after) = (shape(&path("tree")), shape(&path("to")));
    for shape in [&mut before, &mut after] {
        shape.remove(&b""[..]); // no member describes it
        shape.values_mut().for_each(|node| node.mtime.1 = 0); // a tar of this kind has whole seconds
    }
    assert_same(&before, &after, "tar");
}

/// The access list of a directory, as text.
fn list_of(dir: &Path) -> String {
    shell("getfacl -cnp \"$1\"", args![dir]).ends_with(0).out
}

#[test]
fn directories_that_a_backup_does_not_go_into_have_their_access_lists() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    let tree = path("tree");
    write(tree.join("d/e/f"), "x");
    ["empty", "m", "r"]
        .iter()
        .for_each(|name| fs::create_dir(tree.join(name)).unwrap());
    let mount = Mount::tmpfs(&tree.join("m"), "8m");
    let ran = shell(
        "cd \"$1\" && setfacl -m u:1234:rwx . d d/e empty m r",
        args![tree],
    );
    if !or_skip(ran.code == 0, "no access lists here") {
        return;
    }
    fs::write(path("list"), "d/e/f\nempty\n").unwrap();
    let (list, whole) = (
        args!["--files-from", path("list")],
        args![tree.join("d/e"), "--full-paths"],
    );
    fullbore(
        args!["backup", tree, "--to", path("by list"), "-q"]
            .into_iter()
            .chain(list),
    )
    .ends_with(0);
    fullbore(
        args!["backup", "--to", path("whole"), "-q"]
            .into_iter()
            .chain(whole),
    )
    .ends_with(0);
    fullbore(args!["backup", tree, "-x", "--to", tree.join("r"), "-q"]).ends_with(0);
    let below = tree.strip_prefix("/").unwrap();
    for (source, below, dirs) in [
        (
            path("by list"),
            Path::new(""),
            &["", "d", "d/e", "empty"][..],
        ),
        (path("whole"), below, &["", "d", "d/e"]),
        (
            tree.join("r"),
            Path::new(""),
            if mount.is_some() {
                &["r", "m", "d"]
            } else {
                &["r", "d"]
            },
        ),
    ] {
        let target = path("to");
        restore(&source, &target, &[]);
        for dir in dirs {
            assert_eq!(
                list_of(&tree.join(dir)),
                list_of(&target.join(below).join(dir)),
                "{dir} of {source:?}"
            );
        }
        fs::remove_dir_all(target).unwrap();
    }
}

#[test]
fn attributes_that_a_directory_did_not_have_are_taken_off_it() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    write(path("tree/d/f"), "x");
    backup(&path("tree"), &path("repo"));
    restore(&path("repo"), &path("to"), &[]);
    if or_skip(
        set_xattr(&path("to/d"), "user.mine", b"1"),
        "no attributes here",
    ) {
        restore(&path("repo"), &path("to"), DELTA);
        assert_same(&shape(&path("tree")), &shape(&path("to")), "attribute");
    }
}
#[test]
fn directories_above_what_was_asked_for_stay_as_they_are() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    write(path("tree/sub/one"), "one");
    write(path("tree/sub/two"), "two");
    [("tree", 0o700), ("tree/sub", 0o711)]
        .iter()
        .for_each(|(name, bits)| set_mode(&path(name), *bits));
    backup(&path("tree"), &path("repo"));
    shell(
        "tar -C \"$1\" -cf \"$2\" .",
        args![path("tree"), path("x.tar")],
    )
    .ends_with(0);
    for (source, how) in [("repo", OVER), ("repo", DELTA), ("x.tar", OVER)] {
        let destination = path("to");
        write(destination.join("keep"), "mine");
        set_mode(&destination, 0o1777);
        if is_root() {
            chown(&destination, Some(1234), Some(1234)).unwrap();
        }
        let before = fs::metadata(&destination).unwrap();
        restore(&path(source), &destination, &[how, &["sub/one"]].concat());
        let after = fs::metadata(&destination).unwrap();
        assert_eq!(
            (after.mode(), after.uid()),
            (before.mode(), before.uid()),
            "{source}"
        );
        assert_eq!(
            mode(&destination.join("sub")),
            0o711,
            "{source}: this run made it"
        );
        set_mode(&destination.join("sub"), 0o755);
        restore(&path(source), &destination, &[how, &["sub/one"]].concat());
        assert_eq!(
            mode(&destination.join("sub")),
            0o755,
            "{source}: it was there"
        );
        restore(&path(source), &destination, &[how, &["sub"]].concat());
        assert_eq!(
            mode(&destination.join("sub")),
            0o711,
            "{source}: it was asked for"
        );
        fs::remove_dir_all(destination).unwrap();
    }
    for how in [&[][..], OVER] {
        fs::create_dir(path("empty")).unwrap();
        restore(&path("repo"), &path("empty"), &[how, &["sub/one"]].concat());
        assert_eq!(
            mode(&path("empty")),
            0o700,
            "an empty target is as good as one that was made"
        );
        fs::remove_dir_all(path("empty")).unwrap();
    }
}

#[test]
fn attributes_of_a_directory_that_cannot_be_read_keep_nothing_in_it_from_being_stored() {
    if !or_skip(has("strace"), "strace") {
        return;
    }
    let dir = temp();
    let (tree, repo, target) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("to"),
    );
    write(tree.join("d/below/f"), b"content");
    write(tree.join("e"), b"beside");
    let backup = args!["backup", &tree, "--to", &repo];
    let ran = tampered("flistxattr:error=E2BIG", Some(&tree.join("d")), backup).ends_with(3);
    assert!(
        ran.err.contains("\"d\": its attributes could not be read"),
        "{}",
        ran.err
    );
    fullbore(args!["restore", &repo, "--to", &target, "--quiet"]).ends_with(3);
    assert_eq!(fs::read(target.join("d/below/f")).unwrap(), b"content");
    assert_eq!(fs::read(target.join("e")).unwrap(), b"beside");
}
