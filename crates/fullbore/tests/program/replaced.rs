//! Files of a target that a restore deletes, replaces or keeps, and when it refuses before its first change.

use crate::runs::{Ran, fullbore, names, set_mtime, shape, temp, write};
use std::{ffi::OsString, fs, path::Path};

fn some_files(dir: &Path, number: usize) {
    for number in 0..number {
        write(dir.join(format!("same{number}")), "same");
    }
}

fn backup(tree: &Path, repository: &Path, options: &[&str]) {
    let args = args!["backup", tree, "--to", repository, "-q"];
    fullbore(args.into_iter().chain(options.iter().map(OsString::from))).ends_with(0);
}

fn restore(repository: &Path, to: &Path, options: &[&str]) -> Ran {
    let args = args!["restore", repository, "--to", to];
    fullbore(args.into_iter().chain(options.iter().map(OsString::from)))
}

#[test]
fn a_mirror_never_deletes_what_is_excluded() {
    let dir = temp();
    let inside = |name: &str| dir.path().join(name);
    some_files(&inside("tree"), 10);
    write(inside("tree/d/kept"), "");
    backup(&inside("tree"), &inside("repo"), &[]);
    restore(&inside("repo"), &inside("to"), &[]).ends_with(0);
    let make = || {
        for path in ["top.tmp", "d/in.tmp", "extra/in.tmp", "extra/deep/er.tmp"] {
            write(inside("to").join(path), "");
        }
        write(inside("to/extra/other"), "");
    };
    make();
    let mirror = ["--mirror", "--exclude", "*.tmp"];
    restore(&inside("repo"), &inside("to"), &mirror).ends_with(0);
    for path in ["top.tmp", "d/in.tmp", "extra/in.tmp", "extra/deep/er.tmp"] {
        assert!(inside("to").join(path).exists(), "{path}");
    }
    assert!(!inside("to/extra/other").exists());
    // A directory in the way of a file.
    fs::remove_file(inside("to/same3")).unwrap();
    write(inside("to/same3/in.tmp"), "");
    write(inside("to/new"), "");
    let before = shape(&inside("to"));
    restore(&inside("repo"), &inside("to"), &mirror)
        .ends_with(1)
        .has_one_error("a directory is in the way");
    assert_eq!(shape(&inside("to")), before);
    fs::remove_dir_all(inside("to/same3")).unwrap();
    // The backup leaves it out by itself.
    backup(&inside("tree"), &inside("partial"), &["--exclude", "*.tmp"]);
    make();
    restore(&inside("partial"), &inside("to"), &["--mirror"]).ends_with(0);
    assert!(inside("to/top.tmp").exists() && inside("to/extra/deep/er.tmp").exists());
    assert!(!inside("to/extra/other").exists());
    restore(
        &inside("partial"),
        &inside("to"),
        &["--mirror", "--delete-excluded"],
    )
    .ends_with(0);
    assert!(!inside("to/top.tmp").exists() && !inside("to/extra").exists());
    restore(&inside("partial"), &inside("to"), &["--delete-excluded"])
        .ends_with(2)
        .has_one_error("nothing is deleted");
}

#[test]
fn a_backup_of_a_part_is_not_mirrored_unless_that_is_said() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    some_files(&path("tree"), 4);
    write(path("list"), "same0\nsame1\nsame2\n");
    let list = format!("--files-from={}", path("list").display());
    for (name, option) in [
        ("listed", &*list),
        ("marked", "--exclude-if-present=.nobackup"),
    ] {
        backup(&path("tree"), &path(name), &[option]);
        let before = shape(&path("tree"));
        let refused = restore(&path(name), &path("tree"), &["--mirror"]).ends_with(2);
        let refused = refused.has_one_error("it has only a part of its source");
        assert!(refused.err.contains("--delete-excluded"), "{}", refused.err);
        restore(&path(name), &path("tree"), &["--delta"]).ends_with(0);
        assert_eq!(names(&path("tree")).len(), 4);
        assert_eq!(shape(&path("tree")), before);
    }
    let deleting = ["--mirror", "--delete-excluded"];
    restore(&path("listed"), &path("tree"), &deleting).ends_with(0);
    assert_eq!(names(&path("tree")), ["same0", "same1", "same2"]);
}

#[test]
fn a_mirror_that_would_delete_most_of_its_target_is_refused_before_its_first_change() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    some_files(&path("tree"), 3);
    backup(&path("tree"), &path("repo"), &[]);
    write(path("photos/same0"), "other");
    for number in 0..6 {
        write(path(&format!("photos/2025/{number}")), "photo");
    }
    let before = shape(&path("photos"));
    let refused = restore(&path("repo"), &path("photos"), &["--mirror"]).ends_with(2);
    let refused = refused.has_one_error("cannot delete 7 of the 8 files and directories");
    assert!(refused.err.contains("--max-delete 7"), "{}", refused.err);
    assert_eq!(refused.out, "");
    let planned = restore(&path("repo"), &path("photos"), &["--mirror", "-n"]).ends_with(0);
    assert!(planned.out.contains("- 2025\n"), "{}", planned.out);
    assert!(
        planned.err.contains("cannot delete 7 of the 8"),
        "{}",
        planned.err
    );
    restore(
        &path("repo"),
        &path("photos"),
        &["--mirror", "--max-delete", "6"],
    )
    .ends_with(2);
    assert_eq!(shape(&path("photos")), before);
    restore(
        &path("repo"),
        &path("photos"),
        &["--mirror", "--max-delete", "7"],
    )
    .ends_with(0);
    assert_eq!(names(&path("photos")), ["same0", "same1", "same2"]);
}

#[test]
fn single_paths_go_into_a_directory_that_holds_other_files() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    write(path("tree/docs/a"), "old a");
    write(path("tree/docs/b"), "old b");
    backup(&path("tree"), &path("repo"), &[]);
    write(path("tree/docs/b"), "new b");
    fs::remove_file(path("tree/docs/a")).unwrap();
    let whole = restore(&path("repo"), &path("tree"), &[]).ends_with(1);
    assert!(whole.err.contains("name the PATHs"), "{}", whole.err);
    restore(&path("repo"), &path("tree"), &["docs/a"]).ends_with(0);
    assert_eq!(fs::read(path("tree/docs/a")).unwrap(), b"old a");
    assert_eq!(fs::read(path("tree/docs/b")).unwrap(), b"new b");
    let refused = restore(&path("repo"), &path("tree"), &["docs"]).ends_with(1);
    let refused = refused.has_one_error("\"docs/a\" is there");
    assert!(refused.err.contains("replaces 2 files"), "{}", refused.err);
}

#[test]
fn newer_files_are_kept_unless_all_are_to_be_replaced() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    for name in ["older", "newer", "gone"] {
        write(path("tree").join(name), "of the backup");
    }
    let large = vec![7; 9 << 20];
    fs::write(path("tree/large"), &large).unwrap();
    for name in ["older", "newer", "gone", "large"] {
        set_mtime(&path("tree").join(name), 1_700_000_000, 5);
    }
    backup(&path("tree"), &path("repo"), &[]);
    write(path("tree/newer"), "today's");
    write(path("tree/older"), "of before");
    set_mtime(&path("tree/older"), 1_600_000_000, 0);
    fs::write(path("tree/large"), "today's").unwrap();
    fs::remove_file(path("tree/gone")).unwrap();
    let read = |name: &str| fs::read_to_string(path("tree").join(name)).unwrap();
    let ran = restore(&path("repo"), &path("tree"), &["--overwrite"]).ends_with(0);
    let said = format!("{}{}", ran.out, ran.err);
    assert!(
        said.contains("2 files of the target kept, newer than in the backup"),
        "{said}"
    );
    assert!(said.contains("--overwrite=all"), "{said}");
    assert!(said.contains(", but for 2 newer files there"), "{said}");
    assert_eq!((&*read("newer"), &*read("large")), ("today's", "today's"));
    assert_eq!(
        (&*read("older"), &*read("gone")),
        ("of the backup", "of the backup")
    );
    restore(&path("repo"), &path("tree"), &["--overwrite=all"]).ends_with(0);
    assert_eq!(read("newer"), "of the backup");
    assert!(fs::read(path("tree/large")).unwrap() == large);
}

#[test]
fn a_pattern_that_takes_nothing_back_is_told() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    write(path("tree/d/keep"), "");
    write(path("tree/other"), "");
    let idle = "takes nothing back";
    let target = path("repo");
    let rules = ["--exclude=/d/", "--exclude=!/d/keep"];
    let ran = fullbore(args![
        "backup",
        path("tree"),
        "--to",
        target,
        rules[0],
        rules[1]
    ]);
    assert!(
        ran.err.contains(idle) && !ran.err.contains("matched nothing"),
        "{}",
        ran.err
    );
    let copied = fullbore(args![
        "copy",
        path("tree"),
        path("copied"),
        "--exclude",
        "/d/",
        "--include",
        "/d/keep"
    ]);
    assert!(copied.ends_with(0).err.contains(idle));
    let good = fullbore(args![
        "copy",
        path("tree"),
        path("good"),
        "--exclude",
        "/d/*",
        "--include",
        "/d/keep"
    ]);
    assert!(!good.ends_with(0).err.contains(idle) && path("good/d/keep").exists());
    backup(&path("tree"), &path("whole"), &[]);
    let rules = ["--exclude", "/d/", "--include", "/d/keep"];
    restore(&path("whole"), &path("restored"), &rules)
        .ends_with(2)
        .has_one_error("--exclude leaves out all of it");
    assert!(!path("restored").exists());
}

#[test]
fn a_mirror_keeps_the_caches_that_the_backup_left_out() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    some_files(&path("tree"), 4);
    write(path("tree/cache/deep/x"), "made again");
    let tag = "Signature: 8a477f597d28d172789f06886806bc55";
    write(path("tree/cache/CACHEDIR.TAG"), tag);
    write(path("tree/full/y"), "kept");
    backup(&path("tree"), &path("repo"), &[]);
    write(path("tree/extra"), "goes");
    write(path("tree/full/extra"), "goes");
    restore(&path("repo"), &path("tree"), &["--mirror"]).ends_with(0);
    assert!(path("tree/cache/deep/x").exists() && path("tree/full/y").exists());
    assert!(!path("tree/extra").exists() && !path("tree/full/extra").exists());
    let deleting = ["--mirror", "--delete-excluded"];
    restore(&path("repo"), &path("tree"), &deleting).ends_with(0);
    assert_eq!(names(&path("tree/cache")), ["CACHEDIR.TAG"]);
    assert!(path("tree/full/y").exists());
}
