//! Walks a tree in archive order, directories ahead of the one that is being delivered listed on other threads.
//!
//! Memory is that of the names in the directories on the way down and of what is listed ahead, whatever the tree holds; and
//! one path for every file with several names of which not all have been seen.

use super::tree::{Inner, state_of};
use crate::{
    error::{Error, Kind as ErrorKind, Result, quoted},
    format::{
        entry::{Entry, Kind, Owner, Path, Run, is_within},
        page::State,
        pax,
    },
    frame::Scanned,
    platform::{
        read,
        walk::{self, FileKind, Stat},
        xattr,
    },
    queue::{Answer, Promise, Queue, promise},
};
use std::{
    collections::{HashMap, VecDeque},
    ffi::OsStr,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    sync::Arc,
};

/// Directories of one level that are asked for together, and those of one level and of all that are asked for ahead.
const GROUP: usize = 8;
const AHEAD_LEVEL: usize = 4 * GROUP;
const AHEAD_ALL: usize = 128;

/// Objects after which a thread hands over what it has listed. Handing over each directory by itself cost more than
/// listing it; and of a large directory several threads take a batch each.
const BATCH: usize = 512;
const AHEAD_BATCHES: usize = 4;

const LOST: &str = "a thread that lists directories stopped";

/// The walk: an iterator over everything in the tree.
pub(super) struct Walk {
    inner: Arc<Inner>,
    jobs: Arc<Queue<Job>>,
    tops: usize,
    levels: Vec<Level>,
    outstanding: usize,
    links: HashMap<(u64, u64), (Path, u32)>,
}

/// What the threads of a walk do.
enum Job {
    /// List directories, one after the other.
    Directories(Vec<(Path, Promise<io::Result<Listing>>)>),
    /// Look at some of the names in a directory.
    Names(Path, Vec<walk::Name>, Promise<Vec<Child>>),
}

/// What a directory holds, and its own attributes.
struct Listing {
    /// The first batch of it,
    children: Vec<Child>,
    /// and the names of the rest.
    rest: Vec<walk::Name>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    dev: u64,
}

/// One object in a directory.
struct Child {
    scanned: Scanned,
    dev: u64,
    nlink: u32,
    listing: Ahead,
}

/// What a directory holds, if somebody looked before it is its turn.
enum Ahead {
    Not,
    Asked(Answer<io::Result<Listing>>),
    Listed(io::Result<Listing>),
}

/// A directory that is being delivered.
struct Level {
    path: Path,
    dev: u64,
    children: std::vec::IntoIter<Child>,
    /// Of so many of the last of these nobody has looked yet whether they are to be asked for,
    unseen: usize,
    /// and so many were asked for and are still to come.
    asked: usize,
    /// What follows them: batches that were asked for, and names.
    batches: VecDeque<Answer<Vec<Child>>>,
    rest: std::vec::IntoIter<walk::Name>,
}

impl Walk {
    pub(super) fn start(inner: Arc<Inner>) -> Self {
        let jobs = Arc::new(Queue::<Job>::default());
        for _ in 0..inner.rules.walkers {
            let (inner, jobs) = (inner.clone(), jobs.clone());
            std::thread::spawn(move || {
                let mut buffer = Vec::new();
                while let Some(job) = jobs.pop() {
                    match job {
                        Job::Directories(directories) => inner.list_all(directories, &mut buffer),
                        Job::Names(path, names, promise) => promise.keep(inner.look_at(&path, names)),
                    }
                }
            });
        }
        Self { inner, jobs, tops: 0, levels: Vec::new(), outstanding: 0, links: HashMap::new() }
    }

    /// Have the next batches of the deepest level looked at, and its next directories listed.
    fn look_ahead(&mut self) {
        let Some(level) = self.levels.last_mut() else { return };
        while level.batches.len() < AHEAD_BATCHES && level.rest.len() > 0 {
            let (promise, answer) = promise();
            let names = level.rest.by_ref().take(BATCH).collect();
            self.jobs.push(Job::Names(level.path.clone(), names, promise));
            level.batches.push_back(answer);
        }
        if level.asked + GROUP > AHEAD_LEVEL || self.outstanding + GROUP > AHEAD_ALL {
            return;
        }
        let mut group = Vec::new();
        let seen = level.children.len().saturating_sub(level.unseen);
        for child in &mut level.children.as_mut_slice()[seen..] {
            if group.len() == GROUP {
                break;
            }
            level.unseen -= 1;
            if self.inner.enters(child, level.dev) && matches!(child.listing, Ahead::Not) {
                let (promise, answer) = promise();
                group.push((child.scanned.entry.path.clone(), promise));
                child.listing = Ahead::Asked(answer);
            }
        }
        level.asked += group.len();
        self.outstanding += group.len();
        if !group.is_empty() {
            self.jobs.push(Job::Directories(group));
        }
    }

    /// Deliver an object, and go down if it is a directory to enter.
    fn deliver(&mut self, mut child: Child, dev: u64) -> Scanned {
        if self.inner.enters(&child, dev) {
            let listing = match std::mem::replace(&mut child.listing, Ahead::Not) {
                Ahead::Listed(listing) => Some(listing),
                Ahead::Asked(answer) => {
                    self.levels.iter_mut().last().into_iter().for_each(|level| level.asked -= 1);
                    self.outstanding -= 1;
                    answer.wait()
                }
                Ahead::Not => {
                    let (promise, answer) = promise();
                    self.jobs.push(Job::Directories(vec![(child.scanned.entry.path.clone(), promise)]));
                    answer.wait()
                }
            };
            self.descend(&mut child.scanned, listing);
        } else if child.scanned.entry.is_file() && child.nlink > 1 {
            self.link(&mut child);
        }
        child.scanned
    }

    fn descend(&mut self, scanned: &mut Scanned, listing: Option<io::Result<Listing>>) {
        match listing {
            Some(Ok(listing)) => {
                scanned.entry.xattrs = listing.xattrs;
                self.levels.push(Level {
                    path: scanned.entry.path.clone(),
                    dev: listing.dev,
                    unseen: listing.children.len(),
                    asked: 0,
                    children: listing.children.into_iter(),
                    batches: VecDeque::new(),
                    rest: listing.rest.into_iter(),
                });
            }
            Some(Err(error)) => scanned.state = state_of(&error),
            None => scanned.state = State::Unreadable(LOST.to_owned()),
        }
    }

    /// The first name of a file carries the content, each later one is a link to it.
    fn link(&mut self, child: &mut Child) {
        let key = (child.dev, child.scanned.entry.inode);
        match self.links.get_mut(&key) {
            Some((first, left)) => {
                child.scanned.entry.kind = Kind::HardLink(first.clone());
                *left -= 1;
                if *left == 0 {
                    self.links.remove(&key);
                }
            }
            None => {
                self.links.insert(key, (child.scanned.entry.path.clone(), child.nlink - 1));
            }
        }
    }

    fn top(&mut self) -> Option<Result<Scanned>> {
        let inner = self.inner.clone();
        let top = loop {
            let top = inner.tops.get(self.tops)?;
            self.tops += 1;
            if inner.tops[..self.tops - 1].iter().all(|outer| outer.alone || !is_within(&top.at, &outer.at)) {
                break top;
            }
        };
        let name = top.name.as_deref().unwrap_or(b".");
        let child = walk::stat(&top.dir, name).and_then(|stat| inner.child(&top.dir, name, top.at.clone(), stat));
        let child = match child {
            Ok(child) => child,
            Err(error) => return Some(Err(Error::io(format!("could not read {}", quoted(&top.at)), error))),
        };
        if top.alone {
            return Some(Ok(child.scanned));
        }
        if top.name.is_none() && child.scanned.entry.kind != Kind::Directory {
            return Some(Err(Error::new(ErrorKind::System, format!("{} is no longer a directory", quoted(&top.at)))));
        }
        if inner.is_own((child.dev, child.scanned.entry.inode)) {
            let what = format!("{} is where the backup goes", quoted(&top.at));
            return Some(Err(Error::new(ErrorKind::Usage, what).hint("choose another --to")));
        }
        let dev = child.dev;
        let scanned = self.deliver(child, dev);
        self.look_ahead();
        Some(Ok(scanned))
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.jobs.close();
    }
}

impl Iterator for Walk {
    type Item = Result<Scanned>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(level) = self.levels.last_mut() {
            let dev = level.dev;
            if let Some(child) = level.children.next() {
                level.unseen = level.unseen.min(level.children.len());
                let is_directory = child.scanned.entry.kind == Kind::Directory;
                let scanned = self.deliver(child, dev);
                if is_directory {
                    self.look_ahead();
                }
                return Some(Ok(scanned));
            }
            match level.batches.pop_front().map(Answer::wait) {
                Some(Some(children)) => (level.unseen, level.children) = (children.len(), children.into_iter()),
                Some(None) => return Some(Err(Error::new(ErrorKind::Bug, LOST))),
                None => _ = self.levels.pop(),
            }
            self.look_ahead();
        }
        self.top()
    }
}

impl Inner {
    /// Is this a directory whose contents belong to this stream? `dev` is the device of the directory it is in.
    fn enters(&self, child: &Child, dev: u64) -> bool {
        child.scanned.entry.kind == Kind::Directory
            && child.scanned.state.is_stored()
            && !(self.rules.one_file_system && child.dev != dev)
            && !self.closed.contains(&child.scanned.entry.path)
            && !self.is_own((child.dev, child.scanned.entry.inode))
    }

    fn is_own(&self, place: (u64, u64)) -> bool {
        self.rules.own.get().is_some_and(|own| own.contains(&place))
    }

    /// List a directory: its objects in order, without what the rules leave out.
    fn list(&self, path: &[u8], buffer: &mut Vec<u8>) -> io::Result<Listing> {
        let (dir, rel) = self.locate(path).ok_or(io::ErrorKind::NotFound)?;
        let dir = walk::open_dir(dir, rel, self.rules.tricks)?;
        let mut names = walk::read_dir(&dir, buffer)?;
        names.sort_unstable_by(|a, b| a.bytes.cmp(&b.bytes));
        if let Some(overlay) = &self.rules.overlay {
            overlay.pick(path, &mut names);
        }
        if self.is_left_out(&dir, &names) {
            names.retain(|name| name.bytes == b"CACHEDIR.TAG" && self.rules.exclude_caches);
        }
        let rest = names.split_off(names.len().min(BATCH));
        let children = self.children(&dir, path, names);
        let dev = if self.rules.one_file_system { walk::stat_fd(&dir)?.dev } else { 0 };
        let xattrs = if self.rules.overlay.is_some() { Vec::new() } else { xattr::read_all(&dir)? };
        Ok(Listing { children, rest, xattrs, dev })
    }

    /// Some of what is in a directory that was listed before; if it is gone since, there is nothing.
    fn look_at(&self, path: &[u8], names: Vec<walk::Name>) -> Vec<Child> {
        let place = self.locate(path).ok_or_else(|| io::ErrorKind::NotFound.into());
        match place.and_then(|(dir, rel)| walk::open_dir(dir, rel, self.rules.tricks)) {
            Ok(dir) => self.children(&dir, path, names),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => names.into_iter().map(|name| unknown(join(path, &name.bytes), &error)).collect(),
        }
    }

    fn children(&self, dir: &OwnedFd, path: &[u8], names: Vec<walk::Name>) -> Vec<Child> {
        let mut children = Vec::with_capacity(names.len());
        for name in names {
            let path = join(path, &name.bytes);
            if self.is_excluded(&path, name.kind == FileKind::Directory) || self.elsewhere.contains(&path) {
                continue;
            }
            // A top within another stands in for what has its name there.
            let mounted = self.tops.iter().find(|top| top.at == path);
            let (dir, name) = mounted.map_or((dir, &name.bytes[..]), |top| (&top.dir, b"."));
            match walk::stat(dir, name).and_then(|stat| self.child(dir, name, path.clone(), stat)) {
                Ok(child) if child.scanned.entry.is_file() && self.is_own((child.dev, child.scanned.entry.inode)) => {}
                Ok(child) => children.push(child),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // gone since it was listed: never seen
                Err(error) => children.push(unknown(path, &error)),
            }
        }
        children
    }

    /// List directories. What is listed is kept back until it is worth waking somebody for it.
    fn list_all(&self, directories: Vec<(Path, Promise<io::Result<Listing>>)>, buffer: &mut Vec<u8>) {
        let (mut listed, mut left) = (Vec::with_capacity(directories.len()), BATCH);
        for (path, promise) in directories {
            listed.push((promise, self.list_below(&path, buffer, &mut left)));
            if left == 0 {
                listed.drain(..).for_each(|(promise, listing)| promise.keep(listing));
                left = BATCH;
            }
        }
        listed.into_iter().for_each(|(promise, listing)| promise.keep(listing));
    }

    /// List a directory, and what comes after it below it while there are objects `left` to list.
    fn list_below(&self, path: &[u8], buffer: &mut Vec<u8>, left: &mut usize) -> io::Result<Listing> {
        let mut listing = self.list(path, buffer)?;
        *left = left.saturating_sub(1 + listing.children.len());
        for child in &mut listing.children {
            if *left == 0 {
                break;
            }
            if self.enters(child, listing.dev) {
                child.listing = Ahead::Listed(self.list_below(&child.scanned.entry.path, buffer, left));
            }
        }
        Ok(listing)
    }

    /// What is known of one object without opening it, unless it has holes.
    fn child(&self, dir: &OwnedFd, name: &[u8], path: Path, stat: Stat) -> io::Result<Child> {
        let mut state = State::Whole;
        let kind = match stat.kind {
            FileKind::File => Kind::File { size: stat.size, map: self.map(&path, &stat) },
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink(walk::read_link(dir, name)?),
            FileKind::Fifo => Kind::Fifo,
            FileKind::CharDevice => Kind::CharDevice(stat.rdev),
            FileKind::BlockDevice => Kind::BlockDevice(stat.rdev),
            FileKind::Socket | FileKind::Unknown => {
                state = State::Noted;
                Kind::Socket
            }
        };
        let special = matches!(kind, Kind::Symlink(_) | Kind::Fifo | Kind::CharDevice(_) | Kind::BlockDevice(_));
        let entry = Entry {
            path,
            kind,
            mode: stat.mode,
            owner: self.owner(&stat),
            mtime: stat.mtime,
            ctime: stat.ctime,
            inode: stat.inode,
            xattrs: if special { xattr::read_all_at(dir, name).unwrap_or_default() } else { Vec::new() },
        };
        Ok(Child { scanned: Scanned::new(entry, state), dev: stat.dev, nlink: stat.nlink, listing: Ahead::Not })
    }

    /// One object by its path, without going into it.
    pub(super) fn look(&self, path: &[u8]) -> Scanned {
        let (parent, name) = match path.iter().rposition(|c| *c == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], if path.is_empty() { &b"."[..] } else { path }),
        };
        let (dir, rel) = match self.locate(parent) {
            Some(place) => place,
            None => return unknown(path.to_vec(), &io::ErrorKind::NotFound.into()).scanned,
        };
        let child = walk::open_dir(dir, rel, self.rules.tricks)
            .and_then(|dir| self.child(&dir, name, path.to_vec(), walk::stat(&dir, name)?));
        child.unwrap_or_else(|error| unknown(path.to_vec(), &error)).scanned
    }

    fn owner(&self, stat: &Stat) -> Owner {
        let (user, group) = (self.names.user(stat.uid), self.names.group(stat.gid));
        Owner { uid: stat.uid, gid: stat.gid, user, group }
    }

    /// Where a file that has fewer blocks than bytes has its data.
    fn map(&self, path: &[u8], stat: &Stat) -> Option<Arc<[Run]>> {
        if !stat.looks_sparse() || self.rules.overlay.is_some() {
            return None;
        }
        let fd = self.open(path).ok()?;
        let map = read::data_map(&fd, stat.size).ok().flatten()?;
        pax::storable_map(map.into(), stat.size)
    }

    fn is_excluded(&self, path: &[u8], is_dir: bool) -> bool {
        !self.rules.exclude.is_empty() && self.rules.exclude.matched(OsStr::from_bytes(path), is_dir).is_ignore()
    }

    /// Does this directory say itself that its contents are not worth a backup?
    fn is_left_out(&self, dir: &OwnedFd, names: &[walk::Name]) -> bool {
        let has = |wanted: &[u8]| names.binary_search_by(|name| name.bytes.as_slice().cmp(wanted)).is_ok();
        self.rules.exclude_if_present.iter().any(|name| has(name))
            || (self.rules.exclude_caches && has(b"CACHEDIR.TAG") && self.is_cache_tag(dir))
    }

    fn is_cache_tag(&self, dir: &OwnedFd) -> bool {
        let mut head = Vec::new();
        let tag = walk::open_read(dir, b"CACHEDIR.TAG", self.rules.tricks);
        tag.and_then(|fd| read::read_full(&fd, &mut head, 0, CACHE_TAG.len(), read::Cache::Keep, self.rules.tricks))
            .is_ok_and(|_| head == CACHE_TAG)
    }
}

/// How a `CACHEDIR.TAG` must begin (bford.info/cachedir).
const CACHE_TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

fn join(dir: &[u8], name: &[u8]) -> Path {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend(dir);
    if !dir.is_empty() {
        path.push(b'/');
    }
    path.extend(name);
    path
}

fn unknown(path: Path, error: &io::Error) -> Child {
    let entry = Entry { path, ..Entry::default() };
    Child { scanned: Scanned::new(entry, state_of(error)), dev: 0, nlink: 1, listing: Ahead::Not }
}
