//! Backups that are chosen by a time, by their place before the latest, or by the letters of their ids.

use super::runs::{Ran, command, fullbore, noise, temp, write};
use super::{dated, dir, full, id, json, listed, prune};
use fullbore_format::{
    root::{ClusterInfo, Root},
    seal::seal,
};
use std::{ffi::OsString, fs, path::Path};

fn shown(repository: &Path, backup: &str, more: &[&str]) -> Ran {
    let selected = format!("{}@{backup}", repository.display());
    let mut words: Vec<OsString> = args!["show", selected, "--json"].to_vec();
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
    let first_id =
        |backup: &str| shown(repository, backup, &["--path", "/data"]).json()[0]["id"].clone();
    assert_eq!(first_id("2026-11-02"), json!(id(1)));
    assert_eq!(first_id("latest~1"), json!(id(1)));
    fs::remove_file(dir(repository, 2).join("root.json")).unwrap();
    shown(repository, "2026-11-02", &["--path", "/data"])
        .ends_with(4)
        .has_one_error("which may be the one");
    assert_eq!(first_id("2026-11-01"), json!(id(1)));
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
    let one = fullbore(args!["forget", "--yes", named]).ends_with(0);
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

/// A backup of the same source whose host had a wrong clock, or lied.
fn of_the_year_9999(repository: &Path) -> String {
    let id = "99991230T220000Z-rp0000".to_owned();
    let root = full(repository, 9, "/data");
    let there = repository.join("backups").join(&id);
    fs::rename(dir(repository, 9), &there).unwrap();
    let root = Root {
        id: id.clone(),
        time: "9999-12-30T22:00:00Z".into(),
        ..root
    };
    fs::write(there.join("root.json"), seal(&root).unwrap()).unwrap();
    id
}

#[test]
fn a_backup_of_the_future_is_listed_and_is_never_the_latest() {
    let dir_ = temp();
    let repository = dir_.path();
    let later = of_the_year_9999(repository);
    shown(repository, "latest", &[])
        .ends_with(1)
        .has_one_error("could not find a backup")
        .has_one_error(&format!("{later:?} is more than a day in the future"));
    (1..=3).for_each(|day| drop(full(repository, day, "/data")));
    for (backup, wanted) in [
        ("latest", id(3)),
        ("latest~1", id(2)),
        ("9999", later.clone()),
    ] {
        let said = shown(repository, backup, &[]).ends_with(0).json();
        assert_eq!(said[0]["id"], json!(wanted), "{backup}");
    }
    let metrics = fullbore(args!["list", repository, "--json"]).ends_with(0);
    assert_eq!(metrics.json().len(), 4);
    // It takes no place of the others, and no rule removes it.
    for rule in [["--keep-last", "2"], ["--keep-within", "12h"]] {
        let ran = fullbore(args![
            "forget", repository, rule[0], rule[1], "-n", "--json"
        ]);
        let kept = |line: &serde_json::Value| line["forgotten"] == json!(false);
        let lines = ran.ends_with(0).json();
        let kept: Vec<_> = lines.iter().filter(|line| kept(line)).collect();
        let ids: Vec<_> = kept.iter().map(|line| line["id"].clone()).collect();
        let wanted = match rule[1] {
            "2" => vec![json!(id(2)), json!(id(3)), json!(later)],
            _ => vec![json!(id(3)), json!(later)],
        };
        assert_eq!(ids, wanted, "{rule:?}");
        assert_eq!(kept.last().unwrap()["reasons"], json!(["in the future"]));
    }
    fullbore(args!["forget", repository, &later]).ends_with(0);
    prune(repository);
    assert_eq!(listed(repository), [1, 2, 3]);
}

#[test]
fn a_cluster_that_another_host_claims_pushes_no_backup_out() {
    let dir_ = temp();
    let repository = dir_.path();
    for (day, host) in [(1, "db1"), (2, "db1"), (3, "web1")] {
        let mut root = full(repository, day, "/data");
        root.source.host = host.into();
        root.postgres = Some(ClusterInfo {
            system_identifier: "7".into(),
            ..ClusterInfo::default()
        });
        dated(repository, root, day, "/data");
    }
    fullbore(args!["forget", repository, "--keep-last", "1"]).ends_with(0);
    assert_eq!(listed(repository), [2, 3]);
}

#[test]
fn a_prune_removes_probes_and_unknown_names_of_backups_without_a_root() {
    let dir_ = temp();
    let repository = dir_.path();
    (1..=2).for_each(|day| drop(full(repository, day, "/data")));
    let probe = repository.join("probes/left");
    fs::create_dir_all(probe.parent().unwrap()).unwrap();
    fs::write(&probe, "first").unwrap();
    let odd = dir(repository, 5).join("anything");
    fs::create_dir_all(dir(repository, 5)).unwrap();
    for file in [
        &odd,
        &dir(repository, 1).join("copy"),
        &dir(repository, 2).join("copy"),
    ] {
        fs::write(file, "x").unwrap();
    }
    fullbore(args!["forget", repository, id(1)]).ends_with(0);
    prune(repository);
    assert!(!probe.exists() && !odd.exists() && !dir(repository, 1).join("copy").exists());
    assert!(
        dir(repository, 2).join("copy").exists(),
        "it is beside a root"
    );
    let left = fs::read_dir(repository.join("tombstones")).map_or(0, Iterator::count);
    assert_eq!(left, 0);
}

#[test]
fn a_root_that_is_none_ends_a_prune_with_the_way_on() {
    let dir_ = temp();
    let repository = dir_.path();
    (1..=2).for_each(|day| drop(full(repository, day, "/data")));
    fs::write(dir(repository, 1).join("root.json"), "no root at all").unwrap();
    let ran = fullbore(args!["prune", repository]).ends_with(4);
    assert!(
        ran.err.contains(&id(1)) && ran.err.contains("fullbore forget"),
        "{}",
        ran.err
    );
    assert!(dir(repository, 1).join("s01-000001.tar.zst").exists());
    fullbore(args!["forget", repository, id(1)]).ends_with(0);
    prune(repository);
    assert!(!dir(repository, 1).join("s01-000001.tar.zst").exists());
}

#[test]
fn forget_takes_a_day_only_if_exactly_one_backup_is_of_it() {
    let dir = temp();
    write(dir.path().join("t/a"), "a");
    let [tree, repository] = ["t", "r"].map(|name| dir.path().join(name));
    let backup = || fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    backup();
    let ids = || {
        let listed = fullbore(args!["list", repository, "--json"])
            .ends_with(0)
            .json();
        let id = |backup: &serde_json::Value| backup["id"].as_str().unwrap().to_owned();
        listed.iter().map(id).collect::<Vec<_>>()
    };
    // The newest backup before that day is of another day.
    for word in ["2099-01-31", "2001-01-31", "2099-01-31T10:00"] {
        fullbore(args!["forget", "--yes", repository, word])
            .ends_with(1)
            .has_one_error("could not find a backup of");
        fullbore(args!["pin", format!("{}@{word}", repository.display())]).ends_with(1);
    }
    fullbore(args!["forget", "--yes", repository, "0d"]).ends_with(2);
    backup();
    let both = ids();
    let today = both[0][..8].to_owned();
    let today = format!("{}-{}-{}", &today[..4], &today[4..6], &today[6..]);
    let mut command = command(args!["forget", repository, today]);
    let ran: Ran = command.env("TZ", "UTC").output().unwrap().into();
    if both[0][..8] == both[1][..8] {
        ran.ends_with(2).has_one_error("2 backups are of");
    }
    assert_eq!(ids(), both);
    // The last one of a source needs --yes.
    fullbore(args!["forget", repository, both[0], both[1]])
        .ends_with(2)
        .has_one_error("without --yes");
    assert_eq!(ids(), both);
    fullbore(args!["forget", repository, both[0]]).ends_with(0);
    fullbore(args!["forget", repository, "latest"]).ends_with(2);
    fullbore(args!["forget", repository, "latest", "--yes"]).ends_with(0);
    assert!(ids().is_empty());
}

#[test]
fn a_forgotten_backup_is_listed_again_until_it_is_pruned() {
    let dir = temp();
    write(dir.path().join("t/a"), noise(1, 100_000));
    let [tree, repository, back] = ["t", "r", "back"].map(|name| dir.path().join(name));
    let backup = || fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    backup();
    write(dir.path().join("t/b"), noise(2, 100_000));
    backup();
    let listed = fullbore(args!["list", repository, "--json"])
        .ends_with(0)
        .out;
    let json = fullbore(args!["list", repository, "--json"]).json();
    let [first, second] = [0, 1].map(|index| json[index]["id"].as_str().unwrap().to_owned());
    let undo = |id: &str| fullbore(args!["forget", repository, "--undo", id]);
    undo(&first)
        .ends_with(1)
        .has_one_error("could not find a forgotten backup");
    fullbore(args!["forget", "--yes", repository, first, second]).ends_with(0);
    undo(&first).ends_with(0);
    undo(&second[..16]).ends_with(0);
    assert_eq!(fullbore(args!["list", repository, "--json"]).out, listed);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    fullbore(args!["prune", repository]).ends_with(0);
    fullbore(args!["restore", repository, "--to", back]).ends_with(0);
    fullbore(args!["forget", "--yes", repository, second]).ends_with(0);
    fullbore(args!["prune", repository]).ends_with(0);
    undo(&second).ends_with(1);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
}

#[test]
fn find_and_diff_take_paths_as_they_are_on_the_host() {
    let dir = temp();
    write(dir.path().join("t/app/app.conf"), "one");
    let [tree, repository] = ["t", "r"].map(|name| dir.path().join(name));
    let backup = || fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    backup();
    write(dir.path().join("t/app/app.conf"), "another");
    backup();
    for pattern in [
        tree.join("app/app.conf").into_os_string(),
        tree.join("app/*.conf").into_os_string(),
        "./app/app.conf".into(),
    ] {
        let found = fullbore(args!["find", repository, pattern])
            .ends_with(0)
            .out;
        assert_eq!(found.matches("app/app.conf").count(), 2, "{found}");
    }
    let json = fullbore(args!["list", repository, "--json"]).json();
    let first = json[0]["id"].as_str().unwrap().to_owned();
    let path = tree.join("app/app.conf");
    let changed = fullbore(args!["diff", repository, first, "latest", path])
        .ends_with(0)
        .out;
    assert!(changed.contains("app/app.conf"), "{changed}");
}

#[test]
fn a_url_that_chooses_a_backup_is_no_place_for_a_new_one() {
    let dir = temp();
    write(dir.path().join("t/a"), "a");
    let tree = dir.path().join("t");
    for place in [
        "s3://bucket/at@x",
        "ssh://host/at@x",
        "s3://bucket/r@latest",
    ] {
        fullbore(args!["backup", tree, "--to", place])
            .ends_with(2)
            .has_one_error("chooses a backup");
        fullbore(args!["init", place]).ends_with(2);
    }
    // A directory of this machine is looked at.
    let selected = dir.path().join("at@x");
    fullbore(args!["backup", tree, "--to", selected]).ends_with(0);
    fullbore(args!["list", selected]).ends_with(0);
    fullbore(args!["show", format!("{}@latest", selected.display())]).ends_with(0);
}
