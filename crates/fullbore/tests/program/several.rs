//! A backup to several repositories: each of them gets it, or fails by itself.

use crate::runs::{
    self, Ran, assert_same, fed, fullbore, has, names, noise, or_skip, shape, tampered, temp, text,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self { dir: temp() };
        for number in 0..3 {
            let file = world.tree().join(format!("large{number}"));
            runs::write(file, noise(number, 900_000));
        }
        world.change(0);
        world
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn change(&self, turn: u64) {
        for i in (0..20).filter(|i| turn == 0 || i % 7 == turn % 7) {
            runs::write(
                self.tree().join(format!("d/{i:02}")),
                text(i + 100 * turn, 9000),
            );
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn args(&self, to: &[&str]) -> Vec<std::ffi::OsString> {
        let mut args = args!["backup", self.tree(), "--segment-size", "1M", "--json"].to_vec();
        for name in to {
            args.extend(args!["--to", self.path(name)]);
        }
        args
    }

    fn backup(&self, to: &[&str]) -> Ran {
        fullbore(self.args(to))
    }

    fn assert_all_restore(&self, names: &[&str]) {
        names.iter().for_each(|name| self.assert_restores(name));
    }

    fn assert_restores(&self, name: &str) {
        let dir = temp();
        let back = dir.path().join("back");
        fullbore(args!["restore", self.path(name), "--to", back, "--quiet"]).ends_with(0);
        assert_same(&shape(&self.tree()), &shape(&back), name);
        fullbore(args!["verify", self.path(name), "--data", "-q"]).ends_with(0);
        assert_eq!(names(&self.path(name).join("intents")), [""; 0], "{name}");
    }
}

fn result(ran: Ran) -> serde_json::Value {
    ran.json().pop().unwrap()
}

/// Names and bytes of all objects of a backup.
fn objects(repository: &Path, id: &str) -> Vec<(String, Vec<u8>)> {
    let dir = repository.join("backups").join(id);
    let files = names(&dir).into_iter();
    files
        .map(|name| (name.clone(), fs::read(dir.join(&name)).unwrap()))
        .collect()
}

#[test]
fn each_repository_gets_the_same_objects_and_backups_go_on_in_each() {
    let world = World::new();
    let first = result(world.backup(&["a", "b", "c"]).ends_with(0));
    let ends = first["destinations"].as_array().unwrap();
    assert_eq!(ends.len(), 3);
    for (end, name) in ends.iter().zip(["a", "b", "c"]) {
        assert_eq!(end["exit_code"], 0);
        assert_eq!(end["new_repository"], true);
        assert_eq!(end["to"], world.path(name).to_str().unwrap());
    }
    let id = first["id"].as_str().unwrap();
    assert_eq!(objects(&world.path("a"), id), objects(&world.path("b"), id));
    assert_eq!(objects(&world.path("a"), id), objects(&world.path("c"), id));
    world.assert_all_restore(&["a", "b", "c"]);
    world.change(1);
    let second = result(world.backup(&["b", "a"]).ends_with(0));
    assert_eq!(second["bases"], serde_json::json!([id]));
    let copied = second["destinations"].as_array().unwrap();
    assert!(
        copied.iter().all(|end| end["copied_bytes"] == 0),
        "{second}"
    );
    world.assert_all_restore(&["a", "b"]);
    // And each alone.
    world.change(2);
    for name in ["a", "b"] {
        let alone = result(world.backup(&[name]).ends_with(0));
        assert_eq!(alone["bases"][0], second["id"]);
        assert!(alone.get("destinations").is_none());
        world.assert_restores(name);
    }
}

#[test]
fn one_repository_alone_gives_the_same_segments() {
    let world = World::new();
    let several = result(world.backup(&["a", "b"]).ends_with(0));
    let alone = result(world.backup(&["alone"]).ends_with(0));
    let segments = |name: &str, result: &serde_json::Value| {
        let all = objects(&world.path(name), result["id"].as_str().unwrap());
        let stored = all.into_iter().filter(|(name, _)| name.starts_with('s'));
        stored
            .map(|(name, bytes)| (name, bytes.len()))
            .collect::<Vec<_>>()
    };
    // Labels have the id, which differs.
    assert_eq!(segments("a", &several), segments("alone", &alone));
}

#[test]
fn a_repository_without_the_base_gets_it_from_the_other_one() {
    let world = World::new();
    let first = result(world.backup(&["a"]).ends_with(0));
    world.change(1);
    let second = result(world.backup(&["a", "b"]).ends_with(0));
    assert_eq!(second["bases"][0], first["id"]);
    assert!(second["destinations"][1]["copied_bytes"].as_u64().unwrap() > 2_000_000);
    world.assert_all_restore(&["a", "b"]);
    // The copy of the base is not listed, and the next backup needs no copy.
    let rows = fullbore(args!["list", world.path("b"), "--json"]).ends_with(0);
    assert_eq!(rows.json().len(), 1);
    world.change(2);
    let third = result(world.backup(&["a", "b"]).ends_with(0));
    assert_eq!(third["destinations"][1]["copied_bytes"], 0);
    world.assert_all_restore(&["a", "b"]);
    // The first has nothing: the backup is a full one, and the second one goes on with it.
    world.change(3);
    let fourth = result(world.backup(&["new", "a"]).ends_with(0));
    assert_eq!(fourth["bases"], serde_json::json!([]));
    world.assert_all_restore(&["new", "a"]);
}

#[test]
fn standard_input_is_stored_in_each() {
    let world = World::new();
    let input = noise(7, 3_000_000);
    let args = args![
        "backup",
        "--stdin-name",
        "dump",
        "--to",
        world.path("a"),
        "--to",
        world.path("b"),
        "--segment-size",
        "1M"
    ];
    assert!(fed(args, &input).status.success());
    for name in ["a", "b"] {
        let out = runs::command(args!["cat", world.path(name), "dump"])
            .output()
            .unwrap();
        assert!(out.stdout == input, "{name}");
    }
}

#[test]
fn what_is_no_set_of_repositories_is_refused() {
    let world = World::new();
    for (to, words) in [
        (vec!["a", "a"], "twice"),
        (vec!["a", "x.tar.zst"], "no repository"),
        (vec!["x.tar.zst", "a"], "no repository"),
        (
            vec!["1", "2", "3", "4", "5", "6", "7", "8", "9"],
            "there can be 8",
        ),
    ] {
        world.backup(&to).ends_with(2).has_one_error(words);
    }
    assert!(!world.path("a").exists() && !world.path("x.tar.zst").exists());
    let far = args![
        "backup",
        "ssh://h/srv",
        "--to",
        world.path("a"),
        "--to",
        world.path("b")
    ];
    fullbore(far).ends_with(2).has_one_error("on another host");
}

#[test]
fn a_full_destination_harms_no_other_whatever_its_place() {
    let world = World::new();
    let Some(_mounted) = runs::Mount::tmpfs(&world.path("small"), "1200k") else {
        return;
    };
    for order in [["small/r", "a"], ["b", "small/r"]] {
        let ran = world.backup(&order).ends_with(1);
        assert!(ran.err.contains("lacks the backup"), "{}", ran.err);
        assert!(ran.err.contains("no space left"), "{}", ran.err);
        let ends = result(ran)["destinations"].clone();
        let codes: Vec<_> = order
            .iter()
            .enumerate()
            .map(|(index, _)| ends[index]["exit_code"].as_u64().unwrap())
            .collect();
        let expected = order.map(|name| u64::from(name == "small/r"));
        assert_eq!(codes, expected);
        let good = order.iter().find(|name| **name != "small/r").unwrap();
        world.assert_restores(good);
        // It has its room back.
        let left = runs::shell("find \"$1\" -name 's0*'", args![world.path("small")]);
        assert_eq!(left.out, "");
    }
}

#[test]
fn a_destination_that_cannot_be_opened_harms_no_other() {
    let world = World::new();
    fs::write(world.path("file"), "").unwrap();
    for order in [["a", "file/repo"], ["file/repo", "b"], ["c", "none/repo"]] {
        let ran = world.backup(&order).ends_with(1);
        let good = order.iter().find(|name| name.len() == 1).unwrap();
        assert!(ran.err.contains("lacks the backup"), "{}", ran.err);
        world.assert_restores(good);
    }
    // If none is left, it is one error.
    world
        .backup(&["file/x", "file/y"])
        .ends_with(1)
        .has_one_error("could not");
}

#[test]
fn a_disk_that_is_full_after_any_number_of_bytes_harms_no_other() {
    let world = World::new();
    let mut failures = 0;
    for kib in [
        4, 40, 300, 700, 1000, 1500, 2000, 2400, 2600, 2700, 2760, 4000,
    ] {
        let name = format!("disk{kib}");
        let Some(_mounted) = runs::Mount::tmpfs(&world.path(&name), &format!("{kib}k")) else {
            return;
        };
        let (bad, good) = (format!("{name}/r"), format!("good{kib}"));
        let ran = match kib % 3 {
            0 => world.backup(&[&bad, &good]),
            _ => world.backup(&[&good, &bad]),
        };
        assert!(matches!(ran.code, 0 | 1), "{kib}: {}", ran.err);
        world.assert_restores(&good);
        failures += ran.code;
        if ran.code == 0 {
            world.assert_restores(&bad);
        }
    }
    assert!((3..12).contains(&failures), "{failures}");
}

#[test]
fn killed_at_any_system_call_each_repository_lists_whole_backups_only_and_the_next_run_works() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let world = World::new();
    for (calls, most) in [
        ("openat", 30),
        ("write,pwrite64", 30),
        ("fsync", 12),
        ("link,linkat,rename,renameat,renameat2", 6),
        ("flock", 4),
        ("unlink,unlinkat", 4),
    ] {
        let places = [format!("a-{calls}"), format!("b-{calls}")];
        let to: Vec<&str> = places.iter().map(String::as_str).collect();
        let mut kills = 0;
        for when in 1..=most {
            if when > 8 && when % 5 != 0 {
                continue;
            }
            let inject = format!("{calls}:signal=KILL:when={when}");
            let ran = tampered(&inject, None, world.args(&to));
            for name in &to {
                let repository = world.path(name);
                if repository.join("fullbore-repo.json").exists() {
                    let rows = fullbore(args!["list", repository, "--json"]).ends_with(0);
                    assert!(rows.json().iter().all(|row| row["complete"] == true));
                    if !rows.out.is_empty() {
                        let dir = temp();
                        let back = dir.path().join("back");
                        fullbore(args!["restore", repository, "--to", back, "-q"]).ends_with(0);
                        assert_same(&shape(&world.tree()), &shape(&back), calls);
                    }
                }
            }
            if ran.code == 0 {
                break;
            }
            kills += 1;
        }
        assert!(kills > 0, "{calls} is never called");
        world.backup(&to).ends_with(0);
        for name in &to {
            world.assert_restores(name);
        }
    }
}

#[test]
fn a_profile_names_several_repositories() {
    let world = World::new();
    let [a, b] = ["a", "b"].map(|name| world.path(name));
    for repository in [&a, &b] {
        fullbore(args!["init", repository]).ends_with(0);
    }
    let profile = world.path("p.toml");
    let text = format!(
        "repositories = ['{}', '{}']\nsources = '{}'\n[forget]\nkeep-last = 2\n",
        a.display(),
        b.display(),
        world.tree().display()
    );
    runs::write_private(&profile, text);
    for turn in 1..4 {
        world.change(turn);
        let ran = fullbore(args!["run", "--config", profile, "--json"]).ends_with(0);
        let steps: Vec<_> = ran
            .json()
            .iter()
            .filter(|line| line["type"] == "step")
            .map(|line| line["step"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            steps,
            [
                "backup", "forget", "forget", "prune", "prune", "verify", "verify"
            ]
        );
    }
    for name in ["a", "b"] {
        let rows = fullbore(args!["list", world.path(name), "--json"]).ends_with(0);
        assert_eq!(rows.json().len(), 2, "{name}");
        world.assert_restores(name);
    }
    // The command line names another place, and only that one.
    let other = world.path("other");
    fullbore(args!["backup", "--config", profile, "--to", other, "-q"]).ends_with(0);
    world.assert_restores("other");
    let rows = fullbore(args!["list", b, "--json"]).ends_with(0);
    assert_eq!(rows.json().len(), 2);
    let both = format!("repository = 'x'\nrepositories = ['{}']\n", a.display());
    runs::write_private(&profile, both);
    fullbore(args!["list", "--config", profile])
        .ends_with(2)
        .has_one_error("cannot use \"repository\" and \"repositories\"");
}
