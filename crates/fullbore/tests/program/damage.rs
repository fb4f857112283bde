//! Damage of every kind at every place: found, named, and survived with `--keep-going`.

use fullbore_engine::{
    restore::{Restore, Summary},
    verify::{Verify, VerifyVerdict},
};
use fullbore_format::{
    entry::EntryKind,
    error::{Error, ErrorKind},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform::metrics::meter::Meter;
use fullbore_storage::Storages;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use testkit::{
    fixture::{self, Fixture, content},
    runs::{args, fullbore},
};

/// In memory where possible: each of a thousand restores makes a file system durable, with all that others write to it.
fn tempdir() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

fn restore(from: &Path, to: &Path, keep_going: bool) -> Result<Summary, Error> {
    let restore = Restore {
        storages: Storages::default(),
        from: from.to_str().unwrap().into(),
        filter: Default::default(),
        to: to.into(),
        paths: vec![],
        patterns: Default::default(),
        into: fullbore_engine::restore::RestoreInto::Empty,
        keep_going,
        numeric_owner: false,
        postgres: Default::default(),
        workers: 2.try_into().unwrap(),
        memory: 1 << 27,
        fetch_words: Vec::new(),
        say_elsewhere: |_| (),
        say_removed: |_| Ok(()),
    };
    restore.run(&Meter::default())
}

fn verify(from: &Path, data: bool) -> Result<VerifyVerdict, Error> {
    let source = from.to_str().unwrap().into();
    let verify = Verify {
        storages: Storages::default(),
        from: source,
        filter: Default::default(),
        data,
        against: None,
        shard: None,
        workers: 2.try_into().unwrap(),
    };
    verify.run(&Meter::default())
}

fn small(codec: Codec) -> Fixture {
    let mut fixture = Fixture {
        codec,
        frame_bytes: 1024,
        page_records: 4,
        ..Fixture::default()
    };
    fixture.dir("", 0o755).dir("d", 0o755);
    for i in 0..9 {
        fixture.file(&format!("d/f{i}"), content(i, (i * 60 + 1) as usize));
    }
    fixture
        .file("large", content(77, 3300))
        .symlink("link", "d");
    fixture
}

/// All files of a backup, without `fullbore-repo.json`.
fn stored_files(at: &Path) -> Vec<PathBuf> {
    if at.is_file() {
        return vec![at.to_owned()];
    }
    fs::read_dir(at.join("backups").join(fixture::ID))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect()
}

/// Every file of the fixture is either named in `lost` and not there, or there and right.
fn assert_honest(fixture: &Fixture, to: &Path, lost: &BTreeSet<Vec<u8>>, case: &str) {
    for (_, entry, data, _) in &fixture.entries {
        let path = to.join(std::str::from_utf8(&entry.path).unwrap());
        if let (EntryKind::File { .. }, false) = (&entry.kind, lost.contains(&entry.path)) {
            let found = fs::read(&path).unwrap_or_else(|e| panic!("{case}: {path:?}: {e}"));
            assert!(
                found == *data,
                "{case}: {path:?} is wrong and nobody says so"
            );
        } else if entry.is_file() {
            assert!(
                !path.exists(),
                "{case}: {path:?} is damaged and looks whole"
            );
        }
    }
}

fn check_damage(fixture: &Fixture, from: &Path, dir: &Path, case: &str) {
    let target = dir.join("to");
    let _ = fs::remove_dir_all(&target);
    let found = verify(from, true).map_or(true, |verdict| verdict.exit_code() == 4);
    assert!(found, "{case}: verify --data finds nothing");
    match restore(from, &target, true) {
        Ok(summary) => {
            // A page that is lost in all its copies loses entries that nobody can name.
            let page_lost = summary.damage.iter().any(|damage| damage.files.is_empty());
            let lost = summary
                .damage
                .iter()
                .flat_map(|damage| damage.files.clone())
                .collect();
            if !page_lost {
                assert_honest(fixture, &target, &lost, case);
            }
            let _ = fs::remove_dir_all(&target);
            let strict = restore(from, &target, false);
            assert_eq!(strict.is_err(), !summary.damage.is_empty(), "{case}");
            strict
                .map_err(|e| assert_eq!(e.exit_code(), 4, "{case}: {}", e.line()))
                .ok();
        }
        Err(error) => assert_eq!(error.exit_code(), 4, "{case}: {}", error.line()),
    }
}

fn flip_everywhere(codec: Codec, one_file: bool, step: usize) {
    let dir = tempdir().unwrap();
    let fixture = small(codec);
    let source = if one_file {
        dir.path().join("x.tar")
    } else {
        dir.path().join("repo")
    };
    if one_file {
        fixture.write_archive(&source)
    } else {
        fixture.write_repository(&source)
    };
    assert_eq!(verify(&source, true).unwrap().exit_code(), 0);
    assert_eq!(verify(&source, false).unwrap().exit_code(), 0);
    for file in stored_files(&source) {
        let whole = fs::read(&file).unwrap();
        for offset in (0..whole.len())
            .step_by(step)
            .chain((whole.len().saturating_sub(60)..whole.len()).step_by(3))
        {
            let mut bytes = whole.clone();
            bytes[offset] ^= 1 << (offset % 8);
            fs::write(&file, &bytes).unwrap();
            check_damage(
                &fixture,
                &source,
                dir.path(),
                &format!("{codec}, byte {offset} of {file:?}"),
            );
        }
        fs::write(&file, &whole).unwrap();
    }
}

#[test]
fn a_flipped_bit_anywhere_in_a_repository_is_found() {
    flip_everywhere(Codec::Zstd(1), false, 37);
}

#[test]
fn a_flipped_bit_anywhere_in_an_archive_is_found() {
    flip_everywhere(Codec::Zstd(1), true, 37);
}

#[test]
fn a_flipped_bit_is_found_whatever_the_codec() {
    for codec in [Codec::Lz4, Codec::None] {
        flip_everywhere(codec, false, 151);
        flip_everywhere(codec, true, 151);
    }
}

#[test]
fn a_file_that_is_cut_or_gone_is_found() {
    let dir = tempdir().unwrap();
    let fixture = small(Codec::Zstd(1));
    let repo = dir.path().join("repo");
    fixture.write_repository(&repo);
    for file in stored_files(&repo)
        .into_iter()
        .filter(|file| !file.ends_with("root.json"))
    {
        let whole = fs::read(&file).unwrap();
        for len in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&file, &whole[..len]).unwrap();
            check_damage(
                &fixture,
                &repo,
                dir.path(),
                &format!("{file:?} cut to {len}"),
            );
        }
        fs::remove_file(&file).unwrap();
        check_damage(&fixture, &repo, dir.path(), &format!("{file:?} gone"));
        assert_eq!(verify(&repo, false).unwrap().exit_code(), 4);
        fs::write(&file, &whole).unwrap();
    }
}

#[test]
fn without_its_manifest_a_repository_restores_whatever_the_codec() {
    for codec in [Codec::Zstd(1), Codec::Lz4, Codec::None] {
        let (dir, away) = (tempdir().unwrap(), tempdir().unwrap());
        let fixture = Fixture {
            segment_bytes: 1500,
            ..small(codec)
        };
        fixture.write_repository(dir.path());
        fs::remove_file(
            dir.path()
                .join("backups")
                .join(fixture::ID)
                .join("manifest"),
        )
        .unwrap();
        restore(dir.path(), &away.path().join("to"), false).unwrap();
        assert_honest(
            &fixture,
            &away.path().join("to"),
            &BTreeSet::new(),
            &codec.to_string(),
        );
        assert_eq!(verify(dir.path(), true).unwrap().exit_code(), 4);
    }
}

#[test]
fn an_archive_cut_anywhere_is_damaged_and_not_foreign() {
    let dir = tempdir().unwrap();
    let archive = dir.path().join("x.tar.zst");
    small(Codec::Zstd(1)).write_archive(&archive);
    let whole = fs::read(&archive).unwrap();
    for len in (100..whole.len()).step_by(97) {
        fs::write(&archive, &whole[..len]).unwrap();
        assert_eq!(
            verify(&archive, false).unwrap_err().kind,
            ErrorKind::Corrupt,
            "{len} bytes"
        );
    }
}

#[test]
fn the_error_names_frame_backup_and_files() {
    let dir = tempdir().unwrap();
    let repo = dir.path().join("repo");
    let fixture = small(Codec::Zstd(1));
    fixture.write_repository(&repo);
    let segment = stored_files(&repo)
        .into_iter()
        .find(|file| file.to_str().unwrap().ends_with("zst"))
        .unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    // The content of "large" in the first of its frames, by the frame's stored bytes.
    let frame = fixture::packed(Codec::Zstd(1), &content(77, 3300)[..1024]);
    let offset = bytes
        .windows(frame.len())
        .position(|window| window == frame)
        .unwrap()
        + 100;
    bytes[offset] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let error = restore(&repo, &dir.path().join("to"), false).unwrap_err();
    assert!(
        error.what.starts_with("the frame at byte "),
        "{}",
        error.what
    );
    assert!(error.what.contains(fixture::ID), "{}", error.what);
    assert_eq!(error.detail, ["it holds part of 1 of 10 files: \"large\""]);
    assert!(error.hint.unwrap().contains("--keep-going"));
    assert!(!dir.path().join("to/large").exists());
    let verdict = verify(&repo, true).unwrap();
    assert_eq!(
        verdict.damage.len(),
        2,
        "the frame, and the part it is in: {:?}",
        verdict.damage
    );
    let text = {
        let mut out = Vec::new();
        verdict.print(&mut out, true).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(text.contains("\"large\""), "{text}");
}

#[test]
fn of_a_damaged_frame_only_what_is_damaged_is_lost() {
    let dir = tempdir().unwrap();
    let repo = dir.path().join("repo");
    let mut fixture = Fixture {
        frame_bytes: 64 << 10,
        ..Fixture::default()
    };
    fixture.dir("", 0o755);
    let noise = |seed: u64| -> Vec<u8> {
        content(seed, 16_000)
            .chunks(2)
            .map(|two| two[0] << 4 ^ two[1])
            .collect()
    };
    (0..5).for_each(|i| _ = fixture.file(&format!("f{i}"), noise(i)));
    fixture.write_repository(&repo);
    let segment = stored_files(&repo)
        .into_iter()
        .find(|file| file.to_str().unwrap().ends_with("zst"))
        .unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let wanted = &noise(2)[100..164];
    let offset = bytes
        .windows(64)
        .position(|window| window == wanted)
        .expect("noise is stored as it is");
    bytes[offset] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let damage = restore(&repo, &dir.path().join("to"), true).unwrap().damage;
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert!(
        damage[0].what.starts_with("the frame at byte "),
        "{damage:?}"
    );
    assert_eq!(damage[0].files, [b"f2".to_vec()]);
    assert_honest(
        &fixture,
        &dir.path().join("to"),
        &[b"f2".to_vec()].into(),
        "only f2",
    );
}

#[test]
fn a_damaged_root_is_listed_and_not_hidden() {
    let dir = tempdir().unwrap();
    let fixture = small(Codec::Zstd(1));
    fixture.write_repository(dir.path());
    let root = dir
        .path()
        .join("backups")
        .join(fixture::ID)
        .join("root.json");
    let mut bytes = fs::read(&root).unwrap();
    bytes[30] ^= 1;
    fs::write(&root, bytes).unwrap();
    for json in [false, true] {
        let mut words = args(["list"]);
        words.extend(json.then(|| "--json".into()));
        words.push(dir.path().into());
        let text = fullbore(words).ends_with(4).out;
        assert!(
            text.contains(fixture::ID) && text.contains("damaged"),
            "{text}"
        );
    }
}
