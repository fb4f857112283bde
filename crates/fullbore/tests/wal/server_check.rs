//! `fullbore wal check SERVER --to REPO`: each cause for which WAL does not arrive is named.

use super::{
    args,
    cluster::{Cluster, versions},
    recovery::{archiving, backup},
    runs::{Ran, fullbore},
};
use crate::postgres_backup::standby::standby_of;
use std::{fs, path::Path};

fn check(server: &str, to: &Path, more: &[&str]) -> Ran {
    let line = args!["wal", "check", server, "--to", to];
    fullbore(line.into_iter().chain(more.iter().map(Into::into)))
}

fn set(cluster: &Cluster, setting: &str) {
    cluster.psql(&format!("ALTER SYSTEM SET {setting}"));
    cluster.psql("SELECT pg_reload_conf()");
    // The archiver reads its configuration after a moment.
    std::thread::sleep(std::time::Duration::from_millis(300));
}

#[test]
fn a_segment_must_arrive_and_the_cause_is_named_if_it_does_not() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    let metrics = cluster.path("wal.prom");
    let measured = ["--metrics", metrics.to_str().unwrap()];
    let passed = check(&cluster.url(), &repository, &measured).ends_with(0);
    assert!(passed.err.contains("arrived after"), "{}", passed.err);
    assert!(passed.err.contains("no gap"), "{}", passed.err);
    for warning in ["WAL alone restores nothing", "archive_timeout is 0"] {
        assert!(passed.err.contains(warning), "{}", passed.err);
    }
    let numbers = fs::read_to_string(&metrics).unwrap();
    for number in [
        "fullbore_wal_lag_seconds{profile=\"wal\",system=",
        "fullbore_wal_lag_bytes",
        "fullbore_wal_gaps",
        "fullbore_wal_archived_bytes",
        "fullbore_last_run_exit_code{profile=\"wal\"} 0",
    ] {
        assert!(numbers.contains(number), "{number}\n{numbers}");
    }
    backup(&cluster, &repository, &[]);
    let passed = check(&cluster.url(), &repository, &["--json"]).ends_with(0);
    let report = &passed.json()[0];
    assert_eq!(report["passed"], true, "{report}");
    assert_eq!(report["gap_count"], 0, "{report}");
    assert!(
        !report["warnings"].to_string().contains("restores nothing"),
        "{report}"
    );

    // Another repository.
    let other = cluster.path("other");
    fullbore(args!["init", other]).ends_with(0);
    let elsewhere = check(&cluster.url(), &other, &[]).ends_with(1);
    assert!(
        elsewhere.err.contains("it archives to another place"),
        "{}",
        elsewhere.err
    );
    // No repository.
    check(&cluster.url(), &cluster.path("absent"), &[]).ends_with(1);
    // A server that is not there.
    check("postgres:///?host=/nowhere", &repository, &[]).ends_with(1);

    // A role without the right.
    cluster.psql("CREATE ROLE watch LOGIN");
    let refused = check(&cluster.url_as("watch"), &repository, &[]).ends_with(1);
    assert!(
        refused.err.contains("pg_switch_wal() TO watch"),
        "{}",
        refused.err
    );
    let looked = check(&cluster.url_as("watch"), &repository, &["--no-switch"]).ends_with(0);
    assert!(
        looked.err.contains("the newest segment is"),
        "{}",
        looked.err
    );

    // A command that fails.
    set(&cluster, "archive_command = 'false'");
    let short = ["--patience", "3s", "--metrics", metrics.to_str().unwrap()];
    let fails = check(&cluster.url(), &repository, &short).ends_with(1);
    assert!(
        fails.err.contains("the server fails to archive"),
        "{}",
        fails.err
    );
    let numbers = fs::read_to_string(&metrics).unwrap();
    let lag = numbers
        .lines()
        .find(|line| line.starts_with("fullbore_wal_lag_seconds"));
    assert!(!lag.unwrap().ends_with(" 0"), "{numbers}");
    assert!(
        numbers.contains("fullbore_last_run_exit_code{profile=\"wal\"} 1"),
        "{numbers}"
    );
    // Without a switch, what waits for too long is found.
    let late = ["--no-switch", "--patience", "1s"];
    let late = check(&cluster.url(), &repository, &late).ends_with(1);
    assert!(late.err.contains("segments wait"), "{}", late.err);

    // No command.
    set(&cluster, "archive_command = ''");
    let empty = check(&cluster.url(), &repository, &[]).ends_with(1);
    assert!(
        empty.err.contains("archive_command is empty"),
        "{}",
        empty.err
    );

    // A change that counts after a restart, and then does.
    cluster.psql("ALTER SYSTEM RESET archive_command");
    set(&cluster, "archive_mode = off");
    let pending = check(&cluster.url(), &repository, &[]).ends_with(1);
    assert!(
        pending.err.contains("restart the server"),
        "{}",
        pending.err
    );
    cluster.stop("fast");
    cluster.start();
    let off = check(&cluster.url(), &repository, &[]).ends_with(1);
    assert!(off.err.contains("archive_mode is off"), "{}", off.err);
    assert!(off.err.contains("hint: "), "{}", off.err);
}

#[test]
fn an_archive_that_lags_is_told_from_one_that_fails() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    set(&cluster, "archive_command = 'sleep 20; false'");
    let lags = check(&cluster.url(), &repository, &["--patience", "2s"]).ends_with(1);
    assert!(lags.err.contains("the archive lags"), "{}", lags.err);
    cluster.stop("immediate");
}

#[test]
fn a_server_with_standbys_that_archive_nothing_is_warned() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    let standby = standby_of(&cluster);
    let warned = check(&cluster.url(), &repository, &[]).ends_with(0);
    assert!(
        warned
            .err
            .contains("after a failover the last WAL may be missing"),
        "{}",
        warned.err
    );
    // The standby itself.
    let refused = check(&standby.url(), &repository, &[]).ends_with(1);
    assert!(
        refused.err.contains("archive_mode is on on a standby"),
        "{}",
        refused.err
    );
}

#[test]
fn a_server_and_a_repository_belong_together() {
    fullbore(args!["wal", "check", "postgres://"]).ends_with(2);
    fullbore(args!["wal", "check", "/somewhere", "--to", "/else"]).ends_with(2);
}
