//! What changes in a cluster between the listing of its files and their reading.

use super::{
    args,
    cluster::{Cluster, debian, some_versions, versions},
    servers::wait_until,
    slow::Slow,
};
use fullbore_postgres::{
    data_dir::local::LocalDir, lsn::Lsn, new_init_forks::new_init_forks, timeline::Timelines,
    wal_reader::WalSegments,
};

const BEFORE: [&str; 4] = [
    "CREATE TABLE dropped AS SELECT n FROM generate_series(1, 20000) n",
    "CREATE TABLE truncated AS SELECT n FROM generate_series(1, 20000) n",
    "CREATE TABLE cut AS SELECT n FROM generate_series(1, 20000) n",
    "CREATE TABLE extended AS SELECT n FROM generate_series(1, 20000) n",
];

const MEANWHILE: [&str; 14] = [
    "DROP TABLE dropped",
    "TRUNCATE truncated",
    "INSERT INTO truncated VALUES (7)",
    "DELETE FROM cut WHERE n > 100",
    "VACUUM cut", // gives the end of the file back
    "INSERT INTO extended SELECT n FROM generate_series(20001, 60000) n",
    "CREATE TABLE created AS SELECT n FROM generate_series(1, 500) n",
    "CREATE INDEX ON created (n)",
    "VACUUM FULL small",
    "UPDATE large SET words = words || n WHERE n % 50 = 0",
    "CREATE DATABASE another",
    "CREATE ROLE somebody",
    "CREATE UNLOGGED TABLE unlogged AS SELECT n FROM generate_series(1, 500) n",
    "CHECKPOINT", // all of this is in the files
];

#[test]
fn tables_that_change_while_they_are_read_are_restored_as_they_were_at_the_end() {
    for version in versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.psql_each(&BEFORE);
        let slow = Slow::of_running(&cluster);
        cluster.psql_each(&MEANWHILE);
        let restored = slow.end_well(&cluster);
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
        let count = |table: &str| restored.psql(&format!("SELECT count(*), sum(n) FROM {table}"));
        assert_eq!(restored.psql("SELECT to_regclass('dropped') IS NULL"), "t");
        assert_eq!(count("truncated"), "1|7");
        assert_eq!(count("cut"), "100|5050");
        assert_eq!(count("extended"), "60000|1800030000");
        assert_eq!(count("created"), "500|125250");
        assert_eq!(count("unlogged"), "0|");
        assert_eq!(
            restored.psql("SELECT count(*) FROM large WHERE length(words) > 256"),
            "800"
        );
        assert_eq!(
            restored.psql("SELECT count(*) FROM pg_database WHERE datname = 'another'"),
            "1"
        );
        assert_eq!(
            restored.psql("SELECT count(*) FROM pg_roles WHERE rolname = 'somebody'"),
            "1"
        );
    }
}

/// A later checkpoint writes files of what the WAL has: a server from 17 on that finds them loses the transactions.
#[test]
fn transactions_that_are_prepared_while_files_are_read_come_back_from_the_wal() {
    for version in versions() {
        let cluster = Cluster::new(version, &["max_prepared_transactions = 10"]);
        let mut session = cluster.client();
        let mut prepare = |name: &str| {
            let work = "BEGIN; DELETE FROM small WHERE n = 0";
            session
                .batch_execute(&format!(
                    "{work}; SELECT pg_current_xact_id(); PREPARE TRANSACTION '{name}'"
                ))
                .unwrap();
        };
        prepare("before");
        let slow = Slow::of_running(&cluster);
        ["first", "second", "third"]
            .into_iter()
            .for_each(&mut prepare);
        cluster.psql("CHECKPOINT");
        let restored = slow.end_well(&cluster);
        restored.assert_verifies();
        restored.start();
        let prepared = restored.psql(
            "SELECT string_agg(gid, ' ' ORDER BY transaction::text::int) FROM pg_prepared_xacts",
        );
        assert_eq!(prepared, "before first second third", "{version:?}");
    }
}

#[test]
fn a_database_that_is_moved_makes_the_backup_void_and_a_new_tablespace_is_warned_of() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let create = |name: &str| {
            let path = cluster.make_dir(name);
            cluster.psql(&format!(
                "CREATE TABLESPACE {name} LOCATION '{}'",
                path.display()
            ));
            path
        };
        create("early");
        cluster.psql("CREATE DATABASE mover");
        let slow = Slow::of_running(&cluster);
        cluster.psql("ALTER DATABASE mover SET TABLESPACE early");
        slow.end()
            .0
            .ends_with(1)
            .has_one_error("database \"mover\" was moved meanwhile");
        let slow = Slow::of_running(&cluster);
        let late = create("late");
        cluster.psql("CREATE DATABASE other TABLESPACE early");
        let said =
            format!("WARNING: tablespace \"late\" was created at {late:?} while the backup ran");
        assert!(slow.end().0.ends_with(0).err.contains(&said), "{said}");
    }
}

#[test]
fn a_database_that_is_copied_from_one_that_people_work_in_makes_the_backup_void() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let (by_files, by_wal) = if version.major < 15 {
            ("", None)
        } else {
            (" STRATEGY file_copy", Some(" STRATEGY wal_log"))
        };
        let path = cluster.make_dir("early");
        cluster.psql(&format!(
            "CREATE TABLESPACE early LOCATION '{}'",
            path.display()
        ));
        cluster.psql("CREATE DATABASE worked_in");
        let long = || {
            cluster.psql(
                "CREATE TABLE long AS SELECT n, repeat('x', 5000) FROM generate_series(1, 3000) n",
            );
            cluster.psql("DROP TABLE long");
            cluster.psql("SELECT pg_switch_wal()");
        };
        let slow = Slow::of_running(&cluster);
        long();
        cluster.psql("ALTER DATABASE worked_in SET TABLESPACE early");
        cluster.psql("ALTER DATABASE worked_in SET TABLESPACE pg_default");
        slow.end()
            .0
            .ends_with(1)
            .has_one_error("database \"worked_in\" was copied or moved meanwhile");
        let slow = Slow::of_running(&cluster);
        long();
        cluster.psql(&format!(
            "CREATE DATABASE copied TEMPLATE worked_in{by_files}"
        ));
        slow.end()
            .0
            .ends_with(1)
            .has_one_error("database \"copied\" was copied or moved meanwhile");
        cluster.psql("DROP TABLESPACE early");
        let slow = Slow::of_running(&cluster);
        long();
        cluster.psql(&format!("CREATE DATABASE of_template{by_files}"));
        cluster.psql(&format!(
            "CREATE DATABASE gone TEMPLATE worked_in{by_files}"
        ));
        cluster.psql("DROP DATABASE gone");
        by_wal.into_iter().for_each(|change| {
            _ = cluster.psql(&format!(
                "CREATE DATABASE logged TEMPLATE worked_in{change}"
            ))
        });
        slow.end_well(&cluster).start();
    }
}

/// Without a slot the server removes WAL while the backup runs: what it said of copies is known all the same.
#[test]
fn a_copied_database_makes_a_backup_void_though_its_wal_is_gone() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let by_files = if version.major < 15 {
            ""
        } else {
            " STRATEGY file_copy"
        };
        cluster.psql("ALTER SYSTEM SET max_wal_size = '32MB'");
        cluster.psql_each(&[
            "ALTER SYSTEM SET min_wal_size = '32MB'",
            "SELECT pg_reload_conf()",
            "CREATE DATABASE worked_in",
        ]);
        let slow = Slow::of(args![cluster.url(), "--wal", "none"]);
        let first = cluster.psql("SELECT pg_walfile_name(pg_current_wal_lsn())");
        cluster.psql(&format!(
            "CREATE DATABASE copied TEMPLATE worked_in{by_files}"
        ));
        std::thread::sleep(std::time::Duration::from_secs(3));
        let there = || cluster.data().join("pg_wal").join(&first).exists();
        for _ in (0..20).take_while(|_| there()) {
            cluster.psql(
                "CREATE TABLE long AS SELECT n, repeat('x', 5000) FROM generate_series(1, 3000) n",
            );
            cluster.psql("DROP TABLE long");
            cluster.psql_each(&["SELECT pg_switch_wal()", "CHECKPOINT"]);
        }
        assert!(!there(), "{first}");
        slow.end()
            .0
            .ends_with(1)
            .has_one_error("database \"copied\" was copied or moved meanwhile");
    }
}

#[test]
fn files_that_wal_does_not_repair_are_whole_if_they_are_replaced_meanwhile() {
    for version in versions() {
        for (before, meanwhile) in [("'8MB'", "'128MB'"), ("'128MB'", "DEFAULT")] {
            let cluster = Cluster::new(version, &[]);
            cluster.psql_each(&[&format!("ALTER SYSTEM SET work_mem = {before}")]);
            cluster.psql_each(&["SELECT pg_replication_origin_create('a')"]);
            cluster.psql_each(&[
                "SELECT pg_replication_origin_advance('a', '0/1234')",
                "CHECKPOINT",
            ]);
            let slow = Slow::of_running(&cluster);
            cluster.psql_each(&[&format!("ALTER SYSTEM SET work_mem = {meanwhile}")]);
            cluster.psql_each(&["SELECT pg_replication_origin_create('b')"]);
            cluster.psql_each(&[
                "SELECT pg_replication_origin_advance('b', '0/5678')",
                "CHECKPOINT",
            ]);
            let restored = slow.end_well(&cluster);
            restored.assert_verifies();
            let read = |server: &Cluster| {
                std::fs::read(server.data().join("postgresql.auto.conf")).unwrap()
            };
            assert_eq!(read(&restored), read(&cluster));
            restored.start();
            restored.assert_has_content();
            let origins = "SELECT count(*) FROM pg_replication_origin_status";
            assert_eq!(restored.psql(origins), "2");
        }
    }
}

#[test]
fn a_tablespace_made_meanwhile_comes_back_by_its_wal() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let old = cluster.make_dir("old");
    cluster.psql(&format!(
        "CREATE TABLESPACE old LOCATION '{}'",
        old.display()
    ));
    let slow = Slow::of_running(&cluster);
    let new = cluster.make_dir("new");
    cluster.psql(&format!(
        "CREATE TABLESPACE new LOCATION '{}'",
        new.display()
    ));
    cluster.psql_each(&[
        "CREATE TABLE in_new TABLESPACE new AS SELECT n FROM generate_series(1, 500) n",
        "CHECKPOINT",
    ]);
    let (ran, archive) = slow.end();
    ran.ends_with(0);
    let restored = Cluster::empty(version);
    super::slow::untar(&archive, &restored.data());
    let links = super::runs::shell("find \"$1\"/pg_tblspc -type l", args![restored.data()]);
    assert_eq!(links.out, "", "links lead to the live tablespaces");
    // The live server is in the way of its directories.
    cluster.stop("fast");
    std::fs::remove_dir_all(&new).unwrap();
    cluster.make_dir("new");
    super::stock::put_tablespaces_in_place(&restored);
    restored.start();
    assert_eq!(restored.psql("SELECT count(*) FROM in_new"), "500");
}

#[test]
fn a_tablespace_that_is_dropped_meanwhile_is_no_error() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let place = cluster.make_dir("old");
    cluster.psql(&format!(
        "CREATE TABLESPACE old LOCATION '{}'",
        place.display()
    ));
    let slow = Slow::of_running(&cluster);
    cluster.psql("DROP TABLESPACE old");
    let restored = slow.end_well(&cluster);
    super::stock::put_tablespaces_in_place(&restored);
    restored.start();
    assert_eq!(restored.psql("SELECT count(*) FROM pg_tablespace"), "2");
}

#[test]
fn a_database_that_is_dropped_meanwhile_is_gone() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    cluster.psql("CREATE DATABASE dropped");
    let slow = Slow::of_running(&cluster);
    cluster.psql("DROP DATABASE dropped");
    let restored = slow.end_well(&cluster);
    restored.assert_verifies();
    restored.start();
    assert_eq!(restored.psql("SELECT count(*) FROM pg_database"), "3");
    restored.assert_has_content();
}

#[test]
fn two_backups_at_the_same_time_do_not_disturb_each_other() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let slow = Slow::of_running(&cluster);
    cluster.psql("CREATE TABLE between AS SELECT 1 AS n");
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    cluster.psql("CREATE TABLE after AS SELECT 1 AS n");
    let (first, second) = (
        slow.end_well(&cluster),
        Cluster::restored(version, &cluster.path("repository")),
    );
    let tables = "SELECT string_agg(relname, ' ' ORDER BY 1) FROM pg_class WHERE relname IN ('between', 'after')";
    for (restored, wanted) in [(first, "after between"), (second, "between")] {
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
        assert_eq!(restored.psql(tables), wanted);
    }
    cluster.assert_nothing_is_left();
}

/// The file numbers of relations whose init fork is created by the WAL of a restored cluster.
fn init_forks_in_wal(restored: &Cluster) -> Vec<u32> {
    let manifest = std::fs::read(restored.data().join("backup_manifest")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let range = &manifest["WAL-Ranges"][0];
    let lsn = |name: &str| range[name].as_str().unwrap().parse::<Lsn>().unwrap();
    let (start, end) = (lsn("Start-LSN"), lsn("End-LSN"));
    let bytes = 16 << 20;
    let timelines = Timelines::read(&LocalDir::new(&restored.data()), 1, 1).unwrap();
    let segments = WalSegments {
        files: &restored.data().join("pg_wal"),
        names: &timelines.segments(start, end, bytes),
        bytes,
    };
    let forks = new_init_forks(&segments, start, end).unwrap();
    forks.into_iter().map(|fork| fork.number).collect()
}

/// Its main fork is listed, and its init fork comes by WAL: at the end of recovery the server would find the main fork where it copies
/// the init fork to.
#[test]
fn an_index_of_an_unlogged_table_that_is_built_meanwhile_is_empty_and_does_not_stop_the_server() {
    let mut tested = 0;
    for version in versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.psql_each(&[
            "CREATE UNLOGGED TABLE unlogged AS SELECT 7 AS n",
            "CREATE FUNCTION held(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN n; END'",
        ]);
        let mut holder = cluster.client();
        holder.batch_execute("SELECT pg_advisory_lock(7)").unwrap();
        let mut builder = cluster.client();
        let building = std::thread::spawn(move || {
            builder.batch_execute("CREATE INDEX built ON unlogged (held(n))")
        });
        wait_until("the index is being built", || {
            cluster
                .psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
                == "1"
        });
        let slow = Slow::of_running(&cluster);
        std::thread::sleep(std::time::Duration::from_millis(500)); // all directories are listed
        holder
            .batch_execute("SELECT pg_advisory_unlock(7)")
            .unwrap();
        building.join().unwrap().unwrap();
        let file = cluster.file_of("built");
        let restored = slow.end_well(&cluster);
        tested += u32::from(restored.data().join(&file).exists());
        let number: u32 = file.rsplit('/').next().unwrap().parse().unwrap();
        assert_eq!(init_forks_in_wal(&restored), [number], "{version:?}");
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
        assert_eq!(restored.psql("SELECT count(*) FROM unlogged"), "0");
        restored.psql("INSERT INTO unlogged VALUES (8)");
        let found = "SET enable_seqscan = off; SELECT n FROM unlogged WHERE held(n) = 8";
        assert!(restored.psql(found).ends_with('8'), "{version:?}");
    }
    assert!(tested > 0, "no main fork was stored");
}
