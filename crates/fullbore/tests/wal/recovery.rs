//! Servers that archive, and recoveries from what they archived.

use super::{
    args,
    cluster::{Cluster, versions},
    runs::{Ran, fullbore},
    servers::{Version, as_postgres, wait_until},
};
use std::{fs, path::PathBuf, process::Stdio};

/// A server that archives into a repository beside its data directory, and has one backup there.
pub(crate) fn archiving(version: &Version, name: &str) -> (Cluster, PathBuf) {
    let cluster = Cluster::stopped(version, &["archive_mode = on"]);
    let repository = cluster.path(name);
    let made = as_postgres(super::runs::FULLBORE)
        .arg("init")
        .arg(&repository)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    archive_to(&cluster, &repository);
    cluster.start();
    (cluster, repository)
}

fn archive_to(cluster: &Cluster, repository: &std::path::Path) {
    let command = format!(
        "FULLBORE_STATE_DIR={} {} wal push %p --to {}",
        cluster.path("state").display(),
        super::runs::FULLBORE,
        repository.display()
    );
    cluster.configure(&[&format!("archive_command = '{command}'")]);
}

pub(crate) fn switch(cluster: &Cluster) -> String {
    // A segment with nothing in it is not ended.
    cluster.psql("SELECT pg_logical_emit_message(false, 'test', 'switch')");
    let segment = cluster.psql("SELECT pg_walfile_name(pg_switch_wal())");
    wait_until("the segment is archived", || {
        cluster.psql("SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver") >= segment
    });
    segment
}

pub(crate) fn backup(cluster: &Cluster, repository: &std::path::Path, more: &[&str]) -> Ran {
    let line = args!["backup", cluster.url(), "--to", repository, "--json"];
    fullbore(line.into_iter().chain(more.iter().map(Into::into))).ends_with(0)
}

#[test]
fn a_restore_recovers_to_a_time_with_nothing_but_the_repository() {
    for version in [versions().first(), versions().last()]
        .into_iter()
        .flatten()
    {
        let (cluster, repository) = archiving(version, "repository");
        backup(&cluster, &repository, &[]);
        cluster.psql("CREATE TABLE t AS SELECT generate_series(1, 1000) n");
        switch(&cluster);
        let time = cluster.psql("SELECT now()");
        std::thread::sleep(std::time::Duration::from_millis(50));
        cluster.psql("INSERT INTO t SELECT generate_series(1, 500000)");
        switch(&cluster);
        cluster.psql("INSERT INTO t SELECT 1");
        switch(&cluster);
        // A second backup leaves its WAL to the archive.
        let second = backup(&cluster, &repository, &[]);
        let listed = fullbore(args![
            "show",
            format!("{}@latest", repository.display()),
            "--json"
        ])
        .ends_with(0);
        assert!(
            listed.out.contains("\"archived\""),
            "{}{}",
            second.out,
            listed.out
        );
        let wal = |cluster: &Cluster| cluster.psql("SELECT count(*) FROM t");
        let at_time = Cluster::restored_with(version, &repository, &["--target-time", &time]);
        at_time.start();
        wait_until("the server is at its target", || {
            at_time.psql("SELECT pg_is_wal_replay_paused()") == "t"
        });
        assert_eq!(wal(&at_time), "1000");
        drop(at_time);
        let newest = Cluster::restored_with(
            version,
            &repository,
            &["--recovery", "point", "--set", "archive_mode=off"],
        );
        newest.start();
        wait_until("the server is open", || {
            newest.psql("SELECT pg_is_in_recovery()") == "f"
        });
        assert_eq!(wal(&newest), "501001");
        drop(newest);
        // Without any option, the backup that left its WAL to the archive starts on its own.
        let plain = Cluster::restored_with(version, &repository, &["--set", "archive_mode=off"]);
        plain.start();
        assert_eq!(wal(&plain), "501001");
        plain.assert_has_content();
    }
}

#[test]
fn a_segment_that_is_missing_in_the_middle_opens_nothing() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    backup(&cluster, &repository, &["--wal", "included"]);
    cluster.psql("CREATE TABLE t (n int)");
    let segments: Vec<String> = (0..4)
        .map(|_| {
            cluster.psql("INSERT INTO t VALUES (1)");
            switch(&cluster)
        })
        .collect();
    let restored = Cluster::restored_with(
        version,
        &repository,
        &["--recovery", "point", "--set", "archive_mode=off"],
    );
    // The object is lost between restore and recovery.
    let lost = super::runs::shell(
        "find \"$1\"/wal -name \"$2-*\"",
        args![repository, segments[2]],
    );
    fs::rename(lost.out.trim(), cluster.path("lost")).unwrap();
    assert!(!restored.starts());
    let log = restored.log();
    assert!(log.contains("is missing from the WAL of system"), "{log}");
    assert!(!log.contains("archive recovery complete"), "{log}");
    // A restore sees it before the first byte.
    let target = cluster.path("refused");
    let line = args!["restore", repository, "--to", target, "--recovery", "point"];
    let refused = fullbore(line).ends_with(1);
    assert!(
        refused.err.contains("has a gap") && refused.err.contains(&segments[2]),
        "{}",
        refused.err
    );
    assert!(!target.exists());
    // When it is back, the same server goes on.
    fs::rename(cluster.path("lost"), lost.out.trim()).unwrap();
    restored.start();
    wait_until("the server is open", || {
        restored.psql("SELECT pg_is_in_recovery()") == "f"
    });
    assert_eq!(restored.psql("SELECT count(*) FROM t"), "4");
}

#[test]
fn a_backlog_is_archived_by_the_process_that_a_push_leaves_behind() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    cluster.psql("ALTER SYSTEM SET archive_command = 'false'");
    cluster.psql("SELECT pg_reload_conf()");
    cluster.psql("CREATE TABLE t (n int)");
    let mut last = String::new();
    for _ in 0..80 {
        cluster.psql("INSERT INTO t VALUES (1)");
        last = cluster.psql("SELECT pg_walfile_name(pg_switch_wal())");
    }
    cluster.psql("ALTER SYSTEM RESET archive_command");
    cluster.psql("SELECT pg_reload_conf()");
    wait_until("all is archived", || {
        cluster.psql("SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver") >= last
    });
    let listed = fullbore(args!["wal", "list", repository, "--json"]).ends_with(0);
    let report = &listed.json()[0];
    assert_eq!(report["gaps"].as_array().unwrap().len(), 0, "{report}");
    assert_eq!(
        report["timelines"][0]["last_segment"],
        last.as_str(),
        "{report}"
    );
    let (segments, objects) = (
        report["segments"].as_u64().unwrap(),
        report["objects"].as_u64().unwrap(),
    );
    assert!(
        objects * 4 <= segments,
        "{objects} objects for {segments} segments"
    );
    fullbore(args!["wal", "check", repository]).ends_with(0);
}

#[test]
fn two_primaries_that_write_one_timeline_are_told() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    switch(&cluster);
    cluster.stop("fast");
    let copy = Cluster::empty(version);
    super::runs::shell("cp -a \"$1\" \"$2\"", args![cluster.data(), copy.data()]).ends_with(0);
    cluster.start();
    copy.start();
    for server in [&cluster, &copy] {
        server.psql("CREATE TABLE t AS SELECT random() n");
        server.psql("SELECT pg_switch_wal()");
    }
    let fails =
        |server: &Cluster| server.psql("SELECT failed_count > 0 FROM pg_stat_archiver") == "t";
    wait_until("one of them is refused", || fails(&cluster) || fails(&copy));
    wait_until("the log says why", || {
        let logs = cluster.log() + &copy.log();
        logs.contains("two servers write one timeline")
    });
    fullbore(args!["wal", "check", repository]).ends_with(4);
}

#[test]
fn a_backup_that_was_made_before_the_archive_is_no_fault() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    cluster.psql("ALTER SYSTEM SET archive_command = ''");
    cluster.psql("SELECT pg_reload_conf()");
    backup(&cluster, &repository, &[]);
    cluster.psql("CREATE TABLE t (n int)");
    cluster.psql("SELECT pg_switch_wal()");
    // The server was never asked for what is gone.
    cluster.stop("fast");
    let line = "rm -f \"$1\"/pg_wal/archive_status/*.ready; rm -rf \"$2\"/wal";
    super::runs::shell(line, args![cluster.data(), repository]).ends_with(0);
    cluster.start();
    cluster.psql("ALTER SYSTEM RESET archive_command");
    cluster.psql("SELECT pg_reload_conf()");
    cluster.psql("INSERT INTO t VALUES (1)");
    switch(&cluster);
    fullbore(args!["verify", repository]).ends_with(0);
    let more = ["--recovery", "point", "--set", "archive_mode=off"];
    let target = cluster.path("refused");
    let line = args!["restore", repository, "--to", target];
    let refused = fullbore(line.into_iter().chain(more.map(Into::into))).ends_with(1);
    assert!(refused.err.contains("has a gap"), "{}", refused.err);
}

/// The order of the guide: a backup first, and then archiving.
#[test]
fn a_backup_with_its_wal_rolls_forward_over_what_was_never_archived() {
    for version in [versions().first(), versions().last()]
        .into_iter()
        .flatten()
    {
        let (cluster, repository) = archiving(version, "repository");
        cluster.psql("ALTER SYSTEM SET archive_command = 'true'");
        cluster.psql("SELECT pg_reload_conf()");
        backup(&cluster, &repository, &["--wal", "included"]);
        cluster.psql("ALTER SYSTEM RESET archive_command");
        cluster.psql("SELECT pg_reload_conf()");
        cluster.psql("CREATE TABLE t AS SELECT generate_series(1, 1000) n");
        switch(&cluster);
        let time = cluster.psql("SELECT now()");
        std::thread::sleep(std::time::Duration::from_millis(50));
        cluster.psql("DROP TABLE t");
        switch(&cluster);
        let more = [
            "--target-time",
            &time,
            "--target-action",
            "promote",
            "--set",
            "archive_mode=off",
        ];
        let restored = Cluster::restored_with(version, &repository, &more);
        // Without its own, whole WAL a server must not open: what it lacks is a gap.
        let own = restored.data().join("pg_wal");
        let brought =
            super::runs::shell("ls \"$1\" | grep -E '^[0-9A-F]{24}$' | head -1", args![own]);
        let brought = brought.out.trim();
        let listed = fullbore(args!["wal", "list", repository]).ends_with(0);
        assert!(!listed.out.contains(brought), "{brought} {}", listed.out);
        let brought = own.join(brought);
        let content = fs::read(&brought).unwrap();
        let begun = [&content[..0x100], &vec![0; content.len() - 0x100]].concat();
        fs::write(&brought, begun).unwrap();
        assert!(!restored.starts());
        assert!(restored.log().contains("is missing from the WAL of system"));
        fs::write(&brought, content).unwrap();
        restored.start();
        wait_until("the server is open", || {
            restored.psql("SELECT pg_is_in_recovery()") == "f"
        });
        assert_eq!(restored.psql("SELECT count(*) FROM t"), "1000");
    }
}
