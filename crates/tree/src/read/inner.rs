//! State of a tree that its walk, its threads and its readers share.

use super::{
    limits::Shortage,
    rules::{Closed, Top, TopRole, TreeRules},
};
use fullbore_format::{
    acl,
    entry::{Entry, EntryPath, Xattr, is_within, order, split},
    error::{Error, Result, reason},
    page::EntryState,
    pax,
};
use fullbore_platform as platform;
use fullbore_platform::{
    dir::{self, Stat},
    owner::OwnerNames,
    read::PageCacheUse,
    xattr,
};
use std::{
    collections::HashSet,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, RwLock},
    thread::sleep,
    time::Duration,
};

/// Interval and number of retries for a file that is missing because a program is replacing it.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(10);
const RETRIES: usize = 10;

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

    pub(super) fn repairs(&self, path: &[u8]) -> bool {
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

/// Returns whether size or mtime differ from the scan.
pub(super) fn changed(now: &Stat, entry: &Entry) -> bool {
    now.size != entry.size() || now.mtime != entry.mtime
}
