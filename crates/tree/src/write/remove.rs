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

    /// Counts the object at `path`, with those below it if `is_whole`: those that `counts` takes. An
    /// object that cannot be looked at does not count; it cannot be removed either.
    pub fn count_entries(
        &self,
        path: &[u8],
        is_whole: bool,
        counts: impl Fn(&[u8]) -> bool,
    ) -> u64 {
        let (parent, name) = self.places.split(path);
        let mut visitor = CountVisitor {
            counts,
            is_whole,
            entries: 0,
        };
        if let Ok(dir) = self.open_dir(parent) {
            // A part that was counted is enough.
            let _ = descend(dir.as_fd(), name, path, &mut visitor);
        }
        visitor.entries
    }
}

struct CountVisitor<F> {
    counts: F,
    is_whole: bool,
    entries: u64,
}

impl<F: Fn(&[u8]) -> bool> Visit for CountVisitor<F> {
    type Error = io::Error;

    fn meet(
        &mut self,
        dir: BorrowedFd<'_>,
        _: &[u8],
        path: &[u8],
        stat: &Stat,
    ) -> io::Result<bool> {
        self.entries += u64::from((self.counts)(path));
        let is_directory = stat.kind == FileKind::Directory;
        Ok(self.is_whole && is_directory && !stat.is_mount_boundary(dir::stat_fd(dir)?.dev))
    }

    fn leave(&mut self, _: BorrowedFd<'_>, _: &[u8], _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// A directory that cannot be opened cannot be emptied; those after it count.
    fn shut(&mut self, _: &[u8], _: &[u8], _: bool, _: io::Error) -> io::Result<()> {
        Ok(())
    }

    fn failed(&self, _: &[u8], error: io::Error) -> io::Error {
        error
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
            let message = self.failed(path, io::ErrorKind::ResourceBusy.into()).what;
            return Err(Error::new(ErrorKind::Exists, message)
                .because("another file system is mounted there"));
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
