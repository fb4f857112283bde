//! Small files that are taken as they are when they are read, not as the scan saw them. A large one cannot be: its pieces were cut
//! from the size of the scan.
//!
//! Of a program that repairs only some of its files these are the rest, one call for each. Of any tree it is the other names of a
//! file whose first name led to something else by then, or to nothing.

use super::tree::Inner;
use crate::{
    format::{
        entry::{Entry, Kind},
        page::State,
    },
    frame::LOST_LINK,
    platform::walk,
};
use std::{os::fd::OwnedFd, sync::PoisonError};

/// Bytes by which a small file may have grown since the scan if it is to be stored as it is now: frames were cut by then, and
/// memory counts on them. What grows faster is a log, and the beginning of one is what it was.
const MAX_GROWTH: u64 = 1 << 20;

/// Bytes that a frame may come to by other names that become files.
const MAX_RESCUED: u64 = 2 << 20;

impl Inner {
    /// What nobody repairs is stored as long as it is now: another may have its name since the scan. Its inode and ctime stay
    /// those of the scan, so that the next backup reads it again.
    pub(super) fn fit(&self, fd: &OwnedFd, entry: &mut Entry) {
        if self.rules.overlay.as_ref().is_none_or(|overlay| overlay.repairs(&entry.path)) {
            return;
        }
        let Ok(now) = walk::stat_fd(fd) else { return };
        if now.size <= entry.size() + MAX_GROWTH {
            entry.kind = Kind::File { size: now.size, map: None };
            entry.mtime = now.mtime;
            self.adopt(&now, entry);
        }
    }

    /// The first name of a file leads to another one now, if `is_gone`, or to none.
    pub(super) fn disown(&self, first: &Entry, is_gone: bool) {
        if is_gone && !self.is_plain() {
            self.orphaned.lock().unwrap_or_else(PoisonError::into_inner).insert(first.path.clone());
        }
    }

    /// Another name of a file whose first one is gone is a file of its own, if there is room for it behind `used` bytes.
    pub(super) fn unlink(&self, entry: &mut Entry, used: usize) -> Result<(), State> {
        let Kind::HardLink(first) = &entry.kind else { return Ok(()) };
        if !self.orphaned.lock().unwrap_or_else(PoisonError::into_inner).contains(first) {
            return Ok(());
        }
        let now = self.open(&entry.path).and_then(|fd| walk::stat_fd(&fd)).map_err(|error| self.state_of(&error))?;
        if used as u64 + now.size > MAX_RESCUED {
            return Err(State::Unreadable(LOST_LINK.to_owned()));
        }
        entry.kind = Kind::File { size: now.size, map: None };
        entry.mtime = now.mtime;
        self.adopt(&now, entry);
        Ok(())
    }
}
