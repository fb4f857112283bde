//! Large files of the tree that is written: compared and written block by block, from any thread.

use super::call::{BLOCK, CopyAnswer, DIGEST_BYTES, not_understood};
use crate::report::skipped::concerns_one_object;
use fullbore_format::{
    digest::{Digest, digests},
    entry::{ByteRun, Entry, EntryKind, EntryPath},
    error::{Error, Result, quoted},
};
use fullbore_platform::{queue::Locked, write};
use fullbore_tree::write::{in_place::Patch, tree::TargetTree, writer::TargetWriter};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Files that are open at the same time, at most.
const MAX_OPEN: usize = 256;

/// Blocks that are read and compared at once: 1 MiB.
const BLOCKS_AT_ONCE: usize = 16;

/// Bytes that are compared by one question, at most.
const MAX_COMPARED: u32 = 64 << 20;

/// The files that are being written.
#[derive(Debug, Default)]
pub(super) struct LargeTargets(Mutex<HashMap<EntryPath, Arc<LargeTarget>>>);

#[derive(Debug)]
struct LargeTarget {
    entry: Entry,
    /// The file that is compared, and written if that is allowed.
    patch: Patch,
    is_writable: bool,
    /// A copy of a file that must not be written, made before the first piece is written.
    copied: OnceLock<Patch>,
    copying: Mutex<()>,
    /// Whether the file may have content that was there before.
    has_content: bool,
    /// Whether a piece could not be written.
    has_failed: AtomicBool,
}

impl LargeTargets {
    /// Opens the file of an entry. Returns whether it may have content.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn begin(
        &self,
        writer: &mut TargetWriter,
        entry: &Entry,
        from: Option<&[u8]>,
    ) -> Result<bool> {
        // The other end asks: without a limit, it could use up the open files of this process.
        if !entry.is_file() || self.0.locked().len() >= MAX_OPEN {
            return Err(not_understood());
        }
        let mut is_writable = true;
        let (patch, has_content) = match Patch::open(writer, entry)?.filter(Patch::may_write) {
            Some(patch) => (patch, true),
            None => match Patch::open_any(writer, entry)? {
                Some(patch) => {
                    is_writable = false;
                    (patch, true)
                }
                None => Patch::partial(writer, entry, from)?,
            },
        };
        let file = LargeTarget {
            entry: entry.clone(),
            patch,
            is_writable,
            copied: OnceLock::new(),
            copying: Mutex::default(),
            has_content,
            has_failed: AtomicBool::new(false),
        };
        self.0.locked().insert(entry.path.clone(), Arc::new(file));
        Ok(has_content)
    }

    fn get(&self, path: &[u8]) -> Result<Arc<LargeTarget>> {
        let files = self.0.locked();
        files.get(path).cloned().ok_or_else(not_understood)
    }

    /// Compares blocks with digests. Answers with the numbers of those that differ.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn compare(
        &self,
        path: &[u8],
        offset: u64,
        len: u32,
        expected: &[u8],
    ) -> Result<CopyAnswer> {
        let file = self.get(path)?;
        let (expected, rest) = expected.as_chunks::<DIGEST_BYTES>();
        // These numbers come from the other end: they are checked before memory is taken.
        let is_valid = len <= MAX_COMPARED
            && rest.is_empty()
            && expected.len() == (len as usize).div_ceil(BLOCK);
        if !is_valid {
            return Err(not_understood());
        }
        let mut answer = CopyAnswer::default();
        let mut content = Vec::new();
        for (number, digests) in expected.chunks(BLOCKS_AT_ONCE).enumerate() {
            let first = number * BLOCKS_AT_ONCE;
            let skipped = first * BLOCK;
            content.resize((len as usize - skipped).min(BLOCKS_AT_ONCE * BLOCK), 0);
            let start = offset
                .checked_add(skipped as u64)
                .ok_or_else(not_understood)?;
            let differing = file.differing(start, &mut content, digests);
            let differing =
                differing.map_err(|e| Error::io(format!("could not read {}", quoted(path)), e))?;
            let differing = differing.into_iter();
            answer
                .wanted
                .extend(differing.map(|index| (first + index) as u32));
        }
        Ok(answer)
    }

    /// Writes pieces of a file.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write(
        &self,
        tree: &Arc<TargetTree>,
        path: &[u8],
        pieces: &[(u64, u32)],
        mut body: &[u8],
    ) -> Result<CopyAnswer> {
        let file = self.get(path)?;
        let mut writer = TargetWriter::new(tree);
        let patch = match file.written(&mut writer) {
            Ok(patch) => patch,
            Err(error) => {
                // `end` must not finish a file that lacks a piece.
                file.has_failed.store(true, Relaxed);
                return refused(path, error);
            }
        };
        for (offset, len) in pieces {
            let split = body.split_at_checked(*len as usize);
            let (piece, rest) = split.ok_or_else(not_understood)?;
            let end = offset.checked_add(u64::from(*len));
            if end.is_none_or(|end| end > file.entry.data_len()) {
                return Err(not_understood());
            }
            if let Err(error) = patch.write(&writer, &file.entry, *offset, piece) {
                file.has_failed.store(true, Relaxed);
                return refused(path, error);
            }
            body = rest;
        }
        Ok(CopyAnswer::default())
    }

    /// Completes a file, or gives it up if there is no `end`. The end is the size of a file that has
    /// shrunk since its header was made.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn end(
        &self,
        tree: &Arc<TargetTree>,
        path: &[u8],
        end: Option<Option<u64>>,
    ) -> Result<CopyAnswer> {
        let file = self.get(path)?;
        self.0.locked().remove(path);
        let shrunk = match end {
            Some(shrunk) if !file.has_failed.load(Relaxed) => shrunk,
            _ => return Ok(CopyAnswer::default()),
        };
        let entry = file.shrunk_entry(shrunk)?;
        let mut writer = TargetWriter::new(tree);
        match file.finish(&mut writer, &entry) {
            Ok(()) => Ok(CopyAnswer::default()),
            Err(error) => refused(path, error),
        }
    }

    /// Closes files that were not completed.
    pub(super) fn give_up_all(&self) {
        self.0.locked().clear();
    }
}

/// The answer for a file that the tree does not take; an error that concerns all files stays one.
fn refused(path: &[u8], error: Error) -> Result<CopyAnswer> {
    if !concerns_one_object(&error) {
        return Err(error);
    }
    let mut answer = CopyAnswer::default();
    answer.refused.add(path, error.line());
    Ok(answer)
}

impl LargeTarget {
    /// The numbers of the blocks of `content` that have other digests in the file at this offset.
    fn differing(
        &self,
        offset: u64,
        content: &mut [u8],
        expected: &[[u8; DIGEST_BYTES]],
    ) -> std::io::Result<Vec<usize>> {
        let got = self.patch.read(&self.entry, offset, content)?;
        let blocks: Vec<&[u8]> = content.chunks(BLOCK).collect();
        let found = digests(&blocks);
        let is_wanted = |index: &usize| {
            let end = (index + 1).saturating_mul(BLOCK).min(content.len());
            end > got || found[*index] != Digest::Blake3(expected[*index])
        };
        Ok((0..expected.len()).filter(is_wanted).collect())
    }

    /// Returns the file to write to: the one that is there, or a new one with its content.
    fn written(&self, writer: &mut TargetWriter) -> Result<&Patch> {
        if self.is_writable {
            return Ok(&self.patch);
        }
        let _copying = self.copying.locked();
        if let Some(copied) = self.copied.get() {
            return Ok(copied);
        }
        let (made, _) = Patch::partial(writer, &self.entry, None)?;
        let size = self.patch.stat().size;
        for run in self.entry.runs(0, self.entry.data_len()) {
            let len = run.len.min(size.saturating_sub(run.offset));
            let run = ByteRun { len, ..run };
            let copied = write::copy(self.patch.file(), made.file(), run);
            copied.map_err(|e| writer.tree.error("write", &self.entry.path, e))?;
        }
        Ok(self.copied.get_or_init(|| made))
    }

    /// Returns the entry with the size of a file that has shrunk.
    fn shrunk_entry(&self, shrunk: Option<u64>) -> Result<Entry> {
        let mut entry = self.entry.clone();
        let Some(size) = shrunk else {
            return Ok(entry);
        };
        if entry.is_sparse() || size > entry.size() {
            return Err(not_understood());
        }
        entry.kind = EntryKind::File { size, map: None };
        Ok(entry)
    }

    fn finish(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<()> {
        let is_unchanged = self.copied.get().is_none() && self.patch.stat().size == entry.size();
        let is_kept = !self.is_writable && is_unchanged && !entry.is_sparse();
        let patch = match is_kept {
            true => &self.patch,
            false => self.written(writer)?,
        };
        if self.has_content && entry.is_sparse() {
            let mut buffer = vec![0; BLOCK];
            let cleared = patch.clear_holes(entry, &mut buffer);
            cleared.map_err(|e| writer.tree.error("write", &entry.path, e))?;
        }
        patch.finish(writer, entry).map(drop)
    }
}
