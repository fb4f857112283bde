//! What `backup` writes, `restore`, `list` and `verify` read.

use fullbore_engine::{
    backup::{Backup, Dedup, Subject, paths::Scope},
    plan::{OpenStorage, SinkSpec, Tuning},
    verify::{Verify, VerifyVerdict},
};
use fullbore_format::digest::Algorithm;
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform::metrics::meter::Meter;
use fullbore_storage::Storages;
use std::{path::Path, sync::Arc};
use tempfile::tempdir;
use testkit::fixture::{Fixture, content, plan};

fn restore(from: &Path, to: &Path) {
    let restore = plan(from, to);
    let summary = restore.run(&Meter::default()).unwrap();
    assert_eq!(
        (summary.exit_code(), summary.notes),
        (0, vec![]),
        "{from:?}"
    );
}

fn verify(from: &Path, against: &Path) -> VerifyVerdict {
    let verify = Verify {
        storages: Storages::default(),
        from: from.to_str().unwrap().into(),
        filter: Default::default(),
        data: true,
        against: Some(against.into()),
        shard: None,
        workers: 2.try_into().unwrap(),
    };
    verify.run(&Meter::default()).unwrap()
}

fn backup(tree: &Path, to: SinkSpec, codec: Codec, digest: Algorithm) {
    let backup = Backup {
        storages: Storages::default(),
        subject: Subject::Files(Scope {
            paths: vec![tree.into()],
            ..Scope::default()
        }),
        to,
        also: Vec::new(),
        no_create: false,
        codec,
        digest,
        host: None,
        max_rate: None,
        most_errors: None,
        tags: Default::default(),
        base: Default::default(),
        dedup: Dedup::default(),
        checkpoint_interval: std::time::Duration::MAX,
        chunks: false,
        block_bytes: None,
        tuning: Tuning {
            workers: 2.try_into().unwrap(),
            readers: None,
            memory_bytes: 1 << 27,
            frame_bytes: 64 << 10,
            segment_bytes: 300 << 10,
        },
    };
    backup.run(&Arc::default()).unwrap();
}

#[test]
fn a_tree_comes_back_from_every_destination_and_codec() {
    let dir = tempdir().unwrap();
    let mut fixture = Fixture::sample();
    fixture
        .entries
        .retain(|(_, entry, ..)| entry.path != b"dangling");
    fixture
        .file("big/large", content(5, 2_222_222))
        .file("big/frame", content(6, 64 << 10));
    fixture.write_repository(&dir.path().join("made"));
    let tree = dir.path().join("tree");
    restore(&dir.path().join("made"), &tree);
    let cases = [
        (Codec::Zstd(1), Algorithm::Blake3),
        (Codec::Lz4, Algorithm::Crc32c),
        (Codec::None, Algorithm::None),
    ];
    for (codec, digest) in cases {
        let repository = dir.path().join(format!("repo-{codec}"));
        let file = dir.path().join(format!("x-{codec}.{}", codec.suffix()));
        for (path, sink) in [
            (
                &repository,
                SinkSpec::Repository(OpenStorage::local(&repository)),
            ),
            (&file, SinkSpec::File(file.clone())),
        ] {
            backup(&tree, sink, codec, digest);
            let target = dir.path().join(format!("to-{codec}-{}", path.is_dir()));
            restore(path, &target);
            let verdict = verify(path, &target);
            assert_eq!(
                (verdict.damage, verdict.warnings, verdict.differences),
                (vec![], vec![], vec![]),
                "{path:?}"
            );
            assert!(verify(path, &tree).differences.is_empty(), "{path:?}");
        }
    }
}

#[test]
fn one_reader_and_many_workers_never_wait_for_each_other() {
    let dir = tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for i in 0..12 {
        std::fs::write(tree.join(format!("large-{i}")), content(i, 300_000)).unwrap();
    }
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _dir = dir;
        for _ in 0..40 {
            let tuning = Tuning {
                workers: 8.try_into().unwrap(),
                readers: Some(1.try_into().unwrap()),
                memory_bytes: 1 << 27,
                frame_bytes: 64 << 10,
                segment_bytes: 1 << 30,
            };
            let backup = Backup {
                storages: Storages::default(),
                subject: Subject::Files(Scope {
                    paths: vec![tree.clone()],
                    ..Scope::default()
                }),
                to: SinkSpec::Null,
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
                checkpoint_interval: std::time::Duration::MAX,
                chunks: false,
                block_bytes: None,
                tuning,
            };
            backup.run(&Arc::new(Meter::default())).unwrap();
        }
        done.send(()).unwrap();
    });
    assert!(
        wait.recv_timeout(std::time::Duration::from_secs(120))
            .is_ok(),
        "the threads wait for each other"
    );
}
