//! Writes files, links, devices and directories of a tree from one thread, with their metadata.

use super::{
    access::replaced_error, case_folding::is_name_taken, metadata::Before, tree::TargetTree,
};
use fullbore_format::{
    entry::{Device, Entry, EntryKind, Owner, is_within},
    error::{Error, ErrorKind, Result, reason},
};
use fullbore_platform::{
    dir::{self, FileKind, Stat, open_dir},
    durable,
    queue::Locked,
    uring::{FileRing, OpenedFiles},
    write, xattr,
};
use std::{
    cell::OnceCell,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    sync::Arc,
};

/// Directories on the path to the last object that stay open, at most. A walk comes back to most of
/// them.
const MAX_PARENTS: usize = 8;

/// Writes to a tree from one thread. Keeps the directory of the last object open, and those above it.
#[derive(Debug)]
pub struct TargetWriter {
    pub tree: Arc<TargetTree>,
    /// Each within the one before it.
    parents: Vec<Parent>,
    owner: Option<(Owner, (u32, u32))>,
    /// Opens files, and closes files and directories, many with one call.
    ring: FileRing,
}

/// The directory of an object.
#[derive(Debug)]
struct Parent {
    path: Vec<u8>,
    dir: OwnedFd,
    /// Whether new objects in the directory inherit an access list. Only checked if it is asked
    /// and the tree does not know: most files of a copy are only compared.
    passes_on_default_acl: OnceCell<bool>,
}

impl TargetWriter {
    /// Creates a writer for one thread.
    pub fn new(tree: &Arc<TargetTree>) -> Self {
        Self {
            tree: tree.clone(),
            parents: Vec::new(),
            owner: None,
            ring: FileRing::default(),
        }
    }

    /// Opens the directory of `path`. Returns it with the last name of the path.
    pub fn enter<'a>(&mut self, path: &'a [u8]) -> Result<(&OwnedFd, &'a [u8])> {
        let (parent, name) = self.tree.places.split(path);
        // Entries come in archive order, so a directory that is left is not entered again.
        while let Some(last) = self.parents.pop_if(|last| !is_within(parent, &last.path)) {
            self.close(last.dir);
        }
        if self.parents.last().is_none_or(|last| last.path != parent) {
            let dir = self.tree.open_parent(parent);
            let dir = dir.map_err(|e| self.parent_error(path, e))?;
            self.push_parent(parent, dir);
        }
        match self.parents.last() {
            Some(last) => Ok((&last.dir, name)),
            None => Err(self.parent_error(path, io::ErrorKind::NotFound.into())),
        }
    }

    fn push_parent(&mut self, path: &[u8], dir: OwnedFd) {
        if self.parents.len() == MAX_PARENTS {
            let first = self.parents.remove(0);
            self.close(first.dir);
        }
        self.parents.push(Parent {
            path: path.to_vec(),
            dir,
            passes_on_default_acl: OnceCell::new(),
        });
    }

    /// Closes the directories of the last object, which may be removed.
    pub fn leave(&mut self) {
        self.parents.clear();
    }

    /// Opens these files of one directory for reading, as [`FileRing::open_together`].
    pub fn open_together(&mut self, paths: &[&[u8]]) -> OpenedFiles {
        let entered = paths.first().map(|first| self.enter(first).is_ok());
        match (entered, self.parents.last()) {
            (Some(true), Some(parent)) => self.ring.open_together(parent.dir.as_fd(), paths),
            _ => OpenedFiles::default(),
        }
    }

    /// Closes a complete file, or a directory: now, or later with others. No error is lost, because
    /// where a close reports one, the file was synced before.
    pub fn close(&mut self, fd: OwnedFd) {
        self.ring.close(fd);
    }

    pub fn close_waiting(&mut self) {
        self.ring.flush();
    }

    /// Returns whether new objects in the current directory can inherit an access list.
    pub(crate) fn inherits_acl(&self) -> bool {
        self.parents.last().is_none_or(|parent| {
            *parent.passes_on_default_acl.get_or_init(|| {
                self.tree.options.overwrite && xattr::passes_on_default_acl(&parent.dir)
            })
        })
    }

    /// Builds the error for a parent directory that could not be opened. The error says so if the
    /// parent is a link or a file.
    fn parent_error(&self, path: &[u8], error: io::Error) -> Error {
        let creation_error = write::is_in_the_way(&error);
        let error = self.tree.error("create", path, error);
        if !creation_error {
            return error;
        }
        let reason = "a symbolic link or a file has the name of a parent directory";
        Error::new(ErrorKind::Exists, error.what).because(reason)
    }

    /// Returns the numbers of the owner and the group on this host.
    pub fn owner_ids(&mut self, owner: &Owner) -> (u32, u32) {
        match &self.owner {
            Some((last, numbers)) if last == owner => *numbers,
            _ => {
                let numbers = self.tree.owner(owner);
                self.owner = Some((owner.clone(), numbers));
                numbers
            }
        }
    }

    pub(crate) fn creation_error(&self, path: &[u8], error: io::Error) -> Error {
        let exists = error.kind() == io::ErrorKind::AlreadyExists && !is_name_taken(&error);
        let error = self.tree.error("create", path, error);
        if exists && self.tree.options.whole_files {
            error.hint("run the same command again")
        } else if exists {
            error.hint("use --overwrite to replace existing files")
        } else {
            error
        }
    }

    /// Creates a symbolic link, named pipe or device, with its metadata.
    ///
    /// # Errors
    /// The system's error, with the path. A device that needs more privileges becomes a warning.
    pub fn special_file(&mut self, entry: &Entry) -> Result<()> {
        let tree = self.tree.clone();
        let mode = self.creation_mode(entry);
        let (dir, name) = self.enter(&entry.path)?;
        match tree.create_or_replace(&entry.path, dir.as_fd(), name, |dir, name| {
            make_node(dir, name, entry, mode)
        }) {
            Ok(()) => self.apply_metadata_at(entry),
            Err(e) if is_device(&entry.kind) && e.kind() == io::ErrorKind::PermissionDenied => {
                self.tree.notes.add("device", &reason(&e), &entry.path);
                Ok(())
            }
            Err(e) => Err(self.creation_error(&entry.path, e)),
        }
    }

    /// Creates a directory. [`TargetWriter::finish_directory`] sets its metadata later.
    ///
    /// An existing directory is kept; if it was `asked_for`, other users lose write access to it
    /// until then. Returns whether this restore created the directory.
    ///
    /// # Errors
    /// The system's error, with the path; also for a symbolic link or file of this name.
    pub fn directory(&mut self, entry: &Entry, asked_for: bool) -> Result<bool> {
        let tree = self.tree.clone();
        let path = &entry.path[..];
        if path.is_empty() || tree.places.mount_target(path).is_some() {
            let place = tree.places.resolve(path).0;
            return self.lock_out_others(entry, &place.dir, place.is_new, asked_for);
        }
        let (dir, name) = self.enter(path)?;
        let create = || match write::create_dir(dir, name, 0o700) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            other => other.map(|()| true),
        };
        if tree
            .unless_name_taken(path, dir, name, || {
                tree.with_write_access(path, dir.as_fd(), create)
            })
            .map_err(|e| tree.error("create", path, e))?
        {
            return Ok(true);
        }
        let opened = open_dir(dir, name);
        let is_new = opened.is_err();
        let opened = opened.or_else(|error| {
            // A link is not replaced unless its path was requested, because its target would become
            // unreachable. fsck needs its own `lost+found`.
            if !asked_for || dir::is_lost_and_found(dir, name) {
                return Err(error);
            }
            tree.create_or_replace(path, dir.as_fd(), name, |dir, name| {
                write::create_dir(dir, name, 0o700)
            })?;
            open_dir(dir, name)
        });
        let opened = opened.map_err(|e| self.creation_error(path, e))?;
        // In a target that was empty, this restore created the directory, perhaps as a parent of
        // another object.
        let is_ours =
            self.lock_out_others(entry, &opened, is_new || !tree.options.overwrite, asked_for)?;
        tree.note_filesystem(opened.as_fd())
            .map_err(|e| tree.error("look at", path, e))?;
        Ok(is_ours)
    }

    /// Sets the metadata of a directory. Everything in it must be written, and it must not be
    /// entered afterwards.
    ///
    /// # Errors
    /// The system's error, with the path; an error if another directory has its place.
    pub fn finish_directory(&mut self, entry: &Entry) -> Result<()> {
        let tree = self.tree.clone();
        let failed = tree.failed("set the metadata of", &entry.path);
        let dir = tree.open_dir(&entry.path).map_err(failed)?;
        let stat = dir::stat_fd(&dir).map_err(failed)?;
        if stat.uid != self.owner_ids(&entry.owner).0
            && !tree.may_have_made(&entry.path, &dir, &stat)
        {
            return Err(failed(replaced_error()));
        }
        self.apply_metadata(dir.as_fd(), entry, Before::There(stat))?;
        self.close(dir);
        tree.changed.locked().remove(&entry.path);
        match tree.places.mount_target(&entry.path) {
            None => Ok(()),
            Some(final_name) => {
                // A mounted directory is seen in its place through a link, which has the same owner
                // and time.
                let kind = EntryKind::Symlink(final_name.as_os_str().as_bytes().to_vec());
                self.apply_metadata_at(&Entry {
                    kind,
                    xattrs: Vec::new(),
                    ..entry.clone()
                })
            }
        }
    }

    /// Syncs a directory that keeps its metadata.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn keep_directory(&mut self, path: &[u8]) -> Result<()> {
        if !self.tree.syncs_each_file() {
            return Ok(());
        }
        let settled = self
            .tree
            .open_dir(path)
            .and_then(durable::sync_dir_and_close);
        settled.map_err(|e| self.tree.error("sync", path, e))
    }

    /// Removes an incomplete file or an object to be replaced; a directory only if it is empty.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn remove(&mut self, path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        let (dir, name) = self.enter(path)?;
        tree.remove_existing(dir.as_fd(), name)
            .map_err(|e| tree.error("remove", path, e))
    }
}

fn make_node(dir: BorrowedFd<'_>, name: &[u8], entry: &Entry, mode: u32) -> io::Result<()> {
    let node = |kind, device| write::mknod_at(dir, name, kind, mode, device);
    match &entry.kind {
        EntryKind::Symlink(target) => write::symlink_at(target, dir, name),
        EntryKind::Fifo => node(FileKind::Fifo, Device { major: 0, minor: 0 }),
        EntryKind::CharDevice(device) => node(FileKind::CharDevice, *device),
        EntryKind::BlockDevice(device) => node(FileKind::BlockDevice, *device),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Returns whether the existing object has the kind of the entry.
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

/// Writes a piece of a file's data, at `offset` bytes from the start of the data, to the positions
/// of its runs.
pub(crate) fn write_data(fd: impl AsFd, entry: &Entry, offset: u64, data: &[u8]) -> io::Result<()> {
    let mut rest = data;
    for run in entry.runs(offset, data.len() as u64) {
        let (piece, tail) = rest.split_at(run.len as usize);
        write::pwrite_all(&fd, piece, run.offset)?;
        rest = tail;
    }
    Ok(())
}

/// Sets the length of a file that may end in a hole.
pub(crate) fn set_length(fd: impl AsFd, entry: &Entry) -> io::Result<()> {
    match &entry.kind {
        EntryKind::File { size, map: Some(_) } => write::truncate(fd, *size),
        _ => Ok(()),
    }
}
