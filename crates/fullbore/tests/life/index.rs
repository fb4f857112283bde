//! The index of roots saves requests, and changes no result.

use fullbore_crypt::{KeyRing, UserRecipient};
use fullbore_format::{
    layout::{REPOSITORY, ROOT},
    wal::{SegmentName, WalDigester, WalRun},
};
use fullbore_repository::{
    protocol::forget,
    prune::{Pruned, prune, prune_with},
    root_index::IndexPlace,
    root_reader::DocumentReader,
    roots::{ids, key},
    wal::{WalRetention, prune_wal},
};
use fullbore_storage::{
    LocalObjects, MemoryObjects, Objects, Operation, PutIf, Recording, SealedObjects,
    keys::encrypt_repository,
};
use proptest::prelude::*;
use std::{fs, path::Path, sync::Arc, thread, time::Duration};
use testkit::growth::Growth;

fn grown(sources: usize, rounds: usize, files: usize) -> MemoryObjects {
    let objects = MemoryObjects::new();
    let growth = Growth {
        sources,
        rounds,
        files,
        changed_one_of: 2,
    };
    growth.write(&mut |key, bytes| drop(objects.put(key, bytes, &PutIf::Always).unwrap()));
    objects
}

fn place(dir: &Path) -> IndexPlace {
    IndexPlace::new(Some(dir.to_owned())).of_at_least(1)
}

fn pruned(objects: &dyn Objects, dir: &Path, dry: bool) -> Pruned {
    let mut reader = DocumentReader::new(objects, &place(dir));
    prune_with(objects, dry, &mut reader).unwrap()
}

fn keys(objects: &dyn Objects) -> Vec<String> {
    let listed = objects.list("").unwrap().into_iter();
    listed.map(|object| object.key).collect()
}

#[test]
fn a_prune_reads_only_the_roots_that_changed() {
    let memory = grown(10, 20, 5);
    let recording = Recording::new(Arc::new(memory));
    let dir = tempfile::tempdir().unwrap();
    pruned(&recording, dir.path(), true);
    assert!(recording.count(Operation::Get).calls >= 200);
    recording.reset();
    pruned(&recording, dir.path(), true);
    let gets = recording.count(Operation::Get).calls;
    assert!(gets <= 3, "{gets}: the repository file, and no root");
    let victims: Vec<String> = ids(&recording).unwrap().into_iter().take(7).collect();
    for id in &victims {
        assert!(forget(&recording, id).unwrap());
    }
    recording.reset();
    pruned(&recording, dir.path(), true);
    let gets = recording.count(Operation::Get).calls;
    assert!((7..=10).contains(&gets), "{gets}");
}

#[test]
fn wal_takes_the_needs_of_backups_from_the_index() {
    let memory = grown(10, 20, 5);
    let system = "7300000000000000001";
    let first = SegmentName::parse("000000010000000000000005").unwrap();
    let run = WalRun {
        system: system.to_owned(),
        first,
        count: 1,
        is_partial: false,
        digest: WalDigester::plain().of_run(system, [(first, &[0; 32])].into_iter(), false),
    };
    memory
        .put(&run.to_string(), b"wal", &PutIf::Always)
        .unwrap();
    let recording = Recording::new(Arc::new(memory));
    let objects: Arc<dyn Objects> = Arc::new(recording.clone());
    let dir = tempfile::tempdir().unwrap();
    let pruned_wal = || {
        recording.reset();
        let mut reader = DocumentReader::new(&*objects, &place(dir.path()));
        let wal = prune_wal(&objects, &mut reader, &WalRetention::default(), true).unwrap();
        assert_eq!(wal.systems_without_backups, [system]);
        recording.count(Operation::Get).calls
    };
    assert!(pruned_wal() >= 200);
    let gets = pruned_wal();
    assert!(gets <= 3, "{gets}: the repository file, and no root");
}

#[test]
fn an_encrypted_directory_has_an_index_that_ends_with_a_change_of_its_keys() {
    let dir = tempfile::tempdir().unwrap();
    let local: Arc<dyn Objects> = Arc::new(LocalObjects::new(&dir.path().join("repo")));
    let growth = Growth {
        sources: 5,
        rounds: 10,
        files: 3,
        changed_one_of: 2,
    };
    let mut objects = Vec::new();
    growth.write(&mut |key, bytes| objects.push((key.to_owned(), bytes.to_vec())));
    let (file, bytes) = objects.remove(0);
    assert_eq!(file, REPOSITORY);
    local.put(&file, &bytes, &PutIf::Always).unwrap();
    let person = KeyRing::random().unwrap().newest().recipient().clone();
    let person = UserRecipient::Native(person);
    let ring = Arc::new(encrypt_repository(&*local, "me", &person).unwrap());
    let recording = Recording::new(local.clone());
    let sealed = SealedObjects::new(Arc::new(recording.clone()), ring);
    for (key, bytes) in objects {
        sealed.put(&key, &bytes, &PutIf::Always).unwrap();
    }
    // A listing has no version of what was changed within the same tick of the clock.
    thread::sleep(Duration::from_secs(4));
    let roots = || {
        recording.reset();
        pruned(&sealed, dir.path(), true);
        let log = recording.log().into_iter();
        let of_roots = log.filter(|(_, key)| key.ends_with(ROOT));
        of_roots.count()
    };
    assert!(roots() >= 50);
    assert_eq!(roots(), 0);
    let index = fs::read_dir(dir.path().join("roots")).unwrap().next();
    let index = fs::read(index.unwrap().unwrap().path()).unwrap();
    assert!(
        !index.windows(4).any(|four| four == b"/srv"),
        "it is sealed"
    );
    let keys = local.list("keys").unwrap();
    let added = format!("{}-of-another", keys[0].key);
    local.put(&added, b"a key", &PutIf::Always).unwrap();
    assert!(roots() >= 50, "which roots count may have changed");
}

#[test]
fn an_index_hides_no_root_and_invents_none() {
    let memory = grown(3, 10, 4);
    let dir = tempfile::tempdir().unwrap();
    pruned(&memory, dir.path(), true);
    let before = keys(&memory);
    // A root that is replaced says that it needs nothing else: as soon as it is listed, the old entry does not count.
    let all = ids(&memory).unwrap();
    let (first, last) = (&all[0], &all[29]);
    let other = grown(3, 10, 4);
    let content = other.get(&key(last, ROOT)).unwrap().unwrap().0;
    memory
        .put(&key(last, ROOT), &content, &PutIf::Always)
        .unwrap();
    memory.delete(&[key(first, ROOT)]).unwrap();
    let mut reader = DocumentReader::new(&memory, &place(dir.path()));
    // The root is lost, although the index has it.
    assert!(prune_with(&memory, false, &mut reader).is_err());
    let mut after = keys(&memory);
    after.push(key(first, ROOT));
    after.sort();
    assert_eq!(after, before, "nothing was deleted");
}

#[test]
fn a_damaged_index_is_none() {
    let memory = grown(3, 10, 4);
    let dir = tempfile::tempdir().unwrap();
    pruned(&memory, dir.path(), true);
    let file = fs::read_dir(dir.path().join("roots")).unwrap().next();
    let file = file.unwrap().unwrap().path();
    let whole = fs::read(&file).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 50) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&file, &damaged).unwrap();
        let recording = Recording::new(Arc::new(memory.clone()));
        let freed = pruned(&recording, dir.path(), true).freed();
        assert_eq!(freed.bytes, 0, "byte {at}");
        assert!(recording.count(Operation::Get).calls > 20, "byte {at}");
    }
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(pruned(&memory, dir.path(), true).freed().bytes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn a_prune_with_an_index_is_a_prune_without(
        sources in 1..4usize,
        rounds in 1..8usize,
        files in 1..5usize,
        steps in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..6), 1..4),
    ) {
        let (with, without) = (grown(sources, rounds, files), grown(sources, rounds, files));
        let dir = tempfile::tempdir().unwrap();
        pruned(&with, dir.path(), true);
        for step in steps {
            for index in step {
                let all = ids(&with).unwrap();
                if !all.is_empty() {
                    let id = index.get(&all);
                    prop_assert_eq!(forget(&with, id).unwrap(), forget(&without, id).unwrap());
                }
            }
            let first = pruned(&with, dir.path(), false);
            let second = prune(&without, false).unwrap();
            prop_assert_eq!(first.backups, second.backups);
            prop_assert_eq!(keys(&with), keys(&without));
        }
    }
}
