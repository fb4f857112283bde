//! Removes extraneous objects from a tree, with everything below them. Does not follow links and
//! does not enter mounted file systems.

use super::tree::TargetTree;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{
    dir::{self, FileKind, Stat},
    tree_walk::{Visit, descend},
    write,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

impl TargetTree {
    /// Removes the object at `path` and everything below it. A missing object is not an error.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if another file system is mounted there; the system's error, with the
    /// path.
    pub fn remove_all(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.places.split(path);
        match self.open_dir(parent) {
            Ok(dir) => descend(dir.as_fd(), name, path, &mut RemoveVisitor(self)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(self.error("remove", path, e)),
        }
    }
}

/// A visitor that removes every object.
struct RemoveVisitor<'a>(&'a TargetTree);

impl Visit for RemoveVisitor<'_> {
    type Error = Error;

    fn meet(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8], stat: &Stat) -> Result<bool> {
        if stat.kind != FileKind::Directory {
            let removed = self
                .0
                .with_write_access(path, dir, || write::unlink_at(dir, name));
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
            .with_write_access(path, dir, || write::remove_dir_at(dir, name));
        removed.map_err(|e| self.failed(path, e))
    }

    fn failed(&self, path: &[u8], error: io::Error) -> Error {
        self.0.error("remove", path, error)
    }
}
