//! Clusters that the server sends by the replication protocol.

use super::{
    args,
    by_sql::{
        assert_consistent_under_load, assert_same_as_files, assert_standby_starts_as_a_primary,
        damage, last_line,
    },
    cluster::{Cluster, debian, some_versions},
    runs::fullbore,
};
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread::{self, sleep},
    time::Duration,
};

const BY_PROTOCOL: &[&str] = &["--via", "protocol", "--quiet"];

#[test]
fn a_cluster_that_is_sent_has_the_same_files_and_starts() {
    assert_same_as_files("protocol");
}

#[test]
fn a_cluster_that_works_is_consistent_when_it_was_sent() {
    assert_consistent_under_load(BY_PROTOCOL);
}

#[test]
fn a_second_backup_that_is_sent_stores_only_blocks_that_changed() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.psql_each(&["VACUUM", "CHECKPOINT"]);
        cluster.backup("repository", BY_PROTOCOL).ends_with(0);
        cluster.psql_each(&["UPDATE large SET words = 'new' WHERE n = 7", "CHECKPOINT"]);
        let ran = cluster
            .backup("repository", &["--via", "protocol", "--json"])
            .ends_with(0);
        let line = last_line(&ran);
        let bytes = |name: &str| line[name].as_u64().unwrap_or_default();
        assert!(bytes("kept_bytes") > bytes("bytes") / 2, "{line}");
        // One of these may be the base of the other.
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.backup("repository", BY_PROTOCOL).ends_with(0);
        let restored = Cluster::restored(version, &cluster.path("repository"));
        restored.assert_verifies();
        restored.start();
        let sums = "SELECT count(*), md5(string_agg(words, '' ORDER BY n)) FROM large";
        assert_eq!(restored.psql(sums), cluster.psql(sums));
    }
}

#[test]
fn a_standby_sends_a_cluster_that_starts_as_a_primary() {
    assert_standby_starts_as_a_primary(BY_PROTOCOL);
}

#[test]
fn a_backup_that_is_sent_without_wal_waits_for_the_archive() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let archived = &["--via", "protocol", "--wal", "archived"];
    let ran = cluster.backup("repository", archived).ends_with(1);
    ran.has_one_error("archive_mode is off");
    let place = cluster.make_dir("archive");
    let command = format!("archive_command = 'sleep 1; cp %p {}/%f'", place.display());
    let cluster = Cluster::stopped(version, &["archive_mode = on", &command]);
    cluster.start();
    cluster.backup("repository", archived).ends_with(0);
    let root = fullbore(args!["show", cluster.path("repository"), "--json"])
        .json()
        .remove(0);
    let last = root["postgres"]["wal_segments"][1].as_str().unwrap();
    assert!(place.join(last).exists(), "{root}");
}

#[test]
fn a_database_that_was_copied_file_by_file_meanwhile_ends_a_backup_that_is_sent() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let strategy = match version.major {
            15.. => "STRATEGY FILE_COPY",
            _ => "",
        };
        let backups_beside = |template: &str| {
            let create = format!("CREATE DATABASE copy TEMPLATE {template} {strategy}");
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut client = cluster.client();
                    while !is_over.load(Relaxed) {
                        client.batch_execute(&create).unwrap();
                        client.batch_execute("DROP DATABASE copy").unwrap();
                    }
                });
                sleep(Duration::from_millis(300));
                let ran = cluster.backup("repository", BY_PROTOCOL);
                is_over.store(true, Relaxed);
                ran
            })
        };
        cluster.psql("CREATE DATABASE origin");
        backups_beside("origin")
            .ends_with(1)
            .has_one_error("was copied or moved meanwhile");
        backups_beside("template1").ends_with(0);
        let restored = Cluster::restored(version, &cluster.path("repository"));
        restored.start();
        restored.assert_has_content();
    }
}

#[test]
fn a_role_that_may_only_replicate_is_sent_the_cluster() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.psql_each(&[
            "CREATE ROLE sender LOGIN REPLICATION",
            "CREATE ROLE stranger LOGIN",
        ]);
        let to = cluster.path("repository");
        let run = |role: &str, via: &str| {
            let url = cluster.url_as(role);
            fullbore(args!["backup", url, "--to", to, "--via", via])
        };
        run("stranger", "protocol")
            .ends_with(1)
            .has_one_error("alter role ROLE replication");
        run("stranger", "auto")
            .ends_with(1)
            .has_one_error("nor by protocol");
        let ran = run("sender", "auto").ends_with(0);
        let way = ", read by protocol because the role may not read the files by SQL, from ";
        assert!(ran.err.contains(way), "{}", ran.err);
        cluster.assert_nothing_is_left();
        let restored = Cluster::restored(version, &to);
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
    }
}

#[test]
fn a_damaged_page_that_is_sent_is_named() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        cluster.psql_each(&["VACUUM", "CHECKPOINT"]);
        let file = cluster.file_of("small");
        damage(&cluster.data().join(&file), 1, b"damaged");
        let ran = cluster.backup("repository", BY_PROTOCOL).ends_with(3);
        assert!(ran.err.contains(&file), "{}", ran.err);
        assert!(ran.err.contains("block 1"), "{}", ran.err);
    }
}
