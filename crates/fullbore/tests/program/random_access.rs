//! Files and directories of a backup by parts: any range of a file, and directories in steps.

use fullbore_format::{digest::Algorithm, error::ErrorKind};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_repository::archive::{
    Archive, PageCache, frame_cache::FrameCache, stored_file::StoredFile,
};
use fullbore_storage::{Objects, Operation, Recording, Storages};
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};
use tempfile::{TempDir, tempdir};
use testkit::{
    fixture::{self, Fixture, content, restore},
    runs::{names, segments},
};

const SECOND: &str = "20261122T054501Z-k3f9qa";

fn objects(repository: &Path) -> Arc<dyn Objects> {
    Storages::default().repository_at(repository).unwrap()
}

fn opened(repository: &Path, id: &str) -> Arc<Archive> {
    Arc::new(Archive::open_backup(&objects(repository), id).unwrap())
}

/// An incremental backup, its restored tree, and its regular files.
struct Restored {
    tree: TempDir,
    _repository: TempDir,
    archive: Arc<Archive>,
    frames: Arc<FrameCache>,
    files: Vec<PathBuf>,
}

impl Restored {
    fn new(codec: Codec, digest: Algorithm) -> Self {
        let dir = tempdir().unwrap();
        let mut first = Fixture::sample();
        (first.codec, first.digest, first.page_extents) = (codec, digest, 5);
        first.write_repository(dir.path());
        let mut second = first.clone();
        (second.base, second.id) = (Some(first.id.clone()), SECOND.into());
        second.file("a/new", content(200, 70_000));
        second.write_repository(dir.path());
        let from = format!("{}@{SECOND}", dir.path().display());
        let tree = tempdir().unwrap();
        restore(Path::new(&from), tree.path()).unwrap();
        let is_file = |path: &PathBuf| fs::symlink_metadata(path).unwrap().is_file();
        let mut files = walk(tree.path());
        files.retain(is_file);
        let archive = opened(dir.path(), SECOND);
        // Less than the content of the files, so that frames leave the cache.
        let frames = Arc::new(FrameCache::new(20_000));
        Self {
            tree,
            _repository: dir,
            archive,
            frames,
            files,
        }
    }

    fn stored(&self, file: &Path) -> StoredFile {
        let path = file.strip_prefix(self.tree.path()).unwrap();
        let path = path.to_str().unwrap().as_bytes();
        let found = StoredFile::open(self.archive.clone(), self.frames.clone(), path);
        found.unwrap().unwrap()
    }
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in names(dir) {
        let path = dir.join(name);
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            found.extend(walk(&path));
        }
        found.push(path);
    }
    found
}

static RESTORED: LazyLock<Vec<Restored>> = LazyLock::new(|| {
    vec![
        Restored::new(Codec::Zstd(1), Algorithm::Blake3),
        Restored::new(Codec::None, Algorithm::Blake3),
        Restored::new(Codec::Lz4, Algorithm::Crc32c),
    ]
});

proptest! {
    #[test]
    fn every_range_is_as_in_a_restored_tree(
        backup in 0..3usize,
        file: prop::sample::Index,
        offset: prop::sample::Index,
        len in 0..30_000usize,
    ) {
        let restored = &RESTORED[backup];
        let path = &restored.files[file.index(restored.files.len())];
        let whole = fs::metadata(path).unwrap().len();
        let offset = offset.index(whole as usize + 100) as u64;
        let mut wanted = vec![0; len.min(whole.saturating_sub(offset) as usize)];
        fs::File::open(path).unwrap().read_exact_at(&mut wanted, offset).unwrap();
        let mut found = vec![1; len];
        let count = restored.stored(path).read_at(offset, &mut found).unwrap();
        prop_assert_eq!(count, wanted.len());
        prop_assert!(found[..count] == wanted[..]);
    }
}

#[test]
fn threads_read_files_of_a_small_cache_at_the_same_time() {
    let restored = &RESTORED[0];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for path in restored
                    .files
                    .iter()
                    .filter(|path| !path.ends_with("holes"))
                {
                    let wanted = fs::read(path).unwrap();
                    let mut found = vec![1; wanted.len()];
                    restored.stored(path).read_at(0, &mut found).unwrap();
                    assert!(found == wanted, "{path:?}");
                }
            });
        }
    });
}

#[test]
fn holes_are_where_the_backup_has_them() {
    let restored = &RESTORED[0];
    let tree = restored.tree.path();
    let holes = restored.stored(&tree.join("sparse/holes"));
    let after_first = (
        holes.next_hole(0),
        holes.next_data(5000),
        holes.next_data(5001),
    );
    assert_eq!(after_first, (5000, Some(1 << 20), Some(1 << 20)));
    let last = (
        holes.next_data((1 << 29) + 5),
        holes.next_data(1 << 29 | 200),
    );
    assert_eq!(last, (Some((1 << 29) + 5), None));
    assert_eq!((holes.size(), holes.next_hole(1 << 30)), (1 << 30, 1 << 30));
    let empty = restored.stored(&tree.join("sparse/empty"));
    assert_eq!((empty.next_data(0), empty.next_hole(0)), (None, 0));
    let plain = restored.stored(&tree.join("big/one"));
    let ends = (
        plain.next_data(7),
        plain.next_hole(7),
        plain.next_data(50_001),
    );
    assert_eq!(ends, (Some(7), 50_001, None));
}

#[test]
fn another_name_of_a_file_has_its_content_and_its_number() {
    let restored = &RESTORED[0];
    let tree = restored.tree.path();
    let [first, second] = ["a/b/f07", "hard"].map(|name| restored.stored(&tree.join(name)));
    assert_eq!(first.entry().path, second.entry().path);
    assert!(fs::metadata(tree.join("hard")).unwrap().nlink() == 2);
    let (_, link) = restored.archive.look_up(b"hard").unwrap().unwrap();
    assert!(!link.entry.is_file() && link.entry.path == b"hard");
}

/// The children of each directory by a whole pass over the records.
fn by_records(archive: &Archive) -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut found: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
    for item in archive.records(&Default::default(), false) {
        let path = item.unwrap().entry.path.clone();
        let (dir, name) = fullbore_format::entry::split(&path);
        let known = found.entry(dir.to_vec()).or_default();
        if !path.is_empty() && known.last().is_none_or(|last| last != name) {
            known.push(name.to_vec());
        }
    }
    found
}

#[test]
fn children_are_the_entries_directly_below() {
    let dir = tempdir().unwrap();
    let mut sample = Fixture::sample();
    (sample.page_records, sample.page_extents) = (3, 4);
    sample.write_repository(dir.path());
    let archive = opened(dir.path(), fixture::ID);
    for (path, wanted) in by_records(&archive) {
        let all: Vec<_> = archive.children(&path).map(Result::unwrap).collect();
        let found: Vec<Vec<u8>> = all.iter().map(|child| child.name().to_vec()).collect();
        assert_eq!(found, wanted, "{:?}", String::from_utf8_lossy(&path));
        for (index, child) in all.iter().enumerate() {
            let rest = archive.children(&path).after(child.number).unwrap();
            let rest: Vec<u64> = rest.map(|child| child.unwrap().number).collect();
            let wanted: Vec<u64> = all[index + 1..].iter().map(|child| child.number).collect();
            assert_eq!(rest, wanted);
            let item = archive.record(child.number).unwrap().unwrap();
            assert_eq!(item.entry.path, child.path);
            let (number, _) = archive.look_up(&child.path).unwrap().unwrap();
            assert_eq!(number, child.number);
        }
    }
    assert_eq!(archive.children(b"a/zero").count(), 0);
    assert_eq!(archive.children(b"not/there").count(), 0);
    assert!(archive.record(100_000).unwrap().is_none());
    assert!(
        archive
            .children(b"")
            .after(100_000)
            .unwrap()
            .next()
            .is_none()
    );
}

#[test]
fn children_of_several_streams_have_each_name_once() {
    let dir = tempdir().unwrap();
    let mut several = Fixture::default();
    several
        .dir("", 0o755)
        .dir("a", 0o755)
        .file("a/one", "1")
        .file("z", "9");
    let mut twin = several.entries.clone();
    twin.retain(|(_, entry, ..)| entry.path != b"z");
    twin.push(several.entries[2].clone());
    twin[3].1.path = b"a/two".to_vec();
    twin[3].1.kind = twin[2].1.kind.clone();
    several.entries.extend(
        twin.into_iter()
            .map(|(_, entry, data, state)| (2, entry, data, state)),
    );
    several.file("implied/deep/file", "x");
    several.write_repository(dir.path());
    let archive = opened(dir.path(), fixture::ID);
    let found = |dir: &[u8]| {
        let names = archive
            .children(dir)
            .map(|child| child.unwrap().name().to_vec());
        let names: Vec<String> = names.map(|name| String::from_utf8(name).unwrap()).collect();
        names.join(" ")
    };
    assert_eq!(found(b""), "a implied z");
    assert_eq!(found(b"a"), "one two");
    let implied: Vec<_> = archive.children(b"implied").map(Result::unwrap).collect();
    assert!(implied.len() == 1 && implied[0].item.is_none() && implied[0].name() == b"deep");
}

#[test]
fn damage_is_an_error_for_its_range_only() {
    let dir = tempdir().unwrap();
    for (codec, digest) in [
        (Codec::Zstd(1), Algorithm::Crc32c),
        (Codec::None, Algorithm::Blake3),
    ] {
        let repository = dir.path().join(codec.name());
        let mut backup = Fixture::default();
        (backup.codec, backup.digest) = (codec, digest);
        backup
            .file("large", content(5, 20_000))
            .file("small", content(6, 3000));
        backup.write_repository(&repository);
        let archive = opened(&repository, fixture::ID);
        let parts = archive.find(b"large").unwrap();
        let frame = parts[0].extents[2].frame;
        let segment = &segments(&repository)[0];
        let mut bytes = fs::read(segment).unwrap();
        bytes[frame.offset as usize + frame.stored_len as usize / 2] ^= 1;
        fs::write(segment, bytes).unwrap();
        let open = |path: &[u8]| {
            StoredFile::open(archive.clone(), Arc::default(), path)
                .unwrap()
                .unwrap()
        };
        let mut buf = vec![0; 4096];
        let good = [0, 4096, 3 * 4096, 4 * 4096];
        for offset in good {
            open(b"large").read_at(offset, &mut buf).unwrap();
            let end = content(5, 20_000).len().min(offset as usize + 4096);
            assert!(buf[..end - offset as usize] == content(5, 20_000)[offset as usize..end]);
        }
        if codec != Codec::None {
            let error = open(b"large")
                .read_at(2 * 4096 + 9, &mut buf[..10])
                .unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt);
        }
        open(b"small").read_at(0, &mut buf).unwrap();
    }
}

#[test]
fn a_small_file_with_a_wrong_digest_gives_no_byte() {
    let dir = tempdir().unwrap();
    let mut backup = Fixture {
        codec: Codec::None,
        ..Fixture::default()
    };
    backup
        .file("one", content(5, 1000))
        .file("two", content(6, 1000));
    backup.write_repository(dir.path());
    let archive = opened(dir.path(), fixture::ID);
    let segment = &segments(dir.path())[0];
    let mut bytes = fs::read(segment).unwrap();
    let start = bytes.windows(64).position(|part| *part == content(5, 64));
    bytes[start.unwrap()] ^= 1;
    fs::write(segment, bytes).unwrap();
    let frames = Arc::new(FrameCache::default());
    let read = |path: &[u8]| {
        let file = StoredFile::open(archive.clone(), frames.clone(), path);
        file.unwrap().unwrap().read_at(500, &mut [0; 10])
    };
    assert_eq!(read(b"two").unwrap(), 10);
}

#[test]
fn a_directory_of_100_000_names_is_read_in_steps_and_a_look_up_reads_one_page() {
    let dir = tempdir().unwrap();
    let mut large = Fixture {
        page_records: 1000,
        digest: Algorithm::None,
        ..Fixture::default()
    };
    large
        .dir("", 0o755)
        .dir("dir", 0o755)
        .file("dir.txt", "after");
    for number in 0..100_000 {
        large.file(&format!("dir/{number:06}"), []);
    }
    large.write_repository(dir.path());
    let recording = Recording::new(objects(dir.path()));
    let counted: Arc<dyn Objects> = Arc::new(recording.clone());
    let open = || {
        let pages = Arc::new(PageCache::shared(4 << 20));
        Archive::open_backup(&counted, fixture::ID)
            .unwrap()
            .with_pages(pages)
    };
    let reads = || recording.count(Operation::ReadAt).calls;

    let archive = open();
    let before = reads();
    assert!(archive.look_up(b"dir/050000").unwrap().is_some());
    assert!(archive.look_up(b"dir/nothing").unwrap().is_none());
    assert!(archive.look_up(b"dir.txt").unwrap().is_some());
    assert!(reads() - before <= 3, "{}", reads() - before);

    let archive = open();
    let before = reads();
    let mut seen = 0;
    let mut last = None;
    loop {
        let children = archive.children(b"dir");
        let children = match last {
            Some(number) => children.after(number).unwrap(),
            None => children,
        };
        let step: Vec<_> = children.take(777).map(Result::unwrap).collect();
        let Some(child) = step.last() else { break };
        last = Some(child.number);
        for child in &step {
            assert_eq!(child.name(), format!("{seen:06}").as_bytes());
            seen += 1;
        }
    }
    assert_eq!(seen, 100_000);
    // Each page once.
    assert!(reads() - before <= 102, "{}", reads() - before);
    // The list of the root passes the whole directory with a search.
    let before = reads();
    let top: Vec<_> = archive
        .children(b"")
        .map(|child| child.unwrap().name().to_vec())
        .collect();
    assert_eq!(top, [b"dir".to_vec(), b"dir.txt".to_vec()]);
    assert!(reads() - before <= 4, "{}", reads() - before);
}
