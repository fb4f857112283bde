//! A backup of an unchanged source adds little, however long the lists of its base are; and the lists outlive the base.

use crate::runs::{self, assert_same, fullbore, names, noise, set_mtime, shape, temp};
use age::secrecy::ExposeSecret;
use fullbore_format::{
    root::Root,
    seal::{open_sealed, seal},
};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// A backup without changes adds at most so much.
const ADDED_BYTES: u64 = 4096;

struct World {
    dir: tempfile::TempDir,
    key: Vec<OsString>,
}

impl World {
    /// A tree whose backup has many segments, so that the lists have more bytes than the rest of the root.
    fn new() -> Self {
        let world = Self {
            dir: temp(),
            key: Vec::new(),
        };
        for number in 0..12 {
            let file = world.path(&format!("tree/{number:02}"));
            runs::write(&file, noise(number, 1_100_000));
            set_mtime(&file, 1_600_000_000, 0);
        }
        set_mtime(&world.path("tree"), 1_600_000_000, 0);
        // What changed within two seconds before a backup is read again by the next one.
        thread::sleep(Duration::from_millis(3200));
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn backup_to(&self, repository: &str) -> String {
        let args = args!["backup", self.path("tree"), "--to", self.path(repository)];
        let more = args!["--segment-size", "1M", "--frame-size", "64K", "--json"];
        let ran = fullbore(args.into_iter().chain(more).chain(self.key.clone()));
        let result = ran.ends_with(0).json().pop().unwrap();
        result["id"].as_str().unwrap().to_owned()
    }

    fn backup(&self) -> String {
        self.backup_to("repo")
    }

    fn dir_of(&self, repository: &str, id: &str) -> PathBuf {
        self.path(repository).join("backups").join(id)
    }

    fn stored_root(&self, repository: &str, id: &str) -> Root {
        let bytes = fs::read(self.dir_of(repository, id).join("root.json")).unwrap();
        open_sealed(&bytes, "root").unwrap()
    }

    fn run(&self, words: &[&str], code: i32) -> runs::Ran {
        let args = words.iter().map(OsString::from).map(|word| {
            let is_path = word == "repo" || word == "dest" || word == "back";
            match is_path {
                true => self.path(word.to_str().unwrap()).into_os_string(),
                false => word,
            }
        });
        fullbore(args.chain(self.key.clone())).ends_with(code)
    }

    fn copy(&self, id: &str) {
        let mut from = self.path("repo").into_os_string();
        from.push(format!("@{id}"));
        fullbore(args!["copy", from, self.path("dest")]).ends_with(0);
    }

    #[track_caller]
    fn assert_restores(&self, repository: &str, id: &str) {
        let dir = temp();
        let back = dir.path().join("back");
        let mut from = self.path(repository).into_os_string();
        from.push(format!("@{id}"));
        let args = args!["restore", from, "--to", back, "--quiet"];
        fullbore(args.into_iter().chain(self.key.clone())).ends_with(0);
        assert_same(&shape(&self.path("tree")), &shape(&back), id);
    }
}

fn bytes_below(dir: &Path) -> u64 {
    let files = names(dir).into_iter();
    files
        .map(|name| fs::metadata(dir.join(name)).unwrap().len())
        .sum()
}

/// Two backups without changes share the lists of the first one, which is forgotten, and whose rest is pruned with the last of them.
fn lists_outlive_their_backup(world: &World) {
    let first = world.backup();
    let (second, third) = (world.backup(), world.backup());
    for id in [&second, &third] {
        let root = world.stored_root("repo", id);
        assert_eq!(root.lists_of, first, "no chain");
        assert_eq!((root.pages.len(), root.liveness.len()), (0, 0));
        let added = bytes_below(&world.dir_of("repo", id));
        assert!(added <= ADDED_BYTES, "{added}");
    }
    let whole = bytes_below(&world.dir_of("repo", &first));
    assert!(whole > 12_000_000);
    world.run(&["forget", "repo", &first], 0);
    world.run(&["prune", "repo"], 0);
    // The document of an encrypted one says its new name.
    assert!(bytes_below(&world.dir_of("repo", &first)).abs_diff(whole) < 10);
    for id in [&second, &third] {
        world.assert_restores("repo", id);
    }
    world.run(&["verify", "repo", "--data", "-q"], 0);
    // A base whose lists are those of a forgotten backup is a base like any other.
    let fourth = world.backup();
    assert_eq!(world.stored_root("repo", &fourth).lists_of, first);
    runs::write(world.path("tree/new"), noise(77, 1000));
    let fifth = world.backup();
    let root = world.stored_root("repo", &fifth);
    assert!(root.lists_of.is_empty() && !root.pages.is_empty());
    assert!(bytes_below(&world.dir_of("repo", &fifth)) < 100_000);
    fs::remove_file(world.path("tree/new")).unwrap();
    set_mtime(&world.path("tree"), 1_600_000_000, 0);
    world.run(&["forget", "repo", &second, &fourth, &fifth], 0);
    world.run(&["prune", "repo"], 0);
    world.assert_restores("repo", &third);
    let last = world.backup();
    world.run(&["forget", "repo", &third], 0);
    world.run(&["forget", "repo", "--undo", &third], 0);
    world.assert_restores("repo", &third);
    world.run(&["forget", "repo", &third, &last], 0);
    world.run(&["prune", "repo"], 0);
    assert_eq!(names(&world.path("repo/backups")), [""; 0]);
}

#[test]
fn a_backup_without_changes_adds_4_kib_and_its_lists_outlive_the_base() {
    lists_outlive_their_backup(&World::new());
}

#[test]
fn of_an_encrypted_repository_too() {
    let mut world = World::new();
    let identity = age::x25519::Identity::generate();
    let key = world.path("key");
    runs::write_private(&key, identity.to_string().expose_secret());
    let recipient = identity.to_public().to_string();
    fullbore(args!["init", world.path("repo"), "--encrypt-to", recipient]).ends_with(0);
    world.key = args!["--key", key].to_vec();
    lists_outlive_their_backup(&world);
}

#[test]
fn a_copy_has_the_lists_whatever_the_destination_had() {
    let world = World::new();
    let first = world.backup();
    let second = world.backup();
    // The destination has the first one as a forgotten backup, whose document comes with the copy.
    world.copy(&second);
    assert_eq!(world.stored_root("dest", &second).lists_of, first);
    world.assert_restores("dest", &second);
    world.run(&["prune", "dest"], 0);
    world.run(&["verify", "dest", "--data", "-q"], 0);
    // Its document there has no lists: then the copy has its own.
    let third = world.backup();
    let document = world.dir_of("dest", &first).join("forgotten.json");
    let known: Root = open_sealed(&fs::read(&document).unwrap(), "it").unwrap();
    let emptied = Root {
        pages: Vec::new(),
        liveness: Vec::new(),
        ..known
    };
    fs::write(&document, seal(&emptied).unwrap()).unwrap();
    world.run(&["verify", "dest", "-q"], 4);
    world.copy(&third);
    let root = world.stored_root("dest", &third);
    assert!(root.lists_of.is_empty() && !root.pages.is_empty());
    world.assert_restores("dest", &third);
}

#[test]
fn lost_or_changed_lists_are_damage_and_nothing_is_pruned() {
    let world = World::new();
    let first = world.backup();
    let second = world.backup();
    world.run(&["forget", "repo", &first], 0);
    let document = world.dir_of("repo", &first).join("forgotten.json");
    let intact = fs::read(&document).unwrap();
    let known: Root = open_sealed(&intact, "it").unwrap();
    let mut fewer = known.clone();
    fewer.pages[0].digest = "00".repeat(32);
    for damaged in [b"{}".to_vec(), seal(&fewer).unwrap(), Vec::new()] {
        match damaged.is_empty() {
            true => fs::remove_file(&document).unwrap(),
            false => fs::write(&document, damaged).unwrap(),
        }
        let before = names(&world.dir_of("repo", &first)).len();
        world.run(&["prune", "repo"], 4);
        world.run(&["verify", "repo", "-q"], 4);
        assert_eq!(names(&world.dir_of("repo", &first)).len(), before);
        let restore = world.run(&["restore", "repo", "--to", "back"], 4);
        assert!(
            restore.err.contains("shares the lists of backup"),
            "{}",
            restore.err
        );
    }
    fs::write(&document, &intact).unwrap();
    world.assert_restores("repo", &second);
    world.run(&["prune", "repo"], 0);
}

#[test]
fn a_repaired_root_gives_its_lists_to_those_that_share_them() {
    let world = World::new();
    let first = world.backup();
    let second = world.backup();
    // The root of the first one is lost. It is rebuilt from its pages, and the second one shares them again.
    let root = world.dir_of("repo", &first).join("root.json");
    let intact = fs::read(&root).unwrap();
    fs::write(&root, b"{}").unwrap();
    world.run(&["forget", "repo", &first], 4);
    world.run(&["repair", "repo", "--yes"], 4);
    world.assert_restores("repo", &second);
    fs::write(&root, intact).unwrap();
    // A segment is damaged: both backups lose its files, and each says so by itself.
    let segment = world.dir_of("repo", &first).join("s01-000005.tar.zst");
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, bytes).unwrap();
    world.run(&["verify", "repo", "--data", "-q"], 4);
    world.run(&["repair", "repo", "--data", "--yes"], 0);
    let repaired = world.stored_root("repo", &second);
    assert!(repaired.lists_of.is_empty() && !repaired.totals.is_complete());
    // The segment stays as it is, and so does that finding.
    world.run(&["verify", "repo", "--data", "-q"], 4);
}
