//! Work that is divided between processes: all shares together are everything, and nothing is done twice.

use crate::runs::{self, Ran, args, fullbore, has, names, noise, or_skip, started, temp, write};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const CONTRIB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib");
const SHARES: usize = 5;

/// Makes two backups of each host, which share content: the second refers to the first.
fn fill(repository: &Path, hosts: usize) {
    let source = repository.with_extension("source");
    for turn in 0..2u64 {
        for host in 0..hosts as u64 {
            for file in 0..4 {
                let seed = if file == 0 {
                    host + 100 * turn
                } else {
                    host + 1000 * file
                };
                write(source.join(format!("{file}")), noise(seed, 300_000));
            }
            let host = format!("web{host}");
            fullbore(args![
                "backup",
                source,
                "--to",
                repository,
                "-q",
                "--host",
                host,
                "--segment-size",
                "1M"
            ])
            .ends_with(0);
        }
    }
}

/// Runs all shares at once.
fn in_shares(words: &[&str]) -> Vec<Ran> {
    let children = (1..=SHARES).map(|share| {
        let mut words = args(words);
        words.extend(args(["--json", "--shard", &format!("{share}/{SHARES}")]));
        started(words)
    });
    let children: Vec<_> = children.collect();
    children
        .into_iter()
        .map(|child| child.wait_with_output().unwrap().into())
        .collect()
}

fn result(ran: &Ran) -> serde_json::Value {
    ran.json().pop().unwrap()
}

fn verified_share(repository: &Path) -> f64 {
    let stats = fullbore(args!["stats", repository, "--json"]).ends_with(0);
    result(&stats)["verified_share"].as_f64().unwrap()
}

/// The segments of all backups, oldest first.
fn all_segments(repository: &Path) -> Vec<PathBuf> {
    let backups = repository.join("backups");
    let ids = names(&backups).into_iter();
    let of_backup = |id: String| {
        let dir = backups.join(id);
        let files = names(&dir).into_iter();
        let files = files.filter(|name| name.ends_with(".zst"));
        files.map(|name| dir.join(name)).collect::<Vec<_>>()
    };
    ids.flat_map(of_backup).collect()
}

#[test]
fn shares_of_a_verification_count_together_and_check_nothing_twice() {
    let dir = temp();
    let repository = dir.path().join("r");
    fill(&repository, 6);
    let name = repository.to_str().unwrap();
    let one = fullbore(args([
        "verify", name, "--sample", "100%", "--shard", "1/5", "--json",
    ]))
    .ends_with(0);
    let share = verified_share(&repository);
    assert!(share > 0.0 && share < 1.0, "{share}");
    fs::remove_file(repository.join("verify.json")).unwrap();
    let ran = in_shares(&["verify", name, "--sample", "100%"]);
    let bytes = |ran: &Ran| result(ran)["sampled"]["checked_bytes"].as_u64().unwrap();
    assert_eq!(bytes(&ran[0]), bytes(&one));
    let all: u64 = ran.iter().map(bytes).sum();
    let whole = fullbore(args(["verify", name, "--sample", "100%", "--json"])).ends_with(0);
    assert_eq!(all, bytes(&whole));
    fs::remove_file(repository.join("verify.json")).unwrap();
    for (number, ran) in in_shares(&["verify", name, "--data"])
        .into_iter()
        .enumerate()
    {
        let ran = ran.ends_with(0);
        assert_eq!(result(&ran)["shard"], format!("{}/{SHARES}", number + 1));
    }
    let one = fullbore(args(["verify", name, "--data", "--shard", "2/5"])).ends_with(0);
    let said = format!("{}{}", one.out, one.err);
    assert!(
        said.contains("are sound: share 2 of 5 of the data, and the structure of"),
        "{said}"
    );
    assert!(!said.contains("every byte"), "{said}");
    assert_eq!(verified_share(&repository), 1.0);
}

#[test]
fn damage_is_found_by_one_share_and_remembered_until_that_share_is_sound() {
    let dir = temp();
    let repository = dir.path().join("r");
    fill(&repository, 6);
    let name = repository.to_str().unwrap();
    let bad = &all_segments(&repository)[2];
    let sound = fs::read(bad).unwrap();
    let mut bytes = sound.clone();
    // In the content of a file.
    let place = bytes.len() / 3;
    bytes[place] ^= 1;
    fs::write(bad, bytes).unwrap();
    let codes = || {
        in_shares(&["verify", name, "--data"])
            .iter()
            .map(|ran| ran.code)
            .collect::<Vec<_>>()
    };
    let found = codes();
    assert_eq!(
        found.iter().filter(|code| **code == 4).count(),
        1,
        "{found:?}"
    );
    assert_eq!(
        found.iter().filter(|code| **code == 0).count(),
        SHARES - 1,
        "{found:?}"
    );
    let damaged = || {
        let list = fullbore(args(["list", name, "--json"])).ends_with(0).json();
        list.iter()
            .filter(|line| !line["lost_files"].is_null())
            .count()
    };
    let backups_with_damage = damaged();
    assert!(backups_with_damage > 0);
    // Other shares do not clear it.
    let share = found.iter().position(|code| *code == 4).unwrap();
    let other = format!("{}/{SHARES}", (share + 1) % SHARES + 1);
    fullbore(args(["verify", name, "--data", "--shard", &other])).ends_with(0);
    assert_eq!(damaged(), backups_with_damage);
    fs::write(bad, sound).unwrap();
    assert_eq!(codes(), [0; SHARES]);
    assert_eq!(damaged(), 0);
}

#[test]
fn shares_of_a_sync_copy_each_object_once_into_a_repository_that_they_make() {
    let dir = temp();
    let [repository, once, shared] = ["r", "once", "shared"].map(|name| dir.path().join(name));
    fill(&repository, 6);
    let whole = fullbore(args!["sync", repository, once, "--json"]).ends_with(0);
    let [from, to] = [&repository, &shared].map(|path| path.to_str().unwrap());
    let ran = in_shares(&["sync", from, to]);
    let mut copied = BTreeSet::new();
    let mut objects = 0;
    for ran in ran {
        let result = result(&ran.ends_with(0));
        objects += result["objects"].as_u64().unwrap();
        for backup in result["copied"].as_array().unwrap() {
            assert!(
                copied.insert(backup["id"].as_str().unwrap().to_owned()),
                "twice"
            );
        }
    }
    assert_eq!(
        copied.into_iter().collect::<Vec<_>>(),
        names(&repository.join("backups"))
    );
    assert_eq!(Some(objects), result(&whole)["objects"].as_u64());
    fullbore(args!["verify", shared, "--data"]).ends_with(0);
    fullbore(args!["sync", repository, shared, "-n", "--json"]).ends_with(0);
    for id in names(&repository.join("backups")) {
        let files = |repository: &Path| names(&repository.join("backups").join(&id));
        assert_eq!(files(&shared), files(&once));
    }
}

#[test]
fn a_share_needs_data_and_must_exist() {
    let dir = temp();
    let repository = dir.path().join("r");
    fill(&repository, 1);
    let name = repository.to_str().unwrap();
    fullbore(args(["verify", name, "--shard", "1/2"]))
        .ends_with(2)
        .has_one_error("--shard divides the data");
    for bad in ["0/2", "3/2", "x"] {
        fullbore(args(["verify", name, "--data", "--shard", bad])).ends_with(2);
    }
}

/// Runs a program of `contrib` with `fullbore` in its PATH.
fn contributed(line: &str, dir: &Path, variables: &[(&str, String)]) -> Ran {
    let bin = dir.join("bin");
    if !bin.exists() {
        fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(runs::FULLBORE, bin.join("fullbore")).unwrap();
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("PATH", path);
    command.env("FULLBORE_STATE_DIR", runs::state_dir());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.output().unwrap().into()
}

#[test]
fn an_array_of_slurm_checks_and_restores_everything() {
    let dir = temp();
    let repository = dir.path().join("r");
    fill(&repository, 4);
    let restored = dir.path().join("restored");
    fs::create_dir(&restored).unwrap();
    let variables = |task: usize| {
        [
            ("FULLBORE_REPOSITORY", repository.display().to_string()),
            ("RESTORE_TO", restored.display().to_string()),
            ("SLURM_ARRAY_TASK_ID", task.to_string()),
            ("SLURM_ARRAY_TASK_MAX", "3".to_owned()),
        ]
    };
    for task in 1..=3 {
        contributed(
            &format!("{CONTRIB}/slurm/fullbore-verify.sbatch"),
            dir.path(),
            &variables(task),
        )
        .ends_with(0);
    }
    assert_eq!(verified_share(&repository), 1.0);
    if !or_skip(has("jq"), "there is no jq") {
        return;
    }
    for task in 1..=3 {
        contributed(
            &format!("{CONTRIB}/slurm/fullbore-restore.sbatch"),
            dir.path(),
            &variables(task),
        )
        .ends_with(0);
    }
    let ids = names(&repository.join("backups"));
    assert_eq!(names(&restored), ids[4..]);
    let file: Vec<PathBuf> = fs::read_dir(restored.join(&ids[7]))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(!file.is_empty());
}

#[test]
fn an_indexed_job_of_kubernetes_checks_everything() {
    let dir = temp();
    let repository = dir.path().join("r");
    fill(&repository, 4);
    let job = fs::read_to_string(format!("{CONTRIB}/kubernetes/verify-indexed.yaml")).unwrap();
    let line = job
        .lines()
        .find_map(|line| line.trim().strip_prefix("- exec "))
        .unwrap();
    for index in 0..8 {
        let variables = [
            ("FULLBORE_REPOSITORY", repository.display().to_string()),
            ("JOB_COMPLETION_INDEX", index.to_string()),
            ("SHARES", "8".to_owned()),
        ];
        contributed(line, dir.path(), &variables).ends_with(0);
    }
    assert_eq!(verified_share(&repository), 1.0);
    let completions = job
        .lines()
        .find_map(|line| line.trim().strip_prefix("completions: "))
        .unwrap();
    assert!(job.contains(&format!("name: SHARES, value: \"{completions}\"")));
}

#[test]
fn gnu_parallel_divides_and_tells_the_worst_exit_code() {
    if !or_skip(has("parallel"), "there is no GNU parallel") {
        return;
    }
    let dir = temp();
    let repository = dir.path().join("r");
    fill(&repository, 4);
    let line = format!(
        "{CONTRIB}/parallel/fullbore-shards 3 verify {} --data",
        repository.display()
    );
    contributed(&line, dir.path(), &[]).ends_with(0);
    assert_eq!(verified_share(&repository), 1.0);
    let bad = &all_segments(&repository)[0];
    let mut bytes = fs::read(bad).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(bad, bytes).unwrap();
    contributed(&line, dir.path(), &[]).ends_with(4);
}
