//! Settings and signals.

use super::{
    Place, assert_refused, cluster, declare, facts,
    fixture::{Fixture, ID},
    mode, run, served,
};
use fullbore_engine::restore::Restore;
use fullbore_format::{
    error::ErrorKind,
    layout,
    root::{ClusterInfo, EntryName},
};
use fullbore_postgres::restore::{
    plan::ClusterOptions,
    recovery::{self, Mode, TargetAction},
    recovery_target::RecoveryTarget,
};
use fullbore_repository::{archive::Archive, select::BackupFilter};
use fullbore_storage::Storages;
use std::{fs, os::unix::fs::MetadataExt};

fn with(place: &Place, recovery: recovery::RecoveryOptions) -> Restore {
    let plan = place.plan();
    Restore {
        storages: Storages::default(),
        postgres: ClusterOptions {
            recovery,
            ..plan.postgres.clone()
        },
        ..plan
    }
}

fn command() -> (String, String) {
    ("restore_command".into(), "cp '/archive/%f' \"%p\"".into())
}

#[test]
fn a_target_is_written_for_the_server_and_earlier_ones_become_comments() {
    let place = Place::new();
    let restore = with(
        &place,
        recovery::RecoveryOptions {
            target: Some(RecoveryTarget::Lsn("0/2000100".into())),
            exclusive: true,
            action: Some(TargetAction::Promote),
            settings: vec![command()],
            ..Default::default()
        },
    );
    assert_eq!(run(&restore).unwrap().notes, [""; 0]);
    let conf = fs::read_to_string(place.at("to/postgresql.auto.conf")).unwrap();
    let wanted = "work_mem = '1MB'\n#recovery_target_time = 'x'\n\
        # set by the restore of backup 20261121T054501Z-k3f9qz\nrecovery_target = ''\n\
        recovery_target_name = ''\nrecovery_target_time = ''\nrecovery_target_xid = ''\n\
        recovery_target_timeline = 'latest'\nrecovery_min_apply_delay = '0'\narchive_cleanup_command = ''\n\
        recovery_end_command = ''\nrecovery_target_lsn = '0/2000100'\n\
        recovery_target_inclusive = 'false'\nrecovery_target_action = 'promote'\n\
        restore_command = 'cp ''/archive/%f'' \"%p\"'\n";
    assert_eq!(conf, wanted);
    let signal = fs::metadata(place.at("to/recovery.signal")).unwrap();
    let top = fs::metadata(place.at("to")).unwrap();
    assert_eq!(
        (signal.len(), signal.mode() & 0o7777, signal.uid()),
        (0, 0o600, top.uid())
    );
    assert!(!place.at("to/standby.signal").exists());
    // The times of directories are those of the backup all the same.
    assert_eq!(top.mtime(), 1_600_000_000);
}

#[test]
fn a_setting_with_which_the_server_would_not_start_is_refused() {
    for (name, value) in [("nosuch", "1"), ("a", "1 # c"), ("port", "5433 # c")] {
        let place = Place::new();
        let options = recovery::RecoveryOptions {
            settings: vec![(name.into(), value.into())],
            ..Default::default()
        };
        let error = run(&with(&place, options)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(error.what.starts_with(&format!("cannot set {name:?}")));
        assert!(!place.at("to").exists());
    }
}

#[test]
fn a_time_is_compared_with_the_end_of_the_backup_not_of_waiting_for_the_archive() {
    let time = |text: &str| recovery::RecoveryOptions {
        target: Some(RecoveryTarget::Time(text.into())),
        settings: vec![command()],
        ..Default::default()
    };
    let root = cluster().write_repository(&Place::new().at("repo"));
    let finished: jiff::Timestamp = root.finished.parse().unwrap();
    let before = |seconds: i64| (finished - jiff::SignedDuration::from_secs(seconds)).to_string();
    let place = Place::with(&cluster(), |cluster| cluster.stopped = before(60));
    let words = format!("the backup ended later, at {}", before(60));
    assert_refused(&with(&place, time(&before(61))), ErrorKind::Usage, &words);
    let summary = run(&with(&place, time(&before(60)))).unwrap();
    let told =
        |note: &String| note.starts_with("the server will recover to 20") && note.contains("+00");
    assert!(summary.notes.iter().any(told), "{:?}", summary.notes);
    let notes = run(&with(&Place::new(), time("2126-11-21 05:45:01+00")))
        .unwrap()
        .notes;
    assert!(
        notes
            .iter()
            .any(|note| note.contains("that is later than now")),
        "{notes:?}"
    );
    // Older backups do not say it.
    assert_refused(
        &with(&Place::new(), time(&before(60))),
        ErrorKind::Usage,
        &root.finished,
    );
}

#[test]
fn a_standby_gets_its_signal_and_keeps_no_target() {
    let place = Place::new();
    let restore = with(
        &place,
        recovery::RecoveryOptions {
            mode: Some(Mode::Standby),
            settings: vec![("primary_conninfo".into(), "host=a".into())],
            ..Default::default()
        },
    );
    assert_eq!(run(&restore).unwrap().notes, [""; 0]);
    let conf = fs::read_to_string(place.at("to/postgresql.auto.conf")).unwrap();
    assert!(
        conf.contains("\n#recovery_target_time") && conf.ends_with("primary_conninfo = 'host=a'\n"),
        "{conf}"
    );
    assert!(place.at("to/standby.signal").exists() && !place.at("to/recovery.signal").exists());
}

#[test]
fn a_restore_without_recovery_leaves_the_settings_as_they_were() {
    let place = Place::new();
    run(&place.plan()).unwrap();
    let conf = fs::read(place.at("to/postgresql.auto.conf")).unwrap();
    assert_eq!(conf, b"work_mem = '1MB'\nrecovery_target_time = 'x'\n");
}

#[test]
fn settings_are_written_even_if_the_backup_has_none() {
    let mut fixture = cluster();
    fixture
        .entries
        .retain(|(_, entry, ..)| entry.path != b"postgresql.auto.conf");
    let place = Place::with(&fixture, |_| {});
    let settings = vec![("port".into(), "5499".into())];
    run(&with(
        &place,
        recovery::RecoveryOptions {
            settings,
            ..Default::default()
        },
    ))
    .unwrap();
    let conf = fs::read_to_string(place.at("to/postgresql.auto.conf")).unwrap();
    assert_eq!(
        conf,
        "# set by the restore of backup 20261121T054501Z-k3f9qz\nport = '5499'\n"
    );
    assert_eq!(mode(&place.at("to/postgresql.auto.conf")), 0o600);
    assert!(!place.at("to/recovery.signal").exists());
}

#[test]
fn targets_that_cannot_be_reached_are_refused_before_anything_is_made() {
    let place = Place::new();
    let recovery_to = |target| recovery::RecoveryOptions {
        target: Some(target),
        settings: vec![command()],
        ..Default::default()
    };
    let cases = [
        (
            recovery_to(RecoveryTarget::Lsn("0/20000FF".into())),
            "consistent only at 0/2000100",
        ),
        (
            recovery_to(RecoveryTarget::Time("2026-11-21 05:45:01+00".into())),
            "the backup ended later, at 2026-11-21T05:45:02Z",
        ),
        (
            recovery::RecoveryOptions {
                timeline: Some("0".into()),
                ..recovery_to(RecoveryTarget::Immediate)
            },
            "timeline 1",
        ),
        (
            recovery::RecoveryOptions {
                mode: Some(Mode::Standby),
                ..recovery_to(RecoveryTarget::Immediate)
            },
            "--recovery point",
        ),
    ];
    for (options, words) in cases {
        assert_refused(&with(&place, options), ErrorKind::Usage, words);
        assert!(
            !place.at("to").exists() && !place.at("ts").exists(),
            "{words}"
        );
    }
}

#[test]
fn wal_that_nobody_can_fetch_is_an_error_and_a_restore_command_of_the_backup_counts() {
    let archived = |cluster: &mut ClusterInfo| cluster.wal = "archived".into();
    let point = recovery::RecoveryOptions {
        mode: Some(Mode::Point),
        ..Default::default()
    };
    let place = Place::with(&cluster(), archived);
    assert_refused(
        &with(&place, point.clone()),
        ErrorKind::Usage,
        "--restore-command CMD",
    );
    let notes = run(&place.plan()).unwrap().notes;
    assert!(
        notes.len() == 1 && notes[0].contains("the WAL is not in the backup"),
        "{notes:?}"
    );
    for conf in ["postgresql.conf", "postgresql.auto.conf"] {
        let mut fixture = cluster();
        fixture
            .entries
            .retain(|(_, entry, ..)| entry.path != conf.as_bytes());
        fixture.file(conf, "# a comment\nrestore_command = 'x %p'\n");
        let place = Place::with(&fixture, archived);
        assert_eq!(
            run(&with(&place, point.clone())).unwrap().notes,
            [""; 0],
            "{conf}"
        );
    }
}

#[test]
fn a_target_that_the_server_would_not_start_for_is_refused_before_anything_is_made() {
    let place = Place::new();
    let targets = [
        RecoveryTarget::Time("2126-11-21 05:45:01+00".into()),
        RecoveryTarget::Lsn("0/2000100".into()),
        RecoveryTarget::Name("x".into()),
        RecoveryTarget::Xid("7".into()),
        RecoveryTarget::Immediate,
    ];
    for target in targets {
        let recovery = recovery::RecoveryOptions {
            target: Some(target),
            ..Default::default()
        };
        assert_refused(
            &with(&place, recovery.clone()),
            ErrorKind::Usage,
            "without restore_command the server cannot fetch WAL",
        );
        assert_refused(
            &with(&place, recovery),
            ErrorKind::Usage,
            "--restore-command 'cp /archive/%f %p'",
        );
        assert!(!place.at("to").exists() && !place.at("ts").exists());
    }
}

#[test]
fn what_is_to_be_done_at_a_target_and_after_it_is_said() {
    let next = |target, action| {
        let recovery = recovery::RecoveryOptions {
            target: Some(target),
            action,
            settings: vec![command()],
            ..Default::default()
        };
        run(&with(&Place::new(), recovery))
            .unwrap()
            .next
            .split_off(1)
    };
    let name = || RecoveryTarget::Name("x".into());
    let said = next(name(), None);
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(
        said[0].contains("SELECT pg_wal_replay_resume();"),
        "{said:?}"
    );
    assert!(
        said[1].contains("DROP or TRUNCATE") && said[1].ends_with("--target-action promote"),
        "{said:?}"
    );
    assert!(
        said[2].starts_with("ALTER SYSTEM RESET recovery_target_name; -- "),
        "{said:?}"
    );
    assert_eq!(next(name(), Some(TargetAction::Promote)), said[2..]);
    // Where the cluster is consistent nothing is locked that was not.
    let immediate = next(RecoveryTarget::Immediate, None);
    assert!(
        immediate.len() == 3 && immediate[1].contains("RESET recovery_target; -- "),
        "{immediate:?}"
    );
}

#[test]
fn a_configuration_that_is_elsewhere_is_noted() {
    let mut fixture = cluster();
    fixture
        .entries
        .retain(|(_, entry, ..)| entry.path != b"postgresql.conf");
    let place = Place::with(&fixture, |_| {});
    let summary = run(&place.plan()).unwrap();
    assert_eq!(
        summary.notes,
        ["\"postgresql.conf\" is not in the backup: the server had its configuration elsewhere"]
    );
    // Without it the server does not start, and with the one it had it starts elsewhere.
    assert!(
        summary.next[0].contains("\"postgresql.conf\" that sets no data_directory"),
        "{:?}",
        summary.next
    );
    assert!(summary.next[1].starts_with("pg_ctl"), "{:?}", summary.next);
    let place = Place::with(&fixture, |cluster| {
        cluster.configuration = vec![EntryName(b"/etc/pg/postgresql.conf".to_vec())]
    });
    let notes = run(&place.plan()).unwrap().notes;
    assert!(
        notes[0].ends_with("the server had its configuration in \"/etc/pg/postgresql.conf\""),
        "{notes:?}"
    );
}

#[test]
fn settings_that_are_damaged_are_found_and_can_be_done_without() {
    let mut fixture = cluster();
    fixture.frame_bytes = 64; // a frame for each file
    let place = Place::with(&fixture, |_| {});
    let archive = Archive::open_backup(
        &Storages::default().repository_at(place.at("repo")).unwrap(),
        &fixture.id,
    )
    .unwrap();
    let found = archive.find(b"postgresql.auto.conf").unwrap();
    let segment = place
        .at("repo")
        .join(layout::BACKUPS)
        .join(&fixture.id)
        .join(layout::segment(1, 1, fixture.codec.suffix()));
    let mut bytes = fs::read(&segment).unwrap();
    bytes[found[0].extents[0].frame.offset as usize + 12] ^= 1;
    fs::write(segment, bytes).unwrap();
    let settings = vec![command()];
    let restore = with(
        &place,
        recovery::RecoveryOptions {
            settings,
            ..Default::default()
        },
    );
    assert_refused(&restore, ErrorKind::Corrupt, "--keep-going");
    fs::remove_dir_all(place.at("to")).unwrap();
    fs::remove_dir_all(place.at("ts")).unwrap();
    let summary = run(&Restore {
        storages: Storages::default(),
        keep_going: true,
        ..restore
    })
    .unwrap();
    assert_eq!((summary.exit_code(), summary.next.len()), (4, 0));
    assert_eq!(summary.damage[0].files, [b"postgresql.auto.conf"]);
    let conf = fs::read_to_string(place.at("to/postgresql.auto.conf")).unwrap();
    assert!(conf.starts_with("# set by the restore"), "{conf}");
}

#[test]
fn recovery_takes_the_servers_of_one_cluster_for_one_source_and_a_plain_restore_does_not() {
    let place = Place::new();
    let repository = place.at("repo");
    let later = Fixture {
        id: "20261122T054501Z-k3f9qz".into(),
        ..served(&cluster())
    };
    let mut root = later.write_repository(&repository);
    root.source.host = "other".into();
    declare(&repository, &root, facts(&place.at("old")));
    let target = recovery::RecoveryOptions {
        target: Some(RecoveryTarget::Lsn("0/2000100".into())),
        settings: vec![command()],
        ..Default::default()
    };
    let recovering = with(&place, target);
    let restore_as = |restore: Restore, host: &str| {
        let filter = BackupFilter {
            host: Some(host.into()),
            ..BackupFilter::default()
        };
        let destination = place.at(&format!(
            "{host} {}",
            restore.postgres.recovery.target.is_some()
        ));
        let tablespaces_under = Some(destination.with_extension("ts"));
        let postgres = ClusterOptions {
            tablespaces_under,
            ..restore.postgres.clone()
        };
        run(&Restore {
            storages: Storages::default(),
            filter,
            to: destination,
            postgres,
            ..restore
        })
        .unwrap()
        .id
    };
    assert_refused(&place.plan(), ErrorKind::Usage, "has backups of 2 sources");
    assert_refused(
        &Restore {
            storages: Storages::default(),
            into: fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
            ..recovering.clone()
        },
        ErrorKind::Usage,
        "has backups of 2 sources",
    );
    assert!(!place.at("to").exists());
    for restore in [place.plan(), recovering.clone()] {
        assert_eq!(
            [
                restore_as(restore.clone(), "host"),
                restore_as(restore, "other")
            ],
            [ID, &later.id]
        );
    }
    assert_eq!(run(&recovering).unwrap().id, later.id);
    // Another cluster is another source, whatever is recovered.
    let mut third = Fixture {
        id: "20261123T054501Z-k3f9qz".into(),
        ..later.clone()
    }
    .write_repository(&repository);
    third.source.host = "third".into();
    declare(
        &repository,
        &third,
        ClusterInfo {
            system_identifier: "2".into(),
            ..facts(&place.at("old"))
        },
    );
    assert_refused(&recovering, ErrorKind::Usage, "has backups of 3 sources");
}
