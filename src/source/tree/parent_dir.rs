//! Opens files in the directory in which the scan found them, not by their paths.
//!
//! Renaming a directory changes nothing in its files. If another directory has the name by the time
//! the files are read, the files themselves do not show it, and the next backup would wrongly take
//! them for unchanged.

use super::TreeInner;
use crate::{
    format::entry::{EntryPath, split},
    platform::dir,
};
use std::{io, os::fd::OwnedFd};

/// Device and inode of a directory.
pub(crate) type Object = (u64, u64);

/// The open directory of the files that a reader reads, found by its path.
#[derive(Default)]
pub(crate) struct ParentDir {
    path: Option<EntryPath>,
    /// `None` if the path could not be opened.
    found: Option<(OwnedFd, Object)>,
}

impl TreeInner {
    /// Opens a file that the scan found in the directory `home`. Returns whether the file was
    /// opened in that directory, not only by its path.
    pub(crate) fn open_in(
        &self,
        at: &mut ParentDir,
        path: &[u8],
        home: Option<Object>,
    ) -> io::Result<(OwnedFd, bool)> {
        if let Some(opened) = self
            .rules
            .overlay
            .as_ref()
            .and_then(|overlay| overlay.open(path))
        {
            return opened.map(|fd| (fd, true));
        }
        let (parent, name) = split(path);
        if home.is_some() && at.path.as_deref() != Some(parent) {
            let next = ParentDir {
                path: Some(parent.to_vec()),
                found: self.enter(parent).ok(),
            };
            let last = std::mem::replace(at, next);
            if let Some((dir, _)) = last.found {
                self.close(dir);
            }
        }
        match &at.found {
            Some((dir, object)) if home == Some(*object) => Ok((dir::open_read(dir, name)?, true)),
            _ => Ok((self.open(path)?, false)),
        }
    }

    fn enter(&self, path: &[u8]) -> io::Result<(OwnedFd, Object)> {
        let (dir, rel) = self.locate(path).ok_or(io::ErrorKind::NotFound)?;
        let dir = dir::open_dir(dir, rel)?;
        let found = dir::stat_fd(&dir)?;
        Ok((dir, (found.dev, found.inode)))
    }
}
