//! Restoring tars that other programs wrote.

use fullbore_engine::restore::{Restore, Summary};
use fullbore_format::error::{ErrorKind, Result};
use fullbore_platform::metrics::meter::Meter;
use fullbore_storage::Storages;
use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};
use tempfile::tempdir;
use testkit::fixture::{Fixture, content, look, plan, restore};

fn run(dir: &Path, command: &str) -> bool {
    Command::new("sh")
        .arg("-c")
        .arg(command)
        .current_dir(dir)
        .status()
        .unwrap()
        .success()
}

/// A tree on disk in `dir/tree`, with all but the largest sparse file.
fn tree(dir: &Path) {
    let mut fixture = Fixture::sample();
    fixture
        .entries
        .retain(|(_, entry, ..)| entry.path != b"sparse/holes");
    fixture.sparse(
        "sparse/holes",
        1 << 24,
        &[(0, 5000), (1 << 20, 9000), (1 << 23, 4096)],
    );
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
        (
            "posix.zst",
            "tar --format=posix -C tree -c . | zstd -q > x.tar",
        ),
        (
            "posix.lz4",
            "tar --format=posix -C tree -c . | lz4 -q > x.tar",
        ),
        ("posix.gz", "tar --format=posix -C tree -c . | gzip > x.tar"),
    ] {
        if !run(dir.path(), make) {
            continue;
        }
        let target = dir.path().join(name);
        let summary = restore(&dir.path().join("x.tar"), &target).unwrap();
        assert_eq!(summary.notes, Vec::<String>::new(), "{name}");
        assert_eq!(look(&target), expected, "{name}");
    }
}

#[test]
fn a_cut_tar_restores_what_is_whole_and_says_so() {
    let dir = tempdir().unwrap();
    tree(dir.path());
    assert!(run(
        dir.path(),
        "tar --format=posix -C tree -cf x.tar a big"
    ));
    let whole = fs::read(dir.path().join("x.tar")).unwrap();
    fs::write(dir.path().join("x.tar"), &whole[..whole.len() - 2_000_000]).unwrap();
    let target = dir.path().join("to");
    let error = restore(&dir.path().join("x.tar"), &target).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    let again = Restore {
        storages: Storages::default(),
        into: fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
        keep_going: true,
        ..plan(&dir.path().join("x.tar"), &target)
    };
    let summary = again.run(&Meter::default()).unwrap();
    assert_eq!((summary.exit_code(), summary.damage.len()), (4, 1));
    assert!(target.join("a/b/f01").exists() && !target.join("big/large").exists());
}

#[test]
fn hostile_tars_stay_in_their_target() {
    let dir = tempdir().unwrap();
    let path = dir.path();
    fs::create_dir_all(path.join("one/a")).unwrap();
    fs::create_dir(path.join("two")).unwrap();
    fs::write(path.join("one/a/evil"), "evil").unwrap();
    fs::create_dir(path.join("outside")).unwrap();
    std::os::unix::fs::symlink(path.join("outside"), path.join("two/a")).unwrap();
    assert!(run(
        path,
        "tar -cf x.tar -C two a && tar -rf x.tar -C one a/evil"
    ));
    let error = restore(&path.join("x.tar"), &path.join("to")).unwrap_err();
    assert!(error.line().contains("a/evil"), "{}", error.line());
    assert_eq!(fs::read_dir(path.join("outside")).unwrap().count(), 0);
    assert!(run(
        path,
        "tar -P --transform 's,^,../outside/,' -cf y.tar -C one a/evil"
    ));
    assert!(restore(&path.join("y.tar"), &path.join("to2")).is_err());
    assert_eq!(fs::read_dir(path.join("outside")).unwrap().count(), 0);
}

#[test]
fn a_later_member_replaces_an_earlier_one() {
    let dir = tempdir().unwrap();
    let path = dir.path();
    fs::write(path.join("f"), "old").unwrap();
    assert!(run(
        path,
        "tar -cf x.tar f && echo new > f && tar -rf x.tar f"
    ));
    restore(&path.join("x.tar"), &path.join("to")).unwrap();
    assert_eq!(fs::read(path.join("to/f")).unwrap(), b"new\n");
}

#[test]
fn a_selection_from_a_tar_takes_what_it_names_only() {
    let dir = tempdir().unwrap();
    tree(dir.path());
    assert!(run(dir.path(), "tar --format=posix -C tree -cf x.tar ."));
    let target = dir.path().join("to");
    let some = Restore {
        storages: Storages::default(),
        paths: vec![b"a/b/f01".to_vec()],
        ..plan(&dir.path().join("x.tar"), &target)
    };
    some.run(&Meter::default()).unwrap();
    assert_eq!(
        look(&target).into_keys().collect::<Vec<_>>(),
        ["", "a", "a/b", "a/b/f01"]
    );
    let none = Restore {
        storages: Storages::default(),
        paths: vec![b"nope".to_vec()],
        ..plan(&dir.path().join("x.tar"), &dir.path().join("to2"))
    };
    assert_eq!(
        none.run(&Meter::default()).unwrap_err().kind,
        ErrorKind::NotFound
    );
}

/// What `command` writes to its standard output, if it can be run.
fn output(dir: &Path, command: &str) -> Option<Vec<u8>> {
    let output = Command::new("sh")
        .arg("-c")
        .arg(command)
        .current_dir(dir)
        .output()
        .unwrap();
    output.status.success().then_some(output.stdout)
}

fn restore_bytes(dir: &Path, to: &str, bytes: &[u8]) -> Result<Summary> {
    fs::write(dir.join("x"), bytes).unwrap();
    restore(&dir.join("x"), &dir.join(to))
}

#[test]
fn a_stream_cut_anywhere_is_damaged_whatever_its_codec() {
    let dir = tempdir().unwrap();
    tree(dir.path());
    for codec in [
        "cat",
        "gzip",
        "zstd -q",
        "lz4 -q",
        "lz4 -q --no-frame-crc -B4",
        "lz4 -q -BX",
    ] {
        let Some(whole) = output(dir.path(), &format!("tar -C tree -c a big | {codec}")) else {
            continue;
        };
        let cuts = [
            1,
            5,
            12,
            100,
            70_000,
            900_000,
            whole.len() / 2,
            whole.len() - 300,
            whole.len() - 20,
        ];
        // A plain tar ends in blocks that nobody needs, and its first bytes do not tell that it is one.
        for cut in cuts
            .into_iter()
            .filter(|cut| codec != "cat" || (10_240..whole.len() / 2 + 1).contains(cut))
        {
            let target = format!("{codec} {cut}");
            let error =
                restore_bytes(dir.path(), &target, &whole[..whole.len() - cut]).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt, "{target}: {}", error.line());
        }
    }
}

#[test]
fn a_tar_without_its_end_is_damaged_and_what_was_there_is_restored() {
    let dir = tempdir().unwrap();
    tree(dir.path());
    let whole = output(dir.path(), "chmod 750 tree/a && tar -b 1 -C tree -c a").unwrap();
    let error = restore_bytes(dir.path(), "to", &whole[..whole.len() - 1024]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(error.line().contains("closing blocks"), "{}", error.line());
    assert!(error.hint.is_none(), "there is nothing to go on with");
    assert!(dir.path().join("to/a/b/f01").exists());
    assert_eq!(
        fs::metadata(dir.path().join("to/a"))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777,
        0o750
    );
}

#[test]
fn a_tar_of_nothing_is_restored_and_nothing_is_no_tar() {
    let dir = tempdir().unwrap();
    let none = output(dir.path(), "tar -cT /dev/null").unwrap();
    assert_eq!(restore_bytes(dir.path(), "none", &none).unwrap().entries, 0);
    for (target, make) in [("empty", "true"), ("packed", "printf '' | gzip")] {
        let error =
            restore_bytes(dir.path(), target, &output(dir.path(), make).unwrap()).unwrap_err();
        assert!(error.line().contains("empty"), "{}", error.line());
    }
}

#[test]
fn a_flipped_byte_is_damage_in_every_codec() {
    let dir = tempdir().unwrap();
    tree(dir.path());
    for codec in [
        "gzip",
        "zstd -q --check",
        "lz4 -q",
        "lz4 -q --no-frame-crc -BX",
    ] {
        // The same bytes each time: elsewhere the byte may be one that the decoder itself refuses.
        let tar = format!("tar -C tree --sort=name --mtime=@0 -c a big | {codec}");
        let Some(mut whole) = output(dir.path(), &tar) else {
            continue;
        };
        let offset = whole.len() / 2;
        whole[offset] ^= 0x55;
        let error = restore_bytes(dir.path(), codec, &whole).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{codec}: {}", error.line());
        assert!(
            error.detail.concat().contains("may be damaged too"),
            "{codec}: {:?}",
            error.detail
        );
        let again = Restore {
            storages: Storages::default(),
            keep_going: true,
            ..plan(
                &dir.path().join("x"),
                &dir.path().join(format!("{codec} on")),
            )
        };
        let summary = again.run(&Meter::default()).unwrap();
        assert_eq!(
            (summary.exit_code(), summary.damage.len()),
            (4, 1),
            "{codec}"
        );
    }
}

#[test]
fn zeros_behind_the_last_member_of_gzip_are_padding() {
    let dir = tempdir().unwrap();
    tree(dir.path());
    let padded = output(dir.path(), "tar -C tree -cz a && head -c 3000 /dev/zero").unwrap();
    assert_eq!(
        restore_bytes(dir.path(), "zeros", &padded).unwrap().notes,
        Vec::<String>::new()
    );
    assert!(dir.path().join("zeros/a/b/f01").exists());
    let other = output(
        dir.path(),
        "tar -C tree -cz a && head -c 3000 /dev/zero && echo x",
    )
    .unwrap();
    assert_eq!(
        restore_bytes(dir.path(), "other", &other).unwrap_err().kind,
        ErrorKind::Corrupt
    );
}
#[test]
fn a_stream_that_is_encrypted_wants_a_key() {
    let dir = tempdir().unwrap();
    let bytes = b"age-encryption.org/v1\n-> X25519 x\n and so on";
    let error = restore_bytes(dir.path(), "age", bytes).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission, "{}", error.line());
    assert!(
        error.line().contains("no key was given"),
        "{}",
        error.line()
    );
}

#[test]
fn what_is_no_tar_is_called_what_it_is() {
    let dir = tempdir().unwrap();
    let path = dir.path();
    fs::write(path.join("f"), "a line of text\n".repeat(1000)).unwrap();
    for (name, make) in [
        ("xz", "tar -c f | xz"),
        ("bzip2", "tar -c f | bzip2"),
        ("cpio", "printf '070701'; head -c 2000 f"),
        ("not a tar", "cat f"),
    ] {
        let Some(bytes) = output(path, make).filter(|bytes| !bytes.is_empty()) else {
            continue;
        };
        let error = restore_bytes(path, name, &bytes).unwrap_err();
        assert_eq!(
            error.kind,
            ErrorKind::Unsupported,
            "{name}: {}",
            error.line()
        );
        assert!(error.line().contains(name), "{name}: {}", error.line());
    }
}
