//! Where a tree on disk is: beneath its root, and what is in the tablespaces of a cluster, and its WAL, beneath the directories that
//! links in it lead to. No other link is followed.

use crate::{
    error::{Error, Result},
    format::{
        entry::{self, EntryPath},
        root::{ClusterInfo, Tablespace},
    },
    platform::dir::{is_missing_directory, open_root},
    postgres::restore::{plan::PG_WAL, tablespaces},
    target::layout::SharedDirectory,
};
use std::{
    ffi::OsStr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

/// See the module.
pub(crate) struct TreeRoots {
    root: OwnedFd,
    /// Tablespaces, and the directory of the WAL, that are links, as a restore makes them and a server has them.
    links: Vec<(EntryPath, OwnedFd)>,
    /// Whose the location of a tablespace is.
    shared: Option<SharedDirectory>,
}

impl TreeRoots {
    /// Those of the tree at `dir`, which a backup of this cluster is to be compared with.
    ///
    /// # Errors
    /// If `dir` is not there; the system's.
    pub(crate) fn open(dir: &Path, cluster: Option<&ClusterInfo>) -> Result<Self> {
        let failed = |path: PathBuf| move |e| Error::io(format!("could not open {path:?}"), e);
        let root = open_root(dir).map_err(failed(dir.to_owned()))?;
        let mut links = Vec::new();
        let tablespaces = cluster.iter().flat_map(|cluster| &cluster.tablespaces);
        for at in tablespaces
            .map(Tablespace::path)
            .chain(cluster.map(|_| PG_WAL.into()))
        {
            let link = dir.join(OsStr::from_bytes(&at));
            match link.is_symlink().then(|| open_root(&link)) {
                Some(Ok(dir)) => links.push((at, dir)),
                Some(Err(error)) if !is_missing_directory(&error) => {
                    return Err(failed(link)(error));
                }
                // A directory, or a link that leads nowhere, is what it is.
                _ => {}
            }
        }
        Ok(Self {
            root,
            links,
            shared: cluster.map(|cluster| tablespaces::shared(cluster.major)),
        })
    }

    /// The directory that is opened for what is at `path`, and the path beneath it.
    pub(crate) fn of<'a>(&self, path: &'a [u8]) -> (&OwnedFd, &'a [u8]) {
        let link = self.links.iter().find(|(at, _)| entry::is_within(path, at));
        let beneath = |at: &EntryPath| path[at.len()..].strip_prefix(b"/").unwrap_or_default();
        link.map_or((&self.root, path), |(at, dir)| (dir, beneath(at)))
    }

    /// May what has this name in the directory at `path` be of the tree? Others have theirs in the location of a tablespace too.
    pub(crate) fn may_own(&self, path: &[u8], name: &[u8]) -> bool {
        let is_shared = path != PG_WAL.as_bytes() && self.links.iter().any(|(at, _)| at == path);
        !is_shared
            || self
                .shared
                .as_ref()
                .is_none_or(|shared| shared.is_own(name))
    }

    /// Are there links that the map of tablespaces would have the server make? Then a restore leaves it out (rule 36).
    pub(crate) fn has_links(&self) -> bool {
        self.links.iter().any(|(at, _)| at != PG_WAL.as_bytes())
    }
}
