//! Whole backups to objects in memory, which have leases and no locks; and to a storage that fails at each operation.

use fullbore_engine::{
    backup::{Backup, Dedup, Subject, paths::Scope},
    plan::{OpenStorage, SinkSpec, Tuning},
    verify::Verify,
};
use fullbore_format::{
    digest::Algorithm,
    error::{Error, ErrorKind},
    root::{Root, is_void},
    seal::seal,
};
use fullbore_pipeline::{sink::Destination, stage::codec::Codec};
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::writer::RepositoryWriter;
use fullbore_storage::{Fault, Faulty, MemoryObjects, Objects, Operation, Put, PutIf, Storages};
use std::{fs, path::Path, sync::Arc, time::Duration};
use tempfile::tempdir;
use testkit::fixture::{self, content};

fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("d/empty")).unwrap();
    for number in 0..5 {
        fs::write(tree.join(format!("d/f{number}")), content(number, 3000)).unwrap();
    }
    fs::write(tree.join("large"), content(9, 500_000)).unwrap();
}

fn backup(tree: &Path, objects: Arc<dyn Objects>, checkpoint_interval: Duration) -> Backup {
    Backup {
        storages: Storages::default(),
        subject: Subject::Files(Scope {
            paths: vec![tree.into()],
            ..Scope::default()
        }),
        to: SinkSpec::Repository(OpenStorage(objects)),
        also: Vec::new(),
        no_create: false,
        codec: Codec::Zstd(1),
        digest: Algorithm::Blake3,
        host: None,
        max_rate: None,
        most_errors: None,
        tags: Default::default(),
        base: Default::default(),
        dedup: Dedup::default(),
        checkpoint_interval,
        chunks: false,
        block_bytes: None,
        tuning: Tuning {
            workers: 2.try_into().unwrap(),
            readers: None,
            memory_bytes: 1 << 27,
            frame_bytes: 64 << 10,
            segment_bytes: 200 << 10,
        },
    }
}

/// Runs a backup; its id.
fn run(tree: &Path, objects: Arc<dyn Objects>, interval: Duration) -> Result<String, Error> {
    let outcome = backup(tree, objects, interval).run(&Arc::default())?;
    Ok(outcome.root.id)
}

/// Ids of backups that are listed. Where there are no locks, a backup that was given up has a void root, which lists nothing.
fn listed(objects: &dyn Objects) -> Vec<String> {
    let keys = objects.list("backups").unwrap().into_iter();
    keys.filter_map(|found| {
        let id = found
            .key
            .strip_prefix("backups/")?
            .strip_suffix("/root.json")?;
        let (root, _) = objects.get(&found.key).unwrap().unwrap();
        (!is_void(&root)).then(|| id.to_owned())
    })
    .collect()
}

/// Copies all objects to a directory.
fn copy_out(objects: &dyn Objects, to: &Path) {
    for found in objects.list("").unwrap() {
        let path = to.join(&found.key);
        let mut bytes = Vec::new();
        objects
            .read_at(&found.key, 0, found.bytes as usize, &mut bytes)
            .unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// Every listed backup has all content of the tree; how many there are. Backup `older` is of another content of `large`.
#[track_caller]
fn check_listed(objects: &dyn Objects, tree: &Path, older: Option<&str>) -> usize {
    let dir = tempdir().unwrap();
    copy_out(objects, dir.path());
    let ids = listed(objects);
    for id in &ids {
        let is_older = older == Some(id);
        let backup = format!("{}@{id}", dir.path().display());
        if is_older {
            let target = tempdir().unwrap();
            let target = target.path().join("older");
            let summary = fixture::plan(Path::new(&backup), &target)
                .run(&Meter::default())
                .unwrap();
            assert_eq!(summary.exit_code(), 0);
            assert!(fs::read(target.join("large")).unwrap() == content(9, 500_000));
        }
        let verify = Verify {
            storages: Storages::default(),
            from: backup.into(),
            filter: Default::default(),
            data: true,
            against: (!is_older).then(|| tree.into()),
            shard: None,
            workers: 2.try_into().unwrap(),
        };
        let verdict = verify.run(&Meter::default()).unwrap();
        assert_eq!(verdict.exit_code(), 0, "{id}: {verdict:?}");
    }
    ids.len()
}

#[test]
fn a_tree_that_was_backed_up_to_memory_comes_back() {
    let dir = tempdir().unwrap();
    let tree = dir.path().join("tree");
    make_tree(&tree);
    let memory = MemoryObjects::new();
    let first = run(&tree, Arc::new(memory.clone()), Duration::MAX).unwrap();
    let second = run(&tree, Arc::new(memory.clone()), Duration::ZERO).unwrap();
    assert_eq!(listed(&memory), [first.clone(), second.clone()]);
    assert_eq!(check_listed(&memory, &tree, None), 2);
    assert_eq!(memory.open_uploads(), 0);
    assert!(memory.list("intents").unwrap().is_empty());
    let objects = |id: &str| {
        let found = memory.list(&format!("backups/{id}")).unwrap();
        let names = found.into_iter().map(|object| object.key);
        names
            .map(|key| key.rsplit('/').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(!objects(&second).contains(&"partial.json".to_owned()));
    // Each checkpoint ends a segment.
    assert!(objects(&second).len() > objects(&first).len());
    let out = dir.path().join("out");
    copy_out(&memory, &out);
    for id in [first, second] {
        let target = dir.path().join(&id);
        let backup = format!("{}@{id}", out.display());
        let summary = fixture::plan(Path::new(&backup), &target)
            .run(&Meter::default())
            .unwrap();
        assert_eq!(summary.exit_code(), 0);
        assert!(fs::read(target.join("large")).unwrap() == content(9, 500_000));
    }
}

#[test]
fn whatever_fails_what_is_listed_comes_back() {
    const OPERATIONS: [Operation; 11] = [
        Operation::List,
        Operation::Get,
        Operation::Stat,
        Operation::Put,
        Operation::Create,
        Operation::Append,
        Operation::Finish,
        Operation::Delete,
        Operation::Settle,
        Operation::Lease,
        Operation::UpdateLease,
    ];
    let dir = tempdir().unwrap();
    let tree = dir.path().join("tree");
    make_tree(&tree);
    let mut failed = 0;
    for fault in [
        Fault::Fail(ErrorKind::Unreachable),
        Fault::FailLate(ErrorKind::Unreachable),
    ] {
        for operation in OPERATIONS {
            for nth in 1.. {
                let memory = MemoryObjects::new();
                fs::write(tree.join("large"), content(9, 500_000)).unwrap();
                let older = run(&tree, Arc::new(memory.clone()), Duration::MAX).unwrap();
                // Several segments of it are new.
                fs::write(tree.join("large"), content(10, 300_000)).unwrap();
                let faulty = Faulty::new(Arc::new(memory.clone())).with(operation, nth, fault);
                // Every other run has checkpoints.
                let interval = [Duration::MAX, Duration::ZERO][nth as usize % 2];
                let done = run(&tree, Arc::new(faulty.clone()), interval);
                let case = format!("{fault:?} at {operation:?} {nth}: {done:?}");
                assert_eq!(memory.open_uploads(), 0, "{case}");
                let count = check_listed(&memory, &tree, Some(&older));
                match &done {
                    Ok(id) => assert!(count == 2 && listed(&memory).contains(id), "{case}"),
                    Err(_) => failed += 1,
                }
                // The next one is not in the way of what is left.
                run(&tree, Arc::new(memory.clone()), Duration::MAX).expect(&case);
                check_listed(&memory, &tree, Some(&older));
                if faulty.calls(operation) < nth {
                    break;
                }
            }
        }
    }
    assert!(failed > 40, "{failed}");
}

#[test]
fn a_backup_that_was_taken_for_dead_commits_nothing() {
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let id = "20261121T054501Z-k3f9qz";
    let time = "2026-11-21T05:45:01Z";
    let writer = RepositoryWriter::begin(memory.clone(), id, time, "tar.zst").unwrap();
    let key = format!("backups/{id}/root.json");
    let void = memory.put(&key, b"void", &PutIf::Absent).unwrap();
    assert!(matches!(void, Put::Done(_)));
    let mut root = Root {
        format: 1,
        id: id.to_owned(),
        ..Root::default()
    };
    root.options.codec = "zstd".to_owned();
    let error = Box::new(writer).commit(&seal(&root).unwrap()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Gone);
    assert!(
        error.line().contains("took it for dead"),
        "{}",
        error.line()
    );
    assert_eq!(memory.get(&key).unwrap().unwrap().0, b"void");
}
