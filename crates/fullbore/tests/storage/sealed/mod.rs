//! Sealed storages: the suite, the format, and all that a storage may try.

mod damaged;
mod roots;

use super::{
    in_directory, in_memory,
    suite::{get, keys, pattern, put, suite},
};
use fullbore_crypt::{
    Access, Author, CHUNK_BYTES, KeyRing, OBJECT_PREFIX_BYTES, SealObserver, UserRecipient,
    random_author, stored_object_bytes,
};
use fullbore_format::{
    digest::crc64,
    error::ErrorKind,
    root::{EntryName, FORMAT, Live, PART_BYTES, PageAt, Root, SourceInfo},
    seal::seal,
};
use fullbore_platform as platform;
use fullbore_repository::writer::RepositoryWriter;
use fullbore_storage::{
    Fault, Faulty, KeptBackups, MemoryObjects, Objects, Operation, Put, PutIf, Recording,
    SealedObjects,
    keys::{accept_root, encrypt_repository, rotate_key},
};
use proptest::prelude::*;
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

type Storage = Arc<dyn Objects>;

const ID: &str = "20261121T054501Z-k3f9qz";

const OTHER_ID: &str = "20261122T054501Z-aaaaaa";

fn ring() -> Arc<KeyRing> {
    Arc::new(KeyRing::random().unwrap())
}

fn sealed(inner: Storage) -> Storage {
    Arc::new(SealedObjects::new(inner, ring()))
}

/// The suite without the tests that compare digests of parts: those of a sealed object are of its stored bytes.
macro_rules! sealed_suite {
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
                an_upload_that_is_aborted_or_dropped_leaves_nothing
                an_upload_takes_the_place_of_an_object
                an_upload_may_be_amended_in_its_first_part
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
}

sealed_suite!(sealed_memory, in_memory(|memory| sealed(Arc::new(memory))));

sealed_suite!(sealed_local, in_directory(|local| sealed(Arc::new(local))));

sealed_suite!(
    recorded_over_sealed_over_faulty,
    in_memory(
        |memory| Arc::new(Recording::new(sealed(Arc::new(Faulty::new(Arc::new(
            memory
        ))))))
    )
);

// A host that has no place for copies.
sealed_suite!(
    kept_over_sealed,
    in_memory(|memory| Arc::new(KeptBackups::new(
        SealedObjects::new(Arc::new(memory), ring()),
        Some(Path::new("/proc/no/such/directory"))
    )))
);

/// A storage in memory, and the same sealed with a key.
fn memory_and_sealed() -> (Storage, SealedObjects, Arc<KeyRing>) {
    let memory: Storage = Arc::new(MemoryObjects::new());
    let ring = ring();
    let sealed = SealedObjects::new(memory.clone(), ring.clone());
    (memory, sealed, ring)
}

fn upload(
    objects: &dyn Objects,
    key: &str,
    bytes: &[u8],
    piece: usize,
) -> fullbore_storage::StoredObject {
    let mut upload = objects.create(key).unwrap();
    bytes
        .chunks(piece)
        .for_each(|piece| upload.append(piece).unwrap());
    upload.finish().unwrap()
}

fn read(objects: &dyn Objects, key: &str, offset: u64, len: usize) -> Vec<u8> {
    let mut out = b"before".to_vec();
    objects.read_at(key, offset, len, &mut out).unwrap();
    out
}

fn kind_of<T: std::fmt::Debug>(result: fullbore_format::error::Result<T>) -> ErrorKind {
    result.unwrap_err().kind
}

fn page(first: &str) -> PageAt {
    PageAt {
        stream: 1,
        first: first.into(),
        entries: 3,
        bytes: 100,
        digest: "ab".into(),
        ..PageAt::default()
    }
}

fn root_of(id: &str) -> Root {
    Root {
        format: FORMAT,
        id: id.into(),
        tool: "fullbore 0.1".into(),
        time: "2026-11-21T05:45:01Z".into(),
        finished: "2026-11-21T05:46:01Z".into(),
        source: SourceInfo {
            host: "private-host".into(),
            paths: vec![EntryName(b"/private/path".to_vec())],
            contents: false,
        },
        left_out: vec!["--exclude private-pattern".into()],
        tags: [("kind".to_owned(), "weekly".to_owned())].into(),
        pages: vec![page("private-a"), page("private-b")],
        liveness: vec![Live {
            stream: 1,
            number: 1,
            frames: 3,
            bytes: 100,
            of_bytes: 100,
            ..Live::default()
        }],
        ..Root::default()
    }
}

fn root_key(id: &str) -> String {
    format!("backups/{id}/root.json")
}

#[test]
fn an_upload_of_any_length_has_its_plain_length_and_digests_of_its_stored_bytes() {
    let (memory, sealed, _) = memory_and_sealed();
    let part = PART_BYTES as usize;
    for length in [
        0,
        1,
        CHUNK_BYTES - 1,
        CHUNK_BYTES,
        CHUNK_BYTES + 1,
        16 * CHUNK_BYTES,
        17 * CHUNK_BYTES + 5,
        part + 77,
    ] {
        let bytes = pattern(length, length as u64);
        for piece in [4096 + 7, CHUNK_BYTES, 3 << 20] {
            let stored = upload(&sealed, "a/o", &bytes, piece);
            let as_stored = read(
                &*memory,
                "a/o",
                0,
                stored_object_bytes(length as u64) as usize,
            );
            let parts: Vec<_> = as_stored.chunks(part).map(crc64).collect();
            assert_eq!(
                (stored.bytes, stored.parts),
                (length as u64, parts),
                "{length} by {piece}"
            );
            assert_eq!(
                memory.stat("a/o").unwrap(),
                Some(stored_object_bytes(length as u64))
            );
            assert_eq!(sealed.stat("a/o").unwrap(), Some(length as u64));
            assert_eq!(sealed.list("a").unwrap()[0].bytes, length as u64);
            assert!(
                read(&sealed, "a/o", 0, length) == bytes,
                "{length} by {piece}"
            );
            // A document, which is got as a whole, has no such length.
            assert!(
                length > part || sealed.get("a/o").unwrap().unwrap().0 == bytes,
                "{length} by {piece}"
            );
        }
    }
}

#[test]
fn a_range_is_read_with_no_more_than_the_chunks_that_hold_it() {
    let recording = Recording::new(Arc::new(MemoryObjects::new()));
    let sealed = SealedObjects::new(Arc::new(recording.clone()), ring());
    let bytes = pattern(20 * CHUNK_BYTES, 1);
    upload(&sealed, "a/o", &bytes, 1 << 20);
    recording.reset();
    assert!(
        read(&sealed, "a/o", 3 * CHUNK_BYTES as u64 + 10, 100)
            == bytes[3 * CHUNK_BYTES + 10..][..100]
    );
    // The header and the length of the object, once.
    let first = recording.count(Operation::ReadAt);
    assert_eq!((first.calls, recording.requests()), (2, 3));
    assert_eq!(first.bytes, (OBJECT_PREFIX_BYTES + CHUNK_BYTES + 16) as u64);
    recording.reset();
    let offset = 5 * CHUNK_BYTES as u64 - 1;
    assert!(read(&sealed, "a/o", offset, 2) == bytes[5 * CHUNK_BYTES - 1..][..2]);
    assert_eq!(recording.requests(), 1);
    assert_eq!(
        recording.count(Operation::ReadAt).bytes,
        2 * (CHUNK_BYTES + 16) as u64
    );
}

#[test]
fn uploads_and_reads_of_many_threads_do_not_mix() {
    let (_, sealed, _) = memory_and_sealed();
    let sealed = &sealed;
    thread::scope(|scope| {
        for number in 0..6_u64 {
            scope.spawn(move || {
                let bytes = pattern((1 << 20) + 4321, number);
                let key = format!("backups/{}/s{number:02}", number % 3);
                upload(sealed, &key, &bytes, 300_001);
                assert!(read(sealed, &key, 1_000_000, 100) == bytes[1_000_000..1_000_100]);
                assert!(read(sealed, &key, 0, bytes.len()) == bytes);
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_range_of_any_object_is_that_of_its_plain_bytes(
        length in prop_oneof![0..300_usize, 0..5 * CHUNK_BYTES, (1..4_usize).prop_map(|chunks| chunks * CHUNK_BYTES)],
        piece in 1..200_000_usize,
        ranges in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..8),
    ) {
        let (_, sealed, _) = memory_and_sealed();
        let bytes = pattern(length, piece as u64);
        upload(&sealed, "a/o", &bytes, piece);
        for (begin, end) in ranges {
            let (begin, end) = (begin.index(length + 1), end.index(length + 1));
            let (begin, end) = (begin.min(end), begin.max(end));
            prop_assert!(read(&sealed, "a/o", begin as u64, end - begin) == bytes[begin..end]);
        }
        prop_assert_eq!(kind_of(sealed.read_at("a/o", length as u64, 1, &mut Vec::new())), ErrorKind::Corrupt);
    }
}

/// A key, by its fingerprint, and a nonce.
type UsedNonce = ([u8; 16], [u8; 12]);

/// All keys and nonces that were used.
#[derive(Debug, Default)]
struct NonceRecord(Mutex<BTreeSet<UsedNonce>>);

impl SealObserver for NonceRecord {
    fn sealed(&self, key_print: [u8; 16], nonce: [u8; 12]) {
        let is_new = self.0.lock().unwrap().insert((key_print, nonce));
        assert!(is_new, "a nonce was used twice");
    }
}

#[test]
fn no_nonce_is_used_twice_whatever_is_stored_replaced_retried_or_given_up() {
    let record = Arc::new(NonceRecord::default());
    let memory: Storage = Arc::new(MemoryObjects::new());
    let faulty = [
        (Operation::Append, 2),
        (Operation::Finish, 3),
        (Operation::Put, 4),
    ]
    .into_iter()
    .fold(Faulty::new(memory), |faulty, (operation, nth)| {
        faulty.with(operation, nth, Fault::FailLate(ErrorKind::Unreachable))
    });
    let ring = ring();
    let sealed = SealedObjects::new(Arc::new(faulty), ring.clone()).with_observer(record.clone());
    let bytes = pattern(40 * CHUNK_BYTES + 1, 1);
    let mut failures = 0;
    for round in 0..6 {
        let mut same = sealed.create("a/o").unwrap();
        failures += u32::from(
            bytes
                .chunks(1 << 20)
                .any(|piece| same.append(piece).is_err()),
        );
        // Whoever goes on after a failure is refused: nothing is sealed in place of what was lost.
        failures += u32::from(same.append(b"more").is_err());
        assert_eq!(kind_of(same.amend(0, b"x")), ErrorKind::Unsupported);
        failures += u32::from(same.finish().is_err());
        let mut dropped = sealed.create("a/o").unwrap();
        let _ = dropped.append(&bytes);
        drop(dropped);
        failures += u32::from(
            sealed
                .put("a/small", &bytes[..round], &PutIf::Always)
                .is_err(),
        );
        let root = seal(&root_of(ID)).unwrap();
        let _ = sealed.put(&root_key(ID), &root, &PutIf::Always);
    }
    assert!(failures >= 4, "{failures}");
    let rotated = SealedObjects::new(
        sealed.as_stored().clone(),
        Arc::new(ring.rotated().unwrap()),
    );
    upload(
        &rotated.with_observer(record.clone()),
        "a/o",
        &bytes,
        1 << 20,
    );
    let seen = record.0.lock().unwrap();
    assert!(seen.len() > 300, "{}", seen.len());
}

#[test]
fn no_secret_is_printed() {
    let (_, sealed, ring) = memory_and_sealed();
    let mut open = sealed.create("a/o").unwrap();
    open.append(b"plain words").unwrap();
    let printed = format!("{sealed:?} {open:?} {ring:?} {:?}", sealed.get("a/o"));
    let text = ring.to_text();
    let secrets = text
        .split_whitespace()
        .filter(|word| word.len() >= 60 && !word.starts_with("age1"));
    let secrets: Vec<_> = secrets.collect();
    assert_eq!(secrets.len(), 3);
    assert!(
        !secrets.iter().any(|secret| printed.contains(secret)),
        "{printed}"
    );
}

#[test]
fn an_intent_names_no_host_in_a_sealed_repository() {
    let (memory, sealed, ring) = memory_and_sealed();
    let writer = RepositoryWriter::begin(Arc::new(sealed), ID, "2026-11-21T05:45:01Z", "tar.zst");
    let (bytes, _) = memory
        .get(&format!("intents/{ID}.json"))
        .unwrap()
        .expect("an intent");
    drop(writer.unwrap());
    let text = String::from_utf8(bytes).unwrap();
    let host = platform::host_name();
    assert!(text.contains(&ring.pseudonym(host.as_bytes())), "{text}");
    assert!(!text.contains(&format!("\"{host}\"")), "{text}");
    assert!(!text.contains(&platform::boot_id()), "{text}");
}
