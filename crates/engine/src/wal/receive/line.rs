//! The timelines that lead to that of a server, and the first segment on them that a repository lacks.

use crate::wal::SystemWal;
use fullbore_format::wal::SegmentName;
use fullbore_postgres::{lsn::Lsn, timeline::Timelines};

/// The way to the end of a server's WAL.
#[derive(Debug)]
pub(super) struct ServerLine {
    timelines: Timelines,
    segment_bytes: u64,
}

impl ServerLine {
    pub(super) fn new(timelines: Timelines, segment_bytes: u64) -> Self {
        Self {
            timelines,
            segment_bytes,
        }
    }

    /// Returns the segment that holds a place. The segment of a switch is that of the later timeline.
    pub(super) fn segment_at(&self, place: Lsn) -> SegmentName {
        self.segment(place.0 / self.segment_bytes)
    }

    fn segment(&self, index: u64) -> SegmentName {
        let bytes = self.segment_bytes;
        let mut starts = self.timelines.starts();
        let own = starts.find(|(_, start)| start.0 / bytes <= index);
        let timeline = own.map_or(1, |(timeline, _)| timeline);
        SegmentName::at(timeline, index.saturating_mul(bytes), bytes)
    }

    /// Returns the first segment that is neither there nor accepted as lost, from `kept` on, the place from which the server keeps WAL;
    /// without that, behind the newest segment that is there. `None` if nothing is there on this way.
    pub(super) fn first_missing(&self, wal: &SystemWal, kept: Option<Lsn>) -> Option<SegmentName> {
        let newest = self.newest(wal)?;
        let kept = kept.map_or(u64::MAX, |kept| kept.0 / self.segment_bytes);
        let mut index = kept.min(newest.saturating_add(1));
        let index_of = |segment: SegmentName| segment.index(self.segment_bytes);
        loop {
            let mut accepted = wal.listing.accepted.iter();
            let gap = accepted
                .find(|(source, target)| (index_of(*source)..=index_of(*target)).contains(&index));
            match gap {
                Some((_, to)) => index = index_of(*to).saturating_add(1),
                None if wal.tree.has(self.segment(index)) => index += 1,
                None => return Some(self.segment(index)),
            }
        }
    }

    /// Returns the number of the newest whole segment on the way.
    fn newest(&self, wal: &SystemWal) -> Option<u64> {
        let mut newest = None;
        let mut end = u64::MAX;
        for (timeline, start) in self.timelines.starts() {
            let start = start.0 / self.segment_bytes;
            let on_way = start..end;
            let indexes = wal.tree.of_timeline(timeline).rev();
            let mut indexes = indexes.map(|segment| segment.index(self.segment_bytes));
            newest = newest.max(indexes.find(|index| on_way.contains(index)));
            end = start;
        }
        newest
    }
}
