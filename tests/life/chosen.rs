//! Backups that are chosen by a time, by their place before the latest, or by the letters of their ids.

use super::{dir, full, id, json, prune};
use crate::{
    args,
    runs::{Ran, command, fullbore, temp},
};
use std::{ffi::OsString, fs, path::Path};

fn shown(repository: &Path, backup: &str, more: &[&str]) -> Ran {
    let from = format!("{}@{backup}", repository.display());
    let mut words: Vec<OsString> = args!["show", from, "--json"].to_vec();
    words.extend(more.iter().map(OsString::from));
    command(words).env("TZ", "UTC").output().unwrap().into()
}

#[test]
fn a_time_or_a_count_chooses_a_backup() {
    let dir_ = temp();
    let repository = dir_.path();
    (1..=4).for_each(|day| drop(full(repository, day, "/data")));
    for (backup, day) in [
        ("2026-11-02", 2),
        ("2026-11-02T05:45", 2),
        ("2026-11-02T05:44", 1),
        ("2026-11-02T05:45:01Z", 2),
        ("2026-11-02 05:45:00", 1),
        ("latest", 4),
        ("latest~0", 4),
        ("latest~3", 1),
        ("20261103", 3),
    ] {
        let said = shown(repository, backup, &[]).ends_with(0).json();
        assert_eq!(said[0]["id"], json!(id(day)), "{backup}");
    }
    shown(repository, "2026-10-31", &[])
        .ends_with(1)
        .has_one_error("could not find a backup of 2026-10-31 23:59:59 +00:00 or before");
    shown(repository, "latest~4", &[])
        .ends_with(1)
        .has_one_error("could not find so many backups");
    // All ids end in the same letters.
    shown(repository, "k3f", &[])
        .ends_with(2)
        .has_one_error("is ambiguous");
}

#[test]
fn a_time_means_one_source_and_a_root_that_is_lost_may_be_the_one() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    full(repository, 2, "/other");
    full(repository, 3, "/data");
    shown(repository, "2026-11-02", &[])
        .ends_with(2)
        .has_one_error("has backups of 2 sources");
    let of = |backup: &str| shown(repository, backup, &["--path", "/data"]).json()[0]["id"].clone();
    assert_eq!(of("2026-11-02"), json!(id(1)));
    assert_eq!(of("latest~1"), json!(id(1)));
    fs::remove_file(dir(repository, 2).join("root.json")).unwrap();
    shown(repository, "2026-11-02", &["--path", "/data"])
        .ends_with(4)
        .has_one_error("which may be the one");
    assert_eq!(of("2026-11-01"), json!(id(1)));
}

#[test]
fn forget_tells_what_a_prune_frees_and_may_prune_itself() {
    let dir_ = temp();
    let repository = dir_.path();
    (1..=3).for_each(|day| drop(full(repository, day, "/data")));
    let dry = fullbore(args!["forget", repository, "--keep-last", "1", "-n"]).ends_with(0);
    assert!(
        dry.out.contains("`fullbore prune` would then free"),
        "{}",
        dry.out
    );
    assert!(dir(repository, 1).join("root.json").exists());
    let named = format!("{}@{}", repository.display(), id(1));
    let one = fullbore(args!["forget", named]).ends_with(0);
    let amount = |out: &str, before: &str| {
        let rest = out.split(before).nth(1).unwrap_or_else(|| panic!("{out}"));
        rest.split(" in ").next().unwrap().to_owned()
    };
    let freeable = amount(&one.out, "`fullbore prune` frees ");
    let pruned = fullbore(args!["prune", repository]).ends_with(0);
    assert_eq!(
        amount(pruned.out.lines().last().unwrap(), "freed "),
        freeable
    );
    let both = fullbore(args!["forget", repository, "--keep-last", "1", "--prune"]).ends_with(0);
    assert!(both.out.contains("\nfreed "), "{}", both.out);
    assert_eq!(super::listed(repository), [3]);
    assert!(!dir(repository, 2).exists() || prune(repository).out.contains("freed 0 B"));
    fullbore(args!["forget", repository, "--keep-last", "1", id(3)]).ends_with(2);
}
