//! Copies on this machine.

use super::{
    copy, result,
    runs::{
        assert_same, differences, fullbore, has, is_root, make_fifo, noise, or_skip, set_mtime,
        set_xattr, shape, shell, started, tampered, temp, text, write,
    },
    sample,
};
use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// What a copy leaves below a target, unfinished files included.
fn leftovers(dir: &Path) -> String {
    shell("find \"$1\" -name '.fullbore-*'", args![dir]).out
}

/// A tree without the places of its holes, which programs find in different ways.
fn without_places(dir: &Path) -> super::runs::Shape {
    let mut shape = shape(dir);
    shape.values_mut().for_each(|node| node.data.clear());
    shape
}

#[test]
fn a_copy_is_equal_to_its_source_and_to_that_of_rsync() {
    let dir = temp();
    let (source, target, by_rsync) = (
        dir.path().join("from"),
        dir.path().join("to"),
        dir.path().join("rsync"),
    );
    sample(&source);
    fs::hard_link(source.join("large"), source.join("many/00/large too")).unwrap();
    set_xattr(&source.join("large"), "user.comment", b"large");
    make_fifo(&source.join("many/pipe"));
    symlink("../nowhere", source.join("many/dangling")).unwrap();
    if is_root() {
        shell("setfacl -m u:daemon:r \"$1/large\" && setfacl -d -m g:daemon:rwx \"$1/many\" && chown 33:44 \"$1/many/00/0\" && chmod 6755 \"$1/many/00/0\"", args![source]).ends_with(0);
    }
    shell("truncate -s 30M \"$1/hole\" && printf x | dd of=\"$1/hole\" bs=1 seek=20000000 conv=notrunc status=none", args![source]).ends_with(0);
    copy(args![source, target]).ends_with(0);
    assert_same(&shape(&source), &shape(&target), "copied");
    let blocks = |dir: &Path| fs::metadata(dir.join("hole")).unwrap().blocks();
    assert!(
        blocks(&target) <= blocks(&source) + 256,
        "{} {}",
        blocks(&target),
        blocks(&source)
    );
    assert_eq!(fs::metadata(target.join("large")).unwrap().nlink(), 2);
    if or_skip(has("rsync"), "there is no rsync") {
        // It takes directories and links for the same if their times are of the same second.
        thread::sleep(Duration::from_millis(1100));
        shell("rsync -aHAXS \"$1/\" \"$2/\"", args![source, by_rsync]).ends_with(0);
        assert_same(
            &without_places(&by_rsync),
            &without_places(&target),
            "by rsync",
        );
        let lists = "cd \"$1\" && getfacl -Rp . && getfattr -Rhd -m- .";
        assert_eq!(
            shell(lists, args![by_rsync]).out,
            shell(lists, args![target]).out
        );
        let found = shell(
            "rsync -niaHAX --delete \"$1/\" \"$2/\"",
            args![source, target],
        )
        .ends_with(0);
        assert_eq!(found.out, "");
    }
    let again = copy(args![source, target, "--delete", "--json"]).ends_with(0);
    let again = result(&again);
    assert_eq!(
        (&again["added"], &again["changed"], &again["removed"]),
        (&0.into(), &0.into(), &0.into())
    );
    assert_eq!(leftovers(&target), "");
}

#[test]
fn only_what_differs_is_copied_and_what_is_deleted_is_named_first() {
    let dir = temp();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    sample(&source);
    copy(args![source, target]).ends_with(0);
    write(source.join("many/00/0"), "changed");
    write(source.join("many/new/0"), "new");
    fs::remove_dir_all(source.join("many/01")).unwrap();
    fs::remove_file(source.join("large")).unwrap();
    fs::create_dir(source.join("large")).unwrap();
    write(target.join("many/02/extra"), "extra");
    fs::remove_file(target.join("many/03/3")).unwrap();
    write(target.join("many/03/3/in the way"), "x");
    let before = shape(&target);
    let planned = copy(args![source, target, "--delete", "-n"])
        .ends_with(0)
        .out;
    assert_same(&before, &shape(&target), "a dry run");
    for line in [
        "~ many/00/0",
        "+ many/new/0",
        "- many/01",
        "- many/02/extra",
        "~ large",
        "~ many/03/3",
    ] {
        assert!(
            planned.lines().any(|said| said == line),
            "{line}: {planned}"
        );
    }
    assert!(!planned.contains("many/01/"), "{planned}");
    let kept = copy(args![source, target, "-v"]);
    assert_eq!(kept.code, 3, "{}", kept.err);
    assert!(kept.err.contains("many/03/3"), "{}", kept.err);
    assert!(target.join("many/02/extra").exists());
    let done = copy(args![source, target, "--delete"]).ends_with(0);
    assert!(done.out.contains("- many/02/extra\n"), "{}", done.out);
    assert_same(&shape(&source), &shape(&target), "with --delete");
}

#[test]
fn what_is_excluded_is_neither_copied_nor_deleted() {
    let dir = temp();
    let (origin, destination) = (dir.path().join("from"), dir.path().join("to"));
    write(origin.join("a/keep.log"), "source");
    write(origin.join("a/data"), "source");
    write(origin.join("a/skip.log"), "source");
    write(destination.join("old/inner.log"), "target");
    write(destination.join("old/data"), "target");
    let rules = args![
        "--exclude",
        "*.log",
        "--include",
        "keep.log",
        "--delete",
        "--max-delete",
        "2"
    ];
    copy(args![origin, destination].into_iter().chain(rules)).ends_with(0);
    let read = |path: &str| fs::read_to_string(destination.join(path)).ok();
    assert_eq!(read("a/keep.log").as_deref(), Some("source"));
    assert_eq!(read("a/data").as_deref(), Some("source"));
    assert_eq!(read("a/skip.log"), None);
    assert_eq!(read("old/inner.log").as_deref(), Some("target"));
    assert_eq!(read("old/data"), None);
}

#[test]
fn of_a_large_file_only_blocks_that_differ_are_written() {
    let dir = temp();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    write(source.join("large"), noise(1, 20_000_000));
    copy(args![source, target]).ends_with(0);
    let inode = fs::metadata(target.join("large")).unwrap().ino();
    let large = fs::OpenOptions::new()
        .write(true)
        .open(source.join("large"))
        .unwrap();
    large.write_all_at(b"three", 3_000_000).unwrap();
    large.write_all_at(b"fifteen", 15_000_000).unwrap();
    large.write_all_at(b"longer", 20_000_000).unwrap();
    let ran = copy(args![source, target, "--json"]).ends_with(0);
    assert!(
        result(&ran)["sent_bytes"].as_u64().unwrap() <= 4 << 16,
        "{}",
        ran.out
    );
    assert_same(&shape(&source), &shape(&target), "blocks");
    assert_eq!(fs::metadata(target.join("large")).unwrap().ino(), inode);
    large.set_len(7_000_001).unwrap();
    copy(args![source, target]).ends_with(0);
    assert_same(&shape(&source), &shape(&target), "cut");
    // Another name of the file must keep its content.
    fs::hard_link(target.join("large"), dir.path().join("other")).unwrap();
    large.write_all_at(b"again", 5).unwrap();
    let before = fs::read(dir.path().join("other")).unwrap();
    let ran = copy(args![source, target, "--json"]).ends_with(0);
    assert_eq!(result(&ran)["sent_bytes"], 65_536, "{}", ran.out);
    assert_same(&shape(&source), &shape(&target), "with another name");
    assert!(before == fs::read(dir.path().join("other")).unwrap());
}

#[test]
fn content_that_size_and_time_hide_is_found_by_checksum() {
    let dir = temp();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    sample(&source);
    copy(args![source, target]).ends_with(0);
    for path in ["large", "many/05/12"] {
        let there = fs::metadata(source.join(path)).unwrap();
        let file = fs::OpenOptions::new()
            .write(true)
            .open(source.join(path))
            .unwrap();
        file.write_all_at(b"#hidden#", 100).unwrap();
        drop(file);
        set_mtime(&source.join(path), there.mtime(), there.mtime_nsec());
    }
    let ran = copy(args![source, target, "--json"]).ends_with(0);
    assert_eq!(result(&ran)["changed"], 0);
    assert!(!differences(&shape(&source), &shape(&target)).is_empty());
    let ran = copy(args![source, target, "--json", "--checksum"]).ends_with(0);
    assert_eq!(result(&ran)["changed"], 2, "{}", ran.out);
    assert_same(&shape(&source), &shape(&target), "with --checksum");
}

#[test]
fn renamed_files_are_not_copied_again_and_never_get_other_content() {
    let dir = temp();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    for (number, name) in ["b/one", "m/two", "z/three"].iter().enumerate() {
        write(source.join(name), noise(number as u64, 3_000_000));
        // A fast machine writes all within a tick of its clock, and files of one size and time are copied.
        set_mtime(&source.join(name), 1_700_000_000 + number as i64, 0);
    }
    copy(args![source, target]).ends_with(0);
    for (old, new) in [("b/one", "y/one"), ("m/two", "c/2"), ("z/three", "a/3")] {
        fs::create_dir_all(source.join(new).parent().unwrap()).unwrap();
        fs::rename(source.join(old), source.join(new)).unwrap();
    }
    // Of the same size and time, with other content.
    let there = fs::metadata(source.join("a/3")).unwrap();
    write(source.join("a/3"), noise(9, 3_000_000));
    set_mtime(&source.join("a/3"), there.mtime(), there.mtime_nsec());
    let ran = copy(args![source, target, "--json", "--delete"]).ends_with(0);
    assert_eq!(result(&ran)["sent_bytes"], 3_000_000, "{}", ran.out);
    assert_same(&shape(&source), &shape(&target), "renamed");
    assert_eq!(leftovers(&target), "");
}

#[test]
fn metadata_changes_without_content() {
    let dir = temp();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    sample(&source);
    copy(args![source, target]).ends_with(0);
    set_xattr(&source.join("large"), "user.new", b"1");
    set_xattr(&source.join("many/05/12"), "user.new", b"1");
    shell(
        "chmod 640 \"$1/many/05/19\" && chmod 711 \"$1/many\"",
        args![source],
    )
    .ends_with(0);
    set_xattr(&target.join("many/05/26"), "user.extra", b"1");
    let ran = copy(args![source, target, "--json"]).ends_with(0);
    assert_eq!(result(&ran)["sent_bytes"], 0, "{}", ran.out);
    assert_same(&shape(&source), &shape(&target), "metadata");
}

#[test]
fn killed_at_any_time_a_copy_leaves_whole_files_and_is_completed_by_the_next() {
    let dir = temp();
    let (origin, target) = (dir.path().join("from"), dir.path().join("to"));
    sample(&origin);
    let source = shape(&origin);
    for delay in [0, 5, 10, 20, 30, 45, 60, 90, 120] {
        let _ = fs::remove_dir_all(&target);
        let mut child = started(args!["copy", origin, target]);
        thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap(); // it may be over
        child.wait().unwrap();
        for (path, node) in &shape_or_none(&target) {
            let name = String::from_utf8_lossy(path);
            if node.kind == "file" && !name.contains(".fullbore-") {
                let whole = source.get(path).map(|node| &node.digest);
                assert_eq!(Some(&node.digest), whole, "{delay}: {name}");
            }
        }
        copy(args![origin, target, "--delete"]).ends_with(0);
        assert_same(
            &source,
            &shape(&target),
            &format!("killed after {delay} ms"),
        );
        assert_eq!(leftovers(&target), "", "{delay}");
    }
}

fn shape_or_none(dir: &Path) -> super::runs::Shape {
    fs::create_dir_all(dir).unwrap();
    shape(dir)
}

#[test]
fn a_large_file_that_was_interrupted_is_continued_under_a_name_of_its_own() {
    let dir = temp();
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    write(source.join("large"), noise(3, 12_000_000));
    let killed = tampered(
        "pwrite64:signal=KILL:when=4",
        None,
        args!["copy", source, target],
    );
    assert_ne!(killed.code, 0);
    assert!(!target.join("large").exists());
    assert_ne!(leftovers(&target), "");
    let ran = copy(args![source, target, "--json"]).ends_with(0);
    assert!(
        result(&ran)["sent_bytes"].as_u64().unwrap() < 11_500_000,
        "{}",
        ran.out
    );
    assert_same(&shape(&source), &shape(&target), "continued");
    assert_eq!(leftovers(&target), "");
}

#[test]
fn a_link_that_is_swapped_into_the_target_leads_nowhere() {
    let dir = temp();
    let (source, target, outside) = (
        dir.path().join("from"),
        dir.path().join("to"),
        dir.path().join("outside"),
    );
    for number in 0..300 {
        write(source.join(format!("d/{number}")), text(number, 100));
    }
    fs::create_dir(&outside).unwrap();
    fs::create_dir(&target).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                let _ = fs::rename(target.join("d"), target.join("aside"));
                let _ = symlink(&outside, target.join("d"));
                let _ = fs::remove_file(target.join("d"));
                let _ = fs::rename(target.join("aside"), target.join("d"));
            }
        });
        for _ in 0..15 {
            copy(args![source, target]);
        }
        is_over.store(true, Relaxed);
    });
    assert_eq!(super::runs::names(&outside), [""; 0]);
    copy(args![source, target, "--delete"]).ends_with(0);
    assert_same(&shape(&source), &shape(&target), "afterwards");
}

#[test]
fn a_tree_that_changes_during_the_copy_is_complete_after_the_next() {
    let dir = temp();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    sample(&source);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !is_over.load(Relaxed) {
                turn += 1;
                let path = source.join(format!("many/{:02}/{}", turn % 7, turn % 50));
                match turn % 3 {
                    0 => drop(fs::remove_file(path)),
                    _ => write(path, text(turn, (turn % 40) as usize * 100)),
                }
            }
        });
        for _ in 0..8 {
            let ran = copy(args![source, target, "--delete"]);
            assert!([0, 3].contains(&ran.code), "{}", ran.err);
        }
        is_over.store(true, Relaxed);
    });
    copy(args![source, target, "--delete"]).ends_with(0);
    assert_same(&shape(&source), &shape(&target), "when it is quiet");
}

#[test]
fn nothing_is_deleted_if_the_source_could_not_be_listed() {
    let dir = temp();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    write(source.join("a/1"), "1");
    write(target.join("a/2"), "2");
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let ran = tampered(
        "getdents64:error=EIO",
        Some(&source.join("a")),
        args!["copy", source, target, "--delete"],
    );
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert!(target.join("a/2").exists());
    assert!(ran.err.contains("nothing was deleted"), "{}", ran.err);
}

#[test]
fn a_directory_is_not_copied_into_itself() {
    let dir = temp();
    let source = dir.path().join("from");
    write(source.join("a"), "1");
    for target in [
        source.clone(),
        source.join("new/below"),
        dir.path().to_owned(),
    ] {
        let ran = copy(args![source, target, "--delete"]).ends_with(2);
        ran.has_one_error("one contains the other");
    }
}

#[test]
fn a_repository_is_copied_to_a_repository_backup_by_backup() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    write(path("from/a"), "1");
    super::runs::fullbore(args!["backup", path("from"), "--to", path("one")]).ends_with(0);
    copy(args![path("one"), path("two")]).ends_with(0);
    super::runs::fullbore(args!["restore", path("two"), "--to", path("back")]).ends_with(0);
    assert_same(&shape(&path("from")), &shape(&path("back")), "restored");
}

#[test]
fn directories_keep_their_times_where_compared_files_are_replaced() {
    let dir = temp();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    for number in 0..300 {
        write(source.join(format!("{}/{number}", number % 20)), "old");
    }
    copy(args![source, target]).ends_with(0);
    for number in (0..300).step_by(7) {
        let path = target.join(format!("{}/{number}", number % 20));
        let before = fs::metadata(&path).unwrap();
        write(&path, "new");
        fs::File::open(&path)
            .unwrap()
            .set_modified(before.modified().unwrap())
            .unwrap();
    }
    let ran = copy(args![source, target, "--checksum", "--json"]).ends_with(0);
    assert_eq!(result(&ran)["changed"], 43, "{}", ran.out);
    assert_same(&shape(&source), &shape(&target), "compared");
}

#[test]
fn of_a_backup_a_copy_takes_no_options_for_directories() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    write(path("tree/file"), "content");
    fullbore(args![
        "backup",
        path("tree"),
        "--to",
        path("repository"),
        "-q"
    ])
    .ends_with(0);
    for option in ["--delete", "--dry-run", "--exclude=x", "--exclude-from=x"] {
        let ran = copy(args![path("repository"), path("other"), option]).ends_with(2);
        let name = option.split('=').next().unwrap();
        ran.has_one_error(&format!("cannot copy a backup with {name}"));
        assert!(!path("other").exists());
    }
    copy(args![path("repository"), path("other")]).ends_with(0);
    let latest = format!("{}@latest", path("repository").display());
    // A directory that holds something else is no place for a repository, and no backup is a directory.
    copy(args![latest, path("tree")]).ends_with(2);
    copy(args![path("tree/file"), path("other")]).ends_with(2);
    fullbore(args!["verify", path("other"), "--data"]).ends_with(0);
}

#[test]
fn errors_of_a_copy_are_about_a_copy() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    write(path("from/file"), "content");
    symlink("nowhere", path("link")).unwrap();
    let ran = copy(args![path("from"), path("link")]).ends_with(1);
    let ran = ran.has_one_error("cannot write to ");
    assert!(!ran.err.contains("restore"), "{}", ran.err);
    set_xattr(&path("from/file"), "user.comment", b"x");
    let refused = "fsetxattr,setxattr:error=EPERM";
    if or_skip(has("strace"), "there is no strace") {
        let ran = tampered(refused, None, args!["copy", path("from"), path("to")]);
        let line = "attribute \"user.comment\" not copied";
        assert!(ran.err.contains(line), "{}", ran.err);
    }
}

#[test]
fn a_copy_makes_the_last_directory_of_its_target_alone() {
    let dir = temp();
    let source = dir.path().join("from");
    sample(&source);
    let missing = dir.path().join("missing");
    let ran = copy(args![source, missing.join("to")]).ends_with(1);
    assert!(
        ran.has_one_error("does not exist")
            .err
            .contains("check that its disk is mounted")
    );
    assert!(!missing.exists());
    copy(args![source, dir.path().join("to")]).ends_with(0);
}

#[test]
fn the_shell_of_rsync_is_no_pattern() {
    let dir = temp();
    let (source, to) = (dir.path().join("from"), dir.path().join("to"));
    super::runs::write(source.join("ssh/key"), "secret");
    for shell in ["ssh", "ssh -p 22"] {
        copy(args!["-e", shell, source, to])
            .ends_with(2)
            .has_one_error("-e is --exclude here");
    }
    copy(args!["--exclude", "ssh", source, to]).ends_with(0);
    assert!(!to.join("ssh").exists());
}
