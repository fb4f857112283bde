//! The suite that holds for every storage and every wrapper of one.

use fullbore_format::{digest::crc64, error::ErrorKind, root::PART_BYTES};
use fullbore_storage::{
    Lease, Leased, MAX_KEY_BYTES, MAX_NAME_BYTES, Objects, Put, PutIf, Take, Version, lease_body,
};
use std::{
    any::Any,
    sync::{Arc, Barrier},
    thread,
};

/// A storage without objects, and what must live as long as it.
pub(crate) struct Fixture {
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) _kept: Option<Box<dyn Any>>,
}

/// The tests of the suite for a storage that a function makes.
macro_rules! suite {
    ($member:ident, $fixture:expr) => {
        mod $member {
            use super::*;
            suite! { @tests $fixture;
                an_object_is_read_whole_and_by_range
                a_range_that_ends_behind_the_object_is_corrupt
                an_absent_object_is_no_error_but_for_a_range
                an_object_that_was_replaced_is_read_anew
                a_list_is_recursive_in_the_order_of_keys_and_ends_at_a_name
                a_put_on_a_condition_that_does_not_hold_changes_nothing
                of_many_puts_if_absent_one_is_done
                no_put_on_a_version_is_lost
                an_upload_is_not_seen_before_it_is_finished
                an_upload_of_any_length_has_its_bytes_and_part_digests
                an_upload_that_is_aborted_or_dropped_leaves_nothing
                an_upload_takes_the_place_of_an_object
                an_upload_may_be_amended_in_its_first_part
                uploads_and_reads_of_many_threads_do_not_mix
                many_objects_are_deleted_and_absent_ones_skipped
                what_is_settled_and_cleared_stays
                a_lease_is_held_until_it_is_let_go
                of_many_that_take_a_lease_one_has_it
                an_intent_keeps_its_content_until_it_is_updated
                unusual_keys_are_keys
                hostile_keys_are_refused
            }
        }
    };
    (@tests $fixture:expr; $($test:ident)*) => {
        $(#[test]
        fn $test() {
            let fixture = $fixture;
            $crate::storage::suite::$test(&fixture.objects);
        })*
    };
}
pub(crate) use suite;

type Storage = Arc<dyn Objects>;

pub(crate) fn put(objects: &Storage, key: &str, bytes: &[u8]) -> Version {
    match objects.put(key, bytes, &PutIf::Always).unwrap() {
        Put::Done(version) => version,
        Put::Refused => panic!("{key} was refused"),
    }
}

pub(crate) fn get(objects: &Storage, key: &str) -> Option<Vec<u8>> {
    objects.get(key).unwrap().map(|(bytes, _)| bytes)
}

pub(crate) fn keys(objects: &Storage, prefix: &str) -> Vec<String> {
    objects
        .list(prefix)
        .unwrap()
        .into_iter()
        .map(|object| object.key)
        .collect()
}

fn read(objects: &Storage, key: &str, offset: u64, len: usize) -> Vec<u8> {
    let mut out = b"what was there".to_vec();
    objects.read_at(key, offset, len, &mut out).unwrap();
    out
}

pub(crate) fn ours(leased: Leased) -> Box<dyn Lease> {
    match leased {
        Leased::Ours(lease) => lease,
        other => panic!("{other:?}"),
    }
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

fn part_digests(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(PART_BYTES as usize).map(crc64).collect()
}

pub(crate) fn an_object_is_read_whole_and_by_range(objects: &Storage) {
    put(objects, "backups/a/root.json", b"0123456789");
    assert_eq!(get(objects, "backups/a/root.json").unwrap(), b"0123456789");
    assert_eq!(objects.stat("backups/a/root.json").unwrap(), Some(10));
    for (offset, len, expected) in [
        (0, 10, "0123456789"),
        (3, 4, "3456"),
        (9, 1, "9"),
        (0, 0, ""),
        (10, 0, ""),
    ] {
        assert_eq!(
            read(objects, "backups/a/root.json", offset, len),
            expected.as_bytes()
        );
    }
    put(objects, "empty", b"");
    assert_eq!(get(objects, "empty").unwrap(), b"");
    assert_eq!(objects.stat("empty").unwrap(), Some(0));
    let described = objects.describe("backups/a/root.json");
    assert!(
        described.starts_with('"') && described.ends_with("backups/a/root.json\""),
        "{described}"
    );
}

pub(crate) fn a_range_that_ends_behind_the_object_is_corrupt(objects: &Storage) {
    put(objects, "o", b"0123456789");
    let huge = 3 << 20;
    for (offset, len) in [
        (0, 11),
        (10, 1),
        (11, 0),
        (0, huge),
        (u64::MAX, 1),
        (u64::MAX, 0),
        (1 << 62, huge),
    ] {
        let error = objects
            .read_at("o", offset, len, &mut Vec::new())
            .unwrap_err();
        assert_eq!(
            error.kind,
            ErrorKind::Corrupt,
            "{offset} {len}: {}",
            error.line()
        );
    }
}

pub(crate) fn an_absent_object_is_no_error_but_for_a_range(objects: &Storage) {
    put(objects, "backups/a/there", b"x");
    for key in ["none", "none/at/all", "backups/a/none"] {
        assert_eq!(objects.get(key).unwrap(), None);
        assert_eq!(objects.stat(key).unwrap(), None);
        assert_eq!(
            objects
                .read_at(key, 0, 0, &mut Vec::new())
                .unwrap_err()
                .kind,
            ErrorKind::NotFound
        );
        assert_eq!(
            objects
                .read_at(key, 0, 1, &mut Vec::new())
                .unwrap_err()
                .kind,
            ErrorKind::NotFound
        );
        assert_eq!(keys(objects, key), [""; 0]);
    }
    assert_eq!(
        objects.stat("backups/a").unwrap(),
        None,
        "what other keys begin with is no object"
    );
}

pub(crate) fn an_object_that_was_replaced_is_read_anew(objects: &Storage) {
    put(objects, "a/o", b"old");
    assert_eq!(read(objects, "a/o", 0, 3), b"old");
    put(objects, "a/o", b"newer");
    assert_eq!(read(objects, "a/o", 0, 5), b"newer");
    let mut upload = objects.create("a/o").unwrap();
    upload.append(b"newest").unwrap();
    upload.finish().unwrap();
    assert_eq!(read(objects, "a/o", 0, 6), b"newest");
    objects.delete(&["a/o".to_owned()]).unwrap();
    assert_eq!(
        objects
            .read_at("a/o", 0, 1, &mut Vec::new())
            .unwrap_err()
            .kind,
        ErrorKind::NotFound
    );
    put(objects, "a/o", b"again");
    assert_eq!(read(objects, "a/o", 0, 5), b"again");
}

pub(crate) fn a_list_is_recursive_in_the_order_of_keys_and_ends_at_a_name(objects: &Storage) {
    assert_eq!(keys(objects, ""), [""; 0]);
    let all = [
        "a", "b-/c", "b.x", "b/c/d", "b/c/e", "b/cc", "b0", "ba/d", "c/\u{e4}", "c/z",
    ];
    for (bytes, key) in all.iter().enumerate().rev() {
        put(objects, key, &vec![1; bytes]);
    }
    let listed = objects.list("").unwrap();
    assert!(listed.is_sorted_by(|a, b| a.key.as_bytes() < b.key.as_bytes()));
    let mut sorted = all;
    sorted.sort_unstable();
    assert_eq!(keys(objects, ""), sorted);
    assert!(
        listed
            .iter()
            .all(|object| all[object.bytes as usize] == object.key)
    );
    assert_eq!(keys(objects, "b"), ["b/c/d", "b/c/e", "b/cc"]);
    assert_eq!(keys(objects, "b/c"), ["b/c/d", "b/c/e"]);
    assert_eq!(
        keys(objects, "b/c/d"),
        [""; 0],
        "an object is not below itself"
    );
}

pub(crate) fn a_put_on_a_condition_that_does_not_hold_changes_nothing(objects: &Storage) {
    let absent = |bytes: &[u8]| objects.put("a/o", bytes, &PutIf::Absent).unwrap();
    let replace_version = |version: &Version, bytes: &[u8]| {
        objects
            .put("a/o", bytes, &PutIf::Version(version.clone()))
            .unwrap()
    };
    let Put::Done(first) = absent(b"one") else {
        panic!("it was absent")
    };
    assert_eq!(
        objects.get("a/o").unwrap(),
        Some((b"one".to_vec(), first.clone()))
    );
    assert_eq!(absent(b"two"), Put::Refused);
    assert_eq!(get(objects, "a/o").unwrap(), b"one");
    let Put::Done(second) = replace_version(&first, b"three") else {
        panic!("it had that version")
    };
    assert_ne!(first, second);
    assert_eq!(
        objects.get("a/o").unwrap(),
        Some((b"three".to_vec(), second.clone()))
    );
    assert_eq!(replace_version(&first, b"four"), Put::Refused);
    assert_eq!(get(objects, "a/o").unwrap(), b"three");
    objects.delete(&["a/o".to_owned()]).unwrap();
    assert_eq!(replace_version(&second, b"five"), Put::Refused);
    assert_eq!(keys(objects, ""), [""; 0]);
    assert!(matches!(absent(b"six"), Put::Done(_)));
}

pub(crate) fn of_many_puts_if_absent_one_is_done(objects: &Storage) {
    for round in 0..10 {
        let key = format!("new/{round}/root.json");
        let start = Barrier::new(4);
        let put = |number: u8| {
            start.wait();
            matches!(
                objects.put(&key, &[number; 2000], &PutIf::Absent).unwrap(),
                Put::Done(_)
            )
        };
        let done = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|number| scope.spawn(move || (number, put(number))))
                .collect();
            let done = threads.into_iter().map(|thread| thread.join().unwrap());
            done.filter(|(_, done)| *done)
                .map(|(number, _)| number)
                .collect::<Vec<_>>()
        });
        assert_eq!(done.len(), 1, "round {round}");
        assert_eq!(get(objects, &key).unwrap(), [done[0]; 2000]);
    }
    assert_eq!(keys(objects, "").len(), 10);
}

pub(crate) fn no_put_on_a_version_is_lost(objects: &Storage) {
    put(objects, "count", b"0");
    let add_one = || loop {
        let (bytes, version) = objects.get("count").unwrap().unwrap();
        let count: u32 = String::from_utf8(bytes).unwrap().parse().unwrap();
        let next = (count + 1).to_string();
        if objects
            .put("count", next.as_bytes(), &PutIf::Version(version))
            .unwrap()
            != Put::Refused
        {
            break;
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| add_one()));
        }
    });
    assert_eq!(get(objects, "count").unwrap(), b"40");
}

pub(crate) fn an_upload_is_not_seen_before_it_is_finished(objects: &Storage) {
    let mut upload = objects.create("backups/a/s01-000001.tar.zst").unwrap();
    for _ in 0..3 {
        upload.append(&pattern(1 << 20, 1)).unwrap();
        assert_eq!(objects.stat("backups/a/s01-000001.tar.zst").unwrap(), None);
        assert_eq!(get(objects, "backups/a/s01-000001.tar.zst"), None);
        assert_eq!(keys(objects, ""), [""; 0]);
    }
    let stored = upload.finish().unwrap();
    assert_eq!(stored.bytes, 3 << 20);
    assert_eq!(
        objects.stat("backups/a/s01-000001.tar.zst").unwrap(),
        Some(3 << 20)
    );
    assert_eq!(keys(objects, "backups"), ["backups/a/s01-000001.tar.zst"]);
}

pub(crate) fn an_upload_of_any_length_has_its_bytes_and_part_digests(objects: &Storage) {
    let mib = 1 << 20;
    let part = PART_BYTES as usize;
    let lengths = [
        0,
        1,
        4095,
        4096,
        mib - 1,
        mib,
        mib + 1,
        part - 1,
        part,
        part + 1,
        2 * part + 12_345,
    ];
    for (number, length) in lengths.into_iter().enumerate() {
        let bytes = pattern(length, number as u64);
        let key = format!("of/{length}");
        for piece in [77_777, 3 * mib + 5] {
            let mut upload = objects.create(&key).unwrap();
            bytes
                .chunks(piece)
                .for_each(|piece| upload.append(piece).unwrap());
            upload.append(b"").unwrap();
            let stored = upload.finish().unwrap();
            assert_eq!(
                (stored.bytes, stored.parts),
                (length as u64, part_digests(&bytes)),
                "{length} by {piece}"
            );
            assert_eq!(objects.stat(&key).unwrap(), Some(length as u64));
            assert!(
                read(objects, &key, 0, length) == bytes,
                "{length} by {piece}"
            );
        }
    }
}

pub(crate) fn an_upload_that_is_aborted_or_dropped_leaves_nothing(objects: &Storage) {
    put(objects, "a/old", b"old");
    for length in [0, 10, (3 << 20) + 1] {
        let mut upload = objects.create("a/old").unwrap();
        upload.append(&pattern(length, 1)).unwrap();
        upload.abort();
        let mut upload = objects.create("a/new").unwrap();
        upload.append(&pattern(length, 1)).unwrap();
        drop(upload);
    }
    assert_eq!(keys(objects, ""), ["a/old"]);
    assert_eq!(get(objects, "a/old").unwrap(), b"old");
}

pub(crate) fn an_upload_takes_the_place_of_an_object(objects: &Storage) {
    put(objects, "a/o", &pattern(1000, 1));
    let mut first = objects.create("a/o").unwrap();
    let mut second = objects.create("a/o").unwrap();
    first.append(b"first").unwrap();
    second.append(b"second").unwrap();
    assert_eq!(get(objects, "a/o").unwrap(), pattern(1000, 1));
    second.finish().unwrap();
    assert_eq!(get(objects, "a/o").unwrap(), b"second");
    first.finish().unwrap();
    assert_eq!(get(objects, "a/o").unwrap(), b"first");
    assert_eq!(keys(objects, ""), ["a/o"]);
}

pub(crate) fn an_upload_may_be_amended_in_its_first_part(objects: &Storage) {
    if !objects.abilities().amends {
        let mut upload = objects.create("a/o").unwrap();
        upload.append(&[0; 10]).unwrap();
        assert_eq!(
            upload.amend(0, b"x").unwrap_err().kind,
            ErrorKind::Unsupported
        );
        return;
    }
    let mib = 1 << 20;
    // The end of what is appended before, and where 4 KiB of it change: in what waits, in what was stored, and in both.
    for (before, index) in [
        (5000, 100),
        (mib + 100, 7),
        (2 * mib + 5, mib - 2000),
        (2 * mib + 3000, 2 * mib - 1500),
    ] {
        let mut bytes = pattern(9 * mib + 11, before as u64);
        let amendment = pattern(4096, 99);
        let mut upload = objects.create("a/o").unwrap();
        upload.append(&bytes[..before]).unwrap();
        upload.amend(index as u64, &amendment).unwrap();
        upload.append(&bytes[before..]).unwrap();
        upload.amend(3, b"again").unwrap();
        bytes[index..index + 4096].copy_from_slice(&amendment);
        bytes[3..8].copy_from_slice(b"again");
        assert_eq!(
            upload.amend(PART_BYTES - 1, b"xy").unwrap_err().kind,
            ErrorKind::Bug
        );
        let stored = upload.finish().unwrap();
        assert_eq!(stored.parts, part_digests(&bytes), "{before} {index}");
        assert!(
            read(objects, "a/o", 0, bytes.len()) == bytes,
            "{before} {index}"
        );
    }
}

pub(crate) fn uploads_and_reads_of_many_threads_do_not_mix(objects: &Storage) {
    let length = (2 << 20) + 4321;
    let upload_and_read = |number: u64| {
        let bytes = pattern(length, number);
        let key = format!("backups/{}/s{number:02}", number % 3);
        let mut upload = objects.create(&key).unwrap();
        bytes
            .chunks(300_001)
            .for_each(|piece| upload.append(piece).unwrap());
        assert_eq!(upload.finish().unwrap().parts, part_digests(&bytes));
        assert!(read(objects, &key, 1_000_000, 100) == bytes[1_000_000..1_000_100]);
        assert!(read(objects, &key, 0, length) == bytes);
    };
    thread::scope(|scope| {
        for number in 0..6 {
            let upload_and_read = &upload_and_read;
            scope.spawn(move || upload_and_read(number));
        }
    });
    assert_eq!(keys(objects, "backups").len(), 6);
}

pub(crate) fn many_objects_are_deleted_and_absent_ones_skipped(objects: &Storage) {
    let mut all: Vec<_> = (0..50)
        .map(|number| format!("backups/{}/o{number}", number % 3))
        .collect();
    all.iter().for_each(|key| drop(put(objects, key, b"x")));
    put(objects, "backups/0/kept", b"kept");
    all.push("backups/0/none".to_owned());
    all.push("nowhere/at/all".to_owned());
    objects.delete(&all).unwrap();
    objects.delete(&all).unwrap();
    objects.delete(&[]).unwrap();
    assert_eq!(keys(objects, ""), ["backups/0/kept"]);
    // One key that cannot be deleted does not keep the others.
    let mixed = ["../bad".to_owned(), "backups/0/kept".to_owned()];
    assert_eq!(objects.delete(&mixed).unwrap_err().kind, ErrorKind::Usage);
    assert_eq!(keys(objects, ""), [""; 0]);
}

pub(crate) fn what_is_settled_and_cleared_stays(objects: &Storage) {
    put(objects, "backups/a/root.json", b"root");
    let mut upload = objects.create("backups/a/s1").unwrap();
    upload.append(b"x").unwrap();
    upload.finish().unwrap();
    put(objects, "backups/b/root.json", b"root");
    for prefix in ["", "backups", "backups/a", "backups/none", "none/at/all"] {
        objects.settle(prefix).unwrap();
        objects.abort_uploads(prefix).unwrap();
    }
    objects.delete(&["backups/b/root.json".to_owned()]).unwrap();
    objects.settle("backups/b").unwrap();
    assert_eq!(keys(objects, ""), ["backups/a/root.json", "backups/a/s1"]);
    assert_eq!(get(objects, "backups/a/root.json").unwrap(), b"root");
}

const INTENT: &str = "intents/20261121T054501Z-k3f9qz.json";

pub(crate) fn a_lease_is_held_until_it_is_let_go(objects: &Storage) {
    assert!(matches!(
        objects.lease(INTENT, b"", Take::Dead).unwrap(),
        Leased::Absent
    ));
    assert_eq!(
        keys(objects, ""),
        [""; 0],
        "what was not taken was not made"
    );
    let lease = ours(objects.lease(INTENT, b"mine", Take::New).unwrap());
    assert!(lease.is_ours());
    assert_eq!(keys(objects, "intents"), [INTENT]);
    assert!(matches!(
        objects.lease(INTENT, b"yours", Take::New).unwrap(),
        Leased::Held
    ));
    assert!(matches!(
        objects.lease(INTENT, b"yours", Take::Dead).unwrap(),
        Leased::Held
    ));
    assert!(matches!(
        objects.lease(INTENT, b"yours", Take::DeadOrNew).unwrap(),
        Leased::Held
    ));
    assert!(lease.is_ours());
    drop(lease);
    assert!(
        matches!(
            objects.lease(INTENT, b"yours", Take::New).unwrap(),
            Leased::Held
        ),
        "the intent stays"
    );
    let lease = ours(objects.lease(INTENT, b"yours", Take::Dead).unwrap());
    drop(lease);
    let lease = ours(objects.lease(INTENT, b"yours", Take::DeadOrNew).unwrap());
    // So a backup ends: its intent goes while it holds the lease.
    objects.delete(&[INTENT.to_owned()]).unwrap();
    drop(lease);
    assert_eq!(keys(objects, ""), [""; 0]);
    assert!(matches!(
        objects.lease(INTENT, b"", Take::Dead).unwrap(),
        Leased::Absent
    ));
    let lease = ours(objects.lease(INTENT, b"new", Take::DeadOrNew).unwrap());
    assert!(lease.is_ours());
}

pub(crate) fn of_many_that_take_a_lease_one_has_it(objects: &Storage) {
    drop(ours(objects.lease("intents/old", b"", Take::New).unwrap()));
    for (key, take) in [
        ("intents/new", Take::New),
        ("intents/either", Take::DeadOrNew),
        ("intents/old", Take::Dead),
    ] {
        let start = Barrier::new(4);
        let attempt = || {
            start.wait();
            objects.lease(key, b"body", take).unwrap()
        };
        let leases: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(attempt)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let held = leases
            .iter()
            .filter(|leased| matches!(leased, Leased::Ours(_)))
            .count();
        assert_eq!(held, 1, "{key}: {leases:?}");
        let refused = leases
            .iter()
            .filter(|leased| matches!(leased, Leased::Held))
            .count();
        assert_eq!(refused, 3, "{key}: {leases:?}");
    }
}

pub(crate) fn an_intent_keeps_its_content_until_it_is_updated(objects: &Storage) {
    let body = || lease_body(&get(objects, INTENT).unwrap()).to_vec();
    let mut lease = ours(objects.lease(INTENT, b"first", Take::New).unwrap());
    assert_eq!(body(), b"first");
    lease.update(b"second, which is longer").unwrap();
    assert_eq!(body(), b"second, which is longer");
    lease.update(b"third").unwrap();
    assert_eq!(body(), b"third");
    assert!(lease.is_ours());
    assert!(matches!(
        objects.lease(INTENT, b"other", Take::Dead).unwrap(),
        Leased::Held
    ));
    drop(lease);
    let mut lease = ours(objects.lease(INTENT, b"other", Take::DeadOrNew).unwrap());
    assert_eq!(
        body(),
        b"third",
        "what the dead wrote is there for whoever took over"
    );
    lease.update(b"").unwrap();
    assert_eq!(body(), b"");
}

pub(crate) fn unusual_keys_are_keys(objects: &Storage) {
    let long_name = "n".repeat(MAX_NAME_BYTES);
    let long_key = format!(
        "{}/{}",
        vec!["d".repeat(99); 4].join("/"),
        "k".repeat(MAX_KEY_BYTES - 400)
    );
    let unusual = [
        "a b",
        "%2F/%00",
        "\u{4e2d}/\u{1f600}",
        "-rf/*",
        "...",
        ".hidden/.x",
        "\\\"'$(x)",
        "partial",
        &long_name,
        &long_key,
    ];
    for key in unusual {
        put(objects, key, key.as_bytes());
        let mut upload = objects
            .create(&format!("u{}", key.split('/').next().unwrap().len()))
            .unwrap();
        upload.append(b"x").unwrap();
        upload.finish().unwrap();
        assert_eq!(get(objects, key).unwrap(), key.as_bytes());
        assert_eq!(objects.stat(key).unwrap(), Some(key.len() as u64));
    }
    let listed = keys(objects, "");
    assert!(
        unusual
            .iter()
            .all(|key| listed.iter().any(|listed| listed == key)),
        "{listed:?}"
    );
    objects.delete(&listed).unwrap();
    assert_eq!(keys(objects, ""), [""; 0]);
}

pub(crate) fn hostile_keys_are_refused(objects: &Storage) {
    let long_name = "n".repeat(MAX_NAME_BYTES + 1);
    let long_key = "d/".repeat(MAX_KEY_BYTES / 2) + "k";
    let hostile = [
        "",
        "/",
        "/etc/x",
        "../x",
        "a/../x",
        "a/..",
        ".",
        "./a",
        "a/.",
        "a//b",
        "a/",
        "nul\0",
        "a/\0/b",
        "line\n",
        "\u{7f}",
        "\u{85}",
        "x.partial",
        "a.partial/b",
        &long_name,
        &long_key,
    ];
    let refused = |result: fullbore_format::error::Result<()>, word: &str, key: &str| {
        let error = result.expect_err(&format!("{word} of {key:?}"));
        assert_eq!(error.kind, ErrorKind::Usage, "{word} of {key:?}");
    };
    for key in hostile {
        refused(objects.get(key).map(drop), "get", key);
        refused(objects.stat(key).map(drop), "stat", key);
        refused(objects.read_at(key, 0, 0, &mut Vec::new()), "read_at", key);
        for condition in [
            PutIf::Always,
            PutIf::Absent,
            PutIf::Version(Version::new("1")),
        ] {
            refused(objects.put(key, b"", &condition).map(drop), "put", key);
        }
        refused(objects.create(key).map(drop), "create", key);
        refused(objects.delete(&[key.to_owned()]), "delete", key);
        for take in [Take::New, Take::Dead, Take::DeadOrNew] {
            refused(objects.lease(key, b"", take).map(drop), "lease", key);
        }
        if !key.is_empty() {
            refused(objects.list(key).map(drop), "list", key);
            refused(objects.settle(key), "settle", key);
            refused(objects.abort_uploads(key), "abort_uploads", key);
        }
    }
    assert_eq!(keys(objects, ""), [""; 0]);
}
