//! Roots of a sealed repository, with and without a key.

use super::*;

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
