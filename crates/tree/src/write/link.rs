//! Hard links, also beyond the number of names that a file system allows for one file (65,000 on
//! ext4, 65,535 on btrfs).
//!
//! When a file is at this limit, a second file with the same content and metadata takes the further
//! names, and then a third one. So every name of the backup exists with its content, and a warning
//! says that the names belong to several files.

use super::{
    access::{PRIVATE, replaced_error},
    metadata::Before,
    tree::TargetTree,
    writer::{TargetWriter, set_length},
};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, Owner},
    error::Result,
};
use fullbore_platform::{
    dir::{self, FileKind, Stat},
    queue::Locked,
    read, write, xattr,
};
use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Device and inode number.
type Inode = (u64, u64);

/// For each file at the limit, the copies that take its further names, the latest last. Keyed by
/// inode, because a tar can hold another file of the same name later.
pub(crate) type LinkCopies = HashMap<Inode, Vec<LinkCopy>>;

/// A copy of a file that takes no more names.
#[derive(Debug, Clone)]
pub(crate) struct LinkCopy {
    path: EntryPath,
    inode: Inode,
}

fn inode(stat: &Stat) -> Inode {
    (stat.dev, stat.inode)
}

/// Returns whether both names, each in its directory, are names of one file.
fn is_same_file(one: (&OwnedFd, &[u8]), other: (&OwnedFd, &[u8])) -> bool {
    let one = inode_of(one);
    one.is_some() && one == inode_of(other)
}

fn inode_of((dir, name): (&OwnedFd, &[u8])) -> Option<Inode> {
    dir::stat(dir, name).ok().map(|s| inode(&s))
}

impl TargetWriter {
    /// Gives the object at `target` the additional name `path`. At the limit of names, a copy of
    /// the file gets this name.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn link(&mut self, target: &[u8], path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        let failed = tree.failed("link", path);
        if tree.link_copies.locked().is_empty() && self.give_name(target, path)? {
            return Ok(());
        }
        // The lock prevents two threads from making a copy each.
        let mut link_copies = tree.link_copies.locked();
        let first = tree.inode_at(target).map_err(failed)?;
        let known = link_copies.entry(first).or_default();
        let is_name_of_first = tree.options.overwrite
            && tree
                .inode_at(path)
                .is_ok_and(|inode_there| inode_there == first);
        if (known.is_empty() || is_name_of_first) && self.give_name(target, path)? {
            return Ok(());
        }
        if !self.link_to_copy(known, path)? {
            self.copy(target, path)?;
            known.push(LinkCopy {
                path: path.to_vec(),
                inode: tree.inode_at(path).map_err(failed)?,
            });
        }
        tree.notes.add_copied_name(path);
        Ok(())
    }

    /// Returns whether `path` is a name of one of these copies, or links it to the latest copy.
    fn link_to_copy(&mut self, link_copies: &[LinkCopy], path: &[u8]) -> Result<bool> {
        let tree = self.tree.clone();
        let inode = tree.inode_at(path).ok();
        if tree.options.overwrite && link_copies.iter().any(|copy| Some(copy.inode) == inode) {
            return Ok(true);
        }
        let Some(latest) = link_copies.last().filter(|copy| {
            tree.inode_at(&copy.path)
                .is_ok_and(|inode| inode == copy.inode)
        }) else {
            return Ok(false);
        };
        self.give_name(&latest.path, path)
    }

    /// Links `path` to the object at `target`, and replaces the object at `path` if `--overwrite`
    /// permits. Returns false if the file has as many names as its file system allows.
    fn give_name(&mut self, target: &[u8], path: &[u8]) -> Result<bool> {
        let tree = self.tree.clone();
        let (parent, old) = tree.places.split(target);
        let failed = tree.failed("link", path);
        let source_dir = tree.open_dir(parent).map_err(failed)?;
        if tree.is_taken(target, &source_dir, old) {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        let (dir, name) = self.enter(path)?;
        // A repeated restore finds its own link. To replace it would need a name more, which may be
        // one too many.
        let is_linked = tree.options.overwrite && is_same_file((dir, name), (&source_dir, old));
        let linked = tree.create_or_replace(path, dir.as_fd(), name, |dir, name| {
            if is_linked {
                Ok(())
            } else {
                write::link_at(&source_dir, old, dir, name)
            }
        });
        match linked {
            Err(e) if write::is_link_limit(&e) => Ok(false),
            done => done.map(|()| true).map_err(failed),
        }
    }

    /// Copies the object at `target` to `path`, content and metadata. An identical file at `path`
    /// stays.
    fn copy(&mut self, target: &[u8], path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        let failed = tree.failed("copy", path);
        let (parent, old) = tree.places.split(target);
        let source_dir = tree.open_dir(parent).map_err(failed)?;
        let stat = dir::stat(&source_dir, old).map_err(failed)?;
        if stat.kind == FileKind::File {
            return self.copy_file(dir::open_read(&source_dir, old).map_err(failed)?, path);
        }
        let kind = match stat.kind {
            // The kind is that of the object that lies there now, not that of the backup.
            FileKind::Symlink => {
                EntryKind::Symlink(dir::read_link(&source_dir, old).map_err(failed)?)
            }
            FileKind::Fifo => EntryKind::Fifo,
            FileKind::CharDevice => EntryKind::CharDevice(stat.rdev),
            FileKind::BlockDevice => EntryKind::BlockDevice(stat.rdev),
            _ => return Err(failed(replaced_error())),
        };
        let xattrs = xattr::read_all_at(&source_dir, old).map_err(failed)?;
        self.special_file(&entry_of(path, kind, &stat, xattrs))
    }

    fn copy_file(&mut self, source: OwnedFd, path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        let failed = tree.failed("copy", path);
        let stat = dir::stat_fd(&source).map_err(failed)?;
        if stat.kind != FileKind::File {
            return Err(failed(replaced_error()));
        }
        let entry = file_entry(&source, path, &stat).map_err(failed)?;
        let source = File::from(source);
        if tree.options.overwrite && self.is_copy(&source, &entry)? {
            return Ok(());
        }
        // Only this user can read the copy until it has the access of the entry.
        let made = self.create_with_room(&entry, PRIVATE)?;
        for run in entry.runs(0, entry.data_len()) {
            write::copy(&source, &made.file, run).map_err(failed)?;
        }
        set_length(&made.file, &entry).map_err(failed)?;
        self.apply_metadata(made.file.as_fd(), &entry, Before::Made(PRIVATE))?;
        made.move_into_place(self)
    }
}

impl TargetTree {
    fn inode_at(&self, path: &[u8]) -> io::Result<Inode> {
        let (parent, name) = self.places.split(path);
        dir::stat(self.open_dir(parent)?, name).map(|stat| inode(&stat))
    }
}

/// Builds the entry of an open file, with its holes.
fn file_entry(file: &OwnedFd, path: &[u8], stat: &Stat) -> io::Result<Entry> {
    let mut map = None;
    if stat.looks_sparse() {
        map = read::data_map(file, stat.size)?.map(Into::into);
    }
    let kind = EntryKind::File {
        size: stat.size,
        map,
    };
    Ok(entry_of(path, kind, stat, xattr::read_all(file)?))
}

/// Builds the entry at `path` from the attributes of an existing object.
fn entry_of(path: &[u8], kind: EntryKind, stat: &Stat, xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> Entry {
    let owner = Owner {
        uid: stat.uid,
        gid: stat.gid,
        ..Owner::default()
    };
    Entry {
        path: path.to_vec(),
        kind,
        mode: stat.mode,
        owner,
        mtime: stat.mtime,
        xattrs,
        ..Entry::default()
    }
}
