//! Restoring tars that other programs wrote.

#![allow(missing_docs)]

mod common;

use common::{Fixture, content, look, plan, restore};
use fullbore::pipeline::meter::Meter;
use fullbore::{command::restore::Restore, error::Kind as ErrorKind};
use std::{fs, path::Path, process::Command};
use tempfile::tempdir;

fn run(dir: &Path, command: &str) -> bool {
    Command::new("sh").arg("-c").arg(command).current_dir(dir).status().unwrap().success()
}

/// A tree on disk in `dir/tree`, with all but the largest sparse file.
fn tree(dir: &Path) {
    let mut fixture = Fixture::sample();
    fixture.entries.retain(|(_, entry, ..)| entry.path != b"sparse/holes");
    fixture.sparse("sparse/holes", 1 << 24, &[(0, 5000), (1 << 20, 9000), (1 << 23, 4096)]);
    fixture.file("big/large", content(5, 3_333_333));
    fixture.write_repository(&dir.join("repo"));
    restore(&dir.join("repo"), &dir.join("tree")).unwrap();
}

#[test]
fn tars_of_every_format_and_codec_come_back() {
    let dir = tempdir().unwrap();
    tree(dir.path());
    let expected = look(&dir.path().join("tree"));
    for (name, make) in [
        ("posix", "tar --format=posix -S -C tree -cf x.tar ."),
        ("posix.zst", "tar --format=posix -C tree -c . | zstd -q > x.tar"),
        ("posix.lz4", "tar --format=posix -C tree -c . | lz4 -q > x.tar"),
        ("posix.gz", "tar --format=posix -C tree -c . | gzip > x.tar"),
    ] {
        if !run(dir.path(), make) {
            continue;
        }
        let to = dir.path().join(name);
        let summary = restore(&dir.path().join("x.tar"), &to).unwrap();
        assert_eq!(summary.notes, Vec::<String>::new(), "{name}");
        assert_eq!(look(&to), expected, "{name}");
    }
}

#[test]
fn a_cut_tar_restores_what_is_whole_and_says_so() {
    let dir = tempdir().unwrap();
    tree(dir.path());
    assert!(run(dir.path(), "tar --format=posix -C tree -cf x.tar a big"));
    let whole = fs::read(dir.path().join("x.tar")).unwrap();
    fs::write(dir.path().join("x.tar"), &whole[..whole.len() - 2_000_000]).unwrap();
    let to = dir.path().join("to");
    let error = restore(&dir.path().join("x.tar"), &to).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    let again = Restore { overwrite: true, keep_going: true, ..plan(&dir.path().join("x.tar"), &to) };
    let summary = again.run(&Meter::default()).unwrap();
    assert_eq!((summary.exit_code(), summary.damage.len()), (4, 1));
    assert!(to.join("a/b/f01").exists() && !to.join("big/large").exists());
}

#[test]
fn hostile_tars_stay_in_their_target() {
    let dir = tempdir().unwrap();
    let at = dir.path();
    fs::create_dir_all(at.join("one/a")).unwrap();
    fs::create_dir(at.join("two")).unwrap();
    fs::write(at.join("one/a/evil"), "evil").unwrap();
    fs::create_dir(at.join("outside")).unwrap();
    std::os::unix::fs::symlink(at.join("outside"), at.join("two/a")).unwrap();
    assert!(run(at, "tar -cf x.tar -C two a && tar -rf x.tar -C one a/evil"));
    let error = restore(&at.join("x.tar"), &at.join("to")).unwrap_err();
    assert!(error.line().contains("a/evil"), "{}", error.line());
    assert_eq!(fs::read_dir(at.join("outside")).unwrap().count(), 0);
    assert!(run(at, "tar -P --transform 's,^,../outside/,' -cf y.tar -C one a/evil"));
    assert!(restore(&at.join("y.tar"), &at.join("to2")).is_err());
    assert_eq!(fs::read_dir(at.join("outside")).unwrap().count(), 0);
}

#[test]
fn a_later_member_replaces_an_earlier_one() {
    let dir = tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), "old").unwrap();
    assert!(run(at, "tar -cf x.tar f && echo new > f && tar -rf x.tar f"));
    restore(&at.join("x.tar"), &at.join("to")).unwrap();
    assert_eq!(fs::read(at.join("to/f")).unwrap(), b"new\n");
}

#[test]
fn a_selection_from_a_tar_takes_what_it_names_only() {
    let dir = tempdir().unwrap();
    tree(dir.path());
    assert!(run(dir.path(), "tar --format=posix -C tree -cf x.tar ."));
    let to = dir.path().join("to");
    let some = Restore { paths: vec![b"a/b/f01".to_vec()], ..plan(&dir.path().join("x.tar"), &to) };
    some.run(&Meter::default()).unwrap();
    assert_eq!(look(&to).into_keys().collect::<Vec<_>>(), ["", "a", "a/b", "a/b/f01"]);
    let none = Restore { paths: vec![b"nope".to_vec()], ..plan(&dir.path().join("x.tar"), &dir.path().join("to2")) };
    assert_eq!(none.run(&Meter::default()).unwrap_err().kind, ErrorKind::NotFound);
}
