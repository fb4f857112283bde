//! WAL in a second repository, and single segments that a prune joins.

use super::{
    args,
    cluster::{Cluster, versions},
    made::{MadeServer, name, segment},
    recovery::{archiving, backup, switch},
    runs::{fullbore, shell},
    servers::wait_until,
};
use std::{fs, os::unix::fs::PermissionsExt};

#[test]
fn a_copied_backup_of_a_cluster_brings_its_wal() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    cluster.psql("CREATE TABLE t (n int)");
    backup(&cluster, &repository, &[]);
    let write = || {
        cluster.psql("INSERT INTO t VALUES (1)");
        switch(&cluster)
    };
    write();
    let passphrase = cluster.path("passphrase");
    fs::write(&passphrase, "of a copy with five words\n").unwrap();
    fs::set_permissions(&passphrase, fs::Permissions::from_mode(0o600)).unwrap();
    let clear = cluster.path("clear");
    let sealed = cluster.path("sealed");
    fullbore(args!["init", clear]).ends_with(0);
    let key = ["--passphrase-file", passphrase.to_str().unwrap()];
    fullbore(args!["init", sealed, "--passphrase", key[0], key[1]]).ends_with(0);
    for (target, key) in [(&clear, &[][..]), (&sealed, &key[..])] {
        let with_key =
            |line: Vec<std::ffi::OsString>| line.into_iter().chain(key.iter().map(Into::into));
        let copy = || {
            let line = with_key(args!["copy", repository, target, "--json"].into());
            fullbore(line).ends_with(0).json().pop().unwrap()
        };
        assert!(copy()["wal_objects"].as_u64() > Some(0));
        // The label of the backup may arrive a moment later.
        wait_until("all is copied", || copy()["wal_objects"] == 0);
        // Later WAL comes with the next copy.
        write();
        assert!(copy()["wal_objects"].as_u64() >= Some(1));
        fullbore(with_key(args!["wal", "check", target].into())).ends_with(0);
    }
    let rows = cluster.psql("SELECT count(*) FROM t");
    fullbore(args!["copy", repository, clear]).ends_with(0);
    // The server reads it as its own user.
    let owned = "chown -R --reference=\"$1\" \"$2\"";
    shell(owned, args![repository, clear]).ends_with(0);
    let flags = ["--recovery", "point", "--set", "archive_mode=off"];
    let restored = Cluster::restored_with(version, &clear, &flags);
    restored.start();
    wait_until("the server is open", || {
        restored.psql("SELECT pg_is_in_recovery()") == "f"
    });
    assert_eq!(restored.psql("SELECT count(*) FROM t"), rows);
}

#[test]
fn single_segments_older_than_a_day_are_joined_and_then_deleted() {
    let server = MadeServer::new();
    // Stored in 2023 by another host, each alone.
    for number in 2..14 {
        server.store_as("db-b", &name(1, number), &segment(1, number, number.into()));
    }
    // Of today.
    server.write("pg_wal", 1, 14..16, 0);
    for number in 14..16 {
        fullbore(server.push_args("pg_wal", &name(1, number), &["--alone"])).ends_with(0);
    }
    let prune = |more: &[&str]| {
        let line = args!["prune", server.repository()];
        fullbore(line.into_iter().chain(more.iter().map(Into::into))).ends_with(0)
    };
    let dry = prune(&["--dry-run"]);
    assert!(!dry.out.contains("joined"), "{}", dry.out);
    assert_eq!(server.objects().len(), 14);
    let joined = prune(&[]);
    assert!(
        joined.out.contains("12 single segments of WAL joined"),
        "{}",
        joined.out
    );
    assert_eq!(server.objects().len(), 15);
    // A recovery that has listed the single ones still finds them.
    server.check().ends_with(0);
    let pruned = prune(&["--wal-grace", "0"]);
    assert!(pruned.out.contains("of WAL"), "{}", pruned.out);
    let objects = server.objects();
    assert_eq!(objects.len(), 3, "{objects:?}");
    assert!(
        objects[0].contains(&format!("{}-0c-", name(1, 2))),
        "{objects:?}"
    );
    for number in 2..16 {
        server.get(&name(1, number), &[]).ends_with(0);
        assert!(
            server.fetched() == segment(1, number, number.into()),
            "{number}"
        );
    }
    server.check().ends_with(0);
    assert!(!prune(&["--wal-grace", "0"]).out.contains("of WAL joined"));
}

#[test]
fn nothing_is_joined_of_segments_with_two_contents_or_damage() {
    let server = MadeServer::new();
    for number in 2..12 {
        server.store_as("db-b", &name(1, number), &segment(1, number, number.into()));
    }
    server.store_as("db-c", &name(1, 6), &segment(1, 6, 99));
    let line = args!["prune", server.repository(), "--wal-grace", "0"];
    fullbore(line.clone()).ends_with(0);
    assert_eq!(server.objects().len(), 11);
    let object = server
        .objects()
        .into_iter()
        .find(|object| object.contains(&name(1, 3)))
        .unwrap();
    let path = server.repository().join(object);
    let mut bytes = fs::read(&path).unwrap();
    bytes[4000] ^= 1;
    fs::write(&path, bytes).unwrap();
    for number in 12..30 {
        server.store_as("db-b", &name(1, number), &segment(1, number, number.into()));
    }
    fullbore(line).ends_with(0);
    // Those of which none is damaged may be joined; nothing is lost.
    for number in [2, 4, 5, 7, 20] {
        server.get(&name(1, number), &[]).ends_with(0);
    }
    server.get(&name(1, 6), &[]).ends_with(126);
    server.get(&name(1, 3), &[]).ends_with(126);
}
