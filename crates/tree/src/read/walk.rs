//! Walks a tree in archive order. Other threads list directories ahead of the one that is
//! delivered.
//!
//! Memory holds the names of the directories on the current path and of those listed ahead,
//! whatever the size of the tree, and one path for each file with several names until all of its
//! names were seen.
//!
//! If reading attributes makes a thread sleep, as over a network, jobs are smaller and more threads
//! wait at the same time.

use super::{
    hard_links::Links,
    inner::TreeInner,
    listing::{BATCH, Child, Listing, ListingPace, ListingState, Request},
    rules::{Top, TopRole},
};
use fullbore_format::{
    entry::{EntryKind, EntryPath, is_within},
    error::{Error, ErrorKind, Result, quoted},
    page::EntryState,
};
use fullbore_pipeline::frame::{ContentScope, Scanned};
use fullbore_platform::{
    dir,
    queue::{Promise, PromisedValue, Queue, change, promise, start},
};
use std::{
    collections::VecDeque,
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
    thread,
};

/// Directories of one level that are requested together, and the limits of those requested ahead:
/// of one level, and of all levels.
const GROUP: usize = 8;
const AHEAD_LEVEL: usize = 4 * GROUP;
const AHEAD_ALL: usize = 128;

/// Batches of a directory's names that are read ahead.
const AHEAD_BATCHES: usize = 4;

/// The same limits where threads sleep: batches, names in each, and the number of threads.
const SLOW_BATCHES: usize = 16;
const SLOW_BATCH: usize = 32;
const MAX_WALKERS: usize = 32;

pub(crate) const LOST: &str = "a thread that lists directories stopped";

/// The walk: an iterator over everything in the tree.
pub(crate) struct TreeWalk {
    inner: Arc<TreeInner>,
    walkers: Arc<Walkers>,
    tops: usize,
    levels: Vec<WalkLevel>,
    outstanding: usize,
    links: Links,
}

/// The threads of a walk, and their jobs.
struct Walkers {
    inner: Arc<TreeInner>,
    jobs: Queue<WalkJob>,
    threads: AtomicUsize,
    /// Whether the last job made its thread sleep.
    slow: AtomicBool,
}

/// A job for the threads of a walk.
enum WalkJob {
    /// List these directories, one after the other.
    Directories(Vec<Request>),
    /// Read the attributes of some names in a directory.
    Names(NameBatch, Promise<Vec<Child>>),
}

/// Some of the names in a directory.
struct NameBatch {
    directory: EntryPath,
    names: Vec<dir::DirName>,
    /// See [`Listing::is_bare`].
    is_bare: bool,
}

/// A directory that is being delivered.
struct WalkLevel {
    directory: EntryPath,
    dev: u64,
    is_bare: bool,
    children: std::vec::IntoIter<Child>,
    /// Number of last children that were not yet checked for directories to request.
    unseen: usize,
    /// Number of requested directories that are still to come.
    asked: usize,
    /// The further contents: requested batches, and names.
    batches: VecDeque<PromisedValue<Vec<Child>>>,
    rest: std::vec::IntoIter<dir::DirName>,
}

impl WalkLevel {
    /// Requests the next batches of names.
    fn request_batches(&mut self, walkers: &Walkers, slow: bool) {
        let (batches, names) = if slow {
            (SLOW_BATCHES, SLOW_BATCH)
        } else {
            (AHEAD_BATCHES, BATCH)
        };
        while self.batches.len() < batches && self.rest.len() > 0 {
            let (promise, answer) = promise();
            let batch = NameBatch {
                directory: self.directory.clone(),
                names: self.rest.by_ref().take(names).collect(),
                is_bare: self.is_bare,
            };
            walkers.jobs.push(WalkJob::Names(batch, promise));
            self.batches.push_back(answer);
        }
    }

    /// Requests the listings of the next directories. Returns their number.
    ///
    /// A group is worth waking a thread. Where each listing makes a thread sleep, each one is a job
    /// of its own.
    fn request_listings(&mut self, walkers: &Walkers, slow: bool, outstanding: usize) -> usize {
        if self.asked + GROUP > AHEAD_LEVEL || outstanding + GROUP > AHEAD_ALL {
            return 0;
        }
        let room = (AHEAD_LEVEL - self.asked).min(AHEAD_ALL - outstanding);
        let (most, together) = if slow { (room, 1) } else { (GROUP, GROUP) };
        let mut requests = self.next_requests(&walkers.inner, most).into_iter();
        let count = requests.len();
        self.asked += count;
        while requests.len() > 0 {
            let job = requests.by_ref().take(together).collect();
            walkers.jobs.push(WalkJob::Directories(job));
        }
        count
    }

    /// Builds up to `most` requests for the children that were not checked yet.
    fn next_requests(&mut self, inner: &TreeInner, most: usize) -> Vec<Request> {
        let mut requests = Vec::new();
        self.unseen = self.unseen.min(self.children.len());
        let seen = self.children.len() - self.unseen;
        for child in &mut self.children.as_mut_slice()[seen..] {
            if requests.len() == most {
                break;
            }
            self.unseen -= 1;
            let is_new = matches!(child.listing, ListingState::Not);
            if is_new && inner.should_enter(child, self.dev) {
                let (promise, answer) = promise();
                requests.push((inner.list_request(child, self.dev), promise));
                child.listing = ListingState::Asked(answer);
            }
        }
        requests
    }
}

/// Abandons the jobs when the last thread panics, so that waiting threads get an answer.
struct WalkWatch<'a>(&'a Walkers);

impl Drop for WalkWatch<'_> {
    fn drop(&mut self) {
        if thread::panicking() && self.0.threads.fetch_sub(1, AcqRel) == 1 {
            self.0.jobs.abandon();
        }
    }
}

impl Walkers {
    fn start(self: &Arc<Self>) -> Result<()> {
        let walkers = self.clone();
        let joined = change(&self.threads, |present| {
            (present < MAX_WALKERS).then_some(present + 1)
        });
        if joined {
            start(move || walkers.work())
                .inspect_err(|_| _ = self.threads.fetch_sub(1, Relaxed))?;
        }
        Ok(())
    }

    fn work(self: Arc<Self>) {
        let _watch = WalkWatch(&self);
        let mut buffer = Vec::new();
        while let Some(job) = self.jobs.pop() {
            let mut pace = ListingPace::begin();
            match job {
                WalkJob::Directories(directories) => {
                    let left = self.inner.list_all(directories, &mut buffer, &mut pace);
                    left.into_iter()
                        .for_each(|one| _ = self.jobs.push(WalkJob::Directories(vec![one])));
                }
                WalkJob::Names(
                    NameBatch {
                        directory,
                        names,
                        is_bare,
                    },
                    promise,
                ) => {
                    let count = names.len();
                    promise.keep(self.inner.child_batch(&directory, names, is_bare));
                    pace.count_objects(count);
                }
            }
            self.slow.store(pace.is_slow, Relaxed);
            if pace.is_slow && self.jobs.has_items() {
                // A failure is ignored: the running threads go on.
                let _ = self.start();
            }
        }
    }

    fn are_slow(&self) -> bool {
        self.slow.load(Relaxed)
    }
}

impl TreeWalk {
    /// Starts as many threads as the rules say, or as the system has.
    ///
    /// # Errors
    /// If no thread can be started, or if the backup is written to a top.
    pub(super) fn start(inner: Arc<TreeInner>) -> Result<Self> {
        inner.check_tops()?;
        let (jobs, threads, slow) = Default::default();
        let walkers = Arc::new(Walkers {
            inner: inner.clone(),
            jobs,
            threads,
            slow,
        });
        walkers.start()?;
        // One thread suffices if the system has no more.
        let _ = (1..inner.rules.walkers).try_for_each(|_| walkers.start());
        Ok(Self {
            inner,
            walkers,
            tops: 0,
            levels: Vec::new(),
            outstanding: 0,
            links: Links::default(),
        })
    }

    /// Requests the next batches of the deepest level, and the listings of its next directories.
    fn look_ahead(&mut self) {
        let slow = self.walkers.are_slow();
        if let Some(level) = self.levels.last_mut() {
            level.request_batches(&self.walkers, slow);
            self.outstanding += level.request_listings(&self.walkers, slow, self.outstanding);
        }
    }

    /// Delivers an object, and descends into it if it is a directory to enter.
    fn deliver(&mut self, mut child: Child, dev: u64) -> Scanned {
        if self.inner.should_enter(&child, dev) {
            let listing = self.listing_of(&mut child, dev);
            self.descend(&mut child.scanned, listing);
        } else {
            child.scanned.content = ContentScope::Beyond;
            self.links.link_if_known(&mut child);
            self.inner.read_dir_xattrs(&mut child.scanned);
        }
        child.scanned
    }

    /// Returns the listing of a directory, or `None` if the thread that lists it has stopped.
    fn listing_of(&mut self, child: &mut Child, dev: u64) -> Option<io::Result<Listing>> {
        match std::mem::replace(&mut child.listing, ListingState::Not) {
            ListingState::Listed(listing) => Some(listing),
            ListingState::Asked(answer) => {
                if let Some(level) = self.levels.last_mut() {
                    level.asked -= 1;
                }
                self.outstanding -= 1;
                answer.wait()
            }
            ListingState::Not => {
                let (promise, answer) = promise();
                let directory = self.inner.list_request(child, dev);
                let job = WalkJob::Directories(vec![(directory, promise)]);
                self.walkers.jobs.push(job);
                answer.wait()
            }
        }
    }

    fn descend(&mut self, scanned: &mut Scanned, listing: Option<io::Result<Listing>>) {
        match listing {
            Some(Ok(listing)) => {
                match listing.xattrs {
                    Ok(xattrs) => scanned.entry.xattrs = xattrs,
                    // The directory may have too many attributes; its contents are delivered
                    // nevertheless.
                    Err(error) => scanned.state = without_xattrs(self.inner.state_of(&error)),
                }
                if let Some(error) = &listing.failed {
                    scanned.state = self.inner.unlisted_state(error);
                }
                scanned.content = listing.content;
                self.inner
                    .update_replaced_dir(&listing.now, &mut scanned.entry);
                self.levels.push(WalkLevel {
                    directory: scanned.entry.path.clone(),
                    dev: listing.now.dev,
                    is_bare: listing.is_bare,
                    unseen: listing.children.len(),
                    asked: 0,
                    children: listing.children.into_iter(),
                    batches: VecDeque::new(),
                    rest: listing.rest.into_iter(),
                });
            }
            Some(Err(error)) => {
                scanned.state = self.inner.state_of(&error);
                self.inner.read_dir_xattrs(scanned);
            }
            None => scanned.state = EntryState::Unreadable(LOST.to_owned()),
        }
    }

    /// Delivers the next top that is not within another one.
    fn deliver_top(&mut self) -> Option<Result<Scanned>> {
        let inner = self.inner.clone();
        let top = self.next_top(&inner.tops)?;
        let name = top.file_name();
        let child = dir::stat(&top.dir, name)
            .and_then(|stat| inner.build_child(&top.dir, name, top.at.clone(), stat));
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                let place = dir::path_of(&top.dir)
                    .join(OsStr::from_bytes(top.name.as_deref().unwrap_or_default()));
                let message = format!("could not read {}", quoted(place.as_os_str().as_bytes()));
                return Some(Err(Error::io(message, error)));
            }
        };
        if top.role == TopRole::Above {
            inner.read_dir_xattrs(&mut child.scanned);
            return Some(Ok(child.scanned));
        }
        // A top without a name of its own is an open directory, and one with a name is none: each can
        // only have been replaced, and what is below is read in another way.
        let is_directory = child.scanned.entry.kind == EntryKind::Directory;
        if is_directory == top.name.is_some() {
            let now = if is_directory { "now a" } else { "no longer a" };
            let message = format!("{} is {now} directory", quoted(&top.at));
            return Some(Err(Error::new(ErrorKind::System, message)));
        }
        let dev = child.dev;
        let scanned = self.deliver(child, dev);
        self.look_ahead();
        Some(Ok(scanned))
    }

    /// Returns the next top; the walk meets a top within another one by itself.
    fn next_top<'a>(&mut self, tops: &'a [Top]) -> Option<&'a Top> {
        loop {
            let top = tops.get(self.tops)?;
            let is_met = tops[..self.tops]
                .iter()
                .any(|outer| outer.role != TopRole::Above && is_within(&top.at, &outer.at));
            self.tops += 1;
            if !is_met {
                return Some(top);
            }
        }
    }
}

fn without_xattrs(state: EntryState) -> EntryState {
    match state {
        EntryState::Unreadable(reason) => {
            EntryState::Unreadable(format!("its attributes could not be read: {reason}"))
        }
        other => other,
    }
}

impl Drop for TreeWalk {
    fn drop(&mut self) {
        self.walkers.jobs.close();
    }
}

impl Iterator for TreeWalk {
    type Item = Result<Scanned>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(level) = self.levels.last_mut() {
            let dev = level.dev;
            if let Some(child) = level.children.next() {
                let is_directory = child.scanned.entry.kind == EntryKind::Directory;
                let scanned = self.deliver(child, dev);
                if is_directory {
                    self.look_ahead();
                }
                return Some(Ok(scanned));
            }
            match level.batches.pop_front().map(PromisedValue::wait) {
                Some(Some(children)) => {
                    (level.unseen, level.children) = (children.len(), children.into_iter())
                }
                // The thread that made this batch is gone: to go on would leave out its entries.
                Some(None) => return Some(Err(Error::new(ErrorKind::Bug, LOST))),
                None => _ = self.levels.pop(),
            }
            self.look_ahead();
        }
        self.deliver_top()
    }
}
