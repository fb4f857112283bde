//! A file tree as a source.
//!
//! Every path is opened beneath its root without following links, so a link that is swapped in
//! during the backup cannot lead outside. The parts of a frame report files that vanished, shrank,
//! grew or cannot be read; the backup goes on.

pub(crate) mod child;
pub(crate) mod file_list;
pub(crate) mod hard_links;
pub(crate) mod large_file;
pub(crate) mod limits;
pub(crate) mod listing;
pub(crate) mod open_ahead;
pub(crate) mod parent_dir;
pub(crate) mod refit;
pub(crate) mod small_files;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod walk;

use crate::{file_rules::FileRules, patterns::Patterns};
use file_list::listed;
use fullbore_format::{
    acl,
    digest::Piece,
    entry::{Entry, EntryPath, Xattr, is_within, order, split},
    error::{Error, Result, reason},
    page::EntryState,
    pax,
};
use fullbore_pipeline::frame::{Buf, Frame, FrameContent, FrameEntry, Scanned, Slice};
use fullbore_pipeline::source::{OpenAhead, Source, Stream};
use fullbore_platform as platform;
use fullbore_platform::{
    dir::{self, Stat},
    owner::OwnerNames,
    read::PageCacheUse,
    xattr,
};
use limits::Shortage;
use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, OnceLock, RwLock},
    thread::sleep,
    time::Duration,
};
use walk::TreeWalk;

/// Interval and number of retries for a file that is missing because a program is replacing it.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(10);
const RETRIES: usize = 10;

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
    /// Number of directories listed at the same time.
    pub walkers: usize,
    /// Objects that the backup writes to.
    pub own: Own,
    /// Rules of a program for its own files.
    pub overlay: Option<Arc<dyn Overlay>>,
    /// Returns why the file of this path, in the given directory, must not be copied now.
    pub torn: fn(BorrowedFd<'_>, &[u8]) -> Option<String>,
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

/// A tree, or the part of a tree on one device.
pub struct SourceTree(Arc<TreeInner>);

/// State shared by the walk, its threads and the readers.
pub(super) struct TreeInner {
    pub(super) tops: Vec<Top>,
    /// Directories that belong to the stream of another device.
    pub(super) elsewhere: HashSet<EntryPath>,
    /// Directories of which only these names are delivered. A directory without names is not
    /// entered.
    pub(super) closed: Closed,
    /// If set, only these paths and the directories above them are delivered; ascending.
    pub(super) list: Option<Vec<EntryPath>>,
    pub(super) rules: Arc<TreeRules>,
    pub(super) names: OwnerNames,
    pub(super) shortage: Shortage,
    /// First names of files that were gone when they were read. Other names are then not stored as
    /// links to them.
    pub(super) orphaned: Mutex<HashSet<EntryPath>>,
    /// Devices, and whether changes of a file show in its ctime there.
    pub(super) change_times: RwLock<Vec<(u64, bool)>>,
    /// The effective user of this process.
    pub(super) user: u32,
}

impl SourceTree {
    /// The patterns that leave out objects.
    pub fn excludes(&self) -> &Patterns {
        &self.0.rules.exclude
    }

    /// A source for the tree below `tops`, which are ascending.
    ///
    /// A top within another one is met there and replaces the object at its path. The directories
    /// `elsewhere` are not delivered; of the directories in `closed` only the given names are. All
    /// directories between a named top and the top around it must be tops, too.
    pub fn new(
        tops: Vec<Top>,
        elsewhere: HashSet<EntryPath>,
        closed: Closed,
        rules: Arc<TreeRules>,
    ) -> Self {
        Self(Arc::new(TreeInner {
            elsewhere,
            closed,
            ..TreeInner::new(tops, rules)
        }))
    }

    /// A source for the objects in `list`, ascending, and the directories above them, below one
    /// directory.
    pub fn listed(top: Top, list: Vec<EntryPath>, rules: Arc<TreeRules>) -> Self {
        Self(Arc::new(TreeInner {
            list: Some(list),
            ..TreeInner::new(vec![top], rules)
        }))
    }

    /// Returns whether the rules exclude `path` from a walk that begins at the first top.
    pub fn leaves_out(&self, path: &[u8], is_dir: bool) -> bool {
        self.0.leaves_out(path, is_dir)
    }

    /// Returns the entry of one object by its path.
    pub fn look(&self, path: &[u8]) -> Scanned {
        self.0.look(path).scanned
    }

    /// Returns the name that excludes the contents of the directory `path`, such as `CACHEDIR.TAG`,
    /// if the rules ask for that.
    pub fn exclusion_mark_at(&self, path: &[u8]) -> Option<&[u8]> {
        self.0.exclusion_mark_at(path)
    }

    /// Returns the length of the path of the innermost top that has `path`; `None` if `path` is
    /// beside all tops.
    pub fn top_bytes(&self, path: &[u8]) -> Option<usize> {
        let tops = self.0.tops.iter().rev();
        let mut around = tops.filter(|top| top.role != TopRole::Above);
        let top = around.find(|top| is_within(path, &top.at))?;
        Some(top.at.len())
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.0.open(path)
    }
}

impl Source for SourceTree {
    fn scan(&self) -> Result<Stream<Scanned>> {
        let inner = self.0.clone();
        let scanned: Stream<Scanned> = match &self.0.list {
            Some(list) => Box::new(listed(self.0.clone(), list.clone())?),
            None => Box::new(TreeWalk::start(self.0.clone())?),
        };
        Ok(Box::new(
            scanned.map(move |scanned| inner.shortage.check().and(scanned)),
        ))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        let frame = match slice {
            Slice::Members(small, large) => self.0.read_members(small, large, buf),
            Slice::Piece {
                file,
                offset,
                len,
                last,
            } => self.0.read_piece(file, offset, len, last, buf),
        };
        self.0.shortage.check().and(frame)
    }

    fn opener(&self) -> Option<Arc<dyn OpenAhead>> {
        Some(self.0.clone())
    }
}

impl TreeInner {
    pub(super) fn new(tops: Vec<Top>, rules: Arc<TreeRules>) -> Self {
        let (elsewhere, closed, list, names, shortage, orphaned, change_times) = Default::default();
        Self {
            tops,
            elsewhere,
            closed,
            list,
            rules,
            names,
            shortage,
            orphaned,
            change_times,
            user: platform::user().0,
        }
    }

    /// Returns the state of an object whose reading gave this error.
    pub(super) fn state_of(&self, error: &io::Error) -> EntryState {
        self.shortage.notice(error);
        match error.kind() {
            // A file may have replaced the parent directory.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => EntryState::Vanished,
            _ => EntryState::Unreadable(reason(error)),
        }
    }

    /// Returns the state of a directory that could not be listed, though some objects in it are
    /// delivered.
    pub(super) fn unlisted_state(&self, error: &io::Error) -> EntryState {
        self.shortage.notice(error);
        EntryState::Unreadable(reason(error))
    }

    /// Returns the open directory for `path`, and the path relative to it.
    pub(super) fn locate<'a>(&'a self, path: &'a [u8]) -> Option<(&'a OwnedFd, &'a [u8])> {
        let top = self
            .tops
            .iter()
            .rev()
            .find(|top| top.role != TopRole::Above && is_within(path, &top.at))?;
        let rest = &path[top.at.len()..];
        let rest = rest.strip_prefix(b"/").unwrap_or(rest);
        Some((&top.dir, top.name.as_deref().unwrap_or(rest)))
    }

    pub(super) fn top(&self, path: &[u8]) -> Option<&Top> {
        let index = self
            .tops
            .binary_search_by(|top| order(&top.at, path))
            .ok()?;
        Some(&self.tops[index])
    }

    /// Returns whether the user named this path.
    pub(super) fn is_named(&self, path: &[u8]) -> bool {
        self.top(path).is_some_and(|top| top.role == TopRole::Named)
    }

    /// Returns the names in the directory `path` that lead to tops. A walk delivers them even if it
    /// may not list the directory.
    pub(super) fn tops_in<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let following = self
            .tops
            .partition_point(|top| order(&top.at, path).is_le());
        let below = self.tops[following..]
            .iter()
            .take_while(|top| is_within(&top.at, path));
        let owed =
            below.filter(|top| top.role != TopRole::Mounted && !self.elsewhere.contains(&top.at));
        owed.filter_map(move |top| {
            let (parent, name) = split(&top.at);
            (parent == path).then_some(name)
        })
    }

    /// Returns whether files are stored by the rules of a program, see [`Overlay`].
    pub(super) fn has_overlay(&self) -> bool {
        self.rules.overlay.is_some()
    }

    /// Returns whether an object in this state is left out without a report.
    pub(super) fn skips_silently(&self, entry: &Entry, state: &EntryState) -> bool {
        *state == EntryState::Vanished && !self.expects(&entry.path)
    }

    pub(super) fn open(&self, path: &[u8]) -> io::Result<OwnedFd> {
        if let Some(opened) = self
            .rules
            .overlay
            .as_ref()
            .and_then(|overlay| overlay.open(path))
        {
            return opened;
        }
        let (dir, rel) = self.locate(path).ok_or(io::ErrorKind::NotFound)?;
        dir::open_read(dir, rel)
    }

    pub(super) fn cache(&self) -> PageCacheUse {
        if platform::tricks() {
            PageCacheUse::Drop
        } else {
            PageCacheUse::Keep
        }
    }

    /// Reads the attributes of an open file that belong into the archive.
    pub(super) fn xattrs(&self, fd: &OwnedFd) -> io::Result<Vec<Xattr>> {
        if self.has_overlay() {
            Ok(Vec::new())
        } else {
            xattr::read_all(fd).map(|xattrs| self.named(xattrs))
        }
    }

    /// Gives lists of permissions the names of their users and groups.
    pub(super) fn named(&self, mut xattrs: Vec<Xattr>) -> Vec<Xattr> {
        acl::name_lists(&mut xattrs, &self.names);
        xattrs
    }

    /// Appends a header. A header that cannot be written adds nothing.
    pub(super) fn append_header(&self, entry: &Entry, buf: &mut Vec<u8>) -> Result<()> {
        let start = buf.len();
        let written = if self.has_overlay() && entry.mtime.nanos != 0 {
            let mut entry = entry.clone();
            entry.mtime.nanos = 0;
            pax::write_header(&entry, buf)
        } else {
            pax::write_header(entry, buf)
        };
        written.inspect_err(|_| buf.truncate(start))
    }

    fn repairs(&self, path: &[u8]) -> bool {
        self.rules
            .overlay
            .as_ref()
            .is_some_and(|overlay| overlay.repairs(path))
    }

    /// Returns whether a program owns the file but does not repair a copy of it, such as a
    /// configuration file.
    pub(super) fn is_unrepaired(&self, path: &[u8]) -> bool {
        self.has_overlay() && !self.repairs(path)
    }

    fn expects(&self, path: &[u8]) -> bool {
        self.rules
            .overlay
            .as_ref()
            .is_none_or(|overlay| overlay.expects(path))
    }

    /// Retries while a file is missing, because a program may be replacing it. Only for trees in
    /// which every file is expected to exist.
    pub(super) fn retry_while_missing<T>(
        &self,
        path: &[u8],
        mut get: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut got = get();
        for _ in 0..RETRIES {
            match &got {
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && self.has_overlay()
                        && self.expects(path) => {}
                _ => break,
            }
            sleep(RETRY_INTERVAL);
            got = get();
        }
        got
    }

    /// Reads the attributes of an open file, with one call. Returns `None` where changes are
    /// expected.
    pub(super) fn now(&self, fd: &OwnedFd) -> Option<Stat> {
        if self.has_overlay() {
            None
        } else {
            dir::stat_fd(fd).ok()
        }
    }

    /// Takes owner and mode from the open file, because another file may have the name since the
    /// scan. Returns whether they differed.
    pub(super) fn update_owner(&self, now: &Stat, entry: &mut Entry) -> bool {
        if now.mode == entry.mode && (now.uid, now.gid) == (entry.owner.uid, entry.owner.gid) {
            return false;
        }
        (entry.mode, entry.owner) = (now.mode, self.owner(now));
        true
    }
}

/// The state of an entry that the archive format cannot store.
pub(super) fn unstorable(error: &Error) -> EntryState {
    EntryState::Unreadable(error.line())
}

/// Appends the zeros that follow `len` bytes of content.
pub fn pad(buf: &mut Vec<u8>, len: u64) {
    buf.resize(buf.len() + pax::padding(len), 0);
}

/// Returns the part of a frame that holds `content`: its content is `len` bytes from `inner` on.
pub fn part(content: FrameContent, inner: usize, len: usize) -> FrameEntry {
    let inner = inner as u32;
    let len = len as u32;
    FrameEntry {
        what: content,
        inner,
        len,
        known: None,
        runs: None,
        piece: Piece::None,
        crcs: Vec::new(),
        chunks: Vec::new(),
        is_first: true,
        replaced: false,
    }
}

/// Returns whether size or mtime differ from the scan.
pub(super) fn changed(now: &Stat, entry: &Entry) -> bool {
    now.size != entry.size() || now.mtime != entry.mtime
}
