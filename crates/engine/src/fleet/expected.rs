//! When the next backup of a source is expected.
//!
//! Whoever looks may say an interval for all sources. Else the source says its own, by the tag `every` of its newest backup that has one:
//! a backup by hand, without that tag, does not end the watch. Else the interval is learned from the distances of its backups: the median of the last few, so that neither one missed night nor one
//! backup by hand changes it.

use fullbore_format::text::duration;
use serde::Serialize;
use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

/// The tag with the interval, such as `every=1d`.
pub const EVERY_TAG: &str = "every";

/// Value of the tag for a source of which no more backups are expected.
pub const NEVER: &str = "never";

/// The newest distances between backups count: rules of retention thin out older ones.
const DISTANCES: usize = 7;

/// Fewer distances teach nothing: somebody tried something.
const LEAST_DISTANCES: usize = 3;

/// Backups that follow each other faster were made by hand.
const LEAST_LEARNED: u64 = 3600;

/// The interval of a backup's tag, in 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ToldInterval {
    #[default]
    Nothing,
    /// No more backups are expected.
    Never,
    Seconds(NonZeroU32),
}

impl ToldInterval {
    /// Reads the tag `every`. A value that is no interval says nothing.
    pub(super) fn of(tags: &BTreeMap<String, String>) -> Self {
        match tags.get(EVERY_TAG).map(String::as_str) {
            Some(NEVER) => Self::Never,
            Some(text) => {
                let every = duration::parse(text).ok();
                let seconds = every.and_then(|every| u32::try_from(every.as_secs()).ok());
                let seconds = seconds.and_then(NonZeroU32::new);
                seconds.map_or(Self::Nothing, Self::Seconds)
            }
            None => Self::Nothing,
        }
    }
}

/// How the interval of a source is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpectedBy {
    /// The option of whoever looks.
    Option,
    /// The tag of the newest backup that has it.
    Tag,
    /// The distances of backups.
    Distances,
}

/// The interval of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expectation {
    pub seconds: u64,
    pub by: ExpectedBy,
}

impl Expectation {
    /// Returns the interval of a source that said this last, and whose backups have these times in seconds, which ascend. `None` if it
    /// is not known, or no backup is expected.
    pub(super) fn of(every: Option<Duration>, told: ToldInterval, times: &[i64]) -> Option<Self> {
        let known = |seconds, by| Some(Self { seconds, by });
        if let Some(every) = every {
            return known(every.as_secs(), ExpectedBy::Option);
        }
        match told {
            ToldInterval::Never => return None,
            ToldInterval::Seconds(every) => return known(every.get().into(), ExpectedBy::Tag),
            ToldInterval::Nothing => {}
        }
        let learned = learned(times)?;
        known(learned, ExpectedBy::Distances)
    }

    /// Returns the age from which on a source is late. A run may take longer than the last one: what was told has a twelfth more, as
    /// 26 hours of a day. What was learned is a guess, and counts twice.
    pub fn late_after_seconds(self) -> u64 {
        match self.by {
            ExpectedBy::Option | ExpectedBy::Tag => {
                self.seconds.saturating_add(self.seconds.div_ceil(12))
            }
            ExpectedBy::Distances => self.seconds.saturating_mul(2),
        }
    }
}

fn learned(times: &[i64]) -> Option<u64> {
    let last = &times[times.len().saturating_sub(DISTANCES + 1)..];
    let distances = last.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
    let mut distances: Vec<u64> = distances.collect();
    distances.sort_unstable();
    let median = distances.get(distances.len() / 2)?;
    (distances.len() >= LEAST_DISTANCES).then_some((*median).max(LEAST_LEARNED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn expected(every: Option<u64>, tag: Option<&str>, days: &[i64]) -> Option<(u64, ExpectedBy)> {
        let tags = tag.map(|value| (EVERY_TAG.to_owned(), value.to_owned()));
        let times: Vec<i64> = days.iter().map(|day| day * DAY).collect();
        let every = every.map(Duration::from_secs);
        let told = ToldInterval::of(&tags.into_iter().collect());
        let found = Expectation::of(every, told, &times);
        found.map(|found| (found.seconds, found.by))
    }

    #[test]
    fn who_looks_comes_before_the_source_and_the_source_before_its_past() {
        let days = [1, 2, 3, 4, 5];
        let day = DAY as u64;
        assert_eq!(
            expected(Some(9), Some("7d"), &days),
            Some((9, ExpectedBy::Option))
        );
        assert_eq!(
            expected(None, Some("7d"), &days),
            Some((7 * day, ExpectedBy::Tag))
        );
        assert_eq!(
            expected(None, None, &days),
            Some((day, ExpectedBy::Distances))
        );
        assert_eq!(
            expected(None, Some("7 moons"), &days),
            Some((day, ExpectedBy::Distances))
        );
        assert_eq!(expected(None, Some(NEVER), &days), None);
        assert_eq!(
            expected(Some(9), Some(NEVER), &days),
            Some((9, ExpectedBy::Option))
        );
    }

    #[test]
    fn a_missed_night_or_a_backup_by_hand_does_not_change_what_is_learned() {
        let learned = |days: &[i64]| expected(None, None, days).map(|(seconds, _)| seconds);
        let day = Some(DAY as u64);
        assert_eq!(learned(&[1, 2, 3]), None);
        assert_eq!(learned(&[1, 2, 3, 4, 7, 8, 9]), day);
        // Kept for months, then weeks, then days.
        assert_eq!(
            learned(&[1, 31, 61, 68, 75, 82, 83, 84, 85, 86, 87, 88]),
            day
        );
        assert_eq!(learned(&[1, 1, 1, 1, 1]), Some(LEAST_LEARNED));
    }

    #[test]
    fn what_was_told_has_a_twelfth_more_and_what_was_learned_counts_twice() {
        let late = |by| {
            Expectation {
                seconds: 86_400,
                by,
            }
            .late_after_seconds()
        };
        assert_eq!(late(ExpectedBy::Tag), 26 * 3600);
        assert_eq!(late(ExpectedBy::Distances), 48 * 3600);
        let most = Expectation {
            seconds: u64::MAX,
            by: ExpectedBy::Tag,
        };
        assert_eq!(most.late_after_seconds(), u64::MAX);
    }
}
