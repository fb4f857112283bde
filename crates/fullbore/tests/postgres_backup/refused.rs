//! Clusters that cannot be backed up: one error that says what to do, and nothing begun in the server.

use super::{
    args,
    cluster::{Cluster, debian, some_versions, versions},
    runs::{FULLBORE, Ran, fullbore, is_root, or_skip, set_mode, shell},
    servers::as_postgres,
};
use std::{fs, path::Path};

/// A backup from there fails with one error and makes no repository.
#[track_caller]
fn refused(from: &str, place: &Path, words: &str, hint: &str) {
    let target = place.join("refused");
    let ran = fullbore(args!["backup", from, "--to", target])
        .ends_with(1)
        .has_one_error(words);
    assert!(ran.err.contains(hint), "{hint:?} is not in: {}", ran.err);
    assert!(!target.exists());
}

#[test]
fn a_dry_run_counts_and_starts_nothing_in_the_server() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &["log_statement = all"]);
        let ran = cluster.backup("repository", &["--dry-run"]).ends_with(0);
        assert!(
            ran.out.contains(" files, ") && ran.out.contains(" would be backed up"),
            "{}",
            ran.out
        );
        assert!(!cluster.path("repository").exists());
        let log = cluster.log();
        assert!(
            log.contains("execute <unnamed>"),
            "statements are not in the log: {log}"
        );
        for function in [
            "pg_backup_start",
            "pg_start_backup",
            "pg_create_physical_replication_slot",
        ] {
            assert!(!log.contains(&format!("SELECT {function}(")), "{log}");
        }
        assert!(!log.contains("checkpoint starting: immediate"), "{log}");
    }
}

#[test]
fn a_server_that_cannot_be_reached_or_refuses_is_said_in_one_error() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &["password_encryption = 'scram-sha-256'"]);
    let rules = "local all tester scram-sha-256\nlocal all all trust\n";
    fs::write(cluster.data().join("pg_hba.conf"), rules).unwrap();
    cluster.start();
    cluster.psql("CREATE ROLE tester LOGIN PASSWORD 'right'");
    let (place, host) = (cluster.path(""), cluster.path("").display().to_string());
    refused(
        "postgres://postgres@127.0.0.1:1/postgres",
        &place,
        "127.0.0.1",
        "",
    );
    refused(
        &format!("postgres:///postgres?user=postgres&host={host}nowhere"),
        &place,
        "nowhere",
        "",
    );
    refused(
        &cluster.url_as("nobody_at_all"),
        &place,
        "role \"nobody_at_all\" does not exist",
        "",
    );
    refused(
        &cluster.url().replace("/postgres?", "/nothing?"),
        &place,
        "database \"nothing\" does not exist",
        "",
    );
    let wrong = format!("{}&password=wrong", cluster.url_as("tester"));
    refused(
        &wrong,
        &place,
        "password authentication failed for user \"tester\"",
        "",
    );
}

#[test]
fn a_role_without_rights_is_told_which_it_needs() {
    for version in versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.psql("CREATE ROLE tester LOGIN");
        let (url, place, target) = (
            cluster.url_as("tester"),
            cluster.path(""),
            cluster.path("repository"),
        );
        let ran = fullbore(args!["backup", url, "--to", target]).ends_with(1);
        let ran = ran.has_one_error("the role \"tester\" may not take a backup");
        let statements = ran
            .err
            .lines()
            .map(str::trim)
            .filter(|line| line.ends_with(';'))
            .map(str::to_owned);
        let (functions, rights): (Vec<_>, Vec<_>) =
            statements.partition(|sql| sql.contains("FUNCTION"));
        assert_eq!((functions.len(), rights.len()), (2, 2), "{}", ran.err);
        functions.iter().for_each(|sql| drop(cluster.psql(sql)));
        refused(
            &url,
            &place,
            "the server does not show it to this role",
            "pg_read_all_settings",
        );
        cluster.psql(&rights[0]);
        refused(
            &url,
            &place,
            "could not create a replication slot",
            "REPLICATION",
        );
        cluster.assert_nothing_is_left();
        cluster.psql(&rights[1]);
        fullbore(args!["backup", url, "--to", target, "--quiet"]).ends_with(0);
        let restored = Cluster::restored(version, &target);
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
    }
}

#[test]
fn a_server_without_slots_is_told_to_have_some() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &["max_replication_slots = 0"]);
    refused(
        &cluster.url(),
        &cluster.path(""),
        "could not create a replication slot",
        "max_replication_slots",
    );
}

#[test]
fn a_user_who_cannot_read_the_files_is_told_who_can() {
    let Some(version) = debian() else { return };
    if !or_skip(is_root(), "only root can become somebody else") {
        return;
    }
    let cluster = Cluster::new(version, &[]);
    let url = cluster.url();
    let ran = cluster
        .by_nobody(args!["backup", url, "--to", "null:", "--via", "files"])
        .ends_with(1)
        .has_one_error("cannot read the data directory");
    assert!(
        ran.err
            .contains("run fullbore on the server's host, as a user who may read"),
        "{}",
        ran.err
    );
    cluster.assert_nothing_is_left();
}

#[test]
fn a_file_that_cannot_be_read_ends_the_backup_as_no_wal_stands_in_for_it() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let program = cluster.path("fullbore");
    fs::copy(FULLBORE, &program).unwrap();
    set_mode(&program, 0o755);
    let files = [
        cluster.file_of("small"),
        cluster.file_of("large"),
        "closed".to_owned(),
    ];
    cluster.make_dir("data/closed");
    let backup = |source: &[&str]| -> Ran {
        let mut backup = as_postgres(&program);
        backup
            .current_dir("/")
            .arg("backup")
            .args(source)
            .arg("--to")
            .arg(cluster.path("repository"));
        backup.output().unwrap().into()
    };
    let refused = |source: &[&str]| {
        for file in &files {
            let (path, mode) = (
                cluster.data().join(file),
                if file == "closed" { 0o700 } else { 0o600 },
            );
            set_mode(&path, 0);
            let ran = backup(source).ends_with(1);
            let ran = ran.has_one_error(&format!(
                "cannot back up the cluster: \"{file}\" cannot be read"
            ));
            assert!(
                ran.err.contains(": permission denied\n") && ran.err.contains("hint:"),
                "{}",
                ran.err
            );
            set_mode(&path, mode);
        }
    };
    refused(&[&cluster.url()]);
    assert_eq!(fullbore(args!["list", cluster.path("repository")]).out, "");
    cluster.assert_nothing_is_left();
    cluster.stop("fast");
    refused(&["--offline", cluster.data().to_str().unwrap()]);
    backup(&["--offline", cluster.data().to_str().unwrap()]).ends_with(0);
}

#[test]
fn files_of_another_cluster_are_not_taken_for_those_of_the_server() {
    let Some(version) = debian() else { return };
    let (cluster, server) = (Cluster::stopped(version, &[]), version.start(&[], &[]));
    // Where fullbore runs, another cluster is in the place of the server's.
    let line = "unshare -m bash -c 'mount --bind \"$1\" \"$2\" && echo mounted && exec \"$3\" backup \"$4\" --to null: --via files' bash \"$@\"";
    let ran = shell(
        line,
        args![cluster.data(), server.data(), FULLBORE, server.socket_url()],
    );
    if or_skip(ran.out.contains("mounted"), "nothing can be mounted here") {
        ran.ends_with(2).has_one_error("belong to another cluster");
    }
}

#[test]
fn a_cluster_and_other_paths_are_not_one_backup() {
    let ran = fullbore(args![
        "backup",
        "postgres://localhost/postgres",
        "/etc",
        "--to",
        "null:"
    ]);
    ran.ends_with(2)
        .has_one_error("cannot back up a cluster beside other paths");
}

#[test]
fn the_files_of_a_cluster_are_not_compared_by_their_size() {
    let said = "cannot compare the files of a cluster by size";
    for source in [
        &["postgres://127.0.0.1:1/postgres"][..],
        &["/nonexistent", "--offline"],
    ] {
        let command =
            ["backup"]
                .iter()
                .chain(source)
                .chain(&["--to", "null:", "--compare", "size"]);
        fullbore(command.map(Into::into))
            .ends_with(2)
            .has_one_error(said);
    }
}

#[test]
fn a_running_cluster_somewhere_below_is_not_taken_for_files() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let (above, target) = (
            cluster.data().parent().unwrap().to_owned(),
            cluster.path("of-all"),
        );
        let ran = fullbore(args!["backup", above, "--to", target]).ends_with(3);
        let named = format!(
            "{}/global/pg_control\": a PostgreSQL server runs on it",
            cluster.data().file_name().unwrap().display()
        );
        assert!(ran.err.contains(&named), "{named} is not in {}", ran.err);
        cluster.stop("fast");
        let ran = fullbore(args!["backup", above, "--to", target]).ends_with(0);
        assert!(!ran.err.contains("pg_control"), "{}", ran.err);
        // Alone it is said to be one.
        let ran = fullbore(args!["backup", cluster.data(), "--to", target]).ends_with(0);
        assert!(ran.err.contains("--offline makes sure"), "{}", ran.err);
    }
}
