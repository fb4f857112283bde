//! Existing files of a target: which of them a restore may replace.

use super::{
    plan::RestorePlan,
    request::{Restore, RestoreInto},
};
use fullbore_format::{
    entry::{EntryKind, EntryPath},
    error::{Error, ErrorKind, Result, quoted},
    page::PageItem,
    text::counted,
};
use fullbore_platform::{
    dir::{self, FileKind},
    queue::Locked,
};
use fullbore_repository::archive::{Archive, Selection};
use fullbore_tree::write::{layout::is_vacant, writer::TargetWriter};
use std::{collections::HashSet, ffi::OsStr, os::unix::ffi::OsStrExt, path::Path, sync::Mutex};

/// Which existing files a restore replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplacedFiles {
    Nothing,
    /// Those that are not newer than in the backup.
    Older,
    All,
}

/// The files of a target that stay because they are newer than in the backup.
pub(super) struct NewerFiles {
    is_kept: bool,
    /// Grows by a path a file.
    paths: Mutex<HashSet<EntryPath>>,
}

impl NewerFiles {
    pub(super) fn of(replaced: ReplacedFiles) -> Self {
        Self {
            is_kept: replaced == ReplacedFiles::Older,
            paths: Mutex::default(),
        }
    }

    /// Returns whether the target keeps its own file instead of this one. Asked for each part of a
    /// file, the first one before anything of it is written.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn keeps(&self, writer: &mut TargetWriter, item: &PageItem) -> Result<bool> {
        if !self.is_kept || !item.entry.is_file() {
            return Ok(false);
        }
        let path = &item.entry.path;
        if item.from > 0 {
            return Ok(self.paths.locked().contains(path));
        }
        let tree = writer.tree.clone();
        let (parent, name) = tree.places.split(path);
        let there = tree.open_dir(parent).and_then(|dir| dir::stat(&dir, name));
        let is_newer =
            there.is_ok_and(|there| there.kind == FileKind::File && there.mtime > item.entry.mtime);
        if is_newer {
            self.paths.locked().insert(path.clone());
        }
        Ok(is_newer)
    }

    /// The number of these files.
    pub(super) fn count(&self) -> u64 {
        self.paths.locked().len() as u64
    }

    /// A line about these files.
    pub(super) fn line(&self) -> Option<String> {
        let paths = self.paths.locked();
        let first = quoted(paths.iter().min()?);
        let files = counted(paths.len() as u64, "file");
        Some(format!(
            "{files} of the target kept, newer than in the backup, such as {first}; --overwrite=all replaces them, also those of a restore that was interrupted"
        ))
    }
}

impl Restore {
    /// Returns which files are replaced. Single PATHs may also go into a directory that is not
    /// empty, if nothing is there in their place.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if something is there; errors of pages, and of the system.
    pub(super) fn replaced_files(&self, plan: &RestorePlan) -> Result<ReplacedFiles> {
        let is_one = plan.rules.are_used_as_one();
        match self.into {
            RestoreInto::Delta { .. } | RestoreInto::Overwrite { newer: true } => {
                Ok(ReplacedFiles::All)
            }
            RestoreInto::Overwrite { newer: false } if is_one => Ok(ReplacedFiles::All),
            RestoreInto::Overwrite { newer: false } => Ok(ReplacedFiles::Older),
            RestoreInto::Empty if is_one || self.paths.is_empty() => Ok(ReplacedFiles::Nothing),
            RestoreInto::Empty if is_vacant(&plan.layout.root)? => Ok(ReplacedFiles::Nothing),
            RestoreInto::Empty => {
                self.check_nothing_there(&plan.archive, &plan.selection)?;
                // A file that another program makes meanwhile is newer, and stays.
                Ok(ReplacedFiles::Older)
            }
        }
    }

    fn check_nothing_there(&self, archive: &Archive, selection: &Selection) -> Result<()> {
        let mut first = None;
        let mut number = 0;
        for item in archive.records(selection, false) {
            let item = item?;
            if item.from == 0 && is_in_the_way(&self.to, &item) {
                number += 1;
                first.get_or_insert_with(|| quoted(&item.entry.path));
            }
        }
        let Some(first) = first else { return Ok(()) };
        let files = counted(number, "file");
        let message = format!("cannot restore to {:?}: {first} is there", self.to);
        let hint = format!(
            "choose another --to; --overwrite with the same PATHs replaces {files}, but no newer ones"
        );
        Err(Error::new(ErrorKind::Exists, message).hint(hint))
    }
}

/// Returns whether the target has an object that is not a directory on both sides.
fn is_in_the_way(to: &Path, item: &PageItem) -> bool {
    let there = to.join(OsStr::from_bytes(&item.entry.path));
    let is_directory = item.entry.kind == EntryKind::Directory;
    let there = there.symlink_metadata();
    there.is_ok_and(|there| !(is_directory && there.is_dir()))
}
