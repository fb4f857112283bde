//! Damage that a verification found is remembered: backups store the data again, lists show it, and repair speaks of it.

use crate::runs::{self, assert_same, fullbore, noise, segments, shape, temp};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A backup of a small file, a large one and 20 MB that nothing happens to, with a flipped byte in the small file.
struct Damaged {
    dir: tempfile::TempDir,
    tree: PathBuf,
    repository: PathBuf,
}

impl Damaged {
    fn new() -> Self {
        let dir = temp();
        let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
        runs::write(tree.join("a"), noise(1, 200_000));
        runs::write(tree.join("b"), noise(2, 20_000_000));
        runs::write(tree.join("c"), noise(3, 300_000));
        let this = Self {
            dir,
            tree,
            repository,
        };
        this.backup().ends_with(0);
        flip(&segments(&this.repository)[0], 100_000);
        this
    }

    fn backup(&self) -> runs::Ran {
        let words = args![
            "backup",
            self.tree,
            "--to",
            self.repository,
            "--compress",
            "none"
        ];
        fullbore(words.into_iter().chain(["--json".into()]))
    }

    fn verified(self) -> Self {
        fullbore(args!["verify", self.repository, "--data"]).ends_with(4);
        self
    }

    fn list(&self) -> Vec<serde_json::Value> {
        fullbore(args!["list", self.repository, "--json"])
            .ends_with(0)
            .json()
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn stored(ran: &runs::Ran) -> u64 {
    ran.json().pop().unwrap()["stored_bytes"].as_u64().unwrap()
}

#[test]
fn the_next_backup_stores_again_what_verify_found_damaged_and_refers_to_the_rest() {
    let damaged = Damaged::new();
    let unaware = damaged.backup().ends_with(0);
    assert!(stored(&unaware) < 50_000, "{}", unaware.out);
    let damaged = damaged.verified();
    let ran = damaged.backup().ends_with(0);
    assert!(
        ran.out.contains("found damage in segment"),
        "{} {}",
        ran.out,
        ran.err
    );
    // The part of 8 MiB around the damage, and no more than the blocks that it touches.
    let bytes = stored(&ran);
    assert!((200_000..9_500_000).contains(&bytes), "{bytes}");
    let back = damaged.dir.path().join("back");
    fullbore(args![
        "restore",
        damaged.repository,
        "--to",
        back,
        "--quiet"
    ])
    .ends_with(0);
    assert_same(&shape(&damaged.tree), &shape(&back), "the new backup");
    let again = damaged.backup().ends_with(0);
    assert!(stored(&again) < 50_000, "{}", again.out);
    assert!(!again.out.contains("found damage"), "{}", again.out);
}

#[test]
fn lists_and_statistics_show_damage_until_it_is_repaired() {
    let damaged = Damaged::new();
    assert!(damaged.list()[0]["lost_files"].is_null());
    let damaged = damaged.verified();
    assert_eq!(damaged.list()[0]["lost_files"], 1);
    let list = fullbore(args!["list", damaged.repository]).ends_with(0).out;
    assert!(list.contains("damaged, 1 file lost"), "{list}");
    let stats = fullbore(args!["stats", damaged.repository])
        .ends_with(0)
        .out;
    assert!(stats.contains("\ndamaged "), "{stats}");
    let checked = fullbore(args!["repair", damaged.repository]).ends_with(4);
    assert!(
        checked.err.contains("the structure is whole") && checked.err.contains("--data"),
        "{}",
        checked.err
    );
    fullbore(args!["repair", damaged.repository, "--data", "--yes"]).ends_with(0);
    assert!(damaged.list()[0]["lost_files"].is_null());
    let checked = fullbore(args!["repair", damaged.repository]).ends_with(0);
    assert!(
        checked.err.contains("damaged data is found only by --data"),
        "{}",
        checked.err
    );
}

#[test]
fn repair_names_the_backup_that_has_the_content_of_a_lost_file() {
    let damaged = Damaged::new();
    let other = damaged.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::copy(damaged.tree.join("a"), other.join("copy of a")).unwrap();
    fullbore(args![
        "backup",
        other,
        "--to",
        damaged.repository,
        "--quiet"
    ])
    .ends_with(0);
    let plan = fullbore(args!["repair", damaged.repository, "--data"]).ends_with(4);
    assert!(
        plan.out
            .contains("no copy that this backup refers to is intact"),
        "{}",
        plan.out
    );
    assert!(
        plan.out.contains("has the same content, as \"copy of a\""),
        "{}",
        plan.out
    );
    let alone = Damaged::new();
    let plan = fullbore(args!["repair", alone.repository, "--data"]).ends_with(4);
    assert!(plan.out.contains("no intact copy is left"), "{}", plan.out);
}

/// Two backups that share nothing: the first is damaged in a small file, which has another name, in a large one, and in a file that the
/// second one has with other content.
#[test]
fn repair_takes_the_content_of_lost_files_from_another_backup_of_the_source() {
    let damaged = Damaged::new();
    fs::hard_link(damaged.tree.join("a"), damaged.tree.join("name of a")).unwrap();
    fs::remove_dir_all(&damaged.repository).unwrap();
    damaged.backup().ends_with(0);
    let segment = segments(&damaged.repository).pop().unwrap();
    fs::write(damaged.tree.join("c"), noise(4, 300_000)).unwrap();
    let words = args!["backup", damaged.tree, "--to", damaged.repository, "--full"];
    fullbore(words.into_iter().chain(args!["--compress", "none"])).ends_with(0);
    for index in [100_000, 12_000_000, 20_400_000] {
        flip(&segment, index);
    }
    let plan = fullbore(args!["repair", damaged.repository, "--data"]).ends_with(4);
    for words in [
        "take the content of 2 files",
        "has the same content, as \"a\"",
        "mark 1 file",
    ] {
        assert!(plan.out.contains(words), "{words}: {}", plan.out);
    }
    fullbore(args!["repair", damaged.repository, "--data", "--yes"]).ends_with(0);
    fullbore(args!["repair", damaged.repository, "--data"]).ends_with(0);
    // The first backup keeps what it refers to when the second one is gone.
    let ids = damaged
        .list()
        .into_iter()
        .map(|backup| backup["id"].as_str().unwrap().to_owned());
    let latest = ids.max().unwrap();
    fullbore(args!["forget", damaged.repository, latest, "--prune"]).ends_with(0);
    let back = damaged.dir.path().join("back");
    let restore = args!["restore", damaged.repository, "--to", back, "--quiet"];
    fullbore(restore).ends_with(3);
    assert!(!back.join("c").exists());
    for (name, number, bytes) in [
        ("a", 1, 200_000),
        ("name of a", 1, 200_000),
        ("b", 2, 20_000_000),
    ] {
        assert!(
            fs::read(back.join(name)).unwrap() == noise(number, bytes),
            "{name}"
        );
    }
}

/// Another source is named, because its host may not have the rights of this one. So is a backup with another codec.
#[test]
fn repair_refers_to_no_backup_of_another_codec() {
    let damaged = Damaged::new();
    let words = args![
        "backup",
        damaged.tree,
        "--to",
        damaged.repository,
        "--compress",
        "zstd"
    ];
    fullbore(words).ends_with(0);
    let plan = fullbore(args!["repair", damaged.repository, "--data"]).ends_with(4);
    assert!(
        plan.out.contains("mark 1 file") && plan.out.contains("has the same content"),
        "{}",
        plan.out
    );
}

/// A document that anybody may write makes a backup store more, and nothing else.
#[test]
fn a_memory_of_verifications_that_is_damaged_or_lies_costs_only_space() {
    let damaged = Damaged::new();
    let memory = damaged.repository.join("verify.json");
    for text in ["", "{", "{\"format\":1,\"segments\":[]}"] {
        fs::write(&memory, text).unwrap();
        damaged.backup().ends_with(0);
        damaged.list();
    }
    assert!(Path::new(&memory).exists());
}
