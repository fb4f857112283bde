//! The workers: each reads a frame of the source, and has the target take what differs.
//!
//! A file that fits a frame is written as a whole. A larger one is compared block by block if the
//! target has content for it, from any number of workers; the last of them completes it.

use super::{
    call::{BLOCK, CopyCall, DIGEST_BYTES, headers},
    plan::CopyPlan,
};
use fullbore_format::{
    digest::{Digest, digests},
    entry::{Entry, EntryKind, EntryPath},
    error::Result,
    page::EntryState,
};
use fullbore_pipeline::{
    frame::{Frame, FrameContent, FrameEntry, LargeFile, Pool, Scanned, Slice},
    known::BaseEntry,
    source::Source,
};
use fullbore_platform::{dir, metrics::meter::Meter, queue::Locked};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
};

/// The state that all workers share.
pub(super) struct CopyWork<'a> {
    pub(super) plan: &'a CopyPlan,
    pub(super) source: &'a dyn Source,
    pub(super) meter: &'a Meter,
    pub(super) pool: Arc<Pool>,
    large: Mutex<HashMap<EntryPath, Arc<LargeCopy>>>,
}

/// A large file that is being copied.
#[derive(Debug)]
struct LargeCopy {
    pieces_left: AtomicU64,
    sent_bytes: AtomicU64,
    /// Whether the target did not take a piece.
    has_failed: AtomicBool,
    /// The entry, and whether the target has content to compare; `None` if the file is not copied.
    begun: OnceLock<Option<(Entry, bool)>>,
}

/// The parts of a frame by how the target takes them.
#[derive(Default)]
struct SortedParts {
    put: Vec<usize>,
    check: Vec<usize>,
    describe: Vec<usize>,
}

impl<'a> CopyWork<'a> {
    pub(super) fn new(
        plan: &'a CopyPlan,
        source: &'a dyn Source,
        meter: &'a Meter,
        pool: Arc<Pool>,
    ) -> Self {
        Self {
            plan,
            source,
            meter,
            pool,
            large: Mutex::default(),
        }
    }

    /// Prepares a slice for the workers. Called in order, before any of them has it.
    pub(super) fn prepare(&self, slice: &Slice) {
        if let Slice::Members(_, Some(file)) = slice {
            let copy = LargeCopy {
                pieces_left: AtomicU64::new(file.unread.load(Relaxed)),
                sent_bytes: AtomicU64::new(0),
                has_failed: AtomicBool::new(false),
                begun: OnceLock::new(),
            };
            let path = file.entry.path.clone();
            self.large.locked().insert(path, Arc::new(copy));
        }
    }

    /// Copies a slice.
    pub(super) fn copy(&self, slice: Slice) -> Result<()> {
        let head = match &slice {
            Slice::Members(_, Some(file)) => self.large_copy(&file.entry.path),
            _ => None,
        };
        // The workers that have its pieces wait for this.
        let _ended = head.map(BeginGuard);
        let mut next = Some(slice);
        while let Some(slice) = next.take() {
            let mut frame = self.source.read(slice, self.pool.take())?;
            next = frame.rest.take();
            self.copy_frame(&frame)?;
        }
        Ok(())
    }

    fn large_copy(&self, path: &[u8]) -> Option<Arc<LargeCopy>> {
        self.large.locked().get(path).cloned()
    }

    fn copy_frame(&self, frame: &Frame) -> Result<()> {
        let mut sorted = SortedParts::default();
        for (index, part) in frame.parts.iter().enumerate() {
            match &part.what {
                FrameContent::Whole(entry, state) => {
                    self.sort(&mut sorted, index, part, entry, state)
                }
                FrameContent::Head(entry, file) => self.begin(entry, file, part.replaced)?,
                FrameContent::Piece { file, offset, .. } => {
                    let piece = frame.data.get(..part.len as usize).unwrap_or_default();
                    self.copy_piece(file, *offset, piece)?;
                }
            }
        }
        self.describe(frame, &sorted.describe)?;
        let differing = self.check(frame, sorted.check)?;
        sorted.put.extend(differing);
        sorted.put.sort_unstable();
        self.send_directories(frame, &sorted.put)?;
        self.put(frame, &sorted.put)
    }

    /// Sends the metadata of directories in which a file is replaced after it was compared.
    fn send_directories(&self, frame: &Frame, replaced: &[usize]) -> Result<()> {
        if !self.plan.options.checksum {
            return Ok(());
        }
        let mut directories = Vec::new();
        for (index, part) in frame.parts.iter().enumerate() {
            if let FrameContent::Whole(entry, _) = &part.what
                && entry.is_file()
            {
                let is_replaced = replaced.binary_search(&index).is_ok();
                directories.extend(self.plan.settle_check(&entry.path, is_replaced));
            }
        }
        if directories.is_empty() {
            return Ok(());
        }
        self.plan
            .ask(CopyCall::Directories, &headers(&directories)?)
            .map(drop)
    }

    fn sort(
        &self,
        sorted: &mut SortedParts,
        at: usize,
        part: &FrameEntry,
        entry: &Entry,
        state: &EntryState,
    ) {
        self.meter.entries.fetch_add(1, Relaxed);
        if !state.is_stored() && entry.kind != EntryKind::Directory {
            if !self.is_worth_a_check(entry, part.known.as_ref()) {
                self.plan.take_back(&entry.path, part.known.as_ref());
            }
            return self.plan.note_unread(&entry.path, state);
        }
        if *state == EntryState::Changed {
            self.plan.note_unread(&entry.path, state);
        }
        if part.runs.is_some() {
            sorted.describe.push(at);
        } else if self.is_worth_a_check(entry, part.known.as_ref()) {
            sorted.check.push(at);
        } else {
            sorted.put.push(at);
        }
    }

    /// Returns whether the content of a small file may be there already.
    fn is_worth_a_check(&self, entry: &Entry, known: Option<&BaseEntry>) -> bool {
        known.is_some_and(|known| self.is_compared(entry, known))
    }

    fn describe(&self, frame: &Frame, parts: &[usize]) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        let entries: Vec<&Entry> = parts.iter().map(|index| entry_of(frame, *index)).collect();
        let answer = self
            .plan
            .ask(CopyCall::Describe, &headers(entries.iter().copied())?)?;
        for index in answer.wanted {
            if let Some(entry) = entries.get(index as usize) {
                let whole = Scanned::new((*entry).clone(), EntryState::Whole);
                self.plan.do_later(whole);
            }
        }
        Ok(())
    }

    /// Returns the parts whose content differs from that of the target.
    fn check(&self, frame: &Frame, parts: Vec<usize>) -> Result<Vec<usize>> {
        if parts.is_empty() {
            return Ok(parts);
        }
        let contents: Vec<&[u8]> = parts
            .iter()
            .map(|index| content_of(frame, *index))
            .collect();
        let digests = joined(&contents).into();
        let body = headers(parts.iter().map(|index| entry_of(frame, *index)))?;
        let answer = self.plan.ask(CopyCall::Check { digests }, &body)?;
        let read: usize = contents.iter().map(|content| content.len()).sum();
        self.meter.bytes.fetch_add(read as u64, Relaxed);
        let wanted = answer.wanted.iter();
        let differing: Vec<usize> = wanted
            .filter_map(|index| parts.get(*index as usize).copied())
            .collect();
        for index in parts {
            let entry = entry_of(frame, index);
            match differing.binary_search(&index).is_ok()
                || has_other_time(&frame.parts[index], entry)
            {
                true => self.plan.say_change(false, &entry.path),
                false => self.plan.note_same(),
            }
        }
        Ok(differing)
    }

    fn put(&self, frame: &Frame, parts: &[usize]) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        let answer = self.plan.target.put(frame, parts)?;
        self.plan.note_refused(&answer);
        for (path, _) in &answer.refused.named {
            let mut parts = parts.iter().map(|index| &frame.parts[*index]);
            let part = parts.find(|part| is_of_object(part, path));
            part.inspect(|part| self.plan.take_back(path, part.known.as_ref()));
        }
        let bytes: u64 = parts
            .iter()
            .map(|index| u64::from(frame.parts[*index].len))
            .sum();
        self.count_sent(bytes);
        self.meter.files.fetch_add(parts.len() as u64, Relaxed);
        Ok(())
    }

    fn count_sent(&self, bytes: u64) {
        self.plan.counts.sent_bytes.fetch_add(bytes, Relaxed);
        self.meter.bytes.fetch_add(bytes, Relaxed);
    }

    /// Opens a large file in the target.
    fn begin(&self, entry: &Entry, file: &LargeFile, is_replaced: bool) -> Result<()> {
        let Some(copy) = self.large_copy(&entry.path) else {
            return Ok(());
        };
        self.meter.entries.fetch_add(1, Relaxed);
        if is_replaced && entry.is_sparse() {
            return Ok(());
        }
        let source = file.known.as_ref().map(|known| &known.last().entry.path);
        let source = source.filter(|source| **source != entry.path);
        let source = source.map(|source| source.clone().into());
        let answer = self
            .plan
            .ask(CopyCall::Begin { from: source }, &headers([entry])?)?;
        let is_open = answer.refused.count() == 0;
        let is_told = { file.known.as_ref() }.is_none_or(|known| !self.is_compared(entry, known));
        if !is_open && is_told {
            self.plan.take_back(&entry.path, file.known.as_ref());
        }
        let begun = is_open.then(|| (entry.clone(), answer.has_content));
        let _ = copy.begun.set(begun);
        Ok(())
    }

    fn copy_piece(&self, file: &LargeFile, offset: u64, piece: &[u8]) -> Result<()> {
        let path = &file.entry.path;
        let Some(copy) = self.large_copy(path) else {
            return Ok(());
        };
        // Another worker begins the file, perhaps only now.
        let Some((entry, has_content)) = copy.begun.wait() else {
            return Ok(());
        };
        let pieces = match has_content {
            true => self.differing_blocks(path, offset, piece)?,
            false => vec![(offset, piece.len() as u32)],
        };
        let sent: u64 = pieces.iter().map(|(_, len)| u64::from(*len)).sum();
        if sent > 0 {
            let body: Vec<&[u8]> = pieces
                .iter()
                .map(|(position, len)| &piece[(position - offset) as usize..][..*len as usize])
                .collect();
            let path = path.clone().into();
            let answer = self
                .plan
                .ask(CopyCall::Write { path, pieces }, &body.concat())?;
            if answer.refused.count() > 0 {
                copy.has_failed.store(true, Relaxed);
            }
        }
        copy.sent_bytes.fetch_add(sent, AcqRel);
        self.plan.counts.sent_bytes.fetch_add(sent, Relaxed);
        self.meter.bytes.fetch_add(piece.len() as u64, Relaxed);
        // `AcqRel`: the worker of the last piece sees the bytes that all others have sent.
        if copy.pieces_left.fetch_sub(1, AcqRel) == 1 {
            self.end(file, entry, &copy)?;
        }
        Ok(())
    }

    fn is_compared(&self, entry: &Entry, known: &BaseEntry) -> bool {
        self.plan.options.is_compared(entry, &known.last().entry)
    }

    /// Counts a large file whose content was compared, which was not said to have changed.
    fn say_compared(&self, known: &BaseEntry, entry: &Entry, has_changed: bool) {
        match has_changed || known.last().entry.mtime != entry.mtime {
            true => self.plan.say_change(false, &entry.path),
            false => self.plan.note_same(),
        }
    }

    /// Counts a large file that is complete, or takes back that it was counted.
    fn count_large(&self, file: &LargeFile, entry: &Entry, copy: &LargeCopy) {
        let has_failed = file.failed.get().is_some() || copy.has_failed.load(Relaxed);
        let compared = { file.known.as_ref() }.filter(|known| self.is_compared(entry, known));
        match compared {
            Some(_) if has_failed => {}
            Some(known) => self.say_compared(known, entry, copy.sent_bytes.load(Relaxed) > 0),
            None if has_failed => self.plan.take_back(&entry.path, file.known.as_ref()),
            None => {}
        }
    }

    /// Returns the blocks of a piece that the target wants: bytes of data before each, and length.
    fn differing_blocks(&self, path: &[u8], offset: u64, piece: &[u8]) -> Result<Vec<(u64, u32)>> {
        let blocks: Vec<&[u8]> = piece.chunks(BLOCK).collect();
        let call = CopyCall::Compare {
            path: path.to_vec().into(),
            offset,
            len: piece.len() as u32,
        };
        let answer = self.plan.ask(call, &joined(&blocks))?;
        let mut pieces: Vec<(u64, u32)> = Vec::new();
        for index in answer.wanted {
            let Some(block) = blocks.get(index as usize) else {
                continue;
            };
            let start = offset + u64::from(index) * BLOCK as u64;
            match pieces.last_mut() {
                Some((from, len)) if *from + u64::from(*len) == start => *len += block.len() as u32,
                _ => pieces.push((start, block.len() as u32)),
            }
        }
        Ok(pieces)
    }

    fn end(&self, file: &LargeFile, entry: &Entry, copy: &LargeCopy) -> Result<()> {
        self.count_large(file, entry, copy);
        let failed = file.failed.get();
        if let Some(why) = failed {
            let state = EntryState::Unreadable(why.clone());
            self.plan.note_unread(&entry.path, &state);
        } else if file.changed.load(Acquire) {
            self.plan.note_unread(&entry.path, &EntryState::Changed);
        }
        self.large.locked().remove(&entry.path);
        let end = CopyCall::End {
            path: entry.path.clone().into(),
            is_complete: failed.is_none(),
            shrunk: shrunk_size(file, entry),
        };
        self.plan.ask(end, b"").map(drop)?;
        self.meter.files.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// Returns the size of a large file that has shrunk since the scan. Holes are not cut off: their
/// places are those of the scan.
fn shrunk_size(file: &LargeFile, entry: &Entry) -> Option<u64> {
    let (fd, _) = file.opened.get()?.as_ref().ok()?;
    let size = dir::stat_fd(fd).ok()?.size;
    let has_shrunk = file.changed.load(Acquire) && !entry.is_sparse() && size < entry.size();
    has_shrunk.then_some(size)
}

/// Returns whether the target had another time for a file.
fn has_other_time(part: &FrameEntry, entry: &Entry) -> bool {
    let known = part.known.as_ref();
    known.is_some_and(|known| known.last().entry.mtime != entry.mtime)
}

/// Lets the workers go on that wait for the beginning of a large file, whatever happened to it.
struct BeginGuard(Arc<LargeCopy>);

impl Drop for BeginGuard {
    fn drop(&mut self) {
        let _ = self.0.begun.set(None); // it may have begun
    }
}

/// Returns whether a part is all of the object at this path, and no directory: of those, others may
/// be left.
fn is_of_object(part: &FrameEntry, path: &[u8]) -> bool {
    match &part.what {
        FrameContent::Whole(entry, _) => entry.path == path && entry.kind != EntryKind::Directory,
        _ => false,
    }
}

fn entry_of(frame: &Frame, at: usize) -> &Entry {
    match &frame.parts[at].what {
        FrameContent::Whole(entry, _) | FrameContent::Head(entry, _) => entry,
        FrameContent::Piece { file, .. } => &file.entry,
    }
}

fn content_of(frame: &Frame, at: usize) -> &[u8] {
    let part = &frame.parts[at];
    let start = part.inner as usize;
    frame
        .data
        .get(start..start + part.len as usize)
        .unwrap_or_default()
}

/// The digests of these contents, one after the other.
fn joined(contents: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(contents.len() * DIGEST_BYTES);
    for digest in digests(contents) {
        if let Digest::Blake3(digest) = digest {
            bytes.extend_from_slice(&digest);
        }
    }
    bytes
}
