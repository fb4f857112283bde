//! Where files are opened: in the directory that the scan found them in, not by their paths.
//!
//! To rename a directory changes nothing of the files in it. So if another has its name by the time they are read, neither they
//! nor the others tell, and the next backup would take the one for the other, unread.

use super::TreeInner;
use crate::{
    format::entry::{EntryPath, split},
    platform::dir,
};
use std::{io, os::fd::OwnedFd};

/// Device and inode of a directory.
pub(crate) type Object = (u64, u64);

/// The directory whose files a reader reads, open, as it was found by its path.
#[derive(Default)]
pub(crate) struct Home {
    path: Option<EntryPath>,
    /// `None` if nothing could be opened by that path.
    found: Option<(OwnedFd, Object)>,
}

impl TreeInner {
    /// Open a file for reading that the scan found in the directory `home`. Was that it, or only of its name?
    pub(crate) fn open_in(
        &self,
        at: &mut Home,
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
            *at = Home {
                path: Some(parent.to_vec()),
                found: self.enter(parent).ok(),
            };
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
