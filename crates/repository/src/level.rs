//! Levels of backups, as dump has them: a tag.

use fullbore_format::root::{Root, SourceInfo};
use jiff::{SignedDuration, Timestamp};

/// The tag that has the level of a backup.
pub const LEVEL_TAG: &str = "level";
/// The levels of the days after one of level 0 or 1, from the manual of dump; the last one holds for all that follow.
const HANOI: [u8; 10] = [3, 2, 5, 4, 7, 6, 9, 8, 9, 9];
/// Time after which the sequence begins again with level 1: a week, less half a day for the clocks of timers.
const WEEK: SignedDuration = SignedDuration::from_hours(6 * 24 + 12);

/// A backup with a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeveledBackup {
    pub level: u8,
    /// When the backup began.
    pub time: Timestamp,
    pub source: SourceInfo,
}

impl LeveledBackup {
    /// Returns the level and the time of a backup, if it has a level.
    pub fn of(root: &Root) -> Option<Self> {
        Some(Self {
            level: level_of(root)?,
            time: root.time.parse().ok()?,
            source: root.source.clone(),
        })
    }
}

/// Returns the level of a backup, if it has one.
pub fn level_of(root: &Root) -> Option<u8> {
    root.tags.get(LEVEL_TAG)?.parse().ok()
}

/// Returns whether a backup has a level below this one, if there is one. A backup without a level is no base of one
/// with a level.
pub(crate) fn is_below(root: &Root, level: Option<u8>) -> bool {
    level.is_none_or(|below| level_of(root).is_some_and(|level| level < below))
}

/// Returns the level of the next backup of a source, by the tower of Hanoi: 0 if there is no backup of level 0, 1 if the
/// newest one of level 0 or 1 is a week old, else the next of 3 2 5 4 7 6 9 8 9 9. `earlier` are the backups of the source, the
/// newest first.
pub fn hanoi_level(earlier: &[LeveledBackup], now: Timestamp) -> u8 {
    if earlier.iter().all(|backup| backup.level > 0) {
        return 0;
    }
    let begin = earlier.iter().position(|backup| backup.level <= 1);
    let since = begin.unwrap_or(earlier.len());
    let is_over = earlier
        .get(since)
        .is_some_and(|backup| now.duration_since(backup.time) >= WEEK);
    match is_over {
        true => 1,
        false => HANOI[since.min(HANOI.len() - 1)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_of_days_has_the_levels_of_the_manual() {
        let mut earlier: Vec<LeveledBackup> = Vec::new();
        let begin: Timestamp = "2026-11-01T02:00:00Z".parse().unwrap();
        let mut levels = String::new();
        for day in 0..16 {
            // The timer is a little early on each other day.
            let now = begin + SignedDuration::from_secs(day * 86400 - day % 2 * 60);
            let level = hanoi_level(&earlier, now);
            levels += &level.to_string();
            let backup = LeveledBackup {
                level,
                time: now,
                source: SourceInfo::default(),
            };
            earlier.insert(0, backup);
        }
        assert_eq!(levels, "0325476132547613");
    }

    #[test]
    fn more_than_ten_backups_in_a_week_stay_at_level_9() {
        let time: Timestamp = "2026-11-01T02:00:00Z".parse().unwrap();
        let level = |level| LeveledBackup {
            level,
            time,
            source: SourceInfo::default(),
        };
        let mut earlier = vec![level(9); 14];
        assert_eq!(hanoi_level(&earlier, time), 0);
        earlier.push(level(0));
        assert_eq!(hanoi_level(&earlier, time), 9);
    }
}
