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
    let (from, to, by_rsync) = (
        dir.path().join("from"),
        dir.path().join("to"),
        dir.path().join("rsync"),
    );
    sample(&from);
    fs::hard_link(from.join("large"), from.join("many/00/large too")).unwrap();
    set_xattr(&from.join("large"), "user.comment", b"large");
    make_fifo(&from.join("many/pipe"));
    symlink("../nowhere", from.join("many/dangling")).unwrap();
    if is_root() {
        shell("setfacl -m u:daemon:r \"$1/large\" && setfacl -d -m g:daemon:rwx \"$1/many\" && chown 33:44 \"$1/many/00/0\" && chmod 6755 \"$1/many/00/0\"", args![from]).ends_with(0);
    }
    shell("truncate -s 30M \"$1/hole\" && printf x | dd of=\"$1/hole\" bs=1 seek=20000000 conv=notrunc status=none", args![from]).ends_with(0);
    copy(args![from, to]).ends_with(0);
    assert_same(&shape(&from), &shape(&to), "copied");
    let blocks = |dir: &Path| fs::metadata(dir.join("hole")).unwrap().blocks();
    assert!(
        blocks(&to) <= blocks(&from) + 256,
        "{} {}",
        blocks(&to),
        blocks(&from)
    );
    assert_eq!(fs::metadata(to.join("large")).unwrap().nlink(), 2);
    if or_skip(has("rsync"), "there is no rsync") {
        // It takes directories and links for the same if their times are of the same second.
        thread::sleep(Duration::from_millis(1100));
        shell("rsync -aHAXS \"$1/\" \"$2/\"", args![from, by_rsync]).ends_with(0);
        assert_same(&without_places(&by_rsync), &without_places(&to), "by rsync");
        let lists = "cd \"$1\" && getfacl -Rp . && getfattr -Rhd -m- .";
        assert_eq!(
            shell(lists, args![by_rsync]).out,
            shell(lists, args![to]).out
        );
        let found = shell("rsync -niaHAX --delete \"$1/\" \"$2/\"", args![from, to]).ends_with(0);
        assert_eq!(found.out, "");
    }
    let again = copy(args![from, to, "--delete", "--json"]).ends_with(0);
    let again = result(&again);
    assert_eq!(
        (&again["new"], &again["changed"], &again["deleted"]),
        (&0.into(), &0.into(), &0.into())
    );
    assert_eq!(leftovers(&to), "");
}

#[test]
fn only_what_differs_is_copied_and_what_is_deleted_is_named_first() {
    let dir = temp();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sample(&from);
    copy(args![from, to]).ends_with(0);
    write(from.join("many/00/0"), "changed");
    write(from.join("many/new/0"), "new");
    fs::remove_dir_all(from.join("many/01")).unwrap();
    fs::remove_file(from.join("large")).unwrap();
    fs::create_dir(from.join("large")).unwrap();
    write(to.join("many/02/extra"), "extra");
    fs::remove_file(to.join("many/03/3")).unwrap();
    write(to.join("many/03/3/in the way"), "x");
    let before = shape(&to);
    let planned = copy(args![from, to, "--delete", "-n"]).ends_with(0).out;
    assert_same(&before, &shape(&to), "a dry run");
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
    let kept = copy(args![from, to, "-v"]);
    assert_eq!(kept.code, 3, "{}", kept.err);
    assert!(kept.err.contains("many/03/3"), "{}", kept.err);
    assert!(to.join("many/02/extra").exists());
    let done = copy(args![from, to, "--delete"]).ends_with(0);
    assert!(done.out.contains("- many/02/extra\n"), "{}", done.out);
    assert_same(&shape(&from), &shape(&to), "with --delete");
}

#[test]
fn what_is_excluded_is_neither_copied_nor_deleted() {
    let dir = temp();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    write(from.join("a/keep.log"), "source");
    write(from.join("a/data"), "source");
    write(from.join("a/skip.log"), "source");
    write(to.join("old/inner.log"), "target");
    write(to.join("old/data"), "target");
    let rules = args![
        "--exclude",
        "*.log",
        "--include",
        "keep.log",
        "--delete",
        "--max-delete",
        "2"
    ];
    copy(args![from, to].into_iter().chain(rules)).ends_with(0);
    let read = |path: &str| fs::read_to_string(to.join(path)).ok();
    assert_eq!(read("a/keep.log").as_deref(), Some("source"));
    assert_eq!(read("a/data").as_deref(), Some("source"));
    assert_eq!(read("a/skip.log"), None);
    assert_eq!(read("old/inner.log").as_deref(), Some("target"));
    assert_eq!(read("old/data"), None);
}

#[test]
fn of_a_large_file_only_blocks_that_differ_are_written() {
    let dir = temp();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    write(from.join("large"), noise(1, 20_000_000));
    copy(args![from, to]).ends_with(0);
    let inode = fs::metadata(to.join("large")).unwrap().ino();
    let large = fs::OpenOptions::new()
        .write(true)
        .open(from.join("large"))
        .unwrap();
    large.write_all_at(b"three", 3_000_000).unwrap();
    large.write_all_at(b"fifteen", 15_000_000).unwrap();
    large.write_all_at(b"longer", 20_000_000).unwrap();
    let ran = copy(args![from, to, "--json"]).ends_with(0);
    assert!(
        result(&ran)["sent_bytes"].as_u64().unwrap() <= 4 << 16,
        "{}",
        ran.out
    );
    assert_same(&shape(&from), &shape(&to), "blocks");
    assert_eq!(fs::metadata(to.join("large")).unwrap().ino(), inode);
    large.set_len(7_000_001).unwrap();
    copy(args![from, to]).ends_with(0);
    assert_same(&shape(&from), &shape(&to), "cut");
    // Another name of the file must keep its content.
    fs::hard_link(to.join("large"), dir.path().join("other")).unwrap();
    large.write_all_at(b"again", 5).unwrap();
    let before = fs::read(dir.path().join("other")).unwrap();
    let ran = copy(args![from, to, "--json"]).ends_with(0);
    assert_eq!(result(&ran)["sent_bytes"], 65_536, "{}", ran.out);
    assert_same(&shape(&from), &shape(&to), "with another name");
    assert!(before == fs::read(dir.path().join("other")).unwrap());
}

#[test]
fn content_that_size_and_time_hide_is_found_by_checksum() {
    let dir = temp();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sample(&from);
    copy(args![from, to]).ends_with(0);
    for path in ["large", "many/05/12"] {
        let there = fs::metadata(from.join(path)).unwrap();
        let file = fs::OpenOptions::new()
            .write(true)
            .open(from.join(path))
            .unwrap();
        file.write_all_at(b"#hidden#", 100).unwrap();
        drop(file);
        set_mtime(&from.join(path), there.mtime(), there.mtime_nsec());
    }
    let ran = copy(args![from, to, "--json"]).ends_with(0);
    assert_eq!(result(&ran)["changed"], 0);
    assert!(!differences(&shape(&from), &shape(&to)).is_empty());
    let ran = copy(args![from, to, "--json", "--checksum"]).ends_with(0);
    assert_eq!(result(&ran)["changed"], 2, "{}", ran.out);
    assert_same(&shape(&from), &shape(&to), "with --checksum");
}

#[test]
fn renamed_files_are_not_copied_again_and_never_get_other_content() {
    let dir = temp();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    for (number, name) in ["b/one", "m/two", "z/three"].iter().enumerate() {
        write(from.join(name), noise(number as u64, 3_000_000));
    }
    copy(args![from, to]).ends_with(0);
    for (old, new) in [("b/one", "y/one"), ("m/two", "c/2"), ("z/three", "a/3")] {
        fs::create_dir_all(from.join(new).parent().unwrap()).unwrap();
        fs::rename(from.join(old), from.join(new)).unwrap();
    }
    // Of the same size and time, with other content.
    let there = fs::metadata(from.join("a/3")).unwrap();
    write(from.join("a/3"), noise(9, 3_000_000));
    set_mtime(&from.join("a/3"), there.mtime(), there.mtime_nsec());
    let ran = copy(args![from, to, "--json", "--delete"]).ends_with(0);
    assert_eq!(result(&ran)["sent_bytes"], 3_000_000, "{}", ran.out);
    assert_same(&shape(&from), &shape(&to), "renamed");
    assert_eq!(leftovers(&to), "");
}

#[test]
fn metadata_changes_without_content() {
    let dir = temp();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sample(&from);
    copy(args![from, to]).ends_with(0);
    set_xattr(&from.join("large"), "user.new", b"1");
    set_xattr(&from.join("many/05/12"), "user.new", b"1");
    shell(
        "chmod 640 \"$1/many/05/19\" && chmod 711 \"$1/many\"",
        args![from],
    )
    .ends_with(0);
    set_xattr(&to.join("many/05/26"), "user.extra", b"1");
    let ran = copy(args![from, to, "--json"]).ends_with(0);
    assert_eq!(result(&ran)["sent_bytes"], 0, "{}", ran.out);
    assert_same(&shape(&from), &shape(&to), "metadata");
}

#[test]
fn killed_at_any_time_a_copy_leaves_whole_files_and_is_completed_by_the_next() {
    let dir = temp();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sample(&from);
    let source = shape(&from);
    for delay in [0, 5, 10, 20, 30, 45, 60, 90, 120] {
        let _ = fs::remove_dir_all(&to);
        let mut child = started(args!["copy", from, to]);
        thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap(); // it may be over
        child.wait().unwrap();
        for (path, node) in &shape_or_none(&to) {
            let name = String::from_utf8_lossy(path);
            if node.kind == "file" && !name.contains(".fullbore-") {
                let whole = source.get(path).map(|node| &node.digest);
                assert_eq!(Some(&node.digest), whole, "{delay}: {name}");
            }
        }
        copy(args![from, to, "--delete"]).ends_with(0);
        assert_same(&source, &shape(&to), &format!("killed after {delay} ms"));
        assert_eq!(leftovers(&to), "", "{delay}");
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
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    write(from.join("large"), noise(3, 12_000_000));
    let killed = tampered("pwrite64:signal=KILL:when=4", None, args!["copy", from, to]);
    assert_ne!(killed.code, 0);
    assert!(!to.join("large").exists());
    assert_ne!(leftovers(&to), "");
    let ran = copy(args![from, to, "--json"]).ends_with(0);
    assert!(
        result(&ran)["sent_bytes"].as_u64().unwrap() < 11_500_000,
        "{}",
        ran.out
    );
    assert_same(&shape(&from), &shape(&to), "continued");
    assert_eq!(leftovers(&to), "");
}

#[test]
fn a_link_that_is_swapped_into_the_target_leads_nowhere() {
    let dir = temp();
    let (from, to, outside) = (
        dir.path().join("from"),
        dir.path().join("to"),
        dir.path().join("outside"),
    );
    for number in 0..300 {
        write(from.join(format!("d/{number}")), text(number, 100));
    }
    fs::create_dir(&outside).unwrap();
    fs::create_dir(&to).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                let _ = fs::rename(to.join("d"), to.join("aside"));
                let _ = symlink(&outside, to.join("d"));
                let _ = fs::remove_file(to.join("d"));
                let _ = fs::rename(to.join("aside"), to.join("d"));
            }
        });
        for _ in 0..15 {
            copy(args![from, to]);
        }
        is_over.store(true, Relaxed);
    });
    assert_eq!(super::runs::names(&outside), [""; 0]);
    copy(args![from, to, "--delete"]).ends_with(0);
    assert_same(&shape(&from), &shape(&to), "afterwards");
}

#[test]
fn a_tree_that_changes_during_the_copy_is_complete_after_the_next() {
    let dir = temp();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sample(&from);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !is_over.load(Relaxed) {
                turn += 1;
                let path = from.join(format!("many/{:02}/{}", turn % 7, turn % 50));
                match turn % 3 {
                    0 => drop(fs::remove_file(path)),
                    _ => write(path, text(turn, (turn % 40) as usize * 100)),
                }
            }
        });
        for _ in 0..8 {
            let ran = copy(args![from, to, "--delete"]);
            assert!([0, 3].contains(&ran.code), "{}", ran.err);
        }
        is_over.store(true, Relaxed);
    });
    copy(args![from, to, "--delete"]).ends_with(0);
    assert_same(&shape(&from), &shape(&to), "when it is quiet");
}

#[test]
fn nothing_is_deleted_if_the_source_could_not_be_listed() {
    let dir = temp();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    write(from.join("a/1"), "1");
    write(to.join("a/2"), "2");
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let ran = tampered(
        "getdents64:error=EIO",
        Some(&from.join("a")),
        args!["copy", from, to, "--delete"],
    );
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    assert!(to.join("a/2").exists());
    assert!(ran.err.contains("nothing was deleted"), "{}", ran.err);
}

#[test]
fn a_directory_is_not_copied_into_itself() {
    let dir = temp();
    let from = dir.path().join("from");
    write(from.join("a"), "1");
    for to in [from.clone(), from.join("new/below"), dir.path().to_owned()] {
        let ran = copy(args![from, to, "--delete"]).ends_with(2);
        ran.has_one_error("one contains the other");
    }
    copy(args![from.join("a"), dir.path().join("to")]).ends_with(2);
}

#[test]
fn a_repository_is_copied_to_a_repository_backup_by_backup() {
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    write(at("from/a"), "1");
    super::runs::fullbore(args!["backup", at("from"), "--to", at("one")]).ends_with(0);
    copy(args![at("one"), at("two")]).ends_with(0);
    super::runs::fullbore(args!["restore", at("two"), "--to", at("back")]).ends_with(0);
    assert_same(&shape(&at("from")), &shape(&at("back")), "restored");
}

#[test]
fn directories_keep_their_times_where_compared_files_are_replaced() {
    let dir = temp();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    for number in 0..300 {
        write(from.join(format!("{}/{number}", number % 20)), "old");
    }
    copy(args![from, to]).ends_with(0);
    for number in (0..300).step_by(7) {
        let path = to.join(format!("{}/{number}", number % 20));
        let before = fs::metadata(&path).unwrap();
        write(&path, "new");
        fs::File::open(&path)
            .unwrap()
            .set_modified(before.modified().unwrap())
            .unwrap();
    }
    let ran = copy(args![from, to, "--checksum", "--json"]).ends_with(0);
    assert_eq!(result(&ran)["changed"], 43, "{}", ran.out);
    assert_same(&shape(&from), &shape(&to), "compared");
}

#[test]
fn of_a_backup_a_copy_takes_no_options_for_directories() {
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    write(at("tree/file"), "content");
    fullbore(args!["backup", at("tree"), "--to", at("repository"), "-q"]).ends_with(0);
    for option in ["--delete", "--dry-run", "--exclude=x", "--exclude-from=x"] {
        let ran = copy(args![at("repository"), at("other"), option]).ends_with(2);
        let name = option.split('=').next().unwrap();
        ran.has_one_error(&format!("cannot copy a backup with {name}"));
        assert!(!at("other").exists());
    }
    copy(args![at("repository"), at("other")]).ends_with(0);
    let latest = format!("{}@latest", at("repository").display());
    // A directory that holds something else is no place for a repository, and no backup is a directory.
    copy(args![latest, at("tree")]).ends_with(2);
    copy(args![at("tree/file"), at("other")]).ends_with(1);
    fullbore(args!["verify", at("other"), "--data"]).ends_with(0);
}

#[test]
fn errors_of_a_copy_are_about_a_copy() {
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    write(at("from/file"), "content");
    symlink("nowhere", at("link")).unwrap();
    let ran = copy(args![at("from"), at("link")]).ends_with(1);
    let ran = ran.has_one_error("cannot write to ");
    assert!(!ran.err.contains("restore"), "{}", ran.err);
    let ran = copy(args![at("from/file"), at("to")]).ends_with(2);
    ran.has_one_error("it is not a directory");
    set_xattr(&at("from/file"), "user.comment", b"x");
    let refused = "fsetxattr,setxattr:error=EPERM";
    if or_skip(has("strace"), "there is no strace") {
        let ran = tampered(refused, None, args!["copy", at("from"), at("to")]);
        let line = "attribute \"user.comment\" not copied";
        assert!(ran.err.contains(line), "{}", ran.err);
    }
}
