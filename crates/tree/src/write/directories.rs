//! The open directories of a target: resolves the paths of the tree to a directory and a path
//! beneath it.

use super::{
    case_folding::ignores_case,
    final_file::{FinalFile, UNFINISHED},
    layout::{TargetLayout, TargetMount, is_vacant, open_or_make, open_owned},
    probe::{with_named_test_file, with_test_file},
    warnings::TargetWarnings,
};
use fullbore_format::{
    entry::{self, EntryPath, Time},
    error::{Error, ErrorKind, Result, quoted},
};
use fullbore_platform::{
    dir::stat_fd, safe_file::dangling_symlink_target, write::set_times_fd, xattr,
};
use std::{
    ffi::OsStr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// A time that is stored exactly only by a file system with nanoseconds.
const EXACT_TIME: Time = Time {
    seconds: 1_000_000_001,
    nanos: 123_456_789,
};

/// Attributes that the system gives to a new file in a place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewFileAttrs {
    pub(crate) owner: (u32, u32),
    /// Whether the file got the requested mode. Some network file systems set their own.
    pub(crate) keeps_mode: bool,
}

/// An open directory and the facts about it.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    pub(crate) at: EntryPath,
    path: PathBuf,
    pub(crate) dir: OwnedFd,
    /// Attributes of the first new file. They apply to all files unless the target held directories
    /// before.
    pub(crate) new_file: OnceLock<NewFileAttrs>,
    /// Owner and group of new files, if a test file could be created.
    pub(crate) new_owner: OnceLock<(u32, u32)>,
    /// Whether the file system stores nanoseconds. Unknown if no test file could be created.
    pub(crate) keeps_nanos: OnceLock<bool>,
    /// Whether this run created the directory, or found it empty.
    pub(crate) is_new: bool,
    /// Whether new objects in the directory inherit an access list.
    pub(crate) passes_on_default_acl: bool,
}

impl OpenDirectory {
    /// Opens the directory, and creates it if it is missing.
    fn open(place: &[u8], path: &Path, holder: Option<u32>) -> Result<Self> {
        let is_new = is_vacant(path)?;
        if let Some(lost) = dangling_symlink_target(path) {
            let message =
                format!("cannot write to {path:?}: it is a link to {lost:?}, which does not exist");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let dir = holder.map_or_else(|| open_or_make(path), |holder| open_owned(path, holder))?;
        let passes_on_default_acl = xattr::passes_on_default_acl(&dir);
        let (new_file, new_owner, keeps_nanos) = Default::default();
        Ok(Self {
            at: place.to_vec(),
            path: path.to_owned(),
            dir,
            new_file,
            new_owner,
            keeps_nanos,
            is_new,
            passes_on_default_acl,
        })
    }

    fn open_mount(mount: &TargetMount) -> Result<Self> {
        if mount.at.is_empty() || !entry::is_safe(&mount.at) {
            let message = format!("cannot mount a directory at {}", quoted(&mount.at));
            return Err(Error::new(ErrorKind::Bug, message));
        }
        Self::open(&mount.at, &mount.directory, mount.holder)
    }

    /// Creates a test file and records owner, group and precision of times. Returns whether the
    /// file system ignores case. Without a test file, nothing is recorded.
    pub(crate) fn probe_case_folding(&self, notes: &TargetWarnings) -> bool {
        let look = |file: &OwnedFd| {
            let _ = set_times_fd(file, EXACT_TIME);
            if let Ok(stat) = stat_fd(file) {
                let _ = (
                    self.new_owner.set((stat.uid, stat.gid)),
                    self.keeps_nanos.set(stat.mtime == EXACT_TIME),
                );
            }
        };
        let found = with_named_test_file(&self.dir, notes, |file, name| {
            look(file);
            ignores_case(&self.dir, name)
        });
        if found.is_none() {
            with_test_file(&self.dir, notes, look);
        }
        found.unwrap_or(false)
    }
}

#[derive(Debug)]
pub struct TargetDirectories {
    root: OpenDirectory,
    mounts: Vec<OpenDirectory>,
    pub(crate) last: Option<FinalFile>,
}

impl TargetDirectories {
    pub(crate) fn open(layout: &TargetLayout) -> Result<Self> {
        let root = OpenDirectory::open(b"", &layout.root, None)?;
        let mounts = layout
            .mounts
            .iter()
            .map(OpenDirectory::open_mount)
            .collect::<Result<_>>()?;
        Ok(Self {
            root,
            mounts,
            last: layout.last.clone(),
        })
    }

    /// Returns the directory that holds a path, and the path relative to it.
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

    /// Splits a path into directory and name. The final file has a temporary name until it is put
    /// in place.
    pub fn split<'a>(&self, path: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let (parent, name) = entry::split(path);
        match &self.last {
            Some(last) if last.path == path => (parent, UNFINISHED),
            _ => (parent, name),
        }
    }

    /// Returns the directory that is mounted at `path`.
    pub(crate) fn mount_target(&self, path: &[u8]) -> Option<&Path> {
        self.mounts
            .iter()
            .find(|mount| mount.at == path)
            .map(|mount| &*mount.path)
    }

    /// All open directories, the root first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &OpenDirectory> {
        std::iter::once(&self.root).chain(&self.mounts)
    }

    pub(crate) fn mount_points(&self) -> impl Iterator<Item = &[u8]> {
        self.mounts.iter().map(|mount| &mount.at[..])
    }

    /// Returns the full path for messages.
    pub(crate) fn name(&self, path: &[u8]) -> PathBuf {
        let (place, rest) = self.resolve(path);
        place.path.join(OsStr::from_bytes(rest))
    }
}
