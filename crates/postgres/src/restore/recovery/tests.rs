use crate::{lsn::Lsn, restore::recovery::*};

/// The server would read these as octal.
#[test]
fn numbers_with_leading_zeros_are_decimal() {
    let options = RecoveryOptions {
        timeline: Some("00000012".into()),
        target: Some(RecoveryTarget::Xid("0731".into())),
        ..RecoveryOptions::default()
    };
    let (recovery, _) = plan(
        &options,
        &cluster(),
        &RecoveryFacts {
            restore_command: true,
            ..RecoveryFacts::default()
        },
    )
    .unwrap();
    let set = |name: &str| {
        recovery
            .settings
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
    };
    assert_eq!(set("recovery_target_timeline").unwrap(), "12");
    assert_eq!(set("recovery_target_xid").unwrap(), "731");
}

#[test]
fn a_cluster_that_was_shut_down_recovers_to_no_earlier_location() {
    let lsn = |stop: &str, wanted: &str| {
        let stopped = ClusterInfo {
            online: false,
            stop_lsn: stop.into(),
            ..cluster()
        };
        let options = RecoveryOptions {
            target: Some(RecoveryTarget::Lsn(wanted.into())),
            ..RecoveryOptions::default()
        };
        options.can_begin_with(&stopped, "")
    };
    assert!(lsn("1/2000100", "1/2000100") && !lsn("1/2000100", "1/20000FF"));
    assert!(!lsn("", "1/2000100"), "older backups do not say it");
    let immediate = RecoveryOptions {
        target: Some(RecoveryTarget::Immediate),
        ..RecoveryOptions::default()
    };
    let stopped = ClusterInfo {
        online: false,
        ..cluster()
    };
    assert!(
        plan(
            &immediate,
            &stopped,
            &RecoveryFacts {
                restore_command: true,
                ..RecoveryFacts::default()
            }
        )
        .is_err()
    );
}

fn cluster() -> ClusterInfo {
    ClusterInfo {
        online: true,
        wal: "included".into(),
        stop_lsn: "1/2000100".into(),
        timeline: 3,
        ..ClusterInfo::default()
    }
}

#[test]
fn a_server_pauses_at_a_target_by_default() {
    let options_with = |action| RecoveryOptions {
        target: Some(RecoveryTarget::Immediate),
        action,
        ..RecoveryOptions::default()
    };
    let waits = [
        options_with(None),
        options_with(Some(TargetAction::Pause)),
        options_with(Some(TargetAction::Promote)),
        RecoveryOptions::default(),
    ];
    assert_eq!(
        waits.map(|options| options.pauses_at_target()),
        [true, true, false, false]
    );
}

fn planned(options: RecoveryOptions) -> Result<String> {
    let known = RecoveryFacts {
        stopped: "2026-11-21T05:45:02Z",
        is_all: true,
        restore_command: true,
        ..RecoveryFacts::default()
    };
    let (recovery, notes) = plan(&options, &cluster(), &known)?;
    let until = matches!(options.target, Some(RecoveryTarget::Time(_)));
    assert!(
        notes.len() == usize::from(until)
            && notes
                .iter()
                .all(|note| note.contains(" will recover to 20")),
        "{notes:?}"
    );
    let times = |name: &str| {
        recovery
            .settings
            .iter()
            .filter(|(set, _)| set == name)
            .count()
    };
    assert!(recovery.signal.is_none() || TARGET_DEFAULTS.iter().all(|(name, _)| times(name) == 1));
    let is_said = |name: &str| name == "recovery_target_timeline" && options.timeline.is_some();
    let is_usual =
        |pair: (&str, &str)| TARGET_DEFAULTS.contains(&pair) || POINT_DEFAULTS.contains(&pair);
    let said = |pair: &&(String, String)| is_said(&pair.0) || !is_usual((&pair.0, &pair.1));
    let delay = times("recovery_min_apply_delay");
    assert_eq!(delay, usize::from(recovery.signal == Some(RECOVERY_SIGNAL)));
    let settings = recovery
        .settings
        .iter()
        .filter(said)
        .map(|(name, value)| format!("{name}={value}"));
    let signal = recovery
        .signal
        .map(|name| String::from_utf8_lossy(name).into_owned());
    Ok(settings.chain(signal).collect::<Vec<_>>().join(" "))
}

fn to(target: RecoveryTarget) -> RecoveryOptions {
    RecoveryOptions {
        target: Some(target),
        ..RecoveryOptions::default()
    }
}

fn fetching(options: RecoveryOptions) -> RecoveryOptions {
    RecoveryOptions {
        restore_command: Some("cp %p".into()),
        ..options
    }
}

#[test]
fn targets_become_settings_and_imply_recovery_to_a_point() {
    let cases = [
        (RecoveryOptions::default(), ""),
        (
            to(RecoveryTarget::Lsn("1/2000100".into())),
            "recovery_target_lsn=1/2000100 recovery.signal",
        ),
        (
            to(RecoveryTarget::Name("x y".into())),
            "recovery_target_name=x y recovery.signal",
        ),
        (
            to(RecoveryTarget::Immediate),
            "recovery_target=immediate recovery_target_timeline=current recovery.signal",
        ),
        (
            RecoveryOptions {
                timeline: Some("latest".into()),
                ..to(RecoveryTarget::Immediate)
            },
            "recovery_target=immediate recovery_target_timeline=latest recovery.signal",
        ),
        (
            RecoveryOptions {
                exclusive: true,
                action: Some(TargetAction::Promote),
                ..to(RecoveryTarget::Xid("700".into()))
            },
            "recovery_target_xid=700 recovery_target_inclusive=false recovery_target_action=promote recovery.signal",
        ),
        (
            RecoveryOptions {
                timeline: Some("latest".into()),
                ..RecoveryOptions::default()
            },
            "recovery_target_timeline=latest recovery.signal",
        ),
        (
            RecoveryOptions {
                mode: Some(Mode::Standby),
                timeline: Some("4".into()),
                ..RecoveryOptions::default()
            },
            "recovery_target_timeline=4 standby.signal",
        ),
        (
            fetching(RecoveryOptions::default()),
            "restore_command=cp %p recovery.signal",
        ),
        (
            fetching(to(RecoveryTarget::Xid("7".into()))),
            "recovery_target_xid=7 restore_command=cp %p recovery.signal",
        ),
        (
            fetching(RecoveryOptions {
                mode: Some(Mode::Standby),
                ..RecoveryOptions::default()
            }),
            "restore_command=cp %p standby.signal",
        ),
        (
            RecoveryOptions {
                settings: vec![setting("restore_command", "x")],
                ..RecoveryOptions::default()
            },
            "restore_command=x",
        ),
    ];
    for (options, wanted) in cases {
        assert_eq!(planned(options).unwrap(), wanted);
    }
}

#[test]
fn a_server_that_cannot_reach_the_latest_timeline_stays_on_its_own() {
    let fork = TimelineFork {
        timeline: 5,
        left: Some((4, Lsn(0x1_0200_0000))),
        newest: "ID".into(),
    };
    let said = |options: RecoveryOptions| {
        let known = RecoveryFacts {
            is_all: true,
            restore_command: true,
            fork: Some(&fork),
            ..RecoveryFacts::default()
        };
        let (recovery, notes) = plan(&options, &cluster(), &known).unwrap();
        let timeline = recovery
            .settings
            .into_iter()
            .rfind(|(name, _)| name == "recovery_target_timeline");
        (
            timeline.map_or_else(String::new, |(_, value)| value),
            notes.join(" "),
        )
    };
    let options_on = |timeline: &str| RecoveryOptions {
        timeline: Some(timeline.into()),
        ..to(RecoveryTarget::Xid("7".into()))
    };
    for (options, timeline, words) in [
        (
            RecoveryOptions::default(),
            "",
            "timeline 4 forked at 1/2000000, before this backup ended on timeline 3: the newest",
        ),
        (
            to(RecoveryTarget::Xid("7".into())),
            "3",
            "the server will stay on timeline 3; the newest backup that can reach",
        ),
        (
            to(RecoveryTarget::Immediate),
            "current",
            "will stay on timeline 3; the newest backup that can reach timeline 5 is ID",
        ),
        (options_on("5"), "5", "will not reach it"),
        (options_on("latest"), "latest", "will not reach it"),
        (
            RecoveryOptions {
                mode: Some(Mode::Standby),
                ..RecoveryOptions::default()
            },
            "latest",
            "cannot follow a server on timeline 5",
        ),
    ] {
        let (found, notes) = said(options);
        assert!(
            found == timeline && notes.contains(words),
            "{words}: {found:?} {notes}"
        );
    }
}

#[test]
fn only_settings_for_this_recovery_are_to_be_reset() {
    let passing = |options: RecoveryOptions| {
        let (recovery, _) = plan(
            &options,
            &cluster(),
            &RecoveryFacts {
                restore_command: true,
                ..RecoveryFacts::default()
            },
        )
        .unwrap();
        recovery
            .temporary_settings()
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let options_on = |timeline: &str| RecoveryOptions {
        timeline: Some(timeline.into()),
        ..RecoveryOptions::default()
    };
    let command = |command: &str| RecoveryOptions {
        restore_command: Some(command.into()),
        ..RecoveryOptions::default()
    };
    assert_eq!(
        passing(to(RecoveryTarget::Xid("7".into()))),
        "recovery_target_xid"
    );
    assert_eq!(
        passing(to(RecoveryTarget::Immediate)),
        "recovery_target recovery_target_timeline"
    );
    assert_eq!(passing(options_on("3")), "recovery_target_timeline");
    assert_eq!(passing(command("false")), "restore_command");
    let standby = RecoveryOptions {
        mode: Some(Mode::Standby),
        ..options_on("3")
    };
    for options in [
        options_on("latest"),
        command("cp /archive/%f %p"),
        RecoveryOptions::default(),
        standby,
    ] {
        assert_eq!(passing(options), "");
    }
}

#[test]
fn only_a_recovery_beyond_the_backup_follows_timelines() {
    let follows = |options: RecoveryOptions| options.follows_timelines();
    let options_on = |timeline: &str, options| RecoveryOptions {
        timeline: Some(timeline.into()),
        ..options
    };
    let standby = || RecoveryOptions {
        mode: Some(Mode::Standby),
        ..RecoveryOptions::default()
    };
    let name = || to(RecoveryTarget::Name("x".into()));
    assert!(follows(standby()) && follows(name()) && follows(fetching(RecoveryOptions::default())));
    assert!(
        follows(options_on("latest", to(RecoveryTarget::Immediate)))
            && follows(options_on("4", RecoveryOptions::default()))
    );
    assert!(
        !follows(RecoveryOptions::default())
            && !follows(to(RecoveryTarget::Immediate))
            && !follows(options_on("current", standby()))
    );
}

#[test]
fn times_are_written_in_utc() {
    for text in [
        "2026-11-21 05:45:02+00",
        "2026-11-21T05:45:02Z",
        "2026-11-21 06:45:02+01:00",
    ] {
        let wanted = "recovery_target_time=2026-11-21 05:45:02.000000+00 recovery.signal";
        assert_eq!(
            planned(to(RecoveryTarget::Time(text.into()))).unwrap(),
            wanted
        );
    }
    assert!(planned(to(RecoveryTarget::Time("2026-12-21 05:45:02".into()))).is_ok());
}

#[test]
fn impossible_options_are_refused_with_the_reason() {
    let options = RecoveryOptions::default;
    let cases = [
        (
            to(RecoveryTarget::Time("2026-11-21 05:45:01+00".into())),
            "the backup ended later",
        ),
        (
            to(RecoveryTarget::Time("yesterday".into())),
            "it is not a time",
        ),
        (
            to(RecoveryTarget::Lsn("1/20000FF".into())),
            "consistent only at 1/2000100",
        ),
        (
            to(RecoveryTarget::Lsn("0/FFFFFFFF".into())),
            "consistent only at",
        ),
        (to(RecoveryTarget::Lsn("12".into())), "it is not an LSN"),
        (to(RecoveryTarget::Xid("x".into())), "it is not a number"),
        (to(RecoveryTarget::Xid(String::new())), "it is not a number"),
        (to(RecoveryTarget::Name(String::new())), "without a name"),
        (
            fetching(RecoveryOptions {
                mode: Some(Mode::None),
                ..options()
            }),
            "only adds the setting",
        ),
        (
            RecoveryOptions {
                restore_command: Some(" ".into()),
                ..options()
            },
            "needs a command",
        ),
        (
            RecoveryOptions {
                mode: Some(Mode::Standby),
                ..to(RecoveryTarget::Immediate)
            },
            "a standby never ends its recovery",
        ),
        (
            RecoveryOptions {
                mode: Some(Mode::None),
                ..to(RecoveryTarget::Immediate)
            },
            "needs --recovery point",
        ),
        (
            RecoveryOptions {
                exclusive: true,
                ..to(RecoveryTarget::Immediate)
            },
            "--target-exclusive needs",
        ),
        (
            RecoveryOptions {
                action: Some(TargetAction::Pause),
                ..options()
            },
            "--target-action needs",
        ),
        (
            RecoveryOptions {
                timeline: Some("2".into()),
                ..to(RecoveryTarget::Immediate)
            },
            "on timeline 3",
        ),
        (
            RecoveryOptions {
                timeline: Some("new".into()),
                ..to(RecoveryTarget::Immediate)
            },
            "timeline \"new\"",
        ),
        (
            RecoveryOptions {
                settings: vec![setting("a b", "")],
                ..options()
            },
            "not the name of a setting",
        ),
        (
            RecoveryOptions {
                settings: vec![setting("a", "x\ny")],
                ..options()
            },
            "more than one line",
        ),
    ];
    for (options, words) in cases {
        let error = planned(options).unwrap_err();
        assert!(
            error.kind == ErrorKind::Usage && error.line().contains(words),
            "{words}: {error}"
        );
    }
}

#[test]
fn missing_wal_and_connections_are_noted_or_refused() {
    let bare = ClusterInfo {
        wal: "archived".into(),
        ..cluster()
    };
    let said = |mode, cluster: &ClusterInfo| {
        let options = RecoveryOptions {
            mode: Some(mode),
            ..RecoveryOptions::default()
        };
        plan(
            &options,
            cluster,
            &RecoveryFacts {
                is_all: true,
                ..RecoveryFacts::default()
            },
        )
        .map(|(_, notes)| notes.join(" "))
    };
    assert!(
        said(Mode::None, &bare)
            .unwrap()
            .contains("the WAL is not in the backup")
    );
    assert!(
        said(Mode::Standby, &cluster())
            .unwrap()
            .contains("nothing to follow")
    );
    assert_eq!(said(Mode::None, &cluster()).unwrap(), "");
    assert_eq!(said(Mode::None, &ClusterInfo::default()).unwrap(), "");
}

#[test]
fn recovery_to_a_point_without_restore_command_is_refused() {
    let point = || RecoveryOptions {
        mode: Some(Mode::Point),
        ..RecoveryOptions::default()
    };
    let options_on = |timeline: &str| RecoveryOptions {
        timeline: Some(timeline.into()),
        ..RecoveryOptions::default()
    };
    let far = [
        to(RecoveryTarget::Time("2026-12-21 05:45:02+00".into())),
        to(RecoveryTarget::Lsn("1/3000000".into())),
        to(RecoveryTarget::Name("x".into())),
        to(RecoveryTarget::Xid("7".into())),
        options_on("latest"),
    ];
    let near = [
        point(),
        to(RecoveryTarget::Immediate),
        options_on("current"),
    ];
    let bare = ClusterInfo {
        wal: "archived".into(),
        ..cluster()
    };
    for (options, may_be_false) in { far }
        .map(|far| (far, false))
        .into_iter()
        .chain(near.map(|near| (near, true)))
    {
        for is_all in [true, false] {
            let known = RecoveryFacts {
                is_all,
                ..RecoveryFacts::default()
            };
            let hint = |cluster: &ClusterInfo| {
                let error = plan(&options, cluster, &known).unwrap_err();
                assert!(
                    error.kind == ErrorKind::Usage
                        && error
                            .what
                            .contains("without restore_command the server cannot fetch WAL"),
                    "{error}"
                );
                error.hint.unwrap().into_owned()
            };
            assert_eq!(
                hint(&cluster()).contains("--restore-command false"),
                may_be_false,
                "{options:?}"
            );
            assert!(
                !hint(&bare).contains("--restore-command false"),
                "{options:?}"
            );
            let set = RecoveryOptions {
                settings: vec![setting("restore_command", "cp")],
                ..options.clone()
            };
            plan(&set, &cluster(), &known).unwrap();
            let known = RecoveryFacts {
                restore_command: true,
                ..known
            };
            plan(&options, &cluster(), &known).unwrap();
            let unset = RecoveryOptions {
                settings: vec![setting("restore_command", "")],
                ..options.clone()
            };
            plan(&unset, &cluster(), &known).unwrap_err();
        }
    }
}
