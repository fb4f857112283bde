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
    let at = |name: &str| dir.path().join(name);
    some_files(&at("tree"), 10);
    write(at("tree/d/kept"), "");
    backup(&at("tree"), &at("repo"), &[]);
    restore(&at("repo"), &at("to"), &[]).ends_with(0);
    let make = || {
        for path in ["top.tmp", "d/in.tmp", "extra/in.tmp", "extra/deep/er.tmp"] {
            write(at("to").join(path), "");
        }
        write(at("to/extra/other"), "");
    };
    make();
    let mirror = ["--mirror", "--exclude", "*.tmp"];
    restore(&at("repo"), &at("to"), &mirror).ends_with(0);
    for path in ["top.tmp", "d/in.tmp", "extra/in.tmp", "extra/deep/er.tmp"] {
        assert!(at("to").join(path).exists(), "{path}");
    }
    assert!(!at("to/extra/other").exists());
    // A directory in the way of a file.
    fs::remove_file(at("to/same3")).unwrap();
    write(at("to/same3/in.tmp"), "");
    write(at("to/new"), "");
    let before = shape(&at("to"));
    restore(&at("repo"), &at("to"), &mirror)
        .ends_with(1)
        .has_one_error("a directory is in the way");
    assert_eq!(shape(&at("to")), before);
    fs::remove_dir_all(at("to/same3")).unwrap();
    // The backup leaves it out by itself.
    backup(&at("tree"), &at("partial"), &["--exclude", "*.tmp"]);
    make();
    restore(&at("partial"), &at("to"), &["--mirror"]).ends_with(0);
    assert!(at("to/top.tmp").exists() && at("to/extra/deep/er.tmp").exists());
    assert!(!at("to/extra/other").exists());
    restore(
        &at("partial"),
        &at("to"),
        &["--mirror", "--delete-excluded"],
    )
    .ends_with(0);
    assert!(!at("to/top.tmp").exists() && !at("to/extra").exists());
    restore(&at("partial"), &at("to"), &["--delete-excluded"])
        .ends_with(2)
        .has_one_error("nothing is deleted");
}

#[test]
fn a_backup_of_a_part_is_not_mirrored_unless_that_is_said() {
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    some_files(&at("tree"), 4);
    write(at("list"), "same0\nsame1\nsame2\n");
    let list = format!("--files-from={}", at("list").display());
    for (name, option) in [
        ("listed", &*list),
        ("marked", "--exclude-if-present=.nobackup"),
        ("caches", "--exclude-caches"),
    ] {
        backup(&at("tree"), &at(name), &[option]);
        let before = shape(&at("tree"));
        let refused = restore(&at(name), &at("tree"), &["--mirror"]).ends_with(2);
        let refused = refused.has_one_error("it has only a part of its source");
        assert!(refused.err.contains("--delete-excluded"), "{}", refused.err);
        restore(&at(name), &at("tree"), &["--delta"]).ends_with(0);
        assert_eq!(names(&at("tree")).len(), 4);
        assert_eq!(shape(&at("tree")), before);
    }
    let deleting = ["--mirror", "--delete-excluded"];
    restore(&at("listed"), &at("tree"), &deleting).ends_with(0);
    assert_eq!(names(&at("tree")), ["same0", "same1", "same2"]);
}

#[test]
fn a_mirror_that_would_delete_most_of_its_target_is_refused_before_its_first_change() {
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    some_files(&at("tree"), 3);
    backup(&at("tree"), &at("repo"), &[]);
    write(at("photos/same0"), "other");
    for number in 0..6 {
        write(at(&format!("photos/2025/{number}")), "photo");
    }
    let before = shape(&at("photos"));
    let refused = restore(&at("repo"), &at("photos"), &["--mirror"]).ends_with(2);
    let refused = refused.has_one_error("cannot delete 7 of the 8 files and directories");
    assert!(refused.err.contains("--max-delete 7"), "{}", refused.err);
    assert_eq!(refused.out, "");
    let planned = restore(&at("repo"), &at("photos"), &["--mirror", "-n"]).ends_with(0);
    assert!(planned.out.contains("- 2025\n"), "{}", planned.out);
    assert!(
        planned.err.contains("cannot delete 7 of the 8"),
        "{}",
        planned.err
    );
    restore(
        &at("repo"),
        &at("photos"),
        &["--mirror", "--max-delete", "6"],
    )
    .ends_with(2);
    assert_eq!(shape(&at("photos")), before);
    restore(
        &at("repo"),
        &at("photos"),
        &["--mirror", "--max-delete", "7"],
    )
    .ends_with(0);
    assert_eq!(names(&at("photos")), ["same0", "same1", "same2"]);
}

#[test]
fn single_paths_go_into_a_directory_that_holds_other_files() {
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    write(at("tree/docs/a"), "old a");
    write(at("tree/docs/b"), "old b");
    backup(&at("tree"), &at("repo"), &[]);
    write(at("tree/docs/b"), "new b");
    fs::remove_file(at("tree/docs/a")).unwrap();
    let whole = restore(&at("repo"), &at("tree"), &[]).ends_with(1);
    assert!(whole.err.contains("name the PATHs"), "{}", whole.err);
    restore(&at("repo"), &at("tree"), &["docs/a"]).ends_with(0);
    assert_eq!(fs::read(at("tree/docs/a")).unwrap(), b"old a");
    assert_eq!(fs::read(at("tree/docs/b")).unwrap(), b"new b");
    let refused = restore(&at("repo"), &at("tree"), &["docs"]).ends_with(1);
    let refused = refused.has_one_error("\"docs/a\" is there");
    assert!(refused.err.contains("replaces 2 files"), "{}", refused.err);
}

#[test]
fn newer_files_are_kept_unless_all_are_to_be_replaced() {
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    for name in ["older", "newer", "gone"] {
        write(at("tree").join(name), "of the backup");
    }
    let large = vec![7; 9 << 20];
    fs::write(at("tree/large"), &large).unwrap();
    for name in ["older", "newer", "gone", "large"] {
        set_mtime(&at("tree").join(name), 1_700_000_000, 5);
    }
    backup(&at("tree"), &at("repo"), &[]);
    write(at("tree/newer"), "today's");
    write(at("tree/older"), "of before");
    set_mtime(&at("tree/older"), 1_600_000_000, 0);
    fs::write(at("tree/large"), "today's").unwrap();
    fs::remove_file(at("tree/gone")).unwrap();
    let read = |name: &str| fs::read_to_string(at("tree").join(name)).unwrap();
    let ran = restore(&at("repo"), &at("tree"), &["--overwrite"]).ends_with(0);
    let said = format!("{}{}", ran.out, ran.err);
    assert!(
        said.contains("2 files of the target kept, newer than in the backup"),
        "{said}"
    );
    assert!(said.contains("--overwrite=all"), "{said}");
    assert_eq!((&*read("newer"), &*read("large")), ("today's", "today's"));
    assert_eq!(
        (&*read("older"), &*read("gone")),
        ("of the backup", "of the backup")
    );
    restore(&at("repo"), &at("tree"), &["--overwrite=all"]).ends_with(0);
    assert_eq!(read("newer"), "of the backup");
    assert!(fs::read(at("tree/large")).unwrap() == large);
}

#[test]
fn a_pattern_that_takes_nothing_back_is_told() {
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    write(at("tree/d/keep"), "");
    write(at("tree/other"), "");
    let idle = "takes nothing back";
    let to = at("repo");
    let rules = ["--exclude=/d/", "--exclude=!/d/keep"];
    let ran = fullbore(args!["backup", at("tree"), "--to", to, rules[0], rules[1]]);
    assert!(
        ran.err.contains(idle) && !ran.err.contains("matched nothing"),
        "{}",
        ran.err
    );
    let copied = fullbore(args![
        "copy",
        at("tree"),
        at("copied"),
        "--exclude",
        "/d/",
        "--include",
        "/d/keep"
    ]);
    assert!(copied.ends_with(0).err.contains(idle));
    let good = fullbore(args![
        "copy",
        at("tree"),
        at("good"),
        "--exclude",
        "/d/*",
        "--include",
        "/d/keep"
    ]);
    assert!(!good.ends_with(0).err.contains(idle) && at("good/d/keep").exists());
    backup(&at("tree"), &at("whole"), &[]);
    let rules = ["--exclude", "/d/", "--include", "/d/keep"];
    restore(&at("whole"), &at("restored"), &rules)
        .ends_with(2)
        .has_one_error("--exclude leaves out all of it");
    assert!(!at("restored").exists());
}
