//! Extended attributes of files that are not opened: a scan does not read them.

use super::sources::SourceRoot;
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
    roots: Vec<SourceRoot>,
    /// The number of its root, its path there, and the directory.
    parent: Option<(usize, Vec<u8>, OwnedFd)>,
    names: OwnerNames,
}

impl AttributeReader {
    /// # Errors
    /// The system's.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let opened = open_root(root);
        let failed = |e| fullbore_format::error::Error::io(format!("could not open {root:?}"), e);
        let root = SourceRoot {
            at: Vec::new(),
            dir: opened.map_err(failed)?,
            name: Vec::new(),
        };
        Ok(Self::of(vec![root]))
    }

    /// Reads in these places of a tree.
    pub(super) fn of(roots: Vec<SourceRoot>) -> Self {
        Self {
            roots,
            parent: None,
            names: OwnerNames::default(),
        }
    }

    /// Returns the attributes of the object at `path`, without following links.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn read(&mut self, path: &[u8]) -> io::Result<Vec<Xattr>> {
        let mut roots = self.roots.iter().enumerate();
        let found = roots.find_map(|(number, root)| Some((number, root, root.path_in(path)?)));
        let (number, root, inner) = found.ok_or(io::ErrorKind::NotFound)?;
        let (parent, name) = split(&inner);
        let there = self.parent.take();
        let there = there.filter(|(of, path, _)| *of == number && path == parent);
        let there = match there {
            Some(there) => there,
            None => (number, parent.to_vec(), open_dir(&root.dir, parent)?),
        };
        let (_, _, dir) = self.parent.insert(there);
        let mut xattrs = xattr::read_all_at(dir, name)?;
        acl::name_lists(&mut xattrs, &self.names);
        Ok(xattrs)
    }
}
