//! A directory tree as a sink.
//!
//! Everything is resolved beneath the target and no symbolic link is followed on the way, whether the backup brings it or
//! the target has it. A small file costs five calls at most: create, write, owner if it differs, times, close. Directories
//! are made as they come, with mode 0700, and get their metadata when all that is in them is written. Nothing is
//! durable before [`Tree::sync`].

use super::notes::Notes;
use crate::{
    error::{Error, Kind as ErrorKind, Result},
    format::entry::{Device, Entry, Kind, Owner, Run},
    platform::{
        Tricks,
        owner::Names,
        walk::{self, FileKind, Stat, open_dir, open_root},
        write::{self, Umask},
        xattr,
    },
};
use std::{
    collections::HashMap,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
};

/// How a tree is written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// May the target hold something already? Then what stands in the way is replaced.
    pub overwrite: bool,
    /// Owners by number, even where the name exists here.
    pub numeric_owner: bool,
    /// May the system's special calls be used?
    pub tricks: Tricks,
}

/// The target.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    path: PathBuf,
    /// How it is written.
    pub options: Options,
    /// What could not be restored.
    pub notes: Notes,
    names: Names,
    /// What a new file looked like; the same for all of them unless there were directories before.
    fresh: OnceLock<Fresh>,
    /// Other file systems in the target, each with a directory opened before anything was written to it.
    systems: Mutex<HashMap<u64, OwnedFd>>,
    _mask: Mask,
}

/// What the system makes of a file that is created in the target.
#[derive(Debug, Clone, Copy)]
struct Fresh {
    owner: (u32, u32),
    /// Did it get the mode that was asked for? Not below a directory with a default ACL.
    mode_kept: bool,
}

/// Setuid, setgid, sticky: lost by a change of owner, so set after it.
const SPECIAL: u32 = 0o7000;
/// Mode of what gets its own later.
const PRIVATE: u32 = 0o600;

/// The mask is the process's: cleared while any tree is open.
#[derive(Debug)]
struct Mask;

static MASK: Mutex<(usize, Option<Umask>)> = Mutex::new((0, None));

impl Mask {
    fn clear() -> Self {
        let mut mask = MASK.lock().unwrap_or_else(|e| e.into_inner());
        mask.0 += 1;
        mask.1.get_or_insert_with(Umask::clear);
        Self
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        let mut mask = MASK.lock().unwrap_or_else(|e| e.into_inner());
        mask.0 -= 1;
        if mask.0 == 0 {
            mask.1 = None;
        }
    }
}

impl Tree {
    /// Open the target, which is made if it is not there.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if it holds something and may not, or the system's error.
    pub fn create(path: &Path, options: Options) -> Result<Arc<Self>> {
        let what = |e| Error::io(format!("could not open the target {path:?}"), e);
        std::fs::create_dir_all(path).map_err(|e| Error::io(format!("could not create {path:?}"), e))?;
        let root = open_root(path).map_err(what)?;
        if !options.overwrite && !is_empty(&root).map_err(what)? {
            return Err(Error::new(ErrorKind::Exists, format!("cannot restore to {path:?}: it is not empty"))
                .hint("choose another --to, or say --overwrite to replace what stands in the way"));
        }
        Ok(Arc::new(Self {
            root,
            path: path.to_owned(),
            options,
            notes: Notes::default(),
            names: Names::default(),
            fresh: OnceLock::new(),
            systems: Mutex::default(),
            _mask: Mask::clear(),
        }))
    }

    /// An error about the entry at `path`.
    pub(super) fn error(&self, doing: &str, path: &[u8], error: io::Error) -> Error {
        let name = self.path.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path));
        let error = Error::io(format!("could not {doing} {name:?}"), error);
        match error.kind {
            ErrorKind::Full => error.hint("free space, and run the same command again with --overwrite"),
            _ => error,
        }
    }

    /// Open the directory that `path` is in, and the name of `path` in it; parents that are missing are made.
    fn open_parent(&self, parent: &[u8]) -> io::Result<OwnedFd> {
        match open_dir(&self.root, parent, self.options.tricks) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                write::create_dir_beneath(&self.root, parent, self.options.tricks)
            }
            other => other,
        }
    }

    /// User and group here of an owner there: by name where the name exists.
    fn owner(&self, owner: &Owner) -> (u32, u32) {
        if self.options.numeric_owner {
            return (owner.uid, owner.gid);
        }
        let uid = Some(&owner.user).filter(|name| !name.is_empty()).and_then(|name| self.names.uid(name));
        let gid = Some(&owner.group).filter(|name| !name.is_empty()).and_then(|name| self.names.gid(name));
        (uid.unwrap_or(owner.uid), gid.unwrap_or(owner.gid))
    }

    /// What new files get; unknown where directories of others are written into.
    fn fresh(&self, stat: impl FnOnce() -> io::Result<Stat>, mode: u32) -> Option<Fresh> {
        if self.options.overwrite {
            return None;
        }
        if self.fresh.get().is_none() {
            let stat = stat().ok()?;
            let _ = self.fresh.set(Fresh { owner: (stat.uid, stat.gid), mode_kept: stat.mode == mode });
        }
        self.fresh.get().copied()
    }

    /// Make everything durable: one call for each file system.
    ///
    /// # Errors
    /// The system's, of anything that was written since the tree was opened.
    pub fn sync(&self) -> Result<()> {
        let systems = self.systems.lock().unwrap_or_else(|e| e.into_inner());
        for fd in systems.values().map(AsFd::as_fd).chain([self.root.as_fd()]) {
            match write::sync_fs(fd) {
                Err(e) if matches!(e.kind(), io::ErrorKind::Unsupported) => self.sync_each(b"")?,
                other => other.map_err(|e| self.error("make durable what was restored to", b"", e))?,
            }
        }
        Ok(())
    }

    /// For file systems that cannot be asked as a whole: every file and directory by itself.
    fn sync_each(&self, at: &[u8]) -> Result<()> {
        let failed = |e| self.error("make durable", at, e);
        let dir = open_dir(&self.root, at, self.options.tricks).map_err(failed)?;
        for name in walk::read_dir(&dir, &mut Vec::new()).map_err(failed)? {
            let path = if at.is_empty() { name.bytes.clone() } else { [at, &name.bytes].join(&b'/') };
            match walk::stat(&dir, &name.bytes).map_err(failed)?.kind {
                FileKind::Directory => self.sync_each(&path)?,
                FileKind::File => {
                    let file = walk::open_read(&dir, &name.bytes, self.options.tricks).map_err(failed)?;
                    write::fsync(file).map_err(failed)?;
                }
                _ => {}
            }
        }
        write::fsync(dir).map_err(failed)
    }

    /// Hash what was written of a file: its data, without the holes. For the rare file whose pieces cannot be hashed
    /// as they come.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn hash(&self, entry: &Entry) -> Result<blake3::Hash> {
        let failed = |e| self.error("read back", &entry.path, e);
        let file: File = walk::open_read(&self.root, &entry.path, self.options.tricks).map_err(failed)?.into();
        let whole = [Run { offset: 0, len: entry.size() }];
        let runs = match &entry.kind {
            Kind::File { map: Some(map), .. } => &map[..],
            _ => &whole[..],
        };
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        for run in runs {
            let mut at = 0;
            while at < run.len {
                let len = buffer.len().min((run.len - at) as usize);
                file.read_exact_at(&mut buffer[..len], run.offset + at).map_err(failed)?;
                hasher.update(&buffer[..len]);
                at += len as u64;
            }
        }
        Ok(hasher.finalize())
    }

    /// Remember the file system of a directory that was there before.
    fn touch(&self, fd: OwnedFd) -> io::Result<()> {
        let dev = walk::stat_fd(&fd)?.dev;
        self.systems.lock().unwrap_or_else(|e| e.into_inner()).entry(dev).or_insert(fd);
        Ok(())
    }

    /// Remove whatever is called `name`, if it may be replaced.
    fn clear_way(&self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        match write::unlink_at(dir, name) {
            Err(e) if e.kind() == io::ErrorKind::IsADirectory => write::remove_dir_at(dir, name),
            other => other,
        }
    }

    /// Do `create`; if something stands in the way and may be replaced, remove it and do it again.
    fn replacing<T>(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        create: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        match create(dir) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && self.options.overwrite => {
                self.clear_way(dir, name)?;
                create(dir)
            }
            other => other,
        }
    }
}

/// A fresh ext4 holds `lost+found`, and is empty for all that.
fn is_empty(dir: &OwnedFd) -> io::Result<bool> {
    let names = walk::read_dir(dir, &mut Vec::new())?;
    Ok(names.iter().all(|name| name.bytes == b"lost+found"))
}

/// Directory and name of a path that is not empty.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|c| *c == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

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
    fn enter<'a>(&mut self, path: &'a [u8]) -> Result<(&OwnedFd, &'a [u8])> {
        let (parent, name) = split(path);
        let there = self.parent.take().filter(|(at, _)| at == parent);
        let there = match there {
            Some(there) => there,
            None => (parent.to_vec(), self.tree.open_parent(parent).map_err(|e| self.refused(path, e))?),
        };
        Ok((&self.parent.insert(there).1, name))
    }

    /// A parent that is a link or a file is said to be what it is.
    fn refused(&self, path: &[u8], error: io::Error) -> Error {
        let in_the_way = matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP));
        let error = self.tree.error("create", path, error);
        if !in_the_way {
            return error;
        }
        let why = "a symbolic link or a file stands where a directory above it should be";
        Error::new(ErrorKind::Exists, error.what).because(why)
    }

    fn numbers(&mut self, owner: &Owner) -> (u32, u32) {
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

    fn in_the_way(&self, path: &[u8], error: io::Error) -> Error {
        let exists = error.kind() == io::ErrorKind::AlreadyExists;
        let error = self.tree.error("create", path, error);
        if exists { error.hint("--overwrite replaces what stands in the way") } else { error }
    }

    /// Give an open file or directory owner, mode, attributes and times, in the order the system needs: a change of owner
    /// takes setuid and capabilities away, an ACL changes with the mode, and `user.` attributes want a file that may be
    /// written. `mode` is the one it has.
    pub(super) fn dress(&mut self, fd: BorrowedFd<'_>, entry: &Entry, mode: u32) -> Result<()> {
        let fresh = self.tree.fresh(|| walk::stat_fd(fd), mode);
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
                Err(e) if is_failure_of_the_disk(&e) => {
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
        let fresh = tree.fresh(|| walk::stat(&dir, name), mode);
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
        if path.is_empty() {
            return Ok(());
        }
        let tree = self.tree.clone();
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
        let dir = open_dir(&tree.root, &entry.path, tree.options.tricks).map_err(failed)?;
        let mode = walk::stat_fd(&dir).map_err(failed)?.mode;
        self.dress(dir.as_fd(), entry, mode)
    }

    /// Give what is at `target` the name `path` as well.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn link(&mut self, target: &[u8], path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        let (parent, old) = split(target);
        let failed = |e| tree.error("link", path, e);
        let from = open_dir(&tree.root, parent, tree.options.tricks).map_err(failed)?;
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

fn is_failure_of_the_disk(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EROFS))
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
