//! Maps the paths of a tree to the file system: beneath the root, beneath a mount, or under a
//! temporary name.
//!
//! A mount is a path whose contents are in another directory, such as a tablespace; the root holds
//! a symbolic link to this directory. The link is never followed: each place is an open directory,
//! and paths are resolved beneath it. Everything is checked before anything is created.

use super::modes::can_add_write_access;
use fullbore_format::{
    entry::EntryPath,
    error::{Error, ErrorKind, Result},
    sizes,
};
use fullbore_platform::{
    dir::{LOST_AND_FOUND, open_root, read_dir, real_path, stat_fd},
    inodes::creation_error_at,
    write::{chown_fd, compresses, create_dir_beneath, may_write, usable_bytes},
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

/// The directories that a tree is restored to.
#[derive(Debug, Clone, Default)]
pub struct TargetLayout {
    /// Directory of the empty path.
    pub root: PathBuf,
    /// Bytes to be written beneath the root; 0 if unknown.
    pub bytes: u64,
    /// Paths whose contents are in other directories.
    pub mounts: Vec<TargetMount>,
    /// Advice for the operator if a mount cannot be used.
    pub hint: &'static str,
    /// The file that is put in place when everything else is durable.
    pub last: Option<FinalFile>,
}

/// Name of the file until it is put in place.
pub const UNFINISHED: &[u8] = b".fullbore-unfinished";

/// A file that completes the tree, such as `pg_control`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalFile {
    pub path: EntryPath,
    /// A second path that must exist; otherwise the file is removed.
    pub only_with: Option<EntryPath>,
}

/// A path whose contents are in another directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetMount {
    /// Path in the tree; never empty.
    pub at: EntryPath,
    /// Absolute directory. The tree creates the link to it.
    pub directory: PathBuf,
    /// Bytes to be written beneath the directory; 0 if unknown.
    pub bytes: u64,
    /// Names in the directory that belong to others, see [`SharedDirectory`].
    pub shared: Option<SharedDirectory>,
    /// Required owner of the directory, or of the directory in which it is created. Set if only the
    /// backup names the directory.
    pub holder: Option<u32>,
}

/// A directory that several owners share, each with names of its own: clusters of several versions
/// in the location of one tablespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedDirectory {
    /// Prefix of the names of all owners.
    pub all: Vec<u8>,
    /// Prefix of the names that belong to this tree.
    pub own: Vec<u8>,
}

impl SharedDirectory {
    /// Returns whether this name can belong to this tree.
    pub fn is_own(&self, name: &[u8]) -> bool {
        name.starts_with(&self.own)
    }

    /// Returns whether this name belongs to another owner.
    fn is_of_other_owner(&self, name: &[u8]) -> bool {
        name.starts_with(&self.all) && !self.is_own(name)
    }
}

impl TargetMount {
    /// Returns whether the directory is empty apart from names of other owners.
    fn is_vacant(&self) -> Result<bool> {
        is_vacant_except(&self.directory, |name| {
            self.shared
                .as_ref()
                .is_some_and(|shared| shared.is_of_other_owner(name))
        })
    }

    /// Returns whether any owner may use this name in the directory.
    pub fn may_contain(&self, name: &[u8]) -> bool {
        self.shared
            .as_ref()
            .is_none_or(|shared| name.starts_with(&shared.all))
    }

    /// Returns whether this name in the directory can belong to the tree.
    pub fn may_own(&self, name: &[u8]) -> bool {
        self.shared
            .as_ref()
            .is_none_or(|shared| shared.is_own(name))
    }
}

impl TargetLayout {
    /// A layout with everything in one directory.
    pub fn plain(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            ..Self::default()
        }
    }

    /// Root and mounts, each with the bytes that are written to it.
    fn directories(&self) -> impl Iterator<Item = (&Path, u64)> {
        let mounts = self
            .mounts
            .iter()
            .map(|mount| (&*mount.directory, mount.bytes));
        std::iter::once((&*self.root, self.bytes)).chain(mounts)
    }

    /// Checks that the whole layout can be created. Creates nothing.
    pub(crate) fn check(&self, overwrite: bool) -> Result<()> {
        if !overwrite && !is_vacant(&self.root)? {
            return Err(not_empty(&self.root).hint(
                "choose another --to, or name the PATHs that you need; --overwrite replaces files that are not newer, --delta updates all that differ",
            ));
        }
        for mount in &self.mounts {
            // A mount belongs to the existing tree only if this tree links to it.
            let own = overwrite && self.is_linked(mount);
            if !own && !mount.is_vacant()? {
                return Err(not_empty(&mount.directory).hint(self.hint));
            }
        }
        self.check_no_overlap()?;
        self.directories()
            .try_for_each(|(path, _)| is_writable(path, overwrite))?;
        if overwrite { Ok(()) } else { self.check_room() }
    }

    fn is_linked(&self, mount: &TargetMount) -> bool {
        let link = self.root.join(OsStr::from_bytes(&mount.at));
        link.is_symlink()
            && real_path(&link).is_ok_and(|real| {
                real_path(&mount.directory).is_ok_and(|directory| directory == real)
            })
    }

    /// Checks that no directory equals another one or lies within it.
    fn check_no_overlap(&self) -> Result<()> {
        let mut earlier: Vec<(&Path, PathBuf)> = Vec::new();
        for (path, _) in self.directories() {
            let real = resolve_existing(path)
                .map_err(|e| Error::io(format!("could not look at {path:?}"), e))?;
            if let Some((other, _)) = earlier
                .iter()
                .find(|(_, other)| real.starts_with(other) || other.starts_with(&real))
            {
                let message = format!(
                    "cannot restore to both {other:?} and {path:?}: they are the same directory, or one contains the other"
                );
                return Err(Error::new(ErrorKind::Usage, message).hint(self.hint));
            }
            earlier.push((path, real));
        }
        Ok(())
    }

    /// Checks that each file system has room for its part of the tree.
    fn check_room(&self) -> Result<()> {
        let mut systems: BTreeMap<u64, (u64, u64, &Path)> = BTreeMap::new();
        for (path, bytes) in self.directories() {
            let (dev, free) = device_and_free_bytes(path)
                .map_err(|e| Error::io(format!("could not look at {path:?}"), e))?;
            sizes::add(&mut systems.entry(dev).or_insert((0, free, path)).0, bytes);
        }
        systems
            .into_values()
            .try_for_each(|(bytes, free, path)| check_fits(bytes, free, path))
    }
}

fn check_fits(bytes: u64, free: u64, path: &Path) -> Result<()> {
    if bytes <= free {
        return Ok(());
    }
    let needed = bytes.div_ceil(1_000_000);
    let free = free / 1_000_000;
    let message = format!("cannot restore to {path:?}: {needed} MB are needed, {free} MB are free");
    Err(Error::new(ErrorKind::Full, message)
        .hint("free space or choose another directory; --overwrite skips this check"))
}

fn not_empty(path: &Path) -> Error {
    Error::new(
        ErrorKind::Exists,
        format!("cannot restore to {path:?}: it is not empty"),
    )
}

/// Returns whether `path` is missing or an empty directory. A new ext4 file system with only
/// `lost+found` counts as empty.
pub fn is_vacant(path: &Path) -> Result<bool> {
    is_vacant_except(path, |_| false)
}

/// As [`is_vacant`], but ignores the names for which `is_ignored` is true.
fn is_vacant_except(path: &Path, is_ignored: impl Fn(&[u8]) -> bool) -> Result<bool> {
    // A directory that may be entered but not listed cannot be synced either.
    let names = std::fs::File::open(path).and_then(|dir| read_dir(dir, &mut Vec::new()));
    match names {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(Error::io(format!("could not open the target {path:?}"), e)),
        Ok(names) => Ok(names
            .iter()
            .all(|name| name.bytes == LOST_AND_FOUND || is_ignored(&name.bytes))),
    }
}

/// Checks that this user may create objects at or in `path`. With `can_add_access`, an owner
/// without write permission passes, because the restore can add this permission.
fn is_writable(path: &Path, can_add_access: bool) -> Result<()> {
    let failed = |e| Error::io(format!("could not look at {path:?}"), e);
    let deepest = deepest_existing(path).map_err(failed)?;
    let permission = if deepest.is_dir() {
        may_write(&deepest)
    } else {
        Err(io::ErrorKind::NotADirectory.into())
    };
    if can_add_access && is_denied(&permission) && real_path(path).is_ok_and(|real| real == deepest)
    {
        let stat = open_root(&deepest).and_then(stat_fd).map_err(failed)?;
        if can_add_write_access(&stat) {
            return Ok(());
        }
    }
    permission.map_err(|e| {
        Error::io(
            format!("cannot write to {path:?}: {deepest:?} cannot be written to"),
            e,
        )
    })
}

fn is_denied(result: &io::Result<()>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Returns the deepest existing directory of `path`, without symbolic links.
fn deepest_existing(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    for ancestor in path.ancestors() {
        match real_path(ancestor) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
    }
    Ok(path)
}

/// Returns `path` with its existing symbolic links resolved.
fn resolve_existing(path: &Path) -> io::Result<PathBuf> {
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

/// Opens the deepest existing directory of `path`, following links. Returns it with its path and
/// the missing rest.
fn open_deepest(path: &Path) -> io::Result<(OwnedFd, &Path, &Path)> {
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

/// Returns the deepest existing directory of an absolute `path`, and its owner.
///
/// # Errors
/// The system's error.
pub fn deepest_owner(path: &Path) -> io::Result<(&Path, u32)> {
    let (dir, existing, _) = open_deepest(path)?;
    Ok((existing, stat_fd(dir)?.uid))
}

/// Returns whether a directory of user `owner` may stand for a directory that the backup assigns to
/// `holder`. Directories of root never do.
pub fn is_trusted_owner(owner: u32, holder: u32) -> bool {
    owner == holder && holder != 0
}

/// Opens or creates a directory that only the backup names. Checks the owner of the open directory,
/// because the name may lead elsewhere by now.
pub(super) fn open_owned(path: &Path, holder: u32) -> Result<OwnedFd> {
    let failed = |e| Error::io(format!("could not open the target {path:?}"), e);
    let (dir, existing, missing) = open_deepest(path).map_err(failed)?;
    let uid = stat_fd(&dir).map_err(failed)?.uid;
    if !is_trusted_owner(uid, holder) {
        let message = format!("cannot restore to {path:?}: {existing:?} now belongs to user {uid}");
        return Err(Error::new(ErrorKind::Permission, message));
    }
    if missing.as_os_str().is_empty() {
        return Ok(dir);
    }
    let made = create_dir_beneath(&dir, missing.as_os_str().as_bytes(), 0o777);
    let made = made.map_err(|e| Error::io(format!("could not create {path:?}"), e))?;
    // The owner is set at once, so that an interrupted restore can be repeated.
    let _ = stat_fd(&made).and_then(|stat| chown_fd(&made, holder, stat.gid));
    Ok(made)
}

pub(super) fn open_or_make(path: &Path) -> Result<OwnedFd> {
    if !path.is_dir() {
        let made = std::fs::create_dir_all(path).map_err(|e| creation_error_at(e, path));
        made.map_err(|e| Error::io(format!("could not create {path:?}"), e))?;
    }
    open_root(path).map_err(|e| Error::io(format!("could not open the target {path:?}"), e))
}

/// Returns the device of `path` and its free bytes. On a compressing file system the size is
/// unknown before writing, so the maximum is returned.
fn device_and_free_bytes(path: &Path) -> io::Result<(u64, u64)> {
    let dir = open_root(&deepest_existing(path)?)?;
    let free = if compresses(&dir)? {
        u64::MAX
    } else {
        usable_bytes(&dir)?
    };
    Ok((stat_fd(&dir)?.dev, free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_that_exceeds_the_free_space_is_refused() {
        assert!(check_fits(10, 10, Path::new("x")).is_ok());
        let error = check_fits(2_000_001, 1_999_999, Path::new("/x")).unwrap_err();
        assert_eq!(
            (error.kind, &*error.what),
            (
                ErrorKind::Full,
                "cannot restore to \"/x\": 3 MB are needed, 1 MB are free"
            )
        );
    }

    #[test]
    fn a_directory_of_another_owner_is_not_used_for_a_tablespace() {
        let dir = tempfile::tempdir().unwrap();
        let mine = fullbore_platform::user_id();
        let error = open_owned(&dir.path().join("new"), mine + 1).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Permission);
        assert!(!dir.path().join("new").exists());
        if mine != 0 {
            open_owned(&dir.path().join("a/b"), mine).unwrap();
            assert!(dir.path().join("a/b").is_dir());
            return;
        }
        assert!(!is_trusted_owner(0, 0), "root's is nobody's");
        std::os::unix::fs::chown(dir.path(), Some(12_345), None).unwrap();
        open_owned(&dir.path().join("a/b"), 12_345).unwrap();
        assert_eq!(
            deepest_owner(&dir.path().join("a/b/c")).unwrap(),
            (&*dir.path().join("a/b"), 12_345)
        );
        // A link in the path is not followed, whoever made it.
        std::fs::create_dir(dir.path().join("roots")).unwrap();
        std::os::unix::fs::symlink("roots", dir.path().join("link")).unwrap();
        assert_eq!(
            open_owned(&dir.path().join("link"), 12_345)
                .unwrap_err()
                .kind,
            ErrorKind::Permission
        );
        assert_eq!(
            open_owned(&dir.path().join("link/new"), 12_345)
                .unwrap_err()
                .kind,
            ErrorKind::Permission
        );
    }

    #[test]
    fn overlapping_directories_are_found_through_links() {
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
        assert!(
            layout(vec![mount("one"), mount("two")])
                .check_no_overlap()
                .is_ok()
        );
        for bad in ["link/root/in", "root", "link/one/x", "."] {
            let error = layout(vec![mount("one"), mount(bad)])
                .check_no_overlap()
                .unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{bad}");
        }
    }
}
