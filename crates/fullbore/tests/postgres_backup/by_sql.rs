//! Clusters whose files are read by SQL.

use super::{
    args,
    cluster::{Cluster, debian, some_versions, versions},
    load::{Load, assert_balanced, transactions},
    runs::{FULLBORE, Ran, fullbore, is_root, or_skip},
    servers::{Version, own},
    slow_line::SlowLine,
    standby::{catch_up, standby_of},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    path::Path,
    process::Command,
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
            .remove(0);
        let restored = Cluster::restored(version, &repository);
        restored.assert_verifies();
        assert!(!restored.data().join("standby.signal").exists());
        restored.start();
        restored.assert_has_content();
        assert_eq!(restored.psql("SELECT count(*) FROM after"), "5000");
        assert_eq!(root["postgres"]["standby"], true);
    }
}

/// The address of a cluster at the other end of a line.
fn url_over(line: &SlowLine) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres", line.port)
}

#[test]
fn a_standby_is_read_by_sql_and_starts_as_a_primary() {
    assert_standby_starts_as_a_primary(BY_SQL);
}

#[test]
fn over_a_slow_line_files_are_asked_for_with_few_statements() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &["log_min_duration_statement = 0"]);
    cluster.psql_each(&["VACUUM", "CHECKPOINT"]);
    cluster.backup("files", &["--quiet"]).ends_with(0);
    let socket = cluster.path(".s.PGSQL.5432");
    let line = SlowLine::to(&socket, Duration::from_millis(20), 100_000_000);
    let to = cluster.path("there");
    let before = cluster.log().len();
    let backup = args![
        "backup",
        url_over(&line),
        "--to",
        to,
        "--via",
        "sql",
        "--quiet"
    ];
    fullbore(backup).ends_with(0);
    let log = cluster.log()[before..].to_owned();
    let is_read = |line: &&str| line.contains("execute s") && line.contains("pg_read_binary_file");
    let statements = log.lines().filter(is_read).count() as u64;
    assert_eq!(files(&to), files(&cluster.path("files")));
    // Each of the four sessions asks for some windows of 4 MiB at once; late files come one by one.
    let megabytes = line.received.load(Relaxed) >> 20;
    assert!(megabytes > 30, "{megabytes}");
    assert!(statements < 30, "{statements} for {megabytes} MB");
}

#[test]
fn a_session_that_is_cut_at_any_statement_ends_the_backup() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let line = SlowLine::to(&cluster.path(".s.PGSQL.5432"), Duration::ZERO, u64::MAX);
    let to = cluster.path("repository");
    let mut failures = 0;
    for cut in (1..).step_by(11) {
        line.left.store(cut, Relaxed);
        let backup = args![
            "backup",
            url_over(&line),
            "--to",
            to,
            "--via",
            "sql",
            "--quiet"
        ];
        let ran = fullbore(backup);
        let is_cut = line.left.load(Relaxed) <= 0;
        if ran.code == 0 {
            // Some questions need no answer: they only save work.
            fullbore(args!["verify", to, "--data", "--quiet"]).ends_with(0);
            fs::remove_dir_all(&to).unwrap();
            if !is_cut {
                break;
            }
            continue;
        }
        failures += 1;
        ran.ends_with(1);
        let listed = fullbore(args!["list", to, "--json"]);
        assert!(!listed.out.contains("\"id\""), "{}", listed.out);
    }
    assert!(failures > 8, "{failures}");
    line.left.store(i64::MAX, Relaxed);
    cluster.assert_nothing_is_left();
}

/// A running cluster whose configuration is in another directory, as Debian has it.
fn configured_elsewhere(version: &Version) -> Cluster {
    let cluster = Cluster::stopped(version, &["work_mem = 1234kB", "include_dir = 'conf.d'"]);
    let etc = cluster.make_dir("etc");
    for name in ["postgresql.conf", "pg_hba.conf", "pg_ident.conf"] {
        fs::rename(cluster.data().join(name), etc.join(name)).unwrap();
    }
    fs::create_dir(etc.join("conf.d")).unwrap();
    fs::write(
        etc.join("conf.d/more.conf"),
        "log_line_prefix = 'it''s %m '\n",
    )
    .unwrap();
    fs::set_permissions(etc.join("conf.d"), fs::Permissions::from_mode(0o755)).unwrap();
    let places = format!(
        "data_directory = '{}'\nhba_file = '{1}/pg_hba.conf'\nident_file = '{1}/pg_ident.conf'\n",
        cluster.data().display(),
        etc.display()
    );
    let main = etc.join("postgresql.conf");
    let text = fs::read_to_string(&main).unwrap();
    fs::write(&main, text + &places).unwrap();
    let place = format!("-c config_file={}", main.display());
    assert!(cluster.starts_with(&place), "{}", cluster.log());
    cluster
}

#[test]
fn configuration_in_another_place_is_restored_as_far_as_the_role_may_see_it() {
    for version in some_versions() {
        let cluster = configured_elsewhere(version);
        let ran = cluster.backup("all", &["--via", "sql"]).ends_with(0);
        assert!(!ran.err.contains("not in this backup"), "{}", ran.err);
        make_reader(&cluster);
        cluster.psql("ALTER ROLE reader REPLICATION");
        let by_reader = |to: &str| {
            let to = cluster.path(to);
            fullbore(args![
                "backup",
                cluster.url_as("reader"),
                "--to",
                to,
                "--via",
                "sql"
            ])
            .ends_with(0)
        };
        let ran = by_reader("some");
        assert!(
            ran.err.contains("GRANT pg_read_all_settings"),
            "{}",
            ran.err
        );
        cluster.psql("GRANT pg_read_all_settings TO reader");
        let ran = by_reader("more");
        let hba = cluster.path("etc/pg_hba.conf");
        assert!(
            ran.err.contains("not in this backup") && ran.err.contains(&*hba.to_string_lossy()),
            "{}",
            ran.err
        );
        for to in ["all", "some", "more"] {
            let restored = Cluster::restored(version, &cluster.path(to));
            restored.assert_verifies();
            if to != "all" {
                let copy = restored.data().join("pg_hba.conf");
                fs::copy(&hba, &copy).unwrap();
                own(&copy);
            }
            restored.start();
            restored.assert_has_content();
            let made = fs::read_to_string(restored.data().join("postgresql.conf")).unwrap();
            assert_eq!(restored.psql("SHOW work_mem"), "1234kB", "{to}: {made}");
            assert_eq!(restored.psql("SHOW log_line_prefix"), "it's %m ");
            let place = restored.data().display().to_string();
            assert_eq!(restored.psql("SHOW data_directory"), place);
        }
    }
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
    let at = page * 8192 + 4000;
    let mut before = vec![0; bytes.len()];
    file.read_exact_at(&mut before, at).unwrap();
    file.write_all_at(bytes, at).unwrap();
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
        let of = |relation: &str| cluster.data().join(cluster.file_of(relation));
        let places = [(of("large"), 700), (of("small"), 1)];
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

#[test]
fn a_role_with_four_grants_reads_by_sql_and_is_told_which_are_missing() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let backup = match version.major {
            15.. => "pg_backup_start(text, boolean), pg_backup_stop(boolean)",
            _ => "pg_start_backup(text, boolean, boolean), pg_stop_backup(boolean, boolean)",
        };
        cluster.psql_each(&[
            "CREATE ROLE reader LOGIN REPLICATION",
            &format!("GRANT EXECUTE ON FUNCTION {backup} TO reader"),
        ]);
        let url = cluster.url_as("reader");
        let to = cluster.path("repository");
        let run = || fullbore(args!["backup", url, "--to", to, "--via", "sql", "--quiet"]);
        let ran = run()
            .ends_with(1)
            .has_one_error("may not read the files of the cluster by SQL");
        let grants: Vec<&str> = ran
            .err
            .lines()
            .filter_map(|line| line.trim().strip_suffix(';'))
            .filter(|line| line.starts_with("GRANT EXECUTE"))
            .collect();
        assert_eq!(grants.len(), 3, "{}", ran.err);
        cluster.psql_each(&grants);
        run().ends_with(0);
        cluster.assert_nothing_is_left();
        let restored = Cluster::restored(version, &to);
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
    }
}

/// A role that may read files by SQL and has no REPLICATION.
fn make_reader(cluster: &Cluster) {
    let backup = match cluster.version.major {
        15.. => "pg_backup_start(text, boolean), pg_backup_stop(boolean)",
        _ => "pg_start_backup(text, boolean, boolean), pg_stop_backup(boolean, boolean)",
    };
    let read = "pg_read_binary_file(text, bigint, bigint, boolean), pg_ls_dir(text, boolean, boolean), \
         pg_stat_file(text, boolean)";
    cluster.psql_each(&[
        "CREATE ROLE reader LOGIN",
        &format!("GRANT EXECUTE ON FUNCTION {backup}, {read} TO reader"),
    ]);
}

#[test]
fn a_role_without_replication_reads_wal_while_the_server_has_it() {
    for version in some_versions() {
        for (keep, code) in [("1GB", 0), ("0", 1)] {
            let keep = format!("wal_keep_size = {keep}");
            let lines = [&keep, "max_wal_size = 32MB", "min_wal_size = 32MB"];
            let cluster = Cluster::new(version, &lines);
            make_reader(&cluster);
            let to = cluster.path("repository");
            let is_over = AtomicBool::new(false);
            let ran = thread::scope(|scope| {
                scope.spawn(|| {
                    let mut client = cluster.client();
                    while !is_over.load(Relaxed) {
                        for sql in [
                            "CREATE TABLE t (n int)",
                            "DROP TABLE t",
                            "SELECT pg_switch_wal()",
                            "CHECKPOINT",
                        ] {
                            client.batch_execute(sql).unwrap();
                        }
                    }
                });
                sleep(Duration::from_millis(300));
                let url = cluster.url_as("reader");
                let ran = fullbore(args!["backup", url, "--to", to, "--via", "sql"]);
                is_over.store(true, Relaxed);
                ran
            });
            let ran = ran.ends_with(code);
            if code == 1 {
                assert!(ran.err.contains("ALTER ROLE"), "{}", ran.err);
                let listed = fullbore(args!["list", to, "--json"]);
                assert!(!listed.out.contains("\"id\""), "{}", listed.out);
                continue;
            }
            assert!(
                ran.err.contains("the role has no REPLICATION"),
                "{}",
                ran.err
            );
            cluster.assert_nothing_is_left();
            let restored = Cluster::restored(version, &to);
            restored.assert_verifies();
            restored.start();
            restored.assert_has_content();
        }
    }
}

#[test]
fn a_user_who_cannot_read_the_files_reads_them_by_sql() {
    let Some(version) = debian() else { return };
    if !or_skip(is_root(), "only root can become somebody else") {
        return;
    }
    let cluster = Cluster::new(version, &[]);
    let program = cluster.path("fullbore");
    fs::copy(FULLBORE, &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(program)
        .env("TMPDIR", "/tmp");
    let ran: Ran = command
        .args(["backup", &cluster.url(), "--to", "null:"])
        .output()
        .unwrap()
        .into();
    let ran = ran.ends_with(0);
    let way = ", read by SQL because this user may not read the data directory, from ";
    assert!(ran.err.contains(way), "{}", ran.err);
    cluster.assert_nothing_is_left();
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
