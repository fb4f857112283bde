//! WAL in an object store: what it costs in requests, and that it comes back.

use super::{StoreRepository, runs};
use runs::{noise, temp};
use std::{ffi::OsString, fs, path::Path};

const SYSTEM: &str = "7430123456789012345";
const BYTES: usize = 1 << 20;

fn segment(number: u32) -> Vec<u8> {
    let mut content = noise(u64::from(number), BYTES / 8).repeat(8);
    let system: u64 = SYSTEM.parse().unwrap();
    content[0..2].copy_from_slice(&0xD118_u16.to_ne_bytes());
    content[2..4].copy_from_slice(&6_u16.to_ne_bytes());
    content[4..8].copy_from_slice(&1_u32.to_ne_bytes());
    content[8..16].copy_from_slice(&(u64::from(number) * BYTES as u64).to_ne_bytes());
    content[24..32].copy_from_slice(&system.to_ne_bytes());
    content[32..36].copy_from_slice(&(BYTES as u32).to_ne_bytes());
    content
}

fn name(number: u32) -> String {
    format!("{:08X}{:08X}{number:08X}", 1, 0)
}

fn write(dir: &Path, numbers: std::ops::Range<u32>) {
    fs::create_dir_all(dir.join("archive_status")).unwrap();
    for number in numbers {
        fs::write(dir.join(name(number)), segment(number)).unwrap();
        fs::write(
            dir.join(format!("archive_status/{}.ready", name(number))),
            "",
        )
        .unwrap();
    }
}

fn push(store: &StoreRepository, dir: &Path, number: u32) -> Vec<OsString> {
    let file = dir.join(name(number));
    args![
        "wal",
        "push",
        file,
        "--to",
        store.address,
        "--system",
        SYSTEM,
        "--no-serve"
    ]
    .into()
}

#[test]
fn a_run_takes_a_few_requests_and_comes_back() {
    let (store, proxy) = StoreRepository::s3_proxied();
    let dir = temp();
    store
        .run(args!["init", store.address, "--no-encryption"])
        .ends_with(0);
    write(dir.path(), 2..34);
    proxy.rule(|_| super::fault_proxy::Break::Pass);
    store.run(push(&store, dir.path(), 2)).ends_with(0);
    let seen = proxy.seen();
    let lines: Vec<_> = seen
        .iter()
        .map(|seen| format!("{} {}", seen.method, seen.target))
        .collect();
    // Is it encrypted, is it a repository, the run, the listing: 0.125 for each segment of a backlog of 32.
    assert!(lines.len() <= 4, "{}: {lines:#?}", lines.len());
    let before = proxy.seen().len();
    for number in 3..34 {
        store.run(push(&store, dir.path(), number)).ends_with(0);
    }
    assert_eq!(
        proxy.seen().len(),
        before,
        "what was pushed ahead takes no request"
    );
    // One that comes alone: this host knows by now that the repository is there.
    write(dir.path(), 34..35);
    store.run(push(&store, dir.path(), 34)).ends_with(0);
    let seen = proxy.seen();
    let alone: Vec<_> = seen[before..]
        .iter()
        .map(|seen| format!("{} {}", seen.method, seen.target))
        .collect();
    assert!(alone.len() <= 3, "{}: {alone:#?}", alone.len());
    let target = dir.path().join("fetched");
    let get = |number: u32| {
        args![
            "wal",
            "get",
            name(number),
            target,
            "--from",
            store.address,
            "--system",
            SYSTEM
        ]
    };
    for number in [2, 17, 33, 34] {
        store.run(get(number)).ends_with(0);
        assert!(fs::read(&target).unwrap() == segment(number), "{number}");
    }
    store.run(get(35)).ends_with(1);
    store.run(args!["wal", "check", store.address]).ends_with(0);
}

#[test]
fn a_store_that_fails_leaves_the_segment_to_the_server_and_never_ends_a_recovery() {
    let (store, proxy) = StoreRepository::s3_proxied();
    let dir = temp();
    store
        .run(args!["init", store.address, "--no-encryption"])
        .ends_with(0);
    write(dir.path(), 2..3);
    store.run(push(&store, dir.path(), 2)).ends_with(0);
    write(dir.path(), 3..4);
    proxy.rule(|_| super::fault_proxy::Break::Answer(503, "", ""));
    let mut line = push(&store, dir.path(), 3);
    line.extend(args!["--patience", "0", "--storage", "tries=2"]);
    let failed = store.run(line);
    assert_ne!(failed.code, 0, "{}", failed.err);
    assert!(failed.code <= 125, "{}", failed.err);
    let target = dir.path().join("fetched");
    for number in [2, 9] {
        let get = args![
            "wal",
            "get",
            name(number),
            target,
            "--from",
            store.address,
            "--system",
            SYSTEM,
            "--patience",
            "0",
            "--storage",
            "tries=2"
        ];
        store.run(get).ends_with(126);
    }
}
