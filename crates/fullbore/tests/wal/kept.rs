//! What `prune` keeps of the WAL.

use super::{
    args,
    cluster::versions,
    made::{MadeServer, name},
    recovery::{archiving, backup, switch},
    runs::fullbore,
};

#[test]
fn wal_without_a_backup_is_kept() {
    let server = MadeServer::new();
    server.write("pg_wal", 1, 2..6, 1);
    server.push(&name(1, 2)).ends_with(0);
    let pruned = fullbore(args!["prune", server.repository(), "--wal-grace", "0"]).ends_with(0);
    assert!(
        pruned.out.contains("it has no backup here"),
        "{}",
        pruned.out
    );
    assert_eq!(server.objects().len(), 1);
}

#[test]
fn a_prune_deletes_what_no_backup_needs_once_its_grace_is_over() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    let segments = || {
        let listed = fullbore(args!["wal", "list", repository, "--json"]).ends_with(0);
        listed.json()[0]["segments"].as_u64().unwrap()
    };
    cluster.psql("CREATE TABLE t (n int)");
    let write = || {
        cluster.psql("INSERT INTO t VALUES (1)");
        switch(&cluster)
    };
    (0..3).for_each(|_| drop(write()));
    let first = backup(&cluster, &repository, &[]).json();
    (0..3).for_each(|_| drop(write()));
    backup(&cluster, &repository, &[]);
    write();
    let all = segments();
    let prune = |more: &[&str]| {
        let line = args!["prune", repository];
        fullbore(line.into_iter().chain(more.iter().map(Into::into))).ends_with(0)
    };
    // What is before the first backup goes, but not at once.
    assert!(prune(&[]).out.contains("of WAL go with a prune in 24 h"));
    assert_eq!(segments(), all);
    assert!(prune(&["--wal-grace", "0"]).out.contains("of WAL"));
    let with_both = segments();
    assert!(with_both < all, "{with_both} of {all}");
    assert!(!prune(&["--wal-grace", "0"]).out.contains("of WAL"));
    let id = first.last().unwrap()["id"].as_str().unwrap().to_owned();
    fullbore(args!["forget", repository, id]).ends_with(0);
    prune(&["--wal-grace", "0"]);
    assert!(segments() < with_both);
    // What is left recovers.
    let restored = super::cluster::Cluster::restored_with(
        version,
        &repository,
        &["--recovery", "point", "--set", "archive_mode=off"],
    );
    restored.start();
    super::servers::wait_until("the server is open", || {
        restored.psql("SELECT pg_is_in_recovery()") == "f"
    });
    assert_eq!(restored.psql("SELECT count(*) FROM t"), "7");
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    let stats = fullbore(args!["stats", repository]).ends_with(0);
    assert!(stats.out.contains("no gap"), "{}", stats.out);
    fullbore(args!["list", repository, "-l"]).ends_with(0);
}
