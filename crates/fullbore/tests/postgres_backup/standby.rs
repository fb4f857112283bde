//! Backups taken from a standby.

use super::{
    args,
    cluster::{Cluster, debian, some_versions, versions},
    runs::{FULLBORE, Ran, fullbore, has, or_skip, shell},
    servers::{Version, wait_until},
    slow::{Slow, assert_nothing_is_listed, held_up, started_into},
};

/// A standby of the primary, made from a backup, up to date.
pub(crate) fn standby_of(primary: &Cluster) -> Cluster {
    primary.backup("for_standby", &["--quiet"]).ends_with(0);
    let standby = following(primary, primary);
    catch_up(primary, &standby);
    standby
}

/// Another from the same backup, which gets its WAL from `of`.
fn following(primary: &Cluster, of: &Cluster) -> Cluster {
    let connect = format!(
        "primary_conninfo=host={} user=postgres",
        of.path("").display()
    );
    let flags = ["--recovery", "standby", "--set", &connect];
    let standby = Cluster::restored_with(&primary.version, &primary.path("for_standby"), &flags);
    standby.start();
    standby
}

/// Everything the primary has is in the standby, which may be the same.
pub(crate) fn catch_up(primary: &Cluster, standby: &Cluster) {
    let position = primary.psql("SELECT pg_current_wal_lsn()");
    let there =
        format!("SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= '{position}'");
    wait_until("the standby catches up", || standby.psql(&there) == "t");
}

#[test]
fn a_backup_of_a_standby_restores_and_starts_as_a_primary() {
    for version in versions() {
        let primary = Cluster::new(version, &["wal_keep_size = 64MB"]);
        let standby = standby_of(&primary);
        primary.psql_each(&[
            "CREATE TABLE after AS SELECT n FROM generate_series(1, 5000) n",
            "CHECKPOINT",
        ]);
        catch_up(&primary, &standby);
        let slow = Slow::of_running(&standby);
        primary.psql_each(&[
            "INSERT INTO after SELECT n FROM generate_series(5001, 9000) n",
            "VACUUM FULL small",
        ]);
        catch_up(&primary, &standby);
        let restored = slow.end_well(&standby);
        restored.assert_verifies();
        assert!(!restored.data().join("standby.signal").exists());
        restored.start();
        restored.assert_has_content();
        assert_eq!(restored.psql("SELECT pg_is_in_recovery()"), "f");
        let rows: u32 = restored.psql("SELECT count(*) FROM after").parse().unwrap();
        assert!(rows == 5000 || rows == 9000, "{rows}");
        standby.backup("repository", &["--quiet"]).ends_with(0);
        let root = fullbore(args!["show", standby.path("repository"), "--json"])
            .json()
            .remove(0)["root"]
            .take();
        assert_eq!(root["postgres"]["standby"], true);
    }
}

#[test]
fn the_files_of_the_primary_are_not_taken_for_those_of_its_standby() {
    let Some(version) = debian() else { return };
    let primary = Cluster::new(version, &["wal_keep_size = 64MB"]);
    let standby = standby_of(&primary);
    // Hosts that have their clusters at the same path, and the address of the other one.
    let line = "unshare -m bash -c 'mount --bind \"$1\" \"$2\" && echo mounted && shift 2 && exec \"$@\"' bash \"$@\"";
    let backup = |(here, there): (&Cluster, &Cluster), wal: &str| -> Ran {
        let command = args![
            here.data(),
            there.data(),
            FULLBORE,
            "backup",
            there.url(),
            "--to",
            "null:",
            "--via",
            "files",
            "--wal",
            wal
        ];
        shell(line, command)
    };
    for (here, there) in [(&primary, &standby), (&standby, &primary)] {
        for wal in ["included", "none"] {
            let ran = backup((here, there), wal);
            if !or_skip(ran.out.contains("mounted"), "nothing can be mounted here") {
                return;
            }
            let ran = ran
                .ends_with(2)
                .has_one_error("do not belong to the server that answers");
            assert!(
                ran.err
                    .contains("the replication slot that the server made is not among them"),
                "{}",
                ran.err
            );
            there.assert_nothing_is_left();
        }
    }
    // A server without slots tells them apart by what each is.
    standby.stop("fast");
    standby.configure(&["max_replication_slots = 0"]);
    standby.start();
    let ran = backup((&primary, &standby), "none").ends_with(2);
    assert!(
        ran.err
            .contains("one of the two is a standby, the other a primary"),
        "{}",
        ran.err
    );
    backup((&standby, &standby), "none").ends_with(0);
}

#[test]
fn a_promotion_voids_the_backup() {
    let Some(version) = debian() else { return };
    let primary = Cluster::new(version, &["wal_keep_size = 64MB"]);
    let standby = standby_of(&primary);
    let slow = Slow::of_running(&standby);
    let child = started_into(&standby.path("repository"), args![standby.url()]);
    standby.psql("SELECT pg_promote()");
    slow.end()
        .0
        .ends_with(1)
        .has_one_error("the standby was promoted");
    Ran::from(child.wait_with_output().unwrap())
        .ends_with(1)
        .has_one_error("the standby was promoted");
    assert_nothing_is_listed(&standby.path("repository"));
    standby.assert_nothing_is_left();
    standby.backup("repository", &["--quiet"]).ends_with(0);
    let restored = Cluster::restored(version, &standby.path("repository"));
    restored.assert_verifies();
    restored.start();
    restored.assert_has_content();
}

#[test]
fn a_backup_of_timeline_2_has_the_history_and_is_followed_by_a_standby() {
    let Some(version) = debian() else { return };
    let primary = Cluster::new(version, &["wal_keep_size = 64MB"]);
    let promoted = standby_of(&primary);
    primary.stop("fast");
    promoted.psql("SELECT pg_promote()");
    let next = standby_of(&promoted);
    assert!(next.data().join("pg_wal/00000002.history").exists());
    next.assert_has_content();
    next.backup("repository", &["--quiet"]).ends_with(0);
    let restored = Cluster::restored(version, &next.path("repository"));
    restored.start();
    restored.assert_has_content();
}

#[test]
fn a_standby_that_followed_a_new_primary_is_backed_up_with_the_wal_of_both_timelines() {
    for version in some_versions() {
        let [_primary, _promoted, next] =
            followed_from_one_to_the_next(version, "SELECT pg_switch_wal()");
        next.backup("repository", &["--quiet"]).ends_with(0);
        let root = fullbore(args!["show", next.path("repository"), "--json"])
            .json()
            .remove(0)["root"]
            .take();
        let segments: Vec<&str> = root["postgres"]["wal_segments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect();
        assert!(
            segments[0].starts_with("00000001") && segments[1].starts_with("00000002"),
            "{segments:?}"
        );
        let restored = Cluster::restored(version, &next.path("repository"));
        restored.assert_verifies();
        restored.start();
        assert_eq!(
            restored.psql("SELECT count(*) FROM before WHERE n = 0"),
            "5000"
        );
        assert_eq!(restored.psql("SELECT count(*) FROM after"), "0");
    }
}

/// A primary, a standby of it that was promoted, and one that followed it there and begins its backups before that: in the same
/// segment, unless the primary does something about it.
fn followed_from_one_to_the_next(version: &Version, does: &str) -> [Cluster; 3] {
    let primary = Cluster::new(
        version,
        &["wal_keep_size = 64MB", "checkpoint_timeout = 1h"],
    );
    let promoted = standby_of(&primary);
    let next = following(&primary, &promoted);
    primary.psql_each(&[
        "CHECKPOINT",
        "CREATE TABLE before AS SELECT n FROM generate_series(1, 5000) n",
    ]);
    primary.psql_each(&[does, "UPDATE before SET n = 0"]);
    catch_up(&primary, &promoted);
    catch_up(&primary, &next);
    // No checkpoint is made by a promotion until its own, spread one ends.
    promoted.psql_each(&["SELECT pg_promote()", "CREATE TABLE after (n int)"]);
    wait_until("the standby follows", || {
        next.psql("SELECT count(*) FROM pg_class WHERE relname = 'after'") == "1"
    });
    [primary, promoted, next]
}

/// Nor does the server remove the earlier one's file of the segment that both have.
#[test]
fn what_two_timelines_share_is_kept_for_as_long_as_the_backup_lasts() {
    let Some(version) = debian().filter(|_| or_skip(has("strace"), "there is no strace")) else {
        return;
    };
    let [_primary, promoted, next] = followed_from_one_to_the_next(version, "SELECT");
    next.configure(&[
        "wal_keep_size = 0",
        "max_wal_size = 32MB",
        "min_wal_size = 32MB",
    ]);
    next.psql("SELECT pg_reload_conf()");
    let child = held_up(&next, 8, "zstd:1");
    wait_until("the slot is there", || {
        next.psql("SELECT count(*) FROM pg_replication_slots") == "1"
    });
    for n in 0..6 {
        promoted.psql_each(&[
            &format!("INSERT INTO after VALUES ({n})"),
            "SELECT pg_switch_wal()",
        ]);
        std::thread::sleep(std::time::Duration::from_millis(500));
        promoted.psql("CHECKPOINT");
        catch_up(&promoted, &next);
        next.psql("CHECKPOINT");
    }
    Ran::from(child.wait_with_output().unwrap()).ends_with(0);
    let restored = Cluster::restored(version, &next.path("repository"));
    restored.assert_verifies();
    restored.start();
    assert_eq!(restored.psql("SELECT count(*) FROM after"), "6");
}

/// What a standby delays is not in its backup, though it has it.
#[test]
fn a_backup_of_a_standby_ends_where_that_had_come_to() {
    let Some(version) = debian().filter(|_| or_skip(has("strace"), "there is no strace")) else {
        return;
    };
    let primary = Cluster::new(version, &[]);
    primary.psql("CREATE TABLE dear AS SELECT 1");
    let standby = standby_of(&primary);
    standby.psql("SELECT pg_wal_replay_pause()");
    let child = held_up(&standby, 6, "zstd:1");
    wait_until("the slot is there", || {
        standby.psql("SELECT count(*) FROM pg_replication_slots") == "1"
    });
    primary.psql_each(&[
        "DROP TABLE dear",
        "SELECT pg_switch_wal()",
        "CREATE TABLE other ()",
        "SELECT pg_switch_wal()",
    ]);
    let position = primary.psql("SELECT pg_current_wal_flush_lsn()");
    wait_until("it has all", || {
        standby.psql(&format!("SELECT pg_last_wal_receive_lsn() >= '{position}'")) == "t"
    });
    Ran::from(child.wait_with_output().unwrap()).ends_with(0);
    let restored = Cluster::restored(version, &standby.path("repository"));
    // The last segment is not ended: the restored server writes on in it, and is to archive it then.
    let wal = super::runs::names(&restored.data().join("pg_wal"));
    let last = wal.iter().filter(|name| name.len() == 24).max().unwrap();
    let done = super::runs::names(&restored.data().join("pg_wal/archive_status"));
    assert!(!done.contains(&format!("{last}.done")), "{done:?} {wal:?}");
    restored.start();
    assert_eq!(restored.psql("SELECT count(*) FROM dear"), "1");
}
