//! One batch of a restore in place: compare, fetch and write what differs, finish.

pub(crate) mod compare;

use super::{Batch, Delta};
use crate::{
    archive::{
        block_digests::judged,
        schedule::{self, ContentEnd, check_whole, is_saved},
    },
    error::{Error, Result, quoted},
    format::{
        entry::EntryPath,
        page::{Extent, FrameAt, PageItem, SegmentId},
        sizes,
    },
    metrics::meter::lap,
    pipeline::workers::{self, WorkerLimit},
    queue::Locked,
    report::damage::{LEFT, frame_damage},
    restore::RestoreRun,
    stage::codec::Decompressor,
    target::{in_place::Patch, writer::TargetWriter},
    verify::compare_tree::has_content,
};
use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

/// Bytes of a large file that one worker compares at once.
const STRETCH_BYTES: u64 = 16 << 20;

/// A file of several pieces that is brought up to date.
pub(crate) struct PatchTarget {
    item: PageItem,
    pub(crate) patch: Patch,
    /// Its last record, which has the digest.
    last: OnceLock<PageItem>,
    /// Bytes of its data that records have described.
    next: AtomicU64,
    damaged: AtomicBool,
    /// Can only reading all of it tell if it is right now?
    unproven: AtomicBool,
    /// Was all of it the same? Asked where there are no digests of blocks.
    whole: OnceLock<bool>,
}

impl PatchTarget {
    fn new(item: &PageItem, patch: Patch, next: u64) -> Self {
        let [damaged, unproven] = Default::default();
        Self {
            item: item.clone(),
            patch,
            last: OnceLock::new(),
            next: next.into(),
            damaged,
            unproven,
            whole: OnceLock::new(),
        }
    }
}

/// Files that go on in the next page.
pub(crate) type GoingOn = HashMap<EntryPath, Arc<PatchTarget>>;

/// What a worker compares.
enum Unit {
    /// Something small, or that has no block digests: all of it.
    Whole(PageItem),
    /// These extents of a large file; the first begins at this byte of the data.
    Stretch(Arc<PatchTarget>, PageItem, Range<usize>, u64),
}

/// A piece that differs.
struct Want {
    /// The file it is written to; `None` for one of a single piece, which is made anew.
    target: Option<Arc<PatchTarget>>,
    item: PageItem,
    extent: Extent,
    /// Bytes of data of the file before it.
    offset: u64,
    /// What of it differs.
    blocks: Vec<Range<usize>>,
    /// Are there digests of exactly its bytes?
    provable: bool,
}

impl Want {
    /// Its bytes.
    fn content<'a>(&self, plain: &'a [u8]) -> &'a [u8] {
        let (from, len) = (self.extent.inner as usize, self.extent.len as usize);
        plain
            .get(from..)
            .and_then(|rest| rest.get(..len))
            .unwrap_or_default()
    }
}

/// What a worker has.
struct DeltaWorker {
    writer: TargetWriter,
    decompressor: Decompressor,
    stored: Vec<u8>,
    plain: Vec<u8>,
    buffer: Vec<u8>,
}

/// One batch.
pub(crate) struct DeltaBatch<'a> {
    delta: &'a Delta<'a>,
    run: &'a RestoreRun<'a>,
    hands: &'a WorkerLimit<'a>,
    /// Files of which the last piece is in this batch.
    ended: Mutex<Vec<Arc<PatchTarget>>>,
}

impl<'a> DeltaBatch<'a> {
    pub(crate) fn new(
        delta: &'a Delta<'a>,
        run: &'a RestoreRun<'a>,
        hands: &'a WorkerLimit<'a>,
    ) -> Self {
        Self {
            delta,
            run,
            hands,
            ended: Mutex::default(),
        }
    }

    fn ends(&self, target: Arc<PatchTarget>) {
        self.ended.locked().push(target);
    }

    fn hand(&self) -> DeltaWorker {
        let decompressor = self.run.archive.codec.decompressor();
        let [stored, plain] = Default::default();
        DeltaWorker {
            writer: TargetWriter::new(&self.run.tree),
            decompressor,
            stored,
            plain,
            buffer: vec![0; 1 << 20],
        }
    }

    /// Compare, write what differs, and finish what has ended.
    ///
    /// # Errors
    /// As those of a restore.
    pub(crate) fn batch(self, batch: Batch, going_on: &mut GoingOn) -> Result<()> {
        let wants = Mutex::new(Vec::new());
        let mut writer = TargetWriter::new(&self.run.tree);
        let compare = |hand: &mut DeltaWorker, unit| {
            let mut clock = Instant::now();
            let found = self.compare(hand, unit)?;
            lap(&self.run.meter.source.busy, &mut clock);
            wants.locked().extend(found);
            Ok(())
        };
        workers::work(
            self.hands,
            || self.hand(),
            compare,
            |send| {
                let mut units = |item| self.units(&mut writer, item, going_on, send);
                batch.items.into_iter().try_for_each(&mut units)
            },
        )?;
        let wants = wants.opened();
        workers::work(
            self.hands,
            || self.hand(),
            |hand, job| self.write(hand, job),
            |send| by_frame(wants).into_values().try_for_each(send),
        )?;
        let ended = std::mem::take(&mut *self.ended.locked());
        workers::work(
            self.hands,
            || self.hand(),
            |hand, target: Arc<PatchTarget>| self.end_or_refuse(hand, &target),
            |send| ended.into_iter().try_for_each(send),
        )
    }

    /// Divide the comparison of a record among workers.
    fn units(
        &self,
        writer: &mut TargetWriter,
        item: PageItem,
        going_on: &mut GoingOn,
        send: &mut dyn FnMut(Unit) -> Result<()>,
    ) -> Result<()> {
        let parts = item.more || item.from > 0;
        if item.from > 0 && self.run.refused.contains(&item.entry.path) {
            return Ok(());
        }
        let len = item.described_bytes();
        let known = going_on
            .get(&item.entry.path)
            .map_or(0, |target| target.next.fetch_add(len, Relaxed));
        if known != item.from || (!item.more && item.from + len != item.entry.data_len()) {
            return self.misfit(&item);
        }
        if !parts && (item.extents.len() < 2 || !self.has_blocks(&item)) {
            return send(Unit::Whole(item));
        }
        let target = match going_on.remove(&item.entry.path) {
            Some(target) => target,
            None => match self
                .run
                .unless_refused(&item.entry.path, self.target(writer, &item, len))?
            {
                Some(Some(target)) => Arc::new(target),
                Some(None) => return send(Unit::Whole(item)),
                None => return Ok(()),
            },
        };
        if item.more {
            going_on.insert(item.entry.path.clone(), target.clone());
        } else {
            let _ = target.last.set(item.clone());
            self.ends(target.clone());
        }
        let mut offset = item.from;
        for range in stretches(&item, self.block()) {
            let len = sizes::sum(
                item.extents[range.clone()]
                    .iter()
                    .map(|extent| u64::from(extent.len)),
            );
            send(Unit::Stretch(target.clone(), item.clone(), range, offset))?;
            offset += len;
        }
        Ok(())
    }

    fn misfit(&self, item: &PageItem) -> Result<()> {
        self.run.report.add((
            schedule::misfit(&item.entry.path),
            vec![item.entry.path.clone()],
        ))
    }

    /// The file that is there, or a new one; `None` if it may not change, so that it may stay only if all of it is the
    /// same. `len`: bytes of data that its record describes.
    fn target(
        &self,
        writer: &mut TargetWriter,
        item: &PageItem,
        len: u64,
    ) -> Result<Option<PatchTarget>> {
        match Patch::open(writer, &item.entry)? {
            Some(patch) if patch.may_change() => Ok(Some(PatchTarget::new(item, patch, len))),
            Some(_) if !item.more => Ok(None),
            _ => self.target_anew(writer, item, len).map(Some),
        }
    }

    fn target_anew(
        &self,
        writer: &mut TargetWriter,
        item: &PageItem,
        len: u64,
    ) -> Result<PatchTarget> {
        Ok(PatchTarget::new(
            item,
            Patch::create(writer, &item.entry)?,
            len,
        ))
    }

    fn count(&self, changed: bool) -> Result<Vec<Want>> {
        let counter = if changed {
            &self.delta.changed
        } else {
            &self.delta.same
        };
        counter.fetch_add(1, Relaxed);
        self.run.meter.files.fetch_add(1, Relaxed);
        Ok(Vec::new())
    }

    /// One frame, and all that is wanted of it.
    fn write(&self, hand: &mut DeltaWorker, wants: Vec<Want>) -> Result<()> {
        let Some(first) = wants.first() else {
            return Ok(());
        };
        let (segment, frame) = place(first);
        let mut clock = Instant::now();
        let fetched = self.run.archive.fetch(&segment, &frame, &mut hand.stored);
        self.run
            .meter
            .stored_bytes
            .fetch_add(u64::from(frame.stored_len), Relaxed);
        lap(&self.run.meter.source.busy, &mut clock);
        let decompressor = &mut hand.decompressor;
        let decoded = fetched.and_then(|()| {
            decompressor.salvage(&hand.stored, frame.plain_len as usize, &mut hand.plain)
        });
        let wants = match decoded {
            Ok(None) => wants,
            Ok(Some(error)) => {
                let (saved, lost) = wants
                    .into_iter()
                    .partition(|want| self.is_saved(want, &hand.plain));
                self.lose(hand, &(segment, frame), lost, error)?;
                saved
            }
            Err(error) => return self.lose(hand, &(segment, frame), wants, error),
        };
        let plain = std::mem::take(&mut hand.plain);
        lap(&self.run.meter.workers.busy, &mut clock);
        let written = wants
            .iter()
            .try_for_each(|want| self.write_one(hand, want, &plain));
        lap(&self.run.meter.sink.busy, &mut clock);
        hand.plain = plain;
        written
    }

    /// Of a frame whose checksum is wrong: is what is wanted of it what digests say?
    fn is_saved(&self, want: &Want, plain: &[u8]) -> bool {
        let content = want.content(plain);
        let judged = || {
            judged(
                &want.item,
                self.block(),
                want.offset,
                content,
                content.len(),
            )
        };
        match want.target {
            None => is_saved(&want.item, content),
            Some(_) => want.provable && judged().iter().all(|(_, same)| *same == Some(true)),
        }
    }

    /// A frame is damaged, and with it what is wanted of it.
    fn lose(
        &self,
        hand: &mut DeltaWorker,
        at: &(SegmentId, FrameAt),
        wants: Vec<Want>,
        error: Error,
    ) -> Result<()> {
        if wants.is_empty() {
            self.run.report.harmless(&self.run.archive, at, error);
            return Ok(());
        }
        let files = wants
            .iter()
            .map(|want| want.item.entry.path.clone())
            .collect();
        self.run
            .report
            .add(frame_damage(&self.run.archive, at, error, files))?;
        wants.iter().try_for_each(|want| self.spoil(hand, want))
    }

    fn write_one(&self, hand: &mut DeltaWorker, want: &Want, plain: &[u8]) -> Result<()> {
        let content = want.content(plain);
        let entry = &want.item.entry;
        let Some(target) = &want.target else {
            if let ContentEnd::Damaged(why) = check_whole(&want.item, content) {
                self.run.report.file(&want.item, &why)?;
                return self.spoil(hand, want);
            }
            self.delta.written.fetch_add(content.len() as u64, Relaxed);
            let made = self
                .run
                .unless_refused(&entry.path, hand.writer.file(entry, content))?;
            return if made.is_some() {
                self.count(true).map(drop)
            } else {
                Ok(())
            };
        };
        if self.run.refused.contains(&entry.path) {
            return Ok(());
        }
        if want.provable
            && judged(
                &want.item,
                self.block(),
                want.offset,
                content,
                content.len(),
            )
            .iter()
            .any(|(_, same)| *same == Some(false))
        {
            if !target.damaged.swap(true, Relaxed) {
                self.run
                    .report
                    .file(&want.item, "a block of it is not what the manifest says")?;
            }
            return Ok(());
        }
        for block in want
            .blocks
            .iter()
            .filter_map(|block| Some((block.start, content.get(block.clone())?)))
        {
            self.delta.written.fetch_add(block.1.len() as u64, Relaxed);
            let written =
                target
                    .patch
                    .write(&hand.writer, entry, want.offset + block.0 as u64, block.1);
            if self.run.unless_refused(&entry.path, written)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// What is wanted cannot be had.
    fn spoil(&self, hand: &mut DeltaWorker, want: &Want) -> Result<()> {
        let path = &want.item.entry.path;
        match &want.target {
            Some(target) => target.damaged.store(true, Relaxed),
            None if hand.writer.tree.is_there(path)? => self.give_up(path, false)?,
            None => {}
        }
        Ok(())
    }

    /// A file that is there cannot be made what it is in the backup. It stays what it was, unless some of that is lost or a
    /// server would go by it: then better it is not there than wrong.
    pub(crate) fn give_up(&self, path: &[u8], touched: bool) -> Result<()> {
        let why = match (touched, self.run.archive.root.postgres.is_some()) {
            (true, _) => "it was written to",
            (false, true) => "a server would take it for its own",
            (false, false) => {
                self.run.report.note_outcome(path, LEFT);
                return Ok(());
            }
        };
        self.run.tree.remove_all(path)?;
        self.run.report.note_outcome(
            path,
            &format!("is removed: it is damaged in the backup, and {why}"),
        );
        Ok(())
    }

    /// As [`Work::end`]. A file that the target cannot take stays what it was, unless some of that is lost.
    fn end_or_refuse(&self, hand: &mut DeltaWorker, target: &PatchTarget) -> Result<()> {
        let path = &target.item.entry.path;
        if !self.run.refused.contains(path) {
            let ended = self.end(hand, target);
            self.run.unless_refused(path, ended)?;
        }
        let is_lost = self.run.refused.contains(path) && target.patch.is_touched();
        if is_lost {
            self.run.tree.remove_all(path)
        } else {
            Ok(())
        }
    }

    /// All pieces of a file are written.
    fn end(&self, hand: &mut DeltaWorker, target: &PatchTarget) -> Result<()> {
        let item = target.last.get().unwrap_or(&target.item);
        if !target.damaged.load(Relaxed) {
            target
                .patch
                .clear_holes(&item.entry, &mut hand.buffer)
                .map_err(|e| unwritten(item, e))?;
        }
        if target.unproven.load(Relaxed) && !target.damaged.load(Relaxed) && item.digest.is_some() {
            target
                .patch
                .set_length(&item.entry)
                .map_err(|e| unread(item, e))?;
            if !has_content(target.patch.file(), item, &mut hand.buffer)
                .map_err(|e| unread(item, e))?
            {
                self.run
                    .report
                    .file(item, "its digest is not the one in the manifest")?;
                target.damaged.store(true, Relaxed);
            }
        }
        if target.damaged.load(Relaxed) {
            return self.give_up(&item.entry.path, target.patch.is_touched());
        }
        let changed = target.patch.finish(&mut hand.writer, &item.entry)?;
        self.count(changed).map(drop)
    }
}

fn unread(item: &PageItem, error: std::io::Error) -> Error {
    Error::io(
        format!("could not read {} in the target", quoted(&item.entry.path)),
        error,
    )
}

fn unwritten(item: &PageItem, error: std::io::Error) -> Error {
    Error::io(
        format!("could not write {}", quoted(&item.entry.path)),
        error,
    )
}

/// All of an extent.
fn want(target: Option<Arc<PatchTarget>>, item: &PageItem, at: usize, offset: u64) -> Want {
    let extent = item.extents[at];
    let blocks = std::iter::once(0..extent.len as usize).collect();
    Want {
        target,
        item: item.clone(),
        extent,
        offset,
        blocks,
        provable: false,
    }
}

fn place(want: &Want) -> (SegmentId, FrameAt) {
    (
        want.item.segment(&want.extent.frame).clone(),
        want.extent.frame,
    )
}

/// Runs of extents of about [`STRETCH_BYTES`], or more: they begin with a block.
fn stretches(item: &PageItem, block: u64) -> Vec<Range<usize>> {
    let (mut found, mut start, mut from, mut end) = (Vec::new(), 0, item.from, item.from);
    for (at, extent) in item.extents.iter().enumerate() {
        end += u64::from(extent.len);
        let is_enough = end - from >= STRETCH_BYTES && end.is_multiple_of(block.max(1));
        if is_enough || at + 1 == item.extents.len() {
            found.push(start..at + 1);
            (start, from) = (at + 1, end);
        }
    }
    found
}

/// What is wanted of each frame, in the order of the segments.
fn by_frame(wants: Vec<Want>) -> BTreeMap<(String, u32, u32, u64), Vec<Want>> {
    let mut frames: BTreeMap<_, Vec<Want>> = BTreeMap::new();
    for want in wants {
        let (segment, frame) = place(&want);
        frames
            .entry((segment.backup, segment.stream, segment.number, frame.offset))
            .or_default()
            .push(want);
    }
    frames
}
