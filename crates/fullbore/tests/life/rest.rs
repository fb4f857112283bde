//! What is left of backups that are none any more, and of those whose root is lost.

use super::runs::{Mount, Ran, fullbore, names, noise, temp, text, write};
use super::{assert_restores, beside::died, dir, full, id, prune, thin};
use fullbore_format::error::{ErrorKind, Result};
use fullbore_repository::protocol::{intent_key, remove_abandoned, write_off};
use fullbore_storage::{
    Lease, Leased, ListedObject, LocalObjects, Objects, Put, PutIf, StorageAbilities, Take, Upload,
    Version,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A storage where this is told of every lease.
#[derive(Debug)]
struct Told(LocalObjects, fn() -> Leased);

#[derive(Debug)]
struct ToldLease;

impl Lease for ToldLease {
    fn update(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn is_ours(&self) -> bool {
        true
    }
}

impl Objects for Told {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        self.0.list(prefix)
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.0.read_at(key, offset, len, out)
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        self.0.get(key)
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        self.0.stat(key)
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        self.0.put(key, bytes, condition)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        self.0.create(key)
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        self.0.delete(keys)
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        self.0.abort_uploads(prefix)
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        self.0.settle(prefix)
    }

    fn lease(&self, _: &str, _: &[u8], _: Take) -> Result<Leased> {
        Ok(self.1())
    }

    fn abilities(&self) -> StorageAbilities {
        self.0.abilities()
    }

    fn answers_late(&self) -> bool {
        true
    }

    fn describe(&self, key: &str) -> String {
        self.0.describe(key)
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        None
    }

    fn as_sealed(&self) -> Option<&fullbore_storage::SealedObjects> {
        None
    }
}

/// A backup of the tree, its id.
fn backup(tree: &Path, repository: &Path) -> String {
    let ran = fullbore(args![
        "backup",
        tree,
        "--to",
        repository,
        "--frame-size",
        "64K",
        "--json"
    ])
    .ends_with(0);
    ran.json().last().unwrap()["id"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn files_of(repository: &Path, id: &str) -> PathBuf {
    repository.join("backups").join(id)
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at..at + 6].iter_mut().for_each(|byte| *byte ^= 0x5a);
    fs::write(path, bytes).unwrap();
}

fn sample(repository: &Path, share: &str) -> Ran {
    fullbore(args!["verify", repository, "--sample", share, "--json"])
}

/// A backup that was forgotten and pruned, and another that holds its large file; their ids.
fn held(dir: &Path) -> (PathBuf, PathBuf, [String; 2]) {
    let (tree, repository) = (dir.join("tree"), dir.join("repository"));
    write(tree.join("large"), noise(1, 20 << 20));
    let first = backup(&tree, &repository);
    write(tree.join("small"), "x");
    let second = backup(&tree, &repository);
    fullbore(args!["forget", "--yes", repository, first]).ends_with(0);
    prune(&repository);
    (tree, repository, [first, second])
}

#[test]
fn a_sample_and_a_copy_find_damage_in_what_is_held_of_a_pruned_backup() {
    // Where its document is damaged, nothing says what should be there.
    for keeps_checksums in [true, false] {
        let dir = temp();
        let (_, repository, [first, _]) = held(dir.path());
        let there = files_of(&repository, &first);
        if !keeps_checksums {
            flip(&there.join("forgotten.json"), 100);
        }
        assert!(
            sample(&repository, "100%").ends_with(0).json()[0]["sampled"]["stored_bytes"].as_u64()
                > Some(20 << 20)
        );
        flip(&there.join("s01-000001.tar.zst"), 9_000_000);
        let found = sample(&repository, "100%").ends_with(4).json().remove(0);
        assert_eq!(
            found["lost"][0]["paths"],
            serde_json::json!(["large"]),
            "{found}"
        );
        if keeps_checksums {
            let other = dir.path().join("other");
            fullbore(args!["copy", repository, other])
                .ends_with(4)
                .has_one_error("are damaged");
        }
    }
}

#[test]
fn damage_that_a_sample_found_is_found_by_the_next_one() {
    let dir = temp();
    let (_, repository, [first, _]) = held(dir.path());
    flip(
        &files_of(&repository, &first).join("s01-000001.tar.zst"),
        9_000_000,
    );
    let codes: Vec<i32> = (0..6).map(|_| sample(&repository, "40%").code).collect();
    let known = codes.iter().position(|code| *code == 4).unwrap();
    assert!(codes[known..].iter().all(|code| *code == 4), "{codes:?}");
}

#[test]
fn a_damaged_word_on_a_forgotten_backup_is_named_and_written_again() {
    let dir_ = temp();
    let repository = dir_.path();
    let first = full(repository, 1, "/data");
    thin(repository, 2, &first);
    fullbore(args!["forget", "--yes", repository, id(1)]).ends_with(0);
    prune(repository);
    let word = dir(repository, 1).join("forgotten.json");
    let mut bytes = fs::read(&word).unwrap();
    bytes[40] ^= 1;
    fs::write(&word, bytes).unwrap();
    let ran = fullbore(args!["verify", repository]).ends_with(4);
    assert!(
        ran.out.contains("harmless: ") && ran.out.contains("forgotten.json"),
        "{}",
        ran.out
    );
    assert_restores(repository, 2, 1);
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    let kept = names(&dir(repository, 1));
    prune(repository);
    assert_eq!(names(&dir(repository, 1)), kept);
    assert_restores(repository, 2, 1);
    fullbore(args!["forget", "--yes", repository, id(2)]).ends_with(0);
    prune(repository);
    assert_eq!(names(&repository.join("backups")), [""; 0]);
}

#[test]
fn what_a_forgotten_backup_alone_refers_to_is_no_damage() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    (0..9).for_each(|i| write(tree.join(format!("f{i}")), text(i, 90_000)));
    let first = backup(&tree, &repository);
    fs::remove_file(tree.join("f0")).unwrap();
    let second = backup(&tree, &repository);
    fullbore(args!["forget", "--yes", repository, first]).ends_with(0);
    prune(&repository);
    assert!(
        files_of(&repository, &first)
            .join("forgotten.json")
            .exists()
    );
    (1..9).for_each(|i| write(tree.join(format!("f{i}")), text(i + 50, 90_000)));
    backup(&tree, &repository);
    fullbore(args!["forget", "--yes", repository, second]).ends_with(0);
    fullbore(args!["verify", repository]).ends_with(0);
    fullbore(args!["repair", repository]).ends_with(0);
    prune(&repository);
    assert!(!files_of(&repository, &first).exists());
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
}

#[test]
fn a_prune_leaves_alone_what_a_backup_may_need_whose_root_is_lost() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    let second = full(repository, 2, "/data");
    full(repository, 3, "/data");
    fullbore(args!["forget", "--yes", repository, id(1)]).ends_with(0);
    fs::remove_file(dir(repository, 2).join("root.json")).unwrap();
    let before = [1, 2].map(|day| names(&dir(repository, day)));
    for dry in [&["--dry-run"][..], &[]] {
        let ran = fullbore(
            args!["prune", repository]
                .into_iter()
                .chain(dry.iter().map(Into::into)),
        )
        .ends_with(4);
        ran.has_one_error(&format!("{}/root.json\" is missing", id(2)));
    }
    assert_eq!([1, 2].map(|day| names(&dir(repository, day))), before);
    fullbore(args!["verify", repository]).ends_with(4);
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    prune(repository);
    assert_eq!(names(&repository.join("backups")), [id(2), id(3)]);
    assert!(second.segments.len() > 1);
}

#[test]
fn a_backup_whose_root_is_lost_can_be_given_up() {
    let dir_ = temp();
    let repository = dir_.path();
    let first = full(repository, 1, "/data");
    thin(repository, 2, &first);
    full(repository, 3, "/data");
    fs::remove_file(dir(repository, 3).join("root.json")).unwrap();
    fullbore(args!["prune", repository]).ends_with(4);
    fullbore(args!["forget", "--yes", repository, id(3)]).ends_with(0);
    fullbore(args!["verify", repository]).ends_with(0);
    prune(repository);
    assert_eq!(names(&repository.join("backups")), [id(1), id(2)]);
    fullbore(args!["forget", "--yes", repository, id(3)])
        .ends_with(1)
        .has_one_error("could not find");
}

#[test]
fn what_a_dead_backup_left_is_shown_and_can_be_forgotten() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/other");
    died(repository, 2);
    full(repository, 3, "/other");
    let list = fullbore(args!["list", repository]).ends_with(0);
    let line = list
        .out
        .lines()
        .find(|line| line.starts_with(&id(2)))
        .unwrap();
    assert!(
        line.contains("interrupted and incomplete") && line.ends_with(":/data"),
        "{line}"
    );
    assert_eq!(super::listed(repository), [1, 3]);
    let dry = fullbore(args!["prune", repository, "--dry-run"]).ends_with(0);
    let pruned = prune(repository);
    assert_eq!(dry.out.replace("would free", "freed"), pruned.out);
    assert!(
        pruned.out.starts_with(&id(2)) && pruned.out.contains("to resume the interrupted backup"),
        "{}",
        pruned.out
    );
    let json = fullbore(args!["prune", repository, "--json"])
        .ends_with(0)
        .json();
    assert!(
        json.iter()
            .all(|line| line["cut_off_segments"].as_u64() > Some(1)),
        "{json:?}"
    );
    fullbore(args!["forget", "--yes", repository, id(2)]).ends_with(0);
    assert!(
        prune(repository)
            .out
            .starts_with(&format!("{}  freed", id(2)))
    );
    assert_eq!(names(&repository.join("backups")), [id(1), id(3)]);
}

#[test]
fn what_is_under_way_is_not_forgotten() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    died(repository, 2);
    let held = fs::File::open(repository.join("intents").join(format!("{}.json", id(2)))).unwrap();
    assert!(fullbore_platform::write::lock_exclusive(&held).unwrap());
    fullbore(args!["forget", "--yes", repository, id(2)])
        .ends_with(2)
        .has_one_error("it is running");
    drop(held);
    fullbore(args!["forget", "--yes", repository, id(2)]).ends_with(0);
}

#[test]
fn a_dry_run_counts_what_the_run_removes_of_a_backup_that_was_killed_early() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    died(repository, 2);
    fs::remove_file(dir(repository, 2).join("partial.json")).unwrap();
    let dry = fullbore(args!["prune", repository, "--dry-run"]).ends_with(0);
    assert!(
        dry.out.starts_with(&format!("{}  would free", id(2))),
        "{}",
        dry.out
    );
    assert_eq!(
        dry.out.replace("would free", "freed"),
        prune(repository).out
    );
    assert_eq!(
        (
            names(&repository.join("backups")),
            names(&repository.join("intents"))
        ),
        (vec![id(1)], vec![])
    );
}

#[test]
fn an_id_that_is_empty_means_no_backup() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    fullbore(args!["forget", "--yes", repository, ""])
        .ends_with(2)
        .has_one_error("its id is empty");
    fullbore(args!["show", format!("{}@", repository.display())])
        .ends_with(2)
        .has_one_error("its id is empty");
    assert_eq!(super::listed(repository), [1]);
}

#[test]
fn where_there_are_no_locks_a_prune_says_whom_it_left_alone() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    died(repository, 2);
    full(repository, 3, "/data");
    let (objects, before) = (
        Told(LocalObjects::new(repository), || Leased::Unknown),
        names(&dir(repository, 2)),
    );
    assert_eq!(
        fullbore_repository::prune::prune(&objects, false)
            .unwrap()
            .doubtful,
        [id(2)]
    );
    let error = write_off(&objects, &id(2)).unwrap_err();
    assert!(
        error.kind == ErrorKind::Usage && error.what.contains("it may still be running"),
        "{}",
        error.what
    );
    assert_eq!(names(&dir(repository, 2)), before);
    assert_eq!(
        names(&repository.join("intents")),
        [format!("{}.json", id(2))]
    );
}

#[test]
fn where_there_is_no_room_for_a_file_more_a_prune_still_frees() {
    let dir_ = temp();
    let Some(_mount) = Mount::tmpfs(dir_.path(), "16m,nr_inodes=60") else {
        return;
    };
    let repository = dir_.path();
    full(repository, 1, "/data");
    full(repository, 2, "/data");
    fullbore(args!["forget", "--yes", repository, id(1)]).ends_with(0);
    let filler = repository.join("filler");
    fs::create_dir(&filler).unwrap();
    while fs::write(filler.join(names(&filler).len().to_string()), "").is_ok() {}
    let ran = prune(repository);
    assert!(ran.out.contains("segments"), "{}", ran.out);
    assert_eq!(
        (
            names(&repository.join("backups")),
            names(&repository.join("tombstones"))
        ),
        (vec![id(2)], vec![])
    );
    assert_restores(repository, 2, 2);
}

#[test]
fn where_nothing_is_to_be_freed_nothing_is_removed() {
    let place = temp();
    let Some(_mount) = Mount::tmpfs(place.path(), "20m") else {
        return;
    };
    let (tree, repository) = (place.path().join("tree"), place.path().join("repo"));
    write(tree.join("f"), "x");
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    super::runs::shell("mount -o remount,ro \"$1\"", args![place.path()]).ends_with(0);
    fullbore(args!["prune", repository]).ends_with(0);
}

#[test]
fn a_prune_leaves_alone_whose_intent_somebody_has() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    write(tree.join("a"), noise(1, 100_000));
    let first = backup(&tree, &repository);
    write(tree.join("a"), noise(2, 100_000));
    backup(&tree, &repository);
    fullbore(args!["forget", "--yes", repository, first]).ends_with(0);
    // As a copy does that brings it back.
    let intent = repository.join("intents").join(format!("{first}.json"));
    write(&intent, "");
    let lock = fs::File::open(&intent).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let before = names(&files_of(&repository, &first));
    prune(&repository);
    assert_eq!(names(&files_of(&repository, &first)), before);
    drop(lock);
    prune(&repository);
    assert!(!files_of(&repository, &first).exists() && !intent.exists());
}

#[test]
fn what_is_beside_the_objects_of_a_backup_is_not_pruned() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    write(tree.join("a"), noise(1, 1000));
    let home = files_of(&repository, &backup(&tree, &repository));
    for name in ["s01-000001.tar.zst.orig", "s01-000001.bak", "s1-2.tar"] {
        fs::copy(home.join("s01-000001.tar.zst"), home.join(name)).unwrap();
    }
    let before = names(&home);
    prune(&repository);
    assert_eq!(names(&home), before);
}

#[test]
fn the_root_of_another_backup_is_none() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    let ids: Vec<String> = (0..2)
        .map(|i| {
            write(tree.join("a"), noise(i, 1000));
            backup(&tree, &repository)
        })
        .collect();
    let [a, b] = [0, 1].map(|i| files_of(&repository, &ids[i]));
    fs::copy(b.join("root.json"), a.join("root.json")).unwrap();
    let said = fullbore(args!["list", repository]).ends_with(4).out;
    assert!(
        said.contains(&format!("it belongs to backup {:?}", ids[1])),
        "{said}"
    );
    fullbore(args!["prune", repository]).ends_with(4);
    fullbore(args!["forget", repository, "--keep-last", "1"]).ends_with(4);
    assert!(b.join("root.json").exists() && a.join("manifest").exists());
}

#[test]
fn a_repository_that_lost_its_own_file_is_not_made_anew_around_its_backups() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    write(tree.join("a"), "a");
    backup(&tree, &repository);
    fs::remove_file(repository.join("fullbore-repo.json")).unwrap();
    let ran = fullbore(args!["backup", tree, "--to", repository]).ends_with(1);
    assert!(ran.err.contains("fullbore repair"), "{}", ran.err);
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    backup(&tree, &repository);
}

#[test]
fn nothing_is_cleared_away_under_a_lock_that_nobody_has() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    // Of a run that was cut off before it had a document, or of a copy that begins just now under the name of one.
    let left = dir(repository, 2).join("s01-000001.tar.zst");
    write(&left, "stored");
    let intent = repository.join(intent_key(&id(2)));
    write(&intent, "");
    remove_abandoned(&Told(LocalObjects::new(repository), || Leased::Absent)).unwrap();
    assert!(left.exists() && intent.exists());
    remove_abandoned(&Told(LocalObjects::new(repository), || {
        Leased::Ours(Box::new(ToldLease))
    }))
    .unwrap();
    assert!(!left.exists() && !intent.exists());
}
