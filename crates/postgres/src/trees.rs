//! Opens the directory trees of a cluster: the data directory, and the tablespaces on other
//! devices.
//!
//! Also reads the links in `pg_tblspc` and finds configuration files outside the data directory.
//! Walking the trees is the work of [`SourceTree`].

use super::{
    data_dir::DataDir,
    late_files::LateFiles,
    layout::{ClusterLayout, PREPARED},
    relation,
    request::Reading,
    restore::conf,
};
use fullbore_format::{
    entry::{EntryPath, order},
    error::{Error, Result},
    root::{EntryName, Tablespace},
};
use fullbore_platform::dir::{self, Stat};
use fullbore_tree::{
    file_rules::FileRules,
    patterns::Patterns,
    read::{Closed, SourceTree, Top, TopRole, TreeRules},
};
use std::{
    collections::{BTreeSet, HashSet},
    ffi::{OsStr, OsString},
    fs,
    io::{self, ErrorKind},
    os::{
        fd::OwnedFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path as FilePath,
    sync::Arc,
};

/// Facts needed to open the trees of a cluster.
pub(super) struct TreeOpener<'a> {
    pub(super) data: &'a FilePath,
    pub(super) major: u32,
    /// Catalog version number; names the cluster's directory in each tablespace.
    pub(super) catalog: u32,
    /// True if the server runs.
    pub(super) online: bool,
}

impl TreeOpener<'_> {
    /// Opens the data directory with the tablespaces on its device as one tree, and one tree for
    /// each other device.
    pub(super) fn open_trees(
        &self,
        spaces: &[Tablespace],
        reading: &Reading,
    ) -> Result<(Arc<LateFiles>, Vec<Arc<SourceTree>>)> {
        let stored = spaces.iter().map(Tablespace::path).collect();
        let layout = ClusterLayout::new(self.major, self.catalog, self.online)
            .with_prepared(self.prepared_names()?);
        let late = Arc::new(LateFiles::new(layout, self.data.to_owned(), stored));
        let rules = Arc::new(tree_rules(reading, &late));
        let devices = self.open_tops(spaces, reading.split)?;
        let other_tops = devices.iter().skip(1).flat_map(|(_, tops)| tops);
        let mut elsewhere: HashSet<EntryPath> = other_tops.map(|top| top.at.clone()).collect();
        // A tablespace inside the data directory is stored where its link is (rule 14).
        elsewhere.extend(
            spaces
                .iter()
                .filter_map(|space| self.path_in_data_directory(space)),
        );
        let mut trees = Vec::new();
        for (_, mut tops) in devices {
            tops.sort_by(|a, b| order(&a.at, &b.at));
            let elsewhere = if tops[0].at.is_empty() {
                elsewhere.clone()
            } else {
                HashSet::new()
            };
            let tree = SourceTree::new(tops, elsewhere, Closed::new(), rules.clone());
            trees.push(Arc::new(tree));
        }
        Ok((late, trees))
    }

    /// Lists the files of prepared transactions as they are now.
    fn prepared_names(&self) -> Result<BTreeSet<Vec<u8>>> {
        let path = self.data.join(OsStr::from_bytes(PREPARED));
        let names = fs::read_dir(&path).and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name().into_vec()))
                .collect::<io::Result<_>>()
        });
        names.map_err(|e| Error::io(format!("could not list {path:?}"), e))
    }

    /// Returns the path of a tablespace inside the data directory, if the tablespace is there.
    fn path_in_data_directory(&self, space: &Tablespace) -> Option<EntryPath> {
        let place = dir::real_path(location_path(space)).ok()?;
        let data = dir::real_path(self.data).ok()?;
        let path = place.strip_prefix(data).ok()?;
        Some(path.as_os_str().as_bytes().to_vec())
    }

    /// Opens the directories where walks begin, grouped by device. The data directory comes first,
    /// with the directories that its links lead to.
    fn open_tops(&self, spaces: &[Tablespace], split: bool) -> Result<Vec<(u64, Vec<Top>)>> {
        let (stat, data) = open_top(EntryPath::new(), self.data, TopRole::Named)?;
        let mut devices = vec![(tree_device(split, &stat), vec![data])];
        for (name, dir) in linked_directories(self.data, &stat)? {
            devices[0]
                .1
                .push(named_top(name.into_vec(), dir, TopRole::Mounted));
        }
        for space in spaces {
            let (stat, top) = open_top(space.path(), location_path(space), TopRole::Mounted)?;
            // One stream for each device: two walks on one disk would disturb each other.
            let device = tree_device(split, &stat);
            match devices.iter_mut().find(|(known, _)| *known == device) {
                Some((_, tops)) => tops.push(top),
                None => devices.push((device, vec![top])),
            }
        }
        Ok(devices)
    }
}

fn open_top(place: EntryPath, path: &FilePath, role: TopRole) -> Result<(Stat, Top)> {
    let failed = |e| Error::io(format!("could not open {path:?}"), e);
    let dir = dir::open_root(path).map_err(failed)?;
    let stat = dir::stat_fd(&dir).map_err(failed)?;
    Ok((stat, named_top(place, dir, role)))
}

fn named_top(place: EntryPath, dir: OwnedFd, role: TopRole) -> Top {
    Top {
        at: place,
        dir,
        name: None,
        role,
    }
}

fn tree_device(split: bool, stat: &Stat) -> u64 {
    if split { stat.dev } else { 0 }
}

/// Returns the rules to walk a cluster: the overlay decides which files there are.
fn tree_rules(reading: &Reading, late: &Arc<LateFiles>) -> TreeRules {
    TreeRules {
        exclude: Patterns::default(),
        files: FileRules::default(),
        on_excluded: None,
        looks_twice: false,
        caches: Default::default(),
        walkers: reading.walkers,
        own: reading.own.clone(),
        overlay: Some(late.clone()),
        torn: |_, _| None,
    }
}

/// Opens the directories that links in the data directory lead to, such as a `pg_wal` made by
/// `initdb --waldir`. They are stored as directories (rule 14).
///
/// A link to a directory that neither belongs to the server's user nor is writable for its group is
/// not part of the cluster; it stays a link. Otherwise the server's user could have a backup by
/// root read any directory.
fn linked_directories(data: &FilePath, server: &Stat) -> Result<Vec<(OsString, OwnedFd)>> {
    let failed = |e| Error::io(format!("could not list {data:?}"), e);
    let mut found = Vec::new();
    for entry in data.read_dir().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_symlink())
            && let Some(dir) = open_server_directory(&entry.path(), server)?
        {
            found.push((entry.file_name(), dir));
        }
    }
    Ok(found)
}

/// Opens the directory that a link leads to, if it belongs to the server.
///
/// Owner and mode are read from the open directory, and the same descriptor is walked: the link may
/// lead elsewhere by then.
fn open_server_directory(link: &FilePath, server: &Stat) -> Result<Option<OwnedFd>> {
    let failed = |e| Error::io(format!("could not open {link:?}"), e);
    let dir = match dir::open_root(link) {
        Err(e) if dir::is_missing_directory(&e) || e.kind() == ErrorKind::PermissionDenied => {
            return Ok(None);
        }
        opened => opened.map_err(failed)?,
    };
    let stat = dir::stat_fd(&dir).map_err(failed)?;
    let is_for_group = stat.gid == server.gid && stat.mode & 0o020 != 0;
    Ok((stat.uid == server.uid || is_for_group).then_some(dir))
}

/// Returns the tablespaces, sorted by OID, from the links in `pg_tblspc`. A relative link is
/// resolved from there, as the server does.
///
/// Names stay empty: only the catalog has them.
///
/// # Errors
/// The system's, if the directory cannot be listed or a link cannot be read.
pub(super) fn linked_tablespaces(data: &FilePath) -> Result<Vec<Tablespace>> {
    let dir = data.join("pg_tblspc");
    let failed = |e| Error::io(format!("could not list {dir:?}"), e);
    let mut found = Vec::new();
    for entry in dir.read_dir().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(oid) = relation::number(entry.file_name().as_bytes()) else {
            continue;
        };
        let location = match fs::read_link(entry.path()) {
            Ok(location) if location.is_relative() => {
                dir::real_path(&entry.path()).unwrap_or(dir.join(location))
            }
            Ok(location) => location,
            // An in-place tablespace is a directory; a tablespace dropped just now has no link.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotFound) => {
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        found.push(Tablespace {
            oid,
            location: EntryName(location.into_os_string().into_vec()),
            name: EntryName::default(),
        });
    }
    found.sort_by_key(|space| space.oid);
    Ok(found)
}

/// Adds the names that the catalog has. A dangling link that the catalog does not know is dropped:
/// a crash or a dropped tablespace leaves such links.
pub(super) fn add_names(
    data: &dyn DataDir,
    links: Vec<Tablespace>,
    names: &[(u32, EntryName)],
) -> Vec<Tablespace> {
    links
        .into_iter()
        .filter_map(
            |link| match names.iter().find(|(oid, _)| *oid == link.oid) {
                Some((_, name)) => Some(Tablespace {
                    name: name.clone(),
                    ..link
                }),
                None => data
                    .contains(&format!("pg_tblspc/{}", link.oid))
                    .then_some(link),
            },
        )
        .collect()
}

/// Returns the server's configuration files outside the data directory: those in `reported`, and
/// those that links in the data directory lead to, which are stored as links (rule 14).
pub(super) fn outside_config_files(
    data: &FilePath,
    mut reported: Vec<EntryName>,
) -> Vec<EntryName> {
    let Ok(real) = dir::real_path(data) else {
        return reported;
    };
    for path in conf::FILES
        .map(|name| data.join(name))
        .into_iter()
        .filter(|path| path.is_symlink())
    {
        let Ok(target) = dir::real_path(&path) else {
            continue;
        };
        let is_here = target.starts_with(&real);
        let name = EntryName(target.into_os_string().into_vec());
        if !is_here && !reported.contains(&name) {
            reported.push(name);
        }
    }
    reported
}

/// Where the tablespace is on disk.
fn location_path(space: &Tablespace) -> &FilePath {
    FilePath::new(OsStr::from_bytes(&space.location.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_directory_whose_owner_was_checked_is_the_one_walked() {
        let dir = tempfile::tempdir().unwrap();
        let inside = |name: &str| dir.path().join(name);
        ["data", "wal", "other"]
            .iter()
            .for_each(|name| fs::create_dir(inside(name)).unwrap());
        fs::write(inside("file"), "").unwrap();
        symlink(inside("wal"), inside("data/pg_wal")).unwrap();
        symlink(inside("file"), inside("data/to_file")).unwrap();
        symlink(inside("nothing"), inside("data/to_nothing")).unwrap();
        symlink("to_itself", inside("data/to_itself")).unwrap();
        let look = |path: &FilePath| dir::stat_fd(dir::open_root(path).unwrap()).unwrap();
        let server = look(&inside("data"));
        let found = linked_directories(&inside("data"), &server).unwrap();
        fs::remove_file(inside("data/pg_wal")).unwrap();
        symlink(inside("other"), inside("data/pg_wal")).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "pg_wal");
        assert_eq!(
            dir::stat_fd(&found[0].1).unwrap().inode,
            look(&inside("wal")).inode
        );
        let another = Stat {
            uid: server.uid + 1,
            gid: server.gid + 1,
            ..server
        };
        assert!(
            linked_directories(&inside("data"), &another)
                .unwrap()
                .is_empty()
        );
    }
}
