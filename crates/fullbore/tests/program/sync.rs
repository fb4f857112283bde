//! A repository gets the backups of another one that it lacks.

use crate::runs::{
    self, Ran, assert_same, fullbore, has, names, noise, or_skip, shape, tampered, temp, text,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// A repository with backups of a tree, each of which refers to earlier ones, and the state of the
/// tree at each of them.
struct Source {
    dir: tempfile::TempDir,
    repository: PathBuf,
    ids: Vec<String>,
    shapes: BTreeMap<String, runs::Shape>,
}

impl Source {
    fn new(backups: usize) -> Self {
        let dir = temp();
        let repository = dir.path().join("repo");
        let mut source = Self {
            dir,
            repository,
            ids: Vec::new(),
            shapes: BTreeMap::new(),
        };
        for turn in 0..backups {
            source.add(turn as u64);
        }
        source
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    /// Changes the tree, and makes a backup.
    fn add(&mut self, turn: u64) {
        for i in (0..20).filter(|i| turn == 0 || i % 7 == turn % 7) {
            let content = text(i + 100 * turn, 9000);
            runs::write(self.tree().join(format!("d/{i:02}")), content);
        }
        if turn == 0 {
            for number in 0..3 {
                let file = self.tree().join(format!("large{number}"));
                runs::write(file, noise(number, 800_000));
            }
        }
        let args = args![
            "backup",
            self.tree(),
            "--to",
            self.repository,
            "--frame-size",
            "64K",
            "--segment-size",
            "1M",
            "--json"
        ];
        let result = fullbore(args).ends_with(0).json().pop().unwrap();
        let id = result["id"].as_str().unwrap().to_owned();
        self.shapes.insert(id.clone(), shape(&self.tree()));
        self.ids.push(id);
    }

    fn other(&self) -> PathBuf {
        self.dir.path().join("other")
    }

    fn sync(&self, to: &Path, options: &[&str]) -> Ran {
        let args = args!["sync", self.repository, to, "--json"];
        fullbore(args.into_iter().chain(runs::args(options)))
    }

    /// Each listed backup is that of the tree at its time.
    fn assert_all_restore(&self, repository: &Path, case: &str) {
        for id in listed(repository) {
            let dir = temp();
            let back = dir.path().join("back");
            let from = format!("{}@{id}", repository.display());
            fullbore(args!["restore", from, "--to", back, "--quiet"]).ends_with(0);
            assert_same(&self.shapes[&id], &shape(&back), &format!("{case}: {id}"));
        }
    }

    fn segment(&self, backup: usize, number: u32) -> PathBuf {
        let dir = self.repository.join("backups").join(&self.ids[backup]);
        dir.join(format!("s01-{number:06}.tar.zst"))
    }
}

fn listed(repository: &Path) -> Vec<String> {
    if !repository.join("fullbore-repo.json").exists() {
        return Vec::new();
    }
    let ran = fullbore(args!["list", repository, "--json"]).ends_with(0);
    let rows = ran.json();
    rows.iter()
        .map(|backup| backup["id"].as_str().unwrap().to_owned())
        .collect()
}

fn result(ran: Ran) -> serde_json::Value {
    ran.json().pop().unwrap()
}

fn copied(result: &serde_json::Value) -> Vec<String> {
    let copied = result["copied"].as_array().unwrap().iter();
    copied
        .map(|one| one["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Nothing is announced. The next backup removes files that were not complete when a process died.
fn assert_no_intents(repository: &Path) {
    let mut left = names(&repository.join("intents"));
    left.retain(|name| !name.ends_with(".partial"));
    assert_eq!(left, [""; 0]);
}

fn change_byte(file: &Path, offset: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[offset] ^= 1;
    fs::write(file, bytes).unwrap();
}

#[test]
fn everything_that_is_missing_is_copied_once_and_restores_without_the_original() {
    let mut source = Source::new(3);
    let other = source.other();
    let plan = result(source.sync(&other, &["--dry-run"]).ends_with(0));
    assert_eq!(copied(&plan), source.ids);
    assert!(!other.exists(), "a dry run made a repository");
    let first = result(source.sync(&other, &[]).ends_with(0));
    assert_eq!(copied(&first), source.ids);
    assert_eq!(first["new_repository"], true);
    // Each object was copied for one backup only.
    let stored = |repository: &Path| {
        let find = "find \"$1/backups\" -name 's0*' -o -name manifest | wc -l";
        runs::shell(find, args![repository]).out.trim().to_owned()
    };
    assert_eq!(first["objects"].to_string(), stored(&source.repository));
    assert_eq!(stored(&other), stored(&source.repository));
    assert_eq!(
        plan["stored_bytes"].as_u64().unwrap(),
        first["stored_bytes"].as_u64().unwrap()
    );
    let again = result(source.sync(&other, &[]).ends_with(0));
    assert_eq!(
        (&again["objects"], &again["there_backups"]),
        (&0.into(), &3.into())
    );
    source.add(3);
    let next = result(source.sync(&other, &[]).ends_with(0));
    assert_eq!(copied(&next), source.ids[3..]);
    assert!(next["objects"].as_u64().unwrap() <= 2, "{next}");
    fs::rename(&source.repository, source.dir.path().join("away")).unwrap();
    assert_eq!(listed(&other), source.ids);
    source.assert_all_restore(&other, "synced");
    fullbore(args!["verify", other, "--data"]).ends_with(0);
    assert_eq!(names(&other.join("intents")), [""; 0]);
}

#[test]
fn what_only_the_destination_has_stays_and_both_go_on() {
    let mut source = Source::new(2);
    let other = source.other();
    source.sync(&other, &[]).ends_with(0);
    let foreign = source.dir.path().join("foreign");
    runs::write(foreign.join("f"), "f");
    fullbore(args!["backup", foreign, "--to", other, "--quiet"]).ends_with(0);
    fullbore(args!["forget", source.repository, source.ids[0]]).ends_with(0);
    source.add(5);
    let ran = result(source.sync(&other, &["--keep-last", "2"]).ends_with(0));
    // The rules keep the two newest of the source, and say nothing of the other source.
    assert_eq!(ran["forgotten_ids"], serde_json::json!([source.ids[0]]));
    let left = listed(&other);
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(source.ids[1..].iter().all(|id| left.contains(id)));
    fullbore(args!["prune", other, "--quiet"]).ends_with(0);
    fullbore(args!["verify", other, "--data"]).ends_with(0);
}

#[test]
fn backups_that_the_rules_would_forget_are_not_copied() {
    let source = Source::new(4);
    let other = source.other();
    let plan = result(
        source
            .sync(&other, &["--keep-last", "1", "-n"])
            .ends_with(0),
    );
    assert_eq!(copied(&plan), source.ids[3..]);
    let ran = result(source.sync(&other, &["--keep-last", "1"]).ends_with(0));
    assert_eq!(
        (copied(&ran), &ran["unwanted_backups"]),
        (source.ids[3..].to_vec(), &3.into())
    );
    // A pin is a decision of the destination, and the rules there respect it.
    fullbore(args!["pin", format!("{}@latest", other.display())]).ends_with(0);
    let mut source = source;
    source.add(4);
    let plan = result(
        source
            .sync(&other, &["--keep-last", "1", "-n"])
            .ends_with(0),
    );
    assert_eq!(
        (copied(&plan), &plan["forgotten_ids"]),
        (source.ids[4..].to_vec(), &serde_json::json!([]))
    );
    source.sync(&other, &["--keep-last", "1"]).ends_with(0);
    assert_eq!(listed(&other), source.ids[3..]);
    // A pin of the source repository does not bring a backup back again and again.
    fullbore(args![
        "pin",
        format!("{}@{}", source.repository.display(), source.ids[0])
    ])
    .ends_with(0);
    let ran = result(source.sync(&other, &["--keep-last", "1"]).ends_with(0));
    assert_eq!(
        (copied(&ran), &ran["forgotten_ids"]),
        (vec![], &serde_json::json!([]))
    );
    source.assert_all_restore(&other, "by rules");
}

#[test]
fn chosen_backups_are_copied_and_wrong_words_are_refused() {
    let source = Source::new(2);
    let other = source.other();
    let tag = format!("{}@{}", source.repository.display(), source.ids[1]);
    fullbore(args!["tag", tag, "offsite"]).ends_with(0);
    let ran = result(source.sync(&other, &["--tag", "offsite"]).ends_with(0));
    assert_eq!(copied(&ran), source.ids[1..]);
    source.assert_all_restore(&other, "by tag");
    source
        .sync(&other, &["--tag", "none"])
        .ends_with(1)
        .has_one_error("that --tag none selects");
    let named = format!("{}@latest", source.repository.display());
    fullbore(args!["sync", named, other])
        .ends_with(2)
        .has_one_error("sync is for whole repositories");
    fullbore(args!["sync", source.repository, source.repository])
        .ends_with(2)
        .has_one_error("to itself");
    let new = source.dir.path().join("new");
    source
        .sync(&new, &["--no-create"])
        .ends_with(1)
        .has_one_error("could not find a repository");
    assert!(!new.exists());
    let archive = source.dir.path().join("a.tar.zst");
    source
        .sync(&archive, &[])
        .ends_with(2)
        .has_one_error("no repository");
}

#[test]
fn a_damaged_segment_is_named_and_only_the_backups_that_need_it_are_left_out() {
    let source = Source::new(4);
    let other = source.other();
    // Only the third backup, and those that refer to it, need this segment.
    let segment = source.segment(2, 1);
    change_byte(&segment, 2000);
    let ran = source.sync(&other, &[]).ends_with(4);
    assert!(ran.err.contains(&source.ids[2]), "{}", ran.err);
    let out = result(ran);
    let damaged = out["not_copied"].as_array().unwrap();
    assert_eq!(damaged[0]["id"], source.ids[2].as_str());
    let error = damaged[0]["error"].as_str().unwrap();
    assert!(
        error.contains("are damaged") && error.contains("s01-000001"),
        "{error}"
    );
    assert_eq!(copied(&out), source.ids[..2]);
    assert_eq!(listed(&other), source.ids[..2]);
    source.assert_all_restore(&other, "with damage");
    fullbore(args!["verify", other, "--data"]).ends_with(0);
    // Nothing damaged reached the other repository.
    let rest = other.join("backups").join(&source.ids[2]);
    assert!(!rest.exists(), "{rest:?}");
    // The damage is repaired: the rest comes.
    change_byte(&segment, 2000);
    let out = result(source.sync(&other, &[]).ends_with(0));
    assert_eq!(copied(&out), source.ids[2..]);
    source.assert_all_restore(&other, "after the repair");
}

#[test]
fn a_damaged_root_and_a_lost_segment_are_named_and_the_others_are_copied() {
    let source = Source::new(3);
    let other = source.other();
    let root = { source.repository.join("backups") }
        .join(&source.ids[1])
        .join("root.json");
    change_byte(&root, 100);
    let lost = source.segment(2, 1);
    fs::rename(&lost, source.dir.path().join("lost")).unwrap();
    let out = result(source.sync(&other, &[]).ends_with(4));
    let damaged = out["not_copied"].as_array().unwrap();
    let ids: Vec<_> = damaged
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, source.ids[1..]);
    assert_eq!(listed(&other), source.ids[..1]);
    source.assert_all_restore(&other, "a damaged root");
}

/// Where a run touches both repositories, and how often the same thread may at most.
const CALLS: [(&str, u32); 7] = [
    ("openat", 60),
    ("mkdir,mkdirat", 10),
    ("write,pwrite64", 60),
    ("fsync", 20),
    ("link,linkat,rename,renameat,renameat2", 24),
    ("flock", 24),
    ("unlink,unlinkat", 24),
];

#[test]
fn killed_at_any_system_call_it_lists_nothing_incomplete_and_the_next_run_goes_on() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let source = Source::new(3);
    for (calls, most) in CALLS {
        let other = source.dir.path().join(calls);
        let mut kills = 0;
        for when in 1..=most {
            // Steps grow: the first calls set the stage, the later ones are alike.
            if when > 12 && when % 5 != 0 {
                continue;
            }
            let sync = args![
                "sync",
                source.repository,
                other,
                "--workers",
                "1",
                "--quiet"
            ];
            let ran = tampered(&format!("{calls}:signal=KILL:when={when}"), None, sync);
            source.assert_all_restore(&other, &format!("{calls} {when}"));
            if ran.code == 0 {
                break;
            }
            kills += 1;
            if when % 3 == 0 {
                source.sync(&other, &[]).ends_with(0);
                assert_eq!(listed(&other), source.ids, "{calls} {when}");
                assert_no_intents(&other);
                fullbore(args!["verify", other, "--data", "--quiet"]).ends_with(0);
                fs::remove_dir_all(&other).unwrap();
            }
        }
        assert!(kills > 0, "{calls} is never called");
        source.sync(&other, &[]).ends_with(0);
        assert_eq!(listed(&other), source.ids, "{calls}");
        source.assert_all_restore(&other, calls);
        fullbore(args!["verify", other, "--data", "--quiet"]).ends_with(0);
    }
}

#[test]
fn a_run_that_was_cut_off_keeps_what_it_copied_and_the_next_one_does_not_copy_it_again() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let source = Source::new(2);
    let plan = result(source.sync(&source.other(), &["-n"]).ends_with(0));
    let total = plan["stored_bytes"].as_u64().unwrap();
    let mut went_on = 0;
    for when in 1..=12 {
        let other = source.dir.path().join(format!("cut{when}"));
        let sync = args!["sync", source.repository, other, "--workers", "1", "-q"];
        let inject = format!("rename,renameat,renameat2,linkat:signal=KILL:when={when}");
        if tampered(&inject, None, sync).code == 0 {
            break;
        }
        if !other.join("backups").exists() {
            continue;
        }
        // A prune keeps it for the next run.
        fullbore(args!["prune", other, "--quiet"]).ends_with(0);
        let find = "find \"$1/backups\" -name 's0*zst' -printf '%s\\n' | awk '{n += $1} END {print n + 0}'";
        let kept = runs::shell(find, args![other]).out;
        let kept: u64 = kept.trim().parse().unwrap();
        let next = result(source.sync(&other, &[]).ends_with(0));
        let copied = next["stored_bytes"].as_u64().unwrap();
        assert!(copied + kept <= total, "{when}: {copied}, {kept}, {total}");
        went_on += u32::from(kept > 0 && copied > 0);
        assert_eq!(listed(&other), source.ids, "{when}");
        source.assert_all_restore(&other, "after a cut");
        fullbore(args!["verify", other, "--data"]).ends_with(0);
    }
    assert!(went_on > 0, "no run was cut behind its first object");
}

#[test]
fn a_full_destination_ends_the_run_and_has_its_room_back() {
    let source = Source::new(2);
    let at = source.dir.path().join("small");
    let Some(_mounted) = runs::Mount::tmpfs(&at, "1200k") else {
        return;
    };
    let other = at.join("repo");
    source
        .sync(&other, &[])
        .ends_with(1)
        .has_one_error("no space left");
    assert_eq!(listed(&other), [""; 0]);
    let left = runs::shell("find \"$1\" -name 's0*'", args![other]);
    assert_eq!(left.out, "");
}
