//! How much of the segments of earlier backups a stream refers to.

use crate::format::{
    page::{FrameAt, Item, Page, SegmentId},
    root::Live,
};
use std::{collections::HashMap, sync::Arc};

/// See the module. Holds as much as there are segments.
#[derive(Default)]
pub struct References {
    numbers: HashMap<SegmentId, u32>,
    counts: Vec<Count>,
    /// The page that was last spoken of, and the numbers of those of its segments that were.
    last: Option<(Arc<Page>, Vec<Option<u32>>)>,
}

struct Count {
    id: SegmentId,
    frames: u64,
    bytes: u64,
    /// Bytes before the last frame that was counted. Frames are mostly met in order, so each counts once.
    at: Option<u64>,
}

impl References {
    /// The number that the segment of an extent has here; from 0, in order of their first use.
    pub fn number(&mut self, item: &Item, segment: u32) -> u32 {
        let (page, segment) = (item.page(), segment as usize);
        let (last, mut numbers) = match self.last.take() {
            Some((last, numbers)) if Arc::ptr_eq(&last, page) => (last, numbers),
            _ => (page.clone(), vec![None; page.segments.len()]),
        };
        let number = numbers[segment].unwrap_or_else(|| self.number_of(&page.segments[segment]));
        numbers[segment] = Some(number);
        self.last = Some((last, numbers));
        number
    }

    fn number_of(&mut self, id: &SegmentId) -> u32 {
        if let Some(number) = self.numbers.get(id) {
            return *number;
        }
        let number = self.counts.len() as u32;
        self.numbers.insert(id.clone(), number);
        self.counts.push(Count { id: id.clone(), frames: 0, bytes: 0, at: None });
        number
    }

    /// The segment of this number.
    pub fn segment(&self, number: u32) -> &SegmentId {
        &self.counts[number as usize].id
    }

    /// A frame of the segment with this number is referred to.
    pub fn count(&mut self, number: u32, frame: &FrameAt) {
        let count = &mut self.counts[number as usize];
        if count.at != Some(frame.offset) {
            count.at = Some(frame.offset);
            count.frames += 1;
            count.bytes += u64::from(frame.stored_len);
        }
    }

    /// All of them; how large the segments are is not known here.
    pub fn all(&self) -> Vec<Live> {
        let live = |count: &Count| Live {
            backup: count.id.backup.clone(),
            stream: count.id.stream,
            number: count.id.number,
            frames: count.frames,
            bytes: count.bytes,
            of_bytes: 0,
        };
        self.counts.iter().map(live).collect()
    }
}
