//! The file that is put in place last. While it is missing, the tree is recognizably incomplete.
//!
//! The restore writes it under another name in its directory. When everything else is durable, the
//! file is renamed and its directory is synced (rule 34 for `pg_control`). An interrupted restore
//! leaves a tree without the file.

use super::tree::TargetTree;
use fullbore_format::{
    entry::{self, EntryPath},
    error::Result,
};
use fullbore_platform::{
    dir::{open_dir, stat, stat_fd},
    durable, write,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Name of the file until it is put in place.
pub const UNFINISHED: &[u8] = b".fullbore-unfinished";

/// A file that completes the tree, such as `pg_control`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalFile {
    pub path: EntryPath,
    /// A second path that must exist; otherwise the file is removed.
    pub only_with: Option<EntryPath>,
}

/// Result of [`TargetTree::place_final_file`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalPlaced {
    /// The file is in place.
    Done,
    /// The file does not exist: it was not requested, or it is damaged.
    Missing,
    /// The file was removed because the path that it depends on is missing.
    Withheld,
    /// The file keeps its temporary name because the tree may be incomplete.
    Kept,
}

impl TargetTree {
    /// Removes an earlier copy of the final file before anything else changes.
    pub(crate) fn remove_earlier_final(&self) -> Result<()> {
        let Some(last) = &self.places.last else {
            return Ok(());
        };
        let paths = [Some(&last.path), last.only_with.as_ref()];
        for path in paths.into_iter().flatten() {
            let Some(dir) = self.parent_if_there(path)? else {
                continue;
            };
            let failed = self.failed("remove", path);
            for name in [entry::split(path).1, UNFINISHED] {
                ignore_missing(write::unlink_at(&dir, name)).map_err(failed)?;
            }
            durable::sync_dir(&dir).map_err(failed)?;
        }
        Ok(())
    }

    /// Puts the final file in place if `is_whole`. Everything else must be durable already.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn place_final_file(&self, is_whole: bool) -> Result<FinalPlaced> {
        let Some(last) = &self.places.last else {
            return Ok(FinalPlaced::Missing);
        };
        let Some(dir) = self.parent_if_there(&last.path)? else {
            return Ok(FinalPlaced::Missing);
        };
        let failed = self.failed("put in place", &last.path);
        if !exists(&dir, UNFINISHED).map_err(failed)? {
            return Ok(FinalPlaced::Missing);
        }
        let may = last
            .only_with
            .as_ref()
            .map_or(Ok(true), |path| self.is_there(path))?;
        if may && !is_whole {
            return Ok(FinalPlaced::Kept);
        }
        // The directory has its final time already, and the rename would change it.
        let mtime = stat_fd(&dir).map_err(failed)?.mtime;
        if may {
            write::rename_at(&dir, UNFINISHED, &dir, entry::split(&last.path).1).map_err(failed)?;
        } else {
            // The file that this one belongs to is not there: the final file would make a server
            // start on half a cluster.
            write::unlink_at(&dir, UNFINISHED).map_err(failed)?;
        }
        write::set_times_fd(&dir, mtime).map_err(failed)?;
        durable::sync_dir(&dir).map_err(failed)?;
        Ok(if may {
            FinalPlaced::Done
        } else {
            FinalPlaced::Withheld
        })
    }

    /// Returns whether an object exists at `path`.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn is_there(&self, path: &[u8]) -> Result<bool> {
        let Some(dir) = self.parent_if_there(path)? else {
            return Ok(false);
        };
        exists(&dir, entry::split(path).1).map_err(|e| self.error("look at", path, e))
    }

    fn parent_if_there(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        let (place, rest) = self.places.resolve(entry::split(path).0);
        match open_dir(&place.dir, rest) {
            Ok(dir) => Ok(Some(dir)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.error("open the directory of", path, e)),
        }
    }
}

fn exists(dir: impl AsFd, name: &[u8]) -> io::Result<bool> {
    match stat(dir, name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other.map(|_| true),
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
