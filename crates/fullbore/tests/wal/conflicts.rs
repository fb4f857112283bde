//! Two contents of one segment: of two primaries, and of a standby that wrote other bytes behind the same records.

use super::{
    args,
    cluster::{Cluster, versions},
    made::{MadeServer, name, object_of_host, segment_of_records},
    recovery::{archiving, backup, switch},
    runs::{fullbore, shell},
    servers::{own, wait_until},
};
use std::fs;

fn put(server: &MadeServer, dir: &str, number: u32, content: &[u8]) {
    server.make_wal(dir);
    fs::write(server.path(dir).join(name(1, number)), content).unwrap();
}

fn show(server: &MadeServer, number: u32) -> super::runs::Ran {
    fullbore(args!["wal", "show", server.repository(), name(1, number)])
}

#[test]
fn contents_with_the_same_records_are_the_same_segment() {
    let server = MadeServer::new();
    put(
        &server,
        "pg_wal",
        4,
        &segment_of_records(1, 4, &[b"a", b"b"], 0),
    );
    let other = segment_of_records(1, 4, &[b"a", b"b"], 9);
    put(&server, "other", 4, &other);
    server.push(&name(1, 4)).ends_with(0);
    server.push_from("other", &name(1, 4)).ends_with(0);
    assert_eq!(server.objects().len(), 2);
    server.check().ends_with(0);
    server.get(&name(1, 4), &[]).ends_with(0);
    let shown = show(&server, 4).ends_with(0);
    assert!(
        shown.out.contains("behind the same records") && shown.out.contains("3 records"),
        "{}",
        shown.out
    );
}

#[test]
fn the_first_difference_and_both_hosts_are_named_and_one_can_be_chosen() {
    let server = MadeServer::new();
    let own = segment_of_records(1, 4, &[b"a", b"b"], 0);
    let foreign = segment_of_records(1, 4, &[b"a", b"c"], 0);
    put(&server, "pg_wal", 4, &own);
    server.store_as("db-b", &name(1, 4), &foreign);
    let refused = server.push(&name(1, 4)).ends_with(1);
    assert!(
        refused.err.contains("host \"db-b\" at 2023-11-14")
            && refused.err.contains("the first difference is at 0/400048"),
        "{}",
        refused.err
    );
    let unsure = server.get(&name(1, 4), &[]).ends_with(126);
    assert!(
        unsure.err.contains("\"db-b\"")
            && unsure.err.contains("the first difference is at 0/400048")
            && unsure.err.contains("--wal-from HOST"),
        "{}",
        unsure.err
    );
    server
        .get(&name(1, 4), &["--wal-from", "db-b"])
        .ends_with(0);
    assert!(server.fetched() == foreign);
    let host = shell("uname -n", args![]).out;
    server
        .get(&name(1, 4), &["--wal-from", host.trim()])
        .ends_with(0);
    assert!(server.fetched() == own);
    server
        .get(&name(1, 4), &["--wal-from", "db-c"])
        .ends_with(126);
    let checked = server.check().ends_with(4);
    assert!(
        checked.out.contains("which differ from 0/400048 on"),
        "{}",
        checked.out
    );
    let shown = show(&server, 4).ends_with(4);
    assert!(
        shown.out.contains("conflict") && shown.out.contains("db-b"),
        "{}",
        shown.out
    );
    show(&server, 5).ends_with(1);
    let line = args!["wal", "show", server.repository(), name(1, 4), "--json"];
    let lines = fullbore(line).ends_with(4).json();
    assert_eq!(lines.len(), 2);
    assert!(
        lines.iter().any(|line| line["differs_at"] == "0/400048"),
        "{lines:?}"
    );
}

#[test]
fn a_restore_refuses_to_choose_between_two_primaries_until_it_is_told() {
    let Some(version) = versions().last() else {
        return;
    };
    let (cluster, repository) = archiving(version, "repository");
    cluster.psql("CREATE TABLE t (who text)");
    backup(&cluster, &repository, &[]);
    cluster.stop("fast");
    let copy = Cluster::empty(version);
    shell("cp -a \"$1\" \"$2\"", args![cluster.data(), copy.data()]).ends_with(0);
    cluster.start();
    copy.configure(&["archive_mode = off"]);
    copy.start();
    let write = |server: &Cluster, who: &str| {
        server.psql(&format!("INSERT INTO t VALUES ('{who}')"));
    };
    write(&cluster, "first");
    write(&copy, "second");
    let first = switch(&cluster);
    let second = copy.psql("SELECT pg_walfile_name(pg_switch_wal())");
    assert_eq!(first, second);
    // The other primary archived it on another host.
    let content = fs::read(copy.data().join("pg_wal").join(&second)).unwrap();
    let system = cluster.psql("SELECT system_identifier FROM pg_control_system()");
    let (key, object) = object_of_host("db-b", &system, &second, &content);
    let path = repository.join(key);
    fs::write(&path, object).unwrap();
    own(&path);
    let target = cluster.path("refused");
    let line = args!["restore", repository, "--to", target, "--recovery", "point"];
    let refused = fullbore(line).ends_with(1);
    assert!(refused.err.contains("--wal-from HOST"), "{}", refused.err);
    assert!(!target.exists());
    let host = shell("uname -n", args![]).out;
    for (host, who) in [("db-b", "second"), (host.trim(), "first")] {
        let flags = ["--recovery", "point", "--set", "archive_mode=off"];
        let flags = [&flags[..], &["--wal-from", host]].concat();
        let restored = Cluster::restored_with(version, &repository, &flags);
        restored.start();
        wait_until("the server is open", || {
            restored.psql("SELECT pg_is_in_recovery()") == "f"
        });
        assert_eq!(restored.psql("SELECT string_agg(who, ',') FROM t"), who);
    }
}
