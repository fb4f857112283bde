//! Opens small files of a tree before they are read, only to have them brought into the page cache.

use super::inner::TreeInner;
use fullbore_pipeline::{frame::Scanned, source::OpenAhead};
use fullbore_platform::dir::{self, FileKind};
use std::os::fd::OwnedFd;

impl OpenAhead for TreeInner {
    /// Opens only the regular file that the scan found, in the file system of its directory. Does
    /// not wait for a lease or for the other end of a pipe.
    fn open_ahead(&self, scanned: &Scanned) -> Option<OwnedFd> {
        let (dev, _) = scanned.home?;
        let (dir, rel) = self.locate(&scanned.entry.path)?;
        let fd = dir::open_at_once(dir, rel).ok()?;
        let now = dir::stat_fd(&fd).ok()?;
        let is_same =
            now.kind == FileKind::File && now.dev == dev && now.inode == scanned.entry.inode;
        is_same.then_some(fd)
    }
}
