//! What is in the directories of a tree: names in archive order, and what is known of each object without opening it.

use super::{Top, TopRole, TreeInner, refit::is_another};
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
    queue::{Answer, Promise},
};
use std::{
    cell::Cell,
    collections::HashSet,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::PoisonError,
    time::{Duration, Instant},
};

/// Objects after which a thread hands over what it has listed. Handing over each directory by itself cost more than
/// listing it; and of a large directory several threads take a batch each.
pub(crate) const BATCH: usize = 512;
/// Bytes of a directory's attributes that count for one object more.
const XATTRS: usize = 1 << 10;

/// A directory to list.
pub(crate) struct DirectoryToList {
    pub(crate) path: EntryPath,
    /// The device it was on when it was looked at.
    pub(crate) dev: u64,
    /// Is everything in it wanted, or only the tops?
    pub(crate) is_whole: bool,
}

/// A directory to list, and who is told.
pub(crate) type Request = (DirectoryToList, Promise<io::Result<Listing>>);

/// How one thread gets on with one job.
pub(crate) struct ListingPace {
    /// Objects that are left before it hands over what it has.
    left: usize,
    done: usize,
    since: Instant,
    /// How often it had slept when it began, if it asked.
    sleeps: Option<u64>,
    /// Did it sleep over one in [`SLEPT_OVER`] of its objects, or more?
    pub(crate) is_slow: bool,
}

/// Of names that are in memory it sleeps over none, of a disk's over one in some dozen, of a network's over each.
const SLEPT_OVER: u64 = 4;
/// Nobody asks how often it slept in less, nor in the job behind one that took less.
const QUICK: Duration = Duration::from_millis(1);

thread_local! {
    /// Did the last job of this thread take longer?
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

    /// It has looked at so many objects more.
    pub(crate) fn spend(&mut self, objects: usize) {
        self.done += objects;
        let takes_long = self.since.elapsed() > QUICK;
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

/// What a directory holds, and its own attributes.
pub(crate) struct Listing {
    /// The first batch of it,
    pub(crate) children: Vec<Child>,
    /// and the names of the rest.
    pub(crate) rest: Vec<dir::DirName>,
    pub(crate) xattrs: io::Result<Vec<Xattr>>,
    /// What it is, as it was opened.
    pub(crate) now: Stat,
    /// Are only the tops of it delivered, not what else is in it?
    pub(crate) is_bare: bool,
    /// Why nothing else could be listed, if it should have been.
    pub(crate) failed: Option<io::Error>,
}

/// One object in a directory.
pub(crate) struct Child {
    pub(crate) scanned: Scanned,
    pub(crate) dev: u64,
    pub(crate) nlink: u32,
    pub(crate) listing: Ahead,
    /// Is it here only for the sake of a top that is below it?
    pub(crate) is_only_way: bool,
}

/// What a directory holds, if somebody looked before it is its turn.
pub(crate) enum Ahead {
    Not,
    Asked(Answer<io::Result<Listing>>),
    Listed(io::Result<Listing>),
}

impl TreeInner {
    /// Is this a directory of which something belongs to this stream? Then it is to be listed. `dev` is the device of the
    /// directory it is in.
    pub(crate) fn enters(&self, child: &Child, dev: u64) -> bool {
        let Scanned { entry, state, .. } = &child.scanned;
        is_directory(&child.scanned)
            && state.is_stored()
            && !self.is_own(child)
            && (self.is_whole(child, dev) || self.tops_in(&entry.path).next().is_some())
    }

    /// Does everything in this directory belong to this stream?
    fn is_whole(&self, child: &Child, dev: u64) -> bool {
        let path = &child.scanned.entry.path;
        let is_closed = self.closed.get(path).is_some_and(HashSet::is_empty);
        let is_beyond = self.rules.one_file_system && child.dev != dev && !self.is_named(path);
        !child.is_only_way && !is_closed && !is_beyond
    }

    /// To list a directory that is entered.
    pub(crate) fn directory(&self, child: &Child, dev: u64) -> DirectoryToList {
        let is_whole = self.is_whole(child, dev);
        DirectoryToList {
            path: child.scanned.entry.path.clone(),
            dev: child.dev,
            is_whole,
        }
    }

    /// Is this a directory whose contents belong to no stream: on another file system than `dev`, if that is to be left out,
    /// or where the backup goes?
    pub(crate) fn is_barred(&self, child: &Child, dev: u64) -> bool {
        is_directory(&child.scanned)
            && ((self.rules.one_file_system && child.dev != dev) || self.is_own(child))
    }

    /// Does the backup go there?
    pub(crate) fn is_own(&self, child: &Child) -> bool {
        self.goes_to((child.dev, child.scanned.entry.inode))
    }

    /// Does the backup go to the object of this device and inode?
    fn goes_to(&self, object: (u64, u64)) -> bool {
        self.rules
            .own
            .get()
            .is_some_and(|own| own.contains(&object))
    }

    /// Refuse a top that the backup goes to. A file system that it goes to, mounted below a named top, is not entered, as no
    /// such directory is.
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
            if stat.is_ok_and(|stat| self.goes_to((stat.dev, stat.inode))) {
                let what = if top.at.is_empty() {
                    "what is to be backed up".to_owned()
                } else {
                    quoted(&top.at)
                };
                let what = format!("{what} is where the backup goes");
                return Err(Error::new(ErrorKind::Usage, what).hint("choose another --to"));
            }
        }
        Ok(())
    }

    /// List a directory: its objects in order, without what the rules leave out. Tops in it are delivered though it cannot be
    /// listed.
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

    /// Only the tops that stand in a directory, which is one itself: it need not be opened for that.
    fn list_tops(&self, path: &[u8], failed: Option<io::Error>) -> io::Result<Listing> {
        let dir = &self.top(path).ok_or(io::ErrorKind::NotFound)?.dir;
        let now = dir::stat_fd(dir)?;
        let mut names = self.with_tops(path, Vec::new());
        let rest = names.split_off(names.len().min(BATCH));
        let children = self.children(Ok((dir, &now)), path, names, true);
        let xattrs = if self.is_plain() {
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

    /// These names, ascending, and those of the tops that stand in the directory and are not among them.
    fn with_tops(&self, path: &[u8], mut names: Vec<dir::DirName>) -> Vec<dir::DirName> {
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

    /// List a directory that was on device `dev` by reading it.
    fn list_whole(&self, path: &[u8], dev: u64, buffer: &mut Vec<u8>) -> io::Result<Listing> {
        let (dir, rel) = self.locate(path).ok_or(io::ErrorKind::NotFound)?;
        let dir = dir::open_dir(dir, rel, self.rules.tricks)?;
        let now = dir::stat_fd(&dir)?;
        // To open it may have mounted something there.
        let is_beyond = self.rules.one_file_system && now.dev != dev;
        let mut names = if is_beyond {
            Vec::new()
        } else {
            dir::read_dir(&dir, buffer)?
        };
        names.sort_unstable_by(|a, b| a.bytes.cmp(&b.bytes));
        // Of a directory that changes a file system may say a name twice.
        names.dedup_by(|a, b| a.bytes == b.bytes);
        if let Some(overlay) = &self.rules.overlay {
            overlay.pick(path, &mut names);
        }
        if let Some(only) = self.closed.get(path) {
            names.retain(|name| only.contains(&name.bytes));
        }
        let has = |wanted: &[u8]| {
            names
                .binary_search_by(|name| name.bytes.as_slice().cmp(wanted))
                .is_ok()
        };
        let is_bare = !self.is_named(path) && self.mark(&dir, has).is_some();
        if is_bare {
            names.retain(|name| name.bytes == CACHE_TAG_NAME && self.rules.exclude_caches);
        }
        let mut names = self.with_tops(path, names);
        let rest = names.split_off(names.len().min(BATCH));
        let children = self.children(Ok((&dir, &now)), path, names, is_bare);
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

    /// Some of what is in a directory that was listed before. If it is gone since, so is all of it but the tops.
    pub(crate) fn look_at(
        &self,
        path: &[u8],
        names: Vec<dir::DirName>,
        is_bare: bool,
    ) -> Vec<Child> {
        let place = self
            .locate(path)
            .ok_or_else(|| io::ErrorKind::NotFound.into());
        let dir = place.and_then(|(dir, rel)| dir::open_dir(dir, rel, self.rules.tricks));
        let dir = dir.and_then(|dir| dir::stat_fd(&dir).map(|now| (dir, now)));
        self.children(
            dir.as_ref().map(|(dir, now)| (dir, now)),
            path,
            names,
            is_bare,
        )
    }

    /// What is known of these names; what is gone since they were listed has vanished. `is_bare`: what they are in would not
    /// be entered but for the tops.
    fn children(
        &self,
        dir: Result<(&OwnedFd, &Stat), &io::Error>,
        parent: &[u8],
        names: Vec<dir::DirName>,
        is_bare: bool,
    ) -> Vec<Child> {
        let mut children = Vec::with_capacity(names.len());
        let home = dir.ok().map(|(_, now)| now);
        let is_others = |home: &Stat| ![0, self.user].contains(&home.uid) || home.mode & 0o022 != 0;
        for name in names {
            let path = join(parent, &name.bytes);
            let top = self.top(&path);
            let is_owed = top.is_some_and(|top| top.role != TopRole::Mounted);
            // Some file systems do not say in a directory what a name is: then patterns wait for what the system says of it.
            let told = name.kind != FileKind::Unknown;
            let excluded =
                !is_owed && told && self.is_excluded(&path, name.kind == FileKind::Directory);
            if excluded || self.elsewhere.contains(&path) {
                continue;
            }
            let is_only_way = top.is_some_and(|top| top.role == TopRole::Above)
                && (is_bare
                    || !self.is_entered_anyway(
                        dir.ok().map(|(dir, _)| dir),
                        parent,
                        &path,
                        &name.bytes,
                    ));
            // A top within another stands in for what has its name there.
            let place = top.map(|top| (&top.dir, top.file_name()));
            let mut child =
                match place.map_or_else(|| dir.map(|(dir, _)| (dir, &name.bytes[..])), Ok) {
                    Ok((dir, name)) => self
                        .when_there(&path, || dir::stat(dir, name))
                        .and_then(|stat| self.child(dir, name, path.clone(), stat))
                        .unwrap_or_else(|error| self.unknown(path, &error)),
                    Err(error) => self.unknown(path, error),
                };
            child.scanned.home = home.map(|home| (home.dev, home.inode));
            child.scanned.exposed = home.is_none_or(is_others);
            child.is_only_way = is_only_way;
            let is_expected = self.forgets(&child.scanned.entry, &child.scanned.state);
            let is_own = child.scanned.entry.is_file() && self.is_own(&child);
            let is_left_out = !is_owed
                && !told
                && self.is_excluded(&child.scanned.entry.path, is_directory(&child.scanned));
            if !is_expected && !is_own && !is_left_out {
                children.push(child);
            }
        }
        children
    }

    /// Would a walk that lists `parent` enter what has this name there, if no top were below it? A link is not entered, and it
    /// may have come or gone since the tops were opened.
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

    /// List directories. What is listed is kept back until it is worth waking somebody for it. Where it is slow, others may do
    /// the rest, which is returned.
    pub(crate) fn list_all(
        &self,
        directories: Vec<Request>,
        buffer: &mut Vec<u8>,
        pace: &mut ListingPace,
    ) -> Vec<Request> {
        let mut listed = Vec::with_capacity(directories.len());
        let mut directories = directories.into_iter();
        for (directory, promise) in &mut directories {
            listed.push((promise, self.list_below(&directory, buffer, pace)));
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

    /// List a directory, and what comes after it below it while there are objects left to list.
    fn list_below(
        &self,
        directory: &DirectoryToList,
        buffer: &mut Vec<u8>,
        pace: &mut ListingPace,
    ) -> io::Result<Listing> {
        let mut listing = self.list(directory, buffer)?;
        pace.spend(
            1 + listing.children.len() + listing.xattrs.as_deref().map_or(0, xattr_bytes) / XATTRS,
        );
        for child in &mut listing.children {
            if pace.left == 0 {
                break;
            }
            if self.enters(child, listing.now.dev) {
                let below = self.directory(child, listing.now.dev);
                child.listing = Ahead::Listed(self.list_below(&below, buffer, pace));
            }
        }
        Ok(listing)
    }

    /// What is known of one object without opening it, unless it has holes.
    pub(crate) fn child(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        path: EntryPath,
        stat: Stat,
    ) -> io::Result<Child> {
        let mut state = EntryState::Whole;
        let kind = match stat.kind {
            FileKind::File => EntryKind::File {
                size: stat.size,
                map: self.map(dir, name, &stat),
            },
            FileKind::Directory => EntryKind::Directory,
            FileKind::Symlink => EntryKind::Symlink(dir::read_link(dir, name)?),
            FileKind::Fifo => EntryKind::Fifo,
            FileKind::CharDevice => EntryKind::CharDevice(stat.rdev),
            FileKind::BlockDevice => EntryKind::BlockDevice(stat.rdev),
            FileKind::Socket | FileKind::Unknown => {
                state = EntryState::Noted;
                EntryKind::Socket
            }
        };
        if matches!(kind, EntryKind::File { .. })
            && let Some(why) = (self.rules.torn)(dir.as_fd(), &path)
        {
            state = EntryState::Unreadable(why);
        }
        // As late as can be: by this nothing is ever found to be unchanged.
        let ctime = match kind {
            EntryKind::File { .. } if !self.has_change_time(dir, name, &stat) => Time {
                seconds: i64::MAX,
                nanos: 0,
            },
            _ => stat.ctime,
        };
        let special = matches!(
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
        if special && !self.is_plain() {
            match xattr::read_all_at(dir, name) {
                Ok(xattrs) => entry.xattrs = xattrs,
                Err(error) => state = self.state_of(&error),
            }
        }
        let scanned = Scanned {
            born: stat.born,
            ..Scanned::new(entry, state)
        };
        Ok(Child {
            scanned,
            dev: stat.dev,
            nlink: stat.nlink,
            listing: Ahead::Not,
            is_only_way: false,
        })
    }

    /// Does the ctime of this file tell that it was changed? Each device is asked once.
    fn has_change_time(&self, dir: &OwnedFd, name: &[u8], stat: &Stat) -> bool {
        let known = |devices: &[(u64, bool)]| {
            devices
                .iter()
                .find(|(dev, _)| *dev == stat.dev)
                .map(|(_, has)| *has)
        };
        if let Some(has) = known(
            &self
                .change_times
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        ) {
            return has;
        }
        // A file may be mounted by itself.
        let is_here = dir::stat_fd(dir).is_ok_and(|above| above.dev == stat.dev);
        let has = match is_here {
            true => updates_change_times(dir),
            false => {
                UnopenedObject::open(dir.as_fd(), name).is_ok_and(|object| object.has_change_time())
            }
        };
        self.change_times
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push((stat.dev, has));
        has
    }

    /// One object by its path, without going into it.
    pub(crate) fn look(&self, path: &[u8]) -> Child {
        let child = self
            .around(path)
            .and_then(|(dir, name)| self.child(&dir, name, path.to_vec(), dir::stat(&dir, name)?));
        let mut child = child.unwrap_or_else(|error| self.unknown(path.to_vec(), &error));
        self.dress(&mut child.scanned);
        child
    }

    /// The directory that `path` is in, and its name there.
    fn around<'a>(&self, path: &'a [u8]) -> io::Result<(OwnedFd, &'a [u8])> {
        let (parent, name) = split(path);
        let (dir, rel) = self.locate(parent).ok_or(io::ErrorKind::NotFound)?;
        let dir = dir::open_dir(dir, rel, self.rules.tricks)?;
        Ok((dir, if path.is_empty() { b"." } else { name }))
    }

    /// Read the attributes of a directory that is delivered but not listed; of the others they come with the listing. Asked by
    /// name: to open where an automounter is would mount something there.
    pub(crate) fn dress(&self, scanned: &mut Scanned) {
        if self.is_plain() || !is_directory(scanned) {
            return;
        }
        let path = &scanned.entry.path;
        let read = match self.top(path) {
            Some(top) => xattr::read_all_at(&top.dir, top.file_name()),
            None => self
                .around(path)
                .and_then(|(dir, name)| xattr::read_all_at(&dir, name)),
        };
        match read {
            Ok(xattrs) => scanned.entry.xattrs = xattrs,
            // It went away just now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if scanned.state.is_stored() => scanned.state = self.state_of(&error),
            Err(error) => self.shortage.notice(&error),
        }
    }

    fn unknown(&self, path: EntryPath, error: &io::Error) -> Child {
        let entry = Entry {
            path,
            ..Entry::default()
        };
        let scanned = Scanned::new(entry, self.state_of(error));
        Child {
            scanned,
            dev: 0,
            nlink: 1,
            listing: Ahead::Not,
            is_only_way: false,
        }
    }

    pub(crate) fn owner(&self, stat: &Stat) -> Owner {
        let (user, group) = (self.names.user(stat.uid), self.names.group(stat.gid));
        Owner {
            uid: stat.uid,
            gid: stat.gid,
            user,
            group,
        }
    }

    /// Where a file that has fewer blocks than bytes has its data.
    fn map(&self, dir: &OwnedFd, name: &[u8], stat: &Stat) -> Option<SparseMap> {
        if !stat.looks_sparse() || self.rules.overlay.is_some() {
            return None;
        }
        let fd = dir::open_read(dir, name, self.rules.tricks)
            .inspect_err(|error| self.shortage.notice(error))
            .ok()?;
        // Holes of another are none of this one.
        dir::stat_fd(&fd)
            .ok()
            .filter(|now| !is_another(&fd, now, (stat.inode, stat.ctime, stat.born)))?;
        let map = read::data_map(&fd, stat.size).ok().flatten()?;
        pax::storable_map(map.into(), stat.size)
    }

    fn is_excluded(&self, path: &[u8], is_dir: bool) -> bool {
        self.rules.exclude.matches(path, is_dir)
    }

    /// The name in this directory by which it says itself that its contents are not worth a backup.
    fn mark(&self, dir: &OwnedFd, has: impl Fn(&[u8]) -> bool) -> Option<&[u8]> {
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

    /// Is `path` left out for its own sake, or for that of a directory above it and below the first top?
    pub(crate) fn leaves_out(&self, path: &[u8], is_dir: bool) -> bool {
        let top = self.tops.first().map_or(&b""[..], |top| &top.at);
        let slashes = path
            .iter()
            .enumerate()
            .filter(|(_, c)| **c == b'/')
            .map(|(at, _)| &path[..at]);
        let mut above = slashes.filter(|dir| is_within(dir, top) && dir != &top);
        self.is_excluded(path, is_dir)
            || above.any(|dir| self.is_excluded(dir, true) || self.mark_at(dir).is_some())
    }

    /// As [`Self::mark`], of the directory at `path`. Its names are not listed for that.
    pub(crate) fn mark_at(&self, path: &[u8]) -> Option<&[u8]> {
        if self.rules.exclude_if_present.is_empty() && !self.rules.exclude_caches {
            return None;
        }
        let (dir, rel) = self.locate(path)?;
        let dir = dir::open_dir(dir, rel, self.rules.tricks).ok()?;
        self.mark(&dir, |name| dir::stat(&dir, name).is_ok())
    }

    fn is_cache_tag(&self, dir: &OwnedFd) -> bool {
        let mut head = Vec::new();
        let tag = dir::open_read(dir, CACHE_TAG_NAME, self.rules.tricks);
        tag.and_then(|fd| {
            read::read_full(
                &fd,
                &mut head,
                0,
                CACHE_TAG.len(),
                read::Cache::Keep,
                self.rules.tricks,
            )
        })
        .is_ok_and(|_| head == CACHE_TAG)
    }
}

/// The mark of a cache, and how it must begin (bford.info/cachedir).
const CACHE_TAG_NAME: &[u8] = b"CACHEDIR.TAG";
const CACHE_TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

pub(crate) fn is_directory(scanned: &Scanned) -> bool {
    scanned.entry.kind == EntryKind::Directory
}
