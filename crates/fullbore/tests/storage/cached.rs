//! The cache of immutable objects: it saves requests, and nothing depends on it.

use super::suite::{get, pattern, put};
use fullbore_format::error::ErrorKind;
use fullbore_repository::{prune::prune, writer};
use fullbore_storage::{
    CacheSpec, CachedObjects, MemoryObjects, Objects, Operation, Put, PutIf, Recording,
    StorageAbilities, Take, Upload, probe,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

const ROOT: &str = "backups/a/root.json";

fn is_root(key: &str) -> bool {
    key.ends_with("/root.json")
}

struct Cached {
    dir: tempfile::TempDir,
    recording: Recording,
    max_bytes: u64,
}

fn cached() -> Cached {
    Cached {
        dir: tempfile::tempdir().unwrap(),
        recording: Recording::new(Arc::new(MemoryObjects::new())),
        max_bytes: 10 << 20,
    }
}

impl Cached {
    /// As a new process has it.
    fn open(&self) -> Arc<dyn Objects> {
        let spec = CacheSpec {
            dir: self.dir.path().join("cache"),
            max_bytes: self.max_bytes,
            is_kept: is_root,
        };
        Arc::new(CachedObjects::new(Arc::new(self.recording.clone()), spec))
    }

    fn reads(&self) -> u64 {
        self.recording.count(Operation::Get).calls + self.recording.count(Operation::ReadAt).calls
    }

    fn files(&self) -> Vec<PathBuf> {
        let below = |dir: &Path| -> Vec<PathBuf> {
            fs::read_dir(dir)
                .into_iter()
                .flatten()
                .map(|entry| entry.unwrap().path())
                .collect()
        };
        below(&self.dir.path().join("cache"))
            .iter()
            .flat_map(|dir| below(dir))
            .collect()
    }
}

#[test]
fn what_was_read_once_is_read_again_without_a_request() {
    let cached = cached();
    let objects = cached.open();
    put(&objects, ROOT, b"a root");
    put(&objects, "backups/a/other", b"other");
    objects.list("").unwrap();
    let version = objects.get(ROOT).unwrap().unwrap().1;
    let mut out = Vec::new();
    objects.read_at(ROOT, 2, 4, &mut out).unwrap();
    get(&objects, "backups/a/other");
    cached.recording.reset();
    let objects = cached.open();
    objects.list("backups").unwrap();
    assert_eq!(
        objects.get(ROOT).unwrap(),
        Some((b"a root".to_vec(), version))
    );
    objects.read_at(ROOT, 2, 4, &mut out).unwrap();
    assert_eq!(out, b"root");
    assert_eq!(cached.reads(), 0);
    get(&objects, "backups/a/other");
    assert_eq!(cached.reads(), 1, "what may change is not kept");
    let mode = fs::metadata(&cached.files()[0])
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o077, 0, "roots name files");
}

#[test]
fn a_manifest_is_kept_when_it_is_written_until_it_is_replaced() {
    const KEY: &str = "backups/20261121T054501Z-k3f9qz/manifest";
    let cached = cached();
    let open = || -> Arc<dyn Objects> {
        let spec = CacheSpec {
            dir: cached.dir.path().join("cache"),
            max_bytes: 64 << 20,
            is_kept: |key| key.ends_with("/manifest"),
        };
        Arc::new(CachedObjects::new(Arc::new(cached.recording.clone()), spec))
    };
    let write = |objects: &dyn Objects, bytes: &[u8]| {
        let mut upload = objects.create(KEY).unwrap();
        bytes
            .chunks(300_001)
            .for_each(|some| upload.append(some).unwrap());
        upload.finish().unwrap();
    };
    let same = |objects: &dyn Objects, offset: usize, len: usize, bytes: &[u8]| {
        let mut out = Vec::new();
        objects.read_at(KEY, offset as u64, len, &mut out).unwrap();
        assert!(out == bytes[offset..offset + len], "{offset} {len}");
    };
    let bytes = pattern(3_500_000, 5);
    write(&*open(), &bytes);
    // In a process that listed nothing the storage is asked.
    let objects = open();
    cached.recording.reset();
    same(&*objects, 0, 10, &bytes);
    assert_eq!(cached.reads(), 1);
    objects.list("").unwrap();
    let places = [
        (0, 10),
        (1 << 20, 1),
        ((1 << 20) - 1, 2),
        (5, 2 << 20),
        (3_400_000, 100_000),
    ];
    for (offset, len) in places {
        same(&*objects, offset, len, &bytes);
    }
    assert_eq!(cached.reads(), 1);
    // Another host replaces it: it has the same length, and another version.
    let mut other = bytes.clone();
    other.rotate_left(7);
    write(&cached.recording, &other);
    let objects = open();
    objects.list("").unwrap();
    for (offset, len) in places {
        same(&*objects, offset, len, &other);
    }
    // A write that fails, or that was cut off, leaves nothing that counts.
    let mut upload = objects.create(KEY).unwrap();
    upload.append(&bytes).unwrap();
    upload.abort();
    let objects = open();
    objects.list("").unwrap();
    places
        .iter()
        .for_each(|(offset, len)| same(&*objects, *offset, *len, &other));
    write(&*open(), &bytes);
    for file in cached.files() {
        let mut damaged = fs::read(&file).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(file, damaged).unwrap();
    }
    let objects = open();
    objects.list("").unwrap();
    places
        .iter()
        .for_each(|(offset, len)| same(&*objects, *offset, *len, &bytes));
}

#[test]
fn an_object_that_the_storage_does_not_list_is_not_taken_from_the_cache() {
    let cached = cached();
    let objects = cached.open();
    put(&objects, ROOT, b"a root");
    objects.list("").unwrap();
    get(&objects, ROOT);
    cached.recording.delete(&[ROOT.to_owned()]).unwrap();
    let objects = cached.open();
    assert_eq!(get(&objects, ROOT), None);
    objects.list("").unwrap();
    assert_eq!(get(&objects, ROOT), None);
    // Another length is another object.
    put(&objects, ROOT, b"another root");
    objects.list("").unwrap();
    assert_eq!(get(&objects, ROOT).unwrap(), b"another root");
    objects.delete(&[ROOT.to_owned()]).unwrap();
    assert_eq!(get(&objects, ROOT), None);
}

#[test]
fn a_file_of_the_cache_that_is_damaged_or_exchanged_counts_as_absent() {
    let cached = cached();
    let objects = cached.open();
    put(&objects, ROOT, b"a root");
    put(&objects, "backups/b/root.json", b"b root");
    objects.list("").unwrap();
    get(&objects, ROOT);
    get(&objects, "backups/b/root.json");
    let files = cached.files();
    assert_eq!(files.len(), 2);
    let whole: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let both = || {
        assert_eq!(get(&objects, ROOT).unwrap(), b"a root");
        assert_eq!(get(&objects, "backups/b/root.json").unwrap(), b"b root");
    };
    for offset in 0..whole[0].len() {
        let mut damaged = whole[0].clone();
        damaged[offset] ^= 1;
        fs::write(&files[0], damaged).unwrap();
        both();
    }
    fs::write(&files[0], &whole[1]).unwrap();
    both();
    fs::write(&files[0], b"").unwrap();
    both();
    fs::remove_dir_all(cached.dir.path().join("cache")).unwrap();
    fs::write(cached.dir.path().join("cache"), b"a file in its place").unwrap();
    both();
}

#[test]
fn the_cache_stays_below_its_bound() {
    let mut cached = cached();
    cached.max_bytes = 1 << 20;
    let objects = cached.open();
    for number in 0..60 {
        put(
            &objects,
            &format!("backups/{number}/root.json"),
            &pattern(50_000, number),
        );
    }
    put(&objects, "backups/large/root.json", &pattern(600_000, 1));
    objects.list("").unwrap();
    for number in 0..60 {
        assert_eq!(
            get(&objects, &format!("backups/{number}/root.json"))
                .unwrap()
                .len(),
            50_000
        );
        let bytes: u64 = cached
            .files()
            .iter()
            .map(|file| fs::metadata(file).unwrap().len())
            .sum();
        assert!(bytes <= cached.max_bytes + 51_000, "{bytes}");
    }
    get(&objects, "backups/large/root.json");
    let largest = cached
        .files()
        .iter()
        .map(|file| fs::metadata(file).unwrap().len())
        .max();
    assert!(
        largest.unwrap() < 100_000,
        "one object does not take the room of all"
    );
    cached.recording.reset();
    get(&objects, "backups/59/root.json");
    assert_eq!(cached.reads(), 0, "the latest is kept");
}

/// A store that knows no conditions and does not say so.
#[derive(Debug)]
struct Careless(MemoryObjects);

impl Objects for Careless {
    fn put(
        &self,
        key: &str,
        bytes: &[u8],
        _condition: &PutIf,
    ) -> fullbore_format::error::Result<Put> {
        self.0.put(key, bytes, &PutIf::Always)
    }
    fn list(
        &self,
        prefix: &str,
    ) -> fullbore_format::error::Result<Vec<fullbore_storage::ListedObject>> {
        self.0.list(prefix)
    }
    fn read_at(
        &self,
        key: &str,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> fullbore_format::error::Result<()> {
        self.0.read_at(key, offset, len, out)
    }
    fn get(
        &self,
        key: &str,
    ) -> fullbore_format::error::Result<Option<(Vec<u8>, fullbore_storage::Version)>> {
        self.0.get(key)
    }
    fn stat(&self, key: &str) -> fullbore_format::error::Result<Option<u64>> {
        self.0.stat(key)
    }
    fn create(&self, key: &str) -> fullbore_format::error::Result<Box<dyn Upload>> {
        self.0.create(key)
    }
    fn delete(&self, keys: &[String]) -> fullbore_format::error::Result<()> {
        self.0.delete(keys)
    }
    fn abort_uploads(&self, prefix: &str) -> fullbore_format::error::Result<()> {
        self.0.abort_uploads(prefix)
    }
    fn settle(&self, prefix: &str) -> fullbore_format::error::Result<()> {
        self.0.settle(prefix)
    }
    fn lease(
        &self,
        key: &str,
        body: &[u8],
        take: Take,
    ) -> fullbore_format::error::Result<fullbore_storage::Leased> {
        self.0.lease(key, body, take)
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
    fn as_local(&self) -> Option<&fullbore_storage::LocalObjects> {
        None
    }

    fn as_sealed(&self) -> Option<&fullbore_storage::SealedObjects> {
        None
    }
}

#[test]
fn a_repository_without_conditional_puts_says_so_and_is_not_pruned_beside_an_intent() {
    let memory = MemoryObjects::new();
    let careless = Careless(memory.clone());
    assert!(writer::init(&careless, "2026-11-21T05:45:01Z").unwrap());
    let facts = memory.get("fullbore-repo.json").unwrap().unwrap().0;
    let facts = String::from_utf8(facts).unwrap();
    assert!(facts.contains("\"lacks_conditions\": true"), "{facts}");
    assert_eq!(memory.list("").unwrap().len(), 1, "the probe is gone");
    prune(&careless, false).unwrap();
    let intent = "intents/20261121T054501Z-k3f9qz.json";
    memory.put(intent, b"", &PutIf::Always).unwrap();
    let error = prune(&careless, false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.hint.unwrap().contains(intent));
    let memory = MemoryObjects::new();
    writer::init(&memory, "2026-11-21T05:45:01Z").unwrap();
    let facts = memory.get("fullbore-repo.json").unwrap().unwrap().0;
    assert!(!String::from_utf8(facts).unwrap().contains("lacks"));
    let without = MemoryObjects::new().without_conditions();
    let error = writer::init(&without, "2026-11-21T05:45:01Z").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
}

#[test]
fn a_probe_finds_out_a_storage_without_conditions_that_does_not_say_so() {
    let memory = MemoryObjects::new();
    assert!(probe(&memory).unwrap());
    assert!(!probe(&memory.without_conditions()).unwrap());
    assert!(!probe(&Careless(memory.clone())).unwrap());
    assert!(memory.list("").unwrap().is_empty());
}
