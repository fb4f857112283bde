//! Plans which stored bytes a worker reads: a part of a segment at a time, with the frames that have most of their bytes in it.
//!
//! Each part is read once, for its checksum and for its frames. Frames come in the order of the archive, so those of a part follow each
//! other, except for frames that later backups refer to again: these are read one by one.

use super::data::{Job, StoredPart, checksum};
use fullbore_format::{
    error::Result,
    page::{FrameAt, SegmentId},
    root::PART_BYTES,
};
use fullbore_repository::{inventory::Inventory, shard::Shard};
use std::{collections::HashMap, ops::Range};

/// Frames of one run at most, and bytes of their content, so that one worker does not do all of a segment that was compressed well.
const MAX_FRAMES: usize = 4096;
const MAX_PLAIN_BYTES: u64 = 1 << 30;

/// Hands a run to a worker.
pub(super) type SendRun<'a> = dyn FnMut(SegmentRun) -> Result<()> + 'a;

/// The work on one part of a segment.
#[derive(Default)]
pub(super) struct SegmentRun {
    /// The part, if it has a checksum and no run before had it.
    pub(super) part: Option<StoredPart>,
    /// The stored bytes of the segment that the frames are in.
    pub(super) frames_at: Range<u64>,
    /// Indexes of backups, and frames of them.
    pub(super) frames: Vec<(usize, Job)>,
}

/// The run that is being planned.
struct OpenRun {
    /// Index of the segment, and of the part in it.
    at: (usize, u64),
    plain_bytes: u64,
    run: SegmentRun,
}

/// The parts that were handed out, by segment, and the run that frames are added to.
pub(super) struct SegmentRuns<'a> {
    stock: &'a Inventory,
    places: HashMap<&'a SegmentId, usize>,
    next: Vec<u64>,
    /// The share of the parts that is handed out; `None` for all.
    shard: Option<Shard>,
    open: Option<OpenRun>,
}

impl<'a> SegmentRuns<'a> {
    /// Leaves out segments that are missing.
    pub(super) fn new(
        stock: &'a Inventory,
        shard: Option<Shard>,
        is_there: impl Fn(&SegmentId) -> bool,
    ) -> Self {
        let places = stock.segments.iter().enumerate();
        let next = stock.segments.iter();
        Self {
            stock,
            places: places.map(|(index, place)| (&place.id, index)).collect(),
            next: next
                .map(|place| if is_there(&place.id) { 0 } else { u64::MAX })
                .collect(),
            shard,
            open: None,
        }
    }

    /// Adds a frame of a backup to the run of the part that has most of it, so that little is read twice.
    pub(super) fn add(
        &mut self,
        job: (usize, Job),
        segment: &SegmentId,
        frame: &FrameAt,
        send: &mut SendRun<'_>,
    ) -> Result<()> {
        let Some(place) = self.places.get(segment).copied() else {
            // Without a place it has no part; the first share checks it.
            if self.shard.is_some_and(|shard| !shard.is_first()) {
                return Ok(());
            }
            let frames = vec![job];
            return send(SegmentRun {
                frames,
                ..SegmentRun::default()
            });
        };
        let archive = self.stock.segments[place].archive;
        let sealing = self.stock.archives[archive].store().sealing();
        let plain = (
            frame.offset,
            frame.offset.saturating_add(frame.stored_len.into()),
        );
        let (start, end) = sealing.stored_range(plain);
        let middle = start + (end - start) / 2;
        if !self.has(segment, middle / PART_BYTES) {
            return Ok(());
        }
        let open = self.open_at((place, middle / PART_BYTES), send)?;
        let range = &mut open.run.frames_at;
        *range = if open.run.frames.is_empty() {
            start..end
        } else {
            range.start.min(start)..range.end.max(end)
        };
        open.plain_bytes += u64::from(frame.plain_len);
        open.run.frames.push(job);
        if open.run.frames.len() >= MAX_FRAMES || open.plain_bytes >= MAX_PLAIN_BYTES {
            self.flush(send)?;
        }
        Ok(())
    }

    /// Hands out the run that is open, and all parts that were not yet handed out.
    pub(super) fn finish(&mut self, send: &mut SendRun<'_>) -> Result<()> {
        self.flush(send)?;
        (0..self.next.len()).try_for_each(|place| self.parts_before(place, u64::MAX, send))
    }

    /// Returns the run of a part, after all parts before it were handed out.
    fn open_at(&mut self, at: (usize, u64), send: &mut SendRun<'_>) -> Result<&mut OpenRun> {
        if self.open.as_ref().is_none_or(|open| open.at != at) {
            self.flush(send)?;
            self.parts_before(at.0, at.1, send)?;
        }
        let part = if self.open.is_none() {
            self.take(at)
        } else {
            None
        };
        Ok(self.open.get_or_insert_with(|| OpenRun {
            at,
            plain_bytes: 0,
            run: SegmentRun {
                part,
                ..SegmentRun::default()
            },
        }))
    }

    /// Takes a part, if it has a checksum and was not handed out.
    fn take(&mut self, (place, index): (usize, u64)) -> Option<StoredPart> {
        let is_next = self.next[place] == index;
        let is_known = checksum(&self.stock.segments[place], index).is_some();
        (is_next && is_known).then(|| {
            self.next[place] += 1;
            StoredPart { place, index }
        })
    }

    fn parts_before(&mut self, place: usize, index: u64, send: &mut SendRun<'_>) -> Result<()> {
        while self.next[place] < index
            && let Some(part) = self.take((place, self.next[place]))
        {
            if !self.has(&self.stock.segments[place].id, part.index) {
                continue;
            }
            send(SegmentRun {
                part: Some(part),
                ..SegmentRun::default()
            })?;
        }
        Ok(())
    }

    fn has(&self, segment: &SegmentId, index: u64) -> bool {
        self.shard
            .is_none_or(|shard| shard.has_part(segment, index))
    }

    fn flush(&mut self, send: &mut SendRun<'_>) -> Result<()> {
        self.open.take().map_or(Ok(()), |open| send(open.run))
    }
}
