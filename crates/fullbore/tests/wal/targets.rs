//! Where a recovery ends if WAL is missing, or two timelines may be the latest.

use super::{
    args,
    cluster::{Cluster, versions},
    recovery::{archiving, backup, switch},
    runs::{fullbore, shell},
    servers::wait_until,
};
use std::{fs, path::Path};

fn lose(repository: &Path, segment: &str, to: &Path) {
    let lost = shell("find \"$1\"/wal -name \"$2-*\"", args![repository, segment]);
    fs::rename(lost.out.trim(), to).unwrap();
}

fn wait_until_open(server: &Cluster) {
    wait_until("the server is open", || {
        server.psql("SELECT pg_is_in_recovery()") == "f"
    });
}

#[test]
fn a_gap_is_named_with_the_last_point_before_it_and_the_first_backup_behind_it() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    let first = backup(&cluster, &repository, &["--wal", "included"]).json();
    let first = first.last().unwrap()["id"].as_str().unwrap().to_owned();
    cluster.psql("CREATE TABLE t (n int)");
    let segments: Vec<String> = (0..4)
        .map(|_| {
            cluster.psql("INSERT INTO t VALUES (1)");
            switch(&cluster)
        })
        .collect();
    let behind = backup(&cluster, &repository, &[]).json();
    let behind = behind.last().unwrap()["id"].as_str().unwrap().to_owned();
    cluster.psql("INSERT INTO t VALUES (1)");
    switch(&cluster);
    lose(&repository, &segments[2], &cluster.path("lost"));
    let selected = format!("{}@{first}", repository.display());
    let destination = cluster.path("refused");
    let line = args![
        "restore",
        selected,
        "--to",
        destination,
        "--recovery",
        "point"
    ];
    let refused = fullbore(line).ends_with(1);
    for text in [
        "has a gap",
        &segments[2],
        "the WAL before the gap leads to",
        "with the last commit at 20",
        "--latest-possible",
        &behind,
    ] {
        assert!(refused.err.contains(text), "{text}: {}", refused.err);
    }
    assert!(!destination.exists());
    // What is before the gap is recovered when that is wanted, whatever the target was.
    for target in [&[][..], &["--target-time", "2037-01-01 00:00:00+00"]] {
        let flags = ["--recovery", "point", "--set", "archive_mode=off"];
        let flags = [&flags[..], &["--latest-possible"], target].concat();
        let restored = Cluster::restored_with(version, Path::new(&selected), &flags);
        restored.start();
        wait_until_open(&restored);
        assert_eq!(restored.psql("SELECT count(*) FROM t"), "2");
    }
    // A backup behind the gap recovers to the end.
    let flags = ["--recovery", "point", "--set", "archive_mode=off"];
    let restored = Cluster::restored_with(version, &repository, &flags);
    restored.start();
    wait_until_open(&restored);
    assert_eq!(restored.psql("SELECT count(*) FROM t"), "5");
}

#[test]
fn two_timelines_that_may_be_the_latest_are_asked_for() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    cluster.psql("CREATE TABLE t (who text)");
    backup(&cluster, &repository, &[]);
    cluster.psql("CREATE TABLE later (n int)");
    switch(&cluster);
    // Two copies are promoted, one after the other, and archive to their origin.
    for who in ["second", "third"] {
        let flags = ["--recovery", "point", "--target-timeline", "current"];
        let copy = Cluster::restored_with(version, &repository, &flags);
        copy.start();
        wait_until_open(&copy);
        copy.psql(&format!("INSERT INTO t VALUES ('{who}')"));
        switch(&copy);
    }
    let listed = fullbore(args!["wal", "list", repository]).ends_with(0);
    for line in ["\n  timeline 1 ", "\n    timeline 2 ", "\n    timeline 3 "] {
        assert!(listed.out.contains(line), "{}", listed.out);
    }
    let destination = cluster.path("refused");
    let line = args![
        "restore",
        repository,
        "--to",
        destination,
        "--recovery",
        "point"
    ];
    let asked = fullbore(line).ends_with(2);
    assert!(
        asked
            .err
            .contains("cannot choose the latest timeline: 2 and 3 both may be it"),
        "{}",
        asked.err
    );
    assert!(asked.err.contains("left timeline 1 at"), "{}", asked.err);
    for (timeline, who) in [("2", "second"), ("3", "third")] {
        let flags = ["--recovery", "point", "--set", "archive_mode=off"];
        let flags = [&flags[..], &["--target-timeline", timeline]].concat();
        let restored = Cluster::restored_with(version, &repository, &flags);
        restored.start();
        wait_until_open(&restored);
        assert_eq!(restored.psql("SELECT string_agg(who, ',') FROM t"), who);
    }
    // A backup of the first server that is behind both forks leads to neither copy, whatever number they have.
    cluster.psql("INSERT INTO t VALUES ('first')");
    backup(&cluster, &repository, &[]);
    cluster.psql("INSERT INTO t VALUES ('again')");
    switch(&cluster);
    let flags = ["--recovery", "point", "--set", "archive_mode=off"];
    let restored = Cluster::restored_with(version, &repository, &flags);
    restored.start();
    wait_until_open(&restored);
    assert_eq!(
        restored.psql("SELECT string_agg(who, ',') FROM t"),
        "first,again"
    );
}

#[test]
fn a_target_that_cannot_be_reached_is_told_before_the_restore() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    let made = backup(&cluster, &repository, &[]).json();
    let id = made.last().unwrap()["id"].as_str().unwrap().to_owned();
    cluster.psql("CREATE TABLE t (n int)");
    switch(&cluster);
    let target = cluster.path("target");
    let dry = |more: &[&str]| {
        let line = args!["restore", repository, "--to", target, "-n"];
        let ran = fullbore(line.into_iter().chain(more.iter().map(Into::into)));
        ran.ends_with(0).err
    };
    // Within the WAL, behind it, and before any backup.
    let reached = dry(&[
        "--target-lsn",
        &cluster.psql("SELECT '0/0'::pg_lsn + (pg_current_wal_lsn() - '0/0') - 65536"),
    ]);
    assert!(!reached.contains("does not reach"), "{reached}");
    assert!(reached.contains(&format!("backup {id}: ")), "{reached}");
    for later in [
        ["--target-lsn", "FF/0"],
        ["--target-time", "2037-01-01 00:00:00+00"],
    ] {
        let said = dry(&later);
        assert!(
            said.contains("does not reach the target, it ends with"),
            "{said}"
        );
        assert!(!said.contains("would fail"), "{said}");
    }
    let early = dry(&["--target-time", "2020-01-01 00:00:00+00"]);
    assert!(
        early
            .contains("would fail: cannot recover to 2020-01-01T00:00:00Z: the backup ended later"),
        "{early}"
    );
    assert!(!target.exists());
    // A copy that was promoted archives to its origin: its timeline is not followed without a word.
    let flags = ["--recovery", "point", "--target-timeline", "current"];
    let copy = Cluster::restored_with(version, &repository, &flags);
    copy.start();
    wait_until_open(&copy);
    copy.psql("CREATE TABLE of_copy (n int)");
    switch(&copy);
    let followed = dry(&["--recovery", "point"]);
    assert!(
        followed.contains("goes over to timeline 2, which left timeline 1 at 0/"),
        "{followed}"
    );
    assert!(
        followed.contains("--target-timeline current stays"),
        "{followed}"
    );
    assert!(!dry(&flags).contains("goes over"));
}
