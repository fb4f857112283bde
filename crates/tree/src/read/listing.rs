//! Lists the directories of a tree: names in archive order, and the attributes of each object
//! without opening it.

use super::{exclusions::CACHE_TAG_NAME, inner::TreeInner, rules::TopRole};
use fullbore_format::{
    entry::{EntryKind, EntryPath, Time, Xattr, xattr_bytes},
    error::{self, Error, ErrorKind, quoted},
};
use fullbore_pipeline::frame::{ContentScope, Scanned};
use fullbore_platform as platform;
use fullbore_platform::{
    dir::{self, FileKind, Stat},
    queue::{Promise, PromisedValue},
    xattr,
};
use std::{
    cell::Cell,
    collections::HashSet,
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

/// Number of objects after which a thread hands over its listings. Handing over each directory by
/// itself cost more than listing it. Several threads take a batch each of a large directory.
pub(crate) const BATCH: usize = 512;
/// The latest possible ctime, so that no comparison finds the file unchanged.
pub(super) const LATEST_TIME: Time = Time {
    seconds: i64::MAX,
    nanos: 0,
};
/// Bytes of directory attributes that count as one more object.
const XATTRS: usize = 1 << 10;

pub(crate) struct DirectoryToList {
    pub(crate) path: EntryPath,
    /// Device of the directory when its attributes were read.
    pub(crate) dev: u64,
    /// Whether everything in it is wanted, or only the tops.
    pub(crate) is_whole: bool,
}

pub(crate) type Request = (DirectoryToList, Promise<io::Result<Listing>>);

/// The progress of one thread with one job.
pub(crate) struct ListingPace {
    /// Objects left before the thread hands over its listings.
    left: usize,
    done: usize,
    since: Instant,
    /// When the sleeps are counted next: each time twice as late, because each count is a call.
    next_count: Duration,
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
            next_count: SHORT_JOB,
            sleeps,
            is_slow: false,
        }
    }

    /// Counts `objects` more, and updates the pace.
    pub(crate) fn count_objects(&mut self, objects: usize) {
        self.done += objects;
        let time = self.since.elapsed();
        TAKES_LONG.set(time > SHORT_JOB);
        if let Some(previous) = self.sleeps
            && time > self.next_count
        {
            self.next_count = 2 * time;
            let sleeps = platform::voluntary_sleeps() - previous;
            self.is_slow = sleeps * SLEPT_OVER >= self.done as u64;
        }
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
    /// Whether the objects in it are delivered.
    pub(crate) content: ContentScope,
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
        let is_beyond =
            self.rules.files.one_file_system && child.dev != dev && !self.is_named(path);
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
            && ((self.rules.files.one_file_system && child.dev != dev) || self.is_own(child))
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
        for top in self.tops.iter().filter(|top| match top.role {
            TopRole::Named => true,
            TopRole::Mounted => !self.elsewhere.contains(&top.at),
            TopRole::Above => false,
        }) {
            let stat = dir::stat(&top.dir, top.file_name());
            if stat.is_ok_and(|stat| self.is_destination((stat.dev, stat.inode))) {
                let message = if top.at.is_empty() {
                    "the source directory".to_owned()
                } else {
                    quoted(&top.at)
                };
                let message = format!("cannot back up {message}: the backup is written to it");
                return Err(Error::new(ErrorKind::Usage, message).hint("choose another --to"));
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
        // The rest is handed to other threads in batches of this size.
        let rest = names.split_off(names.len().min(BATCH));
        let children = self.build_children(Ok((dir, &now)), path, names, true);
        let xattrs = if self.has_overlay() {
            Ok(Vec::new())
        } else {
            xattr::read_all_at(dir, b".").map(|xattrs| self.named(xattrs))
        };
        Ok(Listing {
            children,
            rest,
            xattrs,
            now,
            is_bare: true,
            content: ContentScope::Beyond,
            failed,
        })
    }

    /// Adds the names of tops in the directory to these ascending names.
    fn add_tops(&self, path: &[u8], mut names: Vec<dir::DirName>) -> Vec<dir::DirName> {
        for top in self.tops_in(path) {
            if let Err(index) = names.binary_search_by(|name| name.bytes.as_slice().cmp(top)) {
                names.insert(
                    index,
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
        let is_beyond = self.rules.files.one_file_system && now.dev != dev;
        let mut names = Vec::new();
        if !is_beyond {
            names = self.read_names(&dir, path, buffer)?;
        }
        let has_name = |wanted: &[u8]| {
            let found = names.binary_search_by(|name| name.bytes.as_slice().cmp(wanted));
            found.is_ok()
        };
        let is_markable = !self.is_named(path);
        let mark = is_markable.then(|| self.exclusion_mark(&dir, has_name));
        let mark = mark.flatten();
        if mark == Some(CACHE_TAG_NAME) {
            self.rules.caches.note(path);
        }
        let is_bare = mark.is_some();
        if is_bare {
            names.retain(|name| name.bytes == CACHE_TAG_NAME && self.rules.files.exclude_caches);
        }
        let mut names = self.add_tops(path, names);
        let rest = names.split_off(names.len().min(BATCH));
        let children = self.build_children(Ok((&dir, &now)), path, names, is_bare);
        let xattrs = self.xattrs(&dir);
        self.close(dir);
        let content = match (is_beyond, is_bare) {
            (true, _) => ContentScope::Beyond,
            (false, true) => ContentScope::Marked,
            (false, false) => ContentScope::Delivered,
        };
        Ok(Listing {
            children,
            rest,
            xattrs,
            now,
            is_bare,
            content,
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
        Self::close_waiting();
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
            Ok(xattrs) => scanned.entry.xattrs = self.named(xattrs),
            // The directory has just been removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if scanned.state.is_stored() => scanned.state = self.state_of(&error),
            Err(error) => self.shortage.notice(&error),
        }
    }
}

pub(crate) fn is_directory(scanned: &Scanned) -> bool {
    scanned.entry.kind == EntryKind::Directory
}
