//! Finds files in the target that do not belong to the backup.
//!
//! The tree and the backup are read in the same order; memory holds the names of the directories
//! between the root and the current entry. A whole directory that does not belong is listed as one
//! path, unless something in it must be kept: the repository that the restore reads, and mount
//! points. A mount point for which the backup has an empty directory is kept with its content,
//! because the backup excluded the mounted file system. Changes nothing.

use super::plan::RestorePlan;
use fullbore_format::{
    entry::{self, EntryKind, EntryPath},
    error::{Error, ErrorKind, Result, quoted},
};
use fullbore_pipeline::sink::Place;
use fullbore_platform::{
    dir::{self, FileKind, LOST_AND_FOUND, Stat, open_dir, open_root},
    tree_walk::{Visit, descend},
};
use fullbore_repository::archive::Selection;
use fullbore_tree::{
    patterns::Patterns,
    read::CACHE_TAG_NAME,
    write::{deletion_limit::PlannedDeletions, layout::TargetMount},
};
use std::{
    collections::{BTreeSet, HashSet},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

const READ_FROM: &str = "the backup is read from there";
const MOUNTED: &str = "something is mounted there, and the backup does not cover it";

/// Files that do not belong to the backup.
#[derive(Debug, Default)]
pub(crate) struct ExtraneousFiles {
    /// Paths to remove, each with everything below it; in no order.
    pub(crate) paths: Vec<EntryPath>,
    /// Paths that are kept all the same, one line each.
    pub(crate) kept: Vec<String>,
    /// The counts of the removal.
    pub(crate) planned: PlannedDeletions,
}

/// Lists the files that do not belong to the selected part of a backup. The selection, and the
/// patterns of `never`, keep files too. With `keeps_caches`, so does a directory of which the backup
/// has nothing but the tag of a cache.
///
/// # Errors
/// [`ErrorKind::Corrupt`] for a damaged page, because the expected files are unknown then.
/// [`ErrorKind::Exists`] if a path that must be kept blocks a path of the backup. Errors of the
/// system.
pub(crate) fn find_extraneous(
    plan: &RestorePlan,
    never: &Patterns,
    keeps_caches: bool,
) -> Result<ExtraneousFiles> {
    let RestorePlan {
        archive,
        selection,
        rules,
        layout,
        ..
    } = plan;
    let mut places = Vec::new();
    for (place, path) in std::iter::once((&b""[..], &layout.root))
        .chain(layout.mounts.iter().map(|m| (&m.at[..], &m.directory)))
    {
        match open_root(path) {
            Ok(dir) => places.push((place.to_vec(), dir)),
            // A target that does not exist has no files to remove.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io(format!("could not open the target {path:?}"), e)),
        }
    }
    let own = archive.store().places();
    let ways = archive.ways()?;
    let mounts = &layout.mounts;
    let mut walk = ExtraWalk {
        places,
        mounts,
        own,
        ways,
        selection,
        never,
        keeps_caches,
        levels: Vec::new(),
        found: ExtraneousFiles::default(),
    };
    for item in archive.records(selection, false) {
        let item = item.map_err(|e| {
            e.detail("nothing is removed, because the list of files in the backup is incomplete")
        })?;
        // A large file may have more records, which name the same path.
        if item.from == 0 && !rules.leaves_out(&item.entry.path) {
            walk.expect(
                &item.entry.path,
                matches!(item.entry.kind, EntryKind::Directory),
                item.state.is_stored(),
            )?;
        }
    }
    walk.leave(|_| false)?;
    Ok(walk.found)
}

/// Refuses a target whose other files would be used with those of the backup.
///
/// # Errors
/// [`ErrorKind::Exists`] for the first of them in order; those of [`find_extraneous`].
pub(crate) fn refuse_leftovers(plan: &RestorePlan) -> Result<()> {
    if !plan.rules.refuses_leftovers() {
        return Ok(());
    }
    let mut paths = find_extraneous(plan, &Patterns::default(), false)?.paths;
    paths.sort_unstable();
    let mut errors = paths
        .iter()
        .filter_map(|path| plan.rules.leftover_error(path));
    errors.next().map_or(Ok(()), Err)
}

struct ExtraWalk<'a> {
    /// The root of the tree and the mount points in it.
    places: Vec<(EntryPath, OwnedFd)>,
    mounts: &'a [TargetMount],
    /// Files and directories that the restore reads the backup from.
    own: Vec<Place>,
    /// Parent directories of the backup's source; the backup knows only the next step on the path
    /// in each.
    ways: HashSet<EntryPath>,
    selection: &'a Selection,
    /// Patterns of files that are never removed.
    never: &'a Patterns,
    keeps_caches: bool,
    levels: Vec<ExtraLevel>,
    found: ExtraneousFiles,
}

/// A directory that the walk is in, with the names that no record has matched yet.
struct ExtraLevel {
    path: EntryPath,
    names: BTreeSet<Vec<u8>>,
    device: u64,
    /// Entries of the backup in it, and whether one of them is the tag of a cache.
    entries: u64,
    has_cache_tag: bool,
    /// The reason why its names are kept, if they are.
    stays: Option<&'static str>,
}

impl ExtraWalk<'_> {
    /// Marks the path as expected. The content of a directory that could not be read during the
    /// backup is unknown, so nothing in that directory is listed.
    fn expect(&mut self, path: &[u8], is_directory: bool, is_stored: bool) -> Result<()> {
        self.leave(|level| entry::is_within(path, &level.path))?;
        if let (Some(level), false) = (self.levels.last_mut(), path.is_empty()) {
            // If the parent is not on disk, this step is one of the missing directories above the
            // path.
            let is_there = level
                .names
                .remove(entry::child_component(&level.path, path));
            if is_there && self.selection.holds(path) {
                self.found.planned.there += 1;
            }
            level.entries += 1;
            level.has_cache_tag |= entry::split(path) == (&level.path[..], CACHE_TAG_NAME);
            level.stays = level.stays.filter(|why| *why == READ_FROM);
        }
        match is_directory {
            true if self.ways.contains(path) => Ok(()),
            true if is_stored => {
                let level = self.enter_dir(path)?;
                self.levels.extend(level);
                Ok(())
            }
            false if self.selection.holds(path) && self.is_directory(path) => self.clear_way(path),
            _ => Ok(()),
        }
    }

    /// Opens a directory on disk and lists its names. Returns `None` for a file that is no
    /// directory.
    fn enter_dir(&self, path: &[u8]) -> Result<Option<ExtraLevel>> {
        let dir = match self.open(path) {
            Err(error) if dir::is_missing_directory(&error) => return Ok(None),
            // The restore fails to open this directory too, and reports it.
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
        let stays = self.reason_to_keep(path, &stat);
        Ok(Some(ExtraLevel {
            path: path.to_vec(),
            names,
            device: stat.dev,
            entries: 0,
            has_cache_tag: false,
            stays,
        }))
    }

    /// Returns the reason why unexpected names in this directory are kept, if there is one.
    fn reason_to_keep(&self, path: &[u8], stat: &Stat) -> Option<&'static str> {
        let parent = self.levels.last();
        let is_place = self.places.iter().any(|(place, _)| place == path);
        if self.own.contains(&(stat.dev, stat.inode)) || parent?.stays == Some(READ_FROM) {
            return Some(READ_FROM);
        }
        (!is_place && stat.is_mount_boundary(parent?.device)).then_some(MOUNTED)
    }

    fn is_directory(&self, path: &[u8]) -> bool {
        self.open(path)
            .and_then(dir::stat_fd)
            .is_ok_and(|stat| stat.kind == FileKind::Directory)
    }

    fn open(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let is_within = |(place, _): &&(EntryPath, OwnedFd)| entry::is_within(path, place);
        let (place, dir) = self
            .places
            .iter()
            .rev()
            .find(is_within)
            .ok_or(io::ErrorKind::NotFound)?;
        let rest = &path[place.len()..];
        open_dir(dir, rest.strip_prefix(b"/").unwrap_or(rest))
    }

    /// Leaves directories until `keep` holds; names without a record are extraneous.
    fn leave(&mut self, keep: impl Fn(&ExtraLevel) -> bool) -> Result<()> {
        while let Some(level) = self.levels.pop_if(|level| !keep(level)) {
            if let (Some(why), false) = (level.stays, level.names.is_empty()) {
                self.note_kept(&level.path, why);
                continue;
            }
            if self.keeps_caches && level.entries == 1 && level.has_cache_tag {
                continue;
            }
            let paths = level
                .names
                .iter()
                .map(|name| entry::join(&level.path, name));
            let paths: Vec<_> = paths.filter(|path| self.selection.holds(path)).collect();
            if !paths.is_empty() {
                let dir = self.open(&level.path).map_err(|e| failed(&level.path, e))?;
                paths.iter().try_for_each(|path| {
                    self.collect_removable(&dir, level.device, path).map(drop)
                })?;
            }
        }
        Ok(())
    }

    /// Lists a directory for removal that is in the way of another kind of entry.
    fn clear_way(&mut self, path: &[u8]) -> Result<()> {
        let dir = self
            .open(entry::split(path).0)
            .map_err(|e| failed(path, e))?;
        let device = dir::stat_fd(&dir).map_err(|e| failed(path, e))?.dev;
        if self.collect_removable(&dir, device, path)? {
            return Ok(());
        }
        let message = format!(
            "cannot restore {}: a directory is in the way and cannot be removed",
            quoted(path)
        );
        let error = Error::new(ErrorKind::Exists, message);
        Err(self
            .found
            .kept
            .iter()
            .fold(error, |error, line| error.detail(line)))
    }

    /// Lists the removable files of `path`, an entry of `dir` on this device. Returns whether
    /// everything in it can be removed.
    fn collect_removable(&mut self, dir: &OwnedFd, device: u64, path: &[u8]) -> Result<bool> {
        let (parent, name) = entry::split(path);
        let mut sweep = ExtraSweep {
            walk: self,
            levels: vec![SweptDir::new(device)],
        };
        descend(dir.as_fd(), name, path, &mut sweep)?;
        let goes = sweep.levels.iter().all(|around| around.whole);
        sweep
            .levels
            .into_iter()
            .for_each(|around| self.found.paths.extend(around.paths(parent)));
        Ok(goes)
    }

    /// Returns whether a pattern leaves a path out, as a file or as a directory.
    fn is_left_out(&self, path: &[u8]) -> bool {
        !self.selection.holds(path)
            || self.never.matches(path, true)
            || self.never.matches(path, false)
    }

    fn note_kept(&mut self, path: &[u8], why: &str) {
        self.found
            .kept
            .push(format!("{} is kept: {why}", quoted(path)));
    }
}

/// The walk through an extraneous directory.
struct ExtraSweep<'a, 'b> {
    walk: &'a mut ExtraWalk<'b>,
    levels: Vec<SweptDir>,
}

/// A directory inside an extraneous one.
struct SweptDir {
    device: u64,
    /// Names that can be removed with everything below them.
    names: Vec<Vec<u8>>,
    /// Whether everything seen so far can be removed.
    whole: bool,
}

impl SweptDir {
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

    fn meet(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8], stat: &Stat) -> Result<bool> {
        if self.walk.is_left_out(path) || dir::is_lost_and_found(dir, name) {
            // An entry that stays keeps its directory.
            let parent = self.levels.last_mut();
            parent.into_iter().for_each(|parent| parent.whole = false);
            return Ok(false);
        }
        let is_own = self.walk.own.contains(&(stat.dev, stat.inode));
        let is_mount_boundary = self
            .levels
            .last()
            .is_some_and(|around| stat.is_mount_boundary(around.device));
        if is_own || is_mount_boundary {
            self.walk
                .note_kept(path, if is_own { READ_FROM } else { MOUNTED });
            self.levels
                .last_mut()
                .into_iter()
                .for_each(|around| around.whole = false);
            return Ok(false);
        }
        self.walk.found.planned.extra += 1;
        self.walk.found.planned.there += 1;
        match stat.kind {
            FileKind::Directory => self.levels.push(SweptDir::new(stat.dev)),
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

    /// A directory that cannot be opened can be removed only if it is empty: the removal reports
    /// it, and the restore continues.
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
        format!("could not read {} in the target", quoted(path)),
        error,
    )
}
