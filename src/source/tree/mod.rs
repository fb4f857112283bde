//! A file tree as a source.
//!
//! Every path is opened beneath its root without following a link, so what somebody swaps in meanwhile cannot lead
//! elsewhere. What vanished, shrank, grew or cannot be read is said in the parts of a frame; the rest goes on.

pub(crate) mod file_list;
pub(crate) mod hard_links;
pub(crate) mod large_file;
pub(crate) mod limits;
pub(crate) mod listing;
pub(crate) mod open_ahead;
pub(crate) mod parent_dir;
pub(crate) mod refit;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod walk;

use super::{OpenAhead, Source, Stream, patterns::Patterns};
use crate::{
    error::{Error, Result, reason},
    format::{
        digest::Piece,
        entry::{Entry, EntryKind, EntryPath, Time, Xattr, is_within, order, split, xattr_bytes},
        page::EntryState,
        pax,
    },
    frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile, Scanned, Slice},
    known::{BaseEntry, Trust},
    platform::{
        self, Tricks,
        dir::{self, Stat},
        owner::OwnerNames,
        read::{self, Cache},
        uring::Closer,
        xattr,
    },
};
use file_list::listed;
use limits::Shortage;
use parent_dir::Home;
use refit::{REPLACED, is_other, is_replaced, is_suspect, room};
use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, OnceLock, RwLock},
    thread::sleep,
    time::Duration,
};
use walk::TreeWalk;

/// How long somebody may take to write a file anew that was removed before: so many times.
pub(super) const MOMENT: Duration = Duration::from_millis(10);
const AGAIN: usize = 10;

/// The device and inode of each file and directory that the backup itself is written to: those files, and what is in those
/// directories, are not part of it. Said before a walk begins.
pub type Own = Arc<OnceLock<Vec<(u64, u64)>>>;

/// What of a tree is left out, and how it is looked at.
pub struct TreeRules {
    /// Patterns as in `.gitignore`.
    pub exclude: Patterns,
    /// Leave out the contents of directories with a valid `CACHEDIR.TAG`.
    pub exclude_caches: bool,
    /// Leave out the contents of directories that hold one of these names.
    pub exclude_if_present: Vec<Vec<u8>>,
    /// Stay on the file systems of the roots.
    pub one_file_system: bool,
    /// Does the next backup go by less than the inodes? Then each file is looked at once more when it was read.
    pub looks_twice: bool,
    /// Directories listed at the same time.
    pub walkers: usize,
    /// May tricks be played?
    pub tricks: Tricks,
    /// Where the backup goes.
    pub own: Own,
    /// What somebody knows better than the file system.
    pub overlay: Option<Arc<dyn Overlay>>,
    /// Why the file of this path, in the directory that is given, is not to be copied now.
    pub torn: fn(BorrowedFd<'_>, &[u8]) -> Option<String>,
}

/// Files of a program that has its own ideas of what a backup of them is.
///
/// They are stored as that program's own tools would: ustar headers with whole seconds, no holes, no attributes. That a
/// file grows, shrinks or vanishes meanwhile is expected, and not noted, where the program repairs it afterwards, or takes it away.
/// The rest is stored as it is when it is read.
pub trait Overlay: Send + Sync {
    /// Leave out of the names in a directory what does not belong to the backup.
    fn pick(&self, dir: &[u8], names: &mut Vec<dir::DirName>);

    /// What stands in for the file at `path`.
    fn open(&self, path: &[u8]) -> Option<io::Result<OwnedFd>>;

    /// Does the program repair a copy of the file at `path` that has the size of the scan, whatever it was when it was read?
    fn repairs(&self, path: &[u8]) -> bool;

    /// Is it missed if what stood at `path` has gone since it was listed, as the program does not take that away itself?
    fn misses(&self, path: &[u8]) -> bool;
}

/// A place where a walk begins, or which it meets within another such place.
pub struct Top {
    /// Its path in the archive.
    pub at: EntryPath,
    /// The directory it is, or the one it is in.
    pub dir: OwnedFd,
    /// Its name in that directory; `None` if it is that directory.
    pub name: Option<Vec<u8>>,
    /// Why a walk comes there.
    pub role: TopRole,
}

/// Why a walk comes to a top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopRole {
    /// The user named it: it is delivered whatever the rules say, and whatever keeps a walk from it.
    Named,
    /// It is a mount, or a tablespace: it stands in for what has its name.
    Mounted,
    /// A named one is below it. It is delivered whatever the rules say, but of what is in it only the way to that one, unless
    /// the walk around it enters it anyway.
    Above,
}

impl Top {
    /// Its name in `dir`, where `.` is `dir` itself.
    pub(super) fn file_name(&self) -> &[u8] {
        self.name.as_deref().unwrap_or(b".")
    }
}

/// Directories of which only some names are delivered.
pub type Closed = HashMap<EntryPath, HashSet<Vec<u8>>>;

/// A tree, or the part of one that is on one device.
pub struct SourceTree(Arc<TreeInner>);

/// What the walk, its helpers and the readers share.
pub(super) struct TreeInner {
    pub(super) tops: Vec<Top>,
    /// Directories that belong to the stream of another device.
    pub(super) elsewhere: HashSet<EntryPath>,
    /// Directories of which only these names are delivered; without a name they are not entered.
    pub(super) closed: Closed,
    /// Only these, and the directories above them; ascending.
    pub(super) list: Option<Vec<EntryPath>>,
    pub(super) rules: Arc<TreeRules>,
    pub(super) names: OwnerNames,
    pub(super) shortage: Shortage,
    /// First names of files that were not there any more when they were to be read: other names are no links to them.
    pub(super) orphaned: Mutex<HashSet<EntryPath>>,
    /// Devices that were met, and whether the ctimes there tell of changes.
    pub(super) change_times: RwLock<Vec<(u64, bool)>>,
    /// The user this process acts as.
    pub(super) user: u32,
}

impl SourceTree {
    /// The tree below `tops`, which are ascending; one within another is met there, in place of what has its name. Of the
    /// directories `elsewhere` nothing is delivered, of those `closed` themselves and what is said there. All directories
    /// between a named top and the top around it must be tops, too.
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

    /// Of the tree below one directory only the objects in `list`, ascending, and the directories above them.
    pub fn listed(top: Top, list: Vec<EntryPath>, rules: Arc<TreeRules>) -> Self {
        Self(Arc::new(TreeInner {
            list: Some(list),
            ..TreeInner::new(vec![top], rules)
        }))
    }

    /// Would a walk from the first top never come to `path` below it, because of the rules?
    pub fn leaves_out(&self, path: &[u8], is_dir: bool) -> bool {
        self.0.leaves_out(path, is_dir)
    }

    /// One object by its path, without going into it.
    pub fn look(&self, path: &[u8]) -> Scanned {
        self.0.look(path).scanned
    }

    /// The name by which the directory `path` says itself that its contents are not worth a backup, if the rules ask for that.
    pub fn mark_at(&self, path: &[u8]) -> Option<&[u8]> {
        self.0.mark_at(path)
    }

    /// Open a file for reading.
    ///
    /// # Errors
    /// The system's.
    pub fn open(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.0.open(path)
    }
}

thread_local! {
    /// Closing is one call for many files where the system can do that.
    static CLOSER: RefCell<Option<Closer>> = const { RefCell::new(None) };
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
            Slice::Members(small, large) => self.0.members(small, large, buf),
            Slice::Piece {
                file,
                offset,
                len,
                last,
            } => self.0.piece(file, offset, len, last, buf),
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

    /// What is said of an object that gives this error.
    pub(super) fn state_of(&self, error: &io::Error) -> EntryState {
        self.shortage.notice(error);
        match error.kind() {
            // A file may stand where its directory was.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => EntryState::Vanished,
            _ => EntryState::Unreadable(reason(error)),
        }
    }

    /// The state of a directory that could not be listed, though some of what is in it is delivered.
    pub(super) fn unlisted(&self, error: &io::Error) -> EntryState {
        self.shortage.notice(error);
        EntryState::Unreadable(reason(error))
    }

    /// The directory to open `path` from, and the path to open there.
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

    /// The top that has this path.
    pub(super) fn top(&self, path: &[u8]) -> Option<&Top> {
        let at = self
            .tops
            .binary_search_by(|top| order(&top.at, path))
            .ok()?;
        Some(&self.tops[at])
    }

    /// Did the user name this path?
    pub(super) fn is_named(&self, path: &[u8]) -> bool {
        self.top(path).is_some_and(|top| top.role == TopRole::Named)
    }

    /// The names of the tops that stand in the directory `path`, and that a walk delivers whatever keeps it from the rest.
    pub(super) fn tops_in<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let behind = self
            .tops
            .partition_point(|top| order(&top.at, path).is_le());
        let below = self.tops[behind..]
            .iter()
            .take_while(|top| is_within(&top.at, path));
        let owed =
            below.filter(|top| top.role != TopRole::Mounted && !self.elsewhere.contains(&top.at));
        owed.filter_map(move |top| {
            let (parent, name) = split(&top.at);
            (parent == path).then_some(name)
        })
    }

    /// Is a part of an archive all that is wanted of a file, see [`Overlay`]?
    pub(super) fn is_plain(&self) -> bool {
        self.rules.overlay.is_some()
    }

    /// Is nothing said of an object in this state, as if it had never been there?
    pub(super) fn forgets(&self, entry: &Entry, state: &EntryState) -> bool {
        *state == EntryState::Vanished && !self.misses(&entry.path)
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
        dir::open_read(dir, rel, self.rules.tricks)
    }

    pub(super) fn cache(&self) -> Cache {
        if self.rules.tricks == Tricks::Auto {
            Cache::Drop
        } else {
            Cache::Keep
        }
    }

    /// The attributes of an open file that belong to it in an archive.
    pub(super) fn xattrs(&self, fd: &OwnedFd) -> io::Result<Vec<Xattr>> {
        if self.is_plain() {
            Ok(Vec::new())
        } else {
            xattr::read_all(fd)
        }
    }

    fn members(
        &self,
        small: Vec<Scanned>,
        large: Option<Arc<LargeFile>>,
        buf: Buf,
    ) -> Result<Frame> {
        let waited_for = large.clone();
        let frame = self.frame(small, large, buf);
        if let (Err(error), Some(large)) = (&frame, waited_for) {
            large
                .opened
                .get_or_init(|| Err(EntryState::Unreadable(error.line()))); // this ends the run; nobody waits on
        }
        frame
    }

    fn frame(
        &self,
        small: Vec<Scanned>,
        mut large: Option<Arc<LargeFile>>,
        mut buf: Buf,
    ) -> Result<Frame> {
        let mut parts = Vec::with_capacity(small.len() + 1);
        let (mut home, mut text_bytes, mut rest) = (Home::default(), 0, None);
        let mut small = small.into_iter();
        while let Some(scanned) = small.next() {
            let is_first = scanned.is_first;
            let part = FrameEntry {
                is_first,
                ..self.member(scanned, &mut home, &mut buf)?
            };
            if let FrameContent::Whole(entry, _) = &part.what {
                text_bytes += xattr_bytes(&entry.xattrs);
            }
            parts.push(part);
            if small.len() > 0 && buf.overflows(buf.len() + text_bytes) {
                large.iter().for_each(|large| _ = self.opened(large)); // its pieces may be waiting for that
                rest = Some(Slice::Members(small.collect(), large.take()));
                break;
            }
        }
        let mut ends_member = true;
        if let Some(large) = large {
            let part = self.head(large, &mut buf)?;
            ends_member =
                !matches!(&part.what, FrameContent::Head(_, file) if file.known.is_none());
            parts.push(part);
        }
        CLOSER.with_borrow_mut(|closer| closer.iter_mut().for_each(Closer::flush));
        parts.retain(
            |part| !matches!(&part.what, FrameContent::Whole(entry, state) if self.forgets(entry, state)),
        );
        Ok(Frame {
            rest,
            ..Frame::new(buf, parts, ends_member)
        })
    }

    fn close(&self, fd: OwnedFd) {
        let tricks = self.rules.tricks;
        CLOSER
            .with_borrow_mut(|closer| closer.get_or_insert_with(|| Closer::new(tricks)).close(fd));
    }

    /// One whole member: header, content, padding. What cannot be read leaves nothing in the stream.
    fn member(&self, scanned: Scanned, at: &mut Home, buf: &mut Vec<u8>) -> Result<FrameEntry> {
        let Scanned {
            mut entry,
            state,
            born,
            home,
            exposed,
            is_first,
            mut known,
            is_ahead,
        } = scanned;
        let cache = if is_ahead {
            Cache::DropAhead
        } else {
            self.cache()
        };
        match self.unlink(&mut entry, room(buf, buf.len())) {
            Ok(is_new) => known = known.filter(|_| !is_new),
            Err(state) => return Ok(part(FrameContent::Whole(entry, state), buf.len(), 0)),
        }
        if let Some(same) = known.take_if(|known| known.trust == Trust::Same) {
            return Ok(kept(entry, state, same, buf.len()));
        }
        if !entry.is_file() || !state.is_stored() {
            let stored = state.is_stored()
                || (entry.kind == EntryKind::Directory && !self.forgets(&entry, &state));
            let failed = stored
                .then(|| self.header(&entry, buf))
                .and_then(Result::err);
            let state = failed.map_or(state, |error| unstorable(&error));
            return Ok(part(FrameContent::Whole(entry, state), buf.len(), 0));
        }
        let opened = self.when_there(&entry.path, || self.open_in(at, &entry.path, home));
        let (fd, is_home) =
            match opened.and_then(|(fd, is_home)| Ok((self.xattrs(&fd)?, fd, is_home))) {
                Ok((xattrs, fd, is_home)) => {
                    entry.xattrs = xattrs;
                    (fd, is_home)
                }
                Err(error) => {
                    self.disown(&entry, is_first);
                    let state = self.state_of(&error);
                    return Ok(part(FrameContent::Whole(entry, state), buf.len(), 0));
                }
            };
        let same = known.take_if(|known| matches!(known.trust, Trust::Content | Trust::Claim));
        let is_written = self.is_written(&entry.path);
        let unsure = exposed || !is_home || self.rules.looks_twice || same.is_some() || is_written;
        if let Some(same) = same {
            if !self
                .now_of(&fd, &entry)
                .is_some_and(|now| is_replaced(&fd, &now, &entry, born))
            {
                if same.trust == Trust::Claim {
                    (entry.inode, entry.ctime) = Default::default();
                }
                return Ok(kept(entry, state, same, buf.len()));
            }
            if entry.data_len() > room(buf, buf.len()) {
                return Ok(part(
                    FrameContent::Whole(entry, EntryState::Unreadable(REPLACED.to_owned())),
                    buf.len(),
                    0,
                ));
            }
        }
        self.fit(&fd, &mut entry);
        let start = buf.len();
        let (mut inner, mut read) = match self.copy(&fd, &entry, cache, buf) {
            Ok(copied) => copied,
            Err(error) => {
                self.close(fd);
                return Ok(part(
                    FrameContent::Whole(entry, unstorable(&error)),
                    start,
                    0,
                ));
            }
        };
        let mut now = (unsure || is_first || is_suspect(&read, &entry))
            .then(|| self.now_of(&fd, &entry))
            .flatten();
        let replaced = now.is_some_and(|now| is_replaced(&fd, &now, &entry, born));
        self.disown(&entry, is_first && replaced);
        let is_torn = |now: &Stat| is_written && changed(now, &entry);
        if let Some(found) =
            now.filter(|now| is_other(now, &entry, replaced, &read) || is_torn(now))
        {
            if self.refit(&found, &mut entry, room(buf, start)) {
                buf.truncate(start);
                (inner, read) = self.copy(&fd, &entry, cache, buf)?;
                now = self.now_of(&fd, &entry);
            } else if replaced {
                read = Err(io::Error::other(REPLACED));
            }
        }
        if matches!(read, Ok(false)) {
            read = now
                .as_ref()
                .map_or(Ok(()), |now| self.check_size(&fd, now))
                .and(read);
        }
        self.close(fd);
        let len = buf.len() - inner;
        match read {
            Ok(complete) => {
                let same =
                    complete && !replaced && now.as_ref().is_none_or(|now| !changed(now, &entry));
                let state = if same || self.is_plain() {
                    EntryState::Whole
                } else {
                    EntryState::Changed
                };
                if now.is_some_and(|now| self.adopt(&now, &mut entry)) {
                    let mut header = Vec::new();
                    self.header(&entry, &mut header)?;
                    buf.splice(start..inner, header.iter().copied());
                    inner = start + header.len();
                }
                pad(buf, len as u64);
                Ok(FrameEntry {
                    known,
                    replaced,
                    ..part(FrameContent::Whole(entry, state), inner, len)
                })
            }
            Err(error) => {
                buf.truncate(start);
                Ok(part(
                    FrameContent::Whole(entry, self.state_of(&error)),
                    start,
                    0,
                ))
            }
        }
    }

    /// Append header and content of a file. Gives where the content begins, and whether it is as long as the header says.
    fn copy(
        &self,
        fd: &OwnedFd,
        entry: &Entry,
        cache: Cache,
        buf: &mut Vec<u8>,
    ) -> Result<(usize, io::Result<bool>)> {
        self.header(entry, buf)?;
        Ok((buf.len(), self.content(fd, entry, cache, buf)))
    }

    /// Append a header; nothing of one that cannot be written.
    pub(super) fn header(&self, entry: &Entry, buf: &mut Vec<u8>) -> Result<()> {
        let start = buf.len();
        let mtime = Time {
            nanos: if self.is_plain() {
                0
            } else {
                entry.mtime.nanos
            },
            ..entry.mtime
        };
        let written = match mtime == entry.mtime {
            true => pax::write_header(entry, buf),
            false => pax::write_header(
                &Entry {
                    mtime,
                    ..entry.clone()
                },
                buf,
            ),
        };
        written.inspect_err(|_| buf.truncate(start))
    }

    /// As [`Inner::now`], but of what nobody repairs it is asked in any case.
    fn now_of(&self, fd: &OwnedFd, entry: &Entry) -> Option<Stat> {
        if self.repairs(&entry.path) {
            None
        } else {
            dir::stat_fd(fd).ok()
        }
    }

    fn repairs(&self, path: &[u8]) -> bool {
        self.rules
            .overlay
            .as_ref()
            .is_some_and(|overlay| overlay.repairs(path))
    }

    /// Is it a file of a program that does not repair a copy of it? It may be written by hand, or by who knows what.
    pub(super) fn is_written(&self, path: &[u8]) -> bool {
        self.is_plain() && !self.repairs(path)
    }

    fn misses(&self, path: &[u8]) -> bool {
        self.rules
            .overlay
            .as_ref()
            .is_none_or(|overlay| overlay.misses(path))
    }

    /// What has gone for a moment, as somebody who writes it anew has removed it before, is waited for where all of a tree is to be
    /// there.
    pub(super) fn when_there<T>(
        &self,
        path: &[u8],
        mut get: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut got = get();
        for _ in 0..AGAIN {
            match &got {
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && self.is_plain()
                        && self.misses(path) => {}
                _ => break,
            }
            sleep(MOMENT);
            got = get();
        }
        got
    }

    /// What an open file is now, one call; nobody asks where that it changes is expected.
    pub(super) fn now(&self, fd: &OwnedFd) -> Option<Stat> {
        if self.is_plain() {
            None
        } else {
            dir::stat_fd(fd).ok()
        }
    }

    /// Whose file it is and who may read it go with the content: another may have its name since the scan. Did they differ?
    pub(super) fn adopt(&self, now: &Stat, entry: &mut Entry) -> bool {
        if now.mode == entry.mode && (now.uid, now.gid) == (entry.owner.uid, entry.owner.gid) {
            return false;
        }
        (entry.mode, entry.owner) = (now.mode, self.owner(now));
        true
    }

    /// Append the content of a small file, exactly as many bytes as its header promised. Were there as many?
    fn content(
        &self,
        fd: &OwnedFd,
        entry: &Entry,
        cache: Cache,
        buf: &mut Vec<u8>,
    ) -> io::Result<bool> {
        let (want, inner) = (entry.data_len() as usize, buf.len());
        let mut complete = true;
        match &entry.kind {
            EntryKind::File { map: Some(map), .. } => {
                for run in map.iter() {
                    let got = read::read_full(
                        fd,
                        buf,
                        run.offset,
                        run.len as usize,
                        cache,
                        self.rules.tricks,
                    )?;
                    complete &= got as u64 == run.len;
                    buf.resize(buf.len() + run.len as usize - got, 0);
                }
            }
            _ => {
                let got = read::read_end(fd, buf, 0, want, cache, self.rules.tricks)?;
                complete = got == want;
            }
        }
        buf.resize(inner + want, 0);
        Ok(complete)
    }
}

/// What an earlier backup has; only if it has other attributes now was it looked at.
fn kept(entry: Entry, state: EntryState, known: BaseEntry, at: usize) -> FrameEntry {
    FrameEntry {
        known: Some(known),
        runs: Some(Vec::new()),
        ..part(FrameContent::Whole(entry, state), at, 0)
    }
}

/// The state of what the archive has no room for.
pub(super) fn unstorable(error: &Error) -> EntryState {
    EntryState::Unreadable(error.line())
}

/// Zeros after `len` bytes of content.
pub(super) fn pad(buf: &mut Vec<u8>, len: u64) {
    buf.resize(buf.len() + pax::padding(len), 0);
}

pub(super) fn part(what: FrameContent, inner: usize, len: usize) -> FrameEntry {
    let (inner, len) = (inner as u32, len as u32);
    FrameEntry {
        what,
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

/// Is it not what the scan saw?
pub(super) fn changed(now: &Stat, entry: &Entry) -> bool {
    now.size != entry.size() || now.mtime != entry.mtime
}
