use crate::postgres::{lsn::Lsn, restore::recovery::*};

/// The server would read them as octal.
#[test]
fn numbers_that_begin_with_zeros_mean_what_they_say() {
    let options = Options {
        timeline: Some("00000012".into()),
        target: Some(Target::Xid("0731".into())),
        ..Options::default()
    };
    let (recovery, _) = plan(
        &options,
        &cluster(),
        &Known {
            restore_command: true,
            ..Known::default()
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
fn a_cluster_that_was_shut_down_recovers_to_no_place_before_that() {
    let lsn = |stop: &str, wanted: &str| {
        let stopped = Cluster {
            online: false,
            stop_lsn: stop.into(),
            ..cluster()
        };
        let options = Options {
            target: Some(Target::Lsn(wanted.into())),
            ..Options::default()
        };
        options.can_begin_with(&stopped, "")
    };
    assert!(lsn("1/2000100", "1/2000100") && !lsn("1/2000100", "1/20000FF"));
    assert!(!lsn("", "1/2000100"), "older backups do not say it");
    let immediate = Options {
        target: Some(Target::Immediate),
        ..Options::default()
    };
    let stopped = Cluster {
        online: false,
        ..cluster()
    };
    assert!(
        plan(
            &immediate,
            &stopped,
            &Known {
                restore_command: true,
                ..Known::default()
            }
        )
        .is_err()
    );
}

fn cluster() -> Cluster {
    Cluster {
        online: true,
        wal: "included".into(),
        stop_lsn: "1/2000100".into(),
        timeline: 3,
        ..Cluster::default()
    }
}

#[test]
fn a_server_waits_at_a_target_unless_told() {
    let at = |action| Options {
        target: Some(Target::Immediate),
        action,
        ..Options::default()
    };
    let waits = [
        at(None),
        at(Some(Action::Pause)),
        at(Some(Action::Promote)),
        Options::default(),
    ];
    assert_eq!(
        waits.map(|options| options.stands_still()),
        [true, true, false, false]
    );
}

fn planned(options: Options) -> Result<String> {
    let known = Known {
        stopped: "2026-11-21T05:45:02Z",
        is_all: true,
        restore_command: true,
        ..Known::default()
    };
    let (recovery, notes) = plan(&options, &cluster(), &known)?;
    let until = matches!(options.target, Some(Target::Time(_)));
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
    assert!(recovery.signal.is_none() || UNLESS_SAID.iter().all(|(name, _)| times(name) == 1));
    let is_said = |name: &str| name == "recovery_target_timeline" && options.timeline.is_some();
    let is_usual =
        |pair: (&str, &str)| UNLESS_SAID.contains(&pair) || UNLESS_SAID_TO_A_POINT.contains(&pair);
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

fn to(target: Target) -> Options {
    Options {
        target: Some(target),
        ..Options::default()
    }
}

fn fetching(options: Options) -> Options {
    Options {
        restore_command: Some("cp %p".into()),
        ..options
    }
}

#[test]
fn targets_become_settings_and_imply_recovery_to_a_point() {
    let cases = [
        (Options::default(), ""),
        (
            to(Target::Lsn("1/2000100".into())),
            "recovery_target_lsn=1/2000100 recovery.signal",
        ),
        (
            to(Target::Name("x y".into())),
            "recovery_target_name=x y recovery.signal",
        ),
        (
            to(Target::Immediate),
            "recovery_target=immediate recovery_target_timeline=current recovery.signal",
        ),
        (
            Options {
                timeline: Some("latest".into()),
                ..to(Target::Immediate)
            },
            "recovery_target=immediate recovery_target_timeline=latest recovery.signal",
        ),
        (
            Options {
                exclusive: true,
                action: Some(Action::Promote),
                ..to(Target::Xid("700".into()))
            },
            "recovery_target_xid=700 recovery_target_inclusive=false recovery_target_action=promote recovery.signal",
        ),
        (
            Options {
                timeline: Some("latest".into()),
                ..Options::default()
            },
            "recovery_target_timeline=latest recovery.signal",
        ),
        (
            Options {
                mode: Some(Mode::Standby),
                timeline: Some("4".into()),
                ..Options::default()
            },
            "recovery_target_timeline=4 standby.signal",
        ),
        (
            fetching(Options::default()),
            "restore_command=cp %p recovery.signal",
        ),
        (
            fetching(to(Target::Xid("7".into()))),
            "recovery_target_xid=7 restore_command=cp %p recovery.signal",
        ),
        (
            fetching(Options {
                mode: Some(Mode::Standby),
                ..Options::default()
            }),
            "restore_command=cp %p standby.signal",
        ),
        (
            Options {
                settings: vec![setting("restore_command", "x")],
                ..Options::default()
            },
            "restore_command=x",
        ),
    ];
    for (options, wanted) in cases {
        assert_eq!(planned(options).unwrap(), wanted);
    }
}

#[test]
fn beside_the_way_to_the_latest_timeline_a_server_stays_on_its_own() {
    let fork = Fork {
        timeline: 5,
        left: Some((4, Lsn(0x1_0200_0000))),
        newest: "ID".into(),
    };
    let said = |options: Options| {
        let known = Known {
            is_all: true,
            restore_command: true,
            fork: Some(&fork),
            ..Known::default()
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
    let on = |timeline: &str| Options {
        timeline: Some(timeline.into()),
        ..to(Target::Xid("7".into()))
    };
    for (options, timeline, words) in [
        (
            Options::default(),
            "",
            "timeline 4 forked at 1/2000000, before this backup ended on timeline 3: the newest",
        ),
        (
            to(Target::Xid("7".into())),
            "3",
            "the server will stay on timeline 3; the newest backup on the way",
        ),
        (
            to(Target::Immediate),
            "current",
            "will stay on timeline 3; the newest backup on the way to timeline 5 is ID",
        ),
        (on("5"), "5", "will not get there"),
        (on("latest"), "latest", "will not get there"),
        (
            Options {
                mode: Some(Mode::Standby),
                ..Options::default()
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
fn settings_for_this_recovery_alone_are_to_be_reset_and_others_stay() {
    let passing = |options: Options| {
        let (recovery, _) = plan(
            &options,
            &cluster(),
            &Known {
                restore_command: true,
                ..Known::default()
            },
        )
        .unwrap();
        recovery
            .passing()
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let on = |timeline: &str| Options {
        timeline: Some(timeline.into()),
        ..Options::default()
    };
    let command = |command: &str| Options {
        restore_command: Some(command.into()),
        ..Options::default()
    };
    assert_eq!(passing(to(Target::Xid("7".into()))), "recovery_target_xid");
    assert_eq!(
        passing(to(Target::Immediate)),
        "recovery_target recovery_target_timeline"
    );
    assert_eq!(passing(on("3")), "recovery_target_timeline");
    assert_eq!(passing(command("false")), "restore_command");
    let standby = Options {
        mode: Some(Mode::Standby),
        ..on("3")
    };
    for options in [
        on("latest"),
        command("cp /archive/%f %p"),
        Options::default(),
        standby,
    ] {
        assert_eq!(passing(options), "");
    }
}

#[test]
fn only_who_replays_more_than_the_backup_has_follows_timelines() {
    let follows = |options: Options| options.follows_timelines();
    let on = |timeline: &str, options| Options {
        timeline: Some(timeline.into()),
        ..options
    };
    let standby = || Options {
        mode: Some(Mode::Standby),
        ..Options::default()
    };
    let name = || to(Target::Name("x".into()));
    assert!(follows(standby()) && follows(name()) && follows(fetching(Options::default())));
    assert!(follows(on("latest", to(Target::Immediate))) && follows(on("4", Options::default())));
    assert!(
        !follows(Options::default())
            && !follows(to(Target::Immediate))
            && !follows(on("current", standby()))
    );
}

#[test]
fn times_are_told_to_the_server_in_utc() {
    for text in [
        "2026-11-21 05:45:02+00",
        "2026-11-21T05:45:02Z",
        "2026-11-21 06:45:02+01:00",
    ] {
        let wanted = "recovery_target_time=2026-11-21 05:45:02.000000+00 recovery.signal";
        assert_eq!(planned(to(Target::Time(text.into()))).unwrap(), wanted);
    }
    assert!(planned(to(Target::Time("2026-12-21 05:45:02".into()))).is_ok());
}

#[test]
fn what_cannot_work_is_refused_with_the_reason() {
    let options = Options::default;
    let cases = [
        (
            to(Target::Time("2026-11-21 05:45:01+00".into())),
            "the backup ended later",
        ),
        (to(Target::Time("yesterday".into())), "it is no time"),
        (
            to(Target::Lsn("1/20000FF".into())),
            "consistent only at 1/2000100",
        ),
        (to(Target::Lsn("0/FFFFFFFF".into())), "consistent only at"),
        (to(Target::Lsn("12".into())), "it is none"),
        (to(Target::Xid("x".into())), "it is no number"),
        (to(Target::Xid(String::new())), "it is no number"),
        (to(Target::Name(String::new())), "without a name"),
        (
            fetching(Options {
                mode: Some(Mode::None),
                ..options()
            }),
            "only adds the setting",
        ),
        (
            Options {
                restore_command: Some(" ".into()),
                ..options()
            },
            "wants a command",
        ),
        (
            Options {
                mode: Some(Mode::Standby),
                ..to(Target::Immediate)
            },
            "a standby goes on for ever",
        ),
        (
            Options {
                mode: Some(Mode::None),
                ..to(Target::Immediate)
            },
            "wants --recovery point",
        ),
        (
            Options {
                exclusive: true,
                ..to(Target::Immediate)
            },
            "--target-exclusive wants",
        ),
        (
            Options {
                action: Some(Action::Pause),
                ..options()
            },
            "--target-action wants",
        ),
        (
            Options {
                timeline: Some("2".into()),
                ..to(Target::Immediate)
            },
            "on timeline 3",
        ),
        (
            Options {
                timeline: Some("new".into()),
                ..to(Target::Immediate)
            },
            "timeline \"new\"",
        ),
        (
            Options {
                settings: vec![setting("a b", "")],
                ..options()
            },
            "not the name of a setting",
        ),
        (
            Options {
                settings: vec![setting("a", "x\ny")],
                ..options()
            },
            "more than one line",
        ),
    ];
    for (options, words) in cases {
        let error = planned(options).unwrap_err();
        assert!(
            error.kind == Kind::Usage && error.line().contains(words),
            "{words}: {error}"
        );
    }
}

#[test]
fn what_will_be_missing_is_said_or_refused() {
    let bare = Cluster {
        wal: "archived".into(),
        ..cluster()
    };
    let said = |mode, cluster: &Cluster| {
        let options = Options {
            mode: Some(mode),
            ..Options::default()
        };
        plan(
            &options,
            cluster,
            &Known {
                is_all: true,
                ..Known::default()
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
    assert_eq!(said(Mode::None, &Cluster::default()).unwrap(), "");
}

#[test]
fn a_server_that_nothing_lets_fetch_wal_is_not_restored_to_a_point() {
    let point = || Options {
        mode: Some(Mode::Point),
        ..Options::default()
    };
    let on = |timeline: &str| Options {
        timeline: Some(timeline.into()),
        ..Options::default()
    };
    let far = [
        to(Target::Time("2026-12-21 05:45:02+00".into())),
        to(Target::Lsn("1/3000000".into())),
        to(Target::Name("x".into())),
        to(Target::Xid("7".into())),
        on("latest"),
    ];
    let near = [point(), to(Target::Immediate), on("current")];
    let bare = Cluster {
        wal: "archived".into(),
        ..cluster()
    };
    for (options, may_be_false) in { far }
        .map(|far| (far, false))
        .into_iter()
        .chain(near.map(|near| (near, true)))
    {
        for is_all in [true, false] {
            let known = Known {
                is_all,
                ..Known::default()
            };
            let hint = |cluster: &Cluster| {
                let error = plan(&options, cluster, &known).unwrap_err();
                assert!(
                    error.kind == Kind::Usage
                        && error.what.contains("nothing says how to fetch WAL"),
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
            let set = Options {
                settings: vec![setting("restore_command", "cp")],
                ..options.clone()
            };
            plan(&set, &cluster(), &known).unwrap();
            let known = Known {
                restore_command: true,
                ..known
            };
            plan(&options, &cluster(), &known).unwrap();
            let unset = Options {
                settings: vec![setting("restore_command", "")],
                ..options.clone()
            };
            plan(&unset, &cluster(), &known).unwrap_err();
        }
    }
}
