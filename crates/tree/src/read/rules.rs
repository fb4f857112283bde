//! What of a tree is read, and how.

use crate::{file_rules::FileRules, patterns::Patterns};
use fullbore_format::entry::EntryPath;
use fullbore_platform::dir;
use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Device and inode of each file and directory that the backup writes to. These files, and the
/// contents of these directories, are not backed up. Set before a walk begins.
pub type Own = Arc<OnceLock<Vec<(u64, u64)>>>;

/// Rules for excluding parts of a tree and for reading the rest.
pub struct TreeRules {
    /// Which parts are left out.
    pub files: FileRules,
    /// The patterns of `files`.
    pub exclude: Patterns,
    /// Whether the next backup compares without inodes. Each file is then checked again after it
    /// was read.
    pub looks_twice: bool,
    /// Called with each path that a pattern excludes, and the pattern.
    pub on_excluded: Option<ExclusionListener>,
    /// The marked caches that were left out so far.
    pub caches: LeftOutCaches,
    /// Number of directories listed at the same time.
    pub walkers: usize,
    /// Objects that the backup writes to.
    pub own: Own,
    /// Rules of a program for its own files.
    pub overlay: Option<Arc<dyn Overlay>>,
    /// Returns why the file of this path, in the given directory, must not be copied now.
    pub torn: fn(BorrowedFd<'_>, &[u8]) -> Option<String>,
}

/// The marked caches whose contents were left out.
#[derive(Debug, Default)]
pub struct LeftOutCaches {
    count: AtomicU64,
    first: OnceLock<Vec<u8>>,
}

impl LeftOutCaches {
    pub(super) fn note(&self, path: &[u8]) {
        self.count.fetch_add(1, Relaxed);
        let _ = self.first.set(path.to_vec());
    }

    /// Returns their number, and the path of one of them; `None` if there were none.
    pub fn found(&self) -> Option<(u64, Vec<u8>)> {
        let first = self.first.get()?;
        Some((self.count.load(Relaxed), first.clone()))
    }
}

/// Receives the path of an excluded entry, and the pattern that excludes it; called from any thread.
pub type ExclusionListener = fn(&[u8], &[u8]);

/// Rules of a program, such as PostgreSQL, for the backup of its own files.
///
/// Files are stored as that program's own tools store them: ustar headers with whole seconds, no
/// holes, no attributes. A file that grows, shrinks or vanishes is expected, and not reported, if
/// the program repairs the copy afterwards or removes such files itself. Other files are stored as
/// they are when they are read.
pub trait Overlay: Send + Sync {
    /// Removes the names from a directory listing that do not belong to the backup.
    fn pick(&self, dir: &[u8], names: &mut Vec<dir::DirName>);

    /// Opens the replacement for the file at `path`, if there is one.
    fn open(&self, path: &[u8]) -> Option<io::Result<OwnedFd>>;

    /// Returns whether the program repairs a copy of the file at `path`. The copy only needs the
    /// size from the scan.
    fn repairs(&self, path: &[u8]) -> bool;

    /// Returns whether a missing object at `path` is an error, because the program does not remove
    /// it itself.
    fn expects(&self, path: &[u8]) -> bool;
}

/// A place where a walk begins, or which it meets within another such place.
pub struct Top {
    pub at: EntryPath,
    /// The directory itself, or its parent.
    pub dir: OwnedFd,
    /// Name in that directory; `None` if `dir` is the top itself.
    pub name: Option<Vec<u8>>,
    /// Reason for the visit.
    pub role: TopRole,
}

/// The reason why a walk visits a top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopRole {
    /// The user named it. It is delivered even if rules exclude it.
    Named,
    /// It is a mount or a tablespace, and replaces the object at its path.
    Mounted,
    /// It is a directory above a named top, and is delivered even if rules exclude it. Of its
    /// contents only the path to the named top is delivered, unless the outer walk enters it
    /// anyway.
    Above,
}

impl Top {
    /// Returns the name in `dir`; `.` is `dir` itself.
    pub(super) fn file_name(&self) -> &[u8] {
        self.name.as_deref().unwrap_or(b".")
    }
}

/// Directories of which only some names are delivered.
pub type Closed = HashMap<EntryPath, HashSet<Vec<u8>>>;
