//! WAL in an encrypted repository, and of a host that adds it and cannot read it.

use super::{
    runs::{self, shell},
    world::World,
};
use std::{fs, path::Path};

const SYSTEM: &str = "7430123456789012345";
const BYTES: usize = 1 << 20;

fn segment(number: u32, seed: u64) -> Vec<u8> {
    let mut content = runs::noise(seed, BYTES);
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

fn write(dir: &Path, numbers: std::ops::Range<u32>, seed: u64) {
    fs::create_dir_all(dir.join("archive_status")).unwrap();
    for number in numbers {
        fs::write(
            dir.join(name(number)),
            segment(number, seed + u64::from(number)),
        )
        .unwrap();
        fs::write(
            dir.join(format!("archive_status/{}.ready", name(number))),
            "",
        )
        .unwrap();
    }
}

#[test]
fn a_put_key_archives_and_cannot_fetch() {
    let world = World::new();
    let (me, host) = (world.person("me"), world.person("host"));
    let repository = world.repository();
    world.init(&repository, &me);
    let put = args![
        "key",
        "put",
        repository,
        "--for",
        host.recipient,
        "--name",
        "db1"
    ];
    world.run_as(&me, put).ends_with(0);
    let wal = world.path("pg_wal");
    write(&wal, 2..8, 1);
    let push = |dir: &Path, number: u32| {
        args![
            "wal",
            "push",
            dir.join(name(number)),
            "--to",
            repository,
            "--system",
            SYSTEM,
            "--no-serve"
        ]
    };
    world.run_as(&host, push(&wal, 2)).ends_with(0);
    // Names say nothing about content: the digest in the key is another one than in a clear repository.
    let found = shell("find \"$1\"/wal -type f", args![repository]);
    assert_eq!(found.out.lines().count(), 1, "{}", found.out);
    let object = fs::read(found.out.trim()).unwrap();
    assert!(object.starts_with(b"age-encryption.org"));
    let out = world.path("fetched");
    let get = |number: u32| {
        args![
            "wal",
            "get",
            name(number),
            out,
            "--from",
            repository,
            "--system",
            SYSTEM,
            "--alone"
        ]
    };
    world.run_as(&host, get(3)).ends_with(126);
    assert!(!out.exists());
    world.run_as(&me, get(3)).ends_with(0);
    assert!(fs::read(&out).unwrap() == segment(3, 4));
    // The same segment again, in another run, is compared without reading.
    fs::remove_dir_all(runs::state_dir().join("wal")).ok();
    write(&wal, 8..10, 1);
    world.run_as(&host, push(&wal, 5)).ends_with(0);
    // Other content is found by the digest in the key.
    let other = world.path("other");
    write(&other, 2..10, 500);
    let refused = world.run_as(&host, push(&other, 2)).ends_with(1);
    assert!(
        refused.err.contains("two servers write one timeline"),
        "{}",
        refused.err
    );
    world
        .run_as(&me, args!["wal", "check", repository])
        .ends_with(4);
    // An object under another key, and one of a changed name, are damage.
    let moved = found.out.trim().replace("-06-", "-05-");
    fs::rename(found.out.trim(), &moved).unwrap();
    world.run_as(&me, get(6)).ends_with(126);
}
