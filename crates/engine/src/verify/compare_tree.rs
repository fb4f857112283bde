//! Compares a backup with a tree on disk.
//!
//! One thread walks both in the same order and finds the names that only the tree has. Many workers
//! compare the objects: content by digest, or byte by byte if there is no digest. Memory holds the
//! names of the directories between the root and the current entry.

use super::{stored_content::StoredContent, tree_roots::TreeRoots};
use fullbore_format::{
    acl,
    digest::{Digest, crc32c},
    entry::{self, Entry, EntryKind, EntryPath},
    error::{Error, Result, quoted},
    page::{EntryState, PageItem, Record},
    sizes, text,
};
use fullbore_pipeline::{
    read_ahead::{ReadAhead, WindowFiles, WindowLimits},
    workers::{self, WorkerLimit},
};
use fullbore_platform as platform;
use fullbore_platform::{
    dir::{self, DirName, FileKind, Stat, open_at_once, open_dir, open_read, stat_fd},
    is_shortage,
    metrics::meter::Meter,
    owner::OwnerNames,
    queue::Locked,
    read::{data_outside, each_piece},
    xattr,
};
use fullbore_postgres::restore::plan::TABLESPACE_MAP;
use fullbore_repository::archive::{Archive, Selection};
use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    fs::File,
    io,
    num::NonZeroUsize,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// How one path differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path.
    pub path: EntryPath,
    /// `missing`, `extra`, or what differs: `mode 0644, in the backup 0755`.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() {
            ".".to_owned()
        } else {
            text::name(&self.path)
        };
        write!(f, "{path}: {}", self.what)
    }
}

/// Objects that a worker gets at once, and the total size of files at which a batch ends.
const BATCH: usize = 32;
const BATCH_BYTES: u64 = 1 << 20;

/// Most workers; each has 1 MiB of a file in memory.
const MAX_WORKERS: usize = 64;

/// Returns all differences between `archive` and the tree at `dir`, in path order. An entry that
/// was not captured counts as different if it exists in the tree.
///
/// # Errors
/// If `dir` does not exist; damage to a page.
pub(crate) fn compare(
    archive: &Archive,
    dir: &Path,
    workers: NonZeroUsize,
    meter: &Meter,
) -> Result<Vec<Difference>> {
    let roots = TreeRoots::open(dir, archive.root.postgres.as_ref())?;
    let tree = Against {
        archive,
        roots,
        names: OwnerNames::default(),
        found: Mutex::default(),
        ordinary_user: Some(platform::user().0).filter(|user| *user != 0),
        owned: AtomicU64::new(0),
        meter,
    };
    workers::work(
        &WorkerLimit::climbing(workers, MAX_WORKERS, meter),
        || CompareWorker {
            buffer: vec![0; 1 << 20],
            stored: StoredContent::default(),
            parent: None,
        },
        |hand, items: Vec<PageItem>| items.iter().try_for_each(|item| tree.item(hand, item)),
        |send| tree.walk(send),
    )?;
    tree.note_owned();
    let mut found = tree.found.opened();
    // Workers find differences in any order.
    found.sort_by(|a, b| entry::order(&a.path, &b.path).then_with(|| a.what.cmp(&b.what)));
    Ok(found)
}

struct Against<'a> {
    archive: &'a Archive,
    roots: TreeRoots,
    names: OwnerNames,
    found: Mutex<Vec<Difference>>,
    /// The user of this process, who cannot restore other owners; `None` for root.
    ordinary_user: Option<u32>,
    /// Entries that belong to this user here, and to others in the backup.
    owned: AtomicU64,
    meter: &'a Meter,
}

/// A directory of the tree that the walk is in.
struct CompareLevel {
    path: EntryPath,
    /// The names that the backup has not listed so far, with the inode numbers of files; 0 for
    /// objects of other kinds.
    names: BTreeMap<Vec<u8>, u64>,
}

/// A record, with the inode number of the file that the tree has at its path; 0 if it has none.
struct CompareItem {
    record: PageItem,
    inode: u64,
}

/// The files of the tree that records are compared with.
struct ComparedFiles<'a>(&'a TreeRoots);

impl WindowFiles<CompareItem> for ComparedFiles<'_> {
    fn read_bytes(&self, item: &CompareItem) -> u64 {
        let entry = &item.record.entry;
        // Opening a device can have an effect, so its kind in the directory is checked first.
        if item.inode != 0 && entry.is_file() && item.record.state.is_stored() {
            entry.size()
        } else {
            0
        }
    }

    fn text_bytes(&self, item: &CompareItem) -> usize {
        item.record.entry.text_bytes()
    }

    fn inode(&mut self, item: &CompareItem) -> u64 {
        item.inode
    }

    fn open(&mut self, item: &CompareItem) -> Option<OwnedFd> {
        let (root, beneath) = self.0.of(&item.record.entry.path);
        let fd = open_at_once(root, beneath).ok()?;
        (stat_fd(&fd).ok()?.kind == FileKind::File).then_some(fd)
    }
}

/// The buffers of one worker.
struct CompareWorker {
    buffer: Vec<u8>,
    stored: StoredContent,
    /// The directory that it opened last.
    parent: Option<(EntryPath, OwnedFd)>,
}

/// The target of a link on disk, and its attributes, or why they could not be read.
type ObjectMetadata = (Stat, Option<Vec<u8>>, io::Result<Vec<entry::Xattr>>);

impl Against<'_> {
    fn note(&self, path: &[u8], what: impl Into<String>) {
        let difference = Difference {
            path: path.to_vec(),
            what: what.into(),
        };
        self.found.locked().push(difference);
    }

    /// Reports all entries that belong to the user of this process at once: a restore as that user makes every entry so.
    fn note_owned(&self) {
        let user = self.ordinary_user.unwrap_or_default();
        match self.owned.load(Relaxed) {
            0 => {}
            1 => self.note(
                b"",
                format!("1 entry belongs to user {user}, and to another in the backup"),
            ),
            owned => self.note(
                b"",
                format!(
                    "{} entries belong to user {user}, and to others in the backup",
                    text::count(owned)
                ),
            ),
        }
    }

    /// Hands out all entries of the backup, and reports the names that only the tree has. Small
    /// files are read ahead.
    fn walk(&self, send: &mut dyn FnMut(Vec<PageItem>) -> Result<()>) -> Result<()> {
        let all = Selection::default();
        let ways = self.archive.ways()?;
        let mut levels: Vec<CompareLevel> = Vec::new();
        let records = self.archive.records(&all, false);
        let located = records
            .filter(|record| !record.as_ref().is_ok_and(|record| record.more))
            .map(|record| self.locate(&mut levels, &ways, record?));
        let files = ComparedFiles(&self.roots);
        let items = ReadAhead::new(located, files, WindowLimits::COMPARE);
        Self::send_batches(items, send)?;
        self.leave(&mut levels, |_| false);
        Ok(())
    }

    /// Enters and leaves directories up to this record, and finds its inode number.
    fn locate(
        &self,
        levels: &mut Vec<CompareLevel>,
        ways: &HashSet<EntryPath>,
        record: PageItem,
    ) -> Result<CompareItem> {
        let path = &record.entry.path;
        self.leave(levels, |level| entry::is_within(path, &level.path));
        let mut inode = None;
        if let (Some(level), false) = (levels.last_mut(), path.is_empty()) {
            // The directory of the path may not be on disk. Then this is the name of that
            // directory.
            let name = entry::child_component(&level.path, path);
            inode = level.names.remove(name);
        }
        if matches!(record.entry.kind, EntryKind::Directory) && !ways.contains(path) {
            levels.extend(self.enter(path)?);
        }
        Ok(CompareItem {
            record,
            inode: inode.unwrap_or_default(),
        })
    }

    fn send_batches(
        items: impl Iterator<Item = Result<CompareItem>>,
        send: &mut dyn FnMut(Vec<PageItem>) -> Result<()>,
    ) -> Result<()> {
        let mut batch = Vec::new();
        let mut bytes: u64 = 0;
        for item in items {
            let item = item?.record;
            bytes = bytes.saturating_add(item.entry.data_len());
            batch.push(item);
            if batch.len() >= BATCH || bytes >= BATCH_BYTES {
                bytes = 0;
                send(std::mem::take(&mut batch))?;
            }
        }
        send(batch)
    }

    /// Compares one object.
    fn item(&self, hand: &mut CompareWorker, item: &PageItem) -> Result<()> {
        let path = &item.entry.path;
        match &item.state {
            state if state.is_stored() && self.metadata(hand, item)? => {
                return self.content(hand, item);
            }
            EntryState::Unreadable(why) if self.look(hand, path).is_ok() => {
                self.note(path, format!("not captured by the backup: {why}"));
            }
            EntryState::Vanished if self.look(hand, path).is_ok() => self.note(path, "extra"),
            _ => {}
        }
        self.meter.small.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Leaves the directories that are not kept. Names that the backup did not list are extra.
    fn leave(&self, levels: &mut Vec<CompareLevel>, keep: impl Fn(&CompareLevel) -> bool) {
        while let Some(level) = levels.pop_if(|level| !keep(level)) {
            for name in level.names.into_keys() {
                self.note(&entry::join(&level.path, &name), "extra");
            }
        }
    }

    /// Returns the directory on disk, if it exists.
    fn enter(&self, path: &[u8]) -> Result<Option<CompareLevel>> {
        let (root, beneath) = self.roots.of(path);
        let listed = open_dir(root, beneath).and_then(|dir| dir::read_dir(&dir, &mut Vec::new()));
        match listed {
            Ok(names) => {
                let names = names
                    .into_iter()
                    .filter(|name| self.roots.may_own(path, &name.bytes))
                    .map(file_inode)
                    .collect();
                Ok(Some(CompareLevel {
                    path: path.to_vec(),
                    names,
                }))
            }
            Err(error) => {
                if !dir::is_missing_directory(&error) {
                    self.note_failed(path, "could not be listed", error)?;
                }
                Ok(None)
            }
        }
    }

    /// An object that cannot be examined counts as different; a lack of memory or descriptors is an
    /// error.
    fn note_failed(&self, path: &[u8], what: &str, error: io::Error) -> Result<()> {
        if is_shortage(&error) {
            return Err(Error::io(
                format!("could not compare {}", quoted(path)),
                error,
            ));
        }
        self.note(path, format!("{what}: {error}"));
        Ok(())
    }

    /// Compares all metadata. Returns whether there is content to compare.
    fn metadata(&self, hand: &mut CompareWorker, item: &PageItem) -> Result<bool> {
        Ok(match self.look(hand, &item.entry.path) {
            Ok((stat, link, xattrs)) => {
                let same_kind = self.kind(&item.entry, &stat, link.as_deref());
                if same_kind {
                    self.properties(item, &stat);
                    self.attributes(item, xattrs)?;
                }
                same_kind && item.entry.is_file() && stat.size == item.entry.size()
            }
            Err(error) if dir::is_missing_directory(&error) => {
                if item.entry.path != TABLESPACE_MAP || !self.roots.has_links() {
                    self.note(&item.entry.path, "missing");
                }
                false
            }
            Err(error) => {
                self.note_failed(&item.entry.path, "could not be examined", error)?;
                false
            }
        })
    }

    fn look(&self, hand: &mut CompareWorker, path: &[u8]) -> io::Result<ObjectMetadata> {
        let (root, beneath) = self.roots.of(path);
        let (parent, name) = entry::split(beneath);
        let name = if beneath.is_empty() { b"." } else { name };
        // A root is examined through its own descriptor, as ".".
        let directory = if beneath.is_empty() {
            path
        } else {
            entry::split(path).0
        };
        let opened = match hand.parent.take().filter(|(last, _)| last == directory) {
            Some(last) => last,
            None => (directory.to_vec(), open_dir(root, parent)?),
        };
        let dir = &hand.parent.insert(opened).1;
        let stat = dir::stat(dir, name)?;
        let link = if stat.kind == FileKind::Symlink {
            Some(dir::read_link(dir, name)?)
        } else {
            None
        };
        Ok((stat, link, xattr::read_all_at(dir, name)))
    }

    fn kind(&self, entry: &Entry, stat: &Stat, link: Option<&[u8]>) -> bool {
        let differs = match (&entry.kind, stat.kind) {
            (EntryKind::File { size, .. }, FileKind::File) if *size != stat.size => {
                Some(format!("size {}, in the backup {size}", stat.size))
            }
            (EntryKind::Symlink(target), FileKind::Symlink) if Some(&target[..]) != link => {
                let link = text::name(link.unwrap_or_default());
                Some(format!(
                    "target {link}, in the backup {}",
                    text::name(target)
                ))
            }
            (EntryKind::CharDevice(device), FileKind::CharDevice)
            | (EntryKind::BlockDevice(device), FileKind::BlockDevice)
                if *device != stat.rdev =>
            {
                Some("another device number".to_owned())
            }
            (EntryKind::HardLink(target), _) => {
                self.link(entry, target, stat);
                return false;
            }
            (kind, found) if kind_of(kind) != found => {
                Some(format!("another kind: {found:?}").to_lowercase())
            }
            _ => None,
        };
        let same = kind_of(&entry.kind) == stat.kind;
        differs
            .into_iter()
            .for_each(|difference| self.note(&entry.path, difference));
        same
    }

    /// Another name of a file must lead to the same inode; differences of that inode are reported
    /// for the file.
    fn link(&self, entry: &Entry, target: &[u8], stat: &Stat) {
        let (root, beneath) = self.roots.of(target);
        let (parent, name) = entry::split(beneath);
        let found = open_dir(root, parent).and_then(|dir| dir::stat(dir, name));
        if !found.is_ok_and(|found| (found.dev, found.inode) == (stat.dev, stat.inode)) {
            self.note(
                &entry.path,
                format!("no hard link to {}", text::name(target)),
            );
        }
    }

    fn properties(&self, record: &Record, stat: &Stat) {
        let entry = &record.entry;
        let is_link = matches!(entry.kind, EntryKind::Symlink(_));
        // Linux has no mode for a symbolic link.
        if stat.mode != entry.mode && !is_link {
            self.note(
                &entry.path,
                format!("mode {:04o}, in the backup {:04o}", stat.mode, entry.mode),
            );
        }
        let (uid, gid) = self.names.numbers(&entry.owner);
        let is_owned = self.ordinary_user == Some(stat.uid);
        // Only root can restore other owners: entries of an ordinary user get one note for all.
        if (stat.uid, stat.gid) != (uid, gid) && is_owned {
            self.owned.fetch_add(1, Relaxed);
        } else if (stat.uid, stat.gid) != (uid, gid) {
            self.note(
                &entry.path,
                format!("owner {}:{}, in the backup {uid}:{gid}", stat.uid, stat.gid),
            );
        }
        if stat.mtime != entry.mtime {
            let times = (text::rfc3339(stat.mtime), text::rfc3339(entry.mtime));
            self.note(
                &entry.path,
                format!("changed {}, in the backup {}", times.0, times.1),
            );
        }
    }

    fn attributes(&self, record: &Record, xattrs: io::Result<Vec<entry::Xattr>>) -> Result<()> {
        let Entry {
            path,
            xattrs: wanted,
            ..
        } = &record.entry;
        match xattrs {
            Ok(xattrs) => {
                if !self.is_same_xattrs(xattrs, wanted) {
                    self.note(path, "other extended attributes");
                }
            }
            Err(error) => self.note_failed(path, "attributes could not be read", error)?,
        }
        Ok(())
    }

    /// Lists of permissions are compared by the names of their users and groups.
    fn is_same_xattrs(&self, mut there: Vec<entry::Xattr>, wanted: &[entry::Xattr]) -> bool {
        acl::name_lists(&mut there, &self.names);
        there.len() == wanted.len()
            && there
                .iter()
                .all(|a| wanted.iter().any(|b| is_same_xattr(a, b)))
    }

    /// Compares the content of a file of the right size.
    fn content(&self, hand: &mut CompareWorker, item: &PageItem) -> Result<()> {
        match self.is_same(&mut hand.buffer, &mut hand.stored, item) {
            Ok(true) => {}
            Ok(false) => self.note(&item.entry.path, "other content"),
            Err(error) if error.system().is_some_and(is_shortage) => return Err(error),
            Err(error) => self.note(
                &item.entry.path,
                format!("could not be compared: {}", error.line()),
            ),
        }
        sizes::add_shared(&self.meter.bytes, item.entry.data_len());
        self.meter.files.fetch_add(1, Relaxed);
        Ok(())
    }

    fn is_same(
        &self,
        buffer: &mut [u8],
        stored: &mut StoredContent,
        item: &PageItem,
    ) -> Result<bool> {
        let failed = |e| Error::io(format!("could not read {}", quoted(&item.entry.path)), e);
        let (root, beneath) = self.roots.of(&item.entry.path);
        let file: File = open_read(root, beneath).map_err(failed)?.into();
        if item.digest.is_some() {
            return has_content(&file, item, buffer).map_err(failed);
        }
        Ok(has_holes(&file, item, buffer).map_err(failed)?
            && stored.is_in(self.archive, item, &file, buffer)?)
    }
}

fn is_same_xattr(a: &entry::Xattr, b: &entry::Xattr) -> bool {
    let is_same_list = || acl::is_list(&a.0) && acl::is_same_list(&a.1, &b.1, false);
    a.0 == b.0 && (a.1 == b.1 || is_same_list())
}

/// Returns whether a file has the content of its record, by digest. Holes in the backup must read
/// as zeros.
pub(crate) fn has_content(file: &File, item: &PageItem, buffer: &mut [u8]) -> io::Result<bool> {
    Ok(has_holes(file, item, buffer)? && digest(file, item, buffer)? == item.digest)
}

/// Returns whether the holes of the backup read as zeros.
fn has_holes(file: &File, item: &PageItem, buffer: &mut [u8]) -> io::Result<bool> {
    let holes = match &item.entry.kind {
        EntryKind::File {
            map: Some(map),
            size,
        } => data_outside(file, *size, map)?,
        _ => Vec::new(),
    };
    let mut zero = true;
    each_piece(file, holes, buffer, |bytes| {
        zero &= bytes.iter().all(|byte| *byte == 0)
    })?;
    Ok(zero)
}

/// Returns the digest of a file's data, by the algorithm of its record.
pub(crate) fn digest(
    file: &File,
    item: &PageItem,
    buffer: &mut [u8],
) -> io::Result<Option<Digest>> {
    let mut hasher = blake3::Hasher::new();
    let mut joiner = fullbore_format::digest::Joiner::default();
    let is_crc = matches!(item.digest, Some(Digest::Crc32c(_)));
    each_piece(
        file,
        item.entry.runs(0, item.entry.data_len()),
        buffer,
        |bytes| {
            if is_crc {
                joiner.push(&fullbore_format::digest::Piece::Crc(
                    crc32c(bytes),
                    bytes.len() as u64,
                ));
            } else {
                hasher.update(bytes);
            }
        },
    )?;
    let crc = || joiner.finish().or(Some(Digest::Crc32c(0)));
    Ok(if is_crc {
        crc()
    } else {
        Some(Digest::Blake3(hasher.finalize().into()))
    })
}

/// Returns a name with its inode number, or with 0 if it is not known to be a file.
fn file_inode(name: DirName) -> (Vec<u8>, u64) {
    let inode = if name.kind == FileKind::File {
        name.inode
    } else {
        0
    };
    (name.bytes, inode)
}

fn kind_of(kind: &EntryKind) -> FileKind {
    match kind {
        EntryKind::File { .. } | EntryKind::HardLink(_) => FileKind::File,
        EntryKind::Directory => FileKind::Directory,
        EntryKind::Symlink(_) => FileKind::Symlink,
        EntryKind::Fifo => FileKind::Fifo,
        EntryKind::CharDevice(_) => FileKind::CharDevice,
        EntryKind::BlockDevice(_) => FileKind::BlockDevice,
        EntryKind::Socket => FileKind::Socket,
    }
}
