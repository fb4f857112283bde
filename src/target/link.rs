//! Hard links, also beyond the number of names that a file system allows for one file (65,000 on ext4, 65,535 on btrfs).
//!
//! Where a file has that many names, a second file with the same content and metadata carries the further names, and a third file
//! those beyond its own limit. So every name of the backup is there, with its content; a note says that they are names of several
//! files.

use super::{
    access::{PRIVATE, replaced},
    metadata::Before,
    tree::TargetTree,
    writer::{TargetWriter, set_length},
};
use crate::{
    error::{Error, Result},
    format::entry::{Entry, EntryKind, EntryPath, Owner},
    platform::{
        dir::{self, FileKind, Stat},
        read, write, xattr,
    },
    queue::Locked,
};
use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Device and inode number.
type Inode = (u64, u64);

/// For each file that takes no more names, the files that carry its further names, the latest last. By inode numbers: a tar may have
/// another file of the same name later.
pub(crate) type Carriers = HashMap<Inode, Vec<Carrier>>;

/// A file with the content of another one that takes no more names.
#[derive(Debug, Clone)]
pub(crate) struct Carrier {
    path: EntryPath,
    inode: Inode,
}

fn inode(stat: &Stat) -> Inode {
    (stat.dev, stat.inode)
}

/// Has the file as many names as its file system allows?
fn is_at_limit(error: &Error) -> bool {
    error.system().is_some_and(write::is_link_limit)
}

impl TargetWriter {
    /// Give what is at `target` the name `path` as well. Where it takes no more names, a second file with its content gets that name.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn link(&mut self, target: &[u8], path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        if tree.carriers.locked().is_empty() {
            match self.give_name(target, path) {
                Err(error) if is_at_limit(&error) => {}
                done => return done,
            }
        }
        // Two threads must not make a second file each.
        let mut carriers = tree.carriers.locked();
        let first = tree
            .inode_at(target)
            .map_err(|e| tree.error("link", path, e))?;
        let known = carriers.entry(first).or_default();
        let is_name_of_first =
            tree.options.overwrite && tree.inode_at(path).is_ok_and(|there| there == first);
        if known.is_empty() || is_name_of_first {
            match self.give_name(target, path) {
                Err(error) if is_at_limit(&error) => {}
                done => return done,
            }
        }
        if !self.has_carrier(known, path)? {
            self.copy(target, path)?;
            let inode = tree
                .inode_at(path)
                .map_err(|e| tree.error("link", path, e))?;
            known.push(Carrier {
                path: path.to_vec(),
                inode,
            });
        }
        tree.notes.carried(path);
        Ok(())
    }

    /// Is `path` a name of one of these files, or does the latest of them take it?
    fn has_carrier(&mut self, carriers: &[Carrier], path: &[u8]) -> Result<bool> {
        let tree = self.tree.clone();
        let there = tree.inode_at(path).ok();
        if tree.options.overwrite && carriers.iter().any(|carrier| Some(carrier.inode) == there) {
            return Ok(true);
        }
        let is_there = |carrier: &&Carrier| {
            tree.inode_at(&carrier.path)
                .is_ok_and(|there| there == carrier.inode)
        };
        let Some(latest) = carriers.last().filter(is_there) else {
            return Ok(false);
        };
        match self.give_name(&latest.path, path) {
            Err(error) if is_at_limit(&error) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Give what is at `target` the name `path`, in place of what stands there if that may be replaced.
    fn give_name(&mut self, target: &[u8], path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        let (parent, old) = tree.places.split(target);
        let failed = |e| tree.error("link", path, e);
        let from = tree.open_dir(parent).map_err(failed)?;
        if tree.is_taken(target, &from, old) {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        let (dir, name) = self.enter(path)?;
        let number = |dir: &OwnedFd, name| dir::stat(dir, name).map(|stat| inode(&stat)).ok();
        let is_linked = tree.options.overwrite
            && number(dir, name).is_some_and(|there| number(&from, old) == Some(there));
        let linked = tree.replacing(path, dir.as_fd(), name, |dir, name| match is_linked {
            true => Ok(()),
            false => write::link_at(&from, old, dir, name),
        });
        linked.map_err(failed)
    }

    /// Make what is at `target` once more, at `path`: content and metadata. A file that stands there and is the same stays.
    fn copy(&mut self, target: &[u8], path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        let failed = |e| tree.error("copy", path, e);
        let (parent, old) = tree.places.split(target);
        let from = tree.open_dir(parent).map_err(failed)?;
        let stat = dir::stat(&from, old).map_err(failed)?;
        if stat.kind == FileKind::File {
            return self.copy_file(
                dir::open_read(&from, old, tree.options.tricks).map_err(failed)?,
                path,
            );
        }
        let kind = match stat.kind {
            FileKind::Symlink => EntryKind::Symlink(dir::read_link(&from, old).map_err(failed)?),
            FileKind::Fifo => EntryKind::Fifo,
            FileKind::CharDevice => EntryKind::CharDevice(stat.rdev),
            FileKind::BlockDevice => EntryKind::BlockDevice(stat.rdev),
            _ => return Err(failed(replaced())),
        };
        let xattrs = xattr::read_all_at(&from, old).map_err(failed)?;
        self.other(&entry_of(path, kind, &stat, xattrs))
    }

    fn copy_file(&mut self, from: OwnedFd, path: &[u8]) -> Result<()> {
        let tree = self.tree.clone();
        let failed = |e| tree.error("copy", path, e);
        let stat = dir::stat_fd(&from).map_err(failed)?;
        if stat.kind != FileKind::File {
            return Err(failed(replaced()));
        }
        let map = if stat.looks_sparse() {
            read::data_map(&from, stat.size).map_err(failed)?
        } else {
            None
        };
        let kind = EntryKind::File {
            size: stat.size,
            map: map.map(Into::into),
        };
        let entry = entry_of(path, kind, &stat, xattr::read_all(&from).map_err(failed)?);
        let from = File::from(from);
        if tree.options.overwrite && self.is_copy(&from, &entry)? {
            return Ok(());
        }
        let made = self.create_with_room(&entry, PRIVATE)?;
        for run in entry.runs(0, entry.data_len()) {
            write::copy(&from, &made.file, run, tree.options.tricks).map_err(failed)?;
        }
        set_length(&made.file, &entry).map_err(failed)?;
        self.dress(made.file.as_fd(), &entry, Before::Made(PRIVATE))?;
        made.place(self)
    }
}

impl TargetTree {
    fn inode_at(&self, path: &[u8]) -> io::Result<Inode> {
        let (parent, name) = self.places.split(path);
        dir::stat(self.open_dir(parent)?, name).map(|stat| inode(&stat))
    }
}

/// The entry at `path` of something that has this metadata.
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
