//! Writes members of a copy: each is made, or left out if the tree refuses it alone.

use super::{
    call::{BLOCK, CopyAnswer, DIGEST_BYTES, not_understood},
    options::LARGE_FILE,
};
use crate::report::skipped::concerns_one_object;
use fullbore_format::{
    digest::{Digest, digests},
    entry::{Entry, EntryKind, split},
    error::{Error, Result},
};
use fullbore_platform::{
    queue::Locked,
    uring::{BATCH, OpenedFiles},
};
use fullbore_tree::write::{
    deferred_dirs::DeferredDirs, in_place::Patch, tree::TargetTree, writer::TargetWriter,
};
use std::{
    fs::File,
    sync::{Arc, Mutex},
};

/// Bytes of a file that is compared as a whole: it is small where it was read, and may have grown.
const MAX_SMALL: u64 = 2 * LARGE_FILE as u64;

/// Writers that no question uses, and the directories that get their metadata at the end. A writer
/// keeps its directory open, where the next question often goes on.
#[derive(Default)]
pub(super) struct WriterPool {
    idle: Mutex<Vec<TargetWriter>>,
    directories: Mutex<DeferredDirs>,
}

impl WriterPool {
    fn take(&self, tree: &Arc<TargetTree>) -> TargetWriter {
        let idle = self.idle.locked().pop();
        idle.unwrap_or_else(|| TargetWriter::new(tree))
    }

    /// Has all idle writers leave their directories.
    pub(super) fn leave_directories(&self) {
        let mut idle = self.idle.locked();
        idle.iter_mut().for_each(TargetWriter::leave);
    }

    pub(super) fn take_directories(&self) -> DeferredDirs {
        std::mem::take(&mut *self.directories.locked())
    }
}

/// Writes members for one question.
pub(super) struct MemberWriter<'a> {
    pub(super) writer: TargetWriter,
    pool: &'a WriterPool,
    pub(super) answer: CopyAnswer,
    /// The next files to compare that are open already, in order.
    opened: OpenedFiles,
}

impl Drop for MemberWriter<'_> {
    fn drop(&mut self) {
        let new = TargetWriter::new(&self.writer.tree);
        let mut writer = std::mem::replace(&mut self.writer, new);
        writer.close_waiting();
        self.pool.idle.locked().push(writer);
    }
}

impl<'a> MemberWriter<'a> {
    pub(super) fn new(tree: &Arc<TargetTree>, pool: &'a WriterPool) -> Self {
        Self {
            writer: pool.take(tree),
            pool,
            answer: CopyAnswer::default(),
            opened: OpenedFiles::default(),
        }
    }

    pub(super) fn answer(mut self) -> CopyAnswer {
        std::mem::take(&mut self.answer)
    }

    /// Makes an entry in the place of any older one.
    pub(super) fn put(&mut self, entry: &Entry, content: &[u8]) -> Result<()> {
        let made = match &entry.kind {
            EntryKind::File { .. } => self.writer.file(entry, content),
            EntryKind::Directory => self.directory(entry),
            EntryKind::HardLink(_) | EntryKind::Socket => Err(not_understood()),
            _ => self.writer.special_file(entry),
        };
        self.unless_refused(&entry.path, made).map(drop)
    }

    fn directory(&mut self, entry: &Entry) -> Result<()> {
        self.writer.directory(entry, true)?;
        let target = &self.writer.tree;
        self.pool.directories.locked().insert(entry, target)
    }

    /// Returns the value, or `None` if the tree refuses this one entry.
    pub(super) fn unless_refused<T>(&mut self, path: &[u8], done: Result<T>) -> Result<Option<T>> {
        match done {
            Err(error) if concerns_one_object(&error) => {
                self.answer.refused.add(path, error.line());
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    /// Notes that an entry is wanted, unless it is done.
    pub(super) fn note(&mut self, at: usize, path: &[u8], is_done: Result<bool>) -> Result<()> {
        if self.unless_refused(path, is_done)? == Some(false) {
            self.answer.wanted.push(at as u32);
        }
        Ok(())
    }

    /// Returns the file of this entry if it may keep its content.
    fn kept_file(&mut self, entry: &Entry) -> Result<Option<Patch>> {
        if !entry.is_file() {
            return Err(not_understood());
        }
        let patch = Patch::open_any(&mut self.writer, entry)?;
        Ok(patch.filter(|patch| patch.stat().size == entry.size()))
    }

    /// Gives a file its metadata. Returns false if it cannot be this file.
    pub(super) fn describe(&mut self, entry: &Entry) -> Result<bool> {
        match self.kept_file(entry)? {
            Some(patch) => patch.finish(&mut self.writer, entry).map(|_| true),
            None => Ok(false),
        }
    }

    /// Opens the files to compare that follow each other in one directory, with one call. The first
    /// is the next one.
    pub(super) fn open_together(&mut self, next: &[(Entry, bool)]) {
        let Some((first, _)) = next.first().filter(|_| self.opened.is_empty()) else {
            return;
        };
        let (parent, _) = split(&first.path);
        let follows = |next: &&(Entry, bool)| {
            let (entry, is_listed) = next;
            *is_listed && !entry.is_sparse() && split(&entry.path).0 == parent
        };
        let together = next.iter().take_while(follows).take(BATCH);
        let paths: Vec<&[u8]> = together.map(|(entry, _)| &entry.path[..]).collect();
        self.opened = self.writer.open_together(&paths);
    }

    /// As [`Self::describe`], if the content of the file has this digest. `is_listed` if its
    /// metadata is that of the entry already.
    pub(super) fn take_if_same(
        &mut self,
        entry: &Entry,
        is_listed: bool,
        digest: &[u8; DIGEST_BYTES],
        content: &mut Vec<u8>,
    ) -> Result<bool> {
        let len = entry.data_len();
        // The other end sends the entry: its length is checked before memory is taken.
        if len > MAX_SMALL || !entry.is_file() {
            return Err(not_understood());
        }
        let is_same = |content: &[u8]| digests(&[content]) == [Digest::Blake3(*digest)];
        let opened = self.opened.take(&entry.path).map(File::from);
        if !self.writer.tree.syncs_each_file()
            && let Some(file) = self
                .writer
                .read_if_described(entry, is_listed, opened, content)?
        {
            self.writer.close(file.into());
            return Ok(is_same(content));
        }
        let Some(patch) = self.kept_file(entry)? else {
            return Ok(false);
        };
        if entry.is_sparse() && !patch.may_write() {
            return Ok(false);
        }
        content.resize(len as usize, 0);
        let failed = |e| Error::io(format!("could not read {:?}", name(entry)), e);
        let got = patch.read(entry, 0, content).map_err(failed)?;
        if got as u64 != len || !is_same(content) {
            return Ok(false);
        }
        let mut buffer = vec![0; if entry.is_sparse() { BLOCK } else { 0 }];
        patch.clear_holes(entry, &mut buffer).map_err(failed)?;
        patch.finish(&mut self.writer, entry).map(|_| true)
    }
}

fn name(entry: &Entry) -> String {
    String::from_utf8_lossy(&entry.path).into_owned()
}
