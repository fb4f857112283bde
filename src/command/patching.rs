//! One batch of a restore in place: compare, fetch and write what differs, finish.

use super::{
    against::has_content,
    crew,
    damage::frame_damage,
    delta::{Batch, Delta},
    restore::Run,
};
use crate::{
    error::{Error, Result, quoted},
    format::{
        digest::{Algorithm, Piece, piece},
        entry::{Entry, Kind, Path as EntryPath},
        page::{Extent, FrameAt, Item, SegmentId, is_block},
    },
    pipeline::meter::lap,
    sink::{
        patch::{Patch, is_there},
        writer::Writer,
    },
    source::jobs::{End, check_whole},
    stage::codec::Decompressor,
};
use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroUsize,
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
pub(super) struct Target {
    item: Item,
    patch: Patch,
    /// Its last record, which has the digest.
    last: OnceLock<Item>,
    /// Bytes of its data that records have described.
    next: AtomicU64,
    damaged: AtomicBool,
    /// Can only reading all of it tell if it is right now?
    unproven: AtomicBool,
}

impl Target {
    fn new(item: &Item, patch: Patch, next: u64) -> Self {
        let [damaged, unproven] = Default::default();
        Self { item: item.clone(), patch, last: OnceLock::new(), next: next.into(), damaged, unproven }
    }
}

/// Files that go on in the next page.
pub(super) type GoingOn = HashMap<EntryPath, Arc<Target>>;

/// What a worker compares.
enum Unit {
    /// Something small, or that has no block digests: all of it.
    Whole(Item),
    /// These extents of a large file; the first begins at this byte of the data.
    Stretch(Arc<Target>, Item, Range<usize>, u64),
}

/// A piece that differs.
struct Want {
    /// The file it is written to; `None` for one of a single piece, which is made anew.
    target: Option<Arc<Target>>,
    item: Item,
    extent: Extent,
    /// Bytes of data of the file before it.
    offset: u64,
    /// What of it differs.
    blocks: Vec<Range<usize>>,
}

/// What a worker has.
struct Hand {
    writer: Writer,
    decompressor: Decompressor,
    stored: Vec<u8>,
    plain: Vec<u8>,
    buffer: Vec<u8>,
}

/// One batch.
pub(super) struct Work<'a> {
    delta: &'a Delta<'a>,
    run: &'a Run<'a>,
    workers: NonZeroUsize,
    /// Files of which the last piece is in this batch.
    ended: Mutex<Vec<Arc<Target>>>,
}

impl<'a> Work<'a> {
    pub(super) fn new(delta: &'a Delta<'a>, run: &'a Run<'a>, workers: NonZeroUsize) -> Self {
        Self { delta, run, workers, ended: Mutex::default() }
    }

    fn ends(&self, target: Arc<Target>) {
        self.ended.lock().unwrap_or_else(|e| e.into_inner()).push(target);
    }

    fn hand(&self) -> Hand {
        let decompressor = self.run.archive.codec.decompressor();
        let [stored, plain] = Default::default();
        Hand { writer: Writer::new(&self.run.tree), decompressor, stored, plain, buffer: vec![0; 1 << 20] }
    }

    /// Compare, write what differs, and finish what has ended.
    ///
    /// # Errors
    /// As those of a restore.
    pub(super) fn batch(self, batch: Batch, going_on: &mut GoingOn) -> Result<()> {
        let wants = Mutex::new(Vec::new());
        let mut writer = Writer::new(&self.run.tree);
        let compare = |hand: &mut Hand, unit| {
            let mut clock = Instant::now();
            let found = self.compare(hand, unit)?;
            lap(&self.run.meter.source.busy, &mut clock);
            wants.lock().unwrap_or_else(|e| e.into_inner()).extend(found);
            Ok(())
        };
        crew::work(
            self.workers,
            || self.hand(),
            compare,
            |send| {
                let mut units = |item| self.units(&mut writer, item, going_on, send);
                batch.items.into_iter().try_for_each(&mut units)
            },
        )?;
        let wants = wants.into_inner().unwrap_or_else(|e| e.into_inner());
        crew::work(
            self.workers,
            || self.hand(),
            |hand, job| self.write(hand, job),
            |send| by_frame(wants).into_values().try_for_each(send),
        )?;
        let ended = std::mem::take(&mut *self.ended.lock().unwrap_or_else(|e| e.into_inner()));
        crew::work(
            self.workers,
            || self.hand(),
            |hand, target: Arc<Target>| self.end(hand, &target),
            |send| ended.into_iter().try_for_each(send),
        )
    }

    /// Divide the comparison of a record among workers.
    fn units(
        &self,
        writer: &mut Writer,
        item: Item,
        going_on: &mut GoingOn,
        send: &mut dyn FnMut(Unit) -> Result<()>,
    ) -> Result<()> {
        let parts = item.more || item.from > 0;
        let len = item.described_bytes();
        let known = going_on.get(&item.entry.path).map_or(0, |target| target.next.fetch_add(len, Relaxed));
        if known != item.from || (!item.more && item.from + len != item.entry.data_len()) {
            return self.misfit(&item);
        }
        if !parts && (item.extents.len() < 2 || !self.is_provable(&item)) {
            return send(Unit::Whole(item));
        }
        let target = match going_on.remove(&item.entry.path) {
            Some(target) => target,
            None => match self.target(writer, &item, len)? {
                Some(target) => Arc::new(target),
                None => return send(Unit::Whole(item)),
            },
        };
        if item.more {
            going_on.insert(item.entry.path.clone(), target.clone());
        } else {
            let _ = target.last.set(item.clone());
            self.ends(target.clone());
        }
        let mut offset = item.from;
        for range in stretches(&item.extents) {
            let len: u64 = item.extents[range.clone()].iter().map(|extent| u64::from(extent.len)).sum();
            send(Unit::Stretch(target.clone(), item.clone(), range, offset))?;
            offset += len;
        }
        Ok(())
    }

    fn misfit(&self, item: &Item) -> Result<()> {
        let what = format!("the manifest does not say where all of {} is", quoted(&item.entry.path));
        self.run.report.add((Error::corrupt(what), vec![item.entry.path.clone()]))
    }

    /// The file that is there, or a new one; `None` if it has other names, so that it may stay only if all of it is the
    /// same. `len`: bytes of data that its record describes.
    fn target(&self, writer: &mut Writer, item: &Item, len: u64) -> Result<Option<Target>> {
        let there = if is_sparse(&item.entry) { None } else { Patch::open(writer, &item.entry)? };
        match there {
            Some(patch) if patch.is_alone() => Ok(Some(Target::new(item, patch, len))),
            Some(_) if !item.more => Ok(None),
            _ => self.target_anew(writer, item, len).map(Some),
        }
    }

    fn target_anew(&self, writer: &mut Writer, item: &Item, len: u64) -> Result<Target> {
        Ok(Target::new(item, Patch::create(writer, &item.entry)?, len))
    }

    fn block(&self) -> u64 {
        self.run.archive.root.options.block_bytes
    }

    /// Does the record say the digest of each block of what it describes?
    fn has_blocks(&self, item: &Item) -> bool {
        let len = item.described_bytes();
        let block = self.block();
        let whole = block >= 1024 && item.from.is_multiple_of(block) && item.blocks.len() as u64 == len.div_ceil(block);
        let is_blake3 = self.run.archive.root.options.digest == Algorithm::Blake3;
        whole && is_blake3 && !is_sparse(&item.entry) && item.entry.data_len() > block
    }

    fn compare(&self, hand: &mut Hand, unit: Unit) -> Result<Vec<Want>> {
        match unit {
            Unit::Whole(item) if item.entry.is_file() => self.compare_file(hand, item),
            Unit::Whole(item) => self.other(hand, &item).map(|()| Vec::new()),
            Unit::Stretch(target, item, range, offset) => self.compare_blocks(hand, &target, &item, range, offset),
        }
    }

    /// A link, pipe or device.
    fn other(&self, hand: &mut Hand, item: &Item) -> Result<()> {
        let same = is_there(&mut hand.writer, &item.entry)?;
        let counter = if same { &self.delta.same } else { &self.delta.changed };
        counter.fetch_add(1, Relaxed);
        if same { Ok(()) } else { hand.writer.other(&item.entry) }
    }

    fn compare_file(&self, hand: &mut Hand, item: Item) -> Result<Vec<Want>> {
        let entry = &item.entry;
        self.run.meter.bytes.fetch_add(entry.data_len(), Relaxed);
        if let Some(patch) = Patch::open(&mut hand.writer, entry)?
            && self.is_same(hand, &patch, &item)?
        {
            patch.finish(&mut hand.writer, entry)?;
            return self.count(false);
        }
        if item.extents.len() == 1 {
            return Ok(vec![want(None, &item, 0, item.from)]);
        }
        let target = Arc::new(self.target_anew(&mut hand.writer, &item, entry.data_len())?);
        if item.extents.is_empty() {
            return self.end(hand, &target).map(|()| Vec::new());
        }
        target.unproven.store(true, Relaxed);
        self.ends(target.clone());
        let mut offset = 0;
        let mut wants = Vec::new();
        for at in 0..item.extents.len() {
            wants.push(want(Some(target.clone()), &item, at, offset));
            offset += u64::from(item.extents[at].len);
        }
        Ok(wants)
    }

    /// Has it the content of the record, and may it stay?
    fn is_same(&self, hand: &mut Hand, patch: &Patch, item: &Item) -> Result<bool> {
        let size = item.entry.size();
        if patch.stat().size != size || (item.digest.is_none() && size > 0) {
            return Ok(false);
        }
        let same = size == 0 || has_content(patch.file(), item, &mut hand.buffer).map_err(|e| unread(item, e))?;
        Ok(same && (patch.is_alone() || patch.is_dressed_as(&mut hand.writer, &item.entry)?))
    }

    fn count(&self, changed: bool) -> Result<Vec<Want>> {
        let counter = if changed { &self.delta.changed } else { &self.delta.same };
        counter.fetch_add(1, Relaxed);
        self.run.meter.files.fetch_add(1, Relaxed);
        Ok(Vec::new())
    }

    /// Read what the target has where these extents belong; which of their blocks differ?
    fn compare_blocks(
        &self,
        hand: &mut Hand,
        target: &Arc<Target>,
        item: &Item,
        range: Range<usize>,
        mut offset: u64,
    ) -> Result<Vec<Want>> {
        let mut wants = Vec::new();
        for at in range {
            let len = item.extents[at].len as usize;
            self.run.meter.bytes.fetch_add(len as u64, Relaxed);
            let blocks = match self.provable(item, offset, len) {
                false => {
                    target.unproven.store(true, Relaxed);
                    std::iter::once(0..len).collect()
                }
                true if target.patch.fresh => std::iter::once(0..len).collect(),
                true => {
                    hand.buffer.resize(len.max(hand.buffer.len()), 0);
                    let got = target.patch.read(offset, &mut hand.buffer[..len]).map_err(|e| unread(item, e))?;
                    self.differing(item, offset, &hand.buffer[..got], len)
                }
            };
            if !blocks.is_empty() {
                wants.push(Want { blocks, ..want(Some(target.clone()), item, at, offset) });
            }
            offset += len as u64;
        }
        Ok(wants)
    }

    /// Are there digests of exactly the bytes of each extent? Not where something moved within the file.
    fn is_provable(&self, item: &Item) -> bool {
        let mut offset = item.from;
        self.has_blocks(item)
            && item.extents.iter().all(|extent| {
                let at = offset;
                offset += u64::from(extent.len);
                self.provable(item, at, extent.len as usize)
            })
    }

    /// Are there digests of exactly these bytes?
    fn provable(&self, item: &Item, offset: u64, len: usize) -> bool {
        let (block, end) = (self.block(), offset + len as u64);
        self.has_blocks(item)
            && offset.is_multiple_of(block)
            && (end.is_multiple_of(block) || end == item.entry.data_len())
    }

    /// The blocks that are not surely what the manifest says; `found` may be short.
    fn differing(&self, item: &Item, offset: u64, found: &[u8], len: usize) -> Vec<Range<usize>> {
        let judged = self.judged(item, offset, found, len).into_iter();
        judged.filter_map(|(block, same)| (same != Some(true)).then_some(block)).collect()
    }

    /// Each block, and whether it is what the manifest says, if that says it.
    fn judged(&self, item: &Item, offset: u64, found: &[u8], len: usize) -> Vec<(Range<usize>, Option<bool>)> {
        let block = self.block() as usize;
        let hashed = match piece(Algorithm::Blake3, found, offset, item.entry.data_len(), block as u64) {
            Piece::Blocks(hashed) => hashed,
            _ => Vec::new(),
        };
        let first = ((offset - item.from) / block as u64) as usize;
        let span = |at: usize| at * block..((at + 1) * block).min(len);
        let same = |at: usize| {
            let wanted = item.block(first + at)?;
            Some(span(at).end <= found.len() && hashed.get(at).is_some_and(|hash| is_block(wanted, hash)))
        };
        (0..len.div_ceil(block)).map(|at| (span(at), same(at))).collect()
    }

    /// One frame, and all that is wanted of it.
    fn write(&self, hand: &mut Hand, wants: Vec<Want>) -> Result<()> {
        let Some(first) = wants.first() else { return Ok(()) };
        let (segment, frame) = place(first);
        let mut clock = Instant::now();
        let fetched = self.run.archive.fetch(&segment, &frame, &mut hand.stored);
        self.run.meter.stored_bytes.fetch_add(u64::from(frame.stored_len), Relaxed);
        lap(&self.run.meter.source.busy, &mut clock);
        let decompressor = &mut hand.decompressor;
        let decoded =
            fetched.and_then(|()| decompressor.decompress(&hand.stored, frame.plain_len as usize, &mut hand.plain));
        if let Err(error) = decoded {
            let files = wants.iter().map(|want| want.item.entry.path.clone()).collect();
            self.run.report.add(frame_damage(&self.run.archive, &(segment, frame), error, files))?;
            return wants.iter().try_for_each(|want| self.spoil(hand, want));
        }
        let plain = std::mem::take(&mut hand.plain);
        lap(&self.run.meter.workers.busy, &mut clock);
        let written = wants.iter().try_for_each(|want| self.write_one(hand, want, &plain));
        lap(&self.run.meter.sink.busy, &mut clock);
        hand.plain = plain;
        written
    }

    fn write_one(&self, hand: &mut Hand, want: &Want, plain: &[u8]) -> Result<()> {
        let (from, len) = (want.extent.inner as usize, want.extent.len as usize);
        let content = plain.get(from..).and_then(|rest| rest.get(..len)).unwrap_or_default();
        let entry = &want.item.entry;
        let Some(target) = &want.target else {
            if let End::Damaged(why) = check_whole(&want.item, content) {
                self.run.report.file(&want.item, &why)?;
                return self.spoil(hand, want);
            }
            self.delta.written.fetch_add(content.len() as u64, Relaxed);
            hand.writer.file(entry, content)?;
            return self.count(true).map(drop);
        };
        if self.provable(&want.item, want.offset, len)
            && self.judged(&want.item, want.offset, content, len).iter().any(|(_, same)| *same == Some(false))
        {
            if !target.damaged.swap(true, Relaxed) {
                self.run.report.file(&want.item, "a block of it is not what the manifest says")?;
            }
            return Ok(());
        }
        for block in want.blocks.iter().filter_map(|block| Some((block.start, content.get(block.clone())?))) {
            self.delta.written.fetch_add(block.1.len() as u64, Relaxed);
            target.patch.write(&hand.writer, entry, want.offset + block.0 as u64, block.1)?;
        }
        Ok(())
    }

    /// What is wanted cannot be had: the file is not there rather than wrong.
    fn spoil(&self, hand: &mut Hand, want: &Want) -> Result<()> {
        match &want.target {
            Some(target) => target.damaged.store(true, Relaxed),
            None => hand.writer.tree.remove_all(&want.item.entry.path)?,
        }
        Ok(())
    }

    /// All pieces of a file are written.
    fn end(&self, hand: &mut Hand, target: &Target) -> Result<()> {
        let item = target.last.get().unwrap_or(&target.item);
        if target.unproven.load(Relaxed) && !target.damaged.load(Relaxed) && item.digest.is_some() {
            target.patch.set_length(&item.entry).map_err(|e| unread(item, e))?;
            if !has_content(target.patch.file(), item, &mut hand.buffer).map_err(|e| unread(item, e))? {
                self.run.report.file(item, "its digest is not the one in the manifest")?;
                target.damaged.store(true, Relaxed);
            }
        }
        if target.damaged.load(Relaxed) {
            return hand.writer.tree.remove_all(&item.entry.path);
        }
        let changed = target.patch.finish(&mut hand.writer, &item.entry)?;
        self.count(changed).map(drop)
    }
}

fn unread(item: &Item, error: std::io::Error) -> Error {
    Error::io(format!("could not read {} in the target", quoted(&item.entry.path)), error)
}

fn is_sparse(entry: &Entry) -> bool {
    matches!(entry.kind, Kind::File { map: Some(_), .. })
}

/// All of an extent.
fn want(target: Option<Arc<Target>>, item: &Item, at: usize, offset: u64) -> Want {
    let extent = item.extents[at];
    Want { target, item: item.clone(), extent, offset, blocks: std::iter::once(0..extent.len as usize).collect() }
}

fn place(want: &Want) -> (SegmentId, FrameAt) {
    (want.item.segment(&want.extent.frame).clone(), want.extent.frame)
}

/// Runs of extents of about [`STRETCH_BYTES`].
fn stretches(extents: &[Extent]) -> Vec<Range<usize>> {
    let (mut found, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, extent) in extents.iter().enumerate() {
        bytes += u64::from(extent.len);
        if bytes >= STRETCH_BYTES || at + 1 == extents.len() {
            found.push(start..at + 1);
            (start, bytes) = (at + 1, 0);
        }
    }
    found
}

/// What is wanted of each frame, in the order of the segments.
fn by_frame(wants: Vec<Want>) -> BTreeMap<(String, u32, u32, u64), Vec<Want>> {
    let mut frames: BTreeMap<_, Vec<Want>> = BTreeMap::new();
    for want in wants {
        let (segment, frame) = place(&want);
        frames.entry((segment.backup, segment.stream, segment.number, frame.offset)).or_default().push(want);
    }
    frames
}
