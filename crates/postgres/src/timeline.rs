//! The timelines of the WAL that a backup needs.
//!
//! Mostly there is one. After a standby follows a new primary, and until its next restartpoint, its
//! backups begin on the timeline before the switch.

use super::{
    data_dir::DataDir,
    lsn::{Lsn, segment_name},
    manifest::WalRange,
};
use fullbore_format::error::{Error, ErrorKind, Result};

/// Path of a timeline's history in a data directory.
pub fn history_path(timeline: u32) -> String {
    format!("pg_wal/{timeline:08X}.history")
}

/// The timelines that lead to one timeline, the latest first, each with its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timelines(Vec<(u32, Lsn)>);

/// A backup cannot reach a timeline: the timeline's history left the backup's timeline before the
/// backup ended, or does not contain it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineFork {
    /// The timeline that the backup cannot reach.
    pub timeline: u32,
    /// The timeline with which the history left the backup's timeline, and where.
    pub left: Option<(u32, Lsn)>,
    /// The newest backup that can reach the timeline.
    pub newest: String,
}

impl Timelines {
    /// Reads the timelines from `first` to `last` in the server's data directory `data`.
    ///
    /// # Errors
    /// The system's if there is no history of `last`; [`ErrorKind::Unsupported`] if the history
    /// does not lead back to `first`.
    pub fn read(data: &dyn DataDir, first: u32, last: u32) -> Result<Self> {
        if first == last {
            return Ok(Self(vec![(last, Lsn(0))]));
        }
        let text = data.read_text(&history_path(last))?;
        Self::from_history(&text, first, last)
    }

    /// Returns the timelines from `first` to `last` by the history of `last`, which is not looked at if
    /// both are the same.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the history does not lead back to `first`.
    pub fn from_history(history: &str, first: u32, last: u32) -> Result<Self> {
        if first == last {
            return Ok(Self(vec![(last, Lsn(0))]));
        }
        let found = Self::parse(history, last).and_then(|all| all.since_timeline(first));
        found.ok_or_else(|| {
            let path = history_path(last);
            let message = format!("cannot find timeline {first} in the history {path:?}");
            Error::new(ErrorKind::Unsupported, message)
        })
    }

    /// Parses the history of `last`. Each line says where a timeline ended: its number, the
    /// location, and the reason.
    pub fn parse(history: &str, last: u32) -> Option<Self> {
        let mut begins = Lsn(0);
        let mut all = Vec::new();
        for line in history
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let mut words = line.split_whitespace();
            all.push((words.next()?.parse().ok()?, begins));
            begins = words.next()?.parse().ok()?;
        }
        all.push((last, begins));
        all.reverse();
        Some(Self(all))
    }

    /// Drops the timelines before `first`; `None` if `first` is not among them.
    fn since_timeline(mut self, first: u32) -> Option<Self> {
        self.0
            .truncate(self.0.iter().position(|(timeline, _)| *timeline == first)? + 1);
        Some(self)
    }

    /// The timelines, the latest first, each with its start.
    pub fn starts(&self) -> impl Iterator<Item = (u32, Lsn)> {
        self.0.iter().copied()
    }

    /// Start of the latest timeline.
    pub fn last_start(&self) -> Lsn {
        self.0[0].1
    }

    /// Returns whether this history continues from `place` on `timeline`: it did not leave that
    /// timeline earlier.
    pub fn continues_from(&self, timeline: u32, place: Lsn) -> bool {
        let index = self.0.iter().position(|(other, _)| *other == timeline);
        index.is_some_and(|index| index == 0 || place.0 <= self.0[index - 1].1.0)
    }

    /// Returns the timeline with which this history left `timeline`, and where; `None` if it never
    /// left it.
    pub fn departure_from(&self, timeline: u32) -> Option<(u32, Lsn)> {
        let index = self.0.iter().position(|(other, _)| *other == timeline)?;
        index.checked_sub(1).map(|next| self.0[next])
    }

    /// Returns the names of the segments, each of `bytes` bytes, that hold the WAL from `start` to
    /// `end`. If timelines share a segment, the latest timeline's name comes first: recovery reads
    /// that one.
    pub fn segments(&self, start: Lsn, end: Lsn, bytes: u64) -> Vec<Vec<String>> {
        // The end of the last record may be the start of a segment that has no byte of the record.
        let numbers = start.0 / bytes..=(end.0 - 1) / bytes;
        let names = |number: u64| {
            let mut ends = u64::MAX;
            self.0
                .iter()
                .filter_map(|(timeline, begins)| {
                    let ends = std::mem::replace(&mut ends, begins.0);
                    let is_there = number * bytes < ends && begins.0 < (number + 1) * bytes;
                    is_there.then(|| segment_name(*timeline, Lsn(number * bytes), bytes))
                })
                .collect()
        };
        numbers.map(names).collect()
    }

    fn earliest(&self) -> &(u32, Lsn) {
        &self.0[self.0.len() - 1]
    }

    /// Returns the WAL range that recovery from `start` to `end` needs of each timeline, the latest
    /// first, as the server lists them.
    pub fn ranges(&self, start: Lsn, end: Lsn) -> Vec<WalRange> {
        let mut end_lsn = end.0;
        self.0
            .iter()
            .map(|&(timeline, begins)| {
                let start_lsn = if timeline == self.earliest().0 {
                    start.0
                } else {
                    begins.0
                };
                WalRange {
                    timeline,
                    start_lsn,
                    end_lsn: std::mem::replace(&mut end_lsn, begins.0),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTORY: &str = "1\t0/5000098\tno recovery target specified\n\n# comment\n3\t0/9000000\tbefore 2024-01-01\n";

    #[test]
    fn a_segment_is_of_the_latest_timeline_that_has_it() {
        let mib = 1 << 20;
        let timelines = Timelines::parse(HISTORY, 4).unwrap();
        let names = |start, end, bytes| timelines.segments(Lsn(start), Lsn(end), bytes);
        assert_eq!(
            names(0x40f_0000, 0x610_0000, 16 * mib),
            [
                vec!["000000010000000000000004"],
                vec!["000000030000000000000005", "000000010000000000000005"],
                vec!["000000030000000000000006"],
            ]
        );
        let whole = [["000000030000000000000008"], ["000000040000000000000009"]]; // ends at a segment's end
        assert_eq!(names(0x800_0000, 0xa00_0000, 16 * mib), whole);
        assert_eq!(
            names(0x8f0_0000, 0x910_0000, mib),
            [["00000003000000000000008F"], ["000000040000000000000090"]]
        );
    }

    #[test]
    fn the_range_of_a_timeline_ends_where_the_next_begins() {
        let range = |timeline, start_lsn, end_lsn| WalRange {
            timeline,
            start_lsn,
            end_lsn,
        };
        let ranges = |first| {
            Timelines::parse(HISTORY, 4)
                .unwrap()
                .since_timeline(first)
                .unwrap()
                .ranges(Lsn(0x400_0000), Lsn(0xa00_0000))
        };
        let all = [
            range(4, 0x900_0000, 0xa00_0000),
            range(3, 0x500_0098, 0x900_0000),
            range(1, 0x400_0000, 0x500_0098),
        ];
        assert_eq!(ranges(1), all);
        assert_eq!(ranges(4), [range(4, 0x400_0000, 0xa00_0000)]);
        assert_eq!(
            Timelines::parse(HISTORY, 4).unwrap().since_timeline(2),
            None
        );
    }

    #[test]
    fn a_timeline_leads_on_to_where_it_was_left() {
        let way = Timelines::parse(HISTORY, 4).unwrap();
        let leads = |timeline, place| way.continues_from(timeline, Lsn(place));
        assert!(leads(1, 0x500_0098) && !leads(1, 0x500_0099));
        assert!(leads(3, 0x900_0000) && !leads(3, 0x900_0001));
        assert!(leads(4, u64::MAX) && !leads(2, 0) && !leads(5, 0));
        assert_eq!(
            [1, 2, 3, 4].map(|timeline| way.departure_from(timeline).map(|(next, _)| next)),
            [Some(3), None, Some(4), None]
        );
    }
}
