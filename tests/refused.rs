//! What the target cannot take is left out and named; the rest is restored.

#![allow(missing_docs)]

mod runs;

use runs::{Ran, fullbore, has, make_fifo, noise, or_skip, set_mode, set_mtime, tampered, temp, text, write};
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
    tampered(inject, only, restore.into_iter().chain(more.iter().map(OsString::from)))
}

/// What should have been there is, with what the second pass does; each of `missing` is not there, and named.
#[track_caller]
fn assert_rest(ran: Ran, tree: &Path, to: &Path, missing: &[&str], case: &str) {
    let ran = ran.ends_with(1).has_one_error("left out; the rest of the backup is restored");
    assert!(!ran.err.contains("--overwrite"), "{case}: {}", ran.err);
    let all = ["d/small", "d/small too", "d/empty", "d/large", "z", "z too", "link", "pipe", "d"];
    for name in all {
        let is_there = to.join(name).symlink_metadata().is_ok();
        let is_missing = missing.contains(&name);
        assert_eq!(is_there, !is_missing, "{case}: {name}\n{}", ran.err);
        assert_eq!(ran.err.contains(&format!("{name}\"")), is_missing, "{case}: {name}\n{}", ran.err);
    }
    for name in ["d/small", "d/large", "z too"].into_iter().filter(|name| !missing.contains(name)) {
        assert!(fs::read(to.join(name)).unwrap() == fs::read(tree.join(name)).unwrap(), "{case}: {name}");
    }
    if !missing.contains(&"d") {
        let found = fs::metadata(to.join("d")).unwrap();
        assert_eq!((found.mode() & 0o7777, found.mtime()), (0o750, 1_000_000_000), "{case}");
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
        ("mkdirat:error=ENAMETOOLONG", &["d", "d/small", "d/small too", "d/empty", "d/large"]),
        ("fallocate,pwrite64:error=EFBIG", &["d/small", "d/small too", "d/large", "z", "z too"]),
        ("utimensat:error=EINVAL", &files),
    ] {
        for more in [&[][..], &["--keep-going"], &["--overwrite"], &["--delta"]] {
            let to = dir.path().join("to");
            let case = format!("{inject} {more:?}");
            fs::create_dir(&to).unwrap();
            let ran = restored(inject, None, &repository, &to, more);
            if inject.starts_with("utimensat") {
                // So has everything else but what stands for itself.
                let ran = ran.ends_with(1).has_one_error("left out; the rest of the backup is restored");
                assert!(ran.err.contains("d/small") && ran.err.contains("z too"), "{case}: {}", ran.err);
                files.iter().for_each(|name| assert!(!to.join(name).exists(), "{case}: {name}"));
            } else {
                assert_rest(ran, &tree, &to, missing, &case);
            }
            fs::remove_dir_all(&to).unwrap();
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
    for inject in ["symlinkat:error=ENOSPC", "mknodat:error=EROFS", "pwrite64:error=EIO", "linkat:error=EMFILE"] {
        for more in [&[][..], &["--keep-going"], &["--delta"]] {
            let to = dir.path().join("to");
            let ran = restored(inject, None, &repository, &to, more).ends_with(1);
            assert!(!ran.err.contains("left out"), "{inject} {more:?}: {}", ran.err);
            fs::remove_dir_all(&to).unwrap();
        }
    }
}
