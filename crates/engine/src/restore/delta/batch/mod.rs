//! One batch of a restore in place: compare files, fetch and write differing pieces, finish files.

pub(crate) mod compare;
mod write;

use super::{Batch, Delta};
use crate::{report::damage::LEFT, restore::run::RestoreRun, verify::compare_tree::has_content};
use fullbore_format::{
    entry::EntryPath,
    error::{Error, Result, quoted},
    page::{Extent, FrameAt, PageItem, SegmentId},
    sizes,
};
use fullbore_pipeline::{
    read_ahead::{ReadAhead, WindowFiles, WindowLimits},
    workers::{self, WorkerLimit},
};
use fullbore_platform::{
    dir::{self, FileKind},
    metrics::{cpu::ThreadClock, meter::lap},
    queue::Locked,
};
use fullbore_repository::archive::{
    frame_reader::{FrameReader, extent_content},
    schedule,
};
use fullbore_tree::write::{in_place::Patch, writer::TargetWriter};
use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

/// Bytes of a large file that one worker compares at once.
const STRETCH_BYTES: u64 = 16 << 20;

/// A file of several pieces that is being updated.
pub(crate) struct PatchTarget {
    item: PageItem,
    pub(crate) patch: Patch,
    /// The last record of the file, which has the digest.
    last: OnceLock<PageItem>,
    /// Bytes of data that the records so far describe.
    next: AtomicU64,
    damaged: AtomicBool,
    /// Whether only the digest of the whole file proves the result.
    unproven: AtomicBool,
    /// Whether the whole file is unchanged; computed where the manifest has no block digests.
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

/// Files that continue on the next page.
pub(crate) type OpenTargets = HashMap<EntryPath, Arc<PatchTarget>>;

/// A unit of comparison for one worker.
enum CompareUnit {
    /// A small entry, or one without block digests, compared as a whole.
    Whole(PageItem),
    /// Extents of a large file; the first starts at this byte of the data.
    Stretch(Arc<PatchTarget>, PageItem, Range<usize>, u64),
}

/// A piece of a file that differs.
struct WantedPiece {
    /// The file to write to; `None` for a file of a single piece, which is replaced.
    target: Option<Arc<PatchTarget>>,
    item: PageItem,
    extent: Extent,
    /// Bytes of the file's data before this piece.
    offset: u64,
    /// The differing ranges of the piece.
    blocks: Vec<Range<usize>>,
    /// Whether block digests cover exactly the bytes of the piece.
    provable: bool,
}

impl WantedPiece {
    /// Returns the bytes of the piece from the decoded frame.
    fn content<'a>(&self, plain: &'a [u8]) -> &'a [u8] {
        extent_content(&self.extent, plain).unwrap_or_default()
    }
}

/// Writer, frames and buffer of one worker.
struct DeltaWorker {
    writer: TargetWriter,
    frames: FrameReader,
    buffer: Vec<u8>,
}

/// The existing files of the target that records are compared with.
struct ExistingFiles(TargetWriter);

impl WindowFiles<PageItem> for ExistingFiles {
    /// A file is not compared, and not read, if its size differs.
    fn read_bytes(&self, item: &PageItem) -> u64 {
        let is_whole = item.from == 0 && !item.more;
        if item.entry.is_file() && is_whole {
            item.entry.size()
        } else {
            0
        }
    }

    fn text_bytes(&self, item: &PageItem) -> usize {
        item.entry.text_bytes()
    }

    fn inode(&mut self, item: &PageItem) -> u64 {
        let parent = self.0.enter(&item.entry.path);
        let stat = parent.map(|(dir, name)| dir::stat(dir, name));
        stat.map_or(0, |stat| stat.map_or(0, |stat| stat.inode))
    }

    fn open(&mut self, item: &PageItem) -> Option<OwnedFd> {
        let (dir, name) = self.0.enter(&item.entry.path).ok()?;
        // Opening a device can have an effect, so its kind is checked first.
        let stat = dir::stat(dir, name).ok()?;
        let is_compared = stat.kind == FileKind::File && stat.size == item.entry.size();
        is_compared.then(|| dir::open_at_once(dir, name).ok())?
    }
}

/// The state of one batch.
pub(crate) struct DeltaBatch<'a> {
    delta: &'a Delta,
    run: &'a RestoreRun<'a>,
    limit: &'a WorkerLimit<'a>,
    /// Files whose last piece is in this batch.
    ended: Mutex<Vec<Arc<PatchTarget>>>,
}

impl<'a> DeltaBatch<'a> {
    pub(crate) fn new(
        delta: &'a Delta,
        run: &'a RestoreRun<'a>,
        limit: &'a WorkerLimit<'a>,
    ) -> Self {
        Self {
            delta,
            run,
            limit,
            ended: Mutex::default(),
        }
    }

    fn add_ended(&self, target: Arc<PatchTarget>) {
        self.ended.locked().push(target);
    }

    fn new_worker(&self) -> DeltaWorker {
        DeltaWorker {
            writer: TargetWriter::new(&self.run.tree),
            frames: FrameReader::default(),
            buffer: vec![0; 1 << 20],
        }
    }

    /// Compares the records, writes differing pieces, and finishes the files that end in this
    /// batch.
    ///
    /// # Errors
    /// Those of a restore.
    pub(crate) fn run(self, batch: Batch, open_targets: &mut OpenTargets) -> Result<()> {
        let wants = Mutex::new(Vec::new());
        let mut writer = TargetWriter::new(&self.run.tree);
        let compare = |worker: &mut DeltaWorker, unit| {
            let mut clock = ThreadClock::now();
            let found = self.compare_unit(worker, unit)?;
            lap(&self.run.meter.source, &mut clock);
            wants.locked().extend(found);
            Ok(())
        };
        workers::work(
            self.limit,
            || self.new_worker(),
            compare,
            |send| {
                let mut units = |item: Result<PageItem>| {
                    self.divide_record(&mut writer, item?, open_targets, send)
                };
                let items = batch.items.into_iter().map(Ok);
                let files = ExistingFiles(TargetWriter::new(&self.run.tree));
                ReadAhead::new(items, files, WindowLimits::COMPARE).try_for_each(&mut units)
            },
        )?;
        // After all comparisons, so that each frame is fetched once for all pieces in it.
        let wants = wants.opened();
        workers::work(
            self.limit,
            || self.new_worker(),
            |worker, job| self.write_frame(worker, job),
            |send| group_by_frame(wants).into_values().try_for_each(send),
        )?;
        // After all frames: the pieces of one file are in several of them.
        let ended = std::mem::take(&mut *self.ended.locked());
        workers::work(
            self.limit,
            || self.new_worker(),
            |worker, target: Arc<PatchTarget>| self.finish_or_refuse(worker, &target),
            |send| ended.into_iter().try_for_each(send),
        )
    }

    /// Divides the comparison of a record among workers.
    fn divide_record(
        &self,
        writer: &mut TargetWriter,
        item: PageItem,
        open_targets: &mut OpenTargets,
        send: &mut dyn FnMut(CompareUnit) -> Result<()>,
    ) -> Result<()> {
        let parts = item.more || item.from > 0;
        // The first record of this file was refused, and with it the file.
        if item.from > 0 && self.run.refused.contains(&item.entry.path) {
            return Ok(());
        }
        let len = item.described_bytes();
        let known = open_targets
            .get(&item.entry.path)
            .map_or(0, |target| target.next.fetch_add(len, Relaxed));
        if known != item.from || (!item.more && item.from + len != item.entry.data_len()) {
            return self.report_misfit(&item);
        }
        // One frame, or no digests of blocks: there is nothing to divide.
        if !parts && (item.extents.len() < 2 || !self.has_blocks(&item)) {
            return send(CompareUnit::Whole(item));
        }
        let target = match open_targets.remove(&item.entry.path) {
            Some(target) => target,
            None => match self
                .run
                .unless_refused(&item.entry.path, self.open_target(writer, &item, len))?
            {
                Some(Some(target)) => Arc::new(target),
                Some(None) => return send(CompareUnit::Whole(item)),
                None => return Ok(()),
            },
        };
        if item.more {
            open_targets.insert(item.entry.path.clone(), target.clone());
        } else {
            let _ = target.last.set(item.clone());
            self.add_ended(target.clone());
        }
        self.send_stretches(&target, &item, send)
    }

    /// Sends the stretches of a record of a large file.
    fn send_stretches(
        &self,
        target: &Arc<PatchTarget>,
        item: &PageItem,
        send: &mut dyn FnMut(CompareUnit) -> Result<()>,
    ) -> Result<()> {
        let mut offset = item.from;
        for range in stretches(item, self.block_bytes()) {
            let extents = item.extents[range.clone()].iter();
            let len = sizes::sum(extents.map(|extent| u64::from(extent.len)));
            send(CompareUnit::Stretch(
                target.clone(),
                item.clone(),
                range,
                offset,
            ))?;
            offset += len;
        }
        Ok(())
    }

    fn report_misfit(&self, item: &PageItem) -> Result<()> {
        self.run.report.add((
            schedule::misfit(&item.entry.path),
            vec![item.entry.path.clone()],
        ))
    }

    /// Opens the existing file, or creates a new one. Returns `None` for a file that must not
    /// change in place, so that it is kept only if it is unchanged as a whole. `len`: bytes of data
    /// that its record describes.
    fn open_target(
        &self,
        writer: &mut TargetWriter,
        item: &PageItem,
        len: u64,
    ) -> Result<Option<PatchTarget>> {
        match Patch::open(writer, &item.entry)? {
            Some(patch) if patch.may_write() => Ok(Some(PatchTarget::new(item, patch, len))),
            Some(_) if !item.more => Ok(None),
            _ => self.create_target(writer, item, len).map(Some),
        }
    }

    fn create_target(
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

    fn count_file(&self, changed: bool) -> Result<Vec<WantedPiece>> {
        let counter = if changed {
            &self.delta.changed
        } else {
            &self.delta.same
        };
        counter.fetch_add(1, Relaxed);
        self.run.meter.files.fetch_add(1, Relaxed);
        Ok(Vec::new())
    }

    /// Gives up a file that cannot be restored. The existing file is kept, unless parts of it were
    /// overwritten or a server would use it: then it is removed, because a missing file is better
    /// than a wrong one.
    pub(crate) fn give_up(&self, path: &[u8], touched: bool) -> Result<()> {
        let why = match (touched, self.run.rules.are_used_as_one()) {
            (true, _) => "it was written to",
            (false, true) => "a server would use it as its own",
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

    /// Finishes a file, see [`DeltaBatch::end`]. A file that the target refuses keeps its old
    /// content, and is removed if parts of it were overwritten.
    fn finish_or_refuse(&self, worker: &mut DeltaWorker, target: &PatchTarget) -> Result<()> {
        let path = &target.item.entry.path;
        if !self.run.refused.contains(path) {
            let ended = self.finish_file(worker, target);
            self.run.unless_refused(path, ended)?;
        }
        let is_lost = self.run.refused.contains(path) && target.patch.old_content_lost();
        if is_lost {
            self.run.tree.remove_all(path)
        } else {
            Ok(())
        }
    }

    /// Finishes a file whose pieces are all written: cuts it, checks it, applies metadata.
    fn finish_file(&self, worker: &mut DeltaWorker, target: &PatchTarget) -> Result<()> {
        let item = target.last.get().unwrap_or(&target.item);
        if !target.damaged.load(Relaxed) {
            target
                .patch
                .clear_holes(&item.entry, &mut worker.buffer)
                .map_err(|e| write_error(item, e))?;
        }
        if target.unproven.load(Relaxed) && !target.damaged.load(Relaxed) && item.digest.is_some() {
            // The digest is that of the file with its final length.
            target
                .patch
                .set_length(&item.entry)
                .map_err(|e| read_error(item, e))?;
            if !has_content(target.patch.file(), item, &mut worker.buffer)
                .map_err(|e| read_error(item, e))?
            {
                self.run
                    .report
                    .file(item, "its digest is not the one in the manifest")?;
                target.damaged.store(true, Relaxed);
            }
        }
        if target.damaged.load(Relaxed) {
            return self.give_up(&item.entry.path, target.patch.old_content_lost());
        }
        let changed = target.patch.finish(&mut worker.writer, &item.entry)?;
        self.count_file(changed).map(drop)
    }
}

fn read_error(item: &PageItem, error: std::io::Error) -> Error {
    Error::io(
        format!("could not read {} in the target", quoted(&item.entry.path)),
        error,
    )
}

fn write_error(item: &PageItem, error: std::io::Error) -> Error {
    Error::io(
        format!("could not write {}", quoted(&item.entry.path)),
        error,
    )
}

/// Describes a whole extent as wanted.
fn wanted_extent(
    target: Option<Arc<PatchTarget>>,
    item: &PageItem,
    at: usize,
    offset: u64,
) -> WantedPiece {
    let extent = item.extents[at];
    let blocks = std::iter::once(0..extent.len as usize).collect();
    WantedPiece {
        target,
        item: item.clone(),
        extent,
        offset,
        blocks,
        provable: false,
    }
}

fn frame_of(want: &WantedPiece) -> (SegmentId, FrameAt) {
    (
        want.item.segment(&want.extent.frame).clone(),
        want.extent.frame,
    )
}

/// Divides the extents into ranges of about [`STRETCH_BYTES`] or more; each range starts at a
/// block.
fn stretches(item: &PageItem, block: u64) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut stretch_start = item.from;
    let mut end = item.from;
    for (index, extent) in item.extents.iter().enumerate() {
        end += u64::from(extent.len);
        let is_enough = end - stretch_start >= STRETCH_BYTES && end.is_multiple_of(block.max(1));
        if is_enough || index + 1 == item.extents.len() {
            found.push(start..index + 1);
            (start, stretch_start) = (index + 1, end);
        }
    }
    found
}

/// Groups the wanted pieces by frame, in the order of the segments.
fn group_by_frame(wants: Vec<WantedPiece>) -> BTreeMap<(String, u32, u32, u64), Vec<WantedPiece>> {
    let mut frames: BTreeMap<_, Vec<WantedPiece>> = BTreeMap::new();
    for want in wants {
        let (segment, frame) = frame_of(&want);
        frames
            .entry((segment.backup, segment.stream, segment.number, frame.offset))
            .or_default()
            .push(want);
    }
    frames
}
