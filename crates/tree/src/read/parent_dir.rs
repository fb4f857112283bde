//! Opens files in the directory in which the scan found them, not by their paths.
//!
//! Renaming a directory changes nothing in its files. If another directory has the name by the time
//! the files are read, the files themselves do not show it, and the next backup would wrongly take
//! them for unchanged.

use super::TreeInner;
use fullbore_format::entry::{EntryPath, split};
use fullbore_pipeline::{frame::Scanned, known::Trust};
use fullbore_platform::{
    dir,
    uring::{self, OpenedFiles},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Device and inode of a directory.
pub(crate) type Object = (u64, u64);

/// The open directory of the files that a reader reads, found by its path.
#[derive(Default)]
pub(crate) struct ParentDir {
    path: Option<EntryPath>,
    /// `None` if the path could not be opened.
    found: Option<(OwnedFd, Object)>,
    /// The next files of the directory that are open already, in order.
    opened: OpenedFiles,
}

impl TreeInner {
    /// Opens the first of these files and those that follow it in its directory, with one call.
    /// A file that is not opened here is opened by itself.
    pub(super) fn open_together(&self, next: &[Scanned], current: &mut ParentDir) {
        let Some(first) = next.first().filter(|first| is_opened(first)) else {
            return;
        };
        // Files of the last call are still to be taken: a second call would open more than one
        // batch.
        if !current.opened.is_empty() || self.has_overlay() {
            return;
        }
        let (parent, _) = split(&first.entry.path);
        let together = next
            .iter()
            .take_while(|next| {
                is_opened(next) && next.home == first.home && split(&next.entry.path).0 == parent
            })
            .take(uring::BATCH);
        let paths: Vec<&[u8]> = together.map(|next| &next.entry.path[..]).collect();
        self.go_to(current, parent);
        let Some((dir, _)) = current
            .found
            .as_ref()
            .filter(|(_, object)| first.home == Some(*object))
        else {
            return;
        };
        current.opened = Self::with_ring(|ring| ring.open_together(dir.as_fd(), &paths));
    }

    /// Opens the directory `parent`, unless it is the one of the file before.
    fn go_to(&self, current: &mut ParentDir, parent: &[u8]) {
        if current.path.as_deref() == Some(parent) {
            return;
        }
        let next = ParentDir {
            path: Some(parent.to_vec()),
            found: self.enter(parent).ok(),
            opened: OpenedFiles::default(),
        };
        let last = std::mem::replace(current, next);
        if let Some((dir, _)) = last.found {
            self.close(dir);
        }
    }

    /// Opens a file that the scan found in the directory `home`. Returns whether the file was
    /// opened in that directory, not only by its path.
    pub(crate) fn open_in(
        &self,
        current: &mut ParentDir,
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
        if let Some(fd) = current.opened.take(path) {
            return Ok((fd, true));
        }
        let (parent, name) = split(path);
        // Without the directory of the scan there is nothing to compare with, so the path is opened
        // as it is.
        if home.is_some() {
            self.go_to(current, parent);
        }
        match &current.found {
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

/// Returns whether a file with this state is opened to read it.
fn is_opened(scanned: &Scanned) -> bool {
    let known = scanned.known.as_ref();
    scanned.entry.is_file()
        && scanned.state.is_stored()
        && scanned.home.is_some()
        && known.is_none_or(|known| known.trust != Trust::Same)
}
