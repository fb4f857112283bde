//! Where in the file system the paths of a tree are: beneath its root, beneath a mount, or for a while under another name.
//!
//! A mount is a path whose contents are beneath another directory, as a tablespace is: in the root stands a symbolic link
//! to it. That link is never followed: each place is a directory that is open, and what is resolved in it stays beneath it.
//! Everything is checked before anything is made.

use super::{
    access::can_be_opened_up,
    case_folding::folds,
    final_file::{FinalFile, UNFINISHED},
    probe::{trial, trial_of_names},
    warnings::TargetWarnings,
};
use crate::{
    error::{Error, ErrorKind, Result, quoted},
    format::{
        entry::{self, EntryPath, Time},
        sizes,
    },
    platform::{
        Tricks,
        dir::{LOST_AND_FOUND, open_root, read_dir, real_path, stat_fd},
        inodes::creation_error_at,
        safe_file::dangling_symlink_target,
        write::{chown_fd, compresses, create_dir_beneath, may_write, set_times_fd, usable_bytes},
        xattr,
    },
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// A time that only a file system which keeps nanoseconds keeps.
const FINE: Time = Time {
    seconds: 1_000_000_001,
    nanos: 123_456_789,
};

/// What the system makes of a file that is created in a place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fresh {
    pub(crate) owner: (u32, u32),
    /// Did it get the mode that was asked for? Not on every file system of another machine.
    pub(crate) mode_kept: bool,
}

/// Where a tree is to be.
#[derive(Debug, Clone, Default)]
pub struct TargetLayout {
    /// The directory of the empty path.
    pub root: PathBuf,
    /// Bytes that will be written beneath it; 0 if unknown.
    pub bytes: u64,
    /// What is elsewhere.
    pub mounts: Vec<TargetMount>,
    /// What the operator can do if a mount cannot be where it is to be.
    pub hint: &'static str,
    /// The file that is put in place when all else is durable.
    pub last: Option<FinalFile>,
}

/// A path whose contents are beneath another directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetMount {
    /// The path; never empty.
    pub at: EntryPath,
    /// The directory; absolute. The link to it is made by the tree.
    pub directory: PathBuf,
    /// Bytes that will be written beneath it; 0 if unknown.
    pub bytes: u64,
    /// Others may have the directory too, see [`Shared`].
    pub shared: Option<SharedDirectory>,
    /// The user whose the directory must be, or that in which it is made, where only the backup names it.
    pub holder: Option<u32>,
}

/// A directory that others have something in as well, by name: clusters of several versions in the location of a tablespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedDirectory {
    /// What the names of all of them begin with,
    pub all: Vec<u8>,
    /// and those that belong to this tree.
    pub own: Vec<u8>,
}

impl SharedDirectory {
    /// May what has this name be this tree's?
    pub fn is_own(&self, name: &[u8]) -> bool {
        name.starts_with(&self.own)
    }

    /// Does it belong to another one?
    fn is_anothers(&self, name: &[u8]) -> bool {
        name.starts_with(&self.all) && !self.is_own(name)
    }
}

impl TargetMount {
    /// Is nothing in it that belongs to the tree, and nothing that nobody speaks of?
    fn is_vacant(&self) -> Result<bool> {
        let is_anothers = |name: &[u8]| {
            self.shared
                .as_ref()
                .is_some_and(|shared| shared.is_anothers(name))
        };
        is_vacant_but(&self.directory, is_anothers)
    }

    /// May anybody's have this name in the directory?
    pub fn may_hold(&self, name: &[u8]) -> bool {
        self.shared
            .as_ref()
            .is_none_or(|shared| name.starts_with(&shared.all))
    }

    /// May what has this name in the directory be the tree's?
    pub fn may_own(&self, name: &[u8]) -> bool {
        self.shared
            .as_ref()
            .is_none_or(|shared| shared.is_own(name))
    }
}

impl TargetLayout {
    /// Everything in one directory.
    pub fn plain(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            ..Self::default()
        }
    }

    /// The root and the mounts: directories and the bytes they get.
    fn directories(&self) -> impl Iterator<Item = (&Path, u64)> {
        let mounts = self
            .mounts
            .iter()
            .map(|mount| (&*mount.directory, mount.bytes));
        std::iter::once((&*self.root, self.bytes)).chain(mounts)
    }

    /// Can it all be made? Nothing is, here.
    pub(crate) fn check(&self, overwrite: bool) -> Result<()> {
        if !overwrite && !is_vacant(&self.root)? {
            return Err(not_empty(&self.root).hint(
                "choose another --to; --overwrite replaces what stands in the way, --delta writes what differs",
            ));
        }
        for mount in &self.mounts {
            // Only what the tree to be replaced links to is part of that tree.
            let own = overwrite && self.is_linked(mount);
            if !own && !mount.is_vacant()? {
                return Err(not_empty(&mount.directory).hint(self.hint));
            }
        }
        self.are_apart()?;
        self.directories()
            .try_for_each(|(path, _)| is_writable(path, overwrite))?;
        if overwrite { Ok(()) } else { self.have_room() }
    }

    fn is_linked(&self, mount: &TargetMount) -> bool {
        let link = self.root.join(OsStr::from_bytes(&mount.at));
        let is_there =
            |real: PathBuf| real_path(&mount.directory).is_ok_and(|directory| directory == real);
        link.is_symlink() && real_path(&link).is_ok_and(is_there)
    }

    /// No directory is another one, or within another.
    fn are_apart(&self) -> Result<()> {
        let mut before: Vec<(&Path, PathBuf)> = Vec::new();
        for (path, _) in self.directories() {
            let real =
                real(path).map_err(|e| Error::io(format!("could not look at {path:?}"), e))?;
            let overlaps = |(_, other): &&(&Path, PathBuf)| {
                real.starts_with(other) || other.starts_with(&real)
            };
            if let Some((other, _)) = before.iter().find(overlaps) {
                let what = format!(
                    "cannot restore to both {other:?} and {path:?}: one is the other, or within it"
                );
                return Err(Error::new(ErrorKind::Usage, what).hint(self.hint));
            }
            before.push((path, real));
        }
        Ok(())
    }

    /// Each file system has room for what it gets.
    fn have_room(&self) -> Result<()> {
        let mut systems: BTreeMap<u64, (u64, u64, &Path)> = BTreeMap::new();
        for (path, bytes) in self.directories() {
            let (dev, free) =
                facts(path).map_err(|e| Error::io(format!("could not look at {path:?}"), e))?;
            sizes::add(&mut systems.entry(dev).or_insert((0, free, path)).0, bytes);
        }
        systems
            .into_values()
            .try_for_each(|(bytes, free, path)| fits(bytes, free, path))
    }
}

fn fits(bytes: u64, free: u64, path: &Path) -> Result<()> {
    if bytes <= free {
        return Ok(());
    }
    let (needed, free) = (bytes.div_ceil(1_000_000), free / 1_000_000);
    let what = format!(
        "cannot restore to {path:?}: {needed} MB will be written there, and {free} MB are free"
    );
    Err(Error::new(ErrorKind::Full, what)
        .hint("free space, or choose another place; --overwrite tries without asking"))
}

fn not_empty(path: &Path) -> Error {
    Error::new(
        ErrorKind::Exists,
        format!("cannot restore to {path:?}: it is not empty"),
    )
}

/// Is it an empty directory, or not there? A fresh ext4 holds `lost+found`, and is empty for all that.
fn is_vacant(path: &Path) -> Result<bool> {
    is_vacant_but(path, |_| false)
}

/// The same, but for what `may` be there.
fn is_vacant_but(path: &Path, may: impl Fn(&[u8]) -> bool) -> Result<bool> {
    // One that may be entered, but not listed, cannot be made durable either.
    let names = std::fs::File::open(path).and_then(|dir| read_dir(dir, &mut Vec::new()));
    match names {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(Error::io(format!("could not open the target {path:?}"), e)),
        Ok(names) => Ok(names
            .iter()
            .all(|name| name.bytes == LOST_AND_FOUND || may(&name.bytes))),
    }
}

/// Can something be made at `path`, or in it? Its owner may have kept himself from that; if he can `open_up` it, he is let in.
fn is_writable(path: &Path, open_up: bool) -> Result<()> {
    let failed = |e| Error::io(format!("could not look at {path:?}"), e);
    let there = existing(path).map_err(failed)?;
    let may = if there.is_dir() {
        may_write(&there)
    } else {
        Err(io::ErrorKind::NotADirectory.into())
    };
    if open_up && is_denied(&may) && real_path(path).is_ok_and(|real| real == there) {
        let stat = open_root(&there).and_then(stat_fd).map_err(failed)?;
        if can_be_opened_up(&stat) {
            return Ok(());
        }
    }
    may.map_err(|e| {
        Error::io(
            format!("cannot restore to {path:?}: {there:?} cannot be written to"),
            e,
        )
    })
}

fn is_denied(result: &io::Result<()>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// The deepest directory of `path` that is there, without symbolic links.
fn existing(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    for ancestor in path.ancestors() {
        match real_path(ancestor) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
    }
    Ok(path)
}

/// `path` without the symbolic links that are there now.
fn real(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    for ancestor in absolute.ancestors() {
        match real_path(ancestor) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
            Ok(real) => {
                return Ok(real.join(absolute.strip_prefix(ancestor).unwrap_or(Path::new(""))));
            }
        }
    }
    Ok(absolute)
}

/// The deepest directory of `path` that is there, open, and what is missing below it. Links are followed.
fn deepest(path: &Path) -> io::Result<(OwnedFd, &Path, &Path)> {
    for ancestor in path.ancestors() {
        match open_root(ancestor) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            opened => {
                return Ok((
                    opened?,
                    ancestor,
                    path.strip_prefix(ancestor).unwrap_or(Path::new("")),
                ));
            }
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// The deepest directory of an absolute `path` that is there, and whose it is.
///
/// # Errors
/// The system's.
pub fn holder(path: &Path) -> io::Result<(&Path, u32)> {
    let (dir, there, _) = deepest(path)?;
    Ok((there, stat_fd(dir)?.uid))
}

/// Does what this user has stand for what a backup names? Not if it is root's: no backup takes that.
pub fn is_held(by: u32, holder: u32) -> bool {
    by == holder && holder != 0
}

/// Open a directory that only the backup names, or make it. What counts is what is open: by now its name may lead elsewhere.
fn open_held(path: &Path, holder: u32) -> Result<OwnedFd> {
    let failed = |e| Error::io(format!("could not open the target {path:?}"), e);
    let (dir, there, missing) = deepest(path).map_err(failed)?;
    let uid = stat_fd(&dir).map_err(failed)?.uid;
    if !is_held(uid, holder) {
        let what = format!("cannot restore to {path:?}: {there:?} belongs to user {uid} by now");
        return Err(Error::new(ErrorKind::Permission, what));
    }
    if missing.as_os_str().is_empty() {
        return Ok(dir);
    }
    let made = create_dir_beneath(&dir, missing.as_os_str().as_bytes(), 0o777, Tricks::Auto);
    let made = made.map_err(|e| Error::io(format!("could not create {path:?}"), e))?;
    // Held at once, so that a restore which is cut off can be done again.
    let _ = stat_fd(&made).and_then(|stat| chown_fd(&made, holder, stat.gid));
    Ok(made)
}

fn open_or_make(path: &Path) -> Result<OwnedFd> {
    if !path.is_dir() {
        let made = std::fs::create_dir_all(path).map_err(|e| creation_error_at(e, path));
        made.map_err(|e| Error::io(format!("could not create {path:?}"), e))?;
    }
    open_root(path).map_err(|e| Error::io(format!("could not open the target {path:?}"), e))
}

/// The file system that `path` will be on, and the bytes that are free there; as many as there can be where nobody knows how many
/// something takes before it is written.
fn facts(path: &Path) -> io::Result<(u64, u64)> {
    let dir = open_root(&existing(path)?)?;
    let free = if compresses(&dir)? {
        u64::MAX
    } else {
        usable_bytes(&dir)?
    };
    Ok((stat_fd(&dir)?.dev, free))
}

/// A directory that is open, and what is beneath it.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    pub(crate) at: EntryPath,
    path: PathBuf,
    pub(crate) dir: OwnedFd,
    /// What a new file looked like; the same for all of them unless there were directories before.
    pub(crate) fresh: OnceLock<Fresh>,
    /// Owner and group that a new file gets, if one could be made.
    pub(crate) maker: OnceLock<(u32, u32)>,
    /// Does it keep nanoseconds? Not known if no file could be made.
    pub(crate) keeps_nanos: OnceLock<bool>,
    /// Was it made for this tree, or empty?
    pub(crate) is_new: bool,
    /// Does what is made in it inherit an access list?
    pub(crate) passes_on_default_acl: bool,
}

impl OpenDirectory {
    /// Open a directory, which is made if it is not there.
    fn open(at: &[u8], path: &Path, holder: Option<u32>) -> Result<Self> {
        let is_new = is_vacant(path)?;
        if let Some(lost) = dangling_symlink_target(path) {
            let what =
                format!("cannot restore to {path:?}: it is a link to {lost:?}, which is not there");
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let dir = holder.map_or_else(|| open_or_make(path), |holder| open_held(path, holder))?;
        let passes_on_default_acl = xattr::passes_on_default_acl(&dir);
        let (fresh, maker, keeps_nanos) = Default::default();
        Ok(Self {
            at: at.to_vec(),
            path: path.to_owned(),
            dir,
            fresh,
            maker,
            keeps_nanos,
            is_new,
            passes_on_default_acl,
        })
    }

    /// Find out by a file whose new ones are, how precise their times, and whether names of another case are taken for the same.
    /// Where none can be made nothing is known.
    pub(crate) fn folds(&self, notes: &TargetWarnings) -> bool {
        let look = |file: &OwnedFd| {
            let _ = set_times_fd(file, FINE);
            if let Ok(stat) = stat_fd(file) {
                let _ = (
                    self.maker.set((stat.uid, stat.gid)),
                    self.keeps_nanos.set(stat.mtime == FINE),
                );
            }
        };
        let look_at_names = |file: &OwnedFd, name: &[u8]| {
            look(file);
            folds(&self.dir, name)
        };
        let found = trial_of_names(&self.dir, notes, look_at_names);
        if found.is_none() {
            trial(&self.dir, notes, look);
        }
        found.unwrap_or(false)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct TargetDirectories {
    root: OpenDirectory,
    mounts: Vec<OpenDirectory>,
    pub(crate) last: Option<FinalFile>,
}

impl TargetDirectories {
    /// Open all directories of a layout.
    pub(crate) fn open(layout: &TargetLayout) -> Result<Self> {
        let mount = |mount: &TargetMount| match entry::is_safe(&mount.at) && !mount.at.is_empty() {
            true => OpenDirectory::open(&mount.at, &mount.directory, mount.holder),
            false => Err(Error::new(
                ErrorKind::Bug,
                format!("nothing can be mounted at {}", quoted(&mount.at)),
            )),
        };
        let root = OpenDirectory::open(b"", &layout.root, None)?;
        let mounts = layout.mounts.iter().map(mount).collect::<Result<_>>()?;
        Ok(Self {
            root,
            mounts,
            last: layout.last.clone(),
        })
    }

    /// The place of a path, and the path in it.
    pub(crate) fn resolve<'a>(&self, path: &'a [u8]) -> (&OpenDirectory, &'a [u8]) {
        match self
            .mounts
            .iter()
            .find(|mount| entry::is_within(path, &mount.at))
        {
            None => (&self.root, path),
            Some(mount) => (
                mount,
                path[mount.at.len()..]
                    .strip_prefix(b"/")
                    .unwrap_or_default(),
            ),
        }
    }

    /// Directory and name of a path that is not empty. The last file has another name until it is put in place.
    pub(crate) fn split<'a>(&self, path: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let (parent, name) = entry::split(path);
        match &self.last {
            Some(last) if last.path == path => (parent, UNFINISHED),
            _ => (parent, name),
        }
    }

    /// Where the link to what is mounted at `path` leads.
    pub(crate) fn mounted(&self, path: &[u8]) -> Option<&Path> {
        self.mounts
            .iter()
            .find(|mount| mount.at == path)
            .map(|mount| &*mount.path)
    }

    /// All places, the root first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &OpenDirectory> {
        std::iter::once(&self.root).chain(&self.mounts)
    }

    /// The paths of the mounts.
    pub(crate) fn mount_points(&self) -> impl Iterator<Item = &[u8]> {
        self.mounts.iter().map(|mount| &mount.at[..])
    }

    /// How messages call a path.
    pub(crate) fn name(&self, path: &[u8]) -> PathBuf {
        let (place, rest) = self.resolve(path);
        place.path.join(OsStr::from_bytes(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_what_just_fits_is_not() {
        assert!(fits(10, 10, Path::new("x")).is_ok());
        let error = fits(2_000_001, 1_999_999, Path::new("/x")).unwrap_err();
        assert_eq!(
            (error.kind, &*error.what),
            (
                ErrorKind::Full,
                "cannot restore to \"/x\": 3 MB will be written there, and 1 MB are free"
            )
        );
    }

    #[test]
    fn a_directory_that_another_took_the_place_of_is_not_the_holders() {
        let dir = tempfile::tempdir().unwrap();
        let mine = crate::platform::user().0;
        let error = open_held(&dir.path().join("new"), mine + 1).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Permission);
        assert!(!dir.path().join("new").exists());
        if mine != 0 {
            open_held(&dir.path().join("a/b"), mine).unwrap();
            assert!(dir.path().join("a/b").is_dir());
            return;
        }
        assert!(!is_held(0, 0), "root's is nobody's");
        std::os::unix::fs::chown(dir.path(), Some(12_345), None).unwrap();
        open_held(&dir.path().join("a/b"), 12_345).unwrap();
        assert_eq!(
            holder(&dir.path().join("a/b/c")).unwrap(),
            (&*dir.path().join("a/b"), 12_345)
        );
        // A link in what is made is not followed, wherever it came from.
        std::fs::create_dir(dir.path().join("roots")).unwrap();
        std::os::unix::fs::symlink("roots", dir.path().join("link")).unwrap();
        assert_eq!(
            open_held(&dir.path().join("link"), 12_345)
                .unwrap_err()
                .kind,
            ErrorKind::Permission
        );
        assert_eq!(
            open_held(&dir.path().join("link/new"), 12_345)
                .unwrap_err()
                .kind,
            ErrorKind::Permission
        );
    }

    #[test]
    fn directories_are_compared_where_they_really_are() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        let mount = |path: &str| TargetMount {
            at: b"a".to_vec(),
            directory: dir.path().join(path),
            ..TargetMount::default()
        };
        let layout = |mounts| TargetLayout {
            root: dir.path().join("root"),
            mounts,
            ..TargetLayout::default()
        };
        assert!(layout(vec![mount("one"), mount("two")]).are_apart().is_ok());
        for bad in ["link/root/in", "root", "link/one/x", "."] {
            let error = layout(vec![mount("one"), mount(bad)])
                .are_apart()
                .unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{bad}");
        }
    }
}
