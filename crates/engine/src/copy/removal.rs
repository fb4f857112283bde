//! Removal from the tree that is written. It exists only if this side allows `--delete`.

use super::{
    budget::DeletionBudget,
    call::{OpenTarget, not_allowed, read_paths},
    members::MemberWriter,
    rules::{CopyRules, LeftOutPatterns},
    sources::is_of_copy,
};
use fullbore_format::{
    entry::{EntryPath, split},
    error::{Error, Result},
};
use fullbore_platform::dir::{self, is_lost_and_found};
use fullbore_tree::{
    read::SourceTree,
    write::{partial::is_partial, tree::TargetTree},
};
use std::{os::fd::OwnedFd, path::Path, sync::Arc};

/// Removes paths that no rule of this side leaves out, and no more than its limit allows.
pub(super) struct TreeRemoval {
    rules: CopyRules,
    patterns: LeftOutPatterns,
    pub(super) budget: DeletionBudget,
    /// The tree, for marks in its directories.
    marks: SourceTree,
    root: OwnedFd,
    device: u64,
    /// The names in the root that belong to the copy; `None` if all do.
    only: Option<Vec<EntryPath>>,
}

impl TreeRemoval {
    /// # Errors
    /// The system's.
    pub(super) fn open(root: &Path, opened_as: &OpenTarget) -> Result<Self> {
        let failed = |e| Error::io(format!("could not open {root:?}"), e);
        let rules = opened_as.deletion_rules();
        let dir = dir::open_root(root).map_err(failed)?;
        Ok(Self {
            patterns: rules.patterns()?,
            budget: DeletionBudget::new(opened_as.limit),
            marks: rules.open(root, Arc::default())?,
            device: dir::stat_fd(&dir).map_err(failed)?.dev,
            root: dir,
            only: rules.only(),
            rules,
        })
    }

    /// Removes the paths in `body`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if a rule leaves one of them out, or
    /// if they are more than the limit allows: then none is removed. An error that concerns all.
    pub(super) fn remove(
        &self,
        tree: &Arc<TargetTree>,
        members: &mut MemberWriter<'_>,
        body: &[u8],
    ) -> Result<()> {
        read_paths(body)?.try_for_each(|path| self.check(path?))?;
        let is_whole = self.rules.removes_whole_directories();
        let mut entries = 0_u64;
        for path in read_paths(body)? {
            entries = entries.saturating_add(self.entries_at(tree, path?, is_whole));
        }
        self.budget.take(entries)?;
        for path in read_paths(body)? {
            let path = path?;
            let removed = match is_whole {
                true => tree.remove_all(path),
                false => unless_in_use(members.writer.remove(path)),
            };
            members.unless_refused(path, removed)?;
        }
        Ok(())
    }

    /// Returns the number of entries that a removal of `path` takes. Unfinished files of a copy do
    /// not count, as on the other side.
    fn entries_at(&self, tree: &TargetTree, path: &[u8], is_whole: bool) -> u64 {
        tree.count_entries(path, is_whole, |path| !is_partial(path))
    }

    /// Counts a file that is about to lose its name `from`.
    ///
    /// # Errors
    /// As [`DeletionBudget::take`].
    pub(super) fn begin_rename(&self, tree: &TargetTree, from: &[u8]) -> Result<()> {
        self.budget.take(self.entries_at(tree, from, false))
    }

    /// Gives back what [`Self::begin_rename`] counted if the file kept its name.
    pub(super) fn end_rename(&self, tree: &TargetTree, from: &[u8]) {
        if self.entries_at(tree, from, false) > 0 {
            self.budget.give_back();
        }
    }

    /// Checks that this path may be removed, or given another name.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if a rule leaves it out, or if it
    /// belongs to the file system.
    pub(super) fn check(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = split(path);
        let parent_dir = dir::open_dir(&self.root, parent);
        let is_beyond = |dir: &OwnedFd| self.is_beyond(dir, path);
        let is_kept = self.patterns.may_leave_out(path)
            || !is_of_copy(self.only.as_deref(), path)
            || self.is_below_mark(path)
            || parent_dir.is_ok_and(|dir| is_beyond(&dir) || is_lost_and_found(&dir, name));
        match is_kept {
            true => Err(not_allowed()),
            false => Ok(()),
        }
    }

    fn is_below_mark(&self, path: &[u8]) -> bool {
        if !self.rules.files.has_marks() {
            return false;
        }
        if self.only.is_none() {
            return self.marks.leaves_out(path, false);
        }
        // As in a scan, a named directory is looked into even if it is marked.
        let slashes = (0..path.len()).filter(|offset| path[*offset] == b'/');
        { slashes.skip(1) }.any(|slash| self.marks.exclusion_mark_at(&path[..slash]).is_some())
    }

    /// Returns whether a directory is on another file system than the one above `path` that belongs
    /// to the copy, and therefore left out.
    fn is_beyond(&self, dir: &OwnedFd, path: &[u8]) -> bool {
        if !self.rules.files.one_file_system {
            return false;
        }
        let (first, _) = split_first(path);
        let device = match self.only {
            Some(_) => dir::stat(&self.root, first).map_or(self.device, |top| top.dev),
            None => self.device,
        };
        dir::stat_fd(dir).is_ok_and(|now| now.dev != device)
    }
}

/// Splits a path behind its first name.
fn split_first(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().position(|byte| *byte == b'/');
    path.split_at(slash.unwrap_or(path.len()))
}

/// A directory that is not empty holds something that was left out.
fn unless_in_use(removed: Result<()>) -> Result<()> {
    use std::io::ErrorKind::{DirectoryNotEmpty, NotFound};
    match removed {
        Err(error)
            if error
                .system()
                .is_some_and(|e| matches!(e.kind(), DirectoryNotEmpty | NotFound)) =>
        {
            Ok(())
        }
        removed => removed,
    }
}
