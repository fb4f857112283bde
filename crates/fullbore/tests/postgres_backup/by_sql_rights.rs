//! What a role may read by SQL, and what is missing then.

use super::{
    args,
    cluster::{Cluster, debian, some_versions},
    runs::{fullbore, is_root, or_skip},
    servers::{Version, own},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread::{self, sleep},
    time::Duration,
};

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
        // Each round ends a segment of 16 MiB: what the server keeps has room for the rounds of the first.
        for (keep, code, rounds) in [("1GB", 0, 50), ("0", 1, usize::MAX)] {
            let keep = format!("wal_keep_size = {keep}");
            let lines = [&keep, "max_wal_size = 32MB", "min_wal_size = 32MB"];
            let cluster = Cluster::new(version, &lines);
            make_reader(&cluster);
            let to = cluster.path("repository");
            let is_over = AtomicBool::new(false);
            let ran = thread::scope(|scope| {
                scope.spawn(|| {
                    let mut client = cluster.client();
                    for _ in (0..rounds).take_while(|_| !is_over.load(Relaxed)) {
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
    let ran = cluster
        .by_nobody(args!["backup", cluster.url(), "--to", "null:"])
        .ends_with(0);
    let way = ", read by SQL because this user may not read the data directory, from ";
    assert!(ran.err.contains(way), "{}", ran.err);
    cluster.assert_nothing_is_left();
}
