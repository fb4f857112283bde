//! What goes wrong with an archive: a full disk, a prune under a recovery, an upgraded server, a process that is killed.

use super::{
    args,
    made::{MadeServer, SYSTEM, name, object_of_host, segment},
    runs::{self, Mount, fullbore},
};
use std::fs;

#[test]
fn a_full_storage_leaves_the_segment_to_the_server_and_takes_it_when_there_is_room() {
    let server = MadeServer::new();
    let Some(_mount) = Mount::tmpfs(&server.path("disk"), "4m") else {
        return;
    };
    let target = server.path("disk/repository");
    fullbore(args!["init", target]).ends_with(0);
    server.write("pg_wal", 1, 2..4, 1);
    let ballast = server.path("disk/ballast");
    let file = server.path("pg_wal").join(name(1, 2));
    let push = || {
        let line = args!["wal", "push", file, "--to", target, "--system", SYSTEM];
        fullbore(
            line.into_iter()
                .chain(args!["--no-serve", "--patience", "0"]),
        )
    };
    fs::write(&ballast, vec![1; 8 << 20]).unwrap_err();
    let full = push().ends_with(1);
    assert!(full.err.contains("space"), "{}", full.err);
    fs::remove_file(&ballast).unwrap();
    push().ends_with(0);
    fullbore(args!["wal", "check", target]).ends_with(0);
}

#[test]
fn wal_that_was_pruned_under_a_recovery_ends_it_with_the_reason() {
    let server = MadeServer::new();
    server.write("pg_wal", 1, 2..6, 1);
    for number in 2..6 {
        fullbore(server.push_args("pg_wal", &name(1, number), &["--alone"])).ends_with(0);
    }
    server.get(&name(1, 2), &[]).ends_with(0);
    for object in &server.objects()[..2] {
        fs::remove_file(server.repository().join(object)).unwrap();
    }
    let pruned = server.get(&name(1, 3), &[]).ends_with(126);
    assert!(pruned.err.contains("was pruned"), "{}", pruned.err);
    server.get(&name(1, 4), &[]).ends_with(0);
}

#[test]
fn an_upgraded_server_has_another_system_and_both_are_kept_apart() {
    let server = MadeServer::new();
    server.write("pg_wal", 1, 2..4, 1);
    server.push(&name(1, 2)).ends_with(0);
    // The new cluster begins with the same names, and its system is another one.
    let mut upgraded = segment(1, 2, 50);
    upgraded[24..32].copy_from_slice(&77_u64.to_ne_bytes());
    server.make_wal("new");
    let file = server.path("new").join(name(1, 2));
    fs::write(&file, &upgraded).unwrap();
    let push = |system: &str| {
        let line = args!["wal", "push", file, "--to", server.repository()];
        fullbore(line.into_iter().chain(args!["--system", system, "--alone"]))
    };
    let refused = push(SYSTEM).ends_with(4);
    assert!(refused.err.contains("another cluster"), "{}", refused.err);
    push("77").ends_with(0);
    let listed = fullbore(args!["wal", "list", server.repository()]).ends_with(0);
    for system in [SYSTEM, "77"] {
        assert!(
            listed.out.contains(&format!("system {system} ")),
            "{}",
            listed.out
        );
    }
    server.get(&name(1, 2), &[]).ends_with(0);
    assert!(server.fetched() == segment(1, 2, 3));
    server.check().ends_with(0);
}

#[test]
fn an_object_that_storage_cut_off_or_lost_is_named() {
    let server = MadeServer::new();
    server.write("pg_wal", 1, 2..8, 1);
    server.push(&name(1, 2)).ends_with(0);
    let path = server.repository().join(&server.objects()[0]);
    let whole = fs::read(&path).unwrap();
    for len in [0, 1, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..len]).unwrap();
        server.get(&name(1, 5), &[]).ends_with(126);
        server.check().ends_with(4);
    }
    // That of another system under this name.
    let (_, foreign) = object_of_host("db-b", "77", &name(1, 2), &segment(1, 2, 3));
    fs::write(&path, foreign).unwrap();
    server.get(&name(1, 2), &[]).ends_with(126);
    server.check().ends_with(4);
}

/// Rounds of [`processes_that_are_killed_at_random_lose_no_segment_that_was_acknowledged`]. A thousand take some minutes.
const ROUNDS: &str = "FULLBORE_WAL_CUTS";

#[test]
fn processes_that_are_killed_at_random_lose_no_segment_that_was_acknowledged() {
    let rounds = std::env::var(ROUNDS)
        .ok()
        .and_then(|text| text.parse().ok());
    let rounds: u32 = rounds.unwrap_or(24);
    let server = MadeServer::new();
    let seed = |number: u32| 1 + u64::from(number);
    let mut next = 2;
    let mut acknowledged = Vec::new();
    for round in 0..rounds {
        let random = runs::noise(u64::from(round), 4);
        if next - acknowledged.len() as u32 <= 3 {
            let count = 1 + u32::from(random[0] % 9);
            server.write("pg_wal", 1, next..next + count, 1);
            next += count;
        }
        let asked = 2 + acknowledged.len() as u32;
        let line: Vec<_> = match random[1] % 4 {
            0 => args!["prune", server.repository(), "--wal-grace", "0"].into(),
            1 => server.push_args("pg_wal", &name(1, asked), &["--alone"]),
            _ => server.push_args("pg_wal", &name(1, asked), &[]),
        };
        let is_push = line[0] == "wal";
        let mut child = runs::started(line);
        std::thread::sleep(std::time::Duration::from_micros(u64::from(random[2]) * 150));
        let ended = child.try_wait().unwrap();
        let _ = child.kill();
        child.wait().unwrap();
        if is_push && ended.is_some_and(|status| status.success()) {
            acknowledged.push(asked);
            server.get(&name(1, asked), &[]).ends_with(0);
            assert!(
                server.fetched() == segment(1, asked, seed(asked)),
                "{asked}"
            );
            // The server recycles its file.
            fs::remove_file(server.path("pg_wal").join(name(1, asked))).unwrap();
            let mark = format!("pg_wal/archive_status/{}.ready", name(1, asked));
            fs::remove_file(server.path(&mark)).unwrap();
        }
    }
    // Without a cut, the rest is archived, and all is there.
    for number in 2 + acknowledged.len() as u32..next {
        server.push(&name(1, number)).ends_with(0);
    }
    for number in 2..next {
        server.get(&name(1, number), &[]).ends_with(0);
        assert!(
            server.fetched() == segment(1, number, seed(number)),
            "{number}"
        );
    }
    server.check().ends_with(0);
    let listed = fullbore(args!["wal", "list", server.repository(), "--json"]).ends_with(0);
    let report = &listed.json()[0];
    assert_eq!(report["segments"], next - 2, "{report}");
    assert_eq!(report["gaps"].as_array().map(Vec::len), Some(0), "{report}");
}
