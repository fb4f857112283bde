//! Counts the data in segments of earlier backups that a stream refers to.
//!
//! A partly used frame counts by the used share of its decoded bytes; a small file counts with its
//! headers and padding. Otherwise one remaining file would keep its whole frame alive.

use fullbore_format::{
    page::{Extent, ManifestPage, PageItem, Record, SegmentId},
    pax::{BLOCK, padding},
    root::Live,
    sizes,
};
use std::{collections::HashMap, sync::Arc};

/// References to segments. Memory grows with the number of segments.
#[derive(Default)]
pub struct References {
    numbers: HashMap<SegmentId, u32>,
    counts: Vec<LiveCount>,
    /// The last page seen, and the numbers of its segments as far as they are known.
    last: Option<(Arc<ManifestPage>, Vec<Option<u32>>)>,
}

struct LiveCount {
    id: SegmentId,
    frames: u64,
    bytes: u64,
    /// End of the last counted frame in the segment, in bytes.
    end: u64,
    /// The last counted frame. References mostly come in order, so that each frame counts once.
    last: Option<LiveFrame>,
}

#[derive(Clone, Copy)]
struct LiveFrame {
    offset: u64,
    /// Decoded bytes of the frame that count.
    used: u64,
    /// Decoded bytes up to the end of the last counted ones.
    at: u64,
}

/// Bytes before the content of a small file that belong to it: its header, and most extended
/// headers.
const HEADER_BYTES: u64 = 4 * BLOCK as u64;

impl References {
    /// Returns the number of the segment of an extent; numbers start from 0, in order of first use.
    pub fn number(&mut self, item: &PageItem, segment: u32) -> u32 {
        let page = item.page();
        let segment = segment as usize;
        let (last, mut numbers) = match self.last.take() {
            Some((last, numbers)) if Arc::ptr_eq(&last, page) => (last, numbers),
            _ => (page.clone(), vec![None; page.segments.len()]),
        };
        let number = numbers[segment].unwrap_or_else(|| self.number_of(&page.segments[segment]));
        numbers[segment] = Some(number);
        self.last = Some((last, numbers));
        number
    }

    pub fn number_of(&mut self, id: &SegmentId) -> u32 {
        if let Some(number) = self.numbers.get(id) {
            return *number;
        }
        let number = self.counts.len() as u32;
        self.numbers.insert(id.clone(), number);
        self.counts.push(LiveCount {
            id: id.clone(),
            frames: 0,
            bytes: 0,
            end: 0,
            last: None,
        });
        number
    }

    pub fn segment(&self, number: u32) -> &SegmentId {
        &self.counts[number as usize].id
    }

    /// Counts an extent of a record in the segment with this number.
    pub fn count(&mut self, number: u32, record: &Record, extent: &Extent) {
        self.counts[number as usize].add(
            extent,
            if is_single_extent(record) {
                HEADER_BYTES
            } else {
                0
            },
        );
    }

    /// Returns the counted bytes of a segment.
    pub fn bytes_of(&self, id: &SegmentId) -> u64 {
        self.numbers
            .get(id)
            .map_or(0, |number| self.counts[*number as usize].bytes)
    }

    /// Returns the counts of all segments, with as much of their length as is known here.
    pub fn all(&self) -> Vec<Live> {
        self.counts
            .iter()
            .map(|count| Live {
                backup: count.id.backup.clone(),
                stream: count.id.stream,
                number: count.id.number,
                frames: count.frames,
                bytes: count.bytes,
                of_bytes: count.end,
                data_bytes: 0,
            })
            .collect()
    }
}

impl LiveCount {
    fn add(&mut self, extent: &Extent, header: u64) {
        let offset = extent.frame.offset;
        let stored = u64::from(extent.frame.stored_len);
        let plain = u64::from(extent.frame.plain_len);
        // Extents come frame by frame. The bytes of a frame count in proportion to its used
        // content.
        let last = self.last.filter(|last| last.offset == offset);
        self.frames += u64::from(last.is_none());
        self.end = self.end.max(offset + stored);
        let previous = last.unwrap_or(LiveFrame {
            offset,
            used: 0,
            at: 0,
        });
        let inner = u64::from(extent.inner);
        let len = u64::from(extent.len);
        let start = inner.saturating_sub(header).max(previous.at);
        let live_end = (inner + len + padding(len) as u64).min(plain).max(start);
        let used = previous.used + (live_end - start);
        let share = |used: u64| stored * used / plain.max(1);
        sizes::add(&mut self.bytes, share(used) - share(previous.used));
        self.last = Some(LiveFrame {
            offset,
            used,
            at: live_end,
        });
    }
}

/// Returns whether the record describes a file with all its content in one extent.
fn is_single_extent(record: &Record) -> bool {
    record.from == 0 && !record.more && record.extents.len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::page::FrameAt;

    fn counted(extents: &[(u64, u32, u32)], is_alone: bool) -> (u64, u64) {
        let mut references = References::default();
        let number = references.number_of(&SegmentId::default());
        for (offset, inner, len) in extents {
            let frame = FrameAt {
                segment: 1,
                offset: *offset,
                stored_len: 1000,
                plain_len: 100_000,
            };
            let extent = Extent {
                frame,
                inner: *inner,
                len: *len,
            };
            let record = Record {
                extents: vec![extent; if is_alone { 1 } else { 2 }],
                ..Record::default()
            };
            references.count(number, &record, &extent);
        }
        (references.all()[0].frames, references.all()[0].bytes)
    }

    #[test]
    fn a_frame_of_which_all_is_used_counts_as_a_whole() {
        // Small files, each after its header of three blocks; and the pieces of a large file.
        let files: Vec<_> = (0..40)
            .map(|i| (7, i * 2560 + 1536, 1000))
            .take_while(|file| file.1 + 1000 < 100_000)
            .collect();
        assert_eq!(counted(&files, true), (1, 1000 * (39 * 2560) / 100_000));
        assert_eq!(
            counted(&[(7, 0, 100_000), (2000, 0, 100_000)], false),
            (2, 2000)
        );
        assert_eq!(counted(&[(7, 0, 100_000)], true), (1, 1000));
    }

    #[test]
    fn of_a_frame_that_is_used_in_part_that_part_counts() {
        assert_eq!(
            counted(&[(7, 50_000, 1000)], true),
            (1, (2048 + 1024) * 1000 / 100_000)
        );
        assert_eq!(
            counted(
                &[(7, 8192, 8192), (7, 16384, 8192), (7, 90_112, 8192)],
                false
            ),
            (1, 3 * 8192 / 100)
        );
    }

    #[test]
    fn what_is_used_twice_counts_once() {
        assert_eq!(
            counted(&[(7, 8192, 8192), (7, 8192, 8192), (7, 0, 4096)], false),
            (1, 8192 / 100)
        );
        assert_eq!(
            counted(&[(7, 99_000, 1000), (7, 99_000, 1000)], true),
            (1, (2048 + 1000) * 1000 / 100_000)
        );
    }
}
