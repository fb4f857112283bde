//! What stands in a tree on disk and does not belong to a backup.
//!
//! Both are gone through in the same order; memory holds the names of the directories between the root and the entry at
//! hand. Of a directory that does not belong only the directory itself is named. Nothing is changed.

use crate::{
    error::{Error, Result},
    format::entry::{self, Kind, Path as EntryPath},
    platform::{
        Tricks,
        walk::{self, FileKind, open_dir, open_root},
    },
    postgres::restore::{Fate, Plan},
    sink::places::Layout,
    source::archive::{Archive, Selection},
};
use std::{collections::BTreeSet, io, os::fd::OwnedFd};

/// Paths of what does not belong to the selected part of a backup, in no order but that those below come before those
/// above.
///
/// # Errors
/// Damage to a page: then nobody knows what belongs. The system's.
pub(super) fn extra(
    archive: &Archive,
    selection: &Selection,
    plan: &Plan,
    layout: &Layout,
    tricks: Tricks,
) -> Result<Vec<EntryPath>> {
    let mut places = Vec::new();
    for (at, path) in
        std::iter::once((&b""[..], &layout.root)).chain(layout.mounts.iter().map(|m| (&m.at[..], &m.directory)))
    {
        match open_root(path) {
            Ok(dir) => places.push((at.to_vec(), dir)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io(format!("could not open the target {path:?}"), e)),
        }
    }
    let mut walk = Walk { places, selection, tricks, levels: Vec::new(), found: Vec::new() };
    for item in archive.records(selection, false) {
        let item = item.map_err(|e| e.detail("nothing is removed while nobody knows what belongs to the backup"))?;
        if item.from == 0 && plan.fate(&item.entry.path) != Fate::LeftOut {
            walk.belongs(&item.entry.path, matches!(item.entry.kind, Kind::Directory), item.state.is_stored());
        }
    }
    walk.leave(|_| false);
    Ok(walk.found)
}

struct Walk<'a> {
    /// The root of the tree and what is mounted in it.
    places: Vec<(EntryPath, OwnedFd)>,
    selection: &'a Selection,
    tricks: Tricks,
    levels: Vec<Level>,
    found: Vec<EntryPath>,
}

/// A directory that the walk is in, with the names that the backup has not spoken of yet.
struct Level {
    path: EntryPath,
    names: BTreeSet<Vec<u8>>,
}

impl Walk<'_> {
    /// The backup has something at this path. Of a directory that could not be read when it was backed up nobody knows
    /// what belongs into it.
    fn belongs(&mut self, path: &[u8], is_directory: bool, is_stored: bool) {
        self.leave(|level| entry::is_within(path, &level.path));
        let name = path.rsplit(|c| *c == b'/').next().unwrap_or_default();
        if let (Some(level), false) = (self.levels.last_mut(), path.is_empty()) {
            level.names.remove(name);
        }
        match is_directory {
            true if is_stored => self.levels.extend(self.enter(path)),
            false if self.selection.holds(path) && self.is_directory(path) => self.found.push(path.to_vec()),
            _ => {}
        }
    }

    /// The directory on disk. What is no directory there has nothing in it that does not belong.
    fn enter(&self, path: &[u8]) -> Option<Level> {
        let (place, rest) = self.resolve(path)?;
        let dir = open_dir(place, rest, self.tricks).ok()?;
        let names = walk::read_dir(&dir, &mut Vec::new()).ok()?;
        let mut names: BTreeSet<_> = names.into_iter().map(|name| name.bytes).collect();
        if path.is_empty() {
            names.remove(&b"lost+found"[..]); // of the file system
        }
        Some(Level { path: path.to_vec(), names })
    }

    fn is_directory(&self, path: &[u8]) -> bool {
        let Some((place, rest)) = self.resolve(path) else { return false };
        open_dir(place, rest, self.tricks).and_then(walk::stat_fd).is_ok_and(|stat| stat.kind == FileKind::Directory)
    }

    fn resolve<'a>(&self, path: &'a [u8]) -> Option<(&OwnedFd, &'a [u8])> {
        let within = |(at, _): &&(EntryPath, OwnedFd)| entry::is_within(path, at);
        let (at, dir) = self.places.iter().rev().find(within)?;
        let rest = &path[at.len()..];
        Some((dir, rest.strip_prefix(b"/").unwrap_or(rest)))
    }

    /// Leave the directories that are not kept; names nobody spoke of do not belong.
    fn leave(&mut self, keep: impl Fn(&Level) -> bool) {
        while let Some(level) = self.levels.pop_if(|level| !keep(level)) {
            for name in level.names {
                let path = if level.path.is_empty() { name } else { [&level.path[..], &name].join(&b'/') };
                if self.selection.holds(&path) {
                    self.found.push(path);
                }
            }
        }
    }
}
