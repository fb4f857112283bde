//! Backups whose WAL is in the server's archive, or nobody knows where.

use super::{
    args,
    cluster::{Cluster, debian, some_versions, versions},
    runs::{fullbore, names},
    servers::{own, wait_until},
    slow::Slow,
};
use fullbore_postgres::{
    archiver,
    conninfo::{Environment, Params},
    session::Session,
};
use std::{fs, path::Path, process::Command, time::Duration};

/// Into a directory beside the cluster's.
const ARCHIVE: &str = "archive_command = 'cp %p ../archive/%f'";

/// Segments of WAL that a backup of the cluster holds.
fn wal_in(restored: &Cluster) -> Vec<String> {
    names(&restored.data().join("pg_wal"))
        .into_iter()
        .filter(|name| name.len() == 24)
        .collect()
}

#[test]
fn a_backup_warns_of_an_archive_that_gets_nothing() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &["archive_mode = on", "archive_command = 'false'"]);
    let warnings = || {
        let ran = cluster.backup("repository", &["--json"]).ends_with(0);
        ran.json().pop().unwrap()["warnings"].to_string()
    };
    cluster.psql("SELECT pg_switch_wal()");
    wait_until("the archiver fails", || {
        cluster.psql("SELECT failed_count > 0 FROM pg_stat_archiver") == "t"
    });
    let said = warnings();
    assert!(said.contains("the server fails to archive 0000"), "{said}");
    cluster.psql_each(&[
        "ALTER SYSTEM SET archive_command = 'true'",
        "SELECT pg_reload_conf()",
    ]);
    wait_until("the archiver goes on", || {
        cluster.psql("SELECT last_archived_time > last_failed_time FROM pg_stat_archiver") == "t"
    });
    assert_eq!(warnings(), "[]");
}

#[test]
fn wal_that_is_archived_is_not_stored_and_restored_by_restore_command() {
    for version in versions() {
        let cluster = Cluster::stopped(version, &["archive_mode = on", ARCHIVE]);
        let archive = cluster.make_dir("archive");
        cluster.start();
        cluster.psql("CREATE TABLE before AS SELECT 7 AS n");
        let ran = cluster
            .backup("repository", &["--wal", "archived"])
            .ends_with(0);
        assert!(ran.err.contains("its WAL is in the archive"), "{}", ran.err);
        let root = fullbore(args!["show", cluster.path("repository"), "--json"])
            .json()
            .remove(0)["root"]
            .take();
        for segment in root["postgres"]["wal_segments"].as_array().unwrap() {
            assert!(
                archive.join(segment.as_str().unwrap()).exists(),
                "{segment} is not in the archive"
            );
        }
        let restored = Cluster::restored(version, &cluster.path("repository"));
        assert_eq!(wal_in(&restored), [""; 0]);
        assert!(!restored.starts(), "it has no WAL");
        let fetch = format!("cp {}/%f %p", archive.display());
        let flags = [
            "--recovery",
            "point",
            "--restore-command",
            &fetch,
            "--set",
            "archive_mode=off",
        ];
        let restored = Cluster::restored_with(version, &cluster.path("repository"), &flags);
        restored.start();
        restored.assert_has_content();
        assert_eq!(restored.psql("SELECT n FROM before"), "7");
    }
}

#[test]
fn without_an_archive_wal_cannot_be_left_to_it() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let ran = cluster
        .backup("repository", &["--wal", "archived"])
        .ends_with(1)
        .has_one_error("archive_mode is \"off\"");
    assert!(ran.err.contains("hint:"), "{}", ran.err);
    assert!(!cluster.path("repository").exists());
    cluster.assert_nothing_is_left();
}

#[test]
fn an_archive_that_takes_nothing_is_an_error_that_names_the_segment() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &["archive_mode = on", "archive_command = 'false'"]);
    let environment = Environment {
        variables: Default::default(),
        user: None,
        home: None,
        socket_directories: vec![],
    };
    let mut session =
        Session::connect(&Params::new(&cluster.url(), &environment).unwrap()).unwrap();
    let facts = session.facts().unwrap();
    let error =
        archiver::check_archiving(&mut session, &facts, Duration::from_secs(3)).unwrap_err();
    assert!(
        error.what.contains("into the archive within 3 s"),
        "{error:?}"
    );
    assert!(
        error.line().contains("; it fails to archive 0000"),
        "{}",
        error.line()
    );
}

#[test]
fn an_archive_that_works_again_is_waited_for() {
    let Some(version) = debian() else { return };
    let command = "archive_command = 'test -e ../works && cp %p ../archive/%f'";
    let cluster = Cluster::stopped(version, &["archive_mode = on", command]);
    let archive = cluster.make_dir("archive");
    fs::write(cluster.path("works"), "").unwrap();
    cluster.start();
    let slow = Slow::of(args![cluster.url(), "--wal", "archived"]);
    fs::remove_file(cluster.path("works")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(2));
            fs::write(cluster.path("works"), "").unwrap();
        });
        slow.end().0.ends_with(0);
    });
    assert!(!names(&archive).is_empty());
}

#[test]
fn waiting_for_the_archive_comes_after_the_end_of_the_backup() {
    for version in some_versions() {
        let cluster = Cluster::stopped(
            version,
            &["archive_mode = on", "archive_command = 'sleep 2'"],
        );
        cluster.start();
        let said = cluster
            .backup("repository", &["--wal", "archived", "--json"])
            .ends_with(0)
            .json();
        // Once for the proof that it archives, once for the last segment.
        let awaited = "the server's archive";
        assert!(
            said.iter()
                .any(|line| line["type"] == "progress" && line["waits_for"] == awaited),
            "{said:?}"
        );
        let waited = said.last().unwrap()["waited"].as_array().unwrap().clone();
        assert_eq!(
            waited.iter().filter(|one| one["for"] == awaited).count(),
            2,
            "{waited:?}"
        );
        let root = fullbore(args!["show", cluster.path("repository"), "--json"])
            .json()
            .remove(0)["root"]
            .take();
        let [begun, stopped, finished] = [
            &root["time"],
            &root["postgres"]["stopped"],
            &root["finished"],
        ]
        .map(|time| time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap());
        assert!(
            begun < stopped && stopped.as_second() < finished.as_second(),
            "{begun} {stopped} {finished}"
        );
        let (destination, time) = (cluster.path("to"), stopped.to_string());
        let args = args![
            "restore",
            cluster.path("repository"),
            "--to",
            destination,
            "--target-time",
            time,
            "--quiet"
        ];
        fullbore(args.into_iter().chain(args!["--restore-command", "false"])).ends_with(0);
    }
}

#[test]
fn wal_that_nobody_looked_for_is_warned_of() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let ran = cluster
        .backup("repository", &["--wal", "none"])
        .ends_with(0);
    assert!(
        ran.err.contains("WARNING: its WAL is not included"),
        "{}",
        ran.err
    );
    let restored = Cluster::restored(version, &cluster.path("repository"));
    assert_eq!(wal_in(&restored), [""; 0]);
    assert!(!restored.starts());
    let ran = fullbore(args![
        "restore",
        cluster.path("repository"),
        "--to",
        cluster.path("again")
    ])
    .ends_with(0);
    let first = ran.err.lines().find(|line| line.starts_with("next: "));
    assert!(
        first.is_some_and(|line| line.contains("into \"pg_wal\", or restore again with")),
        "{}",
        ran.err
    );
}

#[test]
fn a_role_that_may_not_end_a_segment_is_told_what_it_needs() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &["archive_mode = on", "archive_command = 'true'"]);
    cluster.start();
    cluster.psql_each(&[
        "CREATE ROLE tester LOGIN REPLICATION IN ROLE pg_read_all_settings",
        "GRANT EXECUTE ON FUNCTION pg_backup_start(text, boolean), pg_backup_stop(boolean) TO tester",
    ]);
    let backup = || {
        fullbore(args![
            "backup",
            cluster.url_as("tester"),
            "--to",
            "null:",
            "--wal",
            "archived"
        ])
    };
    let ran = backup()
        .ends_with(1)
        .has_one_error("could not end the WAL segment");
    assert!(
        ran.err
            .contains("GRANT EXECUTE ON FUNCTION pg_catalog.pg_switch_wal() TO"),
        "{}",
        ran.err
    );
    cluster.psql("GRANT EXECUTE ON FUNCTION pg_switch_wal() TO tester");
    backup().ends_with(0);
}

#[test]
fn an_archive_that_is_behind_is_waited_for_while_it_moves() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(
        version,
        &["archive_mode = on", "archive_command = 'sleep 2'"],
    );
    cluster.start();
    (0..5).for_each(|n| {
        cluster.psql_each(&[&format!("CREATE TABLE t{n} ()"), "SELECT pg_switch_wal()"])
    });
    let environment = Environment {
        variables: Default::default(),
        user: None,
        home: None,
        socket_directories: vec![],
    };
    let mut session =
        Session::connect(&Params::new(&cluster.url(), &environment).unwrap()).unwrap();
    let facts = session.facts().unwrap();
    let patience = Duration::from_secs(7);
    let begun = std::time::Instant::now();
    archiver::check_archiving(&mut session, &facts, patience).unwrap();
    assert!(begun.elapsed() < patience);
    let last = session.switch_wal().unwrap();
    let data = fullbore_postgres::data_dir::local::LocalDir::new(&cluster.data());
    archiver::await_segment(&mut session, &data, &last, patience).unwrap();
    assert!(begun.elapsed() > patience);
}

#[test]
fn one_database_is_recovered_though_wal_speaks_of_pages_of_the_others() {
    let Some(version) = debian() else { return };
    for checksums in [true, false] {
        let lines = [
            "archive_mode = on",
            ARCHIVE,
            "autovacuum = off",
            "max_prepared_transactions = 2",
        ];
        let cluster = Cluster::stopped(version, &lines);
        let archive = cluster.make_dir("archive");
        let disable = |mut command: Command| {
            command
                .args(["--disable", "-D"])
                .arg(cluster.data())
                .status()
                .unwrap()
        };
        assert!(checksums || disable(cluster.command("pg_checksums")).success());
        cluster.start();
        cluster.psql_each(&["CREATE DATABASE shop", "CREATE DATABASE other"]);
        cluster.in_database("shop", "CREATE TABLE t AS SELECT generate_series(1, 1000)");
        cluster.in_database(
            "other",
            "CREATE TABLE t AS SELECT generate_series(1, 100000)",
        );
        cluster.in_database(
            "other",
            "CREATE TABLE h AS SELECT 1 AS a, b FROM generate_series(1, 3000) b",
        );
        cluster.in_database("other", "CREATE INDEX ON h USING hash (a)");
        cluster.in_database("other", "DELETE FROM h WHERE b BETWEEN 1000 AND 2500");
        for database in ["shop", "other"] {
            let work = "CREATE TABLE p (); PREPARE TRANSACTION";
            cluster.in_database(database, &format!("BEGIN; {work} '{database}'"));
        }
        cluster.in_database(
            "other",
            "CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION p WITH (connect = false)",
        );
        let ran = cluster.backup("repository", &[]).ends_with(0);
        assert!(!ran.err.contains("error"), "{}", ran.err);
        // What VACUUM says of pages has no image of them where there are no checksums, of hash indexes nowhere.
        cluster.in_database("other", "VACUUM t");
        cluster.in_database("other", "VACUUM h");
        cluster.in_database("shop", "INSERT INTO t VALUES (1)");
        cluster.psql("SELECT pg_switch_wal()");
        let fetch = format!("cp {}/%f %p", archive.display());
        let restored = Cluster::empty(version);
        let line = args![
            "restore",
            cluster.path("repository"),
            "--to",
            restored.data(),
            "--database",
            "shop"
        ];
        let more = args!["--restore-command", fetch, "--set", "archive_mode=off"];
        let ran = fullbore(line.into_iter().chain(more)).ends_with(0);
        assert!(
            ran.err.contains("subscriptions (1)") && ran.err.contains(": 1 prepared transaction"),
            "{}",
            ran.err
        );
        restored.start();
        wait_until("it is promoted", || {
            restored.psql("SELECT pg_is_in_recovery()") == "f"
        });
        assert_eq!(
            restored.in_database("shop", "SELECT count(*) FROM t"),
            "1001"
        );
        // Nobody could end a transaction in a database that one cannot connect to, nor drop that.
        assert_eq!(
            restored.psql("SELECT string_agg(gid, ' ') FROM pg_prepared_xacts"),
            "shop"
        );
        let next: Vec<&str> = ran
            .err
            .lines()
            .filter_map(|line| line.strip_prefix("next: "))
            .skip(1)
            .collect();
        assert_eq!(next.len(), 3, "{next:?}");
        restored.psql_each(&next);
        assert_eq!(
            restored.psql("SELECT count(*) FROM pg_database WHERE datname = 'other'"),
            "0"
        );
    }
}

#[test]
fn what_another_recovery_left_in_the_configuration_does_not_count() {
    for version in versions() {
        let left = [
            "recovery_target_time = '2001-01-01'",
            "recovery_target_timeline = '1'",
        ];
        let lines = [
            "archive_mode = on",
            ARCHIVE,
            "recovery_target_action = 'shutdown'",
            left[0],
            left[1],
        ];
        let cluster = Cluster::stopped(version, &lines);
        let archive = cluster.make_dir("archive");
        cluster.start();
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let made = [
            "CREATE TABLE here (n int)",
            "SELECT pg_create_restore_point('here')",
            "CREATE TABLE later (n int)",
        ];
        cluster.psql_each(&made);
        cluster.psql("SELECT pg_switch_wal()");
        let fetch = format!("cp {}/%f %p", archive.display());
        for (target, found) in [
            (&["--target-name", "here"][..], "here"),
            (&["--recovery", "point"], "here later"),
        ] {
            let flags = [
                target,
                &["--restore-command", &fetch, "--set", "archive_mode=off"],
            ]
            .concat();
            let restored = Cluster::restored_with(version, &cluster.path("repository"), &flags);
            restored.start();
            let tables = "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class \
                WHERE relname IN ('here', 'later')";
            wait_until("it has come to its target", || {
                restored.psql(tables) == found
            });
        }
    }
}

#[test]
fn recovery_to_a_place_begins_with_the_last_backup_that_ended_before_it() {
    for version in some_versions() {
        let cluster = Cluster::stopped(version, &["archive_mode = on", ARCHIVE]);
        let archive = cluster.make_dir("archive");
        cluster.start();
        let now = || {
            cluster.psql(
                "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.USZ')",
            )
        };
        let (before, repository) = (now(), cluster.path("repository"));
        cluster.psql("CREATE TABLE t AS SELECT 1 AS n");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.psql("INSERT INTO t VALUES (2)");
        let (time, lsn) = (now(), cluster.psql("SELECT pg_current_wal_lsn()"));
        cluster.psql("INSERT INTO t VALUES (3)");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.psql("SELECT pg_switch_wal()");
        let fetch = format!("cp {}/%f %p", archive.display());
        let more = args![
            "--restore-command",
            fetch,
            "--set",
            "archive_mode=off",
            "--target-action",
            "promote"
        ];
        let restore = |source: &str, destination: &Path, target: [&str; 2]| {
            let line = args![
                "restore",
                format!("{}{source}", repository.display()),
                "--to",
                destination,
                target[0],
                target[1]
            ];
            fullbore(line.into_iter().chain(more.clone()))
        };
        for target in [["--target-time", &time], ["--target-lsn", &lsn]] {
            let restored = Cluster::empty(version);
            let ran = restore("", &restored.data(), target).ends_with(0);
            assert!(
                ran.err
                    .contains(" is the last one that can be recovered to the target"),
                "{}",
                ran.err
            );
            restored.start();
            wait_until("it is promoted", || {
                restored.psql("SELECT pg_is_in_recovery()") == "f"
            });
            assert_eq!(
                restored.psql("SELECT string_agg(n::text, ' ') FROM t"),
                "1 2"
            );
        }
        let destination = cluster.path("to");
        let ran = restore("", &destination, ["--target-time", &now()]).ends_with(0);
        assert!(!ran.err.contains("is the last one"), "{}", ran.err);
        let other = cluster.path("other");
        restore("@latest", &other, ["--target-time", &time])
            .ends_with(2)
            .has_one_error("the backup ended later");
        let ended =
            fullbore(args!["list", repository, "--json"]).json()[0]["postgres"]["stopped"].clone();
        // Zeros at the end of a fraction are left out there.
        let ended = ended
            .as_str()
            .unwrap()
            .trim_end_matches('Z')
            .trim_end_matches('0')
            .trim_end_matches('.');
        let first = format!("the backup ended later, at {ended}Z");
        restore("", &other, ["--target-time", &before])
            .ends_with(2)
            .has_one_error(&first);
        restore("", &other, ["--target-time", "yesterday"])
            .ends_with(2)
            .has_one_error("it is not a time");
        assert!(!other.exists());
        let plan = args![
            "restore",
            repository,
            "--target-time",
            time,
            "--restore-command",
            "x",
            "--plan",
            "--json"
        ];
        let first = &fullbore(args!["list", repository, "--json"]).json()[0]["id"];
        assert_eq!(&fullbore(plan).ends_with(0).json()[0]["id"], first);
    }
}

/// A second backup was made after the place to which the server was then set back, so that it is on another timeline since.
#[test]
fn recovery_does_not_begin_on_a_timeline_that_was_left() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &["archive_mode = on", ARCHIVE]);
    let archive = cluster.make_dir("archive");
    cluster.start();
    let repository = cluster.path("repository");
    cluster.psql("CREATE TABLE t AS SELECT 'before' AS said");
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    cluster.psql("INSERT INTO t VALUES ('kept')");
    let lsn = cluster.psql("SELECT pg_current_wal_lsn()");
    cluster.psql("INSERT INTO t VALUES ('undone')");
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    cluster.psql("SELECT pg_switch_wal()");
    cluster.stop("fast");
    let fetch = format!("cp {}/%f %p", archive.display());
    let recovered = |lsn: &str, more: &[&str]| {
        let flags = [
            "--target-lsn",
            lsn,
            "--target-action",
            "promote",
            "--restore-command",
            &fetch,
        ];
        let restored = Cluster::restored_with(version, &repository, &[&flags, more].concat());
        restored.start();
        wait_until("it is promoted", || {
            restored.psql("SELECT pg_is_in_recovery()") == "f"
        });
        restored
    };
    let put = format!("archive_command=cp %p {}/%f", archive.display());
    let set_back = recovered(&lsn, &["--set", &put]);
    let said = |cluster: &Cluster| cluster.psql("SELECT string_agg(said, ' ') FROM t");
    assert_eq!(said(&set_back), "before kept");
    // Far behind where the second backup ended.
    for _ in 0..3 {
        set_back.psql_each(&["INSERT INTO t VALUES ('anew')", "SELECT pg_switch_wal()"]);
    }
    let lsn = set_back.psql("SELECT pg_current_wal_lsn()");
    set_back.psql("INSERT INTO t VALUES ('too late')");
    fullbore(args![
        "backup",
        set_back.url(),
        "--to",
        repository,
        "--quiet"
    ])
    .ends_with(0);
    let anew = recovered(&lsn, &["--set", "archive_mode=off"]);
    assert_eq!(said(&anew), "before kept anew anew anew");
}

#[test]
fn before_a_drop_a_server_that_stands_still_has_locked_the_table_and_one_that_is_promoted_has_it() {
    for version in some_versions() {
        let cluster = Cluster::stopped(version, &["archive_mode = on", ARCHIVE]);
        let archive = cluster.make_dir("archive");
        cluster.configure(&[&format!(
            "restore_command = 'cp {}/%f %p'",
            archive.display()
        )]);
        cluster.start();
        cluster.psql("CREATE TABLE t AS SELECT 7 AS n");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.in_session(&[
            "BEGIN",
            "DROP TABLE t",
            "SELECT pg_create_restore_point('here')",
            "COMMIT",
        ]);
        cluster.psql("SELECT pg_switch_wal()");
        // The restore_command of its own configuration counts.
        let restored = |more: &[&str]| {
            let restored = Cluster::empty(version);
            let line = args![
                "restore",
                cluster.path("repository"),
                "--to",
                restored.data(),
                "--target-name",
                "here"
            ];
            let line = line
                .into_iter()
                .chain(args!["--set", "archive_mode=off"])
                .chain(more.iter().map(Into::into));
            let ran = fullbore(line).ends_with(0);
            restored.start();
            (ran, restored)
        };
        let (ran, paused) = restored(&[]);
        assert!(
            ran.err
                .contains("next: right before a DROP or TRUNCATE that table is locked"),
            "{}",
            ran.err
        );
        wait_until("it stands still", || {
            paused.psql("SELECT pg_get_wal_replay_pause_state()") == "paused"
        });
        let error = paused
            .client()
            .batch_execute("SET lock_timeout = '300ms'; SELECT FROM t")
            .unwrap_err();
        assert_eq!(
            error.code(),
            Some(&postgres::error::SqlState::LOCK_NOT_AVAILABLE)
        );
        let (ran, promoted) = restored(&["--target-action", "promote"]);
        assert!(!ran.err.contains("locked"), "{}", ran.err);
        wait_until("it is promoted", || {
            promoted.psql("SELECT pg_is_in_recovery()") == "f"
        });
        assert_eq!(promoted.psql("SELECT n FROM t"), "7");
    }
}

#[test]
fn a_standby_of_a_server_that_was_recovered_stays_one_once_the_next_steps_are_done() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &["wal_keep_size = 64MB"]);
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let recovered = Cluster::empty(version);
        let line = args![
            "restore",
            cluster.path("repository"),
            "--to",
            recovered.data(),
            "--target-immediate"
        ];
        let more = args!["--target-action", "promote", "--restore-command", "false"];
        let ran = fullbore(line.into_iter().chain(more)).ends_with(0);
        recovered.start();
        wait_until("it is promoted", || {
            recovered.psql("SELECT pg_is_in_recovery()") == "f"
        });
        let next: Vec<&str> = ran
            .err
            .lines()
            .filter_map(|line| line.strip_prefix("next: "))
            .skip(1)
            .collect();
        assert!(
            next.iter()
                .all(|step| step.starts_with("ALTER SYSTEM RESET ")),
            "{next:?}"
        );
        recovered.psql_each(&next);
        recovered.psql("CREATE TABLE t AS SELECT 7 AS n");
        // A copy of its files, as pg_basebackup makes one: with the settings that its recovery has left.
        recovered.backup("for_standby", &["--quiet"]).ends_with(0);
        let standby = Cluster::restored(version, &recovered.path("for_standby"));
        fs::write(standby.data().join("standby.signal"), "").unwrap();
        own(&standby.data().join("standby.signal"));
        standby.configure(&[&format!(
            "primary_conninfo = 'host={} user=postgres'",
            recovered.path("").display()
        )]);
        standby.start();
        recovered.psql("INSERT INTO t VALUES (8)");
        wait_until("it follows", || {
            standby.psql("SELECT sum(n) FROM t") == "15"
        });
        assert_eq!(standby.psql("SELECT pg_is_in_recovery()"), "t");
    }
}

#[test]
fn a_plain_restore_stays_on_its_timeline_and_starts_with_less_than_the_old_server_had() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &["max_connections = 50"]);
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let timeline = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)";
        let less = ["--set", "max_connections=20"];
        let restored = Cluster::restored_with(version, &cluster.path("repository"), &less);
        restored.start();
        // The next steps need a server that is open.
        restored.psql("CREATE TABLE open ()");
        assert_eq!(restored.psql(timeline), "00000001");
        let point = [
            "--target-immediate",
            "--target-action",
            "promote",
            "--restore-command",
            "false",
        ];
        let restored = Cluster::restored_with(
            version,
            &cluster.path("repository"),
            &[&point[..], &less].concat(),
        );
        assert!(
            !restored.starts(),
            "a server that recovers to a point wants what the old one had"
        );
        let restored = Cluster::restored_with(version, &cluster.path("repository"), &point);
        restored.start();
        wait_until("it is promoted", || {
            restored.psql("SELECT pg_is_in_recovery()") == "f"
        });
        assert_eq!(restored.psql(timeline), "00000002");
    }
}
