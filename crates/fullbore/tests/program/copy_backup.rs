//! A backup is copied to another repository with all that it refers to.

use crate::runs::{
    self, Ran, assert_same, fullbore, has, names, noise, or_skip, shape, tampered, temp, text,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A repository with three backups of a tree, each of which refers to the one before; the tree is that of the last.
struct Chain {
    dir: tempfile::TempDir,
    tree: PathBuf,
    repository: PathBuf,
    ids: Vec<String>,
}

fn chain(codec: &str) -> Chain {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    let mut ids: Vec<String> = Vec::new();
    for turn in 0..3 {
        for i in (0..30).filter(|i| turn == 0 || i % 7 == turn) {
            runs::write(tree.join(format!("d/{i:02}")), text(i + 100 * turn, 20_000));
        }
        if turn == 0 {
            runs::write(tree.join("large"), noise(1, 2_500_000));
        }
        let options = [
            "--frame-size",
            "64K",
            "--segment-size",
            "1M",
            "--json",
            "--compress",
            codec,
        ];
        let options = args!["backup", tree, "--to", repository]
            .into_iter()
            .chain(options.map(Into::into));
        let ran = fullbore(options).ends_with(0);
        let id = ran.json().last().unwrap()["id"]
            .as_str()
            .unwrap()
            .to_owned();
        ids.push(id);
    }
    Chain {
        dir,
        tree,
        repository,
        ids,
    }
}

impl Chain {
    fn at(&self, number: usize) -> String {
        format!("{}@{}", self.repository.display(), self.ids[number])
    }

    fn copy(&self, number: usize, to: &Path) -> Ran {
        fullbore(args!["copy", self.at(number), to, "--json"])
    }

    fn other(&self) -> PathBuf {
        self.dir.path().join("other")
    }

    fn assert_restores(&self, from: &Path) {
        let dir = temp();
        let back = dir.path().join("back");
        fullbore(args!["restore", from, "--to", back, "--quiet"]).ends_with(0);
        assert_same(&shape(&self.tree), &shape(&back), "copied");
    }

    fn manifest(&self, repository: &Path, number: usize) -> PathBuf {
        repository
            .join("backups")
            .join(&self.ids[number])
            .join("manifest")
    }

    /// The original is gone: nothing of the copy may lead there.
    fn hide(&self) {
        fs::rename(&self.repository, self.dir.path().join("away")).unwrap();
    }
}

fn listed(repository: &Path) -> Vec<String> {
    let ran = fullbore(args!["list", repository, "--json"]).ends_with(0);
    ran.json()
        .iter()
        .map(|backup| backup["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_copy_restores_without_the_original() {
    for codec in ["zstd:1", "lz4", "none"] {
        let chain = chain(codec);
        let other = chain.other();
        let result = chain.copy(2, &other).ends_with(0).json().pop().unwrap();
        assert_eq!(
            (
                &result["there_objects"],
                result["other_ids"].as_array().unwrap().len()
            ),
            (&0.into(), 2)
        );
        chain.hide();
        assert_eq!(listed(&other), [chain.ids[2].clone()]);
        chain.assert_restores(&other);
        assert_eq!(names(&other.join("intents")), [""; 0]);
    }
}

#[test]
fn a_copy_has_the_tags_of_the_original_but_no_pin_and_keeps_its_own() {
    let chain = chain("zstd");
    let segments_of = |repository: &Path| {
        let rows = fullbore(args!["list", repository, "--json"])
            .ends_with(0)
            .json();
        (rows[0]["tags"].clone(), rows[0]["pinned"].clone())
    };
    for (verb, tag) in [("tag", Some("reason=audit")), ("pin", None)] {
        fullbore(
            args![verb, chain.at(0)]
                .into_iter()
                .chain(tag.map(Into::into)),
        )
        .ends_with(0);
    }
    chain.copy(0, &chain.other()).ends_with(0);
    assert_eq!(
        segments_of(&chain.other()),
        (serde_json::json!({"reason": "audit"}), false.into())
    );

    fullbore(args![
        "tag",
        format!("{}@latest", chain.other().display()),
        "reason=mine"
    ])
    .ends_with(0);
    chain.copy(0, &chain.other()).ends_with(0);
    assert_eq!(
        segments_of(&chain.other()).0,
        serde_json::json!({"reason": "mine"})
    );
}

#[test]
fn what_is_there_is_not_copied_again() {
    let chain = chain("zstd:1");
    let other = chain.other();
    chain.copy(0, &other).ends_with(0);
    chain.copy(1, &other).ends_with(0);
    let result = chain.copy(2, &other).ends_with(0).json().pop().unwrap();
    let there = result["there_objects"].as_u64().unwrap();
    assert!(
        there >= 4 && result["objects"].as_u64().unwrap() == 2,
        "{result}"
    );
    let again = chain.copy(2, &other).ends_with(0).json().pop().unwrap();
    assert_eq!(
        (&again["objects"], &again["stored_bytes"]),
        (&0.into(), &0.into())
    );
    chain.hide();
    assert_eq!(listed(&other), chain.ids);
    // Its labels name the repository that it was made in.
    for id in &chain.ids {
        fullbore(args![
            "verify",
            format!("{}@{id}", other.display()),
            "--data"
        ])
        .ends_with(0);
    }
    chain.assert_restores(&other);
}

#[test]
fn a_cut_object_is_copied_again_and_a_lost_one_is_brought_back() {
    let chain = chain("zstd:1");
    let other = chain.other();
    chain.copy(2, &other).ends_with(0);
    let dir = other.join("backups").join(&chain.ids[0]);
    let mut names = names(&dir);
    let is_needed = |name: &String| name == "manifest" || name.contains(".tar.");
    names.retain(is_needed);
    fs::File::options()
        .write(true)
        .open(dir.join(&names[1]))
        .unwrap()
        .set_len(1000)
        .unwrap();
    fs::remove_file(dir.join(&names[0])).unwrap();
    let result = chain.copy(2, &other).ends_with(0).json().pop().unwrap();
    assert_eq!(result["objects"], 2);
    chain.assert_restores(&other);
}

#[test]
fn what_a_killed_copy_announced_stays_if_another_backup_needs_it() {
    let chain = chain("zstd:1");
    let other = chain.other();
    chain.copy(2, &other).ends_with(0);
    runs::write(
        other.join("intents").join(format!("{}.json", chain.ids[0])),
        "{}",
    );
    runs::write(
        other
            .join("backups")
            .join(&chain.ids[0])
            .join("manifest.partial"),
        "",
    );
    fullbore(args!["backup", chain.tree, "--to", other, "--quiet"]).ends_with(0);
    assert_eq!(names(&other.join("intents")), [""; 0]);
    chain.assert_restores(Path::new(&format!("{}@{}", other.display(), chain.ids[2])));
}

#[test]
fn what_is_being_pruned_is_not_relied_on() {
    let chain = chain("zstd:1");
    let other = chain.other();
    chain.copy(0, &other).ends_with(0);
    let mark = other
        .join("tombstones")
        .join(&chain.ids[0])
        .join("manifest");
    runs::write(&mark, "");
    chain
        .copy(2, &other)
        .ends_with(1)
        .has_one_error("is being pruned there");
    assert_eq!(
        (listed(&other), names(&other.join("intents"))),
        (chain.ids[..1].to_vec(), vec![])
    );
    assert_eq!(names(&other.join("backups")), chain.ids[..1]);
    fs::remove_file(mark).unwrap();
    chain.copy(2, &other).ends_with(0);
    assert!(
        !other
            .join("backups")
            .join(&chain.ids[2])
            .join("partial.json")
            .exists()
    );
    chain.assert_restores(&other);
}

#[test]
fn damage_in_the_original_is_not_copied() {
    let chain = chain("zstd:1");
    for (number, file) in [
        (0, "s01-000001.tar.zst"),
        (0, "manifest"),
        (2, "s01-000001.tar.zst"),
        (2, "manifest"),
    ] {
        let path = chain
            .repository
            .join("backups")
            .join(&chain.ids[number])
            .join(file);
        let bytes = fs::read(&path).unwrap();
        let mut bad = bytes.clone();
        bad[40] ^= 1;
        fs::write(&path, bad).unwrap();
        let other = chain.other();
        let ran = chain.copy(2, &other);
        // Of another manifest only the pages that are referred to are known.
        if (number, file) != (0, "manifest") {
            ran.ends_with(4).has_one_error("are damaged");
            assert_eq!(listed(&other), [""; 0]);
            assert_eq!(names(&other.join("backups")), [""; 0]);
        }
        fs::write(&path, bytes).unwrap();
        let _ = fs::remove_dir_all(&other);
    }
    fs::remove_file(
        chain
            .repository
            .join("backups")
            .join(&chain.ids[1])
            .join("s01-000001.tar.zst"),
    )
    .unwrap();
    chain
        .copy(2, &chain.other())
        .ends_with(4)
        .has_one_error("is missing");
}

#[test]
fn what_came_with_a_copy_goes_with_it() {
    let chain = chain("zstd:1");
    let other = chain.other();
    chain.copy(2, &other).ends_with(0);
    let forgotten = |index: usize| {
        other
            .join("backups")
            .join(&chain.ids[index])
            .join("forgotten.json")
            .exists()
    };
    assert_eq!(
        [forgotten(0), forgotten(1), forgotten(2)],
        [true, true, false]
    );
    let sampled = |repository: &Path| {
        let ran = fullbore(args!["verify", repository, "--sample", "100%", "--json"]).ends_with(0);
        ran.json()[0]["sampled"]["stored_bytes"].as_u64()
    };
    assert_eq!(sampled(&other), sampled(&chain.repository));
    fullbore(args!["prune", other]).ends_with(0);
    chain.assert_restores(&other);
    chain.copy(0, &other).ends_with(0);
    assert_eq!(
        [forgotten(0), forgotten(1), forgotten(2)],
        [false, true, false]
    );
    fullbore(args!["forget", "--yes", other, chain.ids[2]]).ends_with(0);
    fullbore(args!["verify", other]).ends_with(0);
    fullbore(args!["prune", other]).ends_with(0);
    assert_eq!(names(&other.join("backups")), chain.ids[..1]);
    fullbore(args!["verify", other, "--data"]).ends_with(0);
}

#[test]
fn what_follows_in_a_segment_of_a_backup_that_died_is_copied_too() {
    for document in ["partial.json", "forgotten.json"] {
        let chain = chain("zstd:1");
        let dir = chain.repository.join("backups").join(&chain.ids[0]);
        fs::rename(dir.join("root.json"), dir.join(document)).unwrap();
        let last = names(&dir)
            .into_iter()
            .rfind(|name| name.ends_with(".zst"))
            .unwrap();
        let mut bytes = fs::read(dir.join(&last)).unwrap();
        let known = bytes.len();
        bytes.extend(noise(7, 3_000_000));
        fs::write(dir.join(&last), &bytes).unwrap();
        fullbore(args!["verify", chain.repository, "--data"]).ends_with(0);
        let other = chain.other();
        chain.copy(2, &other).ends_with(0);
        let again = chain.copy(2, &other).ends_with(0).json().pop().unwrap();
        assert_eq!(again["objects"], 0, "{document}");
        fullbore(args!["verify", other, "--data"]).ends_with(0);
        fullbore(args!["verify", other, "--sample", "100%"]).ends_with(0);
        chain.assert_restores(&other);
        fs::write(dir.join(&last), &bytes[..known - 1000]).unwrap();
        chain
            .copy(2, &chain.dir.path().join("third"))
            .ends_with(4)
            .has_one_error("is damaged");
    }
}

#[test]
fn an_archive_cannot_be_copied_as_a_backup_of_a_repository() {
    let dir = temp();
    runs::write(dir.path().join("t/f"), "x");
    let file = dir.path().join("x.tar.zst");
    fullbore(args![
        "backup",
        dir.path().join("t"),
        "--to",
        file,
        "--quiet"
    ])
    .ends_with(0);
    let repository = dir.path().join("r");
    fullbore(args!["init", repository, "-q"]).ends_with(0);
    fullbore(args!["copy", file, repository])
        .ends_with(2)
        .has_one_error("that is a repository");
}

#[test]
fn killed_at_any_system_call_a_copy_leaves_nothing_listed_and_goes_on_later() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let chain = chain("zstd:1");
    let mut kills = 0;
    for calls in [
        "openat",
        "mkdir,mkdirat",
        "write,pwrite64",
        "fsync",
        "rename,renameat,renameat2",
        "unlink,unlinkat",
    ] {
        let other = chain.dir.path().join(calls);
        for when in (1..40).filter(|when| *when < 10 || when % 9 == 0) {
            let copy = args!["copy", chain.at(2), other, "--workers", "1", "--quiet"];
            let ran = tampered(&format!("{calls}:signal=KILL:when={when}"), None, copy);
            let listed = if other.join("fullbore-repo.json").exists() {
                listed(&other)
            } else {
                vec![]
            };
            if !listed.is_empty() {
                chain.assert_restores(&other);
                let _ = fs::remove_dir_all(&other);
            }
            if ran.code == 0 {
                break;
            }
            kills += 1;
        }
        chain.copy(2, &other).ends_with(0);
        chain.assert_restores(&other);
        // A backup takes what was left; it must leave what the copy refers to.
        fullbore(args!["backup", chain.tree, "--to", other, "--quiet"]).ends_with(0);
        assert_eq!(names(&other.join("intents")), [""; 0]);
        chain.assert_restores(Path::new(&format!("{}@{}", other.display(), chain.ids[2])));
    }
    assert!(kills > 20, "{kills}");
}

#[test]
fn what_was_repaired_in_the_copy_stays() {
    let (chain, dir) = (chain("zstd:1"), temp());
    let (other, back) = (chain.other(), dir.path().join("back"));
    chain.copy(0, &other).ends_with(0);
    let segment = other
        .join("backups")
        .join(&chain.ids[0])
        .join("s01-000001.tar.zst");
    let whole = fs::read(&segment).unwrap();
    fs::write(
        &segment,
        [&whole[..100_000], b"damage", &whole[100_006..]].concat(),
    )
    .unwrap();
    fullbore(args!["repair", other, "--data", "--yes"]).ends_with(0);
    let repaired = fs::read(chain.manifest(&other, 0)).unwrap();
    assert!(
        repaired.len()
            > fs::read(chain.manifest(&chain.repository, 0))
                .unwrap()
                .len()
    );
    for number in [0, 1, 2] {
        chain.copy(number, &other).ends_with(0);
        assert!(
            fs::read(chain.manifest(&other, 0)).unwrap() == repaired,
            "{number}"
        );
    }
    fullbore(args!["verify", other]).ends_with(0);
    let first = format!("{}@{}", other.display(), chain.ids[0]);
    fullbore(args!["restore", first, "--to", back, "--quiet"]).ends_with(3);
}

#[test]
fn what_was_repaired_in_the_original_is_copied() {
    let chain = chain("zstd:1");
    let other = chain.other();
    chain.copy(0, &other).ends_with(0);
    let segment = chain
        .repository
        .join("backups")
        .join(&chain.ids[1])
        .join("s01-000001.tar.zst");
    let whole = fs::read(&segment).unwrap();
    fs::write(
        &segment,
        [&whole[..2000], b"damage", &whole[2006..]].concat(),
    )
    .unwrap();
    chain.copy(1, &other).ends_with(4);
    fullbore(args!["repair", chain.repository, "--data", "--yes"]).ends_with(0);
    for number in [1, 2] {
        chain.copy(number, &other);
    }
    fullbore(args!["verify", other]).ends_with(0);
}

#[test]
fn a_manifest_that_is_another_there_is_neither_taken_nor_replaced() {
    let mut chain = chain("zstd:1");
    let other = chain.other();
    // Nothing changes any more: what the last two have is in the manifest of the one before.
    for turn in 3..6 {
        std::thread::sleep(std::time::Duration::from_millis(if turn == 3 {
            3100
        } else {
            10
        }));
        fullbore(args![
            "backup",
            chain.tree,
            "--to",
            chain.repository,
            "--quiet"
        ])
        .ends_with(0);
        chain.ids = listed(&chain.repository);
    }
    chain.copy(4, &other).ends_with(0);
    let manifest = chain.manifest(&other, 3);
    let mut bytes = fs::read(&manifest).unwrap();
    bytes[40] ^= 1;
    fs::write(&manifest, &bytes).unwrap();
    let ran = chain.copy(5, &other).ends_with(4);
    assert!(
        ran.err
            .contains("it differs from the object in this repository"),
        "{}",
        ran.err
    );
    assert!(fs::read(&manifest).unwrap() == bytes);
    assert_eq!(listed(&other), chain.ids[4..5]);
    fullbore(args!["repair", other, "--yes"]).ends_with(0);
    chain.copy(5, &other).ends_with(0);
    chain.assert_restores(&other);
}

#[test]
fn a_copy_that_was_cut_off_is_no_base() {
    let chain = chain("zstd:1");
    let other = chain.other();
    chain.copy(0, &other).ends_with(0);
    let copied = other.join("backups").join(&chain.ids[0]);
    fs::rename(copied.join("root.json"), copied.join("partial.json")).unwrap();
    fs::remove_file(copied.join("manifest")).unwrap();
    fullbore(args![
        "backup",
        chain.tree,
        "--to",
        other,
        "--frame-size",
        "64K",
        "--quiet"
    ])
    .ends_with(0);
    fullbore(args!["verify", other, "--data"]).ends_with(0);
    chain.assert_restores(&other);
}

#[test]
fn a_manifest_that_ends_too_early_is_damage() {
    let chain = chain("zstd:1");
    let manifest = chain.manifest(&chain.repository, 2);
    let bytes = fs::read(&manifest).unwrap();
    fs::write(&manifest, &bytes[..bytes.len() - 1]).unwrap();
    let ran = chain.copy(2, &chain.other()).ends_with(4);
    assert!(ran.err.contains("ends before a page"), "{}", ran.err);
}

#[test]
fn a_whole_segment_is_not_replaced_by_what_is_left_of_it_elsewhere() {
    let chain = chain("none");
    let other = chain.other();
    chain.copy(0, &other).ends_with(0);
    let home = chain.repository.join("backups").join(&chain.ids[0]);
    let segment = fs::File::options()
        .write(true)
        .open(home.join("s01-000001.tar.zst"))
        .unwrap();
    segment.set_len(40_000).unwrap();
    fs::remove_file(home.join("root.json")).unwrap();
    fullbore(args!["repair", chain.repository, "--data", "--yes"]);
    assert_ne!(chain.copy(0, &other).code, 0);
    fullbore(args!["verify", other, "--data"]).ends_with(0);
}

#[test]
fn a_damaged_root_of_the_copy_is_written_again() {
    let chain = chain("zstd");
    let other = chain.other();
    chain.copy(2, &other).ends_with(0);
    let root = other.join("backups").join(&chain.ids[2]).join("root.json");
    let whole = fs::read(&root).unwrap();
    let mut bytes = whole.clone();
    let offset = bytes.len() / 2;
    bytes[offset] ^= 1;
    fs::write(&root, bytes).unwrap();
    chain.copy(2, &other).ends_with(0);
    assert!(fs::read(&root).unwrap() == whole);
    chain.assert_restores(&other);
}

#[test]
fn damaged_notes_at_the_other_place_are_a_warning_once_the_copy_is_there() {
    let chain = chain("zstd:1");
    let other = chain.other();
    chain.copy(0, &other).ends_with(0);
    fullbore(args!["tag", chain.at(0), "a=1"]).ends_with(0);
    runs::write(
        other.join("backups").join(&chain.ids[0]).join("notes.json"),
        "{",
    );
    let again = chain.copy(0, &other).ends_with(0);
    assert!(
        again
            .err
            .contains("warning: could not copy the tags of the backup: "),
        "{}",
        again.err
    );
    assert_eq!(
        again.json().pop().unwrap()["warnings"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    fullbore(args![
        "restore",
        other,
        "--to",
        chain.dir.path().join("to"),
        "--quiet"
    ])
    .ends_with(0);
}

#[test]
fn a_segment_that_is_far_too_long_is_refused_before_it_is_cut_in_pieces() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    runs::write(tree.join("f"), "content");
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    let home = fs::read_dir(repository.join("backups"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let segment = fs::File::options()
        .write(true)
        .open(home.join("s01-000001.tar.zst"))
        .unwrap();
    segment.set_len(1 << 60).unwrap();
    let ran = fullbore(args!["copy", repository, dir.path().join("other")]).ends_with(4);
    ran.has_one_error("is damaged: it has 1152921504606846976 bytes");
}
