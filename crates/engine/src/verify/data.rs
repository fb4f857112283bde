//! Checks every byte of backups: stored bytes against their checksums, frames by decoding, files by
//! digest.
//!
//! This is a restore that writes nothing, with many workers. A file that is unchanged since the
//! previous backup of the same source is checked once. A worker reads a part, and decodes its
//! frames from the same bytes, so that a device or a line gives them once.

use super::{
    losses::DamageSet,
    media::are_media_changed,
    part_runs::{SegmentRun, SegmentRuns, SendRun},
};
use crate::report::damage::{Report, frame_damage};
use fullbore_format::{
    digest::crc64,
    entry::EntryKind,
    error::{Error, Result},
    page::{FrameAt, PageItem, SegmentId, describe_whole_file},
    root::PART_BYTES,
    sizes,
};
use fullbore_pipeline::workers::{self, WorkerLimit};
use fullbore_platform::metrics::{
    cpu::ThreadClock,
    meter::{Meter, lap},
};
use fullbore_repository::{
    archive::{
        Archive, Selection,
        frame_reader::FrameReader,
        held_bytes::HeldBytes,
        object::{ObjectName, Sealing},
        schedule::{self, ContentEnd, JobPlanner, RunOwner, check_pieces, misfit},
    },
    inventory::{Inventory, SegmentPlace, files, full},
    shard::Shard,
};
use std::{
    cmp::Ordering::{Equal, Less},
    num::NonZeroUsize,
    ops::Range,
    sync::atomic::Ordering::Relaxed,
};

pub(super) type Job = schedule::FrameJob<()>;

/// The inputs of a check, and the report that it writes.
pub(crate) struct ContentCheck<'a> {
    pub(crate) stock: &'a Inventory,
    pub(crate) bad: &'a DamageSet,
    pub(crate) report: &'a Report,
    pub(crate) meter: &'a Meter,
    /// The share of the stored bytes to check; `None` for all.
    pub(crate) shard: Option<Shard>,
}

/// Stored bytes with one checksum.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct StoredPart {
    /// Index of the segment, and of the part in it, from 0.
    pub(crate) place: usize,
    pub(crate) index: u64,
}

impl StoredPart {
    /// Where the stored bytes of the part begin and end.
    pub(crate) fn stored_span(&self, stock: &Inventory) -> (u64, u64) {
        let place = &stock.segments[self.place];
        let bytes = self.sealing(stock).stored_bytes(place.bytes);
        let start = self.index.saturating_mul(PART_BYTES).min(bytes);
        (start, bytes.min(start.saturating_add(PART_BYTES)))
    }

    /// The bytes of the segment that depend on them.
    pub(crate) fn plain_span(&self, stock: &Inventory) -> (u64, u64) {
        let stored = self.stored_span(stock);
        let bytes = stock.segments[self.place].bytes;
        self.sealing(stock).plain_range(stored, bytes)
    }

    fn sealing(&self, stock: &Inventory) -> Sealing {
        let place = &stock.segments[self.place];
        stock.archives[place.archive].store().sealing()
    }
}

/// Most bytes that all workers hold together, unless the number of processors allows more workers
/// anyway.
const BUFFER_BYTES: u64 = 192 << 20;
/// Bytes before and behind a part that are read with it, at most, because its frames have them.
const MAX_AROUND_BYTES: u64 = 4 << 20;

/// The buffers of a worker.
#[derive(Default)]
pub(crate) struct DataWorker {
    pub(crate) frames: FrameReader,
    /// The part of a segment that is being checked, for its frames.
    pub(crate) held: HeldBytes,
}

impl DataWorker {
    /// Fetches and decodes a frame, and returns the checksum error if the checksum is the only
    /// fault.
    pub(crate) fn salvage(
        &mut self,
        archive: &Archive,
        segment: &SegmentId,
        frame: &FrameAt,
    ) -> Result<Option<Error>> {
        let stored = if self.held.segment.as_ref() == Some(&full(archive, segment)) {
            self.frames.fetch_held(archive, segment, frame, &self.held)
        } else {
            self.frames.fetch(archive, segment, frame)
        };
        stored?.salvage()
    }
}

impl ContentCheck<'_> {
    /// Checks all content.
    ///
    /// # Errors
    /// Errors that make it impossible to continue; damage is reported.
    pub(crate) fn check(&self, workers: NonZeroUsize) -> Result<()> {
        let all = self
            .stock
            .archives
            .iter()
            .map(new_bytes)
            .fold(0, u64::saturating_add);
        self.meter.total_bytes.store(all, Relaxed);
        let hands = WorkerLimit::climbing(workers, self.workers_that_fit(), self.meter);
        workers::work(
            &hands,
            DataWorker::default,
            |hand, run| self.run(hand, run),
            |send| self.plan(send),
        )
    }

    /// Returns how many workers fit in memory: each holds a part, and a frame twice, stored and decoded.
    fn workers_that_fit(&self) -> usize {
        let largest = self
            .stock
            .archives
            .iter()
            .map(|archive| archive.root.options.frame_bytes)
            .max();
        if self.stock.archives.iter().any(are_media_changed) {
            return 1;
        }
        let frames = largest.unwrap_or(0).max(1 << 16).saturating_mul(2);
        (BUFFER_BYTES / frames.saturating_add(PART_BYTES)) as usize
    }

    /// Compares all stored bytes with their checksums, and decodes nothing.
    ///
    /// # Errors
    /// As [`ContentCheck::check`].
    pub(crate) fn check_stored(&self, workers: NonZeroUsize) -> Result<()> {
        workers::work(
            &workers.into(),
            DataWorker::default,
            |hand, run| self.run(hand, run),
            |send| self.runs().finish(send),
        )
    }

    fn runs(&self) -> SegmentRuns<'_> {
        let is_there = |segment: &SegmentId| !self.bad.is_missing(segment);
        SegmentRuns::new(self.stock, self.shard, is_there)
    }

    fn plan(&self, send: &mut SendRun<'_>) -> Result<()> {
        let mut runs = self.runs();
        (0..self.stock.archives.len())
            .try_for_each(|offset| self.plan_backup(offset, &mut runs, send))?;
        runs.finish(send)
    }

    fn plan_backup(
        &self,
        at: usize,
        runs: &mut SegmentRuns<'_>,
        send: &mut SendRun<'_>,
    ) -> Result<()> {
        let archive = &self.stock.archives[at];
        let mut hand_out = |job: Job| {
            let Some((segment, frame)) = &job.frame else {
                return Ok(());
            };
            let segment = full(archive, segment);
            if self.bad.has(&segment, frame.offset) {
                return Ok(());
            }
            let frame = *frame;
            runs.add((at, job), &segment, &frame, send)
        };
        let all = Selection::default();
        let mut planner = JobPlanner::new(&mut hand_out);
        let mut previous = self
            .stock
            .before(at)
            .map(|previous| (previous, files(previous.records(&all, false)).peekable()));
        for parts in files(archive.records(&all, false)) {
            // Unchanged files were planned with the previous backup: they are in the same frames.
            if let Some((earlier, records)) = &mut previous
                && was_looked_at((archive, &parts), earlier, records)
            {
                continue;
            }
            let first = parts[0].clone();
            let added = match is_content(&first) && !describe_whole_file(&parts) {
                true => Err(misfit(&first.entry.path)),
                false => parts
                    .into_iter()
                    .filter(is_content)
                    .try_for_each(|item| planner.add(item)),
            };
            if added.is_err() {
                self.bad.file(archive, &first);
            }
            self.report.tolerate(added)?;
        }
        self.report.tolerate(planner.finish())
    }

    /// Checks a part of a segment, and decodes its frames from the same bytes.
    fn run(&self, hand: &mut DataWorker, run: SegmentRun) -> Result<()> {
        hand.held.clear();
        if let Some(part) = &run.part {
            self.part(hand, part, &run.frames_at)?;
        }
        let mut frames = run.frames.iter();
        let done =
            frames.try_for_each(|(index, job)| self.frame(hand, &self.stock.archives[*index], job));
        hand.held.clear();
        done
    }

    /// Compares stored bytes with their checksum, and returns whether they match. Holds them, and those around them that `frames` need.
    pub(crate) fn part(
        &self,
        hand: &mut DataWorker,
        part: &StoredPart,
        frames: &Range<u64>,
    ) -> Result<bool> {
        let place = &self.stock.segments[part.place];
        let (start, end) = part.stored_span(self.stock);
        let mut clock = ThreadClock::now();
        let found = self.sum(&mut hand.held, part, frames);
        lap(&self.meter.source, &mut clock);
        self.meter.stored_bytes.fetch_add(end - start, Relaxed);
        let wanted = checksum(place, part.index);
        match found {
            Ok(found) if wanted == Some(&format!("{found:016x}")) => Ok(true),
            result => self.bad_part(part, result.err()).map(|()| false),
        }
    }

    /// Reads a part, with one request, and returns the checksum of its bytes.
    fn sum(&self, held: &mut HeldBytes, part: &StoredPart, frames: &Range<u64>) -> Result<u64> {
        let place = &self.stock.segments[part.place];
        let object = ObjectName::Segment(place.id.clone());
        let store = self.stock.archives[place.archive].store();
        let (start, end) = part.stored_span(self.stock);
        let there = store.sealing().stored_bytes(place.bytes);
        let first = start.saturating_sub(MAX_AROUND_BYTES);
        let last = there.min(end.saturating_add(MAX_AROUND_BYTES)).max(end);
        let mut range = if frames.is_empty() {
            start..end
        } else {
            frames.start.clamp(first, start)..frames.end.clamp(end, last)
        };
        // More than a part, or a store takes it for one of a series of reads, and reads ahead what other workers ask for.
        if range.end - range.start == PART_BYTES {
            range.end = last.min(range.end + 1);
        }
        held.clear();
        let mut read = |span: &Range<u64>| {
            let len = (span.end - span.start) as usize;
            store.read_stored_at(&object, span.start, len, &mut held.bytes)
        };
        // A segment that is too short is damaged only where it ends.
        if range == (start..end) || read(&range).is_err() {
            range = start..end;
            read(&range)?;
        }
        (held.segment, held.from) = (Some(place.id.clone()), range.start);
        let part = (start - range.start) as usize..(end - range.start) as usize;
        Ok(crc64(&held.bytes[part]))
    }

    fn bad_part(&self, part: &StoredPart, error: Option<Error>) -> Result<()> {
        let place = &self.stock.segments[part.place];
        let (start, end) = part.stored_span(self.stock);
        let name = self.stock.archives[place.archive]
            .store()
            .name(&ObjectName::Segment(place.id.clone()));
        let why = error.map_or_else(
            || "their checksum differs from the root".to_owned(),
            |error| error.line(),
        );
        let bytes = format!("bytes {start} to {end} of {name}");
        let message = format!("{bytes}, part {}, are damaged", part.index + 1);
        let span = part.plain_span(self.stock);
        self.bad.part(&place.id, span, bytes);
        self.report.mark_damaged_backup(&place.id.backup);
        self.report
            .add((Error::corrupt(message).because(why), Vec::new()))
    }

    fn frame(&self, hand: &mut DataWorker, archive: &Archive, job: &Job) -> Result<()> {
        let Some((segment, frame)) = &job.frame else {
            return Ok(());
        };
        let mut clock = ThreadClock::now();
        let (error, is_out) = match hand.salvage(archive, segment, frame) {
            Ok(None) => {
                let checked = self.pieces(archive, &job.pieces, hand.frames.plain());
                lap(&self.meter.workers, &mut clock);
                return checked;
            }
            Ok(Some(error)) => (error, true),
            Err(error) => (error, false),
        };
        let lost = || {
            job.pieces
                .iter()
                .filter(|wanted| !is_out || !wanted.is_saved(hand.frames.plain()))
        };
        let segment = full(archive, segment);
        // Several backups may refer to a frame, which is reported once.
        if self.bad.frame(&segment, frame, is_out) {
            let files = lost()
                .map(|wanted| wanted.item().entry.path.clone())
                .collect();
            self.report
                .add(frame_damage(archive, &(segment, *frame), error, files))?;
        }
        lost().for_each(spoil);
        Ok(())
    }

    fn pieces(
        &self,
        archive: &Archive,
        pieces: &[schedule::WantedRun<()>],
        plain: &[u8],
    ) -> Result<()> {
        let bytes = sizes::sum(
            pieces
                .iter()
                .map(|wanted| wanted.content(plain).len() as u64),
        );
        self.meter.bytes.fetch_add(bytes, Relaxed);
        let part = |shared: &schedule::ScheduleShared<()>, offset, content: &[u8]| {
            let hashed = shared.hash(&archive.root.options, offset, content);
            let end = shared.done(offset, content.len() as u64, hashed);
            if shared.is_damaged() {
                ContentEnd::NotYet
            } else {
                end
            }
        };
        let ends = check_pieces(pieces, plain, |end| end, part);
        pieces
            .iter()
            .zip(ends)
            .try_for_each(|(wanted, end)| match end {
                ContentEnd::Damaged(why) => {
                    self.bad.file(archive, wanted.item());
                    self.report.file(wanted.item(), &why)
                }
                // Pieces that cannot be hashed individually: their frames have checksums of their
                // own.
                ContentEnd::NotYet | ContentEnd::Right | ContentEnd::Unknown(_) => Ok(()),
            })
    }
}

fn new_bytes(archive: &Archive) -> u64 {
    let totals = &archive.root.totals;
    totals.bytes.saturating_sub(totals.kept_bytes)
}

fn is_content(item: &PageItem) -> bool {
    matches!(item.entry.kind, EntryKind::File { .. }) && item.state.is_stored()
}

/// Returns whether the previous backup has the same records of this file. Both are in archive
/// order.
fn was_looked_at(
    (archive, parts): (&Archive, &[PageItem]),
    before: &Archive,
    records: &mut std::iter::Peekable<impl Iterator<Item = Vec<PageItem>>>,
) -> bool {
    let path = &parts[0].entry.path;
    let order = |earlier: &[PageItem]| fullbore_format::entry::order(&earlier[0].entry.path, path);
    while records.next_if(|earlier| order(earlier) == Less).is_some() {}
    let Some(earlier) = records.next_if(|earlier| order(earlier) == Equal) else {
        return false;
    };
    let same = |(a, b): (&PageItem, &PageItem)| {
        let places = |archive: &Archive, item: &PageItem| -> Vec<_> {
            let place = |extent: &fullbore_format::page::Extent| {
                let frame = extent.frame;
                let place = (
                    full(archive, item.segment(&frame)),
                    frame.offset,
                    frame.stored_len,
                    frame.plain_len,
                );
                (place, extent.inner, extent.len)
            };
            item.extents.iter().map(place).collect()
        };
        a.state == b.state
            && (&a.entry.kind, a.digest, a.from) == (&b.entry.kind, b.digest, b.from)
            && places(archive, a) == places(before, b)
    };
    earlier.len() == parts.len() && parts.iter().zip(&earlier).all(same)
}

fn spoil(wanted: &schedule::WantedRun<()>) {
    if let RunOwner::Part(shared, offset) = &wanted.of {
        shared.spoil();
        shared.done(*offset, wanted.len.into(), None);
    }
}

/// Parts of a segment without checksums at most: 1 TiB. The size in a root is not trusted.
const MAX_UNKNOWN_PARTS: u64 = 1 << 17;

/// Returns how many parts of a segment can be remembered: those with checksums, or if there are none, those of its size.
pub(crate) fn part_count(place: &SegmentPlace) -> u64 {
    match place.parts.len() as u64 / 16 {
        0 => place.bytes.div_ceil(PART_BYTES).min(MAX_UNKNOWN_PARTS),
        known => known,
    }
}

/// Returns the checksum of a part; `None` if there is no such part, or its checksum is unknown.
pub(crate) fn checksum(place: &SegmentPlace, index: u64) -> Option<&str> {
    let start = usize::try_from(index).ok()?.checked_mul(16)?;
    place.parts.get(start..start + 16)
}
