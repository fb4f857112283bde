//! The file that is put in place last: while it is missing, nobody takes the tree for complete.
//!
//! It is written under another name in its directory. When everything is durable it is renamed, and the directory made
//! durable too (rule 34 for `pg_control`). A restore that ends before that leaves a tree without it.

use super::tree::TargetTree;
use crate::{
    error::Result,
    format::entry::{self, EntryPath},
    platform::{
        dir::{open_dir, stat, stat_fd},
        write,
    },
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// What it is called until then.
pub const UNFINISHED: &[u8] = b".fullbore-unfinished";

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalFile {
    /// Where it is.
    pub path: EntryPath,
    /// It is put in place only if this is there too.
    pub only_with: Option<EntryPath>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalPlaced {
    /// It is in place.
    Done,
    /// There is none: it was not wanted, or is damaged.
    Missing,
    /// It was removed, as what it must not be without is not there.
    Withheld,
    /// It keeps its other name, as something else may be missing.
    Kept,
}

impl TargetTree {
    /// An earlier one of them is no longer in place before anything else changes.
    pub(crate) fn displace_last(&self) -> Result<()> {
        let Some(last) = &self.places.last else {
            return Ok(());
        };
        let paths = [Some(&last.path), last.only_with.as_ref()];
        for path in paths.into_iter().flatten() {
            let Some(dir) = self.parent_if_there(path)? else {
                continue;
            };
            let failed = |e| self.error("remove", path, e);
            for name in [entry::split(path).1, UNFINISHED] {
                ignore_missing(write::unlink_at(&dir, name)).map_err(failed)?;
            }
            write::fsync(&dir).map_err(failed)?;
        }
        Ok(())
    }

    /// Put the last file in place, if all of the tree is there; everything else must be durable.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn put_last(&self, is_whole: bool) -> Result<FinalPlaced> {
        let Some(last) = &self.places.last else {
            return Ok(FinalPlaced::Missing);
        };
        let Some(dir) = self.parent_if_there(&last.path)? else {
            return Ok(FinalPlaced::Missing);
        };
        let failed = |e| self.error("put in place", &last.path, e);
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
        let mtime = stat_fd(&dir).map_err(failed)?.mtime;
        if may {
            write::rename_at(&dir, UNFINISHED, &dir, entry::split(&last.path).1).map_err(failed)?;
        } else {
            write::unlink_at(&dir, UNFINISHED).map_err(failed)?;
        }
        write::set_times_fd(&dir, mtime).map_err(failed)?;
        write::fsync(&dir).map_err(failed)?;
        Ok(if may {
            FinalPlaced::Done
        } else {
            FinalPlaced::Withheld
        })
    }

    /// Is there anything at `path`?
    ///
    /// # Errors
    /// The system's, with the path.
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
