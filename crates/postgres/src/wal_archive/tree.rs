//! The timelines of archived WAL, and the gaps in them.

use crate::{lsn::Lsn, timeline::Timelines};
use fullbore_format::wal::SegmentName;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

/// Bytes of a history at most.
pub const MAX_HISTORY_BYTES: u64 = 64 << 10;

/// The WAL of a system that is there, by name.
#[derive(Debug, Clone, Default)]
pub struct HeldWal {
    pub segments: BTreeSet<SegmentName>,
    /// Segments in which timelines ended.
    pub partial: BTreeSet<SegmentName>,
    /// Segments of which only the beginning is there. One that no other follows on its timeline counts as its end.
    pub open: BTreeSet<SegmentName>,
    pub segment_bytes: u64,
}

/// Consecutive segments that are missing between others of one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WalGap {
    /// The first one.
    pub from: SegmentName,
    /// The last one.
    pub to: SegmentName,
}

/// The timelines of a system, each with the ways that lead to it.
#[derive(Debug, Clone, Default)]
pub struct TimelineTree {
    held: HeldWal,
    /// Histories by timeline, as far as they could be read.
    histories: BTreeMap<u32, Timelines>,
}

/// A part of a way: segments of one timeline, by their number since the first WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WayPart {
    timeline: u32,
    from: u64,
    /// The first number behind it; `None` if it goes on as far as there is WAL.
    to: Option<u64>,
}

impl TimelineTree {
    /// Of this WAL, and the texts of histories by timeline.
    pub fn new(mut held: HeldWal, histories: &BTreeMap<u32, String>) -> Self {
        held.open = last_open_segments(&held);
        Self {
            held,
            histories: histories
                .iter()
                .filter_map(|(timeline, text)| {
                    Some((*timeline, Timelines::parse(text, *timeline)?))
                })
                .collect(),
        }
    }

    /// Returns the timelines of which there is WAL or a history, in order.
    pub fn timelines(&self) -> BTreeSet<u32> {
        let held = &self.held;
        let of_segments = held.segments.iter().chain(&held.partial).chain(&held.open);
        let of_segments = of_segments.map(|segment| segment.timeline);
        of_segments.chain(self.histories.keys().copied()).collect()
    }

    /// Returns the timeline that this one left, and where.
    pub fn parent(&self, timeline: u32) -> Option<(u32, Lsn)> {
        let history = self.histories.get(&timeline)?;
        let ancestors = self
            .timelines()
            .into_iter()
            .rev()
            .filter(|other| *other < timeline);
        let mut left = ancestors.filter_map(|other| Some((other, history.departure_from(other)?)));
        left.find(|(_, (next, _))| *next == timeline)
            .map(|(other, (_, place))| (other, place))
    }

    /// Returns the newest segment of a timeline, also if only its beginning is there.
    pub fn last_of(&self, timeline: u32) -> Option<SegmentName> {
        self.open_end(timeline)
            .or_else(|| self.of_timeline(timeline).next_back())
    }

    /// Returns the oldest segment of a timeline.
    pub fn first_of(&self, timeline: u32) -> Option<SegmentName> {
        let first = self.of_timeline(timeline).next();
        first.or_else(|| self.open_end(timeline))
    }

    /// Returns the segment at the end of a timeline of which only the beginning is there.
    fn open_end(&self, timeline: u32) -> Option<SegmentName> {
        let mut open = self.held.open.iter();
        open.find(|segment| segment.timeline == timeline).copied()
    }

    /// Returns how many segments of a timeline there are.
    pub fn count_of(&self, timeline: u32) -> usize {
        self.of_timeline(timeline).count()
    }

    /// Returns the whole segments of a timeline in order.
    pub fn of_timeline(&self, timeline: u32) -> impl DoubleEndedIterator<Item = SegmentName> {
        self.held.segments.range(all_of(timeline)).copied()
    }

    /// The segments of a part of a way. One that is not whole counts only where the way ends with it.
    fn of_part(&self, part: WayPart) -> impl DoubleEndedIterator<Item = SegmentName> {
        let open = self.open_end(part.timeline).filter(|_| part.to.is_none());
        self.of_timeline(part.timeline).chain(open)
    }

    fn index(&self, segment: SegmentName) -> u64 {
        segment.index(self.held.segment_bytes)
    }

    fn name(&self, timeline: u32, index: u64) -> SegmentName {
        let bytes = self.held.segment_bytes;
        SegmentName::at(timeline, index.saturating_mul(bytes), bytes)
    }

    /// Returns the way from a segment to the end of `timeline`; `None` if it does not lead there, or no history says so.
    fn way(&self, first: SegmentName, timeline: u32) -> Option<Vec<WayPart>> {
        let mut parts = vec![WayPart {
            timeline: first.timeline,
            from: self.index(first),
            to: None,
        }];
        if first.timeline == timeline {
            return Some(parts);
        }
        let history = self.histories.get(&timeline)?;
        let mut current = first.timeline;
        while current != timeline {
            let (next, place) = history.departure_from(current)?;
            let switch = place.0 / self.held.segment_bytes;
            let previous = parts.last_mut()?;
            if switch < previous.from {
                return None;
            }
            // The segment of the switch has the name of the new timeline.
            previous.to = Some(switch);
            parts.push(WayPart {
                timeline: next,
                from: switch,
                to: None,
            });
            current = next;
        }
        Some(parts)
    }

    /// Returns the last segment that there is on the way from `first` to the end of `timeline`; `None` if there is none.
    pub fn end_of_way(&self, first: SegmentName, timeline: u32) -> Option<SegmentName> {
        let way = self.way(first, timeline)?;
        way.iter().rev().find_map(|part| {
            let all = self.of_part(*part);
            all.rev().find(|segment| {
                let index = self.index(*segment);
                index >= part.from && part.to.is_none_or(|switch| index < switch)
            })
        })
    }

    /// Returns the segments that there are on the way from `first` to `last`.
    pub fn segments_on_way(
        &self,
        first: SegmentName,
        timeline: u32,
        last: SegmentName,
    ) -> Vec<SegmentName> {
        let way = self.way(first, timeline).unwrap_or_default();
        let end = self.index(last);
        way.into_iter()
            .flat_map(|part| {
                let switch = part
                    .to
                    .map_or(end, |switch| end.min(switch.saturating_sub(1)));
                let all = self.of_timeline(part.timeline);
                all.filter(move |segment| (part.from..=switch).contains(&self.index(*segment)))
            })
            .collect()
    }

    /// Returns what is missing on the way from `first` to the end of `timeline`, or up to the segment that holds `stop`.
    /// What is missing at the end is no gap: a shorter archive looks like one that is not finished.
    pub fn gaps_on_way(&self, first: SegmentName, timeline: u32, stop: Option<Lsn>) -> Vec<WalGap> {
        let Some(way) = self.way(first, timeline) else {
            return Vec::new();
        };
        let limit = stop.map(|stop| stop.0 / self.held.segment_bytes);
        let Some(end) = self.end_of_way(first, timeline) else {
            return Vec::new();
        };
        let end = self.index(end);
        let end = limit.map_or(end, |limit| end.min(limit));
        let mut gaps = Vec::new();
        for part in way {
            let last = part
                .to
                .map_or(end, |switch| end.min(switch.saturating_sub(1)));
            if part.from <= last {
                self.add_gaps(part, last, &mut gaps);
            }
        }
        gaps
    }

    fn add_gaps(&self, part: WayPart, last: u64, gaps: &mut Vec<WalGap>) {
        let mut next = part.from;
        let mut add = |first: u64, end: u64| {
            gaps.push(WalGap {
                from: self.name(part.timeline, first),
                to: self.name(part.timeline, end),
            });
        };
        for segment in self.of_part(part) {
            let index = self.index(segment);
            if index < part.from {
                continue;
            }
            if index > last {
                break;
            }
            if index > next {
                add(next, index - 1);
            }
            next = index + 1;
        }
        if next <= last {
            add(next, last);
        }
    }

    /// Returns all gaps: within each timeline, and between a timeline and the one that it left.
    pub fn gaps(&self) -> Vec<WalGap> {
        let mut gaps = BTreeSet::new();
        for timeline in self.timelines() {
            let Some(first) = self.first_of(timeline) else {
                continue;
            };
            let parent = self
                .parent(timeline)
                .and_then(|(parent, _)| self.first_of(parent));
            let on_own = self.gaps_on_way(first, timeline, None);
            let with_parent = parent.map(|first| self.gaps_on_way(first, timeline, None));
            gaps.extend(on_own.into_iter().chain(with_parent.into_iter().flatten()));
        }
        gaps.into_iter().collect()
    }

    /// Returns a segment that follows this one on the line of its timeline, or on that of one that left it later.
    pub fn later_than(&self, segment: SegmentName) -> Option<SegmentName> {
        let own = self
            .last_of(segment.timeline)
            .filter(|last| *last > segment);
        let place = self.index(segment);
        let of_children = || {
            let children = self
                .histories
                .iter()
                .filter(|(timeline, _)| **timeline > segment.timeline);
            let mut ends = children.filter_map(|(timeline, history)| {
                let (_, left) = history.departure_from(segment.timeline)?;
                let is_later = left.0 / self.held.segment_bytes > place;
                self.last_of(*timeline).filter(|_| is_later)
            });
            ends.next()
        };
        own.or_else(of_children)
    }

    /// Returns where a timeline begins, if its history is there.
    pub fn start_of(&self, timeline: u32) -> Option<Lsn> {
        self.histories.get(&timeline).map(Timelines::last_start)
    }

    /// Returns whether the WAL that follows `first` on its timeline leads to `timeline`.
    pub fn leads_to(&self, first: SegmentName, timeline: u32) -> bool {
        self.way(first, timeline).is_some()
    }

    /// Returns whether the history of `timeline` says that it left `ancestor`, or one that left that.
    pub fn descends_from(&self, timeline: u32, ancestor: u32) -> bool {
        let history = self.histories.get(&timeline);
        history.is_some_and(|history| history.departure_from(ancestor).is_some())
    }

    /// Returns whether the segment is there as a whole.
    pub fn has(&self, segment: SegmentName) -> bool {
        self.held.segments.contains(&segment)
    }

    /// Returns whether the segment is the end of its timeline, and only its beginning is there.
    pub fn is_open(&self, segment: SegmentName) -> bool {
        self.held.open.contains(&segment)
    }
}

/// The names that a timeline can have.
fn all_of(timeline: u32) -> RangeInclusive<SegmentName> {
    let name = |log, number| SegmentName {
        timeline,
        log,
        number,
    };
    name(0, 0)..=name(u32::MAX, u32::MAX)
}

/// Returns the last segment of each timeline if only its beginning is there. Any other one that is not whole is missing.
fn last_open_segments(held: &HeldWal) -> BTreeSet<SegmentName> {
    let is_last = |segment: &&SegmentName| {
        let whole = held.segments.range(all_of(segment.timeline)).next_back();
        let open = held.open.range(all_of(segment.timeline)).next_back();
        whole.max(open) == Some(*segment) && whole != open
    };
    held.open.iter().filter(is_last).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn segment(timeline: u32, index: u64) -> SegmentName {
        SegmentName::at(timeline, index * 16 * MIB, 16 * MIB)
    }

    fn tree(segments: &[(u32, &[u64])], histories: &[(u32, &str)]) -> TimelineTree {
        let branch_of = |(timeline, all): &(u32, &[u64])| {
            let timeline = *timeline;
            all.iter()
                .map(move |index| segment(timeline, *index))
                .collect::<Vec<_>>()
        };
        let held = HeldWal {
            segments: segments.iter().flat_map(branch_of).collect(),
            segment_bytes: 16 * MIB,
            ..HeldWal::default()
        };
        let histories = histories
            .iter()
            .map(|(timeline, text)| (*timeline, (*text).to_owned()));
        TimelineTree::new(held, &histories.collect())
    }

    fn gap(timeline: u32, from: u64, to: u64) -> WalGap {
        WalGap {
            from: segment(timeline, from),
            to: segment(timeline, to),
        }
    }

    #[test]
    fn what_is_missing_between_segments_is_a_gap_and_what_is_missing_at_the_end_is_none() {
        let tree = tree(&[(1, &[2, 3, 5, 6, 9])], &[]);
        assert_eq!(tree.gaps(), [gap(1, 4, 4), gap(1, 7, 8)]);
        assert_eq!(tree.gaps_on_way(segment(1, 5), 1, None), [gap(1, 7, 8)]);
        assert_eq!(
            tree.gaps_on_way(segment(1, 5), 1, Some(Lsn(6 * 16 * MIB + 9))),
            []
        );
        assert_eq!(tree.gaps_on_way(segment(1, 1), 1, None)[0], gap(1, 1, 1));
        assert_eq!(tree.end_of_way(segment(1, 2), 1), Some(segment(1, 9)));
    }

    #[test]
    fn a_way_goes_over_to_the_timeline_that_left() {
        // Timeline 2 left in segment 5; the old primary wrote on to 7.
        let history = [(2, "1\t0/5000098\tno recovery target specified\n")];
        let whole = tree(&[(1, &[2, 3, 4, 5, 6, 7]), (2, &[5, 6])], &history);
        assert_eq!(whole.gaps(), []);
        assert_eq!(whole.end_of_way(segment(1, 2), 2), Some(segment(2, 6)));
        assert_eq!(whole.parent(2), Some((1, Lsn(0x500_0098))));
        assert!(!whole.leads_to(segment(1, 6), 2) && whole.leads_to(segment(1, 5), 2));
        let short = tree(&[(1, &[2, 3]), (2, &[5, 6])], &history);
        assert_eq!(short.gaps(), [gap(1, 4, 4)]);
        assert_eq!(short.later_than(segment(1, 4)), Some(segment(2, 6)));
        assert_eq!(whole.later_than(segment(1, 7)), None);
        let late = tree(&[(1, &[2, 3, 4, 5]), (2, &[6])], &history);
        assert_eq!(late.gaps(), [gap(2, 5, 5)]);
    }

    #[test]
    fn the_beginning_of_a_segment_counts_only_where_a_timeline_ends() {
        let history = [(2, "1\t0/5000098\tno recovery target specified\n".to_owned())];
        let tree = |whole: &[(u32, u64)], open: &[(u32, u64)]| {
            let tree_of = |all: &[(u32, u64)]| {
                let names = all
                    .iter()
                    .map(|(timeline, index)| segment(*timeline, *index));
                names.collect::<BTreeSet<_>>()
            };
            let held = HeldWal {
                segments: tree_of(whole),
                open: tree_of(open),
                segment_bytes: 16 * MIB,
                ..HeldWal::default()
            };
            TimelineTree::new(held, &history.clone().into())
        };
        let end = tree(&[(1, 2), (1, 3)], &[(1, 4)]);
        assert_eq!(end.end_of_way(segment(1, 2), 1), Some(segment(1, 4)));
        assert_eq!(end.last_of(1), Some(segment(1, 4)));
        assert!(end.is_open(segment(1, 4)) && !end.has(segment(1, 4)));
        assert_eq!((end.gaps(), end.count_of(1)), (vec![], 2));
        let behind_a_gap = tree(&[(1, 2)], &[(1, 4)]);
        assert_eq!(behind_a_gap.gaps(), [gap(1, 3, 3)]);
        assert_eq!(behind_a_gap.later_than(segment(1, 3)), Some(segment(1, 4)));
        let in_the_middle = tree(&[(1, 2), (1, 4)], &[(1, 3)]);
        assert_eq!(in_the_middle.gaps(), [gap(1, 3, 3)]);
        assert!(!in_the_middle.is_open(segment(1, 3)));
        let two = tree(&[(1, 2)], &[(1, 3), (1, 4)]);
        assert_eq!(two.gaps(), [gap(1, 3, 3)]);
        // On the way to timeline 2, segment 4 of timeline 1 must be whole; segment 5 is that of timeline 2.
        let left = tree(&[(1, 2), (1, 3), (2, 5)], &[(1, 4)]);
        assert_eq!(left.gaps_on_way(segment(1, 2), 2, None), [gap(1, 4, 4)]);
        let left = tree(&[(1, 2), (1, 3), (1, 4)], &[(1, 5), (2, 5)]);
        assert_eq!(left.gaps(), []);
        assert_eq!(left.end_of_way(segment(1, 2), 2), Some(segment(2, 5)));
        assert_eq!(tree(&[], &[(1, 7)]).first_of(1), Some(segment(1, 7)));
    }

    #[test]
    fn a_large_hole_takes_no_time() {
        let tree = tree(&[(1, &[1, 1 << 35])], &[]);
        assert_eq!(tree.gaps(), [gap(1, 2, (1 << 35) - 1)]);
    }
}
