//! Which objects store a set of backups: each segment and each page once, however many backups
//! refer to it.
//!
//! Segments have their full names here, which contain the backup that wrote them. If that backup
//! has no root any more, because it was forgotten or died, its last root describes the segment;
//! without one, the roots that refer to the segment do.

use super::{
    listed::no_backup,
    roots::key,
    scan::{FoundDirectory, open_all},
};
use crate::archive::{Archive, Selection};
use fullbore_format::segment::FrameSpan;
use fullbore_format::{
    entry::EntryPath,
    error::{Error, ErrorKind, Result, quoted},
    layout,
    page::{ManifestPage, PageItem, SegmentId},
    root::{BackupOptions, FORMAT, PageAt, Root, Segment, SourceInfo},
};
use fullbore_storage::Objects;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// Backups, and the objects they refer to.
pub struct Inventory {
    /// The backups, grouped by source, oldest first.
    pub archives: Vec<Archive>,
    /// All segments that a backup refers to.
    pub segments: Vec<SegmentPlace>,
    /// All pages that a backup refers to.
    pub sheets: Vec<PageRef>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentPlace {
    /// The backup that wrote the segment, and its number there.
    pub id: SegmentId,
    /// A backup that refers to the segment, through which it is read.
    pub archive: usize,
    pub bytes: u64,
    /// Bytes of the tar stream; `None` if unknown.
    pub plain_bytes: Option<u64>,
    /// See [`Segment::parts`]; empty if unknown.
    pub parts: String,
    /// See `Known::is_ended`.
    pub ended: bool,
}

pub struct PageRef {
    /// The first backup that refers to the page, and the index in its root.
    pub at: (usize, usize),
    /// All backups that refer to the page.
    pub of: Vec<usize>,
}

impl Inventory {
    /// Makes the inventory of these backups. `objects` is where other roots are looked for; `None`
    /// for an archive.
    pub fn new(mut archives: Vec<Archive>, objects: Option<&dyn Objects>) -> Self {
        archives.sort_by_cached_key(|archive| {
            let SourceInfo { host, paths, .. } = &archive.root.source;
            (host.clone(), paths.clone(), archive.root.id.clone())
        });
        let segments = segments(&archives, objects);
        let sheets = sheets(&archives, |archive| (0..archive.root.pages.len()).collect());
        Self {
            archives,
            segments,
            sheets,
        }
    }

    /// Returns the root's entry of a page.
    pub fn page_at(&self, sheet: &PageRef) -> &PageAt {
        &self.archives[sheet.at.0].root.pages[sheet.at.1]
    }

    /// Returns ids of backups, in quotes.
    pub fn names(&self, indexes: &[usize]) -> String {
        let ids: Vec<String> = indexes
            .iter()
            .map(|archive| quoted(self.archives[*archive].root.id.as_bytes()))
            .collect();
        ids.join(", ")
    }

    /// Returns the previous backup of the same source.
    pub fn before(&self, archive: usize) -> Option<&Archive> {
        let previous = &self.archives[archive.checked_sub(1)?];
        (previous.root.source == self.archives[archive].root.source).then_some(previous)
    }
}

/// Returns a segment under its full name.
pub fn full(archive: &Archive, segment: &SegmentId) -> SegmentId {
    full_name(&archive.root, segment)
}

fn full_name(root: &Root, segment: &SegmentId) -> SegmentId {
    let backup = if segment.backup.is_empty() {
        &root.id
    } else {
        &segment.backup
    };
    SegmentId {
        backup: backup.clone(),
        ..*segment
    }
}

/// Makes the entry of a root's own segment.
fn own(root: &Root, segment: &Segment, archive: usize) -> SegmentPlace {
    SegmentPlace {
        id: SegmentId {
            backup: root.id.clone(),
            stream: segment.stream,
            number: segment.number,
        },
        archive,
        bytes: segment.bytes,
        plain_bytes: Some(segment.plain_bytes),
        parts: segment.parts.clone(),
        ended: true,
    }
}

fn segments(archives: &[Archive], objects: Option<&dyn Objects>) -> Vec<SegmentPlace> {
    let mut places: BTreeMap<(String, u32, u32), SegmentPlace> = BTreeMap::new();
    for (index, archive) in archives.iter().enumerate() {
        let own = archive
            .root
            .segments
            .iter()
            .map(|segment| own(&archive.root, segment, index));
        places.extend(own.map(|place| (segment_key(&place.id), place)));
    }
    // The root of a backup that is not among these is read once, however many backups refer to its segments.
    let mut known: HashMap<String, Option<KnownFrames>> = HashMap::new();
    for (index, archive) in archives.iter().enumerate() {
        for live in &archive.root.liveness {
            let id = full_name(&archive.root, &live.id());
            if places.contains_key(&segment_key(&id)) {
                continue;
            }
            let read = |id: &str| Some(KnownFrames::read(objects?, id)?.0);
            let told_by = known
                .entry(id.backup.clone())
                .or_insert_with(|| read(&id.backup));
            let told = told_by.as_ref().and_then(|backup| backup.place(&id, index));
            let place = told.unwrap_or_else(|| SegmentPlace {
                id,
                archive: index,
                bytes: live.of_bytes,
                plain_bytes: None,
                parts: String::new(),
                ended: false,
            });
            places.insert(segment_key(&place.id), place);
        }
    }
    places.into_values().collect()
}

fn segment_key(id: &SegmentId) -> (String, u32, u32) {
    (id.backup.clone(), id.stream, id.number)
}

/// The description of its segments in the document of a backup that is listed, forgotten or dead.
pub struct KnownFrames {
    /// As it is stored: it may be without lists of pages and liveness.
    pub root: Root,
    is_listed: bool,
}

impl KnownFrames {
    /// Reads the document of this backup, and returns it with its sealed bytes; `None` if no
    /// document describes it.
    pub fn read(objects: &dyn Objects, id: &str) -> Option<(Self, Vec<u8>)> {
        [layout::ROOT, layout::PARTIAL, layout::FORGOTTEN]
            .into_iter()
            .find_map(|name| {
                let (bytes, _) = objects.get(&key(id, name)).ok()??;
                let root = Root::of_backup_as_stored(id, &bytes, name).ok()?;
                Some((
                    Self {
                        root,
                        is_listed: name == layout::ROOT,
                    },
                    bytes,
                ))
            })
    }

    /// Returns whether this segment certainly ended. The last segment of a stream of a dead backup
    /// has no seek table, and may have more frames than are known. A forgotten backup may have died
    /// before.
    pub fn is_ended(&self, segment: &Segment) -> bool {
        self.is_listed
            || self
                .root
                .segments
                .iter()
                .any(|later| later.stream == segment.stream && later.number > segment.number)
    }

    fn place(&self, id: &SegmentId, archive: usize) -> Option<SegmentPlace> {
        // The order in which segments begin.
        let wanted = (id.stream, id.number);
        let found = self
            .root
            .segments
            .binary_search_by_key(&wanted, segment_numbers)
            .ok();
        let position = found.or_else(|| {
            self.root
                .segments
                .iter()
                .position(|segment| segment_numbers(segment) == wanted)
        })?;
        let segment = &self.root.segments[position];
        let is_it = id.backup == self.root.id;
        is_it.then(|| SegmentPlace {
            ended: self.is_ended(segment),
            ..own(&self.root, segment, archive)
        })
    }
}

fn segment_numbers(segment: &Segment) -> (u32, u32) {
    (segment.stream, segment.number)
}

/// The placeholder document of a forgotten backup about which no other facts are left.
pub fn nothing_known(id: &str, similar: &Root) -> Root {
    let options = BackupOptions {
        codec: similar.options.codec.clone(),
        ..BackupOptions::default()
    };
    Root {
        format: FORMAT,
        id: id.to_owned(),
        time: similar.time.clone(),
        options,
        ..Root::default()
    }
}

/// Returns the damaged documents of forgotten backups that others refer to: key, error,
/// replacement. Such a document only describes segments that other backups need; while it is
/// damaged, the expected content of those segments is unknown. Only the documents of backups that
/// `may_be_forgotten` are read.
pub fn bad_words(
    archives: &[Archive],
    objects: &dyn Objects,
    may_be_forgotten: impl Fn(&str) -> bool,
) -> Vec<(String, Error, Root)> {
    let others: BTreeMap<&str, &Root> = archives
        .iter()
        .flat_map(|archive| {
            archive
                .root
                .referenced_backups()
                .into_iter()
                .map(|id| (id, &archive.root))
        })
        .collect();
    let look = |(id, root): (&str, &Root)| {
        let forgotten = key(id, layout::FORGOTTEN);
        let (bytes, _) = objects.get(&forgotten).ok()??;
        if !matches!(objects.stat(&key(id, layout::ROOT)), Ok(None)) {
            return None;
        }
        let error = Root::open_as_stored(&bytes, &objects.describe(&forgotten))
            .err()
            .filter(|error| error.kind == ErrorKind::Corrupt)?;
        Some((forgotten, error, nothing_known(id, root)))
    };
    let others = others.into_iter().filter(|(id, _)| may_be_forgotten(id));
    others.filter_map(look).collect()
}

/// Tells the pages of a repository apart: backup, stream, segment, offset, digest.
pub type PageKey = (String, u32, u32, u64, String);

/// Returns the key of a page of a root, by its index.
pub fn page_key(root: &Root, index: usize) -> PageKey {
    let page = &root.pages[index];
    let backup = match page.backup.is_empty() {
        true => &root.id,
        false => &page.backup,
    };
    (
        backup.clone(),
        page.stream,
        page.segment,
        page.offset,
        page.digest.clone(),
    )
}

/// Returns each page of these backups once, if `wanted` accepts its numbers.
pub fn sheets(archives: &[Archive], wanted: impl Fn(&Archive) -> Vec<usize>) -> Vec<PageRef> {
    let mut found: HashMap<PageKey, usize> = HashMap::new();
    let mut sheets: Vec<PageRef> = Vec::new();
    for (position, archive) in archives.iter().enumerate() {
        for index in wanted(archive) {
            // Backups refer to pages of earlier ones: each is read and checked once, whoever lists
            // it.
            let key = page_key(&archive.root, index);
            let sheet = *found.entry(key).or_insert(sheets.len());
            match sheets.get_mut(sheet) {
                Some(sheet) => sheet.of.push(position),
                None => sheets.push(PageRef {
                    at: (position, index),
                    of: vec![position],
                }),
            }
        }
    }
    sheets
}

/// Returns the records of a page that was read through `archive`, with segments under their full
/// names.
pub fn items(archive: &Archive, mut page: ManifestPage) -> impl Iterator<Item = PageItem> {
    page.segments
        .iter_mut()
        .for_each(|segment| *segment = full(archive, segment));
    let page = Arc::new(page);
    (0..page.records.len()).filter_map(move |index| PageItem::new(page.clone(), index))
}

/// Returns the frames of these segments that records of these backups refer to. Unreadable pages
/// are skipped.
pub fn known_frames(
    archives: &[Archive],
    segments: impl Iterator<Item = SegmentId>,
) -> HashMap<SegmentId, BTreeSet<FrameSpan>> {
    let mut known: HashMap<SegmentId, BTreeSet<FrameSpan>> =
        segments.map(|id| (id, BTreeSet::new())).collect();
    for archive in if known.is_empty() { &[] } else { archives } {
        for item in archive
            .records(&Selection::default(), false)
            .filter_map(Result::ok)
        {
            for frame in item.extents.iter().map(|extent| &extent.frame) {
                if let Some(frames) = known.get_mut(&full(archive, item.segment(frame))) {
                    frames.insert((frame.offset, frame.stored_len, frame.plain_len));
                }
            }
        }
    }
    known
}

/// Returns files with their records: several records if a file continues over pages. Unreadable
/// pages are skipped.
pub fn files<'a>(
    records: impl Iterator<Item = Result<PageItem>> + 'a,
) -> impl Iterator<Item = Vec<PageItem>> + 'a {
    let mut records = records.filter_map(Result::ok).peekable();
    std::iter::from_fn(move || {
        let mut parts = vec![records.next()?];
        let path: EntryPath = parts[0].entry.path.clone();
        while parts.last().is_some_and(|part| part.more)
            && let Some(next) = records.next_if(|next| next.entry.path == path)
        {
            parts.push(next);
        }
        Some(parts)
    })
}

pub(crate) fn no_root(objects: &dyn Objects, id: &str) -> Error {
    let root = objects.describe(&key(id, layout::ROOT));
    Error::corrupt(format!("the root {root} is missing"))
        .hint("`fullbore repair` rebuilds it from the segments, or says what else to do")
}

/// Ids of backups whose root cannot be read, with the errors.
pub type NoRoots = Vec<(String, Error)>;

/// Opens all backups with an intact root, and returns the others with the reason.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is no backup; errors that are not damage to a root.
pub fn open_some(objects: &Arc<dyn Objects>) -> Result<(Vec<Archive>, NoRoots)> {
    let (archives, lost) = divided(objects, open_all(objects)?);
    // An empty repository must not count as sound: there is nothing that could be damaged.
    if archives.is_empty() && lost.is_empty() {
        Err(no_backup(&**objects)?)
    } else {
        Ok((archives, lost))
    }
}

/// Divides directories into those with an intact root, and those that should have one.
pub fn divided(
    objects: &Arc<dyn Objects>,
    all: Vec<(String, FoundDirectory)>,
) -> (Vec<Archive>, NoRoots) {
    let (mut archives, mut lost) = (Vec::new(), Vec::new());
    for (id, found) in all {
        match found {
            FoundDirectory::Backup(archive) => archives.push(*archive),
            FoundDirectory::Damaged(error) => lost.push((id, error)),
            FoundDirectory::NoRoot => lost.push((id.clone(), no_root(&**objects, &id))),
            FoundDirectory::Leftover => {}
        }
    }
    (archives, lost)
}
