//! Small files of a program that repairs only some of its files: the rest are as long as they are when they are read.
//!
//! One call for each of them. A large file is not looked at: its pieces were cut from the size of the scan.

use super::tree::Inner;
use crate::{
    format::entry::{Entry, Kind},
    platform::walk,
};
use std::os::fd::OwnedFd;

/// Bytes by which a small file may have grown since the scan if it is to be stored as it is now: frames were cut by then, and
/// memory counts on them. What grows faster is a log, and the beginning of one is what it was.
const MAX_GROWTH: u64 = 1 << 20;

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
}
