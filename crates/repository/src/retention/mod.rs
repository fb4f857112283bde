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
    pub key: String,
    pub value: Option<String>,
}

/// The facts about a backup that the rules look at.
#[derive(Debug, Clone)]
pub struct RetentionCandidate {
    pub id: String,
    /// When it began.
    pub time: Timestamp,
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
        let own_value = tags.get(&self.key);
        own_value.is_some_and(|value| self.value.as_ref().is_none_or(|wanted| wanted == value))
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
mod tests;
