//! Repositories whose backups refer to each other: what is checked, and what the loss of any one object costs.

use fullbore_engine::{
    restore::Restore,
    verify::{Verify, VerifyVerdict},
};
use fullbore_format::entry::EntryKind;
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform::metrics::meter::Meter;
use fullbore_storage::Storages;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use testkit::fixture::{Fixture, ID, content, plan};

const SECOND: &str = "20261122T054501Z-k3f9qz";
const THIRD: &str = "20261123T054501Z-k3f9qz";

/// In memory where possible: restores make a whole file system durable.
fn temp() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

fn first(codec: Codec) -> Fixture {
    let mut fixture = Fixture {
        codec,
        frame_bytes: 1024,
        page_records: 4,
        segment_bytes: 3000,
        ..Fixture::default()
    };
    fixture.dir("", 0o755).dir("d", 0o755).symlink("link", "d");
    for i in 0..14 {
        fixture.file(&format!("d/f{i:02}"), content(i, (i * 60 + 1) as usize));
    }
    fixture
        .file("large", content(77, 5300))
        .file("other", content(78, 2500))
        .link("second", "d/f03");
    fixture
}

/// The same tree with some files changed.
fn later(before: &Fixture, id: &str, changed: &[&str]) -> Fixture {
    let mut next = Fixture {
        id: id.into(),
        base: Some(before.id.clone()),
        ..before.clone()
    };
    for path in changed {
        next.entries.retain(|entry| entry.1.path != path.as_bytes());
        next.file(
            path,
            content(
                id.len() as u64 + u64::from(id.as_bytes()[7]),
                1700 + path.len(),
            ),
        );
    }
    next
}

fn three(repository: &Path, codec: Codec) -> [Fixture; 3] {
    let first = first(codec);
    let second = later(&first, SECOND, &["d/f04", "large", "x0", "x1", "x2", "x3"]);
    let mut third = later(&second, THIRD, &["d/f11", "new"]);
    // Or all of the second would be needed by the third, and it would look like one that was forgotten and pruned.
    third
        .entries
        .retain(|entry| !entry.1.path.starts_with(b"x"));
    let all = [first, second, third];
    all.iter()
        .for_each(|fixture| drop(fixture.write_repository(repository)));
    all
}

fn verify(from: &Path, data: bool) -> VerifyVerdict {
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
    verify.run(&Meter::default()).unwrap()
}

/// All files of a repository.
fn objects(repository: &Path) -> Vec<PathBuf> {
    let (mut found, mut stack) = (Vec::new(), vec![repository.to_owned()]);
    while let Some(dir) = stack.pop() {
        for path in fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if path.is_dir() {
                stack.push(path)
            } else {
                found.push(path)
            }
        }
    }
    found.sort();
    found
}

/// Names of files that a restore with --keep-going does not give; all of them if there is no restore.
fn not_restored(repository: &Path, fixture: &Fixture, to: &Path) -> BTreeSet<String> {
    let _ = fs::remove_dir_all(to);
    let backup = PathBuf::from(format!("{}@{}", repository.display(), fixture.id));
    let restored = Restore {
        storages: Storages::default(),
        keep_going: true,
        ..plan(&backup, to)
    }
    .run(&Meter::default());
    let names = fixture
        .entries
        .iter()
        .filter(|entry| entry.1.is_file() || matches!(entry.1.kind, EntryKind::HardLink(_)));
    let is_right = |path: &str, data: &[u8], kind: &EntryKind| match (fs::read(to.join(path)), kind)
    {
        (Ok(found), EntryKind::File { .. }) => found == data,
        (Ok(_), _) => true,
        (Err(_), _) => false,
    };
    let names = names.map(|entry| {
        (
            String::from_utf8(entry.1.path.clone()).unwrap(),
            &entry.2,
            &entry.1.kind,
        )
    });
    let names = names.filter(|(path, data, kind)| restored.is_err() || !is_right(path, data, kind));
    names.map(|(path, ..)| path).collect()
}

/// What a verdict says is lost of each backup.
fn said(verdict: &VerifyVerdict, all: &[Fixture]) -> BTreeMap<String, BTreeSet<String>> {
    let mut said = BTreeMap::new();
    for loss in &verdict.lost {
        let text = |path: &Vec<u8>| String::from_utf8(path.clone()).unwrap();
        let fixture = all
            .iter()
            .find(|fixture| fixture.id == loss.backup)
            .unwrap();
        let every = fixture
            .entries
            .iter()
            .filter(|entry| entry.1.is_file() || matches!(entry.1.kind, EntryKind::HardLink(_)));
        assert!(loss.unnamed.is_empty(), "{loss:?}");
        let lost: BTreeSet<String> = match loss.all {
            true => every.map(|entry| text(&entry.1.path)).collect(),
            false => loss.files.iter().map(text).collect(),
        };
        said.insert(loss.backup.clone(), lost);
    }
    said
}

#[test]
fn backups_that_refer_to_each_other_are_sound_and_restore() {
    for codec in [Codec::Zstd(1), Codec::Lz4, Codec::None] {
        let dir = temp();
        let repository = dir.path().join("repo");
        let all = three(&repository, codec);
        let root = fullbore_repository::archive::Archive::open_backup(
            &Storages::default().repository_at(&repository).unwrap(),
            THIRD,
        )
        .unwrap()
        .root;
        assert_eq!(
            root.referenced_backups(),
            [ID, SECOND],
            "pages and segments of both are referred to"
        );
        assert!(
            root.pages.iter().any(|page| page.backup == ID),
            "a page is shared: {:?}",
            root.pages
        );
        for data in [false, true] {
            let verdict = verify(&repository, data);
            assert_eq!(
                (verdict.damage, verdict.lost, verdict.warnings),
                (vec![], vec![], vec![]),
                "{codec}"
            );
            assert_eq!(verdict.backups, 3);
        }
        for fixture in &all {
            assert_eq!(
                not_restored(&repository, fixture, &dir.path().join("to")),
                BTreeSet::new(),
                "{codec}"
            );
            let one = PathBuf::from(format!("{}@{}", repository.display(), fixture.id));
            let verdict = verify(&one, true);
            assert_eq!(
                (verdict.exit_code(), verdict.id),
                (0, fixture.id.clone()),
                "{codec}"
            );
        }
    }
}

#[test]
fn the_loss_of_any_object_names_exactly_the_files_that_are_lost_with_it() {
    for codec in [Codec::Zstd(1), Codec::None] {
        let dir = temp();
        let repository = dir.path().join("repo");
        let all = three(&repository, codec);
        for object in objects(&repository)
            .into_iter()
            .filter(|path| !path.ends_with("fullbore-repo.json"))
        {
            let whole = fs::read(&object).unwrap();
            for damage in ["gone", "empty", "cut", "flipped"] {
                match damage {
                    "gone" => fs::remove_file(&object).unwrap(),
                    "empty" => fs::write(&object, []).unwrap(),
                    "cut" => fs::write(&object, &whole[..whole.len() / 2]).unwrap(),
                    _ => {
                        let mut bytes = whole.clone();
                        bytes[whole.len() / 3] ^= 4;
                        fs::write(&object, bytes).unwrap();
                    }
                }
                let case = format!("{codec}, {object:?} {damage}");
                let verdict = verify(&repository, true);
                assert_eq!(verdict.exit_code(), 4, "{case}");
                let said = said(&verdict, &all);
                for fixture in &all {
                    let lost = not_restored(&repository, fixture, &dir.path().join("to"));
                    assert_eq!(
                        said.get(&fixture.id).cloned().unwrap_or_default(),
                        lost,
                        "{case}, {}: {verdict:?}",
                        fixture.id
                    );
                }
                let named = verdict
                    .lost
                    .iter()
                    .any(|loss| loss.files.is_empty() && !loss.all);
                assert!(!named, "{case}: a loss of nothing: {verdict:?}");
            }
            fs::write(&object, &whole).unwrap();
        }
        assert_eq!(verify(&repository, true).exit_code(), 0);
    }
}
