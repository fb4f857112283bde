//! Extended attributes of files that are not opened: a scan does not read them.

use fullbore_format::{
    acl,
    entry::{Xattr, split},
    error::Result,
};
use fullbore_platform::{
    dir::{open_dir, open_root},
    owner::OwnerNames,
    xattr,
};
use std::{io, os::fd::OwnedFd, path::Path};

/// Reads attributes of one file after the other. Keeps the directory of the last one open.
#[derive(Debug)]
pub(super) struct AttributeReader {
    root: OwnedFd,
    parent: Option<(Vec<u8>, OwnedFd)>,
    names: OwnerNames,
}

impl AttributeReader {
    /// # Errors
    /// The system's.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let opened = open_root(root);
        let failed = |e| fullbore_format::error::Error::io(format!("could not open {root:?}"), e);
        Ok(Self {
            root: opened.map_err(failed)?,
            parent: None,
            names: OwnerNames::default(),
        })
    }

    /// Returns the attributes of the object at `path`, without following links.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn read(&mut self, path: &[u8]) -> io::Result<Vec<Xattr>> {
        let (parent, name) = split(path);
        let there = self.parent.take().filter(|(path, _)| path == parent);
        let there = match there {
            Some(there) => there,
            None => (parent.to_vec(), open_dir(&self.root, parent)?),
        };
        let (_, dir) = self.parent.insert(there);
        let mut xattrs = xattr::read_all_at(dir, name)?;
        acl::name_lists(&mut xattrs, &self.names);
        Ok(xattrs)
    }
}
