//! Opens the trees of a cluster: its data directory, and what is on other devices.

use super::{
    late_files::Late,
    layout::{ClusterLayout, PREPARED},
    relation,
    request::Reading,
    restore::conf,
};
use crate::{
    error::{Error, Result},
    format::{
        entry::{EntryPath, order},
        root::{EntryName, Tablespace},
    },
    platform::dir::{self, Stat},
    source::{
        patterns::Patterns,
        tree::{Closed, SourceTree, Top, TopRole, TreeRules},
    },
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

/// What is needed to open the trees.
pub(super) struct Opening<'a> {
    /// The data directory.
    pub(super) data: &'a FilePath,
    pub(super) major: u32,
    /// Version of the catalog: names the directories in tablespaces.
    pub(super) catalog: u32,
    /// Does the server run?
    pub(super) online: bool,
}

impl Opening<'_> {
    /// The data directory with the tablespaces on its device, and a tree for each other device.
    pub(super) fn trees(
        &self,
        spaces: &[Tablespace],
        reading: &Reading,
    ) -> Result<(Arc<Late>, Vec<Arc<SourceTree>>)> {
        let stored = spaces.iter().map(Tablespace::path).collect();
        let layout = ClusterLayout::new(self.major, self.catalog, self.online)
            .with_prepared(self.prepared()?);
        let late = Arc::new(Late::new(layout, self.data.to_owned(), stored));
        let rules = Arc::new(TreeRules {
            exclude: Patterns::default(),
            exclude_caches: false,
            exclude_if_present: Vec::new(),
            one_file_system: false,
            looks_twice: false,
            walkers: reading.walkers,
            tricks: reading.tricks,
            own: reading.own.clone(),
            overlay: Some(late.clone()),
            torn: |_, _| None,
        });
        let mut devices = self.tops(spaces, reading.split)?;
        let tops = devices
            .iter()
            .skip(1)
            .flat_map(|(_, tops)| tops.iter().map(|top| top.at.clone()));
        // One whose directory is in the data directory is stored where its link is (rule 14).
        let elsewhere: HashSet<EntryPath> = tops
            .chain(spaces.iter().filter_map(|space| self.within(space)))
            .collect();
        let tree = |(_, mut tops): (u64, Vec<Top>)| {
            tops.sort_by(|a, b| order(&a.at, &b.at));
            let elsewhere = if tops[0].at.is_empty() {
                elsewhere.clone()
            } else {
                HashSet::new()
            };
            Arc::new(SourceTree::new(
                tops,
                elsewhere,
                Closed::new(),
                rules.clone(),
            ))
        };
        Ok((late, devices.drain(..).map(tree).collect()))
    }

    /// The names of the files of prepared transactions as they are now.
    fn prepared(&self) -> Result<BTreeSet<Vec<u8>>> {
        let path = self.data.join(OsStr::from_bytes(PREPARED));
        let names = fs::read_dir(&path).and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name().into_vec()))
                .collect::<io::Result<_>>()
        });
        names.map_err(|e| Error::io(format!("could not list {path:?}"), e))
    }

    /// The path of a tablespace in the data directory, if its directory is there.
    fn within(&self, space: &Tablespace) -> Option<EntryPath> {
        let (place, data) = (
            dir::real_path(place(space)).ok()?,
            dir::real_path(self.data).ok()?,
        );
        Some(
            place
                .strip_prefix(data)
                .ok()?
                .as_os_str()
                .as_bytes()
                .to_vec(),
        )
    }

    /// Where walks begin, for each device; the data directory's first, with the directories that links in it lead to.
    fn tops(&self, spaces: &[Tablespace], split: bool) -> Result<Vec<(u64, Vec<Top>)>> {
        let top = |at: EntryPath, dir, role| Top {
            at,
            dir,
            name: None,
            role,
        };
        let open = |at: EntryPath, path: &FilePath, role| {
            let failed = |e| Error::io(format!("could not open {path:?}"), e);
            let dir = dir::open_root(path).map_err(failed)?;
            let stat = dir::stat_fd(&dir).map_err(failed)?;
            Ok((stat, top(at, dir, role)))
        };
        let device = |stat: &Stat| if split { stat.dev } else { 0 };
        let (stat, data) = open(EntryPath::new(), self.data, TopRole::Named)?;
        let mut devices = vec![(device(&stat), vec![data])];
        for (name, dir) in linked_directories(self.data, &stat)? {
            devices[0]
                .1
                .push(top(name.into_vec(), dir, TopRole::Mounted));
        }
        for space in spaces {
            let (stat, top) = open(space.path(), place(space), TopRole::Mounted)?;
            let device = device(&stat);
            match devices.iter_mut().find(|(known, _)| *known == device) {
                Some((_, tops)) => tops.push(top),
                None => devices.push((device, vec![top])),
            }
        }
        Ok(devices)
    }
}

/// Names in the data directory that are links to directories, as `initdb --waldir` makes one, and these, open: they are stored as
/// the directories they lead to (rule 14). What is not of the server's user, or made for its group, is none of the cluster: the link
/// stays one. Else that user would have what a backup by root can read.
fn linked_directories(data: &FilePath, server: &Stat) -> Result<Vec<(OsString, OwnedFd)>> {
    let failed = |e| Error::io(format!("could not list {data:?}"), e);
    let mut found = Vec::new();
    for entry in data.read_dir().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_symlink())
            && let Some(dir) = open_if_its(&entry.path(), server)?
        {
            found.push((entry.file_name(), dir));
        }
    }
    Ok(found)
}

/// The directory that a link leads to, if it is the server's. What is open is asked, and what was asked is walked: the link may
/// lead elsewhere by then.
fn open_if_its(link: &FilePath, server: &Stat) -> Result<Option<OwnedFd>> {
    let failed = |e| Error::io(format!("could not open {link:?}"), e);
    let dir = match dir::open_root(link) {
        Err(e) if dir::is_missing_directory(&e) || e.kind() == ErrorKind::PermissionDenied => {
            return Ok(None);
        }
        opened => opened.map_err(failed)?,
    };
    let there = dir::stat_fd(&dir).map_err(failed)?;
    let is_for_group = there.gid == server.gid && there.mode & 0o020 != 0;
    Ok((there.uid == server.uid || is_for_group).then_some(dir))
}

/// The tablespaces, by number, from the links in `pg_tblspc`, as the server itself finds them: a relative link leads on from there.
/// What they are called is in the catalog alone.
///
/// # Errors
/// The system's.
pub(super) fn tablespaces(data: &FilePath) -> Result<Vec<Tablespace>> {
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
            // A tablespace in place is a directory, and one that was dropped just now has no link.
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

/// With the names that the catalog has. A link to nothing that it does not know is what a crash, or a tablespace that was dropped,
/// leaves.
pub(super) fn named(links: Vec<Tablespace>, names: &[(u32, EntryName)]) -> Vec<Tablespace> {
    let named = |link: Tablespace| match names.iter().find(|(oid, _)| *oid == link.oid) {
        Some((_, name)) => Some(Tablespace {
            name: name.clone(),
            ..link
        }),
        None => place(&link).exists().then_some(link),
    };
    links.into_iter().filter_map(named).collect()
}

/// The files of a server's configuration that are outside of its data directory: those that it `said`, and those that links in the
/// data directory lead to, which are stored as links (rule 14).
pub(super) fn configuration(data: &FilePath, mut said: Vec<EntryName>) -> Vec<EntryName> {
    let Ok(real) = dir::real_path(data) else {
        return said;
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
        if !is_here && !said.contains(&name) {
            said.push(name);
        }
    }
    said
}

fn place(space: &Tablespace) -> &FilePath {
    FilePath::new(OsStr::from_bytes(&space.location.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_was_asked_whose_it_is_is_what_is_walked() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        ["data", "wal", "other"]
            .iter()
            .for_each(|name| fs::create_dir(at(name)).unwrap());
        fs::write(at("file"), "").unwrap();
        symlink(at("wal"), at("data/pg_wal")).unwrap();
        symlink(at("file"), at("data/to_file")).unwrap();
        symlink(at("nothing"), at("data/to_nothing")).unwrap();
        symlink("to_itself", at("data/to_itself")).unwrap();
        let look = |path: &FilePath| dir::stat_fd(dir::open_root(path).unwrap()).unwrap();
        let server = look(&at("data"));
        let found = linked_directories(&at("data"), &server).unwrap();
        fs::remove_file(at("data/pg_wal")).unwrap();
        symlink(at("other"), at("data/pg_wal")).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "pg_wal");
        assert_eq!(
            dir::stat_fd(&found[0].1).unwrap().inode,
            look(&at("wal")).inode
        );
        let another = Stat {
            uid: server.uid + 1,
            gid: server.gid + 1,
            ..server
        };
        assert!(
            linked_directories(&at("data"), &another)
                .unwrap()
                .is_empty()
        );
    }
}
