//! Restore drills: a backup is restored, its server recovers and answers, and nothing is left.

use super::{
    args,
    cluster::Cluster,
    runs::{Ran, fullbore, started},
    servers::{self, Version, wait_until},
};
use serde_json::Value;
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const SUMS: &str = "SELECT count(*), sum(n) FROM small;";

/// A cluster with a backup in `repo`, and a scratch directory for drills.
struct Drilled {
    cluster: Cluster,
}

impl Drilled {
    /// `later` are lines of the configuration that the server itself has not read yet, and that the backup has.
    fn new(version: &Version, later: &[&str]) -> Self {
        let cluster = Cluster::new(version, &[]);
        cluster.configure(later);
        cluster.backup("repo", &[]).ends_with(0);
        fs::create_dir(cluster.path("scratch")).unwrap();
        Self { cluster }
    }

    fn scratch(&self) -> PathBuf {
        self.cluster.path("scratch")
    }

    fn words(&self, more: &[&str]) -> Vec<OsString> {
        let program = self.cluster.version.program("postgres");
        let bin = program.parent().unwrap();
        let words = args![
            "drill",
            self.cluster.path("repo"),
            "--dir",
            self.scratch(),
            "--bindir",
            bin
        ];
        words
            .into_iter()
            .chain(more.iter().map(Into::into))
            .collect()
    }

    fn drill(&self, more: &[&str]) -> Ran {
        fullbore(self.words(more))
    }

    #[track_caller]
    fn assert_nothing_is_left(&self) {
        let left: Vec<_> = fs::read_dir(self.scratch()).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    /// The stored results, oldest first.
    fn stored(&self) -> Vec<Value> {
        let systems = self.cluster.path("repo").join("wal");
        let mut files: Vec<_> = fs::read_dir(systems)
            .into_iter()
            .flatten()
            .flatten()
            .flat_map(|system| fs::read_dir(system.path().join("drills")).unwrap())
            .map(|file| file.unwrap().path())
            .collect();
        files.sort();
        let read = |path: &PathBuf| serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        files.iter().map(read).collect()
    }
}

fn result(ran: &Ran) -> Value {
    let found = ran
        .json()
        .into_iter()
        .find(|object| object["type"] == "result");
    found.expect(&ran.err)
}

/// The oldest version and the newest.
fn both() -> impl Iterator<Item = Version> {
    [13, 18].into_iter().filter_map(servers::version)
}

#[test]
fn a_drill_passes_and_leaves_nothing() {
    for version in both() {
        let cluster = Drilled::new(&version, &[]);
        let metrics = cluster.cluster.path("drill.prom");
        let flags = [
            "--query",
            SUMS,
            "--json",
            "--metrics",
            metrics.to_str().unwrap(),
        ];
        let ran = cluster.drill(&flags).ends_with(0);
        let result = result(&ran);
        assert_eq!(result["rows"][0], "300\t45150", "{result}");
        assert_eq!(
            (&result["row_count"], &result["passed"]),
            (&1.into(), &true.into())
        );
        let server = result["server_version"].as_str().unwrap();
        assert!(server.starts_with(&version.major.to_string()), "{server}");
        for took in ["restore_seconds", "replay_seconds", "seconds_to_queries"] {
            assert!(result[took].as_f64().unwrap() > 0.0, "{took}");
        }
        cluster.assert_nothing_is_left();
        let stored = cluster.stored();
        assert_eq!(stored.len(), 1);
        assert_eq!(
            (&stored[0]["id"], &stored[0]["row_count"]),
            (&result["id"], &1.into())
        );
        let numbers = fs::read_to_string(metrics).unwrap();
        assert!(
            numbers.contains("fullbore_drill_last_success_timestamp_seconds{"),
            "{numbers}"
        );
        fullbore(args![
            "verify",
            cluster.cluster.path("repo"),
            "--data",
            "--quiet"
        ])
        .ends_with(0);
        let stats = fullbore(args!["stats", cluster.cluster.path("repo")]).ends_with(0);
        assert!(stats.out.contains("drill      passed "), "{}", stats.out);
        let ran = cluster.drill(&["--query", SUMS]).ends_with(0);
        for line in [
            "answer: 300 | 45150",
            "query: 1 row in ",
            "the drill passed: ",
        ] {
            assert!(ran.err.contains(line), "{line}\n{}", ran.err);
        }
        assert_eq!(cluster.stored().len(), 2);
    }
}

#[test]
fn the_server_of_a_drill_does_nothing_that_the_configuration_of_the_backup_says() {
    for version in both() {
        let place = tempfile::tempdir().unwrap();
        let mark = place.path().join("mark");
        let touch = format!("'touch {}'", mark.display());
        let source = Cluster::new(&version, &[]);
        let lines = [
            "shared_preload_libraries = 'missing_library'".to_owned(),
            format!("data_directory = '{}'", source.data().display()),
            "listen_addresses = '*'".to_owned(),
            "archive_mode = on".to_owned(),
            format!("archive_command = {touch}"),
            format!("recovery_end_command = {touch}"),
            format!("external_pid_file = '{}'", mark.display()),
            "synchronous_standby_names = 'nobody'".to_owned(),
            "include_if_exists '/etc/hosts'".to_owned(),
            "shared_buffers = '900GB'".to_owned(),
        ];
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let cluster = Drilled::new(&version, &lines);
        let sql = "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE name IN \
                   ('archive_mode', 'listen_addresses', 'shared_preload_libraries', 'max_logical_replication_workers')";
        let ran = cluster
            .drill(&["--query", sql, "--json", "--restore-command", "false"])
            .ends_with(0);
        let result = result(&ran);
        assert_eq!(
            result["rows"][0],
            "archive_mode=off listen_addresses= max_logical_replication_workers=0 shared_preload_libraries=",
        );
        let notes = result["notes"].to_string();
        assert!(notes.contains("left out: missing_library"), "{notes}");
        assert!(!mark.exists());
        cluster.assert_nothing_is_left();
        source.assert_has_content();
    }
}

#[test]
fn a_target_is_reached_or_the_drill_fails() {
    for version in both() {
        let cluster = Drilled::new(&version, &[]);
        let reached = ["--target-immediate", "--restore-command", "false", "--json"];
        let ran = cluster.drill(&reached).ends_with(0);
        assert_eq!(result(&ran)["reached"], "after reaching consistency");
        let beyond = ["--target-lsn", "FF/0", "--restore-command", "false"];
        cluster
            .drill(&beyond)
            .ends_with(1)
            .has_one_error("recovery ended before configured recovery target was reached");
        cluster.assert_nothing_is_left();
        let failed = &cluster.stored()[1];
        assert!(
            failed["error"].as_str().unwrap().contains("recovery ended"),
            "{failed}"
        );
    }
}

#[test]
fn a_query_that_fails_fails_the_drill() {
    let Some(version) = servers::version(18) else {
        return;
    };
    let cluster = Drilled::new(&version, &[]);
    cluster
        .drill(&["--query", "SELECT 1 / 0"])
        .ends_with(1)
        .has_one_error("division by zero");
    // Options that cannot be are no result of a drill.
    cluster.drill(&["--target-xid", "7"]).ends_with(2);
    assert_eq!(cluster.stored().len(), 1);
    cluster
        .drill(&["--database", "nosuch"])
        .ends_with(1)
        .has_one_error("database \"nosuch\"");
    cluster.assert_nothing_is_left();
}

/// Change a byte in the middle of the first segment.
fn damage(repository: &Path) {
    let found = Command::new("find")
        .arg(repository.join("backups"))
        .args(["-name", "s01-000001.*"])
        .output()
        .unwrap();
    let path = String::from_utf8(found.stdout).unwrap();
    let mut bytes = fs::read(path.trim()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64]
        .iter_mut()
        .for_each(|byte| *byte ^= 0x55);
    fs::write(path.trim(), bytes).unwrap();
}

#[test]
fn a_damaged_backup_fails_with_its_reason() {
    let Some(version) = servers::version(18) else {
        return;
    };
    let cluster = Drilled::new(&version, &[]);
    damage(&cluster.cluster.path("repo"));
    let ran = cluster.drill(&[]).ends_with(4);
    assert!(ran.err.contains("error: the drill failed: "), "{}", ran.err);
    cluster.assert_nothing_is_left();
    assert!(cluster.stored()[0]["error"].is_string());
}

#[test]
fn the_next_drill_removes_what_a_killed_one_left() {
    let Some(version) = servers::version(18) else {
        return;
    };
    let cluster = Drilled::new(&version, &[]);
    let mut child = started(cluster.words(&["--query", "SELECT pg_sleep(600)"]));
    let left = || {
        let tops = fs::read_dir(cluster.scratch()).unwrap().flatten();
        tops.map(|top| top.path().join("data/postmaster.pid"))
            .next()
    };
    let is_open = |path: PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains("ready"));
    wait_until("the server accepts queries", || left().is_some_and(is_open));
    let server = fs::read_to_string(left().unwrap()).unwrap();
    let server = PathBuf::from("/proc").join(server.lines().next().unwrap().trim());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(server.exists());
    cluster.drill(&["--query", SUMS]).ends_with(0);
    wait_until("the server of the killed drill ends", || !server.exists());
    cluster.assert_nothing_is_left();
}

#[test]
fn pg_amcheck_runs_where_it_is_installed() {
    let Some(version) = servers::version(15) else {
        return;
    };
    let cluster = Drilled::new(&version, &[]);
    let ran = cluster.drill(&["--json"]).ends_with(0);
    let result = result(&ran);
    assert_eq!(result["amcheck"], true, "{result}");
    cluster.assert_nothing_is_left();
}
