//! How many requests commands make of the storage of a repository with a thousand backups.

use fullbore_engine::{
    restore::{EntryPatterns, Restore},
    verify::{Verify, VerifyVerdict},
};
use fullbore_format::{
    layout::REPOSITORY,
    root::{BackupOptions, EntryName, FORMAT, Root, SourceInfo},
    seal::seal,
};
use fullbore_platform::metrics::meter::Meter;
use fullbore_postgres::restore::plan::ClusterOptions;
use fullbore_repository::{
    open::{list_backups, open_in},
    prune::prune,
    roots::key,
    select::BackupFilter,
};
use fullbore_storage::{
    LocalObjects, MemoryObjects, Objects, Operation, PutIf, Recording, Storages,
};
use std::{num::NonZeroUsize, path::Path, sync::Arc};
use testkit::{
    growth::{GrownContent, Growth},
    runs::{fullbore, names, noise, temp, write},
};

const BACKUPS: u64 = 1000;

/// A repository in memory: one backup that was really made, of one file, and 999 of which the root is real. Gives its objects,
/// counted, and the id of the first.
fn large_repository() -> (Recording, Arc<dyn Objects>, String) {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("sub/file"), noise(1, 300_000));
    fullbore(args!["backup", &tree, "--to", &repository]).ends_with(0);
    let real = names(&repository.join("backups")).remove(0);
    let memory = MemoryObjects::new();
    copy_objects(&LocalObjects::new(&repository), &memory);
    for number in 1..BACKUPS {
        let id = format!("20250101T{:06}Z-aaaaaa", number);
        let source = SourceInfo {
            host: format!("host{}", number % 3),
            paths: vec![EntryName(b"/srv".to_vec())],
            contents: true,
        };
        let root = Root {
            format: FORMAT,
            id: id.clone(),
            source,
            options: BackupOptions {
                codec: "zstd".to_owned(),
                ..BackupOptions::default()
            },
            ..Root::default()
        };
        put(&memory, &key(&id, "manifest"), b"pages");
        put(&memory, &key(&id, "root.json"), &seal(&root).unwrap());
    }
    let recording = Recording::new(Arc::new(memory));
    let objects: Arc<dyn Objects> = Arc::new(recording.clone());
    (recording, objects, real)
}

fn copy_objects(from: &dyn Objects, to: &dyn Objects) {
    for object in from.list("").unwrap() {
        let mut bytes = Vec::new();
        from.read_at(&object.key, 0, object.bytes as usize, &mut bytes)
            .unwrap();
        put(to, &object.key, &bytes);
    }
    assert!(to.stat(REPOSITORY).unwrap().is_some());
}

fn put(objects: &dyn Objects, key: &str, bytes: &[u8]) {
    objects.put(key, bytes, &PutIf::Always).unwrap();
}

fn restore_to(to: &Path) -> Restore {
    Restore {
        storages: Storages::default(),
        from: "memory".into(),
        filter: BackupFilter::default(),
        to: to.to_owned(),
        paths: vec![b"sub/file".to_vec()],
        patterns: EntryPatterns::default(),
        into: fullbore_engine::restore::RestoreInto::Empty,
        keep_going: false,
        numeric_owner: false,
        postgres: ClusterOptions::default(),
        workers: NonZeroUsize::MIN,
        memory: 64 << 20,
        fetch_words: Vec::new(),
        say_elsewhere: |_| {},
        say_removed: |_| Ok(()),
    }
}

#[test]
fn one_file_of_a_backup_that_is_named_takes_eight_requests() {
    let (recording, objects, id) = large_repository();
    let dir = temp();
    let target = dir.path().join("to");
    let archive = open_in(&objects, Some(&id), &BackupFilter::default()).unwrap();
    restore_to(&target)
        .run_archive(archive, &Meter::default())
        .unwrap();
    assert_eq!(
        std::fs::read(target.join("sub/file")).unwrap(),
        noise(1, 300_000)
    );
    assert!(recording.requests() <= 8, "{:?}", recording.log());
    assert_eq!(recording.count(Operation::List).calls, 0);
}

#[test]
fn a_list_reads_each_root_once() {
    let (recording, objects, _) = large_repository();
    assert_eq!(list_backups(&objects).unwrap().count() as u64, BACKUPS);
    // And the file that makes it a repository.
    assert_eq!(recording.count(Operation::Get).calls, BACKUPS + 1);
    assert_eq!(recording.count(Operation::List).calls, 1);
    assert_eq!(recording.requests(), BACKUPS + 2);
}

#[test]
fn a_prune_reads_a_backup_three_times_at_most() {
    let (recording, objects, _) = large_repository();
    prune(&*objects, false).unwrap();
    let reads = [Operation::Get, Operation::ReadAt, Operation::Stat]
        .map(|operation| recording.count(operation).calls);
    assert!(reads.iter().sum::<u64>() <= 3 * BACKUPS, "{reads:?}");
    assert!(recording.count(Operation::List).calls <= 12);
}

/// A repository in memory whose backups are whole: each backup of a source that is the first, or the first of so many, has content of
/// its own.
fn grown(sources: usize, rounds: usize, changed_one_of: usize) -> MemoryObjects {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("sub/file"), noise(1, 3_000));
    fullbore(args!["backup", &tree, "--to", &repository]).ends_with(0);
    let growth = Growth {
        sources,
        rounds,
        files: 1,
        changed_one_of,
    };
    let memory = MemoryObjects::new();
    growth.write_with(&GrownContent::read(&repository), &mut |key, bytes| {
        put(&memory, key, bytes);
    });
    memory
}

fn verified(objects: Arc<dyn Objects>) -> VerifyVerdict {
    let verify = Verify {
        storages: Storages::default(),
        from: "memory".into(),
        filter: BackupFilter::default(),
        data: false,
        against: None,
        shard: None,
        workers: NonZeroUsize::MIN,
    };
    verify.run_all(&objects, &Meter::default()).unwrap()
}

/// The most roots that were read in a row, without a manifest between them.
fn roots_in_a_row(log: &[(Operation, String)]) -> usize {
    let (mut most, mut row) = (0, 0);
    for (operation, key) in log {
        match operation {
            Operation::Get if key.ends_with("/root.json") => row += 1,
            Operation::ReadAt if key.ends_with("/manifest") => row = 0,
            _ => {}
        }
        most = most.max(row);
    }
    most
}

fn reads(recording: &Recording, operation: Operation, name: &str) -> usize {
    let log = recording.log().into_iter();
    log.filter(|(done, key)| *done == operation && key.ends_with(name))
        .count()
}

#[test]
fn the_structure_of_many_backups_is_checked_in_portions() {
    // A source that is larger than a portion, and sources that are smaller.
    for (sources, rounds) in [(1, 1400), (70, 20)] {
        let recording = Recording::new(Arc::new(grown(sources, rounds, 7)));
        let verdict = verified(Arc::new(recording.clone()));
        let own_content = sources * rounds.div_ceil(7);
        assert_eq!((verdict.exit_code(), verdict.backups), (0, 1400));
        assert_eq!(verdict.of, 1400);
        // The file, `sub`, and the directory with it: each page once.
        assert_eq!(verdict.entries, 3 * own_content as u64);
        assert_eq!(
            reads(&recording, Operation::ReadAt, "/manifest"),
            own_content
        );
        let roots = reads(&recording, Operation::Get, "/root.json");
        // A portion that does not begin with its source asks for the root of the base once more.
        assert!((1400..=1402).contains(&roots), "{roots} roots");
        let row = roots_in_a_row(&recording.log());
        assert!((400..=501).contains(&row), "{row} roots at once");
    }
}

#[test]
fn damage_that_portions_share_is_told_once_with_all_losses() {
    let memory = grown(1, 1100, 1100);
    let first = fullbore_repository::roots::ids(&memory).unwrap().remove(0);
    memory.delete(&[key(&first, "s01-000001.tar.zst")]).unwrap();
    let verdict = verified(Arc::new(memory.clone()));
    assert_eq!(verdict.exit_code(), 4);
    assert_eq!((verdict.damaged.len(), verdict.damage.len()), (1100, 1));
    assert_eq!(verdict.lost.len(), 1100);
    assert!(verdict.lost.iter().all(|loss| loss.files.len() == 1));
    assert!(verdict.damaged.is_sorted());
    assert_eq!(verdict.entries, 3);
    // A page without an intact copy.
    let manifest = key(&first, "manifest");
    let len = memory.stat(&manifest).unwrap().unwrap();
    put(&memory, &manifest, &vec![0; len as usize]);
    let verdict = verified(Arc::new(memory));
    assert_eq!((verdict.damaged.len(), verdict.lost.len()), (1100, 1100));
    assert!(verdict.lost.iter().all(|loss| loss.unnamed.len() == 1));
    assert_eq!(verdict.damage.len(), 2);
}
