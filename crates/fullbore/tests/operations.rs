//! How many requests commands make of the storage of a repository with a thousand backups of three sources.

use fullbore_engine::restore::{EntryPatterns, Restore};
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
use testkit::runs::{fullbore, names, noise, temp, write};

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
