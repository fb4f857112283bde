//! Decides which backups the retention rules keep, and why. Pure: no I/O.
//!
//! The rules are restic's: the newest backup of each of the last so many hours, days, weeks, months
//! or years that have a backup is kept. Periods are those of the time zone. Backups are ordered by
//! their ids, which a clock that is set back does not disturb; the period of a backup follows from
//! its own time.

use jiff::{Span, Timestamp, Zoned, tz::TimeZone};
use std::collections::{BTreeMap, BTreeSet};

/// The retention rules; a backup that no rule keeps is forgotten.
#[derive(Debug, Clone, Default)]
pub struct RetentionRules {
    /// Number of the newest backups to keep.
    pub last: u32,
    /// Number of hours of which the newest backup is kept.
    pub hourly: u32,
    /// The same for days.
    pub daily: u32,
    /// The same for weeks, which begin on Monday.
    pub weekly: u32,
    /// The same for months.
    pub monthly: u32,
    /// The same for years.
    pub yearly: u32,
    /// Keep all backups made within this time before the newest.
    pub within: Option<Span>,
    /// Keep all backups that have one of these tags.
    pub tags: Vec<TagRule>,
}

/// A tag to look for: a key with this value, or with any value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRule {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Option<String>,
}

/// The facts about a backup that the rules look at.
#[derive(Debug, Clone)]
pub struct RetentionCandidate {
    /// Id of the backup.
    pub id: String,
    /// When it began.
    pub time: Timestamp,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Whether the backup must never be forgotten.
    pub pinned: bool,
    /// Whether the backup captured its whole source.
    pub complete: bool,
    /// Whether it has no content at all, as that of a disk that was not mounted.
    pub empty: bool,
}

impl RetentionRules {
    /// Returns whether the rules keep no backup at all.
    pub fn is_empty(&self) -> bool {
        self.counts().iter().all(|(count, ..)| *count == 0)
            && self.within.is_none()
            && self.tags.is_empty()
    }

    /// Returns count, name and time format of each rule.
    fn counts(&self) -> [(u32, &'static str, &'static str); 6] {
        [
            (self.last, "last", ""),
            // With the offset, because an hour occurs twice when the clocks go back.
            (self.hourly, "hourly", "%Y-%m-%d %H%z"),
            (self.daily, "daily", "%Y-%m-%d"),
            (self.weekly, "weekly", "%G-W%V"),
            (self.monthly, "monthly", "%Y-%m"),
            (self.yearly, "yearly", "%Y"),
        ]
    }

    /// Returns why each of the backups of one group is kept, in the order given; a backup without a
    /// reason may be forgotten. If all kept backups are incomplete, the newest complete one is kept
    /// as well; if all are empty, the newest one with content.
    pub fn reasons(
        &self,
        group: &[RetentionCandidate],
        now: Timestamp,
        zone: &TimeZone,
    ) -> Vec<Vec<String>> {
        let mut order: Vec<usize> = (0..group.len()).collect();
        order.sort_by(|a, b| group[*b].id.cmp(&group[*a].id));
        let mut reasons: Vec<Vec<String>> = vec![Vec::new(); group.len()];
        for (count, name, period) in self.counts() {
            for index in newest_of_periods(group, &order, count, period, zone) {
                reasons[index].push(name.to_owned());
            }
        }
        let earliest = self.since(group, now, zone);
        for (candidate, reasons) in group.iter().zip(&mut reasons) {
            if earliest
                .as_ref()
                .is_some_and(|earliest| candidate.time >= *earliest)
            {
                reasons.push("within".to_owned());
            }
            let tag = self.tags.iter().find(|tag| tag.is_in(&candidate.tags));
            reasons.extend(tag.map(|tag| format!("tag {tag}")));
            if candidate.pinned {
                reasons.push("pinned".to_owned());
            }
        }
        // The second rule is for sources of which no complete backup has content, the third for
        // those that have none themselves.
        let guards: [(IsGood, &str); 3] = [
            (|one| one.complete && !one.empty, "last complete"),
            (|one| !one.empty, "last with content"),
            (|one| one.complete, "last complete"),
        ];
        for (is_good, name) in guards {
            if let Some(index) = last_that(is_good, group, &order, &reasons) {
                reasons[index].push(name.to_owned());
            }
        }
        reasons
    }

    /// Returns the time from which all backups are kept: the span before the newest one that is not
    /// in the future. A clock that was wrong once must not make all other backups look old.
    fn since(
        &self,
        group: &[RetentionCandidate],
        now: Timestamp,
        zone: &TimeZone,
    ) -> Option<Timestamp> {
        let span = self.within?;
        let times = || group.iter().map(|candidate| candidate.time);
        let newest = times()
            .filter(|time| *time <= now)
            .max()
            .or_else(|| times().min())?;
        // A span that begins before the earliest time keeps everything.
        Some(
            newest
                .to_zoned(zone.clone())
                .checked_sub(span)
                .map_or(Timestamp::MIN, |earliest: Zoned| earliest.timestamp()),
        )
    }
}

/// Returns the newest backup of each of the last `count` periods that have a backup. `order` is
/// newest first; an empty `period` makes each backup a period of its own.
fn newest_of_periods(
    group: &[RetentionCandidate],
    order: &[usize],
    count: u32,
    period: &str,
    zone: &TimeZone,
) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let mut newest = Vec::new();
    for index in order {
        let candidate = &group[*index];
        let is_new = if period.is_empty() {
            seen.insert(candidate.id.clone())
        } else {
            let time = candidate.time.to_zoned(zone.clone());
            seen.insert(time.strftime(period).to_string())
        };
        if seen.len() > count as usize {
            break;
        }
        if is_new {
            newest.push(*index);
        }
    }
    newest
}

/// Decides whether one such backup must stay.
type IsGood = fn(&RetentionCandidate) -> bool;

/// Returns the newest backup that `is_good`, if backups are kept and none of them is.
fn last_that(
    is_good: IsGood,
    group: &[RetentionCandidate],
    order: &[usize],
    reasons: &[Vec<String>],
) -> Option<usize> {
    let kept = group
        .iter()
        .zip(reasons)
        .filter(|(_, reasons)| !reasons.is_empty());
    let mut good = kept.map(|(candidate, _)| is_good(candidate)).peekable();
    good.peek()?;
    if good.any(|is_good| is_good) {
        return None;
    }
    order.iter().copied().find(|index| is_good(&group[*index]))
}

impl TagRule {
    /// Returns whether this tag is among `tags`.
    pub fn is_in(&self, tags: &BTreeMap<String, String>) -> bool {
        let there = tags.get(&self.key);
        there.is_some_and(|value| self.value.as_ref().is_none_or(|wanted| wanted == value))
    }

    /// Parses `KEY` or `KEY=VALUE`.
    pub fn parse(text: &str) -> Option<Self> {
        let (key, value) = text
            .split_once('=')
            .map_or((text, None), |(key, value)| (key, Some(value.to_owned())));
        (!key.is_empty()).then(|| Self {
            key: key.to_owned(),
            value,
        })
    }
}

impl std::fmt::Display for TagRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={value}", self.key),
            None => f.write_str(&self.key),
        }
    }
}

/// Parses a duration such as `2y5m7d3h`: years, months, weeks, days and hours, in this order, each at most
/// once.
pub fn span(text: &str) -> Option<Span> {
    let (mut span, mut rest, mut units) = (Span::new(), text, "ymwdh");
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: i64 = rest[..digits].parse().ok()?;
        let unit = rest[digits..].chars().next()?;
        // Units behind the one that was found are left: this forbids repetition and another order.
        units = &units[units.find(unit)? + 1..];
        span = match unit {
            'y' => span.try_years(number),
            'm' => span.try_months(number),
            'w' => span.try_weeks(number),
            'd' => span.try_days(number),
            _ => span.try_hours(number),
        }
        .ok()?;
        rest = &rest[digits + 1..];
    }
    (!text.is_empty()).then_some(span)
}

#[cfg(test)]
mod tests {
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
            .map(|(at, _)| at)
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
            (lacking + 1..6).for_each(|at| group[at].complete = false);
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
        (3..6).for_each(|at| group[at].empty = true);
        assert_eq!(kept(&rules, &group), [2, 4, 5]);
        group[2].complete = false;
        assert_eq!(kept(&rules, &group), [1, 4, 5]);
        (0..3).for_each(|at| group[at].complete = false);
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
                .map(|at| rolling[at].clone())
                .collect();
        }
        let ids = |group: &[RetentionCandidate]| {
            group.iter().map(|one| one.id.clone()).collect::<Vec<_>>()
        };
        let once: Vec<RetentionCandidate> = kept(&rules, &year)
            .into_iter()
            .map(|at| year[at].clone())
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
}
