//! Opens small files of a tree before it is their turn, only to have them read into the page cache.

use super::TreeInner;
use crate::{
    frame::Scanned,
    platform::dir::{self, FileKind},
    source::OpenAhead,
};
use std::os::fd::OwnedFd;

impl OpenAhead for TreeInner {
    /// Only the regular file that the scan saw, in the file system of its directory. Waits for no lease and no other end of a pipe.
    fn open_ahead(&self, scanned: &Scanned) -> Option<OwnedFd> {
        let (dev, _) = scanned.home?;
        let (dir, rel) = self.locate(&scanned.entry.path)?;
        let fd = dir::open_at_once(dir, rel, self.rules.tricks).ok()?;
        let now = dir::stat_fd(&fd).ok()?;
        let is_same =
            now.kind == FileKind::File && now.dev == dev && now.inode == scanned.entry.inode;
        is_same.then_some(fd)
    }
}
