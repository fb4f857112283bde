use super::*;
use jiff::SignedDuration;

fn at(id: usize, time: Timestamp) -> RetentionCandidate {
    RetentionCandidate {
        id: format!("{id:05}"),
        time,
        tags: BTreeMap::new(),
        pinned: false,
        complete: true,
        empty: false,
    }
}

fn start() -> Timestamp {
    "2025-01-01T04:00:00Z".parse().unwrap()
}

/// One a day, at four in the morning.
fn days(count: usize) -> Vec<RetentionCandidate> {
    (0..count)
        .map(|day| at(day, start() + SignedDuration::from_hours(24 * day as i64)))
        .collect()
}

/// Days of the year, from 0, that are kept.
fn kept(rules: &RetentionRules, group: &[RetentionCandidate]) -> Vec<usize> {
    let now = "2030-01-01T00:00:00Z".parse().unwrap();
    let reasons = rules.reasons(group, now, &TimeZone::UTC);
    reasons
        .iter()
        .enumerate()
        .filter(|(_, why)| !why.is_empty())
        .map(|(index, _)| index)
        .collect()
}

#[test]
fn what_lacks_something_takes_no_place_of_what_lacks_nothing() {
    let rules = RetentionRules {
        last: 2,
        ..RetentionRules::default()
    };
    let mut group = days(6);
    for (lacking, wanted) in [
        (5, vec![4, 5]),
        (4, vec![3, 4, 5]),
        (3, vec![2, 4, 5]),
        (1, vec![0, 4, 5]),
    ] {
        group[lacking].complete = false;
        (lacking + 1..6).for_each(|index| group[index].complete = false);
        assert_eq!(kept(&rules, &group), wanted, "{lacking}");
    }
    group
        .iter_mut()
        .for_each(|candidate| candidate.complete = false);
    assert_eq!(kept(&rules, &group), [4, 5]);
    assert_eq!(kept(&RetentionRules::default(), &days(3)), [0; 0]);
}

#[test]
fn backups_without_content_do_not_end_the_last_one_with_content() {
    let rules = RetentionRules {
        last: 2,
        ..RetentionRules::default()
    };
    let mut group = days(6);
    (3..6).for_each(|index| group[index].empty = true);
    assert_eq!(kept(&rules, &group), [2, 4, 5]);
    group[2].complete = false;
    assert_eq!(kept(&rules, &group), [1, 4, 5]);
    (0..3).for_each(|index| group[index].complete = false);
    assert_eq!(kept(&rules, &group), [2, 4, 5]);
    group
        .iter_mut()
        .for_each(|candidate| candidate.empty = true);
    assert_eq!(kept(&rules, &group), [4, 5]);
}

#[test]
fn a_year_of_days_comes_down_to_a_few_of_each_sort() {
    let rules = RetentionRules {
        daily: 7,
        weekly: 4,
        monthly: 12,
        yearly: 3,
        ..RetentionRules::default()
    };
    let year = days(365);
    let month_ends = [30, 58, 89, 119, 150, 180, 211, 242, 272, 303, 333, 364];
    let last_days = [358, 359, 360, 361, 362, 363, 364];
    let sundays = [361, 354, 347]; // the newest week is that of day 364
    let mut all: Vec<usize> = month_ends
        .into_iter()
        .chain(last_days)
        .chain(sundays)
        .collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(kept(&rules, &year), all);
    let reasons = rules.reasons(&year, start(), &TimeZone::UTC);
    assert_eq!(reasons[364], ["daily", "weekly", "monthly", "yearly"]);
    assert_eq!(reasons[30], ["monthly"]);
}

#[test]
fn forgetting_every_day_ends_with_the_same_as_forgetting_once() {
    let rules = RetentionRules {
        daily: 7,
        weekly: 4,
        monthly: 6,
        ..RetentionRules::default()
    };
    let (year, mut rolling) = (days(365), Vec::new());
    for day in &year {
        rolling.push(day.clone());
        rolling = kept(&rules, &rolling)
            .into_iter()
            .map(|index| rolling[index].clone())
            .collect();
    }
    let ids =
        |group: &[RetentionCandidate]| group.iter().map(|one| one.id.clone()).collect::<Vec<_>>();
    let once: Vec<RetentionCandidate> = kept(&rules, &year)
        .into_iter()
        .map(|index| year[index].clone())
        .collect();
    assert_eq!(ids(&rolling), ids(&once));
}

#[test]
fn the_newest_of_a_period_stays_and_empty_periods_do_not_count() {
    let hours = [0, 1, 2, 24, 25, 24 * 30].map(SignedDuration::from_hours);
    let group: Vec<_> = hours
        .iter()
        .enumerate()
        .map(|(i, hour)| at(i, start() + *hour))
        .collect();
    assert_eq!(
        kept(
            &RetentionRules {
                daily: 2,
                ..RetentionRules::default()
            },
            &group
        ),
        [4, 5]
    );
    assert_eq!(
        kept(
            &RetentionRules {
                daily: 3,
                ..RetentionRules::default()
            },
            &group
        ),
        [2, 4, 5]
    );
    assert_eq!(
        kept(
            &RetentionRules {
                last: 2,
                ..RetentionRules::default()
            },
            &group
        ),
        [4, 5]
    );
    assert_eq!(
        kept(
            &RetentionRules {
                hourly: 100,
                ..RetentionRules::default()
            },
            &group
        ),
        [0, 1, 2, 3, 4, 5]
    );
}

#[test]
fn a_clock_that_goes_back_loses_no_period() {
    // Days 0 to 4, then again 2 and 3: the newest backup of day 3 is the one that was made
    // last.
    let days = [0, 1, 2, 3, 4, 2, 3].map(|day| SignedDuration::from_hours(24 * day));
    let group: Vec<_> = days
        .iter()
        .enumerate()
        .map(|(i, day)| at(i, start() + *day))
        .collect();
    assert_eq!(
        kept(
            &RetentionRules {
                daily: 3,
                ..RetentionRules::default()
            },
            &group
        ),
        [4, 5, 6]
    );
    assert_eq!(
        kept(
            &RetentionRules {
                last: 1,
                ..RetentionRules::default()
            },
            &group
        ),
        [6]
    );
}

#[test]
fn one_backup_from_the_future_does_not_make_the_others_old() {
    let mut group = days(10);
    group.push(at(10, "2099-01-01T00:00:00Z".parse().unwrap()));
    assert_eq!(
        kept(
            &RetentionRules {
                within: span("3d"),
                ..RetentionRules::default()
            },
            &group
        ),
        [6, 7, 8, 9, 10]
    );
}

#[test]
fn pins_and_tags_keep() {
    let mut group = days(4);
    group[0].pinned = true;
    group[1].tags.insert("release".into(), "1.0".into());
    let tags = |text: &str| RetentionRules {
        tags: vec![TagRule::parse(text).unwrap()],
        ..RetentionRules::default()
    };
    assert_eq!(kept(&tags("release"), &group), [0, 1]);
    assert_eq!(kept(&tags("release=1.0"), &group), [0, 1]);
    assert_eq!(kept(&tags("release=2.0"), &group), [0]);
    let reasons = tags("release=1.0").reasons(&group, start(), &TimeZone::UTC);
    assert_eq!(
        (&reasons[0][0][..], &reasons[1][0][..]),
        ("pinned", "tag release=1.0")
    );
}

#[test]
fn durations_are_read_as_restic_reads_them() {
    for text in ["2y5m7d3h", "30d", "1h", "12m", "0d"] {
        assert!(span(text).is_some(), "{text}");
    }
    for bad in [
        "",
        "30",
        "d",
        "1x",
        "3h2d",
        "-1d",
        "1d1d",
        "99999999999999999999y",
    ] {
        assert!(span(bad).is_none(), "{bad}");
    }
}
