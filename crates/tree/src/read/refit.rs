//! Stores files as they are when they are read, if they differ from the scan.
//!
//! This applies to files of a program that does not repair them, at one more call each. It applies
//! in any tree to small files that were replaced or have another length, and to further names of a
//! file whose first name is gone or leads to another file. A large file cannot be refitted: its
//! pieces were cut by the size of the scan.

use super::TreeInner;
use fullbore_format::{
    entry::{Entry, EntryKind, Time},
    page::EntryState,
};
use fullbore_pipeline::frame::LOST_LINK;
use fullbore_platform::{
    dir::{self, FileKind, Stat},
    queue::Locked,
    read,
};
use std::{io, os::fd::OwnedFd};

/// Bytes by which a small file may have grown since the scan to be stored in its new length. Frames
/// were already cut, and memory depends on them. A file that grows faster is a log, whose beginning
/// stays the same.
const MAX_GROWTH: u64 = 1 << 20;

/// Limit for a frame with files that are longer than in the scan, unless it has more room anyway.
const MAX_FIT: usize = 2 << 20;

/// Reason for a file that was replaced by one of another length.
pub(crate) const REPLACED: &str = "another file replaced it during the backup";

impl TreeInner {
    /// Adjusts the entry to the present length of a file that the program does not repair. Inode
    /// and ctime stay those of the scan, so that the next backup reads the file again.
    pub(crate) fn fit_to_present(&self, fd: &OwnedFd, entry: &mut Entry) {
        if !self.is_unrepaired(&entry.path) {
            return;
        }
        let Ok(now) = dir::stat_fd(fd) else { return };
        if now.size <= entry.size() + MAX_GROWTH {
            self.set_present_state(&now, entry);
        }
    }

    /// Updates the entry of a directory that was replaced since the scan, not only its attributes.
    pub(crate) fn update_replaced_dir(&self, now: &Stat, entry: &mut Entry) {
        if now.inode != entry.inode {
            (entry.mtime, entry.ctime, entry.inode) = (now.mtime, now.ctime, now.inode);
            self.update_owner(now, entry);
        }
    }

    /// Records that the first name of a file is gone or leads to another file.
    pub(crate) fn orphan_links(&self, first: &Entry, is_gone: bool) {
        if is_gone && !self.has_overlay() {
            self.orphaned.locked().insert(first.path.clone());
        }
    }

    /// Turns a further name of a file into a file of its own, if its first name is gone and the
    /// frame has room. Returns whether it did.
    pub(crate) fn unlink_orphan(&self, entry: &mut Entry, room: u64) -> Result<bool, EntryState> {
        let EntryKind::HardLink(first) = &entry.kind else {
            return Ok(false);
        };
        if !self.orphaned.locked().contains(first) {
            return Ok(false);
        }
        let now = self
            .open(&entry.path)
            .and_then(|fd| dir::stat_fd(&fd))
            .map_err(|error| self.state_of(&error))?;
        if self.refit(&now, entry, room) {
            Ok(true)
        } else {
            Err(EntryState::Unreadable(LOST_LINK.to_owned()))
        }
    }

    /// Checks a file that had another length than in the scan: can it be read up to its size? If
    /// not, and if it does not change meanwhile, the size that the file system reports is wrong.
    ///
    /// # Errors
    /// If the size is wrong. A failed read is not an error here.
    pub(crate) fn check_size(&self, fd: &OwnedFd, now: &Stat) -> io::Result<()> {
        let last = now.size.saturating_sub(1);
        let mut end = Vec::new();
        let got = read::read_full(fd, &mut end, last, 2, self.cache());
        let is_wrong = got.is_ok_and(|got| got as u64 != now.size.min(1));
        match is_wrong
            && self
                .now(fd)
                .is_some_and(|again| appearance(&again) == appearance(now))
        {
            true => Err(io::Error::other(
                "its size differs from the size that the file system reports",
            )),
            false => Ok(()),
        }
    }

    /// Sets the entry to the present state of the file, if the frame has room for it. Inode and
    /// ctime stay those of the scan, so that the next backup reads the file again.
    pub(crate) fn refit(&self, now: &Stat, entry: &mut Entry, room: u64) -> bool {
        let fits = now.kind == FileKind::File && now.size <= room;
        if fits {
            self.set_present_state(now, entry);
        }
        fits
    }

    fn set_present_state(&self, now: &Stat, entry: &mut Entry) {
        entry.kind = EntryKind::File {
            size: now.size,
            map: None,
        };
        entry.mtime = now.mtime;
        self.update_owner(now, entry);
    }
}

fn appearance(stat: &Stat) -> (u64, Time, Time) {
    (stat.size, stat.mtime, stat.ctime)
}

/// Returns the bytes that a file may have which is longer than in the scan, in a frame with `used`
/// bytes.
pub(crate) fn room(buf: &Vec<u8>, used: usize) -> u64 {
    buf.capacity().max(MAX_FIT).saturating_sub(used) as u64
}

/// Returns whether the open file, with the attributes `now`, is another file than in the scan.
pub(crate) fn is_replaced(fd: &OwnedFd, now: &Stat, entry: &Entry, born: Option<Time>) -> bool {
    is_different_file(fd, now, (entry.inode, entry.ctime, born))
}

/// Returns whether the open file, with the attributes `now`, is another file than that with this
/// inode, ctime and creation time.
///
/// Some file systems change the inode number at each lookup, but not the times. Some give the
/// number of a removed file to the next one.
pub(crate) fn is_different_file(
    fd: &OwnedFd,
    now: &Stat,
    (inode, ctime, born): (u64, Time, Option<Time>),
) -> bool {
    let is_younger = now
        .born
        .zip(born)
        .is_some_and(|(now, earlier)| now != earlier);
    (now.inode != inode || is_younger) && (now.ctime != ctime || dir::has_stable_inodes(fd))
}

/// Returns whether the read data lacks bytes of a file whose size differs from the scan. For a file
/// with holes, returns whether it was replaced.
pub(crate) fn content_length_differs(
    now: &Stat,
    entry: &Entry,
    replaced: bool,
    read: &io::Result<bool>,
) -> bool {
    if entry.is_sparse() {
        replaced
    } else {
        matches!(read, Ok(false)) && now.size != entry.size()
    }
}

/// Bytes that are read before another program is likely to write to them.
const AT_ONCE: u64 = 32 << 10;

/// Returns whether a file must be checked again after it was read.
///
/// A file of up to [`AT_ONCE`] bytes with the expected length needs no check, which would be a
/// fifth call for four. A longer file may change while its pages are read, even with one call. A
/// file with holes is read in several places.
pub(crate) fn needs_recheck(read: &io::Result<bool>, entry: &Entry) -> bool {
    matches!(read, Ok(false)) || entry.is_sparse() || entry.size() > AT_ONCE
}
