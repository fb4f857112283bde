//! A backup of an unchanged source adds little, however long the lists of its base are; and the lists outlive the base.

use crate::runs::{self, assert_same, fullbore, names, noise, set_mtime, shape, temp};
use age::secrecy::ExposeSecret;
use fullbore_format::{root::Root, seal::open_sealed};
use std::{
    ffi::OsString,
    fs,
    ops::Range,
    os::unix::fs::symlink,
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
    fn empty() -> Self {
        Self {
            dir: temp(),
            key: Vec::new(),
        }
    }

    /// A tree whose backup has many segments, so that the lists have more bytes than the rest of the root.
    fn new() -> Self {
        let world = Self::empty();
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

    /// A tree with this many directories, each a page of the manifest or more: a page ends at 2 MiB of names and targets.
    fn with_pages(directories: u32) -> Self {
        let world = Self::empty();
        for number in 0..directories {
            let directory = world.path(&format!("tree/{number:02}"));
            fs::create_dir_all(&directory).unwrap();
            let target = format!("{number:02}").repeat(1950);
            (0..600)
                .for_each(|link| symlink(&target, directory.join(format!("{link:03}"))).unwrap());
        }
        // What changed within two seconds before a backup is read again by the next one.
        thread::sleep(Duration::from_millis(3200));
        world
    }

    /// Makes a repository that this key opens.
    fn encrypt(&mut self, repository: &str) {
        let identity = age::x25519::Identity::generate();
        let key = self.path(&format!("key of {repository}"));
        runs::write_private(&key, identity.to_string().expose_secret());
        let recipient = identity.to_public().to_string();
        fullbore(args![
            "init",
            self.path(repository),
            "--encrypt-to",
            recipient
        ])
        .ends_with(0);
        self.key = args!["--key", key].to_vec();
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
        let args = args!["copy", from, self.path("dest")];
        fullbore(args.into_iter().chain(self.key.clone())).ends_with(0);
    }

    /// Where the lists of a backup stand: its manifest, and the range of bytes.
    fn lists(&self, repository: &str, id: &str) -> (PathBuf, Range<usize>) {
        let root = self.stored_root(repository, id);
        let at = root.lists_at.unwrap();
        let manifest = self.dir_of(repository, &root.lists_of).join("manifest");
        (
            manifest,
            at.offset as usize..(at.offset + at.bytes) as usize,
        )
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
    let root = world.stored_root("repo", &first);
    assert!(root.lists_of == first && !root.pages.is_empty(), "its own");
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
    // Without a key, too.
    fullbore(args!["prune", world.path("repo")]).ends_with(0);
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
    assert!(root.lists_of == fifth && !root.pages.is_empty());
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
    world.run(&["forget", "repo", &third, &last, "--yes"], 0);
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
    world.encrypt("repo");
    // Without a key, what is known of the lists is the head of the root that had them first.
    let (first, second) = (world.backup(), world.backup());
    fullbore(args!["verify", world.path("repo"), "-q"]).ends_with(0);
    world.run(&["forget", "repo", &first], 0);
    let document = world.dir_of("repo", &first).join("forgotten.json");
    let intact = fs::read(&document).unwrap();
    fs::write(&document, b"{}").unwrap();
    let before = names(&world.dir_of("repo", &first)).len();
    fullbore(args!["prune", world.path("repo")]).ends_with(4);
    assert_eq!(names(&world.dir_of("repo", &first)).len(), before);
    world.assert_restores("repo", &second);
    fs::write(&document, intact).unwrap();
    world.run(&["forget", "repo", &second, "--yes"], 0);
    world.run(&["prune", "repo"], 0);
    lists_outlive_their_backup(&world);
}

#[test]
fn what_an_unchanged_backup_adds_does_not_grow_with_its_pages() {
    let world = World::with_pages(6);
    let first = world.backup();
    assert!(world.stored_root("repo", &first).pages.len() >= 6);
    let second = world.backup();
    let added = bytes_below(&world.dir_of("repo", &second));
    assert!(added <= ADDED_BYTES, "{added}");
    assert!(added * 2 < bytes_below(&world.dir_of("repo", &first)));
    // A page of it changes: the other pages stay where they are, and the lists are written again.
    runs::write(world.path("tree/05/new"), b"new");
    let third = world.backup();
    let root = world.stored_root("repo", &third);
    assert_eq!(root.lists_of, third);
    let inherited = root.pages.iter().filter(|page| page.backup == first);
    assert!(inherited.count() >= 5);
    thread::sleep(Duration::from_millis(3200));
    let fourth = world.backup();
    assert_eq!(world.stored_root("repo", &fourth).lists_of, third);
    // The root of the third one is lost: its lists have all pages, and those of the first one, too.
    fs::remove_file(world.dir_of("repo", &third).join("root.json")).unwrap();
    world.run(&["repair", "repo", "--yes"], 0);
    let rebuilt = world.stored_root("repo", &third);
    assert!(rebuilt.totals.is_complete() && rebuilt.tags.contains_key("rebuilt"));
    assert_eq!(
        (&rebuilt.pages, &rebuilt.liveness),
        (&root.pages, &root.liveness)
    );
    assert_eq!(rebuilt.totals.entries, root.totals.entries);
    for id in [&third, &fourth] {
        world.assert_restores("repo", id);
    }
    world.run(&["verify", "repo", "--data", "-q"], 0);
    // The manifest of the third one is lost with its root: the fourth one is what the segments say.
    fs::remove_file(world.dir_of("repo", &third).join("root.json")).unwrap();
    fs::remove_file(world.dir_of("repo", &third).join("manifest")).unwrap();
    world.run(&["verify", "repo", "-q"], 4);
    world.run(&["prune", "repo"], 4);
    world.run(&["repair", "repo", "--yes"], 4);
    world.run(&["repair", "repo", "--yes"], 0);
    for id in [&third, &fourth] {
        let root = world.stored_root("repo", id);
        assert!(root.lists_of.is_empty() && !root.totals.is_complete());
        let backup = format!("{}@{id}", world.path("repo").display());
        let to = world.path(&format!("back {id}"));
        fullbore(args!["restore", backup, "--to", &to, "-q"]).ends_with(3);
        assert_eq!(fs::read(to.join("05/new")).unwrap(), b"new");
    }
    let first = format!("{}@{first}", world.path("repo").display());
    fullbore(args!["restore", first, "--to", world.path("back"), "-q"]).ends_with(0);
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
    // Its manifest there has lost its end: the copy of another backup brings it.
    let third = world.backup();
    let (manifest, at) = world.lists("dest", &second);
    let whole = fs::read(&manifest).unwrap();
    assert_eq!(whole.len(), at.end);
    fs::write(&manifest, &whole[..at.start]).unwrap();
    world.run(&["verify", "dest", "-q"], 4);
    world.copy(&third);
    assert_eq!(fs::read(&manifest).unwrap(), whole);
    world.assert_restores("dest", &third);
    world.run(&["verify", "dest", "-q"], 0);
    world.run(&["sync", "repo", "dest"], 0);
    world.run(&["forget", "dest", &first], 0);
    world.run(&["prune", "dest"], 0);
    world.assert_restores("dest", &second);
}

#[test]
fn a_copy_that_seals_anew_shares_the_lists_too() {
    let mut world = World::new();
    let first = world.backup();
    let second = world.backup();
    world.encrypt("dest");
    world.copy(&second);
    assert_eq!(world.stored_root("dest", &second).lists_of, first);
    world.assert_restores("dest", &second);
    fullbore(args!["prune", world.path("dest")]).ends_with(0);
    world.run(&["verify", "dest", "--data", "-q"], 0);
}

#[test]
fn a_copy_without_a_key_has_the_lists() {
    let mut world = World::new();
    world.encrypt("repo");
    let first = world.backup();
    let second = world.backup();
    let key = std::mem::take(&mut world.key);
    world.copy(&second);
    fullbore(args!["prune", world.path("dest")]).ends_with(0);
    world.key = key;
    assert_eq!(world.stored_root("dest", &second).lists_of, first);
    world.assert_restores("dest", &second);
    world.run(&["verify", "dest", "--data", "-q"], 0);
}

#[test]
fn damage_of_lists_is_repaired_from_the_root_and_without_it_nothing_is_pruned() {
    let world = World::new();
    let first = world.backup();
    let second = world.backup();
    world.run(&["forget", "repo", &first], 0);
    let document = world.dir_of("repo", &first).join("forgotten.json");
    let known = fs::read(&document).unwrap();
    let (manifest, at) = world.lists("repo", &second);
    let whole = fs::read(&manifest).unwrap();
    let mut damaged = whole.clone();
    damaged[at.start + at.len() / 2] ^= 1;
    fs::write(&manifest, &damaged).unwrap();
    // The lists are there twice.
    let verify = world.run(&["verify", "repo"], 4);
    assert!(
        verify.out.contains("a page of lists is damaged"),
        "{}",
        verify.err
    );
    world.assert_restores("repo", &second);
    world.run(&["prune", "repo"], 0);
    world.run(&["repair", "repo", "--yes"], 0);
    assert_eq!(fs::read(&manifest).unwrap(), whole);
    world.run(&["verify", "repo", "-q"], 0);
    // Both are lost.
    fs::write(&manifest, &damaged).unwrap();
    fs::write(&document, b"{}").unwrap();
    let before = names(&world.dir_of("repo", &first)).len();
    world.run(&["prune", "repo"], 4);
    world.run(&["verify", "repo", "-q"], 4);
    assert_eq!(names(&world.dir_of("repo", &first)).len(), before);
    let restore = world.run(&["restore", "repo", "--to", "back"], 4);
    let why = format!("in the manifest of backup {first:?}, are lost");
    assert!(restore.err.contains(&why), "{}", restore.err);
    // Each alone is enough.
    fs::write(&manifest, &whole).unwrap();
    world.assert_restores("repo", &second);
    fs::write(&manifest, &damaged).unwrap();
    fs::write(&document, &known).unwrap();
    world.assert_restores("repo", &second);
    world.run(&["prune", "repo"], 0);
    // Of both the pages are left, in the segments.
    fs::write(&document, b"{}").unwrap();
    fs::remove_file(&manifest).unwrap();
    world.run(&["verify", "repo", "-q"], 4);
    world.run(&["repair", "repo", "--yes"], 4);
    world.run(&["repair", "repo", "--yes"], 0);
    world.assert_restores("repo", &second);
}

#[test]
fn a_repaired_backup_shares_no_lists_that_are_not_its_own_any_more() {
    let world = World::new();
    let first = world.backup();
    let second = world.backup();
    // A segment is damaged: both backups lose its file, and each says so by itself.
    let segment = world.dir_of("repo", &first).join("s01-000005.tar.zst");
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, bytes).unwrap();
    world.run(&["verify", "repo", "--data", "-q"], 4);
    world.run(&["repair", "repo", "--data", "--yes"], 0);
    for id in [&first, &second] {
        let repaired = world.stored_root("repo", id);
        assert!(repaired.lists_of.is_empty() && !repaired.totals.is_complete());
    }
    // The file is stored again, and the lists of that backup are shared.
    let third = world.backup();
    assert_eq!(world.stored_root("repo", &third).lists_of, third);
    thread::sleep(Duration::from_millis(3200));
    let fourth = world.backup();
    assert_eq!(world.stored_root("repo", &fourth).lists_of, third);
    world.assert_restores("repo", &fourth);
}
