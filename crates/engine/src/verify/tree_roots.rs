//! The directories of a tree on disk: its root, and the directories that the links of a cluster to
//! its tablespaces and its WAL lead to. No other link is followed.

use fullbore_format::{
    entry::{self, EntryPath},
    error::{Error, Result},
    root::{ClusterInfo, Tablespace},
};
use fullbore_platform::dir::{is_missing_directory, open_root};
use fullbore_postgres::restore::{plan::PG_WAL, tablespaces};
use fullbore_tree::write::layout::SharedDirectory;
use std::{
    ffi::OsStr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

/// The root of a tree, and its linked directories.
pub(crate) struct TreeRoots {
    root: OwnedFd,
    /// Tablespaces and the WAL directory, if they are links, as a restore or a server makes them.
    links: Vec<(EntryPath, OwnedFd)>,
    /// Which names in the location of a tablespace belong to this cluster.
    shared: Option<SharedDirectory>,
}

impl TreeRoots {
    /// Opens the directories of the tree at `dir`, which is to be compared with a backup of this
    /// cluster.
    ///
    /// # Errors
    /// If `dir` does not exist; errors of the system.
    pub(crate) fn open(dir: &Path, cluster: Option<&ClusterInfo>) -> Result<Self> {
        let failed = |path: PathBuf| move |e| Error::io(format!("could not open {path:?}"), e);
        let root = open_root(dir).map_err(failed(dir.to_owned()))?;
        let mut links = Vec::new();
        let tablespaces = cluster.iter().flat_map(|cluster| &cluster.tablespaces);
        for place in tablespaces
            .map(Tablespace::path)
            .chain(cluster.map(|_| PG_WAL.into()))
        {
            let link = dir.join(OsStr::from_bytes(&place));
            match link.is_symlink().then(|| open_root(&link)) {
                Some(Ok(dir)) => links.push((place, dir)),
                Some(Err(error)) if !is_missing_directory(&error) => {
                    return Err(failed(link)(error));
                }
                // A directory, or a dangling link, is compared as it is.
                _ => {}
            }
        }
        Ok(Self {
            root,
            links,
            shared: cluster.map(|cluster| tablespaces::shared(cluster.major)),
        })
    }

    /// Returns the directory that contains `path`, and the path beneath that directory.
    pub(crate) fn of<'a>(&self, path: &'a [u8]) -> (&OwnedFd, &'a [u8]) {
        let link = self
            .links
            .iter()
            .find(|(place, _)| entry::is_within(path, place));
        let beneath =
            |place: &EntryPath| path[place.len()..].strip_prefix(b"/").unwrap_or_default();
        link.map_or((&self.root, path), |(place, dir)| (dir, beneath(place)))
    }

    /// Returns whether this name in the directory at `path` may belong to the tree: other clusters
    /// can share the location of a tablespace.
    pub(crate) fn may_own(&self, path: &[u8], name: &[u8]) -> bool {
        let is_shared =
            path != PG_WAL.as_bytes() && self.links.iter().any(|(place, _)| place == path);
        !is_shared
            || self
                .shared
                .as_ref()
                .is_none_or(|shared| shared.is_own(name))
    }

    /// Returns whether the map of tablespaces would have the server make links. Then a restore
    /// leaves the map out (rule 36).
    pub(crate) fn has_links(&self) -> bool {
        self.links.iter().any(|(path, _)| path != PG_WAL.as_bytes())
    }
}
