//! Lists the directories of a tree: names in archive order, and the attributes of each object
//! without opening it.

use super::{Top, TopRole, TreeInner, refit::is_different_file};
use crate::{
    error::{self, Error, ErrorKind, quoted},
    format::{
        entry::{
            Entry, EntryKind, EntryPath, Owner, SparseMap, Time, Xattr, is_within, join, split,
            xattr_bytes,
        },
        page::EntryState,
        pax,
    },
    frame::Scanned,
    platform::{
        self,
        dir::{self, FileKind, Stat},
        durable::updates_change_times,
        read,
        unopened::UnopenedObject,
        xattr,
    },
    queue::{Promise, PromisedValue},
};
use std::{
    cell::Cell,
    collections::HashSet,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::PoisonError,
    time::{Duration, Instant},
};

/// Number of objects after which a thread hands over its listings. Handing over each directory by
/// itself cost more than listing it. Several threads take a batch each of a large directory.
pub(crate) const BATCH: usize = 512;
/// The latest possible ctime, so that no comparison finds the file unchanged.
const LATEST_TIME: Time = Time {
    seconds: i64::MAX,
    nanos: 0,
};
/// Bytes of directory attributes that count as one more object.
const XATTRS: usize = 1 << 10;

/// A directory to list.
pub(crate) struct DirectoryToList {
    pub(crate) path: EntryPath,
    /// Device of the directory when its attributes were read.
    pub(crate) dev: u64,
    /// Whether everything in it is wanted, or only the tops.
    pub(crate) is_whole: bool,
}

/// A directory to list, and the promise of its listing.
pub(crate) type Request = (DirectoryToList, Promise<io::Result<Listing>>);

/// The progress of one thread with one job.
pub(crate) struct ListingPace {
    /// Objects left before the thread hands over its listings.
    left: usize,
    done: usize,
    since: Instant,
    /// Number of sleeps of the thread at the start, if measured.
    sleeps: Option<u64>,
    /// Whether the thread slept for at least one of [`SLEPT_OVER`] objects.
    pub(crate) is_slow: bool,
}

/// A thread never sleeps for names in memory. It sleeps for one in some dozen on a disk, and for
/// each over a network.
const SLEPT_OVER: u64 = 4;
/// Shorter jobs are not measured, nor is the job after a short one.
const SHORT_JOB: Duration = Duration::from_millis(1);

thread_local! {
    /// Whether the last job of this thread took longer.
    static TAKES_LONG: Cell<bool> = const { Cell::new(true) };
}

impl ListingPace {
    pub(crate) fn begin() -> Self {
        let sleeps = TAKES_LONG.get().then(platform::voluntary_sleeps);
        Self {
            left: BATCH,
            done: 0,
            since: Instant::now(),
            sleeps,
            is_slow: false,
        }
    }

    /// Counts `objects` more, and updates the pace.
    pub(crate) fn count_objects(&mut self, objects: usize) {
        self.done += objects;
        let takes_long = self.since.elapsed() > SHORT_JOB;
        TAKES_LONG.set(takes_long);
        let sleeps = self
            .sleeps
            .filter(|_| takes_long)
            .map(|before| platform::voluntary_sleeps() - before);
        self.is_slow = sleeps.is_some_and(|sleeps| sleeps * SLEPT_OVER >= self.done as u64);
        self.left = if self.is_slow {
            0
        } else {
            self.left.saturating_sub(objects)
        };
    }
}

/// The contents of a directory and its own attributes.
pub(crate) struct Listing {
    /// The first batch of its objects.
    pub(crate) children: Vec<Child>,
    /// The names of all further objects.
    pub(crate) rest: Vec<dir::DirName>,
    pub(crate) xattrs: io::Result<Vec<Xattr>>,
    /// Attributes of the directory when it was opened.
    pub(crate) now: Stat,
    /// Whether only the tops in the directory are delivered.
    pub(crate) is_bare: bool,
    /// Why the rest could not be listed, if it was wanted.
    pub(crate) failed: Option<io::Error>,
}

/// One object in a directory.
pub(crate) struct Child {
    pub(crate) scanned: Scanned,
    pub(crate) dev: u64,
    pub(crate) nlink: u32,
    pub(crate) listing: ListingState,
    /// Whether the object is delivered only because a top is below it.
    pub(crate) is_only_way: bool,
}

/// The listing of a directory, if it was made before the walk needs it.
pub(crate) enum ListingState {
    Not,
    Asked(PromisedValue<io::Result<Listing>>),
    Listed(io::Result<Listing>),
}

impl TreeInner {
    /// Returns whether this is a directory with objects of this stream, which must be listed. `dev`
    /// is the device of its parent.
    pub(crate) fn should_enter(&self, child: &Child, dev: u64) -> bool {
        let Scanned { entry, state, .. } = &child.scanned;
        is_directory(&child.scanned)
            && state.is_stored()
            && !self.is_own(child)
            && (self.is_whole(child, dev) || self.tops_in(&entry.path).next().is_some())
    }

    /// Returns whether everything in this directory belongs to this stream.
    fn is_whole(&self, child: &Child, dev: u64) -> bool {
        let path = &child.scanned.entry.path;
        let is_closed = self.closed.get(path).is_some_and(HashSet::is_empty);
        let is_beyond = self.rules.one_file_system && child.dev != dev && !self.is_named(path);
        !child.is_only_way && !is_closed && !is_beyond
    }

    /// Builds the request to list this directory.
    pub(crate) fn list_request(&self, child: &Child, dev: u64) -> DirectoryToList {
        let is_whole = self.is_whole(child, dev);
        DirectoryToList {
            path: child.scanned.entry.path.clone(),
            dev: child.dev,
            is_whole,
        }
    }

    /// Returns whether no stream holds the contents of this directory: it is on another file system
    /// than `dev` and the rules exclude that, or the backup is written to it.
    pub(crate) fn is_never_entered(&self, child: &Child, dev: u64) -> bool {
        is_directory(&child.scanned)
            && ((self.rules.one_file_system && child.dev != dev) || self.is_own(child))
    }

    /// Returns whether the backup is written to this object.
    pub(crate) fn is_own(&self, child: &Child) -> bool {
        self.is_destination((child.dev, child.scanned.entry.inode))
    }

    /// Returns whether the backup is written to the object of this device and inode.
    fn is_destination(&self, object: (u64, u64)) -> bool {
        self.rules
            .own
            .get()
            .is_some_and(|own| own.contains(&object))
    }

    /// Refuses a top that the backup is written to. A destination below a named top is not refused;
    /// it is not entered.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub(crate) fn check_tops(&self) -> error::Result<()> {
        let is_begun = |top: &&Top| match top.role {
            TopRole::Named => true,
            TopRole::Mounted => !self.elsewhere.contains(&top.at),
            TopRole::Above => false,
        };
        for top in self.tops.iter().filter(is_begun) {
            let stat = dir::stat(&top.dir, top.file_name());
            if stat.is_ok_and(|stat| self.is_destination((stat.dev, stat.inode))) {
                let what = if top.at.is_empty() {
                    "the source directory".to_owned()
                } else {
                    quoted(&top.at)
                };
                let what = format!("cannot back up {what}: the backup is written to it");
                return Err(Error::new(ErrorKind::Usage, what).hint("choose another --to"));
            }
        }
        Ok(())
    }

    /// Lists a directory: its objects in order, without excluded ones. Tops in it are delivered
    /// even if the directory cannot be listed.
    fn list(&self, directory: &DirectoryToList, buffer: &mut Vec<u8>) -> io::Result<Listing> {
        let path = &directory.path;
        if !directory.is_whole {
            return self.list_tops(path, None);
        }
        match self.list_whole(path, directory.dev, buffer) {
            Err(error) if self.tops_in(path).next().is_some() => self.list_tops(path, Some(error)),
            listed => listed,
        }
    }

    /// Lists only the tops in a directory, which is a top itself and so is open already.
    fn list_tops(&self, path: &[u8], failed: Option<io::Error>) -> io::Result<Listing> {
        let dir = &self.top(path).ok_or(io::ErrorKind::NotFound)?.dir;
        let now = dir::stat_fd(dir)?;
        let mut names = self.add_tops(path, Vec::new());
        let rest = names.split_off(names.len().min(BATCH));
        let children = self.build_children(Ok((dir, &now)), path, names, true);
        let xattrs = if self.has_overlay() {
            Ok(Vec::new())
        } else {
            xattr::read_all_at(dir, b".")
        };
        Ok(Listing {
            children,
            rest,
            xattrs,
            now,
            is_bare: true,
            failed,
        })
    }

    /// Adds the names of tops in the directory to these ascending names.
    fn add_tops(&self, path: &[u8], mut names: Vec<dir::DirName>) -> Vec<dir::DirName> {
        for top in self.tops_in(path) {
            if let Err(at) = names.binary_search_by(|name| name.bytes.as_slice().cmp(top)) {
                names.insert(
                    at,
                    dir::DirName {
                        bytes: top.to_vec(),
                        kind: FileKind::Unknown,
                        inode: 0,
                    },
                );
            }
        }
        names
    }

    /// Reads and lists a directory that was on device `dev`.
    fn list_whole(&self, path: &[u8], dev: u64, buffer: &mut Vec<u8>) -> io::Result<Listing> {
        let (dir, rel) = self.locate(path).ok_or(io::ErrorKind::NotFound)?;
        let dir = dir::open_dir(dir, rel)?;
        let now = dir::stat_fd(&dir)?;
        // Opening the directory may have mounted a file system there.
        let is_beyond = self.rules.one_file_system && now.dev != dev;
        let mut names = Vec::new();
        if !is_beyond {
            names = self.read_names(&dir, path, buffer)?;
        }
        let has = |wanted: &[u8]| {
            names
                .binary_search_by(|name| name.bytes.as_slice().cmp(wanted))
                .is_ok()
        };
        let is_bare = !self.is_named(path) && self.exclusion_mark(&dir, has).is_some();
        if is_bare {
            names.retain(|name| name.bytes == CACHE_TAG_NAME && self.rules.exclude_caches);
        }
        let mut names = self.add_tops(path, names);
        let rest = names.split_off(names.len().min(BATCH));
        let children = self.build_children(Ok((&dir, &now)), path, names, is_bare);
        let xattrs = self.xattrs(&dir);
        Ok(Listing {
            children,
            rest,
            xattrs,
            now,
            is_bare,
            failed: None,
        })
    }

    /// Reads the names in a directory that belong to the backup, ascending.
    fn read_names(
        &self,
        dir: &OwnedFd,
        path: &[u8],
        buffer: &mut Vec<u8>,
    ) -> io::Result<Vec<dir::DirName>> {
        let mut names = dir::read_dir(dir, buffer)?;
        names.sort_unstable_by(|a, b| a.bytes.cmp(&b.bytes));
        // A file system may return a name twice while the directory changes.
        names.dedup_by(|a, b| a.bytes == b.bytes);
        if let Some(overlay) = &self.rules.overlay {
            overlay.pick(path, &mut names);
        }
        if let Some(only) = self.closed.get(path) {
            names.retain(|name| only.contains(&name.bytes));
        }
        Ok(names)
    }

    /// Reads the attributes of some names of a listed directory. If the directory is gone, only the
    /// tops remain.
    pub(crate) fn child_batch(
        &self,
        path: &[u8],
        names: Vec<dir::DirName>,
        is_bare: bool,
    ) -> Vec<Child> {
        let place = self
            .locate(path)
            .ok_or_else(|| io::ErrorKind::NotFound.into());
        let dir = place.and_then(|(dir, rel)| dir::open_dir(dir, rel));
        let dir = dir.and_then(|dir| dir::stat_fd(&dir).map(|now| (dir, now)));
        self.build_children(
            dir.as_ref().map(|(dir, now)| (dir, now)),
            path,
            names,
            is_bare,
        )
    }

    /// Reads the attributes of these names; a name that is gone has vanished. `is_bare`: without the
    /// tops, the directory would not be entered.
    fn build_children(
        &self,
        dir: Result<(&OwnedFd, &Stat), &io::Error>,
        parent: &[u8],
        names: Vec<dir::DirName>,
        is_bare: bool,
    ) -> Vec<Child> {
        let children = names.into_iter().filter_map(|name| {
            let path = join(parent, &name.bytes);
            self.build_named_child(dir, parent, path, &name, is_bare)
        });
        children.collect()
    }

    /// Builds the child of one name; `None` if it is excluded.
    fn build_named_child(
        &self,
        dir: Result<(&OwnedFd, &Stat), &io::Error>,
        parent: &[u8],
        path: EntryPath,
        name: &dir::DirName,
        is_bare: bool,
    ) -> Option<Child> {
        let top = self.top(&path);
        let is_exempt = top.is_some_and(|top| top.role != TopRole::Mounted);
        // Some file systems do not return the kind of a name in the listing. Patterns are then
        // applied after its attributes are read.
        let is_kind_known = name.kind != FileKind::Unknown;
        let is_excluded = !is_exempt
            && is_kind_known
            && self.is_excluded(&path, name.kind == FileKind::Directory);
        if is_excluded || self.elsewhere.contains(&path) {
            return None;
        }
        let fd = dir.ok().map(|(fd, _)| fd);
        let is_only_way = top.is_some_and(|top| top.role == TopRole::Above)
            && (is_bare || !self.is_entered_anyway(fd, parent, &path, &name.bytes));
        let mut child = self.child_of_name(dir, top, path, name);
        child.is_only_way = is_only_way;
        let entry = &child.scanned.entry;
        let is_late_exclusion = !is_exempt
            && !is_kind_known
            && self.is_excluded(&entry.path, is_directory(&child.scanned));
        let is_own = entry.is_file() && self.is_own(&child);
        let is_skipped = self.skips_silently(entry, &child.scanned.state);
        (!is_skipped && !is_own && !is_late_exclusion).then_some(child)
    }

    /// Reads the attributes of a name in a directory. A top within another one replaces the object
    /// at its path.
    fn child_of_name(
        &self,
        dir: Result<(&OwnedFd, &Stat), &io::Error>,
        top: Option<&Top>,
        path: EntryPath,
        name: &dir::DirName,
    ) -> Child {
        let place = match top {
            Some(top) => Ok((&top.dir, top.file_name())),
            None => dir.map(|(fd, _)| (fd, &name.bytes[..])),
        };
        let mut child = match place {
            Ok((dir, name)) => self.child_at(dir, name, path),
            Err(error) => self.unreadable_child(path, error),
        };
        let parent_stat = dir.ok().map(|(_, now)| now);
        child.scanned.home = parent_stat.map(|stat| (stat.dev, stat.inode));
        child.scanned.exposed = parent_stat.is_none_or(|stat| self.is_writable_by_others(stat));
        child
    }

    fn child_at(&self, dir: &OwnedFd, name: &[u8], path: EntryPath) -> Child {
        self.retry_while_missing(&path, || dir::stat(dir, name))
            .and_then(|stat| self.build_child(dir, name, path.clone(), stat))
            .unwrap_or_else(|error| self.unreadable_child(path, &error))
    }

    /// Returns whether users other than root and this one may write to the directory.
    fn is_writable_by_others(&self, dir: &Stat) -> bool {
        ![0, self.user].contains(&dir.uid) || dir.mode & 0o022 != 0
    }

    /// Returns whether a walk of `parent` would enter this name even if no top were below it. A
    /// link is not entered; it may have appeared or gone since the tops were opened.
    fn is_entered_anyway(
        &self,
        dir: Option<&OwnedFd>,
        parent: &[u8],
        path: &[u8],
        name: &[u8],
    ) -> bool {
        let is_open = self
            .closed
            .get(parent)
            .is_none_or(|only| only.contains(name));
        let found = dir.and_then(|dir| dir::stat(dir, name).ok());
        is_open
            && found.is_some_and(|found| found.kind == FileKind::Directory)
            && !self.is_excluded(path, true)
    }

    /// Lists directories, and hands over the listings in batches that are worth a wake-up. On a
    /// slow file system it returns the remaining requests for other threads.
    pub(crate) fn list_all(
        &self,
        directories: Vec<Request>,
        buffer: &mut Vec<u8>,
        pace: &mut ListingPace,
    ) -> Vec<Request> {
        let mut listed = Vec::with_capacity(directories.len());
        let mut directories = directories.into_iter();
        for (directory, promise) in &mut directories {
            listed.push((promise, self.list_ahead(&directory, buffer, pace)));
            if pace.left == 0 {
                listed
                    .drain(..)
                    .for_each(|(promise, listing)| promise.keep(listing));
                pace.left = BATCH;
            }
            if pace.is_slow {
                break;
            }
        }
        listed
            .into_iter()
            .for_each(|(promise, listing)| promise.keep(listing));
        directories.collect()
    }

    /// Lists a directory, and directories below it, until the batch is full.
    fn list_ahead(
        &self,
        directory: &DirectoryToList,
        buffer: &mut Vec<u8>,
        pace: &mut ListingPace,
    ) -> io::Result<Listing> {
        let mut listing = self.list(directory, buffer)?;
        pace.count_objects(
            1 + listing.children.len() + listing.xattrs.as_deref().map_or(0, xattr_bytes) / XATTRS,
        );
        for child in &mut listing.children {
            if pace.left == 0 {
                break;
            }
            if self.should_enter(child, listing.now.dev) {
                let below = self.list_request(child, listing.now.dev);
                child.listing = ListingState::Listed(self.list_ahead(&below, buffer, pace));
            }
        }
        Ok(listing)
    }

    /// Builds the entry of one object. Opens only files with holes.
    pub(crate) fn build_child(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        path: EntryPath,
        stat: Stat,
    ) -> io::Result<Child> {
        let (kind, mut state) = self.kind_and_state(dir, name, &stat)?;
        let is_file = matches!(kind, EntryKind::File { .. });
        if is_file && let Some(why) = (self.rules.torn)(dir.as_fd(), &path) {
            state = EntryState::Unreadable(why);
        }
        let ctime = if is_file && !self.has_change_time(dir, name, &stat) {
            LATEST_TIME
        } else {
            stat.ctime
        };
        let is_special = matches!(
            kind,
            EntryKind::Symlink(_)
                | EntryKind::Fifo
                | EntryKind::CharDevice(_)
                | EntryKind::BlockDevice(_)
        );
        let mut entry = Entry {
            path,
            kind,
            mode: stat.mode,
            owner: self.owner(&stat),
            mtime: stat.mtime,
            ctime,
            inode: stat.inode,
            xattrs: Vec::new(),
        };
        if is_special && !self.has_overlay() {
            match xattr::read_all_at(dir, name) {
                Ok(xattrs) => entry.xattrs = xattrs,
                Err(error) => state = self.state_of(&error),
            }
        }
        let mut scanned = Scanned::new(entry, state);
        scanned.born = stat.born;
        Ok(Child {
            scanned,
            dev: stat.dev,
            nlink: stat.nlink,
            listing: ListingState::Not,
            is_only_way: false,
        })
    }

    /// Returns the kind of an object. A socket is only noted, not stored.
    fn kind_and_state(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        stat: &Stat,
    ) -> io::Result<(EntryKind, EntryState)> {
        let kind = match stat.kind {
            FileKind::File => EntryKind::File {
                size: stat.size,
                map: self.map(dir, name, stat),
            },
            FileKind::Directory => EntryKind::Directory,
            FileKind::Symlink => EntryKind::Symlink(dir::read_link(dir, name)?),
            FileKind::Fifo => EntryKind::Fifo,
            FileKind::CharDevice => EntryKind::CharDevice(stat.rdev),
            FileKind::BlockDevice => EntryKind::BlockDevice(stat.rdev),
            FileKind::Socket | FileKind::Unknown => {
                return Ok((EntryKind::Socket, EntryState::Noted));
            }
        };
        Ok((kind, EntryState::Whole))
    }

    /// Returns whether a change of this file shows in its ctime. Checked once for each device.
    fn has_change_time(&self, dir: &OwnedFd, name: &[u8], stat: &Stat) -> bool {
        let known = self
            .change_times
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .find(|(dev, _)| *dev == stat.dev)
            .map(|(_, has)| *has);
        if let Some(has) = known {
            return has;
        }
        // A single file may be a mount of its own.
        let is_here = dir::stat_fd(dir).is_ok_and(|above| above.dev == stat.dev);
        let has = if is_here {
            updates_change_times(dir)
        } else {
            UnopenedObject::open(dir.as_fd(), name).is_ok_and(|object| object.has_change_time())
        };
        self.change_times
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push((stat.dev, has));
        has
    }

    /// Returns one object by its path.
    pub(crate) fn look(&self, path: &[u8]) -> Child {
        let child = self.open_parent(path).and_then(|(dir, name)| {
            self.build_child(&dir, name, path.to_vec(), dir::stat(&dir, name)?)
        });
        let mut child = child.unwrap_or_else(|error| self.unreadable_child(path.to_vec(), &error));
        self.read_dir_xattrs(&mut child.scanned);
        child
    }

    /// Opens the parent directory of `path`. Returns it with the name in it.
    fn open_parent<'a>(&self, path: &'a [u8]) -> io::Result<(OwnedFd, &'a [u8])> {
        let (parent, name) = split(path);
        let (dir, rel) = self.locate(parent).ok_or(io::ErrorKind::NotFound)?;
        let dir = dir::open_dir(dir, rel)?;
        Ok((dir, if path.is_empty() { b"." } else { name }))
    }

    /// Reads the attributes of a directory that is delivered but not listed; for listed directories
    /// they come with the listing.
    ///
    /// The directory is not opened, because that would mount a file system under an automounter.
    pub(crate) fn read_dir_xattrs(&self, scanned: &mut Scanned) {
        if self.has_overlay() || !is_directory(scanned) {
            return;
        }
        let path = &scanned.entry.path;
        let read = match self.top(path) {
            Some(top) => xattr::read_all_at(&top.dir, top.file_name()),
            None => self
                .open_parent(path)
                .and_then(|(dir, name)| xattr::read_all_at(&dir, name)),
        };
        match read {
            Ok(xattrs) => scanned.entry.xattrs = xattrs,
            // The directory has just been removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if scanned.state.is_stored() => scanned.state = self.state_of(&error),
            Err(error) => self.shortage.notice(&error),
        }
    }

    fn unreadable_child(&self, path: EntryPath, error: &io::Error) -> Child {
        let entry = Entry {
            path,
            ..Entry::default()
        };
        let scanned = Scanned::new(entry, self.state_of(error));
        Child {
            scanned,
            dev: 0,
            nlink: 1,
            listing: ListingState::Not,
            is_only_way: false,
        }
    }

    pub(crate) fn owner(&self, stat: &Stat) -> Owner {
        let user = self.names.user(stat.uid);
        let group = self.names.group(stat.gid);
        Owner {
            uid: stat.uid,
            gid: stat.gid,
            user,
            group,
        }
    }

    /// Returns the data runs of a file with fewer blocks than bytes.
    fn map(&self, dir: &OwnedFd, name: &[u8], stat: &Stat) -> Option<SparseMap> {
        if !stat.looks_sparse() || self.rules.overlay.is_some() {
            return None;
        }
        let fd = dir::open_read(dir, name)
            .inspect_err(|error| self.shortage.notice(error))
            .ok()?;
        // The open file may be another one; its holes do not count.
        dir::stat_fd(&fd)
            .ok()
            .filter(|now| !is_different_file(&fd, now, (stat.inode, stat.ctime, stat.born)))?;
        let map = read::data_map(&fd, stat.size).ok().flatten()?;
        pax::storable_map(map.into(), stat.size)
    }

    fn is_excluded(&self, path: &[u8], is_dir: bool) -> bool {
        self.rules.exclude.matches(path, is_dir)
    }

    /// Returns the name in this directory that excludes its contents.
    fn exclusion_mark(&self, dir: &OwnedFd, has: impl Fn(&[u8]) -> bool) -> Option<&[u8]> {
        let by_name = self
            .rules
            .exclude_if_present
            .iter()
            .map(Vec::as_slice)
            .find(|name| has(name));
        let is_cache =
            || self.rules.exclude_caches && has(CACHE_TAG_NAME) && self.is_cache_tag(dir);
        by_name.or_else(|| is_cache().then_some(CACHE_TAG_NAME))
    }

    /// Returns whether the rules exclude `path` itself or a directory above it, below the first
    /// top.
    pub(crate) fn leaves_out(&self, path: &[u8], is_dir: bool) -> bool {
        let top = self.tops.first().map_or(&b""[..], |top| &top.at);
        let slashes = path
            .iter()
            .enumerate()
            .filter(|(_, c)| **c == b'/')
            .map(|(at, _)| &path[..at]);
        let mut above = slashes.filter(|dir| is_within(dir, top) && dir != &top);
        self.is_excluded(path, is_dir)
            || above.any(|dir| self.is_excluded(dir, true) || self.exclusion_mark_at(dir).is_some())
    }

    /// As [`Self::exclusion_mark`], for the directory at `path`, without listing it.
    pub(crate) fn exclusion_mark_at(&self, path: &[u8]) -> Option<&[u8]> {
        if self.rules.exclude_if_present.is_empty() && !self.rules.exclude_caches {
            return None;
        }
        let (dir, rel) = self.locate(path)?;
        let dir = dir::open_dir(dir, rel).ok()?;
        self.exclusion_mark(&dir, |name| dir::stat(&dir, name).is_ok())
    }

    fn is_cache_tag(&self, dir: &OwnedFd) -> bool {
        let mut head = Vec::new();
        let tag = dir::open_read(dir, CACHE_TAG_NAME);
        tag.and_then(|fd| {
            read::read_full(&fd, &mut head, 0, CACHE_TAG.len(), read::PageCacheUse::Keep)
        })
        .is_ok_and(|_| head == CACHE_TAG)
    }
}

/// File that marks a cache directory, and how the file must begin (bford.info/cachedir).
const CACHE_TAG_NAME: &[u8] = b"CACHEDIR.TAG";
const CACHE_TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

pub(crate) fn is_directory(scanned: &Scanned) -> bool {
    scanned.entry.kind == EntryKind::Directory
}
