//! One thread's hand in a tree: files, links, devices and directories, with their metadata.

use super::{access::replaced, case_folding::is_taken, metadata::Before, tree::TargetTree};
use crate::{
    error::{Error, ErrorKind, Result, reason},
    format::entry::{Device, Entry, EntryKind, Owner},
    platform::{
        dir::{self, FileKind, Stat, open_dir},
        durable, write, xattr,
    },
    queue::Locked,
};
use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    sync::Arc,
};

/// Writes to a tree from one thread; keeps the directory it wrote to last.
#[derive(Debug)]
pub struct TargetWriter {
    /// The tree.
    pub tree: Arc<TargetTree>,
    parent: Option<Parent>,
    owner: Option<(Owner, (u32, u32))>,
}

/// The directory that was written to last.
#[derive(Debug)]
struct Parent {
    path: Vec<u8>,
    dir: OwnedFd,
    /// Does what is made in it inherit an access list? Asked only if the tree does not know.
    passes_on_default_acl: bool,
}

impl TargetWriter {
    /// A writer of its own for one thread.
    pub fn new(tree: &Arc<TargetTree>) -> Self {
        Self {
            tree: tree.clone(),
            parent: None,
            owner: None,
        }
    }

    /// Enter the directory of `path`.
    pub(crate) fn enter<'a>(&mut self, path: &'a [u8]) -> Result<(&OwnedFd, &'a [u8])> {
        let (parent, name) = self.tree.places.split(path);
        let there = match self.parent.take().filter(|there| there.path == parent) {
            Some(there) => there,
            None => {
                let dir = self
                    .tree
                    .open_parent(parent)
                    .map_err(|e| self.refused(path, e))?;
                let passes_on_default_acl =
                    self.tree.options.overwrite && xattr::passes_on_default_acl(&dir);
                Parent {
                    path: parent.to_vec(),
                    dir,
                    passes_on_default_acl,
                }
            }
        };
        Ok((&self.parent.insert(there).dir, name))
    }

    /// May what is made in the directory that was entered last inherit an access list?
    pub(crate) fn inherits(&self) -> bool {
        self.parent
            .as_ref()
            .is_none_or(|parent| parent.passes_on_default_acl)
    }

    /// A parent that is a link or a file is said to be what it is.
    fn refused(&self, path: &[u8], error: io::Error) -> Error {
        let in_the_way = write::is_in_the_way(&error);
        let error = self.tree.error("create", path, error);
        if !in_the_way {
            return error;
        }
        let why = "a symbolic link or a file stands where a directory above it should be";
        Error::new(ErrorKind::Exists, error.what).because(why)
    }

    pub(crate) fn numbers(&mut self, owner: &Owner) -> (u32, u32) {
        match &self.owner {
            Some((last, numbers)) if last == owner => *numbers,
            _ => {
                let numbers = self.tree.owner(owner);
                self.owner = Some((owner.clone(), numbers));
                numbers
            }
        }
    }

    pub(crate) fn in_the_way(&self, path: &[u8], error: io::Error) -> Error {
        let exists = error.kind() == io::ErrorKind::AlreadyExists && !is_taken(&error);
        let error = self.tree.error("create", path, error);
        if exists {
            error.hint("--overwrite replaces what stands in the way")
        } else {
            error
        }
    }

    /// Create a symbolic link, named pipe or device, with its metadata.
    ///
    /// # Errors
    /// The system's, with the path. A device without the privileges for it is noted.
    pub fn other(&mut self, entry: &Entry) -> Result<()> {
        let (tree, mode) = (self.tree.clone(), self.creation_mode(entry));
        let (dir, name) = self.enter(&entry.path)?;
        match tree.replacing(&entry.path, dir.as_fd(), name, |dir, name| {
            make(dir, name, entry, mode)
        }) {
            Ok(()) => self.dress_at(entry),
            Err(e) if is_device(&entry.kind) && e.kind() == io::ErrorKind::PermissionDenied => {
                self.tree.notes.add("device", &reason(&e), &entry.path);
                Ok(())
            }
            Err(e) => Err(self.in_the_way(&entry.path, e)),
        }
    }

    /// Create a directory; it gets its metadata by [`Writer::finish_directory`]. One that is there is taken as it is, but that
    /// nobody else may change what is made in it if it was asked for. Was it made by this restore?
    ///
    /// # Errors
    /// The system's, with the path; a symbolic link or file in the way may be one.
    pub fn directory(&mut self, entry: &Entry, asked_for: bool) -> Result<bool> {
        let (tree, path) = (self.tree.clone(), &entry.path[..]);
        if path.is_empty() || tree.places.mounted(path).is_some() {
            let place = tree.places.resolve(path).0;
            return self.take_over(entry, &place.dir, place.is_new, asked_for);
        }
        let (dir, name) = self.enter(path)?;
        let create = || match write::create_dir(dir, name, 0o700) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            other => other.map(|()| true),
        };
        let create = || tree.opening_up(path, dir.as_fd(), create);
        if tree
            .making(path, dir, name, create)
            .map_err(|e| tree.error("create", path, e))?
        {
            return Ok(true);
        }
        let there = open_dir(dir, name, tree.options.tricks);
        let is_new = there.is_err();
        let there = there.or_else(|error| {
            // Where a link leads that nobody asked to be replaced would be lost with it; fsck wants its own directory.
            if !asked_for || dir::is_lost_and_found(dir, name) {
                return Err(error);
            }
            tree.replacing(path, dir.as_fd(), name, |dir, name| {
                write::create_dir(dir, name, 0o700)
            })?;
            open_dir(dir, name, tree.options.tricks)
        });
        let there = there.map_err(|e| self.in_the_way(path, e))?;
        // What is in a target that was empty was made by this restore, perhaps for what is below it.
        let is_ours =
            self.take_over(entry, &there, is_new || !tree.options.overwrite, asked_for)?;
        tree.touch(there)
            .map_err(|e| tree.error("look at", path, e))?;
        Ok(is_ours)
    }

    /// Give a directory its metadata. Everything in it must have been written, and it may not be entered any more.
    ///
    /// # Errors
    /// The system's, with the path; that another one stands there now.
    pub fn finish_directory(&mut self, entry: &Entry) -> Result<()> {
        let tree = self.tree.clone();
        let failed = |e| tree.error("set the metadata of", &entry.path, e);
        let dir = tree.open_dir(&entry.path).map_err(failed)?;
        let stat = dir::stat_fd(&dir).map_err(failed)?;
        if stat.uid != self.numbers(&entry.owner).0 && !tree.may_have_made(&entry.path, &dir, &stat)
        {
            return Err(failed(replaced()));
        }
        self.dress(dir.as_fd(), entry, Before::There(stat))?;
        tree.changed.locked().remove(&entry.path);
        match tree.places.mounted(&entry.path) {
            None => Ok(()),
            Some(to) => {
                let kind = EntryKind::Symlink(to.as_os_str().as_bytes().to_vec());
                self.dress_at(&Entry {
                    kind,
                    xattrs: Vec::new(),
                    ..entry.clone()
                })
            }
        }
    }

    /// Leave a directory the metadata it has; what was made in it is durable.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn keep_directory(&mut self, path: &[u8]) -> Result<()> {
        if !self.tree.settles_each() {
            return Ok(());
        }
        let settled = self.tree.open_dir(path).and_then(durable::sync_and_close);
        settled.map_err(|e| self.tree.error("make durable", path, e))
    }

    /// Remove a file that was not written to its end, or what is replaced: a directory only if it is empty.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn remove(&mut self, path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        let (dir, name) = self.enter(path)?;
        tree.clear_way(dir.as_fd(), name)
            .map_err(|e| tree.error("remove", path, e))
    }
}

fn make(dir: BorrowedFd<'_>, name: &[u8], entry: &Entry, mode: u32) -> io::Result<()> {
    let node = |kind, device| write::mknod_at(dir, name, kind, mode, device);
    match &entry.kind {
        EntryKind::Symlink(target) => write::symlink_at(target, dir, name),
        EntryKind::Fifo => node(FileKind::Fifo, Device { major: 0, minor: 0 }),
        EntryKind::CharDevice(device) => node(FileKind::CharDevice, *device),
        EntryKind::BlockDevice(device) => node(FileKind::BlockDevice, *device),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Is what stands there of the kind of the entry?
pub(crate) fn is_of_kind(stat: &Stat, kind: &EntryKind) -> bool {
    match kind {
        EntryKind::Symlink(_) => stat.kind == FileKind::Symlink,
        EntryKind::Fifo => stat.kind == FileKind::Fifo,
        EntryKind::CharDevice(device) => (stat.kind, stat.rdev) == (FileKind::CharDevice, *device),
        EntryKind::BlockDevice(device) => {
            (stat.kind, stat.rdev) == (FileKind::BlockDevice, *device)
        }
        _ => false,
    }
}

fn is_device(kind: &EntryKind) -> bool {
    matches!(kind, EntryKind::CharDevice(_) | EntryKind::BlockDevice(_))
}

/// Write a piece of a file's data, `offset` bytes from the start of the data, to where its runs are.
pub(crate) fn write_data(fd: impl AsFd, entry: &Entry, offset: u64, data: &[u8]) -> io::Result<()> {
    let mut rest = data;
    for run in entry.runs(offset, data.len() as u64) {
        let (piece, behind) = rest.split_at(run.len as usize);
        write::pwrite_all(&fd, piece, run.offset)?;
        rest = behind;
    }
    Ok(())
}

/// A file that ends in a hole is as long as its entry says.
pub(crate) fn set_length(fd: impl AsFd, entry: &Entry) -> io::Result<()> {
    match &entry.kind {
        EntryKind::File { size, map: Some(_) } => write::truncate(fd, *size),
        _ => Ok(()),
    }
}
