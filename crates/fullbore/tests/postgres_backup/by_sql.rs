//! Clusters whose files are read by SQL.

use super::{
    args,
    cluster::{Cluster, debian, some_versions, versions},
    load::{Load, assert_balanced, transactions},
    runs::{Ran, fullbore},
    standby::{catch_up, standby_of},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread::{self, sleep},
    time::Duration,
};

const BY_SQL: &[&str] = &["--via", "sql", "--quiet"];

/// Files that differ from backup to backup.
pub(super) const OF_THE_BACKUP: [&str; 4] = [
    "backup_label",
    "backup_manifest",
    "tablespace_map",
    "global/pg_control",
];

/// Paths, sizes and digests of the files of a backup, but for those of the backup itself.
pub(super) fn files(repository: &Path) -> BTreeMap<String, (u64, String)> {
    let shown = repository.display().to_string();
    let backup = match shown.contains('@') {
        true => shown,
        false => format!("{shown}@latest"),
    };
    let lines = fullbore(args!["list", backup, "--json"]).json();
    let entry = |line: &Value| {
        let path = line["path"].as_str()?.to_owned();
        let is_own = OF_THE_BACKUP.contains(&&*path) || path.starts_with("pg_wal/");
        let digest = line["digest"].as_str().unwrap_or_default().to_owned();
        let size = line["size"].as_u64().unwrap_or_default();
        (!is_own).then_some((path, (size, digest)))
    };
    lines.iter().filter_map(entry).collect()
}

pub(super) fn last_line(ran: &Ran) -> Value {
    ran.json().pop().unwrap()
}

/// A quiet cluster gives the same files this way as from its directory, and they start.
pub(super) fn assert_same_as_files(via: &str) {
    for version in versions() {
        let cluster = Cluster::new(version, &[]);
        let space = cluster.make_dir("space");
        cluster.psql(&format!(
            "CREATE TABLESPACE space LOCATION '{}'",
            space.display()
        ));
        cluster.psql_each(&[
            "CREATE TABLE elsewhere TABLESPACE space AS SELECT n FROM generate_series(1, 500) n",
            "CREATE UNLOGGED TABLE unlogged AS SELECT n FROM generate_series(1, 500) n",
            "VACUUM", // sets all hints, so that the backups themselves change no page
            "CHECKPOINT",
        ]);
        cluster.backup("files", &["--quiet"]).ends_with(0);
        let ran = cluster
            .backup("there", &["--via", via, "--json"])
            .ends_with(0);
        let facts = &last_line(&ran)["postgres"];
        assert_eq!(facts["via"], via);
        assert_eq!(facts["via_reason"], "--via says so");
        cluster.assert_nothing_is_left();
        let repository = cluster.path("there");
        let there = files(&repository);
        assert!(there.len() > 300, "{there:?}");
        assert_eq!(there, files(&cluster.path("files")));
        fullbore(args!["verify", repository, "--data", "--quiet"]).ends_with(0);
        let restored = Cluster::restored(version, &repository);
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
        let sums = "SELECT count(*), sum(n) FROM elsewhere";
        assert_eq!(restored.psql(sums), "500|125250");
        assert_eq!(restored.psql("SELECT count(*) FROM unlogged"), "0");
    }
}

/// Two backups of a cluster under load, the second on the base of the first, are consistent.
pub(super) fn assert_consistent_under_load(way: &[&str]) {
    for version in versions() {
        let cluster = Cluster::new(version, &[]);
        let Some(load) = Load::of(&cluster) else {
            return;
        };
        sleep(Duration::from_millis(500));
        cluster.backup("repository", way).ends_with(0);
        let before = transactions(&cluster);
        cluster.backup("repository", way).ends_with(0);
        let after = transactions(&cluster);
        drop(load);
        cluster.assert_nothing_is_left();
        let repository = cluster.path("repository");
        fullbore(args!["verify", repository, "--data", "--quiet"]).ends_with(0);
        let restored = Cluster::restored(version, &repository);
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
        assert_balanced(&restored, before, after);
    }
}

/// A standby gives a backup in this way that starts as a primary.
pub(super) fn assert_standby_starts_as_a_primary(way: &[&str]) {
    for version in some_versions() {
        let primary = Cluster::new(version, &["wal_keep_size = 64MB"]);
        let standby = standby_of(&primary);
        primary.psql_each(&[
            "CREATE TABLE after AS SELECT n FROM generate_series(1, 5000) n",
            "CHECKPOINT",
        ]);
        catch_up(&primary, &standby);
        standby.backup("repository", way).ends_with(0);
        let repository = standby.path("repository");
        let root = fullbore(args!["show", repository, "--json"])
            .json()
            .remove(0)["root"]
            .take();
        let restored = Cluster::restored(version, &repository);
        restored.assert_verifies();
        assert!(!restored.data().join("standby.signal").exists());
        restored.start();
        restored.assert_has_content();
        assert_eq!(restored.psql("SELECT count(*) FROM after"), "5000");
        assert_eq!(root["postgres"]["standby"], true);
    }
}

#[test]
fn a_standby_is_read_by_sql_and_starts_as_a_primary() {
    assert_standby_starts_as_a_primary(BY_SQL);
}

#[test]
fn a_cluster_read_by_sql_has_the_same_files_and_starts() {
    assert_same_as_files("sql");
}

#[test]
fn a_cluster_that_works_is_consistent_when_it_was_read_by_sql() {
    assert_consistent_under_load(BY_SQL);
}

/// Write these bytes into a page of a file; returns the bytes that were there.
pub(super) fn damage(file: &Path, page: u64, bytes: &[u8]) -> Vec<u8> {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let offset = page * 8192 + 4000;
    let mut before = vec![0; bytes.len()];
    file.read_exact_at(&mut before, offset).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    before
}

#[test]
fn blocks_that_did_not_change_are_not_asked_for() {
    for version in versions().iter().filter(|version| version.major >= 17) {
        let cluster = Cluster::new(version, &["summarize_wal = on"]);
        cluster.psql("CHECKPOINT");
        cluster.backup("repository", BY_SQL).ends_with(0);
        cluster.psql_each(&["UPDATE large SET words = 'new' WHERE n = 7", "CHECKPOINT"]);
        // A page that is read has a wrong checksum: the exit code would be 3.
        let file_of = |relation: &str| cluster.data().join(cluster.file_of(relation));
        let places = [(file_of("large"), 700), (file_of("small"), 1)];
        let before = places
            .clone()
            .map(|(file, page)| damage(&file, page, b"damaged"));
        cluster.backup("repository", BY_SQL).ends_with(0);
        for ((file, page), bytes) in places.iter().zip(before) {
            damage(file, *page, &bytes);
        }
        let restored = Cluster::restored(version, &cluster.path("repository"));
        restored.assert_verifies();
        restored.start();
        let sums = "SELECT count(*), md5(string_agg(words, '' ORDER BY n)) FROM large";
        assert_eq!(restored.psql(sums), cluster.psql(sums));
        assert_eq!(restored.psql("SELECT count(*) FROM small"), "300");
    }
}

/// Statements that make, replace, truncate and drop files.
const STORM: [&str; 7] = [
    "CREATE TABLE storm AS SELECT n, repeat('x', 100) AS word FROM generate_series(1, 3000) n",
    "CREATE INDEX ON storm (n)",
    "VACUUM FULL storm",
    "TRUNCATE storm",
    "INSERT INTO storm SELECT n, 'y' FROM generate_series(1, 3000) n",
    "REINDEX TABLE small",
    "DROP TABLE storm",
];

#[test]
fn files_that_come_and_go_while_they_are_read_by_sql_do_no_harm() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = cluster.client();
                while !is_over.load(Relaxed) {
                    for sql in STORM {
                        client.batch_execute(sql).unwrap();
                    }
                }
            });
            for _ in 0..3 {
                cluster.backup("repository", BY_SQL).ends_with(0);
            }
            is_over.store(true, Relaxed);
        });
        let restored = Cluster::restored(version, &cluster.path("repository"));
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
    }
}

#[test]
fn a_server_that_logs_every_statement_is_named() {
    let Some(version) = debian() else { return };
    for (line, setting) in [
        ("log_statement = all", Some("log_statement = all")),
        (
            "log_min_duration_statement = 0",
            Some("log_min_duration_statement = 0"),
        ),
        ("log_duration = on", Some("log_duration = on")),
        ("log_statement = mod", None),
    ] {
        let cluster = Cluster::new(version, &[line]);
        let ran = cluster.backup("repository", &["--via", "sql"]).ends_with(0);
        let warning = "warning: the server logs every statement";
        assert_eq!(ran.err.contains(warning), setting.is_some(), "{}", ran.err);
        assert!(ran.err.contains(setting.unwrap_or_default()), "{}", ran.err);
        let by_files = cluster.backup("repository", &[]).ends_with(0);
        assert!(!by_files.err.contains(warning), "{}", by_files.err);
    }
}
