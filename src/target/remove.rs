//! Removing what does not belong to a tree, with all that is below it. No link is followed, and nothing that is mounted
//! in the tree is gone into.

use super::tree::TargetTree;
use crate::{
    error::{Error, ErrorKind, Result},
    platform::{
        dir::{self, FileKind, Stat},
        tree_walk::{Visit, descend},
        write,
    },
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

impl TargetTree {
    /// Remove what is at `path`, and everything below it. What is not there is no error.
    ///
    /// # Errors
    /// [`Kind::Exists`] for what another file system is mounted at; the system's, with the path.
    pub fn remove_all(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.places.split(path);
        match self.open_dir(parent) {
            Ok(dir) => descend(
                dir.as_fd(),
                name,
                path,
                self.options.tricks,
                &mut Removal(self),
            ),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(self.error("remove", path, e)),
        }
    }
}

/// Everything is removed.
struct Removal<'a>(&'a TargetTree);

impl Visit for Removal<'_> {
    type Error = Error;

    fn meet(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8], stat: &Stat) -> Result<bool> {
        if stat.kind != FileKind::Directory {
            let removed = self.0.opening_up(path, dir, || write::unlink_at(dir, name));
            return removed.map(|()| false).map_err(|e| self.failed(path, e));
        }
        if stat.is_mount_boundary(dir::stat_fd(dir).map_err(|e| self.failed(path, e))?.dev) {
            let what = self.failed(path, io::ErrorKind::ResourceBusy.into()).what;
            return Err(
                Error::new(ErrorKind::Exists, what).because("another file system is mounted there")
            );
        }
        Ok(true)
    }

    fn leave(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<()> {
        let removed = self
            .0
            .opening_up(path, dir, || write::remove_dir_at(dir, name));
        removed.map_err(|e| self.failed(path, e))
    }

    fn failed(&self, path: &[u8], error: io::Error) -> Error {
        self.0.error("remove", path, error)
    }
}
