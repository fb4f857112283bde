//! A repository on a full disk, and on a file system that does not sync directories.

use crate::runs::{self, Mount, fullbore, has, names, noise, or_skip, shell, temp};
use std::{fs, path::Path};

/// Two backups of a tree, of which the second stores all data anew; then no block is free.
fn fill(place: &Path, tree: &Path) -> std::path::PathBuf {
    let repository = place.join("repository");
    for seed in [1, 2] {
        runs::write(tree.join("f"), noise(seed, 2_000_000));
        fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    }
    let fill = "dd if=/dev/zero of=\"$1/a\" bs=64k; dd if=/dev/zero of=\"$1/b\" bs=1k; true";
    shell(&format!("({fill}) 2>/dev/null"), args![place]);
    repository
}

fn ids(repository: &Path) -> Vec<String> {
    let listed = fullbore(args!["list", repository, "--json"])
        .ends_with(0)
        .json();
    let id = |line: serde_json::Value| line["id"].as_str().unwrap().to_owned();
    listed.into_iter().map(id).collect()
}

#[test]
fn forget_and_prune_free_a_disk_that_has_no_block_left() {
    let dir = temp();
    let place = dir.path().join("place");
    let Some(_mount) = Mount::tmpfs(&place, "8m") else {
        return;
    };
    let repository = fill(&place, &dir.path().join("tree"));
    assert!(fs::write(place.join("c"), [1; 4096]).is_err(), "it is full");
    fullbore(args!["forget", repository, "--keep-last", "1", "--prune"]).ends_with(0);
    assert_eq!(ids(&repository).len(), 1);
    assert!(fs::write(place.join("c"), vec![1; 1_500_000]).is_ok());
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
}

#[test]
fn a_pinned_backup_is_unpinned_and_forgotten_on_a_full_disk() {
    let dir = temp();
    let place = dir.path().join("place");
    let Some(_mount) = Mount::tmpfs(&place, "8m") else {
        return;
    };
    let tree = dir.path().join("tree");
    runs::write(tree.join("g"), "first");
    fullbore(args!["backup", tree, "--to", place.join("repository")]).ends_with(0);
    let repository = place.join("repository");
    let first = ids(&repository).remove(0);
    let selected = format!("{}@{first}", repository.display());
    fullbore(args!["pin", selected]).ends_with(0);
    fill(&place, &tree);
    fullbore(args!["unpin", selected]).ends_with(0);
    fullbore(args!["forget", repository, first]).ends_with(0);
    fullbore(args!["prune", repository]).ends_with(0);
    assert_eq!(ids(&repository).len(), 2);
}

#[test]
fn directories_that_cannot_be_synced_are_warned_of_once_and_the_backup_is_made() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    runs::write(tree.join("f"), noise(1, 5000));
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    runs::write(tree.join("f"), noise(2, 5000));
    let line = "exec strace -f -qq -o \"$1\" -P \"$2\" -P \"$2/intents\" -P \"$2/backups\" -e trace=fsync \
                -e inject=fsync:error=EINVAL \"${@:3}\"";
    let log = dir.path().join("log");
    let words = args![
        log,
        repository,
        runs::FULLBORE,
        "backup",
        tree,
        "--to",
        repository
    ];
    let ran = shell(line, words).ends_with(0);
    assert!(fs::read_to_string(log).unwrap().contains("EINVAL"));
    assert_eq!(
        ran.err.matches("cannot sync directories").count(),
        1,
        "{}",
        ran.err
    );
    assert_eq!(ids(&repository).len(), 2);
    assert_eq!(names(&repository.join("intents")), [""; 0]);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
}

#[test]
fn a_tag_has_one_value() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    runs::write(tree.join("f"), "f");
    let twice = ["-t", "env=prod", "-t", "env=test"];
    fullbore(
        args!["backup", tree, "--to", repository]
            .into_iter()
            .chain(twice.map(Into::into)),
    )
    .ends_with(2)
    .has_one_error("cannot give the tag \"env\" two values, \"prod\" and \"test\"");
    assert!(!repository.exists());
    let same = ["-q", "-t", "env=prod", "-t", "env=prod"];
    fullbore(
        args!["backup", tree, "--to", repository]
            .into_iter()
            .chain(same.map(Into::into)),
    )
    .ends_with(0);
    fullbore(args!["tag", repository, "env=a", "env=b"])
        .ends_with(2)
        .has_one_error("two values");
}
