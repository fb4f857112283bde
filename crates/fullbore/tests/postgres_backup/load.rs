//! A cluster that works while it is backed up.

use super::{
    args,
    cluster::{Cluster, debian, some_versions, versions},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

/// pgbench, until it is dropped.
pub(super) struct Load(Child);

impl Load {
    /// None if there is no pgbench.
    pub(super) fn of(cluster: &Cluster) -> Option<Self> {
        let pgbench = |flags: &[&str]| {
            let mut command = super::servers::as_postgres(debian()?.program("pgbench"));
            command
                .args(["-h", cluster.path("").to_str()?, "-U", "postgres", "-n"])
                .args(flags)
                .arg("postgres");
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            Some(command)
        };
        assert!(pgbench(&["-i", "-q"])?.status().unwrap().success());
        Some(Self(pgbench(&["-c", "2", "-T", "600"])?.spawn().unwrap()))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// pgbench adds the same number to four tables in each transaction.
const SUMS: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches), \
    (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)";
const TRANSACTIONS: &str = "SELECT count(*) FROM pgbench_history";

/// The transactions that were committed.
pub(super) fn transactions(cluster: &Cluster) -> u64 {
    cluster.psql(TRANSACTIONS).parse().unwrap()
}

#[track_caller]
pub(super) fn assert_balanced(cluster: &Cluster, before: u64, after: u64) {
    let sums = cluster.psql(SUMS);
    let mut parts = sums.split('|');
    let first = parts.next().unwrap();
    assert!(parts.all(|sum| sum == first), "{sums}");
    let done: u64 = cluster.psql(TRANSACTIONS).parse().unwrap();
    assert!(
        (before..=after).contains(&done),
        "{done} transactions, there were {before} to {after}"
    );
}

#[test]
fn a_backup_under_load_restores_starts_and_is_consistent() {
    for version in versions() {
        let cluster = Cluster::new(version, &[]);
        let Some(load) = Load::of(&cluster) else {
            return;
        };
        thread::sleep(Duration::from_millis(500));
        let before = cluster.psql(TRANSACTIONS).parse().unwrap();
        let repository = cluster.path("repository");
        cluster.backup("repository", &[]).ends_with(0);
        let after = cluster.psql(TRANSACTIONS).parse().unwrap();
        drop(load);
        cluster.assert_nothing_is_left();
        let restored = Cluster::restored(version, &repository);
        assert_manifest_is_of(&restored);
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
        assert_balanced(&restored, before, after);
        restored.stop("fast");
        assert_checksums_are_right(&restored);
    }
}

/// `backup_manifest` names all files but WAL and itself, and nothing else.
#[track_caller]
fn assert_manifest_is_of(restored: &Cluster) {
    let manifest: Value =
        serde_json::from_slice(&fs::read(restored.data().join("backup_manifest")).unwrap())
            .unwrap();
    let file = |file: &Value| {
        (
            file["Path"].as_str().unwrap().to_owned(),
            file["Size"].as_u64().unwrap(),
        )
    };
    let listed: BTreeMap<_, _> = manifest["Files"]
        .as_array()
        .unwrap()
        .iter()
        .map(file)
        .collect();
    let found = super::runs::shell(
        "cd \"$1\" && find . -type f -printf '%s %P\\n'",
        args![restored.data()],
    );
    let there = found.out.lines().map(|line| line.split_once(' ').unwrap());
    let there = there.map(|(size, path)| (path.to_owned(), size.parse().unwrap()));
    let there: BTreeMap<_, u64> = there
        .filter(|(path, _)| !path.starts_with("pg_wal/") && path != "backup_manifest")
        .collect();
    assert_eq!(listed, there);
    assert_eq!(manifest["WAL-Ranges"].as_array().unwrap().len(), 1);
}

#[track_caller]
fn assert_checksums_are_right(stopped: &Cluster) {
    let Some(debian) = debian().filter(|debian| debian.major == stopped.version.major) else {
        return;
    };
    let done = super::servers::as_postgres(debian.program("pg_checksums"))
        .arg("-D")
        .arg(stopped.data())
        .output();
    let done = done.unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn without_its_label_a_restored_cluster_does_not_start() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let restored = Cluster::restored(version, &cluster.path("repository"));
        fs::remove_file(restored.data().join("backup_label")).unwrap();
        assert!(!restored.starts(), "{}", restored.log());
        assert!(restored.log().contains("checkpoint"), "{}", restored.log());
    }
}
