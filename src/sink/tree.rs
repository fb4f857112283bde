//! A directory tree as a sink.
//!
//! Everything is resolved beneath the target and no symbolic link is followed on the way, whether the backup brings it or
//! the target has it. A small file costs five calls at most: create, write, owner if it differs, times, close. Directories
//! are made as they come, with mode 0700, and get their metadata when all that is in them is written. Nothing is
//! durable before [`Tree::sync`].

use super::notes::Notes;
use crate::{
    error::{Error, Kind as ErrorKind, Result},
    format::entry::{Entry, Kind, Owner, Run},
    platform::{
        Tricks,
        owner::Names,
        walk::{self, FileKind, Stat, open_dir, open_root},
        write::{self, Umask},
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
    pub(super) root: OwnedFd,
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
pub(super) struct Fresh {
    pub(super) owner: (u32, u32),
    /// Did it get the mode that was asked for? Not below a directory with a default ACL.
    pub(super) mode_kept: bool,
}

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
    pub(super) fn open_parent(&self, parent: &[u8]) -> io::Result<OwnedFd> {
        match open_dir(&self.root, parent, self.options.tricks) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                write::create_dir_beneath(&self.root, parent, self.options.tricks)
            }
            other => other,
        }
    }

    /// User and group here of an owner there: by name where the name exists.
    pub(super) fn owner(&self, owner: &Owner) -> (u32, u32) {
        if self.options.numeric_owner {
            return (owner.uid, owner.gid);
        }
        let uid = Some(&owner.user).filter(|name| !name.is_empty()).and_then(|name| self.names.uid(name));
        let gid = Some(&owner.group).filter(|name| !name.is_empty()).and_then(|name| self.names.gid(name));
        (uid.unwrap_or(owner.uid), gid.unwrap_or(owner.gid))
    }

    /// What new files get; unknown where directories of others are written into.
    pub(super) fn fresh(&self, stat: impl FnOnce() -> io::Result<Stat>, mode: u32) -> Option<Fresh> {
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
    pub(super) fn touch(&self, fd: OwnedFd) -> io::Result<()> {
        let dev = walk::stat_fd(&fd)?.dev;
        self.systems.lock().unwrap_or_else(|e| e.into_inner()).entry(dev).or_insert(fd);
        Ok(())
    }

    /// Remove whatever is called `name`, if it may be replaced.
    pub(super) fn clear_way(&self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        match write::unlink_at(dir, name) {
            Err(e) if e.kind() == io::ErrorKind::IsADirectory => write::remove_dir_at(dir, name),
            other => other,
        }
    }

    /// Do `create`; if something stands in the way and may be replaced, remove it and do it again.
    pub(super) fn replacing<T>(
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
