//! What the target cannot take is left out and named; the rest is restored.

use crate::runs;
use crate::runs::{
    Mount, Ran, fullbore, has, is_root, make_fifo, noise, or_skip, set_mode, set_mtime, shell,
    tampered, temp, text, write,
};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A tree with a bit of everything, and its backup.
fn backup(dir: &Path) -> PathBuf {
    let (tree, repository) = (dir.join("tree"), dir.join("repository"));
    write(tree.join("d/small"), text(1, 3000));
    write(tree.join("d/empty"), "");
    write(tree.join("d/large"), noise(2, 9_000_000));
    write(tree.join("z"), "the last one");
    fs::hard_link(tree.join("d/small"), tree.join("d/small too")).unwrap();
    fs::hard_link(tree.join("z"), tree.join("z too")).unwrap();
    std::os::unix::fs::symlink("z", tree.join("link")).unwrap();
    make_fifo(&tree.join("pipe"));
    set_mode(&tree.join("d"), 0o750);
    set_mtime(&tree.join("d"), 1_000_000_000, 0);
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    repository
}

fn restored(inject: &str, only: Option<&Path>, repository: &Path, to: &Path, more: &[&str]) -> Ran {
    let restore = args!["restore", repository, "--to", to, "--workers", "4"];
    tampered(
        inject,
        only,
        restore.into_iter().chain(more.iter().map(OsString::from)),
    )
}

/// What should have been there is, with what the second pass does; each of `missing` is not there, and named.
#[track_caller]
fn assert_rest(ran: Ran, tree: &Path, to: &Path, missing: &[&str], case: &str) {
    let ran = ran
        .ends_with(1)
        .has_one_error("skipped; the rest of the backup is restored");
    assert!(!ran.err.contains("--overwrite"), "{case}: {}", ran.err);
    let all = [
        "d/small",
        "d/small too",
        "d/empty",
        "d/large",
        "z",
        "z too",
        "link",
        "pipe",
        "d",
    ];
    for name in all {
        let is_there = to.join(name).symlink_metadata().is_ok();
        let is_missing = missing.contains(&name);
        assert_eq!(is_there, !is_missing, "{case}: {name}\n{}", ran.err);
        assert_eq!(
            ran.err.contains(&format!("{name}\"")),
            is_missing,
            "{case}: {name}\n{}",
            ran.err
        );
    }
    for name in ["d/small", "d/large", "z too"]
        .into_iter()
        .filter(|name| !missing.contains(name))
    {
        assert!(
            fs::read(to.join(name)).unwrap() == fs::read(tree.join(name)).unwrap(),
            "{case}: {name}"
        );
    }
    if !missing.contains(&"d") {
        let found = fs::metadata(to.join("d")).unwrap();
        assert_eq!(
            (found.mode() & 0o7777, found.mtime()),
            (0o750, 1_000_000_000),
            "{case}"
        );
    }
}

#[test]
fn an_entry_that_the_target_cannot_take_does_not_end_the_restore() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), backup(dir.path()));
    let files = ["d/small", "d/small too", "d/empty", "d/large", "z", "z too"];
    for (inject, missing) in [
        ("symlinkat:error=ENOSYS", &["link"][..]),
        ("mknodat:error=EPERM", &["pipe"]),
        ("linkat:error=EPERM", &["d/small too", "z too"]),
        (
            "mkdirat:error=ENAMETOOLONG",
            &["d", "d/small", "d/small too", "d/empty", "d/large"],
        ),
        (
            "fallocate,pwrite64:error=EFBIG",
            &["d/small", "d/small too", "d/large", "z", "z too"],
        ),
        ("utimensat:error=EINVAL", &files),
    ] {
        for more in [
            &[][..],
            &["--keep-going"],
            &["--overwrite=all"],
            &["--delta"],
        ] {
            let target = dir.path().join("to");
            let case = format!("{inject} {more:?}");
            fs::create_dir(&target).unwrap();
            let ran = restored(inject, None, &repository, &target, more);
            if inject.starts_with("utimensat") {
                // So has everything else but what stands for itself.
                let ran = ran
                    .ends_with(1)
                    .has_one_error("skipped; the rest of the backup is restored");
                assert!(
                    ran.err.contains("d/small") && ran.err.contains("z too"),
                    "{case}: {}",
                    ran.err
                );
                files
                    .iter()
                    .for_each(|name| assert!(!target.join(name).exists(), "{case}: {name}"));
            } else {
                assert_rest(ran, &tree, &target, missing, &case);
            }
            fs::remove_dir_all(&target).unwrap();
        }
    }
}

#[test]
fn what_no_entry_would_escape_ends_the_restore_at_once() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let repository = backup(dir.path());
    for inject in [
        "symlinkat:error=ENOSPC",
        "mknodat:error=EROFS",
        "pwrite64:error=EIO",
        "linkat:error=EMFILE",
    ] {
        for more in [&[][..], &["--keep-going"], &["--delta"]] {
            let target = dir.path().join("to");
            let ran = restored(inject, None, &repository, &target, more).ends_with(1);
            assert!(
                !ran.err.contains("left out"),
                "{inject} {more:?}: {}",
                ran.err
            );
            fs::remove_dir_all(&target).unwrap();
        }
    }
}

/// A place that takes names of another case for the same, if one can be mounted here.
fn folding(dir: &Path) -> Option<Mount> {
    let (image, path) = (dir.join("image"), dir.join("m"));
    fs::create_dir(&path).unwrap();
    let line =
        "truncate -s 64M \"$1\" && mkntfs -F -q \"$1\" && lowntfs-3g -o ignore_case \"$1\" \"$2\"";
    let is_mounted = is_root() && shell(line, args![image, path]).code == 0;
    or_skip(is_mounted, "nothing that ignores case can be mounted").then(|| Mount::at(&path))
}

#[test]
fn names_that_the_target_takes_for_one_never_replace_each_other() {
    let dir = temp();
    let Some(_mount) = folding(dir.path()) else {
        return;
    };
    let (tree, repository, archive) = (
        dir.path().join("tree"),
        dir.path().join("r"),
        dir.path().join("a.tar.zst"),
    );
    for [name, other] in [
        ["Case", "case"],
        ["D/f", "d/g"],
        ["Large", "large"],
        ["one/X", "one/x"],
    ] {
        write(tree.join(name), noise(1, 3_000_000));
        write(tree.join(other), noise(2, 3_000_000));
    }
    for name in ["a", "b", "c"] {
        write(tree.join(name), name);
    }
    fs::hard_link(tree.join("case"), tree.join("zero")).unwrap();
    fs::hard_link(tree.join("Case"), tree.join("zeta")).unwrap();
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    fullbore(args!["backup", tree, "--to", archive, "--compress", "none"]).ends_with(0);
    let stream = |target: &Path| {
        shell(
            "\"$1\" restore - --to \"$2\" < \"$3\"",
            args![runs::FULLBORE, target, archive],
        )
    };
    let target = dir.path().join("m/to");
    for [before, how] in [
        ["", ""],
        ["", "--overwrite=all"],
        ["", "--delta"],
        ["", "-"],
        ["full", "--overwrite=all"],
        ["full", "--delta"],
        ["stale", "--overwrite=all"],
        ["stale", "--delta"],
    ] {
        if before != "full" {
            let _ = fs::remove_dir_all(&target);
        }
        if before == "stale" {
            ["CASE", "large", "d/F", "one/x"]
                .iter()
                .for_each(|name| write(target.join(name), "stale"));
        }
        let ran = match how {
            "-" => stream(&target),
            _ => fullbore(
                args!["restore", repository, "--to", target]
                    .into_iter()
                    .chain((!how.is_empty()).then(|| how.into())),
            ),
        };
        let case = format!("{before} {how}");
        let ran = ran
            .ends_with(1)
            .has_one_error("its name is the same as that of another file in the backup");
        assert!(!ran.err.contains("--overwrite"), "{case}: {}", ran.err);
        // Of two names the first in the order of the backup is there, whichever that is, and the other is named.
        let mut named = 0;
        for name in [
            "Case", "case", "D/f", "d/g", "Large", "large", "one/X", "one/x", "zero", "zeta",
        ] {
            let is_named = ran.err.contains(&format!("{name}\""));
            named += usize::from(is_named);
            let there = fs::read(target.join(name)).ok();
            assert!(
                is_named || there == fs::read(tree.join(name)).ok(),
                "{case}: {name}\n{}",
                ran.err
            );
        }
        assert!((5..=6).contains(&named), "{case}: {named}\n{}", ran.err);
        ["a", "b", "c"]
            .iter()
            .for_each(|name| assert_eq!(fs::read_to_string(target.join(name)).unwrap(), *name));
    }
}

#[test]
fn a_target_that_ignores_case_takes_what_has_no_such_names_again_and_again() {
    let dir = temp();
    let Some(_mount) = folding(dir.path()) else {
        return;
    };
    let (repository, target) = (dir.path().join("r"), dir.path().join("m/to"));
    let tree = dir.path().join("tree");
    write(tree.join("Dir/File"), "one");
    write(tree.join("Dir/empty"), "");
    fs::hard_link(tree.join("Dir/File"), tree.join("Link")).unwrap();
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    let line = "\"$1\" restore \"$2\" --to \"$3\" $4 && cmp \"$5/Link\" \"$3/Link\" && cmp \"$5/Dir/File\" \"$3/Dir/File\"";
    for how in [
        "",
        "--overwrite=all",
        "--delta",
        "--delta",
        "--overwrite=all",
    ] {
        shell(line, args![runs::FULLBORE, repository, target, how, tree]).ends_with(0);
    }
    // A later member of the same name still replaces an earlier one.
    let line = "cd \"$2\" && tar -cf x.tar -C tree . && echo two > tree/Dir/File && tar -rf x.tar -C tree ./Dir/File && \
        \"$1\" restore x.tar --to m/tar && cmp tree/Dir/File m/tar/Dir/File && rm -r m/tar";
    shell(line, args![runs::FULLBORE, dir.path()]).ends_with(0);
}

#[test]
fn attributes_for_which_there_is_no_room_end_the_restore_and_others_are_noted() {
    if !or_skip(has("strace"), "strace") {
        return;
    }
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("file"), b"content");
    let set = rustix::fs::setxattr(
        tree.join("file"),
        "user.color",
        b"red",
        rustix::fs::XattrFlags::empty(),
    );
    if !or_skip(set.is_ok(), "attributes") {
        return;
    }
    fullbore(args!["backup", tree, "--to", repo, "--quiet"]).ends_with(0);
    // A file system that has room says "no space" of an attribute that is too long for it.
    for (error, code) in [("EDQUOT", 1), ("ENOSPC", 0), ("E2BIG", 0)] {
        let target = dir.path().join(error);
        let restore = args!["restore", repo, "--to", target];
        let ran = tampered(&format!("fsetxattr:error={error}"), None, restore).ends_with(code);
        assert_eq!(
            ran.err.contains("error: could not set an attribute of"),
            code == 1,
            "{}",
            ran.err
        );
        assert_eq!(
            ran.err
                .contains("note: attribute \"user.color\" not restored"),
            code == 0,
            "{}",
            ran.err
        );
    }
}
