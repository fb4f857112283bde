//! `fullbore wal get`, as a server calls it: which exit code it gets, above all.

use super::{
    args,
    made::{MadeServer, SYSTEM, name, segment},
    runs::fullbore,
};
use std::fs;

/// A server with segments 2 to 9, each an object of its own.
fn archived() -> MadeServer {
    let server = MadeServer::new();
    server.write("pg_wal", 1, 2..10, 1);
    for number in 2..10 {
        fullbore(server.push_args("pg_wal", &name(1, number), &["--alone"])).ends_with(0);
    }
    server
}

fn remove(server: &MadeServer, number: u32) {
    let objects = server.objects();
    let object = objects
        .iter()
        .find(|object| object.contains(&format!("/{}-", name(1, number))));
    fs::remove_file(server.repository().join(object.unwrap())).unwrap();
}

#[test]
fn a_segment_is_written_whole_or_not_at_all() {
    let server = archived();
    for number in 2..10 {
        server.get(&name(1, number), &[]).ends_with(0);
        assert!(
            server.fetched() == segment(1, number, 1 + u64::from(number)),
            "{number}"
        );
    }
    let object = server.repository().join(&server.objects()[0]);
    let mut bytes = fs::read(&object).unwrap();
    bytes[4000] ^= 1;
    fs::write(&object, bytes).unwrap();
    server.get(&name(1, 2), &[]).ends_with(126);
    assert!(!server.path("fetched").exists());
    server.check().ends_with(4);
}

#[test]
fn only_the_end_of_the_archive_is_missing() {
    let server = archived();
    let ends = server.get(&name(1, 10), &[]).ends_with(1);
    assert!(ends.err.contains("the archive ends before"), "{}", ends.err);
    server.get("00000002.history", &[]).ends_with(1);
    // The restore saw more than there is now.
    server
        .get(&name(1, 10), &["--through", &name(1, 12)])
        .ends_with(126);
    server
        .get(&name(1, 13), &["--through", &name(1, 12)])
        .ends_with(1);
    // A gap.
    remove(&server, 5);
    let gap = server.get(&name(1, 5), &[]).ends_with(126);
    assert!(gap.err.contains("which is later, is there"), "{}", gap.err);
    let standby = server.get(&name(1, 5), &["--standby"]).ends_with(1);
    assert!(standby.err.contains("gap"), "{}", standby.err);
    let listed = fullbore(args!["wal", "list", server.repository()]).ends_with(0);
    assert!(
        listed
            .out
            .contains(&format!("gap: {} is missing", name(1, 5))),
        "{}",
        listed.out
    );
    server.check().ends_with(4);
}

#[test]
fn a_segment_before_the_start_of_its_timeline_is_missing_and_a_hole_before_it_is_a_gap() {
    let server = archived();
    let history = server.path("pg_wal/00000002.history");
    fs::write(history, "1\t0/A00028\tno recovery target specified\n").unwrap();
    server.push("00000002.history").ends_with(0);
    server.write("pg_wal", 2, [11], 1);
    server.push(&name(2, 11)).ends_with(0);
    server.get(&name(2, 9), &[]).ends_with(1);
    // Timeline 2 left timeline 1 in segment 10.
    let gap = server.get(&name(2, 10), &[]).ends_with(126);
    assert!(gap.err.contains("is missing"), "{}", gap.err);
    server.write("pg_wal", 2, [10], 1);
    server.push(&name(2, 10)).ends_with(0);
    remove(&server, 9);
    server.get(&name(1, 9), &[]).ends_with(126);
    let listed = fullbore(args!["wal", "list", server.repository(), "--json"]).ends_with(0);
    let report = &listed.json()[0];
    assert_eq!(
        report["gaps"][0]["first_segment"],
        name(1, 9).as_str(),
        "{report}"
    );
    assert_eq!(report["timelines"][1]["parent"], 1, "{report}");
}

#[test]
fn no_error_has_an_exit_code_that_a_server_takes_for_the_end() {
    let server = archived();
    let target = server.path("fetched");
    let repository = server.repository();
    let lines: [Vec<_>; 7] = [
        args!["wal", "get"].into(),
        args!["wal", "get", name(1, 2), target].into(),
        args![
            "wal",
            "get",
            name(1, 2),
            target,
            "--from",
            repository,
            "--nonsense"
        ]
        .into(),
        args![
            "wal",
            "get",
            name(1, 2),
            target,
            "--from",
            server.path("absent"),
            "--system",
            SYSTEM
        ]
        .into(),
        args![
            "wal", "get", "x", target, "--from", repository, "--system", SYSTEM
        ]
        .into(),
        args![
            "wal",
            "get",
            name(1, 2),
            target,
            "--from",
            repository,
            "--system",
            "x"
        ]
        .into(),
        args![
            "--profile",
            "absent",
            "wal",
            "get",
            name(1, 2),
            target,
            "--from",
            repository
        ]
        .into(),
    ];
    for line in lines {
        let ran = fullbore(line.clone());
        assert_eq!(ran.code, 126, "{line:?}: {}", ran.err);
    }
    server.get(&name(1, 2), &[]).ends_with(0);
    let words = args![
        "wal",
        "get",
        name(1, 2),
        "/nonexistent/x",
        "--from",
        repository,
        "--system",
        SYSTEM
    ];
    fullbore(words).ends_with(126);
}

#[test]
fn the_end_of_a_timeline_is_taken_from_its_partial_segment() {
    let server = archived();
    let partial = format!("{}.partial", name(1, 10));
    fs::write(server.path("pg_wal").join(&partial), segment(1, 10, 7)).unwrap();
    server.push(&partial).ends_with(0);
    server.get(&name(1, 10), &[]).ends_with(0);
    assert!(server.fetched() == segment(1, 10, 7));
    // A whole one is better.
    server.write("pg_wal", 1, [10], 1);
    server.push(&name(1, 10)).ends_with(0);
    server.get(&name(1, 10), &[]).ends_with(0);
    assert!(server.fetched() == segment(1, 10, 11));
}

#[test]
fn segments_behind_are_fetched_before_the_server_asks_and_taken_once() {
    let server = MadeServer::new();
    server.write("pg_wal", 1, 2..40, 1);
    server.push(&name(1, 2)).ends_with(0);
    let ask = |number: u32| {
        let target = server.path("fetched");
        let _ = fs::remove_file(&target);
        let source = server.repository();
        let line = args![
            "wal",
            "get",
            name(1, number),
            target,
            "--from",
            source,
            "--system",
            SYSTEM
        ];
        fullbore(line).ends_with(0);
        assert!(
            server.fetched() == segment(1, number, 1 + u64::from(number)),
            "{number}"
        );
    };
    ask(2);
    super::servers::wait_until("the next ones are there", || {
        let line = "find \"$1\"/wal -name '00000001000000000000000A.*' -size +900k | grep -q .";
        super::runs::shell(line, args![super::runs::state_dir()]).code == 0
    });
    for number in 3..40 {
        ask(number);
    }
    server.get(&name(1, 40), &[]).ends_with(1);
    super::servers::wait_until("nothing is left", || {
        let line = "find \"$1\"/wal -name '0000000100000000000000*' -size +900k | grep -q .";
        super::runs::shell(line, args![super::runs::state_dir()]).code != 0
    });
}
