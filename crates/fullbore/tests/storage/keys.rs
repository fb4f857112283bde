//! The key files of a repository: made, opened, added, removed, rotated, and all that may go wrong with them.

use super::suite::{get, put};
use fullbore_crypt::{
    Access, Author, KeyOptions, KeyRing, Passphrase, UserRecipient, parse_identities,
    random_author, seal_object, unwrap_secret, wrap_secret,
};
use fullbore_format::{
    error::{ErrorKind, Result},
    seal::seal,
};
use fullbore_storage::{
    Fault, Faulty, MemoryObjects, Objects, Operation, PutIf, Recording, SealedObjects, SystemClock,
    keys::{
        RepositoryKey, add_key, encrypt_repository, is_encrypted, list_keys, open_repository,
        remove_key, rotate_key,
    },
    members::{ListNumber, ListedKey, read_members},
    sealed::{KeyFiles, check_key_files},
};
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc, thread, time::Duration};

type Storage = Arc<dyn Objects>;

/// A person: a key file and its public half.
struct Person {
    _dir: tempfile::TempDir,
    file: PathBuf,
    recipient: UserRecipient,
}

impl Person {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key.txt");
        // The text of a ring is a file of age keys as well.
        let ring = KeyRing::random().unwrap();
        fs::write(&file, ring.to_text().as_bytes()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        Self {
            _dir: dir,
            file,
            recipient: UserRecipient::Native(ring.newest().recipient().clone()),
        }
    }

    fn options(&self) -> KeyOptions {
        KeyOptions {
            key_files: vec![self.file.clone()],
            ..KeyOptions::default()
        }
    }

    fn open(&self, objects: &Storage) -> Result<KeyRing> {
        open_repository(&**objects, &self.options()).map(ring_of)
    }
}

fn ring_of(key: RepositoryKey) -> KeyRing {
    match key {
        RepositoryKey::Opened(ring) => *ring,
        other => panic!("{other:?}"),
    }
}

/// In memory; whoever waits for another that changes keys does so for seconds only.
fn memory() -> Storage {
    Arc::new(MemoryObjects::new().with_clock(Arc::new(SystemClock), Duration::from_millis(800)))
}

fn no_passphrase(_: &str) -> Result<Option<UserRecipient>> {
    Ok(None)
}

fn newest(ring: &KeyRing) -> u32 {
    ring.newest().number()
}

#[test]
fn a_repository_is_opened_by_whoever_has_a_key_file_and_by_no_other() {
    let objects = memory();
    let (alice, bob, eve) = (Person::new(), Person::new(), Person::new());
    let ring = encrypt_repository(&*objects, "alice", &alice.recipient).unwrap();
    assert!(is_encrypted(&*objects).unwrap());
    add_key(&*objects, &ring, "bob", &bob.recipient, Access::Read).unwrap();
    for person in [&alice, &bob] {
        let opened = person.open(&objects).unwrap();
        assert_eq!(*opened.to_text(), *ring.to_text());
    }
    let error = eve.open(&objects).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission);
    assert!(
        error.line().contains("none of the keys"),
        "{}",
        error.line()
    );
    assert!(error.hint.unwrap().contains("key list"));
    let none = open_repository(&*objects, &KeyOptions::default()).unwrap();
    assert!(matches!(none, RepositoryKey::Locked));
    let listed = list_keys(&*objects, Some(&ring)).unwrap();
    let shown: Vec<_> = listed
        .iter()
        .map(|file| (&file.name[..], file.recipient.clone().unwrap()))
        .collect();
    assert_eq!(
        shown,
        [
            ("alice", alice.recipient.to_string()),
            ("bob", bob.recipient.to_string())
        ]
    );
    assert!(
        list_keys(&*objects, None)
            .unwrap()
            .iter()
            .all(|file| file.recipient.is_none())
    );
}

#[test]
fn a_clear_repository_refuses_a_key() {
    let objects = memory();
    let clear = open_repository(&*objects, &KeyOptions::default()).unwrap();
    assert!(matches!(clear, RepositoryKey::Clear));
    let error = Person::new().open(&objects).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Usage);
    assert!(
        error.line().contains("it is not encrypted"),
        "{}",
        error.line()
    );
}

#[test]
fn a_passphrase_opens_a_repository_and_a_wrong_one_does_not() {
    let objects = memory();
    let options_with = |text| KeyOptions {
        passphrase: Some(Passphrase::new(text)),
        ..KeyOptions::default()
    };
    let ring = encrypt_repository(&*objects, "me", &Passphrase::new("right").into()).unwrap();
    let opened = ring_of(open_repository(&*objects, &options_with("right")).unwrap());
    assert_eq!(*opened.to_text(), *ring.to_text());
    let error = open_repository(&*objects, &options_with("wrong")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("passphrase");
    fs::write(&file, "right\nsecond line\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let by_file = KeyOptions {
        passphrase_file: Some(file.clone()),
        ..KeyOptions::default()
    };
    ring_of(open_repository(&*objects, &by_file).unwrap());
    fs::write(&file, "\n").unwrap();
    assert_eq!(
        open_repository(&*objects, &by_file).unwrap_err().kind,
        ErrorKind::Usage
    );
    // Rotated, it is still that of whoever knows it; a rotation that does not know it changes nothing.
    let before = get(&objects, "keys/me.age");
    let error = rotate_key(&*objects, &ring, &no_passphrase).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission);
    assert!(error.what.contains("\"me\""), "{}", error.line());
    assert_eq!(get(&objects, "keys/me.age"), before);
    rotate_key(&*objects, &ring, &|_| {
        Ok(Some(Passphrase::new("right").into()))
    })
    .unwrap();
    assert_eq!(
        newest(&ring_of(
            open_repository(&*objects, &options_with("right")).unwrap()
        )),
        2
    );
}

#[test]
fn a_host_that_only_adds_gets_no_key_that_opens() {
    let objects = memory();
    let (alice, host) = (Person::new(), Person::new());
    let ring = encrypt_repository(&*objects, "alice", &alice.recipient).unwrap();
    add_key(&*objects, &ring, "db1", &host.recipient, Access::Put).unwrap();
    let put_ring = host.open(&objects).unwrap();
    assert_eq!(put_ring.access(), Access::Put);
    assert_eq!(put_ring.pseudonym(b"a"), ring.pseudonym(b"a"));
    let sealed = get(&objects, "keys/db1.put.age").unwrap();
    let identities =
        parse_identities(&fs::read(&host.file).unwrap(), "it", &Default::default()).unwrap();
    let text = unwrap_secret(&sealed, &identities, "it").unwrap().unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    let secrets: Vec<_> = text
        .lines()
        .filter(|line| line.contains("AGE-SECRET-KEY"))
        .collect();
    assert_eq!(secrets, [""; 0]);
    for error in [
        add_key(&*objects, &put_ring, "x", &host.recipient, Access::Read).unwrap_err(),
        rotate_key(&*objects, &put_ring, &no_passphrase).unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::Permission, "{}", error.line());
    }
    // A host that has both sorts gets the one with more permissions.
    add_key(&*objects, &ring, "db1", &host.recipient, Access::Read).unwrap();
    assert_eq!(host.open(&objects).unwrap().access(), Access::Read);
}

#[test]
fn names_are_taken_once_and_the_last_reader_stays() {
    let objects = memory();
    let (alice, bob) = (Person::new(), Person::new());
    let ring = encrypt_repository(&*objects, "alice", &alice.recipient).unwrap();
    let again = encrypt_repository(&*objects, "other", &bob.recipient).unwrap_err();
    assert_eq!(again.kind, ErrorKind::Exists);
    let taken = add_key(&*objects, &ring, "alice", &bob.recipient, Access::Read).unwrap_err();
    assert_eq!(taken.kind, ErrorKind::Exists);
    alice.open(&objects).unwrap();
    for bad in ["", "a/b", "..", ".x", "x.put", "ä", &"n".repeat(65), "a b"] {
        let error = add_key(&*objects, &ring, bad, &bob.recipient, Access::Read).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage, "{bad}");
    }
    add_key(&*objects, &ring, "db1", &bob.recipient, Access::Put).unwrap();
    let last = remove_key(&*objects, Some(&ring), "alice", Access::Read).unwrap_err();
    assert_eq!(last.kind, ErrorKind::Usage);
    let none = remove_key(&*objects, Some(&ring), "bob", Access::Read).unwrap_err();
    assert_eq!(none.kind, ErrorKind::NotFound);
    let keyless = remove_key(&*objects, None, "db1", Access::Put).unwrap_err();
    assert_eq!(keyless.kind, ErrorKind::Permission);
    remove_key(&*objects, Some(&ring), "db1", Access::Put).unwrap();
    assert_eq!(list_keys(&*objects, Some(&ring)).unwrap().len(), 1);
    add_key(&*objects, &ring, "db1", &bob.recipient, Access::Put).unwrap();
}

#[test]
fn whoever_was_removed_reads_nothing_that_is_sealed_after_a_rotation() {
    let objects = memory();
    let (alice, bob) = (Person::new(), Person::new());
    let ring = encrypt_repository(&*objects, "alice", &alice.recipient).unwrap();
    add_key(&*objects, &ring, "bob", &bob.recipient, Access::Read).unwrap();
    let of_bob = bob.open(&objects).unwrap();
    remove_key(&*objects, Some(&ring), "bob", Access::Read).unwrap();
    let rotated = rotate_key(&*objects, &ring, &no_passphrase).unwrap();
    assert_eq!(bob.open(&objects).unwrap_err().kind, ErrorKind::Permission);
    let opened = alice.open(&objects).unwrap();
    assert_eq!(*opened.to_text(), *rotated.to_text());
    let sealed = SealedObjects::new(objects.clone(), Arc::new(opened));
    let mut upload = sealed.create("a/new").unwrap();
    upload.append(b"new").unwrap();
    upload.finish().unwrap();
    let old = SealedObjects::new(objects, Arc::new(of_bob));
    assert_eq!(old.get("a/new").unwrap_err().kind, ErrorKind::Permission);
    assert_eq!(sealed.get("a/new").unwrap().unwrap().0, b"new");
}

#[test]
fn a_key_file_that_a_storage_changed_swapped_or_put_back_is_found_and_named() {
    let objects = memory();
    let alice = Person::new();
    let ring = encrypt_repository(&*objects, "alice", &alice.recipient).unwrap();
    let old_file = get(&objects, "keys/alice.age").unwrap();
    let old_current = get(&objects, "keys/current.json").unwrap();
    rotate_key(&*objects, &ring, &no_passphrase).unwrap();
    let file = get(&objects, "keys/alice.age").unwrap();
    let current = get(&objects, "keys/current.json").unwrap();
    let refused = |word: &str| {
        let error = alice.open(&objects).expect_err(word);
        let is_known = matches!(
            error.kind,
            ErrorKind::Corrupt | ErrorKind::Permission | ErrorKind::Unsupported
        );
        assert!(is_known, "{word}: {}", error.line());
    };
    for offset in 0..file.len() {
        let mut changed = file.clone();
        changed[offset] ^= 1;
        put(&objects, "keys/alice.age", &changed);
        refused(&format!("byte {offset} of the key file"));
    }
    put(&objects, "keys/alice.age", &old_file);
    let error = alice.open(&objects).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(
        error.what.contains("keys/alice.age") && error.line().contains("an old one"),
        "{}",
        error.line()
    );
    put(&objects, "keys/alice.age", &file);
    for offset in 0..current.len() {
        let mut changed = current.clone();
        changed[offset] ^= 1;
        put(&objects, "keys/current.json", &changed);
        refused(&format!("byte {offset} of the current generation"));
    }
    // Put back alone, it makes nobody seal with the old generation.
    put(&objects, "keys/current.json", &old_current);
    let opened = alice.open(&objects).unwrap();
    let sealed = SealedObjects::new(objects.clone(), Arc::new(opened));
    assert_eq!(
        sealed.create("a/o").unwrap_err().kind,
        ErrorKind::Permission
    );
    put(&objects, "keys/current.json", &current);
    // The key of a repository that the storage made itself, for the same person.
    let forged = KeyRing::random().unwrap().rotated().unwrap();
    let wrapped = wrap_secret(
        forged.to_text().as_bytes(),
        std::slice::from_ref(&alice.recipient),
    )
    .unwrap();
    put(&objects, "keys/alice.age", &wrapped);
    let error = alice.open(&objects).unwrap_err();
    assert!(
        error.line().contains("another repository"),
        "{}",
        error.line()
    );
    // Of a host that only adds, under the name of one that reads.
    let wrapped = wrap_secret(
        ring.for_putting(random_author().unwrap())
            .to_text()
            .as_bytes(),
        std::slice::from_ref(&alice.recipient),
    )
    .unwrap();
    put(&objects, "keys/alice.age", &wrapped);
    refused("other permissions than its name says");
}

/// The list of members that somebody makes with the secrets of `ring`: one more person in it.
fn forged_list(objects: &Storage, owner: &KeyRing, ring: &KeyRing, eve: &Person) -> Vec<u8> {
    let (mut members, list) = read_members(&**objects, owner).unwrap();
    let member = ListedKey {
        recipient: eve.recipient.to_string(),
        author: Author::PERSON,
        digest: String::new(),
        is_pending: false,
    };
    members.files.insert("keys/eve.age".into(), member);
    let key = list.key();
    seal_object(&key, &seal(&members).unwrap(), ring, None).unwrap()
}

#[test]
fn a_put_key_and_a_removed_person_write_no_list_of_members() {
    let objects = memory();
    let (alice, bob, host, eve) = (Person::new(), Person::new(), Person::new(), Person::new());
    let ring = encrypt_repository(&*objects, "alice", &alice.recipient).unwrap();
    add_key(&*objects, &ring, "bob", &bob.recipient, Access::Read).unwrap();
    add_key(&*objects, &ring, "web1", &host.recipient, Access::Put).unwrap();
    let of_bob = bob.open(&objects).unwrap();
    remove_key(&*objects, Some(&ring), "bob", Access::Read).unwrap();
    let ring = rotate_key(&*objects, &ring, &no_passphrase).unwrap();
    let of_host = host.open(&objects).unwrap();
    let first = ListNumber {
        generation: 2,
        changes: 0,
    };
    let key = first.key();
    let genuine = get(&objects, &key).unwrap();
    // Any content: the rotation writes it anew.
    put(&objects, "keys/eve.age", b"x");
    for (who, forger) in [("a put key", &of_host), ("a removed person", &of_bob)] {
        put(&objects, &key, &forged_list(&objects, &ring, forger, &eve));
        let error = rotate_key(&*objects, &ring, &no_passphrase).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{who}: {}", error.line());
        assert!(list_keys(&*objects, Some(&ring)).is_err(), "{who}");
        put(&objects, &key, &genuine);
    }
    // The list of an old generation does not count under a new name either.
    let error = rotate_key(&*objects, &ring, &no_passphrase).unwrap_err();
    assert!(error.line().contains("for whom"), "{}", error.line());
    objects.delete(&["keys/eve.age".to_owned()]).unwrap();
    let rotated = rotate_key(&*objects, &ring, &no_passphrase).unwrap();
    assert_eq!(newest(&rotated), 3);
    assert_eq!(get(&objects, &key), None, "old lists are removed");
    assert!(eve.open(&objects).is_err());
    assert_eq!(host.open(&objects).unwrap().author(), of_host.author());
}

/// The key that each of these people has after a change that failed at some operation.
fn opened_by_all(objects: &Storage, people: &[&Person], when: &str) -> Vec<KeyRing> {
    let open = |person: &&Person| {
        person
            .open(objects)
            .unwrap_or_else(|error| panic!("{when}: {}", error.line()))
    };
    people.iter().map(open).collect()
}

#[test]
fn a_rotation_that_fails_at_any_operation_locks_nobody_out_and_the_next_one_completes_it() {
    let counted = [
        Operation::Put,
        Operation::Get,
        Operation::List,
        Operation::Delete,
    ];
    let mut interrupted = 0;
    for operation in counted {
        for nth in 1.. {
            for fault in [
                Fault::Fail(ErrorKind::Unreachable),
                Fault::FailLate(ErrorKind::Unreachable),
            ] {
                let objects = memory();
                let (alice, bob) = (Person::new(), Person::new());
                let ring = encrypt_repository(&*objects, "alice", &alice.recipient).unwrap();
                add_key(&*objects, &ring, "bob", &bob.recipient, Access::Read).unwrap();
                let write = |ring: &KeyRing, key: &str| {
                    let sealed = SealedObjects::new(objects.clone(), Arc::new(ring.clone()));
                    let mut upload = sealed.create(key)?;
                    upload.append(key.as_bytes())?;
                    upload.finish()
                };
                write(&ring, "a/before").unwrap();
                let faulty = Faulty::new(objects.clone()).with(operation, nth, fault);
                let failed = rotate_key(&faulty, &ring, &no_passphrase).is_err();
                let was_reached = faulty.calls(operation) >= nth;
                let when = format!("{operation:?} {nth} {fault:?}");
                let rings = opened_by_all(&objects, &[&alice, &bob], &when);
                // What either can write now, both can read at the end.
                let wrote: Vec<_> = rings
                    .iter()
                    .enumerate()
                    .filter(|(number, ring)| write(ring, &format!("a/{number}")).is_ok())
                    .collect();
                let is_complete = rings.iter().all(|ring| newest(ring) == 2);
                interrupted += u32::from(failed && !is_complete && wrote.len() < 2);
                rotate_key(&*objects, &rings[1], &no_passphrase)
                    .unwrap_or_else(|error| panic!("{when}: {}", error.line()));
                let rings = opened_by_all(&objects, &[&alice, &bob], &when);
                for ring in &rings {
                    let sealed = SealedObjects::new(objects.clone(), Arc::new(ring.clone()));
                    for key in ["a/before".to_owned()]
                        .into_iter()
                        .chain(wrote.iter().map(|(number, _)| format!("a/{number}")))
                    {
                        assert_eq!(
                            sealed.get(&key).unwrap().unwrap().0,
                            key.as_bytes(),
                            "{when}"
                        );
                    }
                    write(ring, "a/after").unwrap();
                }
                if !was_reached {
                    assert!(nth > 1, "{when} was never called");
                }
            }
            let objects = memory();
            let alice = Person::new();
            let ring = encrypt_repository(&*objects, "alice", &alice.recipient).unwrap();
            add_key(&*objects, &ring, "bob", &alice.recipient, Access::Read).unwrap();
            let recording = Recording::new(objects);
            rotate_key(&recording, &ring, &no_passphrase).unwrap();
            if recording.count(operation).calls <= nth {
                break;
            }
        }
    }
    assert!(interrupted > 0, "a fault between the key files");
}

/// What a check of the key files finds, with the key of `person`.
fn found_by(objects: &Storage, person: &Person) -> KeyFiles {
    let ring = Arc::new(person.open(objects).unwrap());
    check_key_files(&SealedObjects::new(objects.clone(), ring)).unwrap()
}

fn sound() -> KeyFiles {
    KeyFiles::Changed(Vec::new())
}

/// Calls `change` on storages that take no more from the first, second, third… write on, with a new one of `make` each time, and `check`
/// after it.
fn cut_at_each_write(
    make: impl Fn() -> Storage,
    change: impl Fn(&dyn Objects) -> Result<()>,
    mut check: impl FnMut(&Storage, &str),
) {
    let unreachable = ErrorKind::Unreachable;
    for nth in 1.. {
        for fault in [Fault::Fail(unreachable), Fault::FailLate(unreachable)] {
            let objects = make();
            let faulty = Faulty::new(objects.clone()).with(Operation::Put, nth, fault);
            let later = nth + 1..nth + 50;
            let cut = later.fold(faulty, |cut, write| {
                cut.with(Operation::Put, write, Fault::Fail(unreachable))
            });
            // What is left to do after the last write that has to be done is no failure.
            let _ = change(&cut);
            check(&objects, &format!("write {nth}: {fault:?}"));
            if cut.calls(Operation::Put) < nth {
                assert!(nth > 3, "too little was cut");
                return;
            }
        }
    }
}

fn copy_of(objects: &Storage) -> Storage {
    let copy = memory();
    for listed in objects.list("").unwrap() {
        let (bytes, _) = objects.get(&listed.key).unwrap().unwrap();
        copy.put(&listed.key, &bytes, &PutIf::Absent).unwrap();
    }
    copy
}

#[test]
fn an_addition_of_a_key_that_is_cut_is_no_damage_and_can_be_made_again() {
    let (alice, bob) = (Person::new(), Person::new());
    let make = || {
        let objects = memory();
        encrypt_repository(&*objects, "alice", &alice.recipient).unwrap();
        objects
    };
    let add = |objects: &dyn Objects| {
        let shared = open_repository(objects, &alice.options()).map(ring_of)?;
        add_key(objects, &shared, "bob", &bob.recipient, Access::Read)
    };
    let mut missing = 0;
    cut_at_each_write(make, add, |objects, when| {
        assert_eq!(found_by(objects, &alice), sound(), "{when}");
        let listed = list_keys(&**objects, Some(&alice.open(objects).unwrap())).unwrap();
        let is_there = bob.open(objects).is_ok();
        assert_eq!(listed.len(), 1 + usize::from(is_there), "{when}");
        if !is_there {
            missing += 1;
            add(&**objects).unwrap_or_else(|error| panic!("{when}: {}", error.line()));
            bob.open(objects).unwrap();
        }
        assert_eq!(found_by(objects, &bob), sound(), "{when}");
        rotate_key(&**objects, &alice.open(objects).unwrap(), &no_passphrase).unwrap();
        objects.delete(&["keys/bob.age".to_owned()]).unwrap();
        let changed = vec![("keys/bob.age".to_owned(), "it is missing")];
        assert_eq!(
            found_by(objects, &alice),
            KeyFiles::Changed(changed),
            "{when}"
        );
    });
    assert!(missing > 1);
}

#[test]
fn two_rotations_that_are_cut_lock_nobody_out_and_are_no_damage() {
    let (alice, bob) = (Person::new(), Person::new());
    let make = || {
        let objects = memory();
        let ring = encrypt_repository(&*objects, "alice", &alice.recipient).unwrap();
        add_key(&*objects, &ring, "bob", &bob.recipient, Access::Read).unwrap();
        objects
    };
    // Key files are written by name: the first cut leaves alice with a new one, and bob, who has the old one, tries again.
    let rotate_by = |objects: &dyn Objects, person: &Person| {
        let ring = open_repository(objects, &person.options()).map(ring_of)?;
        rotate_key(objects, &ring, &no_passphrase).map(drop)
    };
    let is_sound = |objects: &Storage, when: &str| {
        for person in [&alice, &bob] {
            assert!(
                [sound(), KeyFiles::Rotating].contains(&found_by(objects, person)),
                "{when}"
            );
            let ring = person.open(objects).unwrap();
            read_members(&**objects, &ring)
                .unwrap_or_else(|error| panic!("{when}: {}", error.line()));
        }
    };
    let mut of_two_sorts = 0;
    cut_at_each_write(
        make,
        |objects| rotate_by(objects, &alice),
        |first, when| {
            is_sound(first, when);
            let newest_of = |person: &Person| newest(&person.open(first).unwrap());
            of_two_sorts += u32::from(newest_of(&alice) != newest_of(&bob));
            let again = || copy_of(first);
            cut_at_each_write(
                again,
                |objects| rotate_by(objects, &bob),
                |second, then| {
                    is_sound(second, &format!("{when}, and {then}"));
                    rotate_by(&**second, &alice).unwrap();
                    assert_eq!(found_by(second, &bob), sound(), "{when}, and {then}");
                    assert_eq!(
                        ListNumber::all(&**second).unwrap().len(),
                        1,
                        "{when}, and {then}"
                    );
                },
            );
        },
    );
    assert!(of_two_sorts > 0);
}

#[test]
fn of_many_that_make_or_rotate_a_key_at_once_all_that_succeed_agree() {
    for _ in 0..5 {
        let objects = memory();
        let people: Vec<_> = (0..4).map(|_| Person::new()).collect();
        let made: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = people
                .iter()
                .map(|person| {
                    scope.spawn(|| encrypt_repository(&*objects, "me", &person.recipient))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let winners: Vec<_> = (0..4).filter(|number| made[*number].is_ok()).collect();
        assert_eq!(winners.len(), 1, "{made:?}");
        let winner = &people[winners[0]];
        let ring = winner.open(&objects).unwrap();
        let rotated: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| rotate_key(&*objects, &ring, &no_passphrase)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(rotated.iter().any(Result::is_ok), "{rotated:?}");
        let last = winner.open(&objects).unwrap();
        assert!(
            rotated
                .iter()
                .flatten()
                .any(|ring| *ring.to_text() == *last.to_text())
        );
    }
}

#[test]
fn a_process_that_has_read_a_key_leaves_no_core_dump() {
    Person::new().options().identities().unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
    assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
    let dumpable = rustix::process::dumpable_behavior().unwrap();
    assert_eq!(dumpable, rustix::process::DumpableBehavior::NotDumpable);
}
