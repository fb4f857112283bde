//! Sealed storages: the suite, the format, and all that a storage may try.

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

/// Is the changed object refused, by reads of its parts and as a whole?
fn refuses(memory: &Storage, ring: &Arc<KeyRing>, key: &str, plain: &[u8]) -> Result<(), String> {
    let sealed = SealedObjects::new(memory.clone(), ring.clone());
    let whole = sealed.get(key);
    match whole {
        Ok(found) => {
            return Err(format!(
                "read as {:?}",
                found.map(|(bytes, _)| bytes == plain)
            ));
        }
        Err(error) if !matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Permission) => {
            return Err(error.line());
        }
        Err(error) if !error.what.contains(key) => return Err(error.line()),
        Err(_) => {}
    }
    // A part that is not touched may be read; a part that is must not be.
    let mut wrong = 0;
    let mut refused = 0;
    for offset in (0..plain.len()).step_by(CHUNK_BYTES) {
        let len = CHUNK_BYTES.min(plain.len() - offset);
        let mut out = Vec::new();
        match sealed.read_at(key, offset as u64, len, &mut out) {
            Ok(()) => wrong += usize::from(out != plain[offset..offset + len]),
            Err(_) => refused += 1,
        }
    }
    if wrong > 0 || refused == 0 {
        return Err(format!(
            "{wrong} parts are other data, {refused} were refused"
        ));
    }
    Ok(())
}

#[test]
fn every_byte_of_an_object_that_is_flipped_is_found() {
    let (memory, sealed, ring) = memory_and_sealed();
    let plain = pattern(3 * CHUNK_BYTES + 100, 5);
    let key = "backups/a/s01-000001.tar.zst";
    upload(&sealed, key, &plain, 1 << 20);
    let stored = get(&memory, key).unwrap();
    let all = stored.len();
    // All of the header, of the borders of chunks and of the end, and some of what is between.
    let edges = (0..=all / (CHUNK_BYTES + 16)).flat_map(|chunk| {
        let offset = OBJECT_PREFIX_BYTES + chunk * (CHUNK_BYTES + 16);
        offset - 20..offset + 20
    });
    let places = (0..OBJECT_PREFIX_BYTES)
        .chain(edges)
        .chain(all - 120..all)
        .chain((0..all).step_by(1999));
    for index in places.filter(|index| *index < all).collect::<BTreeSet<_>>() {
        for bit in [0, 5] {
            let mut changed = stored.clone();
            changed[index] ^= 1 << bit;
            put(&memory, key, &changed);
            refuses(&memory, &ring, key, &plain)
                .unwrap_or_else(|why| panic!("byte {index}, bit {bit}: {why}"));
        }
    }
}

#[test]
fn an_object_that_is_cut_or_goes_on_or_lacks_a_chunk_is_found() {
    let (memory, sealed, ring) = memory_and_sealed();
    let plain = pattern(4 * CHUNK_BYTES, 6);
    let key = "backups/a/manifest";
    upload(&sealed, key, &plain, 1 << 20);
    let stored = get(&memory, key).unwrap();
    let chunk = CHUNK_BYTES + 16;
    let begin = OBJECT_PREFIX_BYTES;
    let cuts = (0..begin + 40).chain((1..=4).flat_map(|number| {
        let border = begin + number * chunk;
        border - 20..(border + 20).min(stored.len())
    }));
    for len in cuts.filter(|len| *len < stored.len()) {
        put(&memory, key, &stored[..len]);
        refuses(&memory, &ring, key, &plain).unwrap_or_else(|why| panic!("{len} bytes: {why}"));
    }
    let longer = [&stored[..], &stored[begin..begin + chunk]].concat();
    let one_byte_more = [&stored[..], b"x"].concat();
    let without_second = [&stored[..begin + chunk], &stored[begin + 2 * chunk..]].concat();
    let mut swapped = stored.clone();
    swapped[begin..begin + chunk].copy_from_slice(&stored[begin + chunk..begin + 2 * chunk]);
    swapped[begin + chunk..begin + 2 * chunk].copy_from_slice(&stored[begin..begin + chunk]);
    for changed in [longer, one_byte_more, without_second, swapped] {
        put(&memory, key, &changed);
        refuses(&memory, &ring, key, &plain).unwrap();
    }
}

#[test]
fn an_object_under_the_key_of_another_or_of_another_repository_is_found() {
    let (memory, sealed, ring) = memory_and_sealed();
    let plain = pattern(1000, 1);
    let first = format!("backups/{ID}/s01-000001.tar.zst");
    let second = format!("backups/{OTHER_ID}/s01-000001.tar.zst");
    upload(&sealed, &first, &plain, 1000);
    put(&memory, &second, &get(&memory, &first).unwrap());
    assert!(sealed.get(&first).is_ok());
    refuses(&memory, &ring, &second, &plain).unwrap();
    // Made by someone who knows the public key, as an age file and as an object of another repository.
    let (other_memory, other, _) = memory_and_sealed();
    upload(&other, &second, &plain, 1000);
    put(&memory, &second, &get(&other_memory, &second).unwrap());
    refuses(&memory, &ring, &second, &plain).unwrap();
    let recipients = [fullbore_crypt::UserRecipient::Native(
        ring.newest().recipient().clone(),
    )];
    put(
        &memory,
        &second,
        &fullbore_crypt::wrap_secret(&plain, &recipients).unwrap(),
    );
    refuses(&memory, &ring, &second, &plain).unwrap();
    put(&memory, &second, &plain);
    refuses(&memory, &ring, &second, &plain).unwrap();
}

#[test]
fn an_object_that_another_process_replaced_is_read_anew() {
    let (memory, sealed, ring) = memory_and_sealed();
    let other = SealedObjects::new(memory, ring);
    for (length, offset) in [
        (3 * CHUNK_BYTES, 70_000),
        (10, 3),
        (5 * CHUNK_BYTES + 9, 300_000),
    ] {
        let bytes = pattern(length, offset);
        upload(&other, "a/o", &bytes, 1 << 20);
        assert!(read(&sealed, "a/o", offset, 5) == bytes[offset as usize..offset as usize + 5]);
    }
}

#[test]
fn a_root_is_read_whole_with_a_key_and_as_its_head_without() {
    let (memory, sealed, ring) = memory_and_sealed();
    let root = seal(&root_of(ID)).unwrap();
    let key = root_key(ID);
    assert!(matches!(
        sealed.put(&key, &root, &PutIf::Absent).unwrap(),
        Put::Done(_)
    ));
    assert_eq!(
        sealed.put(&key, &root, &PutIf::Absent).unwrap(),
        Put::Refused
    );
    assert_eq!(sealed.get(&key).unwrap().unwrap().0, root);
    assert_eq!(sealed.stat(&key).unwrap(), Some(root.len() as u64));
    assert_eq!(read(&sealed, &key, 5, 20), root[5..25]);
    let stored = get(&memory, &key).unwrap();
    assert!(!String::from_utf8(stored).unwrap().contains("private"));
    let locked = SealedObjects::locked(memory.clone());
    let putting = SealedObjects::new(memory, Arc::new(ring.for_putting(random_author().unwrap())));
    for objects in [&locked, &putting] {
        let head = Root::of_backup(ID, &objects.get(&key).unwrap().unwrap().0, "the head").unwrap();
        assert_eq!(
            (head.id.as_str(), &head.tags, head.pages.len()),
            (ID, &root_of(ID).tags, 2)
        );
        assert_eq!(head.liveness, root_of(ID).liveness);
        assert!(head.source.host.starts_with("sealed-") && head.source.paths.is_empty());
        assert!(head.left_out.is_empty());
    }
}

#[test]
fn a_backup_is_forgotten_without_a_key_and_is_read_with_one_afterwards() {
    let (memory, sealed, _) = memory_and_sealed();
    let root = seal(&root_of(ID)).unwrap();
    sealed.put(&root_key(ID), &root, &PutIf::Absent).unwrap();
    let locked = SealedObjects::locked(memory);
    let (head, _) = locked.get(&root_key(ID)).unwrap().unwrap();
    let forgotten = format!("backups/{ID}/forgotten.json");
    locked.put(&forgotten, &head, &PutIf::Absent).unwrap();
    locked.delete(&[root_key(ID)]).unwrap();
    assert_eq!(sealed.get(&forgotten).unwrap().unwrap().0, root);
    assert_eq!(sealed.get(&root_key(ID)).unwrap(), None);
}

#[test]
fn every_byte_of_a_root_that_is_flipped_is_found_and_so_is_a_root_of_another() {
    let (memory, sealed, ring) = memory_and_sealed();
    let key = root_key(ID);
    let root = seal(&root_of(ID)).unwrap();
    sealed.put(&key, &root, &PutIf::Absent).unwrap();
    let stored = get(&memory, &key).unwrap();
    let refused = |bytes: &[u8], word: &str| {
        put(&memory, &key, bytes);
        let error = sealed.get(&key).expect_err(word);
        assert!(
            matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Permission),
            "{word}: {}",
            error.line()
        );
        assert!(error.what.contains(&key), "{word}: {}", error.line());
    };
    for offset in 0..stored.len() {
        let mut changed = stored.clone();
        changed[offset] ^= 1;
        refused(&changed, &format!("byte {offset}"));
    }
    for len in (0..stored.len()).step_by(7) {
        refused(&stored[..len], &format!("{len} bytes"));
    }
    // Changed by someone who can write the digest at its end, but no proof.
    let mut document: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&stored).unwrap();
    document.remove("blake3");
    for name in document.keys().cloned().collect::<Vec<_>>() {
        let mut changed = document.clone();
        changed.remove(&name);
        refused(&seal(&changed).unwrap(), &name);
    }
    let mut later = document.clone();
    later.insert("time".into(), "2027-01-01T00:00:00Z".into());
    refused(&seal(&later).unwrap(), "a changed time");
    // A root without anything sealed, as a clear repository has it.
    refused(&root, "a clear root");
    let empty = Root {
        pages: Vec::new(),
        liveness: Vec::new(),
        ..root_of(ID)
    };
    refused(&seal(&empty).unwrap(), "a clear root without content");
    // The root of another backup, of another repository, and of one that was not finished.
    sealed
        .put(
            &root_key(OTHER_ID),
            &seal(&root_of(OTHER_ID)).unwrap(),
            &PutIf::Absent,
        )
        .unwrap();
    refused(
        &get(&memory, &root_key(OTHER_ID)).unwrap(),
        "the root of another backup",
    );
    let (other_memory, other, _) = memory_and_sealed();
    other.put(&key, &root, &PutIf::Absent).unwrap();
    refused(
        &get(&other_memory, &key).unwrap(),
        "the root of another repository",
    );
    for name in ["partial.json", "forgotten.json"] {
        let near = format!("backups/{ID}/{name}");
        sealed.put(&near, &root, &PutIf::Absent).unwrap();
        refused(&get(&memory, &near).unwrap(), name);
    }
    let putting = SealedObjects::new(
        memory.clone(),
        Arc::new(ring.for_putting(random_author().unwrap())),
    );
    put(&memory, &key, &stored);
    assert_eq!(sealed.get(&key).unwrap().unwrap().0, root);
    assert!(putting.get(&key).is_ok(), "only people can check it");
    // A key that only adds checks what it stored itself.
    putting.put(&key, &root, &PutIf::Always).unwrap();
    assert!(putting.get(&key).is_ok());
    let own = get(&memory, &key).unwrap();
    let mut later: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&own).unwrap();
    later.remove("blake3");
    later.insert("time".into(), "2027-01-01T00:00:00Z".into());
    put(&memory, &key, &seal(&later).unwrap());
    assert_eq!(kind_of(putting.get(&key)), ErrorKind::Corrupt);
}

#[test]
fn a_void_root_is_stored_as_it_is_with_and_without_a_key() {
    let void = seal(&serde_json::json!({ "void": true })).unwrap();
    let (memory, sealed, ring) = memory_and_sealed();
    let locked = SealedObjects::locked(memory.clone());
    let putting = SealedObjects::new(
        memory.clone(),
        Arc::new(ring.for_putting(random_author().unwrap())),
    );
    for (number, objects) in [&sealed, &locked, &putting].into_iter().enumerate() {
        let key = format!("backups/2026112{number}T054501Z-k3f9qz/root.json");
        objects.put(&key, &void, &PutIf::Absent).unwrap();
        assert_eq!(get(&memory, &key).unwrap(), void);
        for reader in [&sealed, &locked, &putting] {
            assert_eq!(reader.get(&key).unwrap().unwrap().0, void);
            let bytes = reader.list("backups").unwrap()[number].bytes;
            assert_eq!(
                bytes,
                void.len() as u64,
                "it is known by its length in a list"
            );
        }
    }
}

#[test]
fn without_a_key_nothing_is_read_or_written_but_what_maintenance_needs() {
    let (memory, sealed, ring) = memory_and_sealed();
    upload(&sealed, "backups/a/manifest", b"pages", 5);
    sealed.put("verify.json", b"clear", &PutIf::Always).unwrap();
    sealed
        .put("intents/x.json", b"clear", &PutIf::Always)
        .unwrap();
    let locked = SealedObjects::locked(memory.clone());
    let mut out = Vec::new();
    for error in [
        locked.get("backups/a/manifest").unwrap_err(),
        locked
            .read_at("backups/a/manifest", 0, 1, &mut out)
            .unwrap_err(),
        locked
            .put("backups/a/manifest", b"x", &PutIf::Always)
            .unwrap_err(),
        locked.create("backups/a/s01").unwrap_err(),
        locked
            .put(&root_key(ID), &seal(&root_of(ID)).unwrap(), &PutIf::Always)
            .unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::Permission, "{}", error.line());
        assert!(
            error.line().contains("no key was given"),
            "{}",
            error.line()
        );
        assert!(error.hint.unwrap().contains("--key"));
    }
    assert_eq!(locked.stat("backups/a/manifest").unwrap(), Some(5));
    assert_eq!(locked.list("backups").unwrap()[0].bytes, 5);
    assert_eq!(
        get(&(Arc::new(locked.clone()) as Storage), "verify.json").unwrap(),
        b"clear"
    );
    locked.delete(&["backups/a/manifest".to_owned()]).unwrap();
    assert_eq!(keys(&memory, "backups"), [""; 0]);
    // A key that only adds: it adds, and cannot read even its own.
    let putting = SealedObjects::new(memory, Arc::new(ring.for_putting(random_author().unwrap())));
    assert_eq!(putting.access(), Some(Access::Put));
    upload(&putting, "backups/b/manifest", b"pages", 5);
    let error = putting.get("backups/b/manifest").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission);
    assert!(
        error.line().contains("can add backups and cannot read"),
        "{}",
        error.line()
    );
    assert_eq!(read(&sealed, "backups/b/manifest", 0, 5), b"pages");
}

#[test]
fn after_a_rotation_old_objects_are_read_and_new_ones_are_not_read_with_the_old_key() {
    let (memory, sealed, ring) = memory_and_sealed();
    upload(&sealed, "a/old", b"old", 3);
    let rotated = SealedObjects::new(memory.clone(), Arc::new(ring.rotated().unwrap()));
    upload(&rotated, "a/new", b"new", 3);
    rotated
        .put(&root_key(ID), &seal(&root_of(ID)).unwrap(), &PutIf::Absent)
        .unwrap();
    assert_eq!(read(&rotated, "a/old", 0, 3), b"old");
    assert_eq!(read(&rotated, "a/new", 0, 3), b"new");
    for error in [
        sealed.get("a/new").unwrap_err(),
        sealed.get(&root_key(ID)).unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::Permission, "{}", error.line());
        assert!(error.line().contains("generation 2"), "{}", error.line());
    }
    let interrupted =
        SealedObjects::new(memory, Arc::new(ring.rotated().unwrap().for_reading_only()));
    assert_eq!(read(&interrupted, "a/old", 0, 3), b"old");
    let error = interrupted.create("a/x").unwrap_err();
    assert!(error.hint.unwrap().contains("key rotate"));
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

#[test]
fn a_host_that_only_adds_reads_its_own_lists_and_only_those_of_the_root_that_is_there() {
    let (memory, _, ring) = memory_and_sealed();
    let sealed = SealedObjects::new(
        memory.clone(),
        Arc::new(ring.for_putting(random_author().unwrap())),
    );
    let host: Storage = Arc::new(sealed.clone());
    let state = tempfile::tempdir().unwrap();
    let kept: Storage = Arc::new(KeptBackups::new(sealed.clone(), Some(state.path())));
    let whole = seal(&root_of(ID)).unwrap();
    upload(&*kept, &format!("backups/{ID}/manifest"), b"pages", 2);
    kept.put(&root_key(ID), &whole, &PutIf::Absent).unwrap();
    assert_eq!(get(&kept, &root_key(ID)).unwrap(), whole);
    assert_eq!(
        read(&*kept, &format!("backups/{ID}/manifest"), 1, 3),
        b"age"
    );
    let segment = format!("backups/{ID}/s01-000001.tar.zst");
    upload(&*kept, &segment, b"content", 3);
    assert_eq!(kind_of(kept.get(&segment)), ErrorKind::Permission);
    assert_ne!(get(&host, &root_key(ID)).unwrap(), whole, "only its head");
    // A repair by somebody who reads writes another root.
    let other = Root {
        tool: "fullbore 0.2".into(),
        ..root_of(ID)
    };
    let owner = SealedObjects::new(memory, ring.clone());
    owner
        .put(&root_key(ID), &seal(&other).unwrap(), &PutIf::Always)
        .unwrap();
    let head = Root::open(&get(&kept, &root_key(ID)).unwrap(), "it").unwrap();
    assert!(
        head.source.host.starts_with("sealed-"),
        "the copy is of another root"
    );
    // Without the directory there is nothing to read.
    let elsewhere = KeptBackups::new(sealed, Some(Path::new("/proc/no/such/directory")));
    let manifest = elsewhere.get(&format!("backups/{ID}/manifest"));
    assert_eq!(kind_of(manifest), ErrorKind::Permission);
}

#[test]
fn a_backup_without_a_key_is_refused_before_anything_is_stored() {
    let (memory, _, ring) = memory_and_sealed();
    let interrupted = ring.rotated().unwrap().for_reading_only();
    let begin = |objects: SealedObjects| {
        let begun = RepositoryWriter::begin(Arc::new(objects), ID, "2026-11-21T05:45:01Z", "zst");
        begun.err().map(|error| error.kind)
    };
    let refused = Some(ErrorKind::Permission);
    assert_eq!(begin(SealedObjects::locked(memory.clone())), refused);
    let interrupted = SealedObjects::new(memory.clone(), Arc::new(interrupted));
    assert_eq!(begin(interrupted), refused);
    assert_eq!(memory.list("").unwrap(), []);
    let host = SealedObjects::new(memory, Arc::new(ring.for_putting(random_author().unwrap())));
    assert_eq!(begin(host), None);
}

#[test]
fn a_put_key_seals_nothing_in_the_name_of_another_one() {
    let (memory, sealed, ring) = memory_and_sealed();
    let ring_of = |author| Arc::new(ring.for_putting(author));
    let (one, other) = (random_author().unwrap(), random_author().unwrap());
    let hosts = [one, other].map(|author| SealedObjects::new(memory.clone(), ring_of(author)));
    hosts[0]
        .put(&root_key(ID), &seal(&root_of(ID)).unwrap(), &PutIf::Absent)
        .unwrap();
    let stored = get(&memory, &root_key(ID)).unwrap();
    // The other host says that it is of a person, or of itself.
    for name in [Author::PERSON, other] {
        let text = String::from_utf8(stored.clone()).unwrap();
        let text = text.replace(&one.to_string(), &name.to_string());
        let (before, _) = text.rsplit_once("\n\"blake3\"").unwrap();
        let digest = blake3::hash(before.as_bytes()).to_hex();
        let forged = format!("{before}\n\"blake3\": \"{digest}\"\n}}\n");
        put(&memory, &root_key(ID), forged.as_bytes());
        let error = sealed.get(&root_key(ID)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{}", error.line());
        assert!(error.line().contains("no key of this"), "{}", error.line());
    }
    // Without a list of members nobody can tell whether the host was removed.
    put(&memory, &root_key(ID), &stored);
    let error = sealed.get(&root_key(ID)).unwrap_err();
    assert!(error.line().contains("members.1"), "{}", error.line());
}

#[test]
fn a_root_of_an_old_generation_that_no_rotation_saw_is_refused() {
    let memory: Storage = Arc::new(MemoryObjects::new());
    let person = KeyRing::random().unwrap().newest().recipient().clone();
    let ring = encrypt_repository(&*memory, "me", &UserRecipient::Native(person)).unwrap();
    let old = SealedObjects::new(memory.clone(), Arc::new(ring.clone()));
    let store = |id: &str| {
        let root = seal(&root_of(id)).unwrap();
        old.put(&root_key(id), &root, &PutIf::Absent).map(drop)
    };
    store(ID).unwrap();
    let rotated = rotate_key(&*memory, &ring, &|_| Ok(None)).unwrap();
    // Whoever stores it is told, and it does not count.
    let error = store(OTHER_ID).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Gone, "{}", error.line());
    assert!(error.line().contains("was rotated"), "{}", error.line());
    let new = SealedObjects::new(memory.clone(), Arc::new(rotated.clone()));
    assert_eq!(
        get(&(Arc::new(new.clone()) as Storage), &root_key(ID)).unwrap(),
        seal(&root_of(ID)).unwrap()
    );
    let error = new.get(&root_key(OTHER_ID)).unwrap_err();
    assert!(error.line().contains("does not count"), "{}", error.line());
    // So it stays after the next rotation, until a person says otherwise.
    let rotated = rotate_key(&*memory, &rotated, &|_| Ok(None)).unwrap();
    let new = SealedObjects::new(memory.clone(), Arc::new(rotated.clone()));
    assert!(new.get(&root_key(ID)).is_ok());
    assert!(new.get(&root_key(OTHER_ID)).is_err());
    assert!(accept_root(&*memory, &rotated, &root_key(OTHER_ID)).unwrap());
    let new = SealedObjects::new(memory, Arc::new(rotated));
    assert!(new.get(&root_key(OTHER_ID)).is_ok());
}
