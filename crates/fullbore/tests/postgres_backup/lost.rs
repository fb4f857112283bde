//! What ends a backup before its time: nothing is listed, and nothing stays in the server.

use super::{
    args,
    cluster::{Cluster, debian, some_versions, versions},
    runs::{FULLBORE, Mount, Ran, fullbore, has, names, or_skip, shell, temp},
    servers::{own, wait_until},
    slow::{Slow, assert_nothing_is_listed, started_into},
};
use std::{
    fs,
    process::{Command, Stdio},
};

const TERMINATE: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fullbore' AND pid <> pg_backend_pid()";

#[test]
fn a_backup_whose_session_is_terminated_fails_and_leaves_no_trace() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let slow = Slow::of_running(&cluster);
        assert_eq!(
            cluster.psql("SELECT count(*) FROM pg_replication_slots WHERE temporary AND active"),
            "1"
        );
        assert_eq!(cluster.psql(TERMINATE), "t");
        let (ran, _) = slow.end();
        ran.ends_with(1).has_one_error("the backup is void");
        cluster.assert_nothing_is_left();
        cluster.backup("repository", &[]).ends_with(0);
    }
}

#[test]
fn a_terminated_session_ends_a_backup_into_a_repository_at_once() {
    let Some(version) = debian() else { return };
    let (cluster, place) = (Cluster::new(version, &[]), temp());
    let child = started_into(place.path(), args![cluster.url()]);
    let began = std::time::Instant::now();
    assert_eq!(cluster.psql(TERMINATE), "t");
    Ran::from(child.wait_with_output().unwrap())
        .ends_with(1)
        .has_one_error("the backup is void");
    assert!(
        began.elapsed().as_secs() < 10,
        "it went on for {:?}",
        began.elapsed()
    );
    assert_nothing_is_listed(place.path());
    cluster.assert_nothing_is_left();
}

#[test]
fn a_server_that_is_stopped_ends_the_backup() {
    let Some(version) = debian() else { return };
    for mode in ["immediate", "fast"] {
        let (cluster, place) = (Cluster::new(version, &[]), temp());
        let child = started_into(place.path(), args![cluster.url()]);
        cluster.stop(mode);
        Ran::from(child.wait_with_output().unwrap())
            .ends_with(1)
            .has_one_error("the backup is void");
        assert_nothing_is_listed(place.path());
        cluster.start();
        cluster.assert_nothing_is_left();
    }
}

/// WAL is looked at and opened late, and where the server stops meanwhile it is no longer there.
#[test]
fn wal_that_went_with_the_session_is_missed() {
    let Some(version) = debian().filter(|_| or_skip(has("strace"), "there is no strace")) else {
        return;
    };
    for (target, call) in [
        ("repository", "openat"),
        ("archive.tar.zst", "openat"),
        ("-", "openat"),
        ("repository", "statx"),
    ] {
        let cluster = Cluster::new(version, &[]);
        cluster.psql_each(&["CREATE TABLE t AS SELECT 1", "SELECT pg_switch_wal()"]);
        let place = if target == "-" {
            target.into()
        } else {
            cluster.path(target)
        };
        let line = "exec strace -f -qq -o /dev/null -P \"$2\" -P \"$3\" -P \"$4\" -e trace=\"$1\" \
                    -e inject=\"$1\":delay_enter=800000 \"${@:5}\"";
        let source = cluster.psql("SELECT pg_current_wal_lsn()");
        let segment_path = |n: u32| {
            cluster.psql(&format!(
                "SELECT pg_walfile_name(pg_current_wal_lsn() + {n} * 16777216)"
            ))
        };
        let program = args![
            FULLBORE,
            "backup",
            cluster.url(),
            "--no-tricks",
            "--to",
            place
        ];
        let segments = args![segment_path(0), segment_path(1), segment_path(2)];
        let mut backup = Command::new("bash");
        let child = backup
            .arg("-c")
            .args(args![line, "bash", call])
            .args(segments)
            .args(program)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = std::thread::spawn(|| child.wait_with_output().unwrap());
        // It begins in the next segment but one, and ends that.
        let ended = format!("SELECT pg_current_wal_lsn() >= '{source}'::pg_lsn + 2 * 16777216");
        wait_until("the backup has ended for the server", || {
            cluster.psql(&ended) == "t" || output.is_finished()
        });
        cluster.stop("fast");
        let output = output.join().unwrap();
        let archive = output.stdout.clone();
        Ran::from(output)
            .ends_with(1)
            .has_one_error("the backup is void");
        match target {
            "repository" => assert_nothing_is_listed(&place),
            "-" => {
                fs::write(cluster.path("out.tar.zst"), archive).unwrap();
                fullbore(args!["show", cluster.path("out.tar.zst")]).ends_with(4);
            }
            _ => assert!(!place.exists()),
        }
    }
}

#[test]
fn a_backup_gives_up_before_the_disk_of_the_servers_wal_is_full() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(
        version,
        &[
            "max_wal_size = 48MB",
            "min_wal_size = 32MB",
            "wal_keep_size = 0",
        ],
    );
    let disk = cluster.make_dir("disk");
    let Some(_disk) = Mount::tmpfs(&disk, "320m") else {
        return;
    };
    own(&disk);
    shell(
        "mv \"$1\"/pg_wal \"$2\"/wal && ln -s \"$2\"/wal \"$1\"/pg_wal",
        args![cluster.data(), disk],
    )
    .ends_with(0);
    cluster.start();
    let slow = Slow::of_running(&cluster);
    let slots = || cluster.psql("SELECT count(*) FROM pg_replication_slots");
    assert_eq!(slots(), "1");
    // Nobody reads on from the backup, and the server does not stop for that.
    for _ in 0..60 {
        cluster
            .psql("DROP TABLE IF EXISTS w; CREATE TABLE w AS SELECT repeat('x', 1800) FROM generate_series(1, 8000)");
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    assert_eq!(slots(), "0");
    let (ran, _) = slow.end();
    let ran = ran
        .ends_with(1)
        .has_one_error("the server's disk would soon be full");
    assert!(
        ran.err.contains("MB are free; the slot keeps "),
        "{}",
        ran.err
    );
    cluster.assert_nothing_is_left();
    cluster.stop("fast");
}

#[test]
fn after_a_kill_the_server_lets_go_and_the_next_backup_cleans_up() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let repository = cluster.path("repository");
    let mut child = started_into(&repository, args![cluster.url()]);
    child.kill().unwrap();
    child.wait().unwrap();
    cluster.assert_nothing_is_left();
    assert_nothing_is_listed(&repository);
    assert_ne!(names(&repository.join("intents")), [""; 0]);
    cluster.backup("repository", &[]).ends_with(0);
    assert_eq!(names(&repository.join("intents")), [""; 0]);
    assert_eq!(names(&repository.join("backups")).len(), 1);
    assert_eq!(
        fullbore(args!["list", repository, "--json"]).json().len(),
        1
    );
    let slow = Slow::of_running(&cluster);
    slow.kill();
    cluster.assert_nothing_is_left();
}

#[test]
fn a_server_that_takes_the_wal_away_ends_the_backup_and_the_hint_names_the_setting() {
    let Some(version) = debian() else { return };
    let settings = [
        "max_slot_wal_keep_size = 64MB",
        "max_wal_size = 32MB",
        "min_wal_size = 32MB",
    ];
    let cluster = Cluster::new(version, &settings);
    let slow = Slow::of_running(&cluster);
    cluster.psql("CREATE TABLE x (n int)");
    for _ in 0..7 {
        cluster.psql_each(&["INSERT INTO x VALUES (1)", "SELECT pg_switch_wal()"]);
    }
    cluster.psql("CHECKPOINT");
    let ran = slow
        .end()
        .0
        .ends_with(1)
        .has_one_error("the backup is void");
    assert!(
        ran.err
            .contains("raise max_slot_wal_keep_size, which is 64MB"),
        "{}",
        ran.err
    );
    cluster.assert_nothing_is_left();
}

#[test]
fn a_server_that_is_stopped_is_not_told_to_raise_the_limit_of_a_slot() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &["max_slot_wal_keep_size = 64MB"]);
    let slow = Slow::of_running(&cluster);
    cluster.stop("fast");
    let (ran, _) = slow.end();
    let ran = ran.ends_with(1).has_one_error("the backup is void");
    assert!(
        ran.err.contains("run it again when the server runs"),
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("max_slot_wal_keep_size"), "{}", ran.err);
}

#[test]
fn what_was_written_before_the_backup_does_not_count_in_the_limit_of_a_slot() {
    for version in versions() {
        // The first is less than a segment, and the checkpoint of the start ends one.
        for limit in ["1MB", "32MB"] {
            let cluster = Cluster::new(
                version,
                &[
                    "wal_keep_size = 0",
                    &format!("max_slot_wal_keep_size = {limit}"),
                ],
            );
            for n in 0..4 {
                cluster.psql_each(&[
                    &format!("CREATE TABLE t{n} AS SELECT {n} AS n"),
                    "SELECT pg_switch_wal()",
                ]);
            }
            for target in ["repository", "archive.tar.zst"] {
                cluster.backup(target, &["--quiet"]).ends_with(0);
            }
            cluster.assert_nothing_is_left();
            let restored = Cluster::restored(version, &cluster.path("repository"));
            restored.start();
            restored.assert_has_content();
            assert_eq!(restored.psql("SELECT n FROM t3"), "3");
        }
    }
}

#[test]
fn a_slot_that_is_not_moved_on_is_not_idle() {
    let Some(version) = versions().iter().find(|version| version.major >= 18) else {
        return;
    };
    let cluster = Cluster::new(version, &["idle_replication_slot_timeout = 2s"]);
    let slow = Slow::of_running(&cluster);
    for _ in 0..6 {
        std::thread::sleep(std::time::Duration::from_secs(1));
        cluster.psql("CHECKPOINT");
    }
    slow.end().0.ends_with(0);
}

#[test]
fn a_cluster_whose_root_is_lost_is_rebuilt_restores_and_starts() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let space = cluster.make_dir("space");
        cluster.psql(&format!(
            "CREATE TABLESPACE space LOCATION '{}'",
            space.display()
        ));
        cluster.psql("CREATE TABLE t TABLESPACE space AS SELECT n FROM generate_series(1, 500) n");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let repository = cluster.path("repository");
        let root = || {
            fullbore(args!["show", repository, "--json"])
                .ends_with(0)
                .json()
                .remove(0)["root"]
                .take()
        };
        let before = root();
        let id = before["id"].as_str().unwrap();
        std::fs::remove_file(repository.join("backups").join(id).join("root.json")).unwrap();
        fullbore(args!["repair", repository]).ends_with(4);
        fullbore(args!["repair", repository, "--yes"]).ends_with(0);
        let after = root();
        for fact in [
            "major",
            "system_identifier",
            "timeline",
            "online",
            "standby",
            "checksums",
            "start_lsn",
            "stop_lsn",
            "wal",
            "wal_segments",
            "wal_segment_bytes",
        ] {
            assert_eq!(after["postgres"][fact], before["postgres"][fact], "{fact}");
        }
        for same in ["options", "totals", "segments", "pages"] {
            let known = |root: &serde_json::Value| match same {
                "options" => root["options"]["block_bytes"].clone(),
                "totals" => root["totals"]["entries"].clone(),
                _ => root[same].clone(),
            };
            assert_eq!(known(&after), known(&before), "{same}");
        }
        fullbore(args!["verify", repository, "--data"]).ends_with(0);
        let restored = Cluster::restored(version, &repository);
        restored.assert_verifies();
        restored.start();
        assert_eq!(
            restored.psql("SELECT count(*), sum(n) FROM t"),
            "500|125250"
        );
    }
}
