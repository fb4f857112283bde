//! `fullbore wal push`, as a server calls it.

use super::{
    args,
    made::{MadeServer, SYSTEM, name, segment},
    runs::{fullbore, shell, started},
};
use std::{fs, thread::sleep, time::Duration};

#[test]
fn segments_that_wait_are_one_object_that_stock_tools_unpack() {
    let server = MadeServer::new();
    server.write("pg_wal", 1, 2..12, 1);
    server.push(&name(1, 2)).ends_with(0);
    let objects = server.objects();
    assert_eq!(objects.len(), 1, "{objects:?}");
    let begins = format!("wal/{SYSTEM}/00000001/00000000/{}-0a-", name(1, 2));
    assert!(objects[0].starts_with(&begins), "{objects:?}");
    let out = server.path("out");
    fs::create_dir(&out).unwrap();
    let line = "zstd -dcq \"$1\" | tar -x -C \"$2\"";
    shell(line, args![server.repository().join(&objects[0]), out]).ends_with(0);
    for number in 2..12 {
        let unpacked = fs::read(out.join(name(1, number))).unwrap();
        assert!(
            unpacked == segment(1, number, 1 + u64::from(number)),
            "{number}"
        );
    }
    // What was pushed ahead is acknowledged without a store.
    for number in 3..12 {
        server.push(&name(1, number)).ends_with(0);
    }
    assert_eq!(server.objects().len(), 1);
    server.check().ends_with(0);
}

#[test]
fn the_same_bytes_again_are_success_and_change_nothing() {
    let server = MadeServer::new();
    server.write("pg_wal", 1, 2..5, 1);
    let push = || fullbore(server.push_args("pg_wal", &name(1, 2), &["--alone"])).ends_with(0);
    push();
    let before = server.objects();
    // The notes of this host are lost.
    let mut again = super::runs::command(server.push_args("pg_wal", &name(1, 2), &["--alone"]));
    again.env("FULLBORE_STATE_DIR", server.path("state"));
    assert!(again.status().unwrap().success());
    assert_eq!(server.objects(), before);
    // A run that covers it has the same content.
    let mut run = super::runs::command(server.push_args("pg_wal", &name(1, 2), &[]));
    run.env("FULLBORE_STATE_DIR", server.path("state2"));
    assert!(run.status().unwrap().success());
    assert_eq!(server.objects().len(), 2);
    server.check().ends_with(0);
}

#[test]
fn other_bytes_under_one_name_are_an_error_and_both_are_kept() {
    let server = MadeServer::new();
    server.write("pg_wal", 1, 2..6, 1);
    server.make_wal("other");
    server.write("other", 1, 4..7, 900);
    server.push(&name(1, 2)).ends_with(0);
    let refused = server.push_from("other", &name(1, 4)).ends_with(1);
    assert!(
        refused.err.contains("two servers write one timeline"),
        "{}",
        refused.err
    );
    assert!(refused.err.contains(SYSTEM), "{}", refused.err);
    assert_eq!(server.objects().len(), 2);
    // It is refused each time, and stores nothing new.
    server.push_from("other", &name(1, 4)).ends_with(1);
    assert_eq!(server.objects().len(), 2);
    let checked = server.check().ends_with(4);
    assert!(
        checked
            .out
            .contains(&format!("{} has two contents", name(1, 4))),
        "{}",
        checked.out
    );
    // A recovery does not choose.
    let fetched = server.get(&name(1, 4), &[]).ends_with(126);
    assert!(
        fetched.err.contains("two servers wrote one timeline"),
        "{}",
        fetched.err
    );
    server.get(&name(1, 3), &[]).ends_with(0);
    // A copy has a place of its own.
    fullbore(server.push_args("other", &name(1, 5), &["--as", "staging"])).ends_with(0);
    assert!(
        server
            .objects()
            .iter()
            .any(|object| object.starts_with(&format!("wal/{SYSTEM}.staging/")))
    );
}

#[test]
fn a_file_that_is_not_the_segment_of_its_name_is_refused() {
    let server = MadeServer::new();
    let path = |number| server.path("pg_wal").join(name(1, number));
    fs::write(path(2), vec![0; 1 << 20]).unwrap();
    fs::write(path(3), segment(1, 9, 1)).unwrap();
    fs::write(path(4), &segment(1, 4, 1)[..5000]).unwrap();
    fs::write(path(5), segment(2, 5, 1)).unwrap();
    for (number, why) in [
        (2, "zeros"),
        (3, "first page is that of"),
        (4, "5000 bytes"),
        (5, "timeline 2"),
    ] {
        let refused = server.push(&name(1, number)).ends_with(4);
        assert!(refused.err.contains(why), "{}", refused.err);
    }
    // A file that is bad ends the run before it.
    server.write("pg_wal", 1, [6, 7], 1);
    fs::write(
        server
            .path("pg_wal/archive_status")
            .join(format!("{}.ready", name(1, 8))),
        "",
    )
    .unwrap();
    fs::write(path(8), vec![0; 1 << 20]).unwrap();
    server.push(&name(1, 6)).ends_with(0);
    assert!(
        server.objects()[0].contains("-02-"),
        "{:?}",
        server.objects()
    );
    for bad in ["backup_label", "00000001000000000000000"] {
        fs::write(server.path("pg_wal").join(bad), "x").unwrap();
        server.push(bad).ends_with(2);
    }
}

#[test]
fn histories_labels_and_partial_segments_are_kept_by_their_names() {
    let server = MadeServer::new();
    let put = |name: &str, text: &[u8]| fs::write(server.path("pg_wal").join(name), text).unwrap();
    put(
        "00000002.history",
        b"1\t0/300000\tno recovery target specified\n",
    );
    server.push("00000002.history").ends_with(0);
    server.push("00000002.history").ends_with(0);
    let label = format!("{}.00000028.backup", name(1, 2));
    put(&label, b"START WAL LOCATION: 0/200028\n");
    server.push(&label).ends_with(0);
    let partial = format!("{}.partial", name(1, 3));
    put(&partial, &segment(1, 3, 7));
    server.push(&partial).ends_with(0);
    assert_eq!(server.objects().len(), 3, "{:?}", server.objects());
    // Another server began the same timeline.
    put(
        "00000002.history",
        b"1\t0/200000\tno recovery target specified\n",
    );
    let refused = server.push("00000002.history").ends_with(1);
    assert!(
        refused.err.contains("another server began a timeline")
            && refused.err.contains("the other one begins at 0/300000")
            && refused.err.contains("at 0/200000"),
        "{}",
        refused.err
    );
    server.get("00000002.history", &[]).ends_with(126);
}

#[test]
fn a_repository_that_is_not_there_or_away_leaves_the_segment_to_the_server() {
    let server = MadeServer::new();
    server.write("pg_wal", 1, [2], 1);
    let target = server.path("absent");
    let file = server.path("pg_wal").join(name(1, 2));
    let line = args!["wal", "push", file, "--to", target, "--system", SYSTEM];
    fullbore(line).ends_with(1);
    assert!(!target.exists());
    let refused = fullbore(server.push_args("nowhere", &name(1, 2), &[])).ends_with(1);
    assert!(refused.err.contains("could not read"), "{}", refused.err);
}

#[test]
fn a_push_that_is_killed_at_any_moment_leaves_nothing_wrong() {
    let server = MadeServer::new();
    server.write("pg_wal", 1, 2..34, 1);
    for round in 0..12_u64 {
        let mut push = started(server.push_args("pg_wal", &name(1, 2), &[]));
        sleep(Duration::from_millis(round * 12));
        push.kill().unwrap();
        push.wait().unwrap();
    }
    server.push(&name(1, 2)).ends_with(0);
    server.push(&name(1, 33)).ends_with(0);
    server.check().ends_with(0);
    server.get(&name(1, 33), &[]).ends_with(0);
    assert!(server.fetched() == segment(1, 33, 34));
}

#[test]
fn a_backlog_is_pushed_by_a_process_that_a_push_leaves_behind() {
    let server = MadeServer::new();
    // The server process needs a data directory that it can name.
    let data = server.path("data");
    fs::create_dir_all(data.join("global")).unwrap();
    server.make_wal("data/pg_wal");
    server.write("data/pg_wal", 1, 2..90, 1);
    let serve = args![
        "wal",
        "serve",
        data,
        "--to",
        server.repository(),
        "--idle",
        "1s"
    ];
    let refused = fullbore(serve).ends_with(2);
    assert!(
        refused.err.contains("not known of which cluster"),
        "{}",
        refused.err
    );
}
