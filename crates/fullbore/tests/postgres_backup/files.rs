//! Which files of a running cluster are in its backup.

use super::{
    args,
    cluster::{Cluster, debian, some_versions},
    runs::{FULLBORE, fullbore, is_root, make_fifo, names, only, or_skip, shell},
    servers::own,
};
use std::fs;

#[test]
fn of_unlogged_tables_only_the_init_forks_are_kept() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.psql("CREATE UNLOGGED TABLE unlogged (n int PRIMARY KEY)");
        cluster.psql("INSERT INTO unlogged SELECT generate_series(1, 5000)");
        cluster.psql("CHECKPOINT");
        let (table, index) = (
            cluster.file_of("unlogged"),
            cluster.file_of("unlogged_pkey"),
        );
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let restored = Cluster::restored(version, &cluster.path("repository"));
        for file in [table, index] {
            assert!(
                restored.data().join(format!("{file}_init")).exists(),
                "{file}"
            );
            assert!(
                cluster.data().join(&file).exists() && !restored.data().join(&file).exists(),
                "{file}"
            );
        }
        restored.start();
        assert_eq!(restored.psql("SELECT count(*) FROM unlogged"), "0");
        restored.psql("INSERT INTO unlogged VALUES (1)");
    }
}

#[test]
fn what_only_the_running_server_needs_stays_behind() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let mut session = cluster.client();
        session
            .batch_execute("CREATE TEMP TABLE gone AS SELECT generate_series(1, 5000)")
            .unwrap();
        let temporary = session
            .query_one("SELECT pg_relation_filepath('gone')", &[])
            .unwrap()
            .get::<_, String>(0);
        session
            .batch_execute("SELECT pg_create_physical_replication_slot('standby', true)")
            .unwrap();
        let data = cluster.data();
        fs::create_dir_all(data.join("base/pgsql_tmp")).unwrap();
        own(&data.join("base/pgsql_tmp"));
        for file in [
            "base/pgsql_tmp/pgsql_tmp1.0",
            "backup_label.old",
            "backup_manifest",
            "postgresql.auto.conf.tmp",
        ] {
            fs::write(data.join(file), "old").unwrap();
        }
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let restored = Cluster::restored(version, &cluster.path("repository"));
        let gone = [
            "postmaster.pid",
            "postmaster.opts",
            "base/pgsql_tmp",
            "backup_label.old",
            "postgresql.auto.conf.tmp",
        ];
        for file in gone.into_iter().chain([&*temporary]) {
            assert!(
                data.join(file).exists() && !restored.data().join(file).exists(),
                "{file}"
            );
        }
        for dir in [
            "pg_replslot",
            "pg_stat_tmp",
            "pg_notify",
            "pg_dynshmem",
            "pg_subtrans",
            "pg_snapshots",
            "pg_serial",
        ] {
            assert!(restored.data().join(dir).is_dir(), "{dir} is missing");
            assert_eq!(names(&restored.data().join(dir)), [""; 0], "{dir}");
        }
        assert_ne!(
            fs::read(restored.data().join("backup_manifest")).unwrap(),
            b"old"
        );
        restored.start();
        assert_eq!(
            restored.psql("SELECT count(*) FROM pg_replication_slots"),
            "0"
        );
        cluster.psql("SELECT pg_drop_replication_slot('standby')");
    }
}

#[test]
fn a_pg_wal_that_is_a_link_is_stored_as_a_directory() {
    for version in some_versions() {
        let cluster = Cluster::stopped(version, &[]);
        let (inside, outside) = (cluster.data().join("pg_wal"), cluster.path("wal"));
        fs::rename(&inside, &outside).unwrap();
        std::os::unix::fs::symlink(&outside, &inside).unwrap();
        cluster.start();
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let restored = Cluster::restored(version, &cluster.path("repository"));
        assert!(
            restored
                .data()
                .join("pg_wal")
                .symlink_metadata()
                .unwrap()
                .is_dir()
        );
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
    }
}

#[test]
fn the_wal_is_put_where_it_is_wanted_and_stays_there() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let (repository, elsewhere) = (cluster.path("repository"), cluster.make_dir("elsewhere"));
        let wal = elsewhere.join("wal");
        let restored =
            Cluster::restored_with(version, &repository, &["--waldir", wal.to_str().unwrap()]);
        let link = restored.data().join("pg_wal");
        assert_eq!(fs::read_link(&link).unwrap(), wal);
        let verify = args!["verify", repository, "--against", restored.data()];
        fullbore(verify.clone()).ends_with(0);
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
        restored.psql("CREATE TABLE later AS SELECT generate_series(1, 10000)");
        restored.stop("fast");
        let delta = args![
            "restore",
            repository,
            "--to",
            restored.data(),
            "--delta",
            "--delete",
            "--quiet"
        ];
        // In a copy of a data directory the link leads to the WAL of the live one.
        fullbore(delta.clone())
            .ends_with(1)
            .has_one_error("is a link to");
        fullbore(delta.into_iter().chain(args!["--waldir", wal])).ends_with(0);
        assert_eq!(fs::read_link(&link).unwrap(), wal);
        fullbore(verify).ends_with(0);
        restored.start();
        restored.assert_has_content();
        assert_eq!(
            restored.psql("SELECT count(*) FROM pg_class WHERE relname = 'later'"),
            "0"
        );
        let refused = args![
            "restore",
            repository,
            "--to",
            cluster.path("other"),
            "--waldir",
            wal
        ];
        fullbore(refused)
            .ends_with(1)
            .has_one_error("it is not empty");
    }
}

#[test]
fn postgresqls_manifest_lists_every_name_of_a_file() {
    for version in some_versions() {
        let cluster = Cluster::stopped(version, &[]);
        let data = cluster.data();
        let relation = "base/5/2619"; // of `postgres` or `template1`, whichever version
        let relation = if data.join(relation).exists() {
            relation
        } else {
            "base/1/2619"
        };
        let wal = format!(
            "pg_wal/{}",
            names(&data.join("pg_wal"))
                .into_iter()
                .find(|name| name.len() == 24)
                .unwrap()
        );
        fs::create_dir(data.join("keep")).unwrap();
        own(&data.join("keep"));
        fs::write(data.join("empty"), "").unwrap();
        fs::write(data.join("long"), vec![7u8; 3_000_000]).unwrap();
        let pairs = [
            ("PG_VERSION", "copy"),
            ("global/1262", "A before all others"),
            (relation, "keep/relation"),
            ("long", "keep/long"),
            ("empty", "empty too"),
            (&wal, "zz after the WAL"),
        ];
        for (name, other) in pairs {
            fs::hard_link(data.join(name), data.join(other)).unwrap();
        }
        let verifies = |backup: &str| {
            let restored = Cluster::restored(version, &cluster.path(backup));
            let manifest = fs::read_to_string(restored.data().join("backup_manifest")).unwrap();
            let listed = |name: &str| manifest.contains(&format!("\"Path\": \"{name}\""));
            assert!(
                pairs.iter().all(|(_, other)| listed(other)) && !listed(&wal),
                "{manifest}"
            );
            restored.assert_verifies();
            restored.start();
            restored.assert_has_content();
        };
        fullbore(args![
            "backup",
            data,
            "--offline",
            "--to",
            cluster.path("offline"),
            "--quiet"
        ])
        .ends_with(0);
        verifies("offline");
        cluster.start();
        // The second backup has everything from the first.
        for _ in 0..2 {
            cluster.backup("online", &["--quiet"]).ends_with(0);
            verifies("online");
        }
    }
}

#[test]
fn links_and_pipes_that_pg_verifybackup_will_report_are_named_before() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &[]);
    let data = cluster.data();
    let quiet = cluster.backup_offline("without").ends_with(0);
    assert!(!quiet.err.contains("pg_verifybackup"), "{}", quiet.err);
    fs::write(cluster.path("server.crt"), "").unwrap();
    fs::create_dir(data.join("conf.d")).unwrap();
    own(&data.join("conf.d"));
    for (name, target) in [
        ("server.crt", "../server.crt"),
        ("conf.d/nowhere", "/nowhere"),
        ("postgresql.auto.conf", "x"),
    ] {
        let _ = fs::remove_file(data.join(name));
        std::os::unix::fs::symlink(target, data.join(name)).unwrap();
    }
    make_fifo(&data.join("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(data.join("socket")).unwrap();
    let said = "note: pg_verifybackup will report \"conf.d/nowhere\", \"pipe\", \"server.crt\": backup_manifest cannot";
    let ran = cluster.backup_offline("with").ends_with(0);
    assert!(ran.err.contains(said), "{}", ran.err);
    let shown = fullbore(args!["show", cluster.path("with")])
        .ends_with(0)
        .out;
    assert!(
        shown
            .lines()
            .any(|line| line.starts_with("not listed") && line.ends_with(" server.crt")),
        "{shown}"
    );
    let restored = Cluster::empty(version);
    let ran = fullbore(args![
        "restore",
        cluster.path("with"),
        "--to",
        restored.data()
    ])
    .ends_with(0);
    assert!(ran.err.contains(said), "{}", ran.err);
    // It reports these, and nothing else.
    fs::write(restored.path("server.crt"), "").unwrap();
    let verified = restored
        .command("pg_verifybackup")
        .arg(restored.data())
        .output()
        .unwrap();
    let reported = String::from_utf8(verified.stderr).unwrap();
    assert!(!verified.status.success());
    assert_eq!(reported.lines().count(), 3, "{reported}");
    assert!(
        ["conf.d/nowhere", "pipe", "server.crt"]
            .iter()
            .all(|name| reported.contains(name)),
        "{reported}"
    );
    // A stream says so too, and a root that was made anew.
    let line = format!(
        "{FULLBORE} backup \"$1\" --offline --to - -q | {FULLBORE} restore - --to \"$2\" 2>&1"
    );
    let streamed = shell(&line, args![data, cluster.path("streamed")])
        .ends_with(0)
        .out;
    assert!(streamed.contains(said), "{streamed}");
    let backup = only(&cluster.path("with").join("backups"));
    fs::remove_file(backup.join("root.json")).unwrap();
    fullbore(args!["repair", cluster.path("with"), "--yes"]);
    let shown = fullbore(args!["show", cluster.path("with")])
        .ends_with(0)
        .out;
    assert!(
        shown
            .lines()
            .any(|line| line.starts_with("not listed") && line.ends_with(" server.crt")),
        "{shown}"
    );
}

#[test]
fn a_link_to_data_elsewhere_ends_the_backup() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let path = cluster.psql("SELECT pg_relation_filepath('small')");
        let (inside, outside) = (cluster.data().join(&path), cluster.path("elsewhere"));
        fs::rename(&inside, &outside).unwrap();
        std::os::unix::fs::symlink(&outside, &inside).unwrap();
        let ran = cluster.backup("repository", &["--quiet"]).ends_with(1);
        ran.has_one_error(&format!("{path:?} is a link to {outside:?}"));
        cluster.assert_nothing_is_left();
    }
}

#[test]
fn a_link_to_what_is_not_the_servers_stays_one() {
    if !or_skip(is_root(), "only root can read what the server cannot") {
        return;
    }
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let (mine, its) = (tempfile::tempdir().unwrap(), cluster.make_dir("its"));
        for (name, dir) in [("mine", mine.path()), ("its", &its)] {
            fs::write(dir.join("file"), name).unwrap();
            std::os::unix::fs::symlink(dir, cluster.data().join(name)).unwrap();
        }
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let listed = fullbore(args![
            "list",
            format!("{}@latest", cluster.path("repository").display())
        ])
        .ends_with(0)
        .out;
        assert!(
            listed.contains(" its/file\n") && listed.contains(" mine -> "),
            "{listed}"
        );
        assert!(!listed.contains("mine/file"), "{listed}");
    }
}

#[test]
fn the_wal_in_a_backup_is_what_recovery_needs_and_is_not_archived_again() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.psql_each(&[
            "CREATE TABLE x (n int)",
            "SELECT pg_switch_wal()",
            "CHECKPOINT",
        ]);
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let root = fullbore(args!["show", cluster.path("repository"), "--json"])
            .json()
            .remove(0)["root"]
            .take();
        let segments = &root["postgres"]["wal_segments"];
        let restored = Cluster::restored(version, &cluster.path("repository"));
        let mut kept = names(&restored.data().join("pg_wal"));
        kept.retain(|name| name.len() == 24);
        assert_eq!(serde_json::json!([kept.first(), kept.last()]), *segments);
        let done = names(&restored.data().join("pg_wal/archive_status"));
        assert_eq!(
            done,
            kept.iter()
                .map(|name| format!("{name}.done"))
                .collect::<Vec<_>>()
        );
        restored.configure(&[
            "archive_mode = on",
            "archive_command = 'cp %p ../archive/%f'",
        ]);
        let archive = restored.make_dir("archive");
        restored.start();
        restored.psql_each(&["CREATE TABLE y (n int)", "SELECT pg_switch_wal()"]);
        super::servers::wait_until("something is archived", || !names(&archive).is_empty());
        assert!(
            names(&archive).iter().all(|name| !kept.contains(name)),
            "{:?} of {kept:?}",
            names(&archive)
        );
    }
}

#[test]
fn configuration_outside_of_the_data_directory_is_named() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let ran = cluster.backup("before", &[]).ends_with(0);
        assert!(!ran.err.contains("outside of"), "{}", ran.err);
        cluster.stop("fast");
        let rules = cluster.path("rules.conf");
        fs::rename(cluster.data().join("pg_hba.conf"), &rules).unwrap();
        cluster.configure(&[&format!("hba_file = '{}'", rules.display())]);
        cluster.start();
        let ran = cluster.backup("repository", &[]).ends_with(0);
        let said =
            format!("note: outside of the data directory, and not in this backup: {rules:?}\n");
        assert!(ran.err.contains(&said), "{}", ran.err);
        let shown = fullbore(args!["show", cluster.path("repository")]).out;
        assert!(shown.contains(rules.to_str().unwrap()), "{shown}");
    }
}

#[test]
fn owners_and_modes_are_those_of_the_data_directory() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    let restored = Cluster::restored(version, &cluster.path("repository"));
    let odd = "cd \"$1\" && stat -c '%U %a' . && find . ! -user \"$(stat -c %U .)\" -o -perm /077";
    let found = shell(odd, args![restored.data()]);
    assert_eq!(found.out.lines().count(), 1, "{}", found.out);
    assert!(found.out.ends_with(" 700\n"), "{}", found.out);
}

#[test]
fn small_wal_segments_and_group_access_are_kept() {
    let Some(version) = debian() else { return };
    let server = version.start(&["--wal-segsize=1", "--allow-group-access"], &[]);
    server.psql("CREATE TABLE x AS SELECT n FROM generate_series(1, 50000) n");
    let repository = server.dir().join("repository");
    fullbore(args!["backup", server.url(), "--to", repository, "--quiet"]).ends_with(0);
    let restored = Cluster::restored(version, &repository);
    let wal = fs::metadata(restored.data().join("pg_wal")).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&wal.permissions()) & 0o777,
        0o750
    );
    restored.assert_verifies();
    restored.configure(&["listen_addresses = ''", "port = 5432"]);
    restored.start();
    assert_eq!(
        restored.psql("SELECT count(*) FROM x; SHOW wal_segment_size"),
        "50000\n1MB"
    );
}

#[test]
fn names_that_are_in_another_encoding_are_kept_as_they_are() {
    for version in some_versions() {
        for encoding in ["UTF8", "SQL_ASCII"] {
            let cluster = Cluster::of_encoding(version, encoding);
            let space = cluster.make_dir("space");
            cluster.psql("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1'");
            // The server writes names in the encoding of the database that they are made in.
            cluster.in_database(
                "latin",
                "CREATE DATABASE \"caf\u{e9}\" TEMPLATE template0 ENCODING 'LATIN1'",
            );
            cluster.in_database(
                "latin",
                &format!(
                    "CREATE TABLESPACE \"caf\u{e9}\" LOCATION '{}'",
                    space.display()
                ),
            );
            cluster.backup("repository", &["--quiet"]).ends_with(0);
            let root = fullbore(args!["show", cluster.path("repository"), "--json"])
                .json()
                .remove(0)["root"]
                .take();
            let name = serde_json::json!({"hex": "636166e9"});
            let has = |wanted: &str| {
                root["postgres"][wanted]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|one| one["name"] == name)
            };
            assert!(
                has("databases") && has("tablespaces"),
                "{}",
                root["postgres"]
            );
            fullbore(args!["show", cluster.path("repository")]).ends_with(0);
            let restored = Cluster::restored(version, &cluster.path("repository"));
            restored.assert_verifies();
            restored.start();
            assert_eq!(restored.psql("SELECT count(*) FROM pg_database"), "5");
        }
    }
}

#[test]
fn a_configuration_behind_a_link_is_named() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &[]);
    let (link, conf) = (
        cluster.data().join("postgresql.conf"),
        cluster.path("main.conf"),
    );
    fs::rename(&link, &conf).unwrap();
    std::os::unix::fs::symlink("../main.conf", &link).unwrap();
    let is_named = |repository: &str| {
        let root = fullbore(args!["show", cluster.path(repository), "--json"])
            .json()
            .remove(0)["root"]
            .take();
        assert_eq!(
            root["postgres"]["configuration"],
            serde_json::json!([conf]),
            "{repository}"
        );
    };
    fullbore(args![
        "backup",
        cluster.data(),
        "--offline",
        "--to",
        cluster.path("offline"),
        "--quiet"
    ])
    .ends_with(0);
    is_named("offline");
    cluster.start();
    let ran = cluster.backup("online", &[]).ends_with(0);
    let said = format!("note: outside of the data directory, and not in this backup: {conf:?}\n");
    assert!(ran.err.contains(&said), "{}", ran.err);
    is_named("online");
    let target = cluster.path("restored");
    let ran = fullbore(args!["restore", cluster.path("online"), "--to", target]).ends_with(0);
    let wanted = format!(
        "next: remove {:?}, so that no file is written",
        target.join("postgresql.conf")
    );
    assert!(ran.err.contains(&wanted), "{}", ran.err);
}
