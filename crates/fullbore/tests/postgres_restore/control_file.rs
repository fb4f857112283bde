//! The control file is written last: without it no server starts.

use super::*;

/// A restore under strace, which writes what it traces or does what `how` says.
fn traced(place: &Place, how: &[&str]) -> runs::Ran {
    let mut command = Command::new("strace");
    command
        .args(["-f", "-qq", "-o"])
        .arg(place.at("trace"))
        .args(how)
        .arg(runs::FULLBORE)
        .arg("restore");
    command
        .arg(place.at("repo"))
        .arg("--to")
        .arg(place.at("to"))
        .arg("--tablespaces-under")
        .arg(place.at("ts"));
    command
        .args(["--quiet", "--workers", "2"])
        .output()
        .unwrap()
        .into()
}

#[test]
fn pg_control_is_put_in_place_when_all_else_is_durable() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let place = Place::new();
    let calls = "trace=syncfs,fsync,pwrite64,renameat,renameat2,rename,openat,mkdirat,symlinkat,fchmod,fchown";
    traced(&place, &["-e", calls]).ends_with(0);
    let trace = fs::read_to_string(place.at("trace")).unwrap();
    // A call that another thread's came between stands in two lines: the first counts.
    let lines: Vec<&str> = trace
        .lines()
        .filter(|line| !line.contains(" resumed>"))
        .collect();
    let last = |word: &str| {
        lines
            .iter()
            .rposition(|line| line.contains(word))
            .expect(word)
    };
    assert!(
        !lines
            .iter()
            .any(|line| line.contains("\"pg_control\"") && line.contains("O_CREAT"))
    );
    assert_eq!(
        lines.iter().filter(|line| line.contains("syncfs(")).count(),
        1,
        "once a file system"
    );
    for change in ["pwrite64(", "O_CREAT", "symlinkat(", "mkdirat(", "fchmod("] {
        assert!(
            last(change)
                < lines
                    .iter()
                    .position(|line| line.contains("syncfs("))
                    .unwrap(),
            "{change}"
        );
    }
    assert!(
        last("syncfs(") < last("rename") && last("\"pg_control\"") == last("rename"),
        "{trace}"
    );
    assert!(last("fsync(") > last("rename"), "global is not durable");
}

#[test]
fn killed_at_any_moment_a_restore_leaves_no_pg_control() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    // `syncfs` is the last call before the rename.
    for (calls, steps) in [
        ("syncfs", 1..=1),
        ("fchmod", 1..=3),
        ("pwrite64", 1..=9),
        ("symlinkat", 1..=1),
    ] {
        for when in steps.step_by(2) {
            let place = Place::new();
            let ran = traced(
                &place,
                &["-e", &format!("inject={calls}:signal=KILL:when={when}")],
            );
            assert_ne!(ran.code, 0, "{calls} {when}");
            assert!(!place.at("to/global/pg_control").exists(), "{calls} {when}");
            run(&Restore {
                storages: Storages::default(),
                into: fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
                ..place.plan()
            })
            .unwrap();
            assert!(
                fs::read(place.at("to/global/pg_control")).unwrap() == content(7, 8192),
                "{calls} {when}"
            );
            assert!(
                fs::read(place.at("ts/fast").join(VERSION).join("4/24576")).unwrap()
                    == content(5, 10_000)
            );
        }
    }
}

#[test]
fn without_backup_label_there_is_no_pg_control() {
    let there = |place: &Place, restore: &Restore| {
        let summary = run(restore).unwrap();
        assert_eq!(
            runs::names(&place.at("to/global")).len(),
            1 + usize::from(summary.notes.is_empty())
        );
        (
            place.at("to/global/pg_control").exists(),
            summary.notes.join(" "),
            summary.next.len(),
        )
    };
    let paths = vec![b"global".to_vec(), b"base".to_vec()];
    let place = Place::new();
    let (is_there, notes, next) = there(
        &place,
        &Restore {
            storages: Storages::default(),
            paths: paths.clone(),
            ..place.plan()
        },
    );
    assert!(
        !is_there && next == 0 && notes.contains("starts without \"backup_label\""),
        "{notes}"
    );
    // A label that could not be restored is one that is not there.
    let mut fixture = cluster();
    fixture
        .entries
        .retain(|(_, entry, ..)| entry.path != b"backup_label");
    let unreadable = EntryState::Unreadable("gone".into());
    fixture.entries.push((
        1,
        entry(
            "backup_label",
            EntryKind::File {
                size: 18,
                map: None,
            },
            0o600,
        ),
        vec![],
        unreadable,
    ));
    let place = Place::with(&fixture, |_| {});
    assert!(!there(&place, &place.plan()).0);
    // Nor does damage to pg_control itself make anybody start the server.
    let mut fixture = cluster();
    let control = fixture
        .entries
        .iter_mut()
        .find(|(_, entry, ..)| entry.path == b"global/pg_control")
        .unwrap();
    control.3 = EntryState::Unreadable("gone".into());
    control.2.clear();
    let place = Place::with(&fixture, |_| {});
    let summary = run(&place.plan()).unwrap();
    assert_eq!(
        (runs::names(&place.at("to/global")).len(), summary.next),
        (1, vec![])
    );
    // A cluster that did not run needs none.
    let place = Place::with(&cluster(), |cluster| cluster.online = false);
    assert!(
        there(
            &place,
            &Restore {
                storages: Storages::default(),
                paths,
                ..place.plan()
            }
        )
        .0
    );
}

#[test]
fn a_cluster_of_which_something_may_be_missing_gets_no_pg_control() {
    let restored = |place: &Place, into| {
        let summary = run(&Restore {
            storages: Storages::default(),
            into,
            ..place.plan()
        })
        .unwrap();
        let names = runs::names(&place.at("to/global")).join(" ");
        (names, summary.notes.join(" "), summary.next.len())
    };
    let relation = |state: EntryState| {
        let mut fixture = cluster();
        let found = fixture
            .entries
            .iter_mut()
            .find(|(_, entry, ..)| entry.path == b"base/5/1259")
            .unwrap();
        if matches!(state, EntryState::Unreadable(_)) {
            found.2.clear();
        }
        found.3 = state;
        Place::with(&fixture, |_| {})
    };
    // What `repair` says in a root that it made anew.
    let reason =
        "the root was lost: entries that this backup shared with others by whole pages are missing";
    let lost = |online| {
        let place = Place { dir: temp() };
        let mut root = cluster().write_repository(&place.at("repo"));
        root.not_captured = vec![NotCaptured {
            path: EntryName::default(),
            reason: reason.into(),
        }];
        declare(
            &place.at("repo"),
            &root,
            ClusterInfo {
                online,
                ..facts(&place.at("old"))
            },
        );
        place
    };
    for place in [
        lost(true),
        lost(false),
        relation(EntryState::Unreadable("gone".into())),
    ] {
        // What is left of the first is no other cluster's.
        for into in [
            fullbore_engine::restore::RestoreInto::Empty,
            fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
        ] {
            let (names, notes, next) = restored(&place, into);
            assert_eq!((&*names, next), (".fullbore-unfinished 1262", 0));
            assert!(
                notes.contains(
                    "\"global/pg_control\" is not in place, because files of the cluster are missing"
                ),
                "{notes}"
            );
        }
    }
    // Wrong as they are, pages that were stored are there.
    let place = relation(EntryState::BadPages(vec![0]));
    let (names, notes, _) = restored(&place, fullbore_engine::restore::RestoreInto::Empty);
    assert!(
        names == "1262 pg_control" && notes.contains("wrong page checksums"),
        "{names} {notes}"
    );
}

#[test]
fn where_a_file_cannot_be_written_it_is_said_that_pg_control_is_left_out() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let place = Place::new();
    // Of one file: the first write of each thread can be that of pg_control itself.
    let file = place.at("to/PG_VERSION");
    let only = [
        "-e",
        "inject=pwrite64:error=EFBIG",
        "-P",
        file.to_str().unwrap(),
    ];
    let ran = traced(&place, &only)
        .ends_with(1)
        .has_one_error("skipped; the rest of the backup is restored");
    let said = [
        "\"global/pg_control\" is not in place, because files",
        "run the same command again with --overwrite",
    ];
    assert!(
        said.iter().all(|words| ran.err.contains(words)),
        "{}",
        ran.err
    );
    assert!(!place.at("to/global/pg_control").exists());
    run(&Restore {
        storages: Storages::default(),
        into: fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
        ..place.plan()
    })
    .unwrap();
    assert!(place.at("to/global/pg_control").exists());
}
