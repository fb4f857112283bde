//! Before and after a failover: what only one data directory has is archived from it.

use super::{
    args,
    cluster::{Cluster, versions},
    recovery::{archiving, backup, switch},
    runs::{Ran, fullbore, shell},
    servers::{as_postgres, wait_until},
};
use crate::postgres_backup::standby::{catch_up, standby_of};
use std::{path::Path, process::Stdio};

/// `wal push --catch-up`, as the user of the server.
fn push_all(server: &Cluster, to: &Path) -> Ran {
    let mut command = as_postgres(super::runs::FULLBORE);
    command.env("FULLBORE_STATE_DIR", server.path("state"));
    command
        .args(["wal", "push", "--catch-up"])
        .arg(server.data());
    command.arg("--to").arg(to).stdin(Stdio::null());
    command.output().unwrap().into()
}

fn set(cluster: &Cluster, setting: &str) {
    cluster.psql(&format!("ALTER SYSTEM SET {setting}"));
    cluster.psql("SELECT pg_reload_conf()");
}

#[test]
fn segments_that_only_a_standby_has_are_archived_before_it_is_promoted() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    cluster.psql("CREATE TABLE t (n int)");
    backup(&cluster, &repository, &[]);
    let standby = standby_of(&cluster);
    switch(&cluster);
    // The primary cannot archive any more.
    set(&cluster, "archive_command = 'false'");
    let mut last = String::new();
    for _ in 0..3 {
        cluster.psql("INSERT INTO t VALUES (1)");
        last = cluster.psql("SELECT pg_walfile_name(pg_switch_wal())");
    }
    cluster.psql("INSERT INTO t VALUES (1)");
    catch_up(&cluster, &standby);
    cluster.stop("immediate");
    let listed = || {
        let listed = fullbore(args!["wal", "list", repository, "--json"]).ends_with(0);
        listed.json()[0]["timelines"][0]["last_segment"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(listed() < last);
    let caught = push_all(&standby, &repository).ends_with(0);
    assert!(caught.err.contains("segments stored"), "{}", caught.err);
    assert_eq!(listed(), last);
    // The segment that is being written is not complete.
    assert!(caught.err.contains("is not complete"), "{}", caught.err);
    let again = push_all(&standby, &repository).ends_with(0);
    assert!(again.err.contains("0 segments stored"), "{}", again.err);
    fullbore(args!["wal", "check", repository]).ends_with(0);
    // Promoted, it goes on without a gap.
    standby.psql("SELECT pg_promote()");
    wait_until("the standby is open", || {
        standby.psql("SELECT pg_is_in_recovery()") == "f"
    });
    standby.psql("INSERT INTO t VALUES (1)");
    switch(&standby);
    let flags = ["--recovery", "point", "--set", "archive_mode=off"];
    let restored = Cluster::restored_with(version, &repository, &flags);
    restored.start();
    wait_until("the server is open", || {
        restored.psql("SELECT pg_is_in_recovery()") == "f"
    });
    assert_eq!(restored.psql("SELECT count(*) FROM t"), "5");
}

#[test]
fn an_old_primary_that_was_stopped_gives_what_only_it_has() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    backup(&cluster, &repository, &[]);
    set(&cluster, "archive_command = 'false'");
    cluster.psql("CREATE TABLE t (n int)");
    let last = cluster.psql("SELECT pg_walfile_name(pg_switch_wal())");
    cluster.psql("INSERT INTO t VALUES (1)");
    cluster.stop("immediate");
    push_all(&cluster, &repository).ends_with(0);
    let listed = fullbore(args!["wal", "list", repository, "--json"]).ends_with(0);
    assert_eq!(
        listed.json()[0]["timelines"][0]["last_segment"],
        last.as_str()
    );
    // The marks of a server that archives are as they were.
    let marks = shell("ls \"$1\"/pg_wal/archive_status", args![cluster.data()]);
    assert!(
        marks.out.contains(&format!("{last}.ready")),
        "{}",
        marks.out
    );
    push_all(&Cluster::empty(version), &repository).ends_with(2);
}
