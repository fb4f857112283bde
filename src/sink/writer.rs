//! One thread's hand in a tree: files, links, devices and directories, with their metadata.

use super::{places::Fresh, tree::Tree};
use crate::{
    error::{Error, Kind as ErrorKind, Result},
    format::entry::{Device, Entry, Kind, Owner, Run},
    platform::{
        walk::{self, FileKind, open_dir},
        write, xattr,
    },
};
use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    sync::Arc,
};

/// Setuid, setgid, sticky: lost by a change of owner, so set after it.
const SPECIAL: u32 = 0o7000;
/// Mode of what gets its own later.
pub(super) const PRIVATE: u32 = 0o600;

/// Writes to a tree from one thread; keeps the directory it wrote to last.
#[derive(Debug)]
pub struct Writer {
    /// The tree.
    pub tree: Arc<Tree>,
    parent: Option<(Vec<u8>, OwnedFd)>,
    owner: Option<(Owner, (u32, u32))>,
}

impl Writer {
    /// A writer of its own for one thread.
    pub fn new(tree: &Arc<Tree>) -> Self {
        Self { tree: tree.clone(), parent: None, owner: None }
    }

    /// Enter the directory of `path`.
    pub(super) fn enter<'a>(&mut self, path: &'a [u8]) -> Result<(&OwnedFd, &'a [u8])> {
        let (parent, name) = self.tree.places.split(path);
        let there = self.parent.take().filter(|(at, _)| at == parent);
        let there = match there {
            Some(there) => there,
            None => (parent.to_vec(), self.tree.open_parent(parent).map_err(|e| self.refused(path, e))?),
        };
        Ok((&self.parent.insert(there).1, name))
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

    pub(super) fn numbers(&mut self, owner: &Owner) -> (u32, u32) {
        match &self.owner {
            Some((last, numbers)) if last == owner => *numbers,
            _ => {
                let numbers = self.tree.owner(owner);
                self.owner = Some((owner.clone(), numbers));
                numbers
            }
        }
    }

    /// Create a regular file with all of its content: the data of its runs, one after the other.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn file(&mut self, entry: &Entry, data: &[u8]) -> Result<()> {
        let fd = self.create(entry, creation_mode(entry))?;
        let failed = |e| self.tree.error("write", &entry.path, e);
        write_data(&fd, entry, 0, data).map_err(failed)?;
        set_length(&fd, entry).map_err(failed)?;
        self.dress(fd.as_fd(), entry, creation_mode(entry))
    }

    /// Create an empty file with this mode.
    pub(super) fn create(&mut self, entry: &Entry, mode: u32) -> Result<OwnedFd> {
        let tree = self.tree.clone();
        let (dir, name) = self.enter(&entry.path)?;
        let created = tree.replacing(dir.as_fd(), name, |dir| write::create_file(dir, name, mode));
        created.map_err(|e| self.in_the_way(&entry.path, e))
    }

    /// As [`Writer::create`], private and for reading too.
    pub(super) fn create_to_read(&mut self, entry: &Entry) -> Result<OwnedFd> {
        let tree = self.tree.clone();
        let (dir, name) = self.enter(&entry.path)?;
        let created = tree.replacing(dir.as_fd(), name, |dir| write::create_to_read(dir, name, PRIVATE));
        created.map_err(|e| self.in_the_way(&entry.path, e))
    }

    fn in_the_way(&self, path: &[u8], error: io::Error) -> Error {
        let exists = error.kind() == io::ErrorKind::AlreadyExists;
        let error = self.tree.error("create", path, error);
        if exists { error.hint("--overwrite replaces what stands in the way") } else { error }
    }

    /// Give an open file or directory owner, mode, attributes and times, in the order the system needs: a change of owner
    /// takes setuid and capabilities away, an ACL changes with the mode, and `user.` attributes want a file that may be
    /// written. `mode` is the one it has.
    pub(super) fn dress(&mut self, fd: BorrowedFd<'_>, entry: &Entry, mode: u32) -> Result<()> {
        let fresh = self.tree.fresh(&entry.path, || walk::stat_fd(fd), mode);
        let owned = self.own(entry, fresh, |uid, gid| write::chown_fd(fd, uid, gid));
        let set = |name: &[u8], value: &[u8]| xattr::set_fd(fd, name, value);
        self.attributes(entry, true, set)?;
        let failed = |e| self.tree.error("set the metadata of", &entry.path, e);
        let wanted = allowed_mode(entry, owned);
        if wanted != mode || fresh.is_some_and(|fresh| !fresh.mode_kept) {
            write::chmod_fd(fd, wanted).map_err(failed)?;
        }
        self.attributes(entry, false, set)?;
        write::set_times_fd(fd, entry.mtime).map_err(failed)
    }

    /// Set the owner if it is another than that of new files. Is it the right one now?
    fn own(&mut self, entry: &Entry, fresh: Option<Fresh>, set: impl Fn(u32, u32) -> io::Result<()>) -> bool {
        let wanted = self.numbers(&entry.owner);
        if fresh.is_some_and(|fresh| fresh.owner == wanted) {
            return true;
        }
        let done = set(wanted.0, wanted.1);
        if let Err(error) = &done {
            self.tree.notes.add("owner", &reason(error), &entry.path);
        }
        done.is_ok()
    }

    /// Set the attributes that are `user.` ones, or those that are not. What the system refuses is noted.
    fn attributes(&self, entry: &Entry, user: bool, set: impl Fn(&[u8], &[u8]) -> io::Result<()>) -> Result<()> {
        for (name, value) in entry.xattrs.iter().filter(|(name, _)| name.starts_with(b"user.") == user) {
            match set(name, value) {
                Ok(()) => {}
                Err(e) if write::is_failure_of_the_disk(&e) => {
                    return Err(self.tree.error("set an attribute of", &entry.path, e));
                }
                Err(e) => {
                    let what = format!("attribute {}", String::from_utf8_lossy(name));
                    self.tree.notes.add(&what, &reason(&e), &entry.path);
                }
            }
        }
        Ok(())
    }

    /// Create a symbolic link, named pipe or device, with its metadata.
    ///
    /// # Errors
    /// The system's, with the path. A device without the privileges for it is noted.
    pub fn other(&mut self, entry: &Entry) -> Result<()> {
        let tree = self.tree.clone();
        let (dir, name) = self.enter(&entry.path)?;
        match tree.replacing(dir.as_fd(), name, |dir| make(dir, name, entry)) {
            Ok(()) => self.dress_at(entry),
            Err(e) if is_device(&entry.kind) && e.kind() == io::ErrorKind::PermissionDenied => {
                self.tree.notes.add("device", &reason(&e), &entry.path);
                Ok(())
            }
            Err(e) => Err(self.in_the_way(&entry.path, e)),
        }
    }

    /// As [`Writer::dress`], of what cannot be opened.
    fn dress_at(&mut self, entry: &Entry) -> Result<()> {
        let tree = self.tree.clone();
        let (dir, name) = self.enter(&entry.path)?;
        let dir = dir.try_clone().map_err(|e| tree.error("open the directory of", &entry.path, e))?;
        let is_link = matches!(entry.kind, Kind::Symlink(_));
        let mode = if is_link { 0o777 } else { creation_mode(entry) };
        let fresh = tree.fresh(&entry.path, || walk::stat(&dir, name), mode);
        let owned = self.own(entry, fresh, |uid, gid| write::chown_at(&dir, name, uid, gid));
        let failed = |e| tree.error("set the metadata of", &entry.path, e);
        if !is_link && (allowed_mode(entry, owned) != mode || fresh.is_some_and(|fresh| !fresh.mode_kept)) {
            write::chmod_at(&dir, name, allowed_mode(entry, owned)).map_err(failed)?;
        }
        for user in [true, false] {
            self.attributes(entry, user, |attribute, value| xattr::set_at(&dir, name, attribute, value))?;
        }
        write::set_times_at(&dir, name, entry.mtime).map_err(failed)
    }

    /// Create a directory; it gets its metadata by [`Writer::finish_directory`]. One that is there is taken as it is.
    ///
    /// # Errors
    /// The system's, with the path; a symbolic link or file in the way may be one.
    pub fn directory(&mut self, path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        if path.is_empty() || tree.places.mounted(path).is_some() {
            return Ok(());
        }
        let (dir, name) = self.enter(path)?;
        match write::create_dir(dir, name, 0o700) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(tree.error("create", path, e)),
            Ok(()) => return Ok(()),
        }
        let there = open_dir(dir, name, tree.options.tricks).or_else(|_| {
            tree.replacing(dir.as_fd(), name, |dir| write::create_dir(dir, name, 0o700))?;
            open_dir(dir, name, tree.options.tricks)
        });
        let there = there.map_err(|e| self.in_the_way(path, e))?;
        tree.touch(there).map_err(|e| tree.error("look at", path, e))
    }

    /// Give a directory its metadata. Everything in it must have been written, and it may not be entered any more.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn finish_directory(&mut self, entry: &Entry) -> Result<()> {
        let tree = self.tree.clone();
        let failed = |e| tree.error("set the metadata of", &entry.path, e);
        let dir = tree.open_dir(&entry.path).map_err(failed)?;
        let mode = walk::stat_fd(&dir).map_err(failed)?.mode;
        self.dress(dir.as_fd(), entry, mode)?;
        match tree.places.mounted(&entry.path) {
            None => Ok(()),
            Some(to) => {
                let kind = Kind::Symlink(to.as_os_str().as_bytes().to_vec());
                self.dress_at(&Entry { kind, xattrs: Vec::new(), ..entry.clone() })
            }
        }
    }

    /// Give what is at `target` the name `path` as well.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn link(&mut self, target: &[u8], path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        let (parent, old) = tree.places.split(target);
        let failed = |e| tree.error("link", path, e);
        let from = tree.open_dir(parent).map_err(failed)?;
        let (dir, name) = self.enter(path)?;
        let linked = tree.replacing(dir.as_fd(), name, |dir| write::link_at(&from, old, dir, name));
        linked.map_err(failed)
    }

    /// Remove a file that was not written to its end.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn remove(&mut self, path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        let (dir, name) = self.enter(path)?;
        write::unlink_at(dir, name).map_err(|e| tree.error("remove", path, e))
    }
}

fn make(dir: BorrowedFd<'_>, name: &[u8], entry: &Entry) -> io::Result<()> {
    let mode = creation_mode(entry);
    let node = |kind, device| write::mknod_at(dir, name, kind, mode, device);
    match &entry.kind {
        Kind::Symlink(target) => write::symlink_at(target, dir, name),
        Kind::Fifo => node(FileKind::Fifo, Device { major: 0, minor: 0 }),
        Kind::CharDevice(device) => node(FileKind::CharDevice, *device),
        Kind::BlockDevice(device) => node(FileKind::BlockDevice, *device),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn is_device(kind: &Kind) -> bool {
    matches!(kind, Kind::CharDevice(_) | Kind::BlockDevice(_))
}

/// The final mode if nothing that follows would change it or need another.
fn creation_mode(entry: &Entry) -> u32 {
    let later = entry.mode & SPECIAL != 0 || !entry.xattrs.is_empty();
    if later { PRIVATE } else { entry.mode }
}

/// What runs as its owner or group must not run as somebody else.
fn allowed_mode(entry: &Entry, owned: bool) -> u32 {
    let directory = matches!(entry.kind, Kind::Directory);
    if owned || directory { entry.mode } else { entry.mode & !0o6000 }
}

fn reason(error: &io::Error) -> String {
    Error::io("", io::Error::from(error.kind())).line().trim_start_matches(": ").to_owned()
}

/// Write a piece of a file's data, `offset` bytes from the start of the data, to where its runs are.
pub(super) fn write_data(fd: impl AsFd, entry: &Entry, offset: u64, data: &[u8]) -> io::Result<()> {
    let Kind::File { map: Some(map), .. } = &entry.kind else { return write::pwrite_all(fd, data, offset) };
    let (mut at, end) = (0u64, offset + data.len() as u64);
    for Run { offset: place, len } in map.iter() {
        let (from, to) = (at.max(offset), (at + len).min(end));
        if from < to {
            let piece = &data[(from - offset) as usize..(to - offset) as usize];
            write::pwrite_all(&fd, piece, place + (from - at))?;
        }
        at += len;
        if at >= end {
            break;
        }
    }
    Ok(())
}

/// A file that ends in a hole is as long as its entry says.
pub(super) fn set_length(fd: impl AsFd, entry: &Entry) -> io::Result<()> {
    match &entry.kind {
        Kind::File { size, map: Some(_) } => write::truncate(fd, *size),
        _ => Ok(()),
    }
}
