//! Files that are taken as they are when they are read, not as the scan saw them.
//!
//! Of a program that repairs only some of its files these are the rest, one call for each. Of any tree it is what was replaced since,
//! or grew or shrank: small files that turn out to have another length, and other names of a file whose first name leads to something
//! else by then, or to nothing. A large one cannot be taken so: its pieces were cut from the size of the scan.

use super::TreeInner;
use crate::{
    format::{
        entry::{Entry, EntryKind, Time},
        page::EntryState,
    },
    frame::LOST_LINK,
    platform::{
        dir::{self, FileKind, Stat},
        read,
    },
    queue::Locked,
};
use std::{io, os::fd::OwnedFd};

/// Bytes by which a small file may have grown since the scan if it is to be stored as it is now: frames were cut by then, and
/// memory counts on them. What grows faster is a log, and the beginning of one is what it was.
const MAX_GROWTH: u64 = 1 << 20;

/// Bytes that a frame may come to by files that are longer than they were, if it has not room for so many anyway.
const MAX_FIT: usize = 2 << 20;

/// What is said of a file that is not there any more, but another by its name, of another length.
pub(crate) const REPLACED: &str = "another file has its name since it was listed";

impl TreeInner {
    /// What nobody repairs is stored as long as it is now: another may have its name since the scan. Its inode and ctime stay
    /// those of the scan, so that the next backup reads it again.
    pub(crate) fn fit(&self, fd: &OwnedFd, entry: &mut Entry) {
        if !self.is_written(&entry.path) {
            return;
        }
        let Ok(now) = dir::stat_fd(fd) else { return };
        if now.size <= entry.size() + MAX_GROWTH {
            self.take(&now, entry);
        }
    }

    /// A directory that has the name of another since that was looked at is itself, not only its attributes are.
    pub(crate) fn take_after(&self, now: &Stat, entry: &mut Entry) {
        if now.inode != entry.inode {
            (entry.mtime, entry.ctime, entry.inode) = (now.mtime, now.ctime, now.inode);
            self.adopt(now, entry);
        }
    }

    /// The first name of a file leads to another one now, if `is_gone`, or to none.
    pub(crate) fn disown(&self, first: &Entry, is_gone: bool) {
        if is_gone && !self.is_plain() {
            self.orphaned.locked().insert(first.path.clone());
        }
    }

    /// Another name of a file whose first one is gone is a file of its own, if there is room for it. Is it one now?
    pub(crate) fn unlink(&self, entry: &mut Entry, room: u64) -> Result<bool, EntryState> {
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
        match self.refit(&now, entry, room) {
            true => Ok(true),
            false => Err(EntryState::Unreadable(LOST_LINK.to_owned())),
        }
    }

    /// A file was not as long as the scan said, and this is what it is now: is it as long as the system says? If not, and it
    /// stands still, it did not change: no size that the system says of it is to be believed.
    ///
    /// # Errors
    /// If it is not. What cannot be read to know it is none.
    pub(crate) fn check_size(&self, fd: &OwnedFd, now: &Stat) -> io::Result<()> {
        let (last, mut end) = (now.size.saturating_sub(1), Vec::new());
        let got = read::read_full(fd, &mut end, last, 2, self.cache(), self.rules.tricks);
        let is_wrong = got.is_ok_and(|got| got as u64 != now.size.min(1));
        let looks = |stat: &Stat| (stat.size, stat.mtime, stat.ctime);
        match is_wrong
            && self
                .now(fd)
                .is_some_and(|again| looks(&again) == looks(now))
        {
            true => Err(io::Error::other(
                "its size is not what the file system says",
            )),
            false => Ok(()),
        }
    }

    /// Have the entry be the file that is there `now`, if there is room for it. Its inode and ctime stay those of the scan, so that the
    /// next backup reads it again.
    pub(crate) fn refit(&self, now: &Stat, entry: &mut Entry, room: u64) -> bool {
        let fits = now.kind == FileKind::File && now.size <= room;
        if fits {
            self.take(now, entry);
        }
        fits
    }

    fn take(&self, now: &Stat, entry: &mut Entry) {
        entry.kind = EntryKind::File {
            size: now.size,
            map: None,
        };
        entry.mtime = now.mtime;
        self.adopt(now, entry);
    }
}

/// Bytes that a file may have which is longer than it was, in a frame of which so many are `used`.
pub(crate) fn room(buf: &Vec<u8>, used: usize) -> u64 {
    buf.capacity().max(MAX_FIT).saturating_sub(used) as u64
}

/// Is the open file, which is so `now`, another than the scan saw?
pub(crate) fn is_replaced(fd: &OwnedFd, now: &Stat, entry: &Entry, born: Option<Time>) -> bool {
    is_another(fd, now, (entry.inode, entry.ctime, born))
}

/// Is the open file, which is so `now`, another than that with this number, change and birth? Some file systems give a file a new
/// number each time, but not other times; and some give the number of a file that is gone to the next.
pub(crate) fn is_another(
    fd: &OwnedFd,
    now: &Stat,
    (inode, ctime, born): (u64, Time, Option<Time>),
) -> bool {
    let is_younger = now.born.zip(born).is_some_and(|(now, then)| now != then);
    (now.inode != inode || is_younger) && (now.ctime != ctime || dir::has_stable_inodes(fd))
}

/// Does what was read have other bytes than the scan saw? A file with holes may have others where it was replaced.
pub(crate) fn is_other(now: &Stat, entry: &Entry, replaced: bool, read: &io::Result<bool>) -> bool {
    match entry.is_sparse() {
        true => replaced,
        false => matches!(read, Ok(false)) && now.size != entry.size(),
    }
}

/// Bytes that are read before anybody is likely to write to them.
const AT_ONCE: u64 = 32 << 10;

/// Is a file to be looked at once more when it was read? On what is read at once, and is as long as it was at the scan, no call is
/// spent, where there are four in all: unless others may have put their own in its place, with the mode and owner of the one that the
/// scan saw. A longer one may have been written to between its pages, though one call reads all of it. With holes it is read here and
/// there, where the scan found data.
pub(crate) fn is_suspect(read: &io::Result<bool>, entry: &Entry) -> bool {
    matches!(read, Ok(false)) || entry.is_sparse() || entry.size() > AT_ONCE
}
