//! A stored backup, for reading: its root, its pages, its frames.
//!
//! Objects are read only when they are needed: one file of a large backup costs the root, one or
//! two pages and its frames. Every page is checked against the digest in the root, and a damaged
//! page is read from its copy in a segment. Belongs here: everything that reads a backup, and the
//! reading order ([`schedule`]). Does not belong here: writing a tree (`target`), and the decision
//! which entries to restore (`restore`).

pub mod block_digests;
pub mod byte_cache;
pub mod children;
pub mod extents;
pub mod frame_cache;
pub mod frame_reader;
pub mod held_bytes;
mod media_turns;
pub mod missing;
pub mod object;
mod page_cache;
mod page_index;
pub mod preview;
pub(crate) mod records;
pub mod schedule;
pub mod small_file;
pub mod source_paths;
pub mod stored_file;
mod stored_root;
mod tapes;
pub mod unnamed_losses;
pub mod volume_passes;
mod volumes;

use crate::{volume_catalog::CatalogedBackup, volume_series::VolumeSeries};
use children::Children;
use fullbore_format::{
    digest::hex,
    entry::{self, EntryKind, EntryPath},
    error::{Error, ErrorKind, Result, quoted},
    layout::is_backup_id,
    page::{FrameAt, ManifestPage, PageItem, Record, SegmentId},
    root::{PageAt, Root},
    seal::seal,
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform::queue::Locked;
use fullbore_storage::{Objects, Storages};
use held_bytes::HeldBytes;
use object::{BackupObjects, ObjectName, ObjectReader, OneFileObjects, Sealing};
pub use page_cache::PageCache;
use page_index::PageIndex;
pub use records::Records;
use records::settled;
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, OnceLock},
};
use stored_root::read_root;
use tapes::TapeSet;
use volumes::{VolumeSet, note_missing_end};

/// A larger frame is refused before memory is allocated.
const MAX_FRAME_BYTES: u32 = 1 << 30;

/// A stored backup.
pub struct Archive {
    pub root: Root,
    /// The compression of its frames.
    pub codec: Codec,
    /// Id of its repository; empty for a one-file archive.
    pub repository: String,
    store: Box<dyn ObjectReader>,
    kept: Arc<PageCache>,
    index: OnceLock<PageIndex>,
    /// The stored bytes of the first page, if they were read ahead and not used.
    first_page: Mutex<Option<Vec<u8>>>,
    is_base: bool,
    pages_know: bool,
    warn: Box<dyn Fn(Error) + Send + Sync>,
}

/// The wanted entries: these paths, the entries below them, and the directories above them.
#[derive(Debug, Clone, Default)]
pub struct Selection(Arc<WantedPaths>);

/// Decides by the path of an entry whether it is left out, with everything below it.
pub type PathFilter = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

#[derive(Default)]
struct WantedPaths {
    left_out: Option<PathFilter>,
    paths: Vec<EntryPath>,
    tops: HashSet<EntryPath>,
    /// The paths and all directories above them, in archive order.
    way: Vec<EntryPath>,
}

impl std::fmt::Debug for WantedPaths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.paths).finish()
    }
}

impl Selection {
    /// From paths as a user writes them: `./a/`, `/a` and `a` are the same. No paths: all entries.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a path with `..`.
    pub fn new<P: AsRef<[u8]>>(paths: &[P]) -> Result<Self> {
        let paths = paths
            .iter()
            .map(|path| normal(path.as_ref()))
            .collect::<Result<Vec<EntryPath>>>()?;
        let mut way: Vec<EntryPath> = paths
            .iter()
            .flat_map(|path| prefixes(path))
            .map(<[u8]>::to_vec)
            .collect();
        way.sort_by(|a, b| entry::order(a, b));
        way.dedup();
        Ok(Self(Arc::new(WantedPaths {
            left_out: None,
            tops: paths.iter().cloned().collect(),
            paths,
            way,
        })))
    }

    /// Leaves out the entries that the filter names.
    #[must_use]
    pub fn without(&self, left_out: PathFilter) -> Self {
        let WantedPaths {
            paths, tops, way, ..
        } = &*self.0;
        Self(Arc::new(WantedPaths {
            left_out: Some(left_out),
            paths: paths.clone(),
            tops: tops.clone(),
            way: way.clone(),
        }))
    }

    /// Returns whether all entries are wanted.
    pub fn is_everything(&self) -> bool {
        self.0.paths.is_empty() && self.0.left_out.is_none()
    }

    /// Returns the paths, as the backup has them.
    pub fn paths(&self) -> &[EntryPath] {
        &self.0.paths
    }

    /// Returns whether `path` is wanted.
    pub fn takes(&self, path: &[u8]) -> bool {
        if self.is_left_out(path) {
            return false;
        }
        self.holds(path)
            || self
                .0
                .way
                .binary_search_by(|way| entry::order(way, path))
                .is_ok()
    }

    /// Returns whether `path` is one of the paths, or below one.
    pub fn holds(&self, path: &[u8]) -> bool {
        self.is_below(path) && !self.is_left_out(path)
    }

    fn is_below(&self, path: &[u8]) -> bool {
        self.0.paths.is_empty() || prefixes(path).any(|above| self.0.tops.contains(above))
    }

    fn is_left_out(&self, path: &[u8]) -> bool {
        let left_out = self.0.left_out.as_ref();
        left_out.is_some_and(|left_out| {
            prefixes(path).any(|above| !above.is_empty() && left_out(above))
        })
    }

    /// Returns whether a page that begins with `first` and ends at `next` or before can contain a
    /// wanted path.
    fn reaches(&self, first: &[u8], next: Option<&[u8]>) -> bool {
        let following = self
            .0
            .way
            .partition_point(|way| entry::order(way, first).is_lt());
        self.is_below(first)
            || self
                .0
                .way
                .get(following)
                .is_some_and(|way| next.is_none_or(|next| entry::order(way, next).is_le()))
    }
}

/// Returns the path and all directories above it: `a/b/c` gives the empty path, `a`, `a/b`,
/// `a/b/c`.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let cuts = (0..path.len())
        .filter(|i| path[*i] == b'/')
        .chain([path.len()]);
    std::iter::once(&path[..0]).chain(cuts.map(|i| &path[..i]))
}

fn normal(path: &[u8]) -> Result<EntryPath> {
    let parts: Vec<&[u8]> = path
        .split(|c| *c == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    let path = parts.join(&b'/');
    if entry::is_safe(&path) {
        return Ok(path);
    }
    Err(Error::new(
        ErrorKind::Usage,
        format!(
            "cannot select {}: it is not a path in a backup",
            fullbore_format::error::quoted(&path)
        ),
    ))
}

impl Archive {
    /// Opens the one-file archive `path`; `None` if fullbore did not write it.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged, or an error of the system.
    pub fn open_file(storages: &Storages, path: &std::path::Path) -> Result<Option<Self>> {
        OneFileObjects::open(storages, path)?
            .map(|store| Self::with_store(Box::new(store)))
            .transpose()
    }

    /// Opens the newest backup in the volumes with this prefix whose id begins with `set`, or as much of it as they describe: then
    /// the root says that it is cut off.
    ///
    /// # Errors
    /// As [`Archive::open_file`]; [`ErrorKind::NotFound`] if there is no volume.
    pub fn open_volumes(storages: &Storages, prefix: &std::path::Path, set: &str) -> Result<Self> {
        let (set, mut root) = VolumeSet::open_with_root(storages, prefix, set)?;
        note_missing_end(&mut root);
        Self::with_root(root, Box::new(set))
    }

    /// Puts a backup in volumes, of which the newest one is there, into the catalog of this host. Returns its root.
    ///
    /// # Errors
    /// As [`Archive::open_volumes`]; those of the catalog.
    pub(crate) fn catalog_volumes(
        storages: &Storages,
        (prefix, series): (&std::path::Path, &VolumeSeries),
        set: &str,
    ) -> Result<Root> {
        let (set, root) = VolumeSet::open_with_root(storages, prefix, set)?;
        series.store(&root.id, &seal(&root)?, |file| set.copy_manifest(file))?;
        Ok(root)
    }

    /// Opens a backup as the catalog of this host has it. No volume is opened before content is read.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a codec that this build does not have.
    pub(crate) fn of_catalog(
        storages: &Storages,
        prefix: &std::path::Path,
        kept: CatalogedBackup,
    ) -> Result<Self> {
        let (set, root) = VolumeSet::of_catalog(storages, prefix, kept);
        Self::with_root(root, Box::new(set))
    }

    /// Opens a backup on tapes, by the tape in the drive or by the catalog of this host: the one whose id begins
    /// with `backup`, or the newest one. If its end is missing, the root says that it is cut off.
    ///
    /// # Errors
    /// As [`Archive::open_volumes`]; those of the drive.
    pub fn open_tape(
        storages: &Storages,
        drive: &std::ffi::OsStr,
        backup: Option<&str>,
    ) -> Result<Self> {
        let (set, mut root) = TapeSet::open(storages, drive, backup)?;
        note_missing_end(&mut root);
        Self::with_root(root, Box::new(set))
    }

    /// Opens a backup on tapes as the catalog of this host has it. No drive is opened before content is read.
    ///
    /// # Errors
    /// As [`Archive::of_catalog`]; [`ErrorKind::Corrupt`] for a root without places.
    pub(crate) fn of_tape_catalog(
        storages: &Storages,
        drive: &std::ffi::OsStr,
        kept: CatalogedBackup,
    ) -> Result<Self> {
        let (set, root) = TapeSet::known(storages, drive, kept)?;
        Self::with_root(root, Box::new(set))
    }

    /// As [`Archive::open_tape`] of the newest backup on the tape in the drive. It is read from the tape, and stored in the catalog.
    ///
    /// # Errors
    /// As [`Archive::open_tape`]; the system's about the catalog.
    pub fn scan_tape(storages: &Storages, drive: &std::ffi::OsStr) -> Result<Self> {
        let (set, mut root) = TapeSet::scan(storages, drive)?;
        note_missing_end(&mut root);
        Self::with_root(root, Box::new(set))
    }

    /// Opens backup `id` of a repository.
    ///
    /// # Errors
    /// As [`Archive::open_file`].
    pub fn open_backup(objects: &Arc<dyn Objects>, id: &str) -> Result<Self> {
        Self::of_repository(BackupObjects::new(objects, id), id)
    }

    /// Opens the durable part of backup `id`, which has not ended.
    ///
    /// # Errors
    /// As [`Archive::open_file`].
    pub fn open_partial(objects: &Arc<dyn Objects>, id: &str) -> Result<Self> {
        Self::of_repository(BackupObjects::partial(objects, id), id)
    }

    fn of_repository(store: BackupObjects, id: &str) -> Result<Self> {
        let name = store.name(&ObjectName::Root);
        let root = store.root(id, &name)?;
        store.set_suffix(Codec::named(&root.options.codec)?.suffix());
        store.set_had_root();
        Self::with_root(root, Box::new(store))
    }

    /// Opens the backup in `store`.
    ///
    /// # Errors
    /// As [`Archive::open_file`].
    pub fn with_store(store: Box<dyn ObjectReader>) -> Result<Self> {
        Self::with_root(read_root(&*store)?, store)
    }

    fn with_root(root: Root, store: Box<dyn ObjectReader>) -> Result<Self> {
        let codec = Codec::named(&root.options.codec)?;
        Ok(Self {
            root,
            codec,
            repository: String::new(),
            store,
            kept: Arc::default(),
            index: OnceLock::new(),
            first_page: Mutex::default(),
            is_base: false,
            pages_know: false,
            warn: Box::new(|_| {}),
        })
    }

    /// Names its segments by its id, as another backup that refers to it does; with `pages_know`,
    /// pages record where they are stored.
    #[must_use]
    pub fn as_base(mut self, pages_know: bool) -> Self {
        self.is_base = true;
        self.pages_know = pages_know;
        self
    }

    /// Keeps its pages in a cache that it shares with other backups.
    #[must_use]
    pub fn with_pages(mut self, pages: Arc<PageCache>) -> Self {
        self.kept = pages;
        self
    }

    /// Calls `warn`, from any thread, for damage that is harmless because a copy is intact.
    #[must_use]
    pub fn warn_with(mut self, warn: impl Fn(Error) + Send + Sync + 'static) -> Self {
        self.warn = Box::new(warn);
        self
    }

    /// Returns whether it is one file, with its pages and root in its only segment.
    pub fn is_one_file(&self) -> bool {
        self.store.is_one_file()
    }

    pub fn store(&self) -> &dyn ObjectReader {
        &*self.store
    }

    /// Reads the stored bytes of a frame into `out`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the segment is missing or too short, [`ErrorKind::Gone`], or the system's
    /// error.
    pub(crate) fn fetch(
        &self,
        segment: &SegmentId,
        frame: &FrameAt,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if frame.stored_len.max(frame.plain_len) > MAX_FRAME_BYTES {
            return Err(Error::corrupt("a frame is larger than the limit"));
        }
        let object = ObjectName::Segment(segment.clone());
        self.store
            .read_at(&object, frame.offset, frame.stored_len as usize, out)
            .map_err(missing_is_damage)
    }

    /// As [`Archive::fetch`], from stored bytes of the segment if they are held and have the frame.
    ///
    /// # Errors
    /// As [`Archive::fetch`].
    pub(crate) fn fetch_held(
        &self,
        segment: &SegmentId,
        frame: &FrameAt,
        held: &HeldBytes,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let is_small = frame.stored_len.max(frame.plain_len) <= MAX_FRAME_BYTES;
        let len = frame.stored_len as usize;
        let object = ObjectName::Segment(segment.clone());
        if is_small
            && self
                .store
                .open_held(&object, held, frame.offset, len, out)?
        {
            return Ok(());
        }
        self.fetch(segment, frame, out)
    }

    /// Returns the page at `index` of the root's list.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if every copy is damaged; [`ErrorKind::Gone`] if the backup was forgotten.
    pub fn page(&self, index: usize) -> Result<Arc<ManifestPage>> {
        self.kept.get(&self.root.id, index, || {
            self.read_page(&self.root.pages[index])
        })
    }

    /// Reads the stored bytes of the first page ahead. Damage shows when the page is used.
    pub fn read_ahead(&self) {
        let Some(page_at) = self.root.pages.first() else {
            return;
        };
        let (Some(offset), Ok(len)) = (page_at.manifest_offset, usize::try_from(page_at.bytes))
        else {
            return;
        };
        let manifest = ObjectName::Manifest(page_at.backup.clone());
        let mut stored = Vec::new();
        let read = self.store.read_at(&manifest, offset, len, &mut stored);
        *self.first_page.locked() = read.ok().map(|()| stored);
    }

    /// Reads the stored bytes of a page from one of its copies.
    fn stored_page(&self, page_at: &PageAt, copy: &(ObjectName, u64)) -> Result<Vec<u8>> {
        let is_first = self.root.pages.first() == Some(page_at);
        let is_manifest = matches!(copy.0, ObjectName::Manifest(_));
        if is_first
            && is_manifest
            && let Some(stored) = self.first_page.locked().take()
        {
            return Ok(stored);
        }
        let mut stored = Vec::new();
        let len = usize::try_from(page_at.bytes).map_err(|_| no_copy(page_at))?;
        self.store
            .read_at(&copy.0, copy.1, len, &mut stored)
            .map_err(missing_is_damage)?;
        Ok(stored)
    }

    /// Drops the pages in memory, for a caller that reads many backups.
    pub fn let_go(&self) {
        self.kept.let_go();
    }

    /// Reads the page `page_at` from its first intact copy; the page is not kept.
    ///
    /// # Errors
    /// As [`Archive::page`].
    pub fn read_page(&self, page_at: &PageAt) -> Result<ManifestPage> {
        // Which copies there are is a request of its own, and of use only where the first one is damaged.
        if let Some(offset) = page_at.manifest_offset {
            match self.read_copy(
                page_at,
                &(ObjectName::Manifest(page_at.backup.clone()), offset),
            ) {
                Err(error) if error.kind != ErrorKind::Gone => {}
                read => return read,
            }
        }
        let mut copies = self.copies(page_at);
        let Some((first, rest)) = copies.split_first_mut() else {
            return Err(no_copy(page_at));
        };
        let damage = match self.read_copy(page_at, first) {
            Ok(page) => return Ok(page),
            Err(gone) if gone.kind == ErrorKind::Gone => return Err(gone),
            // Other copies are encrypted as well.
            Err(error) if self.store.sealing() == Sealing::Locked => return Err(error),
            Err(damage) => damage,
        };
        for copy in rest {
            if let Ok(page) = self.read_copy(page_at, copy) {
                (self.warn)(damage);
                return Ok(page);
            }
        }
        let first = fullbore_format::error::quoted(&page_at.first.0);
        Err(damage.detail(format!(
            "it describes {} entries from {first} on; there is no intact copy",
            page_at.entries
        )))
    }

    /// Returns the places of the copies of a page, in reading order.
    pub fn copies(&self, page_at: &PageAt) -> Vec<(ObjectName, u64)> {
        let segment = SegmentId {
            backup: page_at.backup.clone(),
            stream: page_at.stream,
            number: page_at.segment,
        };
        let manifest = page_at
            .manifest_offset
            .map(|offset| (ObjectName::Manifest(page_at.backup.clone()), offset));
        if page_at.segment == 0 {
            return manifest.into_iter().collect(); // a repair wrote it, which adds no copies to segments
        }
        let copy = ObjectName::Segment(segment);
        // A segment of another backup may have been deleted once only its pages were needed.
        let absent = !page_at.backup.is_empty()
            && self
                .store
                .len(&copy)
                .is_err_and(|error| error.kind == ErrorKind::NotFound);
        let copy = (!absent).then_some((copy, page_at.offset));
        manifest.into_iter().chain(copy).collect()
    }

    /// Reads the page `page_at` from one of its copies.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if this copy is damaged or missing; [`ErrorKind::Gone`] if the backup was forgotten.
    pub fn read_copy(&self, page_at: &PageAt, copy: &(ObjectName, u64)) -> Result<ManifestPage> {
        let stored = self.stored_page(page_at, copy)?;
        if page_at.digest.is_empty() {
            // The clear head of a sealed root has no digests.
            return Err(fullbore_crypt::only_adds(&self.store.name(&copy.0)));
        }
        let digest = hex(blake3::hash(&stored).as_bytes());
        if digest != page_at.digest {
            let name = self.store.name(&copy.0);
            let message = format!("the manifest page at byte {} of {name} is damaged", copy.1);
            return Err(Error::corrupt(message).because(format!(
                "its digest is {digest}, the root says {}",
                page_at.digest
            )));
        }
        let mut page = ManifestPage::decode(&stored)?;
        // In the page, its own backup has no name.
        let home = if page_at.backup.is_empty() && self.is_base {
            &self.root.id
        } else {
            &page_at.backup
        };
        for segment in &mut page.segments {
            if segment.backup.is_empty() {
                segment.backup.clone_from(home);
            } else if segment.backup == self.root.id && !self.is_base {
                segment.backup.clear();
            }
        }
        // A backup that refers to a page keeps the manifest with the page, but not the segment with
        // another copy.
        let is_referable = self.pages_know && matches!(copy.0, ObjectName::Manifest(_));
        page.origin = is_referable.then(|| {
            Arc::new(PageAt {
                backup: home.clone(),
                ..page_at.clone()
            })
        });
        Ok(page)
    }

    /// Returns the indices of the pages that can contain entries of `selection`, for each sequence
    /// of a stream in order.
    pub fn pages(&self, selection: &Selection) -> Vec<Vec<usize>> {
        self.pages_where(|first, next| selection.reaches(first, next))
    }

    /// Returns the pages that `wants` accepts, by the first path of the page and of the next page.
    fn pages_where(&self, wants: impl Fn(&[u8], Option<&[u8]>) -> bool) -> Vec<Vec<usize>> {
        let pages = &self.root.pages;
        let run_of = |own: &Vec<usize>| {
            // A page reaches to the first entry of the next one of its stream; the last one has no end.
            let next = own
                .iter()
                .skip(1)
                .map(|i| Some(&pages[*i].first.0[..]))
                .chain([None]);
            let reached = own
                .iter()
                .zip(next)
                .filter(|(i, next)| wants(&pages[**i].first.0, *next));
            reached.map(|(i, _)| *i).collect()
        };
        self.index().sequences.iter().map(run_of).collect()
    }

    /// The pages by sequence. `root.pages` does not change after the first search.
    fn index(&self) -> &PageIndex {
        self.index.get_or_init(|| PageIndex::new(&self.root.pages))
    }

    /// Returns all records of `selection` in archive order, or in reverse order; streams are
    /// merged.
    ///
    /// An unreadable page gives one error; the records of the other pages follow.
    pub fn records(&self, selection: &Selection, backwards: bool) -> Records<&Self> {
        Records::new(self, selection, backwards, |_| true)
    }

    /// Returns all records in archive order, as [`Archive::records`].
    pub fn into_records(self: Arc<Self>) -> Records<Arc<Self>> {
        Records::new(self, &Selection::default(), false, |_| true)
    }

    /// Returns the records of `selection` in archive order, from the pages that `wants` accepts.
    pub fn records_on(
        &self,
        selection: &Selection,
        wants: impl Fn(&PageAt) -> bool,
    ) -> Records<&Self> {
        Records::new(self, selection, false, wants)
    }

    /// Returns the late records of `selection`, or the others, in archive order.
    pub fn sequence(archive: Arc<Self>, selection: &Selection, late: bool) -> Records<Arc<Self>> {
        Records::new(archive, selection, false, |page| page.late == late)
    }

    /// Returns the records of `path`: several if they continue over pages, an empty list if `path`
    /// is not in the backup.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if a page that might contain the path is damaged.
    pub fn find(&self, path: &[u8]) -> Result<Vec<PageItem>> {
        let parts = self.look(path, |record| record.entry.path == path)?;
        match parts
            .last()
            .filter(|last| parts.len() > 1 && !last.more)
            .cloned()
        {
            Some(last) => Ok(parts
                .into_iter()
                .filter_map(|part| settled(part, &last))
                .collect()),
            None => Ok(parts),
        }
    }

    /// Returns the records of the file at `path`, also if `path` is another name of it: they have the
    /// path that the file is stored under.
    ///
    /// # Errors
    /// As [`Archive::find`].
    pub fn file_parts(&self, path: &[u8]) -> Result<Vec<PageItem>> {
        let parts = self.find(path)?;
        match parts.first().map(|item| &item.entry.kind) {
            Some(EntryKind::HardLink(target)) => self.find(target),
            _ => Ok(parts),
        }
    }

    /// Returns a record in the final state of its file, which is in its last part; `None` if a later
    /// page shows that the record is empty.
    fn settle(&self, item: PageItem) -> Result<Option<PageItem>> {
        if item.from == 0 && !item.more {
            return Ok(Some(item));
        }
        Ok(self.find(&item.entry.path)?.into_iter().next())
    }

    /// Returns the entries directly in the directory `dir`.
    pub fn children(&self, dir: &[u8]) -> Children<'_> {
        Children::new(self, dir)
    }

    /// Returns the first record of `path` and its number; `None` if the backup has no such entry.
    ///
    /// # Errors
    /// As [`Archive::find`].
    pub fn look_up(&self, path: &[u8]) -> Result<Option<(u64, PageItem)>> {
        for index in self.pages_at(path) {
            let page = self.page(index)?;
            let position = page
                .records
                .partition_point(|record| entry::order(&record.entry.path, path).is_lt());
            let found = PageItem::new(page, position);
            if let Some(item) = found.filter(|item| item.entry.path == path) {
                let number = self.index().number(index, position);
                return Ok(self.settle(item)?.map(|item| (number, item)));
            }
        }
        Ok(None)
    }

    /// Returns the record with this number, as [`Archive::look_up`] and [`Archive::children`]
    /// count; `None` if the backup has no such record.
    ///
    /// # Errors
    /// As [`Archive::page`].
    pub fn record(&self, number: u64) -> Result<Option<PageItem>> {
        let Some((page, position)) = self.index().place(number) else {
            return Ok(None);
        };
        match PageItem::new(self.page(page)?, position) {
            Some(item) => self.settle(item),
            None => Ok(None),
        }
    }

    /// Returns a segment under its name in the repository, with the backup that has it.
    pub(crate) fn full_name(&self, segment: &SegmentId) -> SegmentId {
        let mut full = segment.clone();
        if full.backup.is_empty() {
            full.backup.clone_from(&self.root.id);
        }
        full
    }

    /// Returns whether `path` is in the backup, as an entry or as a directory above one.
    ///
    /// # Errors
    /// As [`Archive::find`].
    pub fn has(&self, path: &[u8]) -> Result<bool> {
        Ok(self
            .root
            .pages
            .iter()
            .any(|page| entry::is_within(&page.first.0, path))
            || !self
                .look(path, |record| entry::is_within(&record.entry.path, path))?
                .is_empty())
    }

    /// Returns the directories that lead to the paths of the source, if those are stored under
    /// their whole names. The backup did not read the other entries in these directories.
    ///
    /// # Errors
    /// As [`Archive::find`].
    pub fn ways(&self) -> Result<HashSet<EntryPath>> {
        let tops: Vec<EntryPath> = self
            .root
            .source
            .paths
            .iter()
            .map(|path| path.0.strip_prefix(b"/").unwrap_or(&path.0).to_vec())
            .collect();
        let mut ways = HashSet::new();
        for top in &tops {
            if self.root.source.contents || self.find(top)?.is_empty() {
                return Ok(HashSet::new()); // stored under the last name alone
            }
            let above = (0..top.len())
                .filter(|slash| top[*slash] == b'/')
                .map(|end| &top[..end]);
            let ours = above.filter(|dir| !tops.iter().any(|top| entry::is_within(dir, top)));
            ways.extend(ours.map(<[u8]>::to_vec));
        }
        Ok(ways)
    }

    /// Returns the last record of the file at `path`, which has its digest; `None` if the file is
    /// not in the backup or cannot be read.
    pub fn last_of(&self, path: &[u8]) -> Option<PageItem> {
        self.pages_at(path).into_iter().rev().find_map(|index| {
            let page = self.page(index).ok()?;
            let position = page
                .records
                .partition_point(|record| entry::order(&record.entry.path, path).is_lt());
            PageItem::new(page, position).filter(|item| item.entry.path == path && !item.more)
        })
    }

    /// Returns the pages that may have records of `path`, or the entry after its place.
    fn pages_at(&self, path: &[u8]) -> Vec<usize> {
        self.index().pages_at(&self.root.pages, path)
    }

    /// Returns the matching records at the place of `path`, or right after it.
    fn look(&self, path: &[u8], matches: impl Fn(&Record) -> bool) -> Result<Vec<PageItem>> {
        let mut found = Vec::new();
        for index in self.pages_at(path) {
            let page = self.page(index)?;
            let position = page
                .records
                .partition_point(|record| entry::order(&record.entry.path, path).is_lt());
            found.extend(PageItem::new(page, position).filter(|item| matches(item)));
        }
        Ok(found)
    }
}

/// An error of an object that is missing counts as damage to the backup, not as a wrong name.
fn missing_is_damage(error: Error) -> Error {
    match error.kind {
        ErrorKind::NotFound => Error {
            kind: ErrorKind::Corrupt,
            ..error
        },
        _ => error,
    }
}

fn no_copy(page_at: &PageAt) -> Error {
    Error::corrupt(format!(
        "the manifest page of {} is missing",
        fullbore_format::error::quoted(&page_at.first.0)
    ))
}

/// The error of a path that is not in the backup.
pub fn not_there(archive: &Archive, path: &[u8]) -> Error {
    let message = format!(
        "could not find {} in backup {:?}",
        quoted(path),
        archive.root.id
    );
    Error::new(ErrorKind::NotFound, message).hint(match std::str::from_utf8(path) {
        Ok(word) if word.starts_with("latest") || is_backup_id(word) => {
            format!("a backup is chosen with @: write REPO@{word}, or @{word} behind -r REPO")
        }
        // A list prints the bytes of a name so that they do no harm on a terminal.
        Ok(word) if word.contains('\\') => {
            format!("a name that is printed with \\ has other bytes; in bash it is written as $'{word}'")
        }
        Ok(word) if word.contains(['*', '?']) => {
            format!("a PATH is no pattern; `fullbore restore --include '{word}'` takes one")
        }
        _ => "`fullbore find REPO NAME` finds a file by its name in all backups, also if a later one lacks it, and \
              `fullbore list REPO@latest` shows the paths of a backup"
            .to_owned(),
    })
}
