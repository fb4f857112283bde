//! Lists what a restore would create and change. Nothing is written, and no content is read.

use super::{Restore, checks::check_paths_exist, cluster::choose_backup};
use crate::{
    error::{Error, Result},
    format::entry::{Entry, EntryKind, EntryPath},
};
use std::{
    ffi::OsStr,
    fs::{self, Metadata},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::Path,
};

/// How an entry of the backup differs from the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviewChange {
    /// The target does not have it.
    Create,
    /// The target has another kind, size, time, mode or link.
    Change,
}

/// Numbers of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PreviewTotals {
    /// Entries that the target does not have.
    pub created: u64,
    /// Entries that differ.
    pub changed: u64,
    /// Entries that look the same.
    pub same: u64,
}

impl Restore {
    /// Compares the backup with the target by size, time and mode, and calls `say` for each difference, in archive order.
    ///
    /// # Errors
    /// Those of opening the backup and reading its pages, of the target, and of `say`.
    pub fn preview(
        &self,
        say: &mut dyn FnMut(PreviewChange, &EntryPath) -> Result<()>,
    ) -> Result<PreviewTotals> {
        let archive = choose_backup::open_chosen(self, true)?;
        let selection = self.selection(&archive)?;
        check_paths_exist(&archive, &selection, self.keep_going)?;
        let mut totals = PreviewTotals::default();
        for item in archive.records(&selection, false) {
            let item = item?;
            if item.more || !item.state.is_stored() && item.entry.is_file() {
                continue;
            }
            let path = &item.entry.path;
            match difference(&self.to, &item.entry)? {
                Some(change) => {
                    match change {
                        PreviewChange::Create => totals.created += 1,
                        PreviewChange::Change => totals.changed += 1,
                    }
                    say(change, path)?;
                }
                None => totals.same += 1,
            }
        }
        Ok(totals)
    }
}

fn difference(target: &Path, entry: &Entry) -> Result<Option<PreviewChange>> {
    let path = target.join(OsStr::from_bytes(&entry.path));
    let there = match fs::symlink_metadata(&path) {
        Ok(there) => there,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Some(PreviewChange::Create));
        }
        Err(error) => return Err(Error::io(format!("could not look at {path:?}"), error)),
    };
    let is_same = is_kind(&there, &path, &entry.kind) && has_metadata(&there, entry);
    Ok((!is_same).then_some(PreviewChange::Change))
}

fn is_kind(there: &Metadata, path: &Path, kind: &EntryKind) -> bool {
    let found = there.file_type();
    match kind {
        EntryKind::File { .. } | EntryKind::HardLink(_) => found.is_file(),
        EntryKind::Directory => found.is_dir(),
        EntryKind::Symlink(target) => {
            found.is_symlink()
                && fs::read_link(path).is_ok_and(|link| link.as_os_str().as_bytes() == target)
        }
        EntryKind::Fifo => found.is_fifo(),
        EntryKind::CharDevice(_) => found.is_char_device(),
        EntryKind::BlockDevice(_) => found.is_block_device(),
        // Sockets are not restored.
        EntryKind::Socket => true,
    }
}

/// Compares size, time and mode, where the kind has them.
fn has_metadata(there: &Metadata, entry: &Entry) -> bool {
    match &entry.kind {
        EntryKind::Symlink(_) | EntryKind::Socket => return true,
        // Its record has neither size nor time of the file.
        EntryKind::HardLink(_) => return there.nlink() > 1,
        _ => {}
    }
    let has_mode = there.mode() & 0o7777 == entry.mode & 0o7777;
    if !entry.is_file() {
        return has_mode;
    }
    let has_time =
        there.mtime() == entry.mtime.seconds && there.mtime_nsec() == i64::from(entry.mtime.nanos);
    has_mode && has_time && there.len() == entry.size()
}
