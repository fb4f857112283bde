//! The objects in a directory: reads the attributes of each name, and decides whether it is
//! delivered.

use super::{
    Top, TopRole, TreeInner,
    listing::{Child, LATEST_TIME, ListingState, is_directory},
    refit::is_different_file,
};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, Owner, SparseMap, join, split},
    page::EntryState,
    pax,
};
use fullbore_pipeline::frame::Scanned;
use fullbore_platform::{
    dir::{self, FileKind, Stat},
    durable::updates_change_times,
    read,
    unopened::UnopenedObject,
    xattr,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::PoisonError,
};

impl TreeInner {
    /// Reads the attributes of some names of a listed directory. If the directory is gone, only the
    /// tops remain.
    pub(crate) fn child_batch(
        &self,
        path: &[u8],
        names: Vec<dir::DirName>,
        is_bare: bool,
    ) -> Vec<Child> {
        let place = self
            .locate(path)
            .ok_or_else(|| io::ErrorKind::NotFound.into());
        let dir = place.and_then(|(dir, rel)| dir::open_dir(dir, rel));
        let dir = dir.and_then(|dir| dir::stat_fd(&dir).map(|now| (dir, now)));
        self.build_children(
            dir.as_ref().map(|(dir, now)| (dir, now)),
            path,
            names,
            is_bare,
        )
    }

    /// Reads the attributes of these names; a name that is gone has vanished. `is_bare`: without
    /// the tops, the directory would not be entered.
    pub(super) fn build_children(
        &self,
        dir: Result<(&OwnedFd, &Stat), &io::Error>,
        parent: &[u8],
        names: Vec<dir::DirName>,
        is_bare: bool,
    ) -> Vec<Child> {
        let children = names.into_iter().filter_map(|name| {
            let path = join(parent, &name.bytes);
            self.build_named_child(dir, parent, path, &name, is_bare)
        });
        children.collect()
    }

    /// Builds the child of one name; `None` if it is excluded.
    fn build_named_child(
        &self,
        dir: Result<(&OwnedFd, &Stat), &io::Error>,
        parent: &[u8],
        path: EntryPath,
        name: &dir::DirName,
        is_bare: bool,
    ) -> Option<Child> {
        let top = self.top(&path);
        let is_exempt = top.is_some_and(|top| top.role != TopRole::Mounted);
        // Some file systems do not return the kind of a name in the listing. Patterns are then
        // applied after its attributes are read.
        let is_kind_known = name.kind != FileKind::Unknown;
        let is_excluded = !is_exempt
            && is_kind_known
            && self.note_excluded(&path, name.kind == FileKind::Directory);
        if is_excluded || self.elsewhere.contains(&path) {
            return None;
        }
        let fd = dir.ok().map(|(fd, _)| fd);
        let is_only_way = top.is_some_and(|top| top.role == TopRole::Above)
            && (is_bare || !self.is_entered_anyway(fd, parent, &path, &name.bytes));
        let mut child = self.child_of_name(dir, top, path, name);
        child.is_only_way = is_only_way;
        let entry = &child.scanned.entry;
        let is_late_exclusion = !is_exempt
            && !is_kind_known
            && self.note_excluded(&entry.path, is_directory(&child.scanned));
        let is_own = entry.is_file() && self.is_own(&child);
        let is_skipped = self.skips_silently(entry, &child.scanned.state);
        (!is_skipped && !is_own && !is_late_exclusion).then_some(child)
    }

    /// Reads the attributes of a name in a directory. A top within another one replaces the object
    /// at its path.
    fn child_of_name(
        &self,
        dir: Result<(&OwnedFd, &Stat), &io::Error>,
        top: Option<&Top>,
        path: EntryPath,
        name: &dir::DirName,
    ) -> Child {
        let place = match top {
            Some(top) => Ok((&top.dir, top.file_name())),
            None => dir.map(|(fd, _)| (fd, &name.bytes[..])),
        };
        let mut child = match place {
            Ok((dir, name)) => self.child_at(dir, name, path),
            Err(error) => self.unreadable_child(path, error),
        };
        let parent_stat = dir.ok().map(|(_, now)| now);
        // The reader opens the file only in this directory: one that was swapped for another is
        // noticed.
        child.scanned.home = parent_stat.map(|stat| (stat.dev, stat.inode));
        child.scanned.exposed = parent_stat.is_none_or(|stat| self.is_writable_by_others(stat));
        child
    }

    fn child_at(&self, dir: &OwnedFd, name: &[u8], path: EntryPath) -> Child {
        self.retry_while_missing(&path, || dir::stat(dir, name))
            .and_then(|stat| self.build_child(dir, name, path.clone(), stat))
            .unwrap_or_else(|error| self.unreadable_child(path, &error))
    }

    /// Returns whether users other than root and this one may write to the directory.
    fn is_writable_by_others(&self, dir: &Stat) -> bool {
        ![0, self.user].contains(&dir.uid) || dir.mode & 0o022 != 0
    }

    /// Returns whether a walk of `parent` would enter this name even if no top were below it. A
    /// link is not entered; it may have appeared or gone since the tops were opened.
    fn is_entered_anyway(
        &self,
        dir: Option<&OwnedFd>,
        parent: &[u8],
        path: &[u8],
        name: &[u8],
    ) -> bool {
        let is_open = self
            .closed
            .get(parent)
            .is_none_or(|only| only.contains(name));
        let found = dir.and_then(|dir| dir::stat(dir, name).ok());
        is_open
            && found.is_some_and(|found| found.kind == FileKind::Directory)
            && !self.is_excluded(path, true)
    }

    /// Builds the entry of one object. Opens only files with holes.
    pub(crate) fn build_child(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        path: EntryPath,
        stat: Stat,
    ) -> io::Result<Child> {
        let (kind, mut state) = self.kind_and_state(dir, name, &stat)?;
        let is_file = matches!(kind, EntryKind::File { .. });
        if is_file && let Some(reason) = (self.rules.torn)(dir.as_fd(), &path) {
            state = EntryState::Unreadable(reason);
        }
        // Where the file system keeps no change time, the latest time makes every comparison say
        // "changed".
        let ctime = if is_file && !self.has_change_time(dir, name, &stat) {
            LATEST_TIME
        } else {
            stat.ctime
        };
        let is_special = matches!(
            kind,
            EntryKind::Symlink(_)
                | EntryKind::Fifo
                | EntryKind::CharDevice(_)
                | EntryKind::BlockDevice(_)
        );
        let mut entry = Entry {
            path,
            kind,
            mode: stat.mode,
            owner: self.owner(&stat),
            mtime: stat.mtime,
            ctime,
            inode: stat.inode,
            xattrs: Vec::new(),
        };
        // Files and directories are opened later anyway, and their attributes are read then.
        if is_special && !self.has_overlay() {
            match xattr::read_all_at(dir, name) {
                Ok(xattrs) => entry.xattrs = self.named(xattrs),
                Err(error) => state = self.state_of(&error),
            }
        }
        let mut scanned = Scanned::new(entry, state);
        scanned.born = stat.born;
        Ok(Child {
            scanned,
            dev: stat.dev,
            nlink: stat.nlink,
            listing: ListingState::Not,
            is_only_way: false,
        })
    }

    /// Returns the kind of an object. A socket is only noted, not stored.
    fn kind_and_state(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        stat: &Stat,
    ) -> io::Result<(EntryKind, EntryState)> {
        let kind = match stat.kind {
            FileKind::File => EntryKind::File {
                size: stat.size,
                map: self.map(dir, name, stat),
            },
            FileKind::Directory => EntryKind::Directory,
            FileKind::Symlink => EntryKind::Symlink(dir::read_link(dir, name)?),
            FileKind::Fifo => EntryKind::Fifo,
            FileKind::CharDevice => EntryKind::CharDevice(stat.rdev),
            FileKind::BlockDevice => EntryKind::BlockDevice(stat.rdev),
            FileKind::Socket | FileKind::Unknown => {
                return Ok((EntryKind::Socket, EntryState::Noted));
            }
        };
        Ok((kind, EntryState::Whole))
    }

    /// Returns whether a change of this file shows in its ctime. Checked once for each device.
    fn has_change_time(&self, dir: &OwnedFd, name: &[u8], stat: &Stat) -> bool {
        let known = self
            .change_times
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .find(|(dev, _)| *dev == stat.dev)
            .map(|(_, answer)| *answer);
        if let Some(answer) = known {
            return answer;
        }
        // A single file may be a mount of its own.
        let is_here = dir::stat_fd(dir).is_ok_and(|above| above.dev == stat.dev);
        let answer = if is_here {
            updates_change_times(dir)
        } else {
            UnopenedObject::open(dir.as_fd(), name).is_ok_and(|object| object.has_change_time())
        };
        self.change_times
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push((stat.dev, answer));
        answer
    }

    pub(crate) fn look(&self, path: &[u8]) -> Child {
        let child = self.open_parent(path).and_then(|(dir, name)| {
            self.build_child(&dir, name, path.to_vec(), dir::stat(&dir, name)?)
        });
        let mut child = child.unwrap_or_else(|error| self.unreadable_child(path.to_vec(), &error));
        self.read_dir_xattrs(&mut child.scanned);
        child
    }

    /// Opens the parent directory of `path`. Returns it with the name in it.
    pub(super) fn open_parent<'a>(&self, path: &'a [u8]) -> io::Result<(OwnedFd, &'a [u8])> {
        let (parent, name) = split(path);
        let (dir, rel) = self.locate(parent).ok_or(io::ErrorKind::NotFound)?;
        let dir = dir::open_dir(dir, rel)?;
        Ok((dir, if path.is_empty() { b"." } else { name }))
    }

    fn unreadable_child(&self, path: EntryPath, error: &io::Error) -> Child {
        let entry = Entry {
            path,
            ..Entry::default()
        };
        let scanned = Scanned::new(entry, self.state_of(error));
        Child {
            scanned,
            dev: 0,
            nlink: 1,
            listing: ListingState::Not,
            is_only_way: false,
        }
    }

    pub(crate) fn owner(&self, stat: &Stat) -> Owner {
        let user = self.names.user(stat.uid);
        let group = self.names.group(stat.gid);
        Owner {
            uid: stat.uid,
            gid: stat.gid,
            user,
            group,
        }
    }

    /// Returns the data runs of a file with fewer blocks than bytes.
    pub(super) fn map(&self, dir: &OwnedFd, name: &[u8], stat: &Stat) -> Option<SparseMap> {
        if !stat.looks_sparse() || self.rules.overlay.is_some() {
            return None;
        }
        let fd = dir::open_read(dir, name)
            .inspect_err(|error| self.shortage.notice(error))
            .ok()?;
        // The open file may be another one; its holes do not count.
        dir::stat_fd(&fd)
            .ok()
            .filter(|now| !is_different_file(&fd, now, (stat.inode, stat.ctime, stat.born)))?;
        let map = read::data_map(&fd, stat.size).ok().flatten()?;
        pax::storable_map(map.into(), stat.size)
    }
}
