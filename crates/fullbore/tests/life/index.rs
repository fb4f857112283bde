//! The index of roots saves requests, and changes no result.

use fullbore_format::layout::ROOT;
use fullbore_repository::{
    protocol::forget,
    prune::{Pruned, prune, prune_with},
    root_index::IndexPlace,
    root_reader::DocumentReader,
    roots::{ids, key},
};
use fullbore_storage::{MemoryObjects, Objects, Operation, PutIf, Recording};
use proptest::prelude::*;
use std::{fs, path::Path, sync::Arc};
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
