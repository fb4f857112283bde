//! What a copy with `--delete` keeps, and when it refuses before its first change.

use super::{
    copy, result,
    runs::{Ran, is_root, names, noise, or_skip, shape, shell, started, temp, write},
};
use std::{ffi::OsString, fs, path::Path, thread, time::Duration};

const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55";

/// A mount that ends with the test.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn new(options: &str, from: &Path, at: &'a Path) -> Option<Self> {
        let ran = shell(&format!("mount {options} \"$1\" \"$2\""), args![from, at]);
        or_skip(is_root() && ran.code == 0, "cannot mount here").then_some(Self(at))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        shell("umount \"$1\"", args![self.0]);
    }
}

fn some_files(dir: &Path, number: usize) {
    for number in 0..number {
        write(dir.join(format!("same{number}")), "same");
    }
}

/// Copies by these options, which leave out `d/data` of the source, and returns whether the target keeps its own.
fn keeps(from: &Path, to: &Path, options: &[&str]) -> bool {
    write(to.join("d/data"), "of the target");
    write(to.join("d/more/data"), "of the target");
    write(to.join("extra"), "extra");
    let all = args![from, to, "--delete"];
    let ran = copy(all.into_iter().chain(options.iter().map(OsString::from))).ends_with(0);
    assert!(!to.join("extra").exists(), "{}", ran.out);
    let text = fs::read_to_string(to.join("d/data"));
    text.is_ok_and(|text| text == "of the target") && to.join("d/more/data").exists()
}

#[test]
fn nothing_that_a_rule_leaves_out_is_deleted() {
    let dir = temp();
    let (origin, destination) = (dir.path().join("from"), dir.path().join("to"));
    some_files(&origin, 10);
    write(origin.join("d/data"), "of the source");
    some_files(&destination, 10);
    assert!(keeps(&origin, &destination, &["--exclude", "/d"]));
    assert!(keeps(&origin, &destination, &["--exclude", "/d/"]));
    assert!(keeps(
        &origin,
        &destination,
        &["--exclude", "data", "--exclude", "more"]
    ));
    write(dir.path().join("list"), "/d/*\n");
    let list = dir.path().join("list");
    assert!(keeps(
        &origin,
        &destination,
        &["--exclude-from", list.to_str().unwrap()]
    ));
    write(origin.join("d/.nobackup"), "");
    assert!(keeps(
        &origin,
        &destination,
        &["--exclude-if-present", ".nobackup"]
    ));
    write(origin.join("d/CACHEDIR.TAG"), CACHE_TAG);
    assert!(keeps(&origin, &destination, &["--exclude-caches"]));
    fs::remove_file(destination.join("d/CACHEDIR.TAG")).unwrap();
    // A directory that a pattern leaves out, where the target has a file of that name.
    fs::remove_dir_all(destination.join("d")).unwrap();
    write(destination.join("d"), "a file");
    copy(args![origin, destination, "--delete", "--exclude", "d/"]).ends_with(0);
    assert_eq!(fs::read_to_string(destination.join("d")).unwrap(), "a file");
    fs::remove_file(destination.join("d")).unwrap();
    let other = temp();
    fs::remove_dir_all(origin.join("d")).unwrap();
    fs::create_dir(origin.join("d")).unwrap();
    let path = origin.join("d");
    if let Some(_mounted) = Mounted::new("-t tmpfs", other.path(), &path) {
        write(origin.join("d/data"), "of the source");
        assert!(keeps(&origin, &destination, &["--one-file-system"]));
        assert!(keeps(
            &origin,
            &destination,
            &["--one-file-system", "--delete-excluded"]
        ));
    }
}

#[test]
fn a_pattern_that_matches_nothing_is_named() {
    let dir = temp();
    let (source, destination) = (dir.path().join("from"), dir.path().join("to"));
    write(source.join("d/data"), "data");
    let warned = |options: &[&str]| {
        let all = args![source, destination].into_iter();
        let ran = copy(all.chain(options.iter().map(OsString::from))).ends_with(0);
        ran.err.contains("matched nothing")
    };
    let absolute = source.join("d");
    assert!(warned(&["--exclude", "from/d"]));
    assert!(!warned(&["--exclude", "/d"]));
    assert!(!warned(&["--exclude", absolute.to_str().unwrap()]));
    // It may be for what only the target has.
    assert!(!warned(&["--exclude", "/lost", "--delete"]));
}

#[test]
fn what_a_rule_leaves_out_is_deleted_on_request() {
    let dir = temp();
    let (origin, target) = (dir.path().join("from"), dir.path().join("to"));
    some_files(&origin, 10);
    write(origin.join("d/data"), "of the source");
    write(origin.join("d/.nobackup"), "");
    some_files(&target, 10);
    assert!(!keeps(
        &origin,
        &target,
        &["--exclude", "/d", "--delete-excluded"]
    ));
    assert!(!target.join("d").exists());
    assert!(!keeps(
        &origin,
        &target,
        &["--exclude-if-present", ".nobackup", "--delete-excluded"]
    ));
    assert_eq!(names(&target.join("d")), [""; 0]);
}

#[test]
fn a_copy_that_would_delete_most_of_its_target_is_refused_before_its_first_change() {
    let dir = temp();
    let (source, target) = (dir.path().join("src"), dir.path().join("backup"));
    some_files(&source, 3);
    write(source.join("new"), "new");
    write(source.join("dir"), "a file here");
    write(target.join("src/same0"), "same");
    for number in 0..6 {
        write(target.join(format!("photos/{number}")), "photo");
    }
    write(target.join("dir/file"), "a directory here");
    let before = shape(&target);
    let refused = copy(args![source, target, "--delete"]).ends_with(2);
    let refused = refused.has_one_error("cannot delete 11 of the 11 files and directories");
    for words in ["more than half", "--max-delete 11", "backup/src\"", "rsync"] {
        assert!(refused.err.contains(words), "{words}: {}", refused.err);
    }
    copy(args![source, target, "--delete", "--max-delete", "10"]).ends_with(2);
    let planned = copy(args![source, target, "--delete", "-n"]).ends_with(0);
    assert!(
        planned.err.contains("cannot delete 11 of the 11"),
        "{}",
        planned.err
    );
    assert!(planned.out.contains("- photos\n"), "{}", planned.out);
    assert_eq!(shape(&target), before);
    copy(args![source, target, "--delete", "--max-delete", "11"]).ends_with(0);
    assert_eq!(names(&target), ["dir", "new", "same0", "same1", "same2"]);
    write(target.join("extra"), "one of six");
    copy(args![source, target, "--delete"]).ends_with(0);
    assert!(!target.join("extra").exists());
}

#[test]
fn an_empty_source_deletes_nothing_unless_that_is_said() {
    let dir = temp();
    let (origin, target) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&origin).unwrap();
    some_files(&target, 3);
    let refused = copy(args![origin, target, "--delete", "--max-delete", "100"]).ends_with(2);
    let refused = refused.has_one_error("the source is empty");
    assert!(refused.err.contains("--allow-empty"), "{}", refused.err);
    assert_eq!(names(&target).len(), 3);
    copy(args![origin, target, "--delete", "--allow-empty"]).ends_with(0);
    assert_eq!(names(&target), [""; 0]);
    copy(args![origin, target, "--delete"]).ends_with(0);
}

#[test]
fn with_many_differences_both_trees_are_compared_twice() {
    // Of so many files, most of the time is the file system's; in memory it needs a third of it.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    for number in 0..66_000 {
        let path = source.join(format!("{:03}/{number}", number % 256));
        if number < 256 {
            write(path, "");
        } else {
            fs::File::create(path).unwrap();
        }
    }
    some_files(&source, 4);
    some_files(&target, 4);
    write(target.join("extra"), "");
    let ran = copy(args![source, target, "--delete", "--json"]).ends_with(0);
    let counts = result(&ran);
    assert_eq!(
        (&counts["added"], &counts["removed"]),
        (&66_256.into(), &1.into())
    );
    let again = copy(args![source, target, "--delete", "--json"]).ends_with(0);
    assert_eq!(result(&again)["added"], 0);
}

#[test]
fn the_lost_and_found_of_a_file_system_stays() {
    let dir = temp();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    some_files(&source, 4);
    fs::create_dir(&target).unwrap();
    let Some(_mounted) = Mounted::new("-t tmpfs", dir.path(), &target) else {
        return;
    };
    some_files(&target, 4);
    write(target.join("lost+found/#12"), "recovered");
    write(target.join("extra"), "");
    let ran = copy(args![source, target, "--delete", "--json"]).ends_with(0);
    assert_eq!(result(&ran)["removed"], 1, "{}", ran.out);
    assert!(target.join("lost+found/#12").exists() && !target.join("extra").exists());
}

#[test]
fn a_directory_is_not_copied_into_itself_through_a_bind_mount() {
    let dir = temp();
    let (origin, bound) = (dir.path().join("a"), dir.path().join("bound"));
    write(origin.join("b/c/file"), "x");
    write(origin.join("file"), "x");
    fs::create_dir(&bound).unwrap();
    let before = shape(&origin);
    for (source, below) in [
        (origin.clone(), "b"),
        (origin.clone(), ""),
        (origin.join("b"), ""),
    ] {
        let Some(_mounted) = Mounted::new("--bind", &source, &bound) else {
            return;
        };
        let into = copy(args![origin, bound.join(below), "--delete"]).ends_with(2);
        into.has_one_error("one contains the other");
        let out_of = copy(args![bound.join(below), origin, "--delete"]).ends_with(2);
        out_of.has_one_error("one contains the other");
    }
    assert_eq!(shape(&origin), before);
}

/// Copies a large file that another program cuts while it is read. Returns whether the copy noticed.
fn is_named_if_cut(dir: &Path, pause: Duration) -> bool {
    let (source, target) = (dir.join("from"), dir.join("to"));
    let _ = fs::remove_dir_all(&target);
    write(source.join("large"), noise(3, 60_000_000));
    let child = started(args!["copy", source, target]);
    thread::sleep(pause);
    let large = fs::OpenOptions::new()
        .write(true)
        .open(source.join("large"));
    large.unwrap().set_len(5000).unwrap();
    let ran: Ran = child.wait_with_output().unwrap().into();
    let copied = fs::read(target.join("large")).unwrap();
    if ran.code == 0 {
        let is_old = copied == noise(3, 60_000_000);
        assert!(
            is_old || copied == noise(3, 60_000_000)[..5000],
            "{}",
            ran.err
        );
        return false;
    }
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(
        ran.err.contains("\"large\" changed while it was read"),
        "{}",
        ran.err
    );
    assert_eq!(copied.len(), 5000);
    true
}

#[test]
fn a_large_file_that_shrinks_is_cut_and_named() {
    let dir = temp();
    let mut pauses = (1..60).map(|number| Duration::from_millis(4 * number % 100));
    assert!(pauses.any(|pause| is_named_if_cut(dir.path(), pause)));
}

#[test]
fn a_marked_directory_of_the_target_that_the_source_lost_stays_and_ends_no_copy() {
    let dir = temp();
    let (origin, destination) = (dir.path().join("from"), dir.path().join("to"));
    some_files(&origin, 10);
    some_files(&destination, 10);
    write(destination.join("cache/CACHEDIR.TAG"), CACHE_TAG);
    write(destination.join("cache/data/file"), "kept");
    write(destination.join("marked/.nobackup"), "");
    write(destination.join("marked/file"), "kept");
    let marks = args!["--exclude-caches", "--exclude-if-present", ".nobackup"];
    for _ in 0..2 {
        write(destination.join("extra"), "extra");
        let all = args![origin, destination, "--delete", "--json"];
        let ran = copy(all.into_iter().chain(marks.clone())).ends_with(0);
        assert_eq!(result(&ran)["removed"], 1, "{}", ran.out);
        assert!(!destination.join("extra").exists());
        assert!(destination.join("cache/data/file").exists());
        assert!(destination.join("marked/file").exists());
    }
    let all = args![origin, destination, "--delete", "--delete-excluded"];
    copy(all.into_iter().chain(marks)).ends_with(0);
    assert!(!destination.join("cache").exists() && !destination.join("marked").exists());
}
