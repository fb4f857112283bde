//! Makes a restored tree durable, in the way that each of its file systems needs, see
//! [`SyncMethod`].

use super::tree::TargetTree;
use fullbore_format::error::{Error, Result};
use fullbore_platform::{
    dir::{self, FileKind, Stat},
    durable::{self, SyncMethod},
    queue::Locked,
    tree_walk::{Visit, descend},
    write,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::Ordering::Relaxed,
};

/// The objects that are synced one by one.
struct SyncScope {
    /// Device that the objects are on.
    dev: u64,
    /// Whether files are synced as well as directories.
    files: bool,
    /// Whether the data is durable already, and only errors are collected. Objects that may not be
    /// opened are then skipped.
    is_durable: bool,
}

impl TargetTree {
    /// Notes the method of a file system that is written to. With
    /// [`SyncMethod::Asked`], all files of a target that was empty are synced at the end; in other
    /// targets only written files are.
    pub(crate) fn note_sync_method(&self, way: SyncMethod) {
        let way = if way == SyncMethod::Asked && self.options.overwrite {
            SyncMethod::Each
        } else {
            way
        };
        self.sync_methods.fetch_or(way.bit(), Relaxed);
    }

    /// Returns whether each file is synced when it is written.
    pub fn syncs_each_file(&self) -> bool {
        self.uses_sync_method(SyncMethod::Each)
    }

    fn uses_sync_method(&self, way: SyncMethod) -> bool {
        self.sync_methods.load(Relaxed) & way.bit() != 0
    }

    /// Makes everything durable: one call for each file system and, where that is not enough, one
    /// for each file or directory.
    ///
    /// # Errors
    /// The system's error about any write since the tree was opened.
    pub fn sync(&self) -> Result<()> {
        let mut is_durable = true;
        let systems = self.systems.locked();
        for fd in systems.values() {
            match durable::sync_fs(fd) {
                Err(e) if matches!(e.kind(), io::ErrorKind::Unsupported) => is_durable = false,
                other => other.map_err(|e| self.error("sync the files in", b"", e))?,
            }
        }
        let files = !is_durable || self.uses_sync_method(SyncMethod::Asked);
        // Older directories that were written into have been synced already.
        if !files && (self.options.overwrite || !self.syncs_each_file()) {
            return Ok(());
        }
        self.places
            .mount_points()
            .chain([&b""[..]])
            .try_for_each(|index| {
                let dir = &self.places.resolve(index).0.dir;
                let dev = dir::stat_fd(dir)
                    .map_err(|e| self.error("look at", index, e))?
                    .dev;
                let mut settle = SyncVisitor {
                    tree: self,
                    each: SyncScope {
                        dev,
                        files,
                        is_durable,
                    },
                };
                descend(dir.as_fd(), b".", index, &mut settle)
            })
    }
}

/// A visitor that syncs every directory and, if requested, every file.
struct SyncVisitor<'a> {
    tree: &'a TargetTree,
    each: SyncScope,
}

impl SyncVisitor<'_> {
    /// Returns whether an object that may not be opened is durable already, so that it can be
    /// skipped.
    fn may_skip(&self, error: &io::Error) -> bool {
        self.each.is_durable && error.kind() == io::ErrorKind::PermissionDenied
    }

    fn settle(
        &self,
        opened: io::Result<OwnedFd>,
        path: &[u8],
        sync: fn(OwnedFd) -> io::Result<()>,
    ) -> Result<()> {
        match opened {
            Err(e) if self.may_skip(&e) => Ok(()),
            opened => opened.and_then(sync).map_err(|e| self.failed(path, e)),
        }
    }
}

impl Visit for SyncVisitor<'_> {
    type Error = Error;

    fn meet(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8], stat: &Stat) -> Result<bool> {
        match stat.kind {
            FileKind::Directory if stat.dev == self.each.dev => match dir::open_dir(dir, name) {
                Err(e) if self.may_skip(&e) => Ok(false),
                opened => opened.map(|_| true).map_err(|e| self.failed(path, e)),
            },
            FileKind::File if self.each.files => self
                .settle(dir::open_read(dir, name), path, write::fsync)
                .map(|()| false),
            _ => Ok(false),
        }
    }

    fn leave(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<()> {
        self.settle(dir::open_dir(dir, name), path, durable::sync_dir)
    }

    fn failed(&self, path: &[u8], error: io::Error) -> Error {
        self.tree
            .error("sync", path.strip_prefix(b"/").unwrap_or(path), error)
    }
}
