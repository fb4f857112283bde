//! What stands in a tree on disk and does not belong to a backup.
//!
//! Both are gone through in the same order; memory holds the names of the directories between the root and the entry at
//! hand. Of a directory that does not belong only the directory itself is named, unless something in it stays: what the
//! backup is read from, and what is mounted there. A mount that the backup has an empty directory for stays with all that is
//! in it: the backup was told not to look there. Nothing is changed.

use crate::{
    archive::{Archive, Selection},
    error::{Error, ErrorKind, Result, quoted},
    format::entry::{self, EntryKind, EntryPath},
    platform::{
        Tricks,
        dir::{self, FileKind, LOST_AND_FOUND, Stat, open_dir, open_root},
        tree_walk::{Visit, descend},
    },
    postgres::restore::plan::ClusterPlan,
    sink::Place,
    target::layout::{TargetLayout, TargetMount},
};
use std::{
    collections::{BTreeSet, HashSet},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

const READ_FROM: &str = "the backup is read from there";
const MOUNTED: &str = "something is mounted there, of which the backup has nothing";

/// What does not belong.
#[derive(Debug, Default)]
pub(crate) struct ExtraneousFiles {
    /// Paths of what is to be removed, each with all that is below it; in no order.
    pub(crate) paths: Vec<EntryPath>,
    /// What stays all the same, one line for each.
    pub(crate) kept: Vec<String>,
}

/// What does not belong to the selected part of a backup.
///
/// # Errors
/// Damage to a page: then nobody knows what belongs. [`ErrorKind::Exists`] if what stays is in the way of something that
/// belongs. The system's.
pub(crate) fn extra(
    archive: &Archive,
    selection: &Selection,
    plan: &ClusterPlan,
    layout: &TargetLayout,
    tricks: Tricks,
) -> Result<ExtraneousFiles> {
    let mut places = Vec::new();
    for (at, path) in std::iter::once((&b""[..], &layout.root))
        .chain(layout.mounts.iter().map(|m| (&m.at[..], &m.directory)))
    {
        match open_root(path) {
            Ok(dir) => places.push((at.to_vec(), dir)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io(format!("could not open the target {path:?}"), e)),
        }
    }
    let (own, ways, mounts) = (archive.store().places(), archive.ways()?, &layout.mounts);
    let mut walk = ExtraWalk {
        places,
        mounts,
        own,
        ways,
        selection,
        tricks,
        levels: Vec::new(),
        found: ExtraneousFiles::default(),
    };
    for item in archive.records(selection, false) {
        let item = item.map_err(|e| {
            e.detail("nothing is removed while nobody knows what belongs to the backup")
        })?;
        if item.from == 0 && !plan.leaves_out(&item.entry.path) {
            walk.belongs(
                &item.entry.path,
                matches!(item.entry.kind, EntryKind::Directory),
                item.state.is_stored(),
            )?;
        }
    }
    walk.leave(|_| false)?;
    Ok(walk.found)
}

struct ExtraWalk<'a> {
    /// The root of the tree and what is mounted in it.
    places: Vec<(EntryPath, OwnedFd)>,
    mounts: &'a [TargetMount],
    /// What the backup is read from.
    own: Vec<Place>,
    /// Of what is in these the backup knows only what is on the way.
    ways: HashSet<EntryPath>,
    selection: &'a Selection,
    tricks: Tricks,
    levels: Vec<ExtraLevel>,
    found: ExtraneousFiles,
}

/// A directory that the walk is in, with the names that the backup has not spoken of yet.
struct ExtraLevel {
    path: EntryPath,
    names: BTreeSet<Vec<u8>>,
    device: u64,
    /// Why nothing is removed from it.
    stays: Option<&'static str>,
}

impl ExtraWalk<'_> {
    /// The backup has something at this path. Of a directory that could not be read when it was backed up nobody knows
    /// what belongs into it.
    fn belongs(&mut self, path: &[u8], is_directory: bool, is_stored: bool) -> Result<()> {
        self.leave(|level| entry::is_within(path, &level.path))?;
        if let (Some(level), false) = (self.levels.last_mut(), path.is_empty()) {
            // The directory that this is in may not be on disk; then what belongs here is that directory.
            level
                .names
                .remove(entry::child_component(&level.path, path));
            level.stays = level.stays.filter(|why| *why == READ_FROM);
        }
        match is_directory {
            true if self.ways.contains(path) => Ok(()),
            true if is_stored => {
                let level = self.enter(path)?;
                self.levels.extend(level);
                Ok(())
            }
            false if self.selection.holds(path) && self.is_directory(path) => self.makes_way(path),
            _ => Ok(()),
        }
    }

    /// The directory on disk. What is no directory there has nothing in it that does not belong.
    fn enter(&self, path: &[u8]) -> Result<Option<ExtraLevel>> {
        let dir = match self.open(path) {
            Err(error) if dir::is_missing_directory(&error) => return Ok(None),
            // The restore cannot open it either, and names it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            other => other.map_err(|e| failed(path, e))?,
        };
        let names = dir::read_dir(&dir, &mut Vec::new()).map_err(|e| failed(path, e))?;
        let stat = dir::stat_fd(&dir).map_err(|e| failed(path, e))?;
        let mut names: BTreeSet<_> = names.into_iter().map(|name| name.bytes).collect();
        if path.is_empty() || dir::is_mount_root(&dir) {
            names.remove(LOST_AND_FOUND); // of the file system
        }
        if let Some(mount) = self.mounts.iter().find(|mount| mount.at == path) {
            names.retain(|name| mount.may_own(name));
        }
        let stays = self.stays(path, &stat);
        Ok(Some(ExtraLevel {
            path: path.to_vec(),
            names,
            device: stat.dev,
            stays,
        }))
    }

    /// Why nothing may be removed from this directory, unless the backup has something else in it.
    fn stays(&self, path: &[u8], stat: &Stat) -> Option<&'static str> {
        let around = self.levels.last();
        let is_place = self.places.iter().any(|(at, _)| at == path);
        if self.own.contains(&(stat.dev, stat.inode)) || around?.stays == Some(READ_FROM) {
            return Some(READ_FROM);
        }
        (!is_place && stat.is_mount_boundary(around?.device)).then_some(MOUNTED)
    }

    fn is_directory(&self, path: &[u8]) -> bool {
        self.open(path)
            .and_then(dir::stat_fd)
            .is_ok_and(|stat| stat.kind == FileKind::Directory)
    }

    fn open(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let within = |(at, _): &&(EntryPath, OwnedFd)| entry::is_within(path, at);
        let (at, dir) = self
            .places
            .iter()
            .rev()
            .find(within)
            .ok_or(io::ErrorKind::NotFound)?;
        let rest = &path[at.len()..];
        open_dir(dir, rest.strip_prefix(b"/").unwrap_or(rest), self.tricks)
    }

    /// Leave the directories that are not kept; names nobody spoke of do not belong.
    fn leave(&mut self, keep: impl Fn(&ExtraLevel) -> bool) -> Result<()> {
        while let Some(level) = self.levels.pop_if(|level| !keep(level)) {
            if let (Some(why), false) = (level.stays, level.names.is_empty()) {
                self.keep(&level.path, why);
                continue;
            }
            let paths = level
                .names
                .iter()
                .map(|name| entry::join(&level.path, name));
            let paths: Vec<_> = paths.filter(|path| self.selection.holds(path)).collect();
            if !paths.is_empty() {
                let dir = self.open(&level.path).map_err(|e| failed(&level.path, e))?;
                paths
                    .iter()
                    .try_for_each(|path| self.sweep(&dir, level.device, path).map(drop))?;
            }
        }
        Ok(())
    }

    /// A directory stands where the backup has something else.
    fn makes_way(&mut self, path: &[u8]) -> Result<()> {
        let dir = self
            .open(entry::split(path).0)
            .map_err(|e| failed(path, e))?;
        let device = dir::stat_fd(&dir).map_err(|e| failed(path, e))?.dev;
        if self.sweep(&dir, device, path)? {
            return Ok(());
        }
        let what = format!(
            "cannot restore {}: a directory is in its way that is not removed",
            quoted(path)
        );
        let error = Error::new(ErrorKind::Exists, what);
        Err(self
            .found
            .kept
            .iter()
            .fold(error, |error, line| error.detail(line)))
    }

    /// Name what is to be removed of `path`, which stands in `dir` on this device. Can all of it go?
    fn sweep(&mut self, dir: &OwnedFd, device: u64, path: &[u8]) -> Result<bool> {
        let (parent, name) = entry::split(path);
        let tricks = self.tricks;
        let mut sweep = ExtraSweep {
            walk: self,
            levels: vec![Swept::new(device)],
        };
        descend(dir.as_fd(), name, path, tricks, &mut sweep)?;
        let goes = sweep.levels.iter().all(|around| around.whole);
        sweep
            .levels
            .into_iter()
            .for_each(|around| self.found.paths.extend(around.paths(parent)));
        Ok(goes)
    }

    fn keep(&mut self, path: &[u8], why: &str) {
        self.found
            .kept
            .push(format!("{} is kept: {why}", quoted(path)));
    }
}

/// All that is below something that does not belong.
struct ExtraSweep<'a, 'b> {
    walk: &'a mut ExtraWalk<'b>,
    levels: Vec<Swept>,
}

/// A directory of it.
struct Swept {
    device: u64,
    /// What can go, with all below it.
    names: Vec<Vec<u8>>,
    /// Can all of it go, as far as is known?
    whole: bool,
}

impl Swept {
    fn new(device: u64) -> Self {
        Self {
            device,
            names: Vec::new(),
            whole: true,
        }
    }

    fn paths(self, path: &[u8]) -> impl Iterator<Item = EntryPath> {
        self.names
            .into_iter()
            .map(move |name| entry::join(path, &name))
    }
}

impl Visit for ExtraSweep<'_, '_> {
    type Error = Error;

    fn meet(&mut self, _: BorrowedFd<'_>, name: &[u8], path: &[u8], stat: &Stat) -> Result<bool> {
        let is_own = self.walk.own.contains(&(stat.dev, stat.inode));
        let is_mount_boundary = self
            .levels
            .last()
            .is_some_and(|around| stat.is_mount_boundary(around.device));
        if is_own || is_mount_boundary {
            self.walk
                .keep(path, if is_own { READ_FROM } else { MOUNTED });
            self.levels
                .last_mut()
                .into_iter()
                .for_each(|around| around.whole = false);
            return Ok(false);
        }
        match stat.kind {
            FileKind::Directory => self.levels.push(Swept::new(stat.dev)),
            _ => self
                .levels
                .last_mut()
                .into_iter()
                .for_each(|around| around.names.push(name.to_vec())),
        }
        Ok(true)
    }

    fn leave(&mut self, _: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<()> {
        match (self.levels.pop(), self.levels.last_mut()) {
            (Some(left), Some(around)) if left.whole => around.names.push(name.to_vec()),
            (Some(left), Some(around)) => {
                around.whole = false;
                self.walk.found.paths.extend(left.paths(path));
            }
            _ => {}
        }
        Ok(())
    }

    /// It cannot be removed either, unless it is empty: the removal names it, and the rest is restored.
    fn shut(&mut self, name: &[u8], path: &[u8], met: bool, error: io::Error) -> Result<()> {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return Err(failed(path, error));
        }
        if met {
            self.levels.pop();
        }
        self.levels
            .last_mut()
            .into_iter()
            .for_each(|around| around.names.push(name.to_vec()));
        Ok(())
    }

    fn failed(&self, path: &[u8], error: io::Error) -> Error {
        failed(path, error)
    }
}

fn failed(path: &[u8], error: io::Error) -> Error {
    Error::io(
        format!("could not look at {} in the target", quoted(path)),
        error,
    )
}
