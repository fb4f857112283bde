//! Clusters that the server sends by the replication protocol.

use super::{
    args,
    by_sql::{
        OF_THE_BACKUP, assert_consistent_under_load, assert_same_as_files,
        assert_standby_starts_as_a_primary, damage, files, last_line,
    },
    cluster::{Cluster, debian, some_versions, versions},
    runs::fullbore,
    servers::Version,
    slow_line::SlowLine,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread::{self, sleep},
    time::Duration,
};

const BY_PROTOCOL: &[&str] = &["--via", "protocol", "--quiet"];

#[test]
fn a_cluster_that_is_sent_has_the_same_files_and_starts() {
    assert_same_as_files("protocol");
}

#[test]
fn a_cluster_that_works_is_consistent_when_it_was_sent() {
    assert_consistent_under_load(BY_PROTOCOL);
}

#[test]
fn a_second_backup_that_is_sent_stores_only_blocks_that_changed() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.psql_each(&["VACUUM", "CHECKPOINT"]);
        cluster.backup("repository", BY_PROTOCOL).ends_with(0);
        cluster.psql_each(&["UPDATE large SET words = 'new' WHERE n = 7", "CHECKPOINT"]);
        let ran = cluster
            .backup("repository", &["--via", "protocol", "--json"])
            .ends_with(0);
        let line = last_line(&ran);
        let bytes = |name: &str| line[name].as_u64().unwrap_or_default();
        assert!(bytes("kept_bytes") > bytes("bytes") / 2, "{line}");
        // One of these may be the base of the other.
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.backup("repository", BY_PROTOCOL).ends_with(0);
        let restored = Cluster::restored(version, &cluster.path("repository"));
        restored.assert_verifies();
        restored.start();
        let sums = "SELECT count(*), md5(string_agg(words, '' ORDER BY n)) FROM large";
        assert_eq!(restored.psql(sums), cluster.psql(sums));
    }
}

/// The files of a restored cluster with their bytes, but for those of the backup itself.
fn contents(data: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut waiting = vec![data.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(data).unwrap().to_owned();
            if path.is_dir() {
                waiting.push(path);
            } else if !OF_THE_BACKUP.iter().any(|own| name == Path::new(own))
                && !name.starts_with("pg_wal")
            {
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    assert!(files.len() > 300);
    files
}

/// The bytes of the cluster that a backup over a line received, and its last line.
fn received(cluster: &Cluster, more: &[&str]) -> (u64, Value) {
    let line = SlowLine::to(&cluster.path(".s.PGSQL.5432"), Duration::ZERO, u64::MAX);
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", line.port);
    let to = cluster.path("repository");
    let backup = args!["backup", url, "--to", to, "--via", "protocol", "--json"];
    let ran = fullbore(backup.into_iter().chain(more.iter().map(Into::into))).ends_with(0);
    (line.received.load(Relaxed), last_line(&ran))
}

/// Versions that send changed blocks.
fn incremental_versions() -> impl Iterator<Item = &'static Version> {
    versions().iter().filter(|version| version.major >= 17)
}

#[test]
fn only_changed_blocks_are_sent_and_the_backup_is_as_a_full_one() {
    for version in incremental_versions() {
        let cluster = Cluster::new(version, &["summarize_wal = on"]);
        let space = cluster.make_dir("space");
        let tablespace = format!("CREATE TABLESPACE space LOCATION '{}'", space.display());
        cluster.psql_each(&[
            &tablespace,
            "CREATE TABLE elsewhere TABLESPACE space AS SELECT n, repeat('x', 500) AS word FROM generate_series(1, 9000) n",
            "CREATE TABLE cut AS SELECT n, repeat('x', 500) AS word FROM generate_series(1, 9000) n",
            "CREATE TABLE made_anew AS SELECT n FROM generate_series(1, 9000) n",
            "CREATE TABLE emptied AS SELECT n FROM generate_series(1, 9000) n",
            "VACUUM",
            "CHECKPOINT",
        ]);
        let (all, _) = received(&cluster, &[]);
        cluster.psql_each(&[
            "UPDATE large SET words = 'new' WHERE n % 9000 = 7",
            "UPDATE elsewhere SET word = 'new' WHERE n = 5000",
            "INSERT INTO small SELECT n, 'more' FROM generate_series(301, 900) n",
            "DELETE FROM cut WHERE n > 5000",
            "TRUNCATE emptied",
            "VACUUM (TRUNCATE) cut",
            "VACUUM FULL made_anew",
            "CREATE TABLE grown AS SELECT n FROM generate_series(1, 300) n",
            "CREATE DATABASE another",
            "VACUUM",
            "CHECKPOINT",
        ]);
        let (changed, report) = received(&cluster, &[]);
        assert_eq!(report["warnings"], Value::Array(Vec::new()), "{report}");
        assert!(changed < all * 3 / 4, "{changed} of {all}");
        // The same files as those of a full backup, byte for byte.
        let repository = cluster.path("repository");
        let restored_files = |backup: &str| {
            let to = cluster.path(backup);
            let from = format!("{}@latest", repository.display());
            let spaces = cluster.path(&format!("{backup}_spaces"));
            let restore = args![
                "restore",
                from,
                "--to",
                to,
                "--tablespaces-under",
                spaces,
                "--quiet"
            ];
            fullbore(restore).ends_with(0);
            contents(&to)
        };
        fullbore(args!["verify", repository, "--data", "--quiet"]).ends_with(0);
        let incremental = restored_files("incremental");
        received(&cluster, &["--full"]);
        assert_eq!(incremental, restored_files("full"));
        let restored = Cluster::restored(version, &repository);
        restored.assert_verifies();
        restored.start();
        for table in [
            "large",
            "small",
            "elsewhere",
            "cut",
            "made_anew",
            "emptied",
            "grown",
        ] {
            let sql =
                format!("SELECT count(*), md5(string_agg(t::text, '' ORDER BY n)) FROM {table} t");
            assert_eq!(restored.psql(&sql), cluster.psql(&sql), "{table}");
        }
    }
}

/// Bytes of the blocks that changed between the starts of two backups.
fn changed_bytes(cluster: &Cluster, [from, to]: [&Value; 2]) -> u64 {
    let [from, to] = [from, to].map(|report| report["postgres"]["start_lsn"].as_str().unwrap());
    let sql = format!(
        "SELECT 8192 * count(DISTINCT (reltablespace, reldatabase, relfilenode, relforknumber, relblocknumber)) \
         FROM pg_available_wal_summaries() s, pg_wal_summary_contents(s.tli, s.start_lsn, s.end_lsn) \
         WHERE s.start_lsn >= '{from}' AND s.end_lsn <= '{to}' AND NOT is_limit_block"
    );
    cluster.psql(&sql).parse().unwrap()
}

#[test]
fn the_bytes_on_the_line_are_those_of_changed_blocks() {
    for version in incremental_versions() {
        let cluster = Cluster::new(version, &["summarize_wal = on"]);
        cluster.psql_each(&[
            "CREATE TABLE wide AS SELECT n, repeat(md5(n::text), 60) AS word FROM generate_series(1, 60000) n",
            "VACUUM",
            "CHECKPOINT",
        ]);
        let (_, first) = received(&cluster, &[]);
        cluster.psql_each(&["UPDATE wide SET n = n + 1 WHERE n % 4 = 0", "CHECKPOINT"]);
        let (on_the_line, second) = received(&cluster, &[]);
        let changed = changed_bytes(&cluster, [&first, &second]);
        assert!(changed > 80 << 20, "{changed}");
        let wal = 16 << 20;
        let ratio = (on_the_line - wal) as f64 / changed as f64;
        assert!(ratio <= 1.2, "{on_the_line} of {changed}: {ratio}");
    }
}

#[test]
fn without_a_proof_of_what_changed_all_files_are_sent_and_the_reason_is_said() {
    let Some(version) = incremental_versions().last() else {
        return;
    };
    let cluster = Cluster::new(version, &[]);
    cluster.psql_each(&["CREATE ROLE sender LOGIN REPLICATION", "CHECKPOINT"]);
    let to = cluster.path("repository");
    let run = |role: &str, expected: &str| {
        let backup = args![
            "backup",
            cluster.url_as(role),
            "--to",
            to,
            "--via",
            "protocol"
        ];
        let ran = fullbore(backup).ends_with(0);
        let says = ran
            .err
            .contains("the server sent all files, not only blocks that changed: ");
        assert_eq!(says, !expected.is_empty(), "{}", ran.err);
        assert!(ran.err.contains(expected), "{}", ran.err);
    };
    run("postgres", "");
    run("postgres", "summarize_wal is off");
    cluster.stop("fast");
    cluster.configure(&["summarize_wal = on"]);
    cluster.start();
    run("postgres", "the server was started since the last backup");
    run("postgres", "");
    run("sender", "");
    let hba = cluster.data().join("pg_hba.conf");
    let lines = fs::read_to_string(&hba).unwrap();
    fs::write(&hba, format!("local all sender reject\n{lines}")).unwrap();
    cluster.psql("SELECT pg_reload_conf()");
    run(
        "sender",
        "the role may not ask by SQL when the server was started",
    );
    fs::write(&hba, lines).unwrap();
    cluster.psql("SELECT pg_reload_conf()");
    run("sender", "the server was started since the last backup");
    // Summaries that are removed.
    run("postgres", "");
    let summaries = cluster.data().join("pg_wal/summaries");
    for summary in fs::read_dir(&summaries).unwrap() {
        fs::remove_file(summary.unwrap().path()).unwrap();
    }
    run("postgres", "the server was started since the last backup");
    fullbore(args!["verify", to, "--data", "--quiet"]).ends_with(0);
}

#[test]
fn over_a_line_that_answers_late_the_server_compresses() {
    for version in versions() {
        let cluster = Cluster::new(version, &[]);
        let space = cluster.make_dir("space");
        cluster.psql(&format!(
            "CREATE TABLESPACE space LOCATION '{}'",
            space.display()
        ));
        cluster.psql_each(&[
            "CREATE TABLE elsewhere TABLESPACE space AS SELECT n FROM generate_series(1, 500) n",
            "VACUUM",
            "CHECKPOINT",
        ]);
        let (at_once, _) = received(&cluster, &["--full"]);
        let line = SlowLine::to(
            &cluster.path(".s.PGSQL.5432"),
            Duration::from_millis(4),
            u64::MAX,
        );
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", line.port);
        let to = cluster.path("repository");
        fullbore(args![
            "backup", url, "--to", to, "--via", "protocol", "--full", "--quiet"
        ])
        .ends_with(0);
        let late = line.received.load(Relaxed);
        let is_compressed = late < at_once / 2;
        // Debian's server was built with lz4; of those that the tests build none was.
        let has_lz4 = version.major >= 15 && cluster.psql("SELECT version()").contains("Debian");
        assert_eq!(is_compressed, has_lz4, "{late} of {at_once}");
        let [earlier, later] =
            ["repository@latest~1", "repository@latest"].map(|from| files(&cluster.path(from)));
        assert_eq!(earlier, later);
        let restored = Cluster::restored(version, &to);
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
        assert_eq!(restored.psql("SELECT count(*) FROM elsewhere"), "500");
    }
}

#[test]
fn a_cluster_is_one_source_whatever_the_role_may_see() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    cluster.psql("CREATE ROLE sender LOGIN REPLICATION");
    let runs = [
        ("sender", "protocol", None),
        ("postgres", "sql", None),
        ("sender", "protocol", Some("--full")),
        ("postgres", "files", None),
    ];
    for first in [0, 1] {
        let to = cluster.path(&format!("repository{first}"));
        for (role, via, full) in &runs[first..] {
            let url = cluster.url_as(role);
            let backup = args!["backup", url, "--to", to, "--via", via, "--quiet"];
            fullbore(backup.into_iter().chain(full.map(Into::into))).ends_with(0);
        }
        let listed = fullbore(args!["list", to, "--json"]).json();
        let sources: Vec<String> = listed
            .iter()
            .filter(|line| line["source"].is_object())
            .map(|line| line["source"].to_string())
            .collect();
        assert_eq!(sources.len(), 4 - first, "{listed:?}");
        assert!(
            sources.iter().all(|source| *source == sources[0]),
            "{sources:?}"
        );
        let forgotten = fullbore(args!["forget", to, "--keep-last", "1", "--quiet"]);
        forgotten.ends_with(0);
        let restored = Cluster::restored(version, &to);
        restored.start();
        restored.assert_has_content();
        assert_eq!(fullbore(args!["list", to, "--json"]).json().len(), 1);
    }
}

#[test]
fn a_standby_sends_a_cluster_that_starts_as_a_primary() {
    assert_standby_starts_as_a_primary(BY_PROTOCOL);
}

#[test]
fn a_backup_that_is_sent_without_wal_waits_for_the_archive() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let archived = &["--via", "protocol", "--wal", "archived"];
    let ran = cluster.backup("repository", archived).ends_with(1);
    ran.has_one_error("archive_mode is off");
    let place = cluster.make_dir("archive");
    let command = format!("archive_command = 'sleep 1; cp %p {}/%f'", place.display());
    let cluster = Cluster::stopped(version, &["archive_mode = on", &command]);
    cluster.start();
    cluster.backup("repository", archived).ends_with(0);
    let root = fullbore(args!["show", cluster.path("repository"), "--json"])
        .json()
        .remove(0)["root"]
        .take();
    let last = root["postgres"]["wal_segments"][1].as_str().unwrap();
    assert!(place.join(last).exists(), "{root}");
}

#[test]
fn a_database_that_was_copied_file_by_file_meanwhile_ends_a_backup_that_is_sent() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let strategy = match version.major {
            15.. => "STRATEGY FILE_COPY",
            _ => "",
        };
        let backups_beside = |template: &str| {
            let create = format!("CREATE DATABASE copy TEMPLATE {template} {strategy}");
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut client = cluster.client();
                    while !is_over.load(Relaxed) {
                        client.batch_execute(&create).unwrap();
                        client.batch_execute("DROP DATABASE copy").unwrap();
                    }
                });
                sleep(Duration::from_millis(300));
                let ran = cluster.backup("repository", BY_PROTOCOL);
                is_over.store(true, Relaxed);
                ran
            })
        };
        cluster.psql("CREATE DATABASE origin");
        backups_beside("origin")
            .ends_with(1)
            .has_one_error("was copied or moved meanwhile");
        backups_beside("template1").ends_with(0);
        let restored = Cluster::restored(version, &cluster.path("repository"));
        restored.start();
        restored.assert_has_content();
    }
}

#[test]
fn checkpoints_meanwhile_take_no_wal_from_a_backup_that_is_sent() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &["min_wal_size = 32MB"]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // A segment ends before each checkpoint, so it is removed or used again unless it is kept.
            while !is_over.load(Relaxed) {
                let message = "SELECT pg_logical_emit_message(false, 'test', 'message')";
                cluster.psql_each(&[message, "SELECT pg_switch_wal()", "CHECKPOINT"]);
            }
        });
        // Over this line a second session is open only after several checkpoints.
        let socket = cluster.path(".s.PGSQL.5432");
        let line = SlowLine::to(&socket, Duration::from_millis(50), u64::MAX);
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", line.port);
        let to = cluster.path("repository");
        let ran = fullbore(args!["backup", url, "--to", to, "--via", "protocol"]);
        is_over.store(true, Relaxed);
        ran.ends_with(0);
    });
}

#[test]
fn a_role_that_may_only_replicate_is_sent_the_cluster() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.psql_each(&[
            "CREATE ROLE sender LOGIN REPLICATION",
            "CREATE ROLE stranger LOGIN",
        ]);
        let target = cluster.path("repository");
        let run = |role: &str, via: &str| {
            let url = cluster.url_as(role);
            fullbore(args!["backup", url, "--to", target, "--via", via])
        };
        run("stranger", "protocol")
            .ends_with(1)
            .has_one_error("alter role ROLE replication");
        run("stranger", "auto")
            .ends_with(1)
            .has_one_error("nor by protocol");
        let ran = run("sender", "auto").ends_with(0);
        let way = ", read by protocol because the role may not read the files by SQL, from ";
        assert!(ran.err.contains(way), "{}", ran.err);
        cluster.assert_nothing_is_left();
        let restored = Cluster::restored(version, &target);
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
    }
}

#[test]
fn a_damaged_page_that_is_sent_is_named() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.psql_each(&["VACUUM", "CHECKPOINT"]);
        let file = cluster.file_of("small");
        damage(&cluster.data().join(&file), 1, b"damaged");
        let ran = cluster.backup("repository", BY_PROTOCOL).ends_with(3);
        assert!(ran.err.contains(&file), "{}", ran.err);
        assert!(ran.err.contains("block 1"), "{}", ran.err);
    }
}
