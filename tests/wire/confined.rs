//! Hosts that may only read, or only add.

use crate::{
    far,
    suite::{get, keys, ours, put},
};
use fullbore::{
    error::ErrorKind,
    storage::{Allowed, Confined, Leased, LocalObjects, MemoryObjects, Objects, Put, PutIf, Take},
};
use std::sync::Arc;

const OLD: &str = "20261120T054501Z-aaaaaa";
const OTHER: &str = "20261121T054501Z-bbbbbb";
const OURS: &str = "20261122T054501Z-cccccc";
const NEW: &str = "20261123T054501Z-dddddd";

/// A repository with a backup that is complete and one that died, and what a host sees of it.
fn confined(inner: Arc<dyn Objects>, allowed: Allowed) -> (Arc<dyn Objects>, Arc<dyn Objects>) {
    put(&inner, "fullbore-repo.json", b"repository");
    put(&inner, &format!("backups/{OLD}/root.json"), b"old");
    put(&inner, &format!("backups/{OLD}/manifest"), b"pages");
    put(&inner, &format!("tombstones/{OLD}/manifest"), b"");
    put(&inner, &format!("backups/{OTHER}/partial.json"), b"partial");
    let intent = format!("intents/{OTHER}.json");
    drop(ours(inner.lease(&intent, b"intent", Take::New).unwrap()));
    let objects: Arc<dyn Objects> = Arc::new(far(Arc::new(Confined::new(inner.clone(), allowed))));
    (inner, objects)
}

fn state(objects: &Arc<dyn Objects>) -> Vec<(String, Vec<u8>)> {
    let all = keys(objects, "").into_iter();
    let all = all.filter(|key| !key.starts_with("intents/"));
    all.map(|key| (key.clone(), get(objects, &key).unwrap()))
        .collect()
}

/// Tries everything that would change what is there.
fn attack(objects: &Arc<dyn Objects>) {
    let there = [
        format!("backups/{OLD}/root.json"),
        format!("backups/{OLD}/manifest"),
        format!("backups/{OTHER}/partial.json"),
        format!("tombstones/{OLD}/manifest"),
        "fullbore-repo.json".to_owned(),
    ];
    let refused = |result: fullbore::error::Result<()>, what: &str| {
        let error = result.expect_err(what);
        assert_eq!(
            error.kind,
            ErrorKind::Permission,
            "{what}: {}",
            error.line()
        );
    };
    for key in &there {
        refused(objects.put(key, b"x", &PutIf::Always).map(drop), key);
        let version = objects.get(key).unwrap().unwrap().1;
        let on_version = objects.put(key, b"x", &PutIf::Version(version));
        refused(on_version.map(drop), key);
        let created = objects.create(key);
        refused(created.and_then(|upload| upload.finish().map(drop)), key);
        refused(objects.delete(std::slice::from_ref(key)), key);
    }
    let absent = [
        format!("backups/{OLD}/forgotten.json"),
        format!("backups/{OLD}/notes.json"),
        format!("backups/{OTHER}/root.json"),
        format!("tombstones/{OLD}/s01-000001.tar.zst"),
        format!("intents/{NEW}.json"),
        "verify.json".to_owned(),
        "keys/mine.age".to_owned(),
    ];
    for key in &absent {
        refused(objects.put(key, b"x", &PutIf::Absent).map(drop), key);
        refused(objects.put(key, b"x", &PutIf::Always).map(drop), key);
        let created = objects.create(key);
        refused(created.and_then(|upload| upload.finish().map(drop)), key);
    }
    refused(objects.delete(&there), "all");
    let mut leases = Vec::new();
    for id in [OLD, OTHER] {
        let intent = format!("intents/{id}.json");
        for take in [Take::New, Take::Dead, Take::DeadOrNew] {
            let leased = objects.lease(&intent, b"x", take);
            if let Ok(Leased::Ours(mut lease)) = leased {
                refused(lease.update(b"x"), &intent);
                leases.push(lease);
            }
        }
        refused(objects.delete(std::slice::from_ref(&intent)), &intent);
    }
    refused(objects.delete(&there), "all, with leases");
}

#[test]
fn a_host_that_may_append_can_neither_delete_nor_replace_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalObjects::new(&dir.path().join("r"));
    let (inner, objects) = confined(Arc::new(local), Allowed::Append);
    let before = state(&inner);
    attack(&objects);
    assert_eq!(state(&inner), before);
    assert_eq!(
        get(&inner, &format!("intents/{OTHER}.json")).unwrap(),
        b"intent"
    );
}

#[test]
fn a_host_that_may_append_adds_a_backup_and_takes_back_its_own() {
    for store in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Objects> = if store {
            Arc::new(MemoryObjects::new())
        } else {
            Arc::new(LocalObjects::new(&dir.path().join("r")))
        };
        let (inner, objects) = confined(storage, Allowed::Append);
        let before = state(&inner);
        let intent = format!("intents/{OURS}.json");
        let mut lease = ours(objects.lease(&intent, b"mine", Take::New).unwrap());
        lease.update(b"with bases").unwrap();
        let key = |name: &str| format!("backups/{OURS}/{name}");
        let mut upload = objects.create(&key("s01-000001.tar.zst")).unwrap();
        upload.append(b"segment").unwrap();
        upload.finish().unwrap();
        put(&objects, &key("partial.json"), b"1");
        put(&objects, &key("partial.json"), b"2");
        let root = objects
            .put(&key("root.json"), b"root", &PutIf::Absent)
            .unwrap();
        assert!(matches!(root, Put::Done(_)));
        objects
            .delete(&[key("partial.json"), intent.clone()])
            .unwrap();
        drop(lease);
        assert_eq!(get(&inner, &key("root.json")).unwrap(), b"root");
        attack(&objects);
        // Another connection may not do this any more.
        let other: Arc<dyn Objects> =
            Arc::new(far(Arc::new(Confined::new(inner.clone(), Allowed::Append))));
        let error = other.delete(&[key("root.json")]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Permission);
        assert!(matches!(
            other.lease(&intent, b"", Take::New).unwrap(),
            Leased::Held
        ));
        objects
            .delete(&[key("root.json"), key("s01-000001.tar.zst")])
            .unwrap();
        assert_eq!(state(&inner), before);
    }
}

#[test]
fn a_host_that_may_append_makes_a_repository_with_its_first_keys_and_no_later_ones() {
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let objects: Arc<dyn Objects> = Arc::new(far(Arc::new(Confined::new(
        memory.clone(),
        Allowed::Append,
    ))));
    for key in ["probe-x", "keys/owner.age", "fullbore-repo.json"] {
        let put = objects.put(key, b"first", &PutIf::Absent).unwrap();
        assert!(matches!(put, Put::Done(_)), "{key}");
    }
    objects.delete(&["probe-x".to_owned()]).unwrap();
    let late = objects.put("keys/late.age", b"", &PutIf::Absent);
    assert_eq!(late.unwrap_err().kind, ErrorKind::Permission);
    assert_eq!(keys(&memory, ""), ["fullbore-repo.json", "keys/owner.age"]);
}

#[test]
fn a_host_that_may_read_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalObjects::new(&dir.path().join("r"));
    let (inner, objects) = confined(Arc::new(local), Allowed::Read);
    let before = state(&inner);
    attack(&objects);
    for take in [Take::New, Take::Dead, Take::DeadOrNew] {
        let leased = objects.lease(&format!("intents/{OURS}.json"), b"", take);
        assert_eq!(leased.unwrap_err().kind, ErrorKind::Permission);
    }
    assert_eq!(
        objects.abort_uploads("").unwrap_err().kind,
        ErrorKind::Permission
    );
    assert_eq!(state(&inner), before);
    assert_eq!(
        get(&objects, &format!("backups/{OLD}/root.json")).unwrap(),
        b"old"
    );
}
