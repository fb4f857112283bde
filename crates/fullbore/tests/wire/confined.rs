//! Hosts that may only read, or only add: what a hostile one tries is refused.

use super::{
    far,
    suite::{get, keys, ours, pattern, put},
};
use fullbore_format::{
    error::{Error, ErrorKind},
    intent::{Intent, intent_key},
    layout::{REPOSITORY, Repository},
    root::{BackupOptions, ClusterInfo, FORMAT, Lists, Live, PageAt, Root, SourceInfo, void_root},
    seal::seal,
};
use fullbore_storage::{
    Allowed, AppendRules, Confined, Lease, Leased, LocalObjects, MemoryObjects, Objects, Put,
    PutIf, Take,
};
use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;

const OLD: &str = "20261120T054501Z-aaaaaa";
const OTHER: &str = "20261121T054501Z-bbbbbb";
const OURS: &str = "20261122T054501Z-cccccc";
const NEW: &str = "20261123T054501Z-dddddd";
const SEGMENT: &str = "s01-000001.tar.zst";

fn key(id: &str, name: &str) -> String {
    format!("backups/{id}/{name}")
}

/// The root of a backup of a host, which refers to other backups.
fn root(id: &str, host: &str, refers_to: &[&str]) -> Vec<u8> {
    let live = |backup: &&str| Live {
        backup: (*backup).to_owned(),
        stream: 1,
        number: 1,
        ..Live::default()
    };
    let root = Root {
        format: FORMAT,
        id: id.into(),
        source: SourceInfo {
            host: host.into(),
            ..SourceInfo::default()
        },
        options: BackupOptions {
            codec: "zstd".into(),
            ..BackupOptions::default()
        },
        liveness: refers_to.iter().map(live).collect(),
        ..Root::default()
    };
    seal(&root).unwrap()
}

fn intent(id: &str, bases: &[&str]) -> Vec<u8> {
    let intent = Intent {
        id: id.into(),
        bases: bases.iter().map(|base| (*base).to_owned()).collect(),
        ..Intent::default()
    };
    seal(&intent).unwrap()
}

fn repository() -> Vec<u8> {
    seal(&Repository {
        format: FORMAT,
        id: "repository".into(),
        ..Repository::default()
    })
    .unwrap()
}

fn web1() -> AppendRules {
    AppendRules {
        host: Some("web1".into()),
        ..AppendRules::default()
    }
}

/// What a host sees of a repository, over a connection.
fn session(inner: &Arc<dyn Objects>, allowed: Allowed, rules: &AppendRules) -> Arc<dyn Objects> {
    let confined = Confined::new(inner.clone(), allowed, rules);
    Arc::new(far(Arc::new(confined)))
}

/// A repository with a backup of another host that is complete and one that died, and what a host sees of it.
fn confined(inner: Arc<dyn Objects>, allowed: Allowed) -> (Arc<dyn Objects>, Arc<dyn Objects>) {
    put(&inner, REPOSITORY, &repository());
    put(&inner, &key(OLD, "root.json"), &root(OLD, "victim", &[]));
    put(&inner, &key(OLD, "manifest"), b"pages");
    put(&inner, &format!("tombstones/{OLD}/manifest"), b"");
    put(
        &inner,
        &key(OTHER, "partial.json"),
        &root(OTHER, "victim", &[]),
    );
    drop(ours(
        inner
            .lease(&intent_key(OTHER), b"intent", Take::New)
            .unwrap(),
    ));
    let objects = session(&inner, allowed, &web1());
    (inner, objects)
}

/// A directory or a store in memory.
fn storages() -> Vec<(Option<tempfile::TempDir>, Arc<dyn Objects>)> {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalObjects::new(&dir.path().join("r"));
    vec![
        (Some(dir), Arc::new(local)),
        (None, Arc::new(MemoryObjects::new())),
    ]
}

fn announce(objects: &Arc<dyn Objects>, id: &str) -> Box<dyn Lease> {
    let leased = objects.lease(&intent_key(id), &intent(id, &[]), Take::New);
    ours(leased.unwrap())
}

fn put_root(objects: &Arc<dyn Objects>, id: &str, root: &[u8]) -> Result<Put, Error> {
    objects.put(&key(id, "root.json"), root, &PutIf::Absent)
}

fn state(objects: &Arc<dyn Objects>) -> Vec<(String, Vec<u8>)> {
    let all = keys(objects, "").into_iter();
    let all = all.filter(|key| !key.starts_with("intents/"));
    all.map(|key| (key.clone(), get(objects, &key).unwrap()))
        .collect()
}

fn refused<T>(result: Result<T, Error>, kind: ErrorKind, why: &str) {
    let Err(error) = result else {
        panic!("{why}: it was not refused");
    };
    assert_eq!(error.kind, kind, "{}", error.line());
    assert!(error.line().contains(why), "{}", error.line());
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
    let refused = |result: Result<(), Error>, word: &str| {
        let error = result.expect_err(word);
        assert_eq!(
            error.kind,
            ErrorKind::Permission,
            "{word}: {}",
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
        format!("backups/{OLD}/contents"),
        format!("backups/{OLD}/unproven"),
        format!("backups/{OTHER}/root.json"),
        format!("tombstones/{OLD}/s01-000001.tar.zst"),
        format!("intents/{NEW}.json"),
        "verify.json".to_owned(),
        "keys/mine.age".to_owned(),
        "hosts/web1.json".to_owned(),
        "probe-x".to_owned(),
        format!("backups/{NEW}/anything"),
        format!("backups/{NEW}/s01-000001.tar.zst.orig"),
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
    for (_dir, storage) in storages() {
        let has_locks = storage.abilities().has_locks;
        let (inner, objects) = confined(storage, Allowed::Append);
        let before = state(&inner);
        attack(&objects);
        assert_eq!(state(&inner), before);
        if has_locks {
            assert_eq!(get(&inner, &intent_key(OTHER)).unwrap(), b"intent");
        }
    }
}

/// Announces a backup and stores all of it but its root.
fn store(objects: &Arc<dyn Objects>, id: &str) -> Box<dyn Lease> {
    let lease = announce(objects, id);
    let mut upload = objects.create(&key(id, SEGMENT)).unwrap();
    upload.append(b"segment").unwrap();
    upload.finish().unwrap();
    put(objects, &key(id, "manifest"), b"");
    put(objects, &key(id, "partial.json"), &root(id, "web1", &[]));
    put(objects, &key(id, "partial.json"), &root(id, "web1", &[]));
    lease
}

#[test]
fn a_host_takes_back_what_has_no_root_yet() {
    for (_dir, storage) in storages() {
        let (inner, objects) = confined(storage, Allowed::Append);
        let before = state(&inner);
        let lease = store(&objects, OURS);
        let all = ["partial.json", SEGMENT, "manifest", "forgotten.json"];
        let mut all: Vec<_> = all.iter().map(|name| key(OURS, name)).collect();
        all.push(intent_key(OURS));
        objects.delete(&all).unwrap();
        drop(lease);
        assert_eq!(state(&inner), before);
        // What another session announced is not its own.
        let other = session(&inner, Allowed::Append, &web1());
        let lease = store(&objects, NEW);
        refused(
            other.delete(&[key(NEW, SEGMENT)]),
            ErrorKind::Permission,
            "only add",
        );
        refused(
            put_root(&other, NEW, &root(NEW, "web1", &[])),
            ErrorKind::Permission,
            "only add",
        );
        drop(lease);
    }
}

#[test]
fn pieces_of_an_unfinished_segment_are_taken_back_by_the_session_that_added_them() {
    for (_dir, storage) in storages() {
        let (inner, objects) = confined(storage, Allowed::Append);
        let digest = "ab".repeat(16);
        let segment = "000000010000000000000002";
        let piece = format!("wal/7/00000001/tail/{segment}-00000000-00000010-{digest}.tar.zst");
        let later = format!("wal/7/00000001/tail/{segment}-00000010-00000020-{digest}.tar.zst");
        let run = format!("wal/7/00000001/00000000/{segment}-01-{digest}.tar.zst");
        for key in [&piece, &later, &run] {
            let put = objects.put(key, b"wal", &PutIf::Absent).unwrap();
            assert!(matches!(put, Put::Done(_)));
        }
        let other = session(&inner, Allowed::Append, &web1());
        refused(
            other.delete(std::slice::from_ref(&piece)),
            ErrorKind::Permission,
            "only add",
        );
        refused(
            objects.delete(std::slice::from_ref(&run)),
            ErrorKind::Permission,
            "only add",
        );
        objects.delete(std::slice::from_ref(&piece)).unwrap();
        assert_eq!(inner.get(&piece).unwrap(), None);
        // Another one of this name is not its own any more.
        put(&inner, &piece, b"other");
        refused(
            objects.delete(std::slice::from_ref(&piece)),
            ErrorKind::Permission,
            "only add",
        );
        assert!(inner.get(&later).unwrap().is_some() && inner.get(&run).unwrap().is_some());
    }
}

#[test]
fn after_its_root_only_the_intent_and_the_partial_root_of_a_backup_may_go() {
    for (_dir, storage) in storages() {
        let (inner, objects) = confined(storage, Allowed::Append);
        let lease = store(&objects, OURS);
        // Begun before the commit, it must not end after it.
        let mut late = objects.create(&key(OURS, "s01-000002.tar.zst")).unwrap();
        late.append(b"late").unwrap();
        let mut replacing = objects.create(&key(OURS, SEGMENT)).unwrap();
        replacing.append(b"other").unwrap();
        let stored = put_root(&objects, OURS, &root(OURS, "web1", &[])).unwrap();
        assert!(matches!(stored, Put::Done(_)));
        let complete = state(&inner);
        for upload in [late, replacing] {
            refused(upload.finish(), ErrorKind::Permission, "complete");
        }
        for name in ["root.json", SEGMENT, "manifest"] {
            let key = key(OURS, name);
            refused(
                objects.delete(std::slice::from_ref(&key)),
                ErrorKind::Permission,
                "only add",
            );
            refused(
                objects.put(&key, b"x", &PutIf::Always),
                ErrorKind::Permission,
                "",
            );
            let created = objects.create(&key);
            refused(
                created.and_then(|upload| upload.finish()),
                ErrorKind::Permission,
                "",
            );
        }
        let again = put_root(&objects, OURS, &root(OURS, "web1", &[]));
        refused(again, ErrorKind::Permission, "complete");
        refused(
            put_root(&objects, OURS, &void_root().unwrap()),
            ErrorKind::Permission,
            "complete",
        );
        for name in ["forgotten.json", "notes.json", "s01-000003.tar.zst"] {
            let put = objects.put(&key(OURS, name), b"x", &PutIf::Absent);
            refused(put, ErrorKind::Permission, "");
        }
        assert_eq!(state(&inner), complete);
        objects
            .delete(&[key(OURS, "partial.json"), intent_key(OURS)])
            .unwrap();
        drop(lease);
        let left = [
            key(OURS, "manifest"),
            key(OURS, "root.json"),
            key(OURS, SEGMENT),
            key(OURS, "unproven"),
        ];
        assert_eq!(keys(&inner, &format!("backups/{OURS}")), left);
        attack(&objects);
    }
}

#[test]
fn a_backup_that_a_host_adds_has_a_mark_that_the_host_cannot_take_away() {
    for (_dir, storage) in storages() {
        let (inner, objects) = confined(storage, Allowed::Append);
        let mark = key(OURS, "unproven");
        let _lease = store(&objects, OURS);
        let mut upload = objects.create(&key(OURS, "contents")).unwrap();
        upload.append(b"list").unwrap();
        upload.finish().unwrap();
        let write = || objects.put(&mark, b"x", &PutIf::Always);
        refused(write(), ErrorKind::Permission, "may only add backups");
        assert_eq!(get(&inner, &mark), None);
        put_root(&objects, OURS, &root(OURS, "web1", &[])).unwrap();
        assert_eq!(get(&inner, &mark).unwrap(), b"");
        let delete = |name: &str| objects.delete(&[key(OURS, name)]);
        for name in ["unproven", "contents"] {
            refused(delete(name), ErrorKind::Permission, "may only add backups");
            assert!(get(&inner, &key(OURS, name)).is_some());
        }
        refused(write(), ErrorKind::Permission, "may only add backups");
    }
}

#[test]
fn a_root_is_checked_before_it_is_stored() {
    let (inner, objects) = confined(Arc::new(MemoryObjects::new()), Allowed::Append);
    let _lease = announce(&objects, OURS);
    for name in ["root.json", "partial.json"] {
        let put = |bytes: &[u8]| objects.put(&key(OURS, name), bytes, &PutIf::Absent);
        refused(put(b"no root at all"), ErrorKind::Corrupt, "damaged");
        refused(put(b""), ErrorKind::Corrupt, "damaged");
        refused(
            put(&root(NEW, "web1", &[])),
            ErrorKind::Corrupt,
            "belongs to backup",
        );
        refused(
            put(&root(OURS, "victim", &[])),
            ErrorKind::Permission,
            "host \"victim\"",
        );
        let others = put(&root(OURS, "web1", &[OLD]));
        refused(others, ErrorKind::Permission, "its intent did not name");
        let large = vec![b' '; (8 << 20) + 1];
        refused(put(&large), ErrorKind::Permission, "may have 8388608");
        let many = seal(&serde_json::json!({ "bases": vec![""; 1 << 20] })).unwrap();
        refused(put(&many), ErrorKind::Corrupt, "elements");
    }
    let replaced = objects.put(
        &key(OURS, "root.json"),
        &root(OURS, "web1", &[]),
        &PutIf::Always,
    );
    refused(replaced, ErrorKind::Permission, "replace");
    assert_eq!(keys(&inner, &format!("backups/{OURS}")), [""; 0]);
    put_root(&objects, OURS, &root(OURS, "web1", &[])).unwrap();
}

#[test]
fn a_cluster_of_another_host_is_not_added_in_its_name() {
    let (_, objects) = confined(Arc::new(MemoryObjects::new()), Allowed::Append);
    let _lease = announce(&objects, OURS);
    let mut root = Root::open(&root(OURS, "victim", &[]), "it").unwrap();
    root.postgres = Some(ClusterInfo {
        system_identifier: "7".into(),
        ..ClusterInfo::default()
    });
    let stored = put_root(&objects, OURS, &seal(&root).unwrap());
    refused(stored, ErrorKind::Permission, "victim");
}

#[test]
fn a_root_of_more_than_8_mib_needs_a_backup_that_is_as_large() {
    let (_, objects) = confined(Arc::new(MemoryObjects::new()), Allowed::Append);
    let _lease = announce(&objects, OURS);
    let mut root = Root::open(&root(OURS, "web1", &[]), "it").unwrap();
    root.tool = "x".repeat(8 << 20);
    let sealed = seal(&root).unwrap();
    refused(
        put_root(&objects, OURS, &sealed),
        ErrorKind::Permission,
        "may have",
    );
    put(&objects, &key(OURS, SEGMENT), &pattern(4 << 20, 1));
    put_root(&objects, OURS, &sealed).unwrap();
}

#[test]
fn an_intent_names_backups_of_its_host_only() {
    for (_dir, storage) in storages() {
        let (inner, objects) = confined(storage, Allowed::Append);
        let mine = "20261119T054501Z-eeeeee";
        let before = "20261118T054501Z-ffffff";
        put(
            &inner,
            &key(mine, "root.json"),
            &root(mine, "web1", &[before]),
        );
        let take = |id: &str, body: &[u8]| objects.lease(&intent_key(id), body, Take::New);
        refused(take(OURS, b"no intent"), ErrorKind::Corrupt, "damaged");
        refused(
            take(OURS, &intent(NEW, &[])),
            ErrorKind::Permission,
            "not of this backup",
        );
        refused(
            take(OURS, &intent(OURS, &[OLD])),
            ErrorKind::Permission,
            "victim",
        );
        let many = vec![mine; 17];
        refused(
            take(OURS, &intent(OURS, &many)),
            ErrorKind::Permission,
            "more than 16",
        );
        let elsewhere = Intent {
            id: OURS.into(),
            source: "victim".into(),
            ..Intent::default()
        };
        let elsewhere = take(OURS, &seal(&elsewhere).unwrap());
        refused(elsewhere, ErrorKind::Permission, "host \"victim\"");
        assert!(get(&inner, &intent_key(OURS)).is_none());
        let mut lease = announce(&objects, OURS);
        for base in [OLD, OTHER] {
            let named = lease.update(&intent(OURS, &[base]));
            refused(named, ErrorKind::Permission, "victim");
        }
        let gone = "20261117T054501Z-aaaaaa";
        lease.update(&intent(OURS, &[mine, gone])).unwrap();
        refused(
            put_root(&objects, OURS, &root(OURS, "web1", &[OLD])),
            ErrorKind::Permission,
            "did not name",
        );
        put_root(&objects, OURS, &root(OURS, "web1", &[mine, before])).unwrap();
    }
}

#[test]
fn a_host_shares_no_lists_of_another_one() {
    for (_dir, storage) in storages() {
        let (inner, objects) = confined(storage, Allowed::Append);
        let (mine, before) = ("20261119T054501Z-eeeeee", "20261119T054501Z-dddddd");
        let page = |backup: &str| PageAt {
            backup: backup.into(),
            ..PageAt::default()
        };
        // What a backup of this host has: its root, with the page of lists in its manifest.
        let listed = |id: &str, host: &str, refers_to: &[&str], written: &Lists| {
            let root = Root::open(&root(id, host, refers_to), "it").unwrap();
            let mut root = Root {
                pages: vec![page(""); 3],
                ..root
            };
            let stored = written.page(id).unwrap();
            root.note_own_lists(&Lists::of(&root), 0, &stored);
            root.lists_digest = written.clear_digest();
            put(&inner, &key(id, "manifest"), &stored);
            put(&inner, &key(id, "root.json"), &seal(&root).unwrap());
            root
        };
        let lists_of = |pages: Vec<PageAt>| Lists {
            pages,
            ..Lists::default()
        };
        let other = listed(OLD, "victim", &[], &lists_of(vec![page(OLD)]));
        // It may refer to content of the other host, whose names it must not see.
        let own = listed(mine, "web1", &[OLD], &lists_of(vec![page(mine)]));
        // The page of lists is not what its root says.
        let forged = listed(before, "web1", &[], &lists_of(vec![page(OTHER)]));
        let mut lease = announce(&objects, OURS);
        lease.update(&intent(OURS, &[mine, before])).unwrap();
        let short = |of: &Root| Root {
            lists_of: of.lists_of.clone(),
            lists_digest: of.lists_digest.clone(),
            lists_at: of.lists_at.clone(),
            ..Root::open(&root(OURS, "web1", &[]), "it").unwrap()
        };
        let store = |root: &Root| put_root(&objects, OURS, &seal(root).unwrap());
        refused(
            store(&short(&other)),
            ErrorKind::Permission,
            "no base of it has",
        );
        // A root with pages of its own would be the base of the next one.
        let whole = Root {
            pages: vec![page(""); 3],
            ..short(&other)
        };
        refused(store(&whole), ErrorKind::Permission, "no base of it has");
        let elsewhere = Root {
            lists_at: other.lists_at.clone(),
            lists_digest: other.lists_digest.clone(),
            ..short(&own)
        };
        refused(
            store(&elsewhere),
            ErrorKind::Permission,
            "no base of it has",
        );
        let of_itself = Root {
            lists_of: OURS.into(),
            ..short(&other)
        };
        refused(
            store(&of_itself),
            ErrorKind::Permission,
            "no base of it has",
        );
        refused(
            store(&short(&forged)),
            ErrorKind::Permission,
            "did not name",
        );
        store(&short(&own)).unwrap();
    }
}

#[test]
fn an_id_of_the_future_is_refused() {
    let (inner, objects) = confined(Arc::new(MemoryObjects::new()), Allowed::Append);
    let in_hours = |hours| {
        let time = Timestamp::now() + SignedDuration::from_hours(hours);
        format!("{}-00aaaa", time.strftime("%Y%m%dT%H%M%SZ"))
    };
    for id in [
        "99991230T220000Z-rp0000",
        "99999999T999999Z-aaaaaa",
        &in_hours(25),
    ] {
        let leased = objects.lease(&intent_key(id), &intent(id, &[]), Take::New);
        refused(leased, ErrorKind::Permission, "a day in the future");
    }
    drop(announce(&objects, &in_hours(23)));
    assert_eq!(keys(&inner, "intents").len(), 2);
}

#[test]
fn without_a_name_of_the_host_a_clear_repository_takes_no_backup() {
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let objects = session(&memory, Allowed::Append, &AppendRules::default());
    let made = objects.put(REPOSITORY, &repository(), &PutIf::Absent);
    refused(made, ErrorKind::Permission, "which host");
    let (inner, _) = confined(memory, Allowed::Append);
    let objects = session(&inner, Allowed::Append, &AppendRules::default());
    let leased = objects.lease(&intent_key(OURS), &intent(OURS, &[]), Take::New);
    refused(leased, ErrorKind::Permission, "which host");
    // Who adds to an encrypted one is proved with a key, and its roots are sealed.
    put(&inner, "keys/current.json", b"any");
    let _lease = announce(&objects, OURS);
    let clear = put_root(&objects, OURS, &root(OURS, "web1", &[]));
    refused(clear, ErrorKind::Permission, "not sealed");
}

#[test]
fn nothing_is_added_that_no_command_removes() {
    let (inner, objects) = confined(Arc::new(MemoryObjects::new()), Allowed::Append);
    let _lease = announce(&objects, OURS);
    let before = state(&inner);
    for name in [
        "x",
        "notes.json",
        "a/b",
        "s01-000001.tar.zst.orig",
        "s1-1.tar.zst",
        "manifest.a",
    ] {
        let key = key(OURS, name);
        refused(
            objects.put(&key, b"x", &PutIf::Absent),
            ErrorKind::Permission,
            "",
        );
        let created = objects.create(&key);
        refused(
            created.and_then(|upload| upload.finish()),
            ErrorKind::Permission,
            "",
        );
    }
    for other in [
        "probe-x",
        "x",
        "hosts/web1.json",
        "hosts/x",
        "probes/a/b",
        "intents/x.json",
    ] {
        refused(
            objects.put(other, b"x", &PutIf::Absent),
            ErrorKind::Permission,
            "",
        );
    }
    let large = objects.put("probes/a", &[0; 65], &PutIf::Absent);
    refused(large, ErrorKind::Permission, "so much");
    let probe = |n: usize| objects.put(&format!("probes/{n}"), &[0; 64], &PutIf::Absent);
    for n in 0..64 {
        probe(n).unwrap();
    }
    refused(probe(64), ErrorKind::Permission, "so much");
    drop(_lease);
    drop(objects);
    // The server ends the session soon after.
    for _ in 0..200 {
        if keys(&inner, "probes").is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(state(&inner), before);
}

#[test]
fn a_quota_and_a_limit_of_backups_a_day_hold_over_sessions() {
    for (_dir, storage) in storages() {
        let (inner, _) = confined(storage, Allowed::Append);
        let rules = AppendRules {
            quota: Some(100_000),
            max_per_day: Some(2),
            ..web1()
        };
        let first = session(&inner, Allowed::Append, &rules);
        let _lease = announce(&first, OURS);
        put(&first, &key(OURS, SEGMENT), &pattern(40_000, 1));
        let second = session(&inner, Allowed::Append, &rules);
        let _other_lease = announce(&second, NEW);
        let mut upload = second.create(&key(NEW, SEGMENT)).unwrap();
        upload.append(&pattern(40_000, 2)).unwrap();
        let more = upload.append(&pattern(40_000, 3));
        refused(
            more.and_then(|()| upload.finish().map(drop)),
            ErrorKind::Full,
            "quota",
        );
        let whole = second.put(&key(NEW, "manifest"), &pattern(60_000, 2), &PutIf::Absent);
        refused(whole, ErrorKind::Full, "quota");
        // One of another host has a limit of its own.
        let third = "20261124T054501Z-dddddd";
        let leased = second.lease(&intent_key(third), &intent(third, &[]), Take::New);
        refused(leased, ErrorKind::Full, "backups a day");
        let web2 = AppendRules {
            host: Some("web2".into()),
            ..rules
        };
        let other_host = session(&inner, Allowed::Append, &web2);
        drop(announce(&other_host, third));
        // What a prune frees may be used again.
        inner.delete(&[key(OURS, SEGMENT)]).unwrap();
        put(&second, &key(NEW, "manifest"), &pattern(60_000, 2));
    }
}

#[test]
fn a_host_that_may_append_makes_a_repository_with_its_first_keys_and_no_later_ones() {
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let objects = session(&memory, Allowed::Append, &web1());
    for key in ["probes/x", "keys/owner.age"] {
        let put = objects.put(key, b"first", &PutIf::Absent).unwrap();
        assert!(matches!(put, Put::Done(_)), "{key}");
    }
    let bad = objects.put(REPOSITORY, b"first", &PutIf::Absent);
    refused(bad, ErrorKind::Corrupt, "damaged");
    objects
        .put(REPOSITORY, &repository(), &PutIf::Absent)
        .unwrap();
    objects.delete(&["probes/x".to_owned()]).unwrap();
    let late = objects.put("keys/late.age", b"", &PutIf::Absent);
    refused(late, ErrorKind::Permission, "only add");
    let own = objects.put("keys/owner.age", b"", &PutIf::Always);
    refused(own, ErrorKind::Permission, "only add");
    let gone = objects.delete(&["keys/owner.age".to_owned(), REPOSITORY.to_owned()]);
    refused(gone, ErrorKind::Permission, "only add");
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
        let leased = objects.lease(&intent_key(OURS), &intent(OURS, &[]), take);
        assert_eq!(leased.unwrap_err().kind, ErrorKind::Permission);
    }
    assert_eq!(
        objects.abort_uploads("").unwrap_err().kind,
        ErrorKind::Permission
    );
    assert_eq!(state(&inner), before);
    assert_eq!(
        get(&objects, &format!("backups/{OLD}/root.json")).unwrap(),
        root(OLD, "victim", &[])
    );
}

#[test]
fn a_host_adds_wal_of_its_own_system_and_replaces_none() {
    let inner: Arc<dyn Objects> = Arc::new(MemoryObjects::default());
    put(&inner, REPOSITORY, &repository());
    let other = AppendRules {
        host: Some("web2".into()),
        ..AppendRules::default()
    };
    let digest = "0123456789abcdef0123456789abcdef";
    let run = |system: &str| {
        format!("wal/{system}/00000001/00000000/000000010000000000000002-01-{digest}.tar.zst")
    };
    let first = session(&inner, Allowed::Append, &web1());
    let add = |objects: &Arc<dyn Objects>, key: &str| objects.put(key, b"wal", &PutIf::Absent);
    assert!(matches!(add(&first, &run("7")).unwrap(), Put::Done(_)));
    assert_eq!(add(&first, &run("7")).unwrap(), Put::Refused);
    let refused =
        |result: Result<Put, Error>| assert_eq!(result.unwrap_err().kind, ErrorKind::Permission);
    refused(first.put(&run("7"), b"other", &PutIf::Always));
    assert_eq!(
        first.delete(&[run("7")]).unwrap_err().kind,
        ErrorKind::Permission
    );
    refused(add(&first, "wal/7/x"));
    refused(add(
        &first,
        "wal/7/00000001/00000000/000000010000000000000002-01-x.tar.zst",
    ));
    refused(add(&first, "hosts/wal-8.json"));
    // Another host archives another system, and none of this one.
    let second = session(&inner, Allowed::Append, &other);
    refused(add(&second, &run("7").replace("2-01", "3-01")));
    assert!(matches!(add(&second, &run("8")).unwrap(), Put::Done(_)));
    // The binding lasts longer than the session.
    let again = session(&inner, Allowed::Append, &web1());
    assert!(matches!(
        add(&again, &run("7").replace("2-01", "3-01")).unwrap(),
        Put::Done(_)
    ));
    refused(add(&again, &run("8").replace("2-01", "3-01")));
}
