//! Removing what does not belong to a tree, with all that is below it. No link is followed, and nothing that is mounted
//! in the tree is gone into.

use super::tree::Tree;
use crate::{
    error::{Error, Kind, Result},
    format::entry::join,
    platform::{
        walk::{self, FileKind},
        write,
    },
};
use std::{io, os::fd::AsFd};

impl Tree {
    /// Remove what is at `path`, and everything below it. What is not there is no error.
    ///
    /// # Errors
    /// [`Kind::Exists`] for what another file system is mounted at; the system's, with the path.
    pub fn remove_all(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.places.split(path);
        match self.open_dir(parent) {
            Ok(dir) => self.remove_name(dir, name, path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(self.error("remove", path, e)),
        }
    }

    fn remove_name(&self, dir: impl AsFd, name: &[u8], path: &[u8]) -> Result<()> {
        let failed = |e| self.error("remove", path, e);
        let stat = match walk::stat(&dir, name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(failed)?,
        };
        if stat.kind != FileKind::Directory {
            return write::unlink_at(&dir, name).map_err(failed);
        }
        if stat.is_apart(walk::stat_fd(&dir).map_err(failed)?.dev) {
            let what = self.error("remove", path, io::ErrorKind::ResourceBusy.into()).what;
            return Err(Error::new(Kind::Exists, what).because("another file system is mounted there"));
        }
        let below = walk::open_dir(&dir, name, self.options.tricks).map_err(failed)?;
        for entry in walk::read_dir(&below, &mut Vec::new()).map_err(failed)? {
            self.remove_name(&below, &entry.bytes, &join(path, &entry.bytes))?;
        }
        write::remove_dir_at(&dir, name).map_err(failed)
    }
}
