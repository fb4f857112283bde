//! Rebuilds a root from labels, page copies, seek tables and the manifest.
//!
//! Facts that only the root had (host, paths, tags, figures of the run) are lost. So are references
//! to whole pages of other backups: a root that may have had some is marked as incomplete.
//! Checksums of stored parts are computed again, from the present bytes. This module writes no
//! object.

use super::{
    cluster_facts, cut_off,
    found_page::{FoundPage, sum},
    frame_index::FrameIndex,
    totals::{describe, describe_listed},
};
use fullbore_format::{
    digest::hex,
    entry::order,
    error::{Error, Result},
    layout,
    page::{ManifestPage, SegmentId},
    root::{BackupOptions, FORMAT, Lists, Root, Segment, SourceInfo},
    segment::{Label, SERVICE_HEADER_BYTES, Service},
    segment_reader::SegmentReader,
    sizes,
    text::counted,
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_repository::archive::unnamed_losses;
use fullbore_repository::{
    archive::{
        Archive,
        object::{BackupObjects, ObjectName, ObjectReader, segment_reader},
    },
    roots::files_of,
};
use fullbore_storage::Objects;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

/// Higher numbers of streams and segments are not tried.
const MOST: u32 = 1 << 16;

/// A rebuilt root.
pub(crate) struct RebuiltRoot {
    pub(crate) root: Root,
    /// Pages, and their places in the manifest.
    pub(crate) pages: Vec<(u64, Vec<u8>)>,
    /// The permanent losses, in words.
    pub(crate) notes: Vec<String>,
}

/// The facts from the segments of a backup.
struct GatheredFacts {
    /// With the facts of the segments, and the options that follow from these.
    root: Root,
    found: Vec<FoundPage>,
    lost: Vec<LostPage>,
    /// Whether a label says that the backup had a base.
    is_incremental: bool,
    /// Whether a damaged segment without a seek table may have had more frames after the damage.
    is_unsure: bool,
    /// Errors of damaged segments, then the permanent losses.
    notes: Vec<String>,
}

impl GatheredFacts {
    /// Reads the segments of backup `id`.
    fn read(store: &BackupObjects, id: &str, codec: Codec, numbers: &[(u32, u32)]) -> Self {
        let mut gathered = Self {
            root: bare_root(id, codec),
            found: Vec::new(),
            lost: Vec::new(),
            is_incremental: false,
            is_unsure: false,
            notes: Vec::new(),
        };
        for place in numbers {
            match segment(store, codec, *place, &mut gathered) {
                Ok(segment) => gathered.root.segments.push(segment),
                Err(error) => {
                    gathered.is_unsure = true;
                    gathered.notes.push(error.line());
                }
            }
        }
        gathered
    }

    /// Removes the lost pages that the manifest has.
    fn drop_found_pages(&mut self) {
        let found = &self.found;
        self.lost.retain(|page| !is_in_manifest(page, found));
    }

    /// Removes files that the remaining pages describe only in part.
    fn give_up_cut_off(&mut self) -> Result<()> {
        let files = cut_off::give_up(&mut self.found)?;
        if files > 0 {
            let files = counted(files as u64, "file");
            self.notes.push(format!(
                "{files} continued in pages of other backups, and cannot be restored"
            ));
        }
        Ok(())
    }

    /// Records that entries with unknown names are lost, with unreadable pages or missing segments.
    fn note_losses(&mut self, gaps: &[(u32, u32)]) {
        unnamed_losses::record_segment_loss(&mut self.root);
        for page in &self.lost {
            let place = &page.place;
            self.notes.push(format!(
                "the page at {place} is lost with the entries in it"
            ));
        }
        for (stream, number) in gaps {
            self.notes
                .push(format!("segment {number} of stream {stream} is missing"));
        }
        self.notes
            .push("no page of the manifest lists the lost entries".to_owned());
    }
}

/// Returns a root with the facts that follow from the id and the codec.
fn bare_root(id: &str, codec: Codec) -> Root {
    Root {
        format: FORMAT,
        id: id.to_owned(),
        tool: format!("fullbore {}", env!("CARGO_PKG_VERSION")),
        time: time_of(id),
        finished: time_of(id),
        source: SourceInfo {
            contents: true,
            ..SourceInfo::default()
        },
        options: BackupOptions {
            codec: codec.name().to_owned(),
            ..BackupOptions::default()
        },
        ..Root::default()
    }
}

/// An unreadable copy of a page in a segment.
struct LostPage {
    /// Its place, in words.
    place: String,
    /// Stored bytes of its frame.
    frame_bytes: u64,
}

/// Returns whether the manifest has a page of that length without a copy in a segment: that is the
/// lost one.
fn is_in_manifest(lost: &LostPage, found: &[FoundPage]) -> bool {
    found.iter().any(|page| {
        let frame_bytes = (page.stored.len() + SERVICE_HEADER_BYTES) as u64;
        !page.is_copied && frame_bytes == lost.frame_bytes
    })
}

/// Rebuilds the root of backup `id`; the roots of `others` may have the places of its pages.
///
/// # Errors
/// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if there are no pages to rebuild it from.
pub(crate) fn rebuild(
    objects: &Arc<dyn Objects>,
    id: &str,
    others: &[Archive],
) -> Result<RebuiltRoot> {
    let names = segments(&**objects, id)?;
    let codec = names
        .first()
        .map(|name| name.2)
        .ok_or_else(|| nothing(id))?;
    let store = BackupObjects::new(objects, id);
    store.set_suffix(codec.suffix());
    let numbers: Vec<(u32, u32)> = names
        .iter()
        .map(|(stream, number, _)| (*stream, *number))
        .collect();
    let mut gathered = GatheredFacts::read(&store, id, codec, &numbers);
    let FoundManifest {
        pages: in_manifest,
        lists,
        is_whole,
    } = manifest(&store);
    if let Some(listed) = lists.and_then(|lists| from_lists(&store, &gathered, lists)) {
        return with_lists(objects, gathered, listed);
    }
    let known = known(id, others, in_manifest, &mut gathered.found);
    // After `known`: the manifest may have pages that are lost in the segments.
    gathered.drop_found_pages();
    if gathered.found.is_empty() {
        return Err(nothing(id).detail(gathered.notes.join("; ")));
    }
    gathered.give_up_cut_off()?;
    let placed = place(&known, end(&store, id, others), &mut gathered.found);
    describe(&mut gathered.root, &gathered.found, &placed);
    forget_nothing(
        &mut gathered.root,
        gathered.is_incremental,
        &mut gathered.notes,
    );
    let gaps = gaps(&numbers);
    if !is_whole && (!gathered.lost.is_empty() || !gaps.is_empty() || gathered.is_unsure) {
        gathered.note_losses(&gaps);
    }
    let GatheredFacts {
        mut root,
        found,
        notes,
        ..
    } = gathered;
    let pages: Vec<_> = found
        .into_iter()
        .zip(&placed)
        .map(|(found, offset)| (*offset, found.stored))
        .collect();
    cluster_facts::add(objects, &mut root, &pages)?;
    Ok(RebuiltRoot { root, pages, notes })
}

/// Returns the label of any segment of backup `id` that names its repository.
pub(crate) fn label(objects: &Arc<dyn Objects>, id: &str) -> Option<Label> {
    let names = segments(&**objects, id).ok()?;
    names.into_iter().find_map(|(stream, number, codec)| {
        let store = BackupObjects::new(objects, id);
        store.set_suffix(codec.suffix());
        let segment = SegmentId {
            backup: String::new(),
            stream,
            number,
        };
        let index = FrameIndex::read(&store, codec, &segment).ok()?;
        let object = ObjectName::Segment(segment);
        let segment = segment_reader(&store, &object, store.len(&object).ok()?);
        let is_label = |service| service == Service::Label;
        let labels = index.service.into_iter().filter_map(|(_, offset, _)| {
            let (_, payload) = segment.service(offset, is_label).ok()??;
            Label::parse(&payload).ok()
        });
        { labels }.find(|label| label.backup == id && !label.repository.is_empty())
    })
}

fn nothing(id: &str) -> Error {
    Error::corrupt(format!("cannot rebuild backup {id:?}"))
        .because("no page of its manifest is left")
}

/// Returns `2026-11-21T05:45:01Z` for an id that begins with `20261121T054501Z`.
fn time_of(id: &str) -> String {
    let part = |start: usize, end: usize| id.get(start..end).unwrap_or_default();
    let (day, time) = (
        (part(0, 4), part(4, 6), part(6, 8)),
        (part(9, 11), part(11, 13), part(13, 15)),
    );
    format!(
        "{}-{}-{}T{}:{}:{}Z",
        day.0, day.1, day.2, time.0, time.1, time.2
    )
}

/// Returns stream, number and codec of every segment of a backup, in order. The codec zstd includes
/// frames of raw blocks: the label tells them apart.
fn segments(objects: &dyn Objects, id: &str) -> Result<Vec<(u32, u32, Codec)>> {
    let files = files_of(objects, id)?;
    let mut found: Vec<_> = files.names().filter_map(parse_segment).collect();
    found.sort_by_key(|(stream, number, _)| (*stream, *number));
    Ok(found)
}

fn parse_segment(name: &str) -> Option<(u32, u32, Codec)> {
    let (stream, number) = layout::segment_numbers(name)?;
    let codecs = ["zstd", "lz4"].map(Codec::named);
    let codec = codecs
        .into_iter()
        .flatten()
        .find(|codec| name.ends_with(codec.suffix()))?;
    Some((stream, number, codec))
}

/// Returns the facts of a segment; adds its pages and the sizes of its frames to `gathered`.
fn segment(
    store: &BackupObjects,
    codec: Codec,
    (stream, number): (u32, u32),
    gathered: &mut GatheredFacts,
) -> Result<Segment> {
    let id = SegmentId {
        backup: String::new(),
        stream,
        number,
    };
    let object = ObjectName::Segment(id.clone());
    let (bytes, parts) = sum(store, &object)?;
    let index = FrameIndex::read(store, codec, &id)?;
    let plain_bytes = sizes::sum(index.data.iter().map(|frame| u64::from(frame.2)));
    let largest = index
        .data
        .iter()
        .map(|frame| frame.2)
        .max()
        .map_or(0, u64::from);
    let options = &mut gathered.root.options;
    options.frame_bytes = options.frame_bytes.max(largest);
    options.segment_bytes = options.segment_bytes.max(bytes);
    let reader = segment_reader(store, &object, bytes);
    for (position, offset, bytes) in &index.service {
        let is_known = service(&reader, *offset, (stream, number), gathered)?;
        // The first two frames are an empty one, or one with data, and the label.
        if !is_known && *position > 1 {
            gathered.lost.push(LostPage {
                place: format!("byte {offset} of {}", store.name(&object)),
                frame_bytes: u64::from(*bytes),
            });
        }
    }
    if !index.has_table {
        // Like a segment of a dead backup: records refer to it, but the root does not describe it.
        return Err(Error::corrupt(format!(
            "the seek table of {} is lost",
            store.name(&object)
        )));
    }
    Ok(Segment {
        stream,
        number,
        bytes,
        frames: index.data.len() as u64,
        plain_bytes,
        parts,
        tape: None,
    })
}

/// Reads the service frame at `at`. Returns whether it could be read, or is the filler of an unused
/// place.
fn service(
    segment: &SegmentReader<impl Fn(u64, usize, &mut Vec<u8>) -> Result<()>>,
    at: u64,
    (stream, number): (u32, u32),
    gathered: &mut GatheredFacts,
) -> Result<bool> {
    let Some((service, bytes)) = segment.service(at, |_| true)? else {
        // The tag of a filler is eight zeros.
        return Ok(segment.header(at)?[8..].iter().all(|byte| *byte == 0));
    };
    let offset = at + SERVICE_HEADER_BYTES as u64;
    match service {
        Service::Label => {
            if let Ok(label) = Label::parse(&bytes) {
                gathered.is_incremental |= label.is_incremental;
                gathered.root.options.codec = label.codec;
            }
        }
        Service::Page => {
            let Ok(page) = ManifestPage::decode(&bytes) else {
                return Ok(false);
            };
            gathered.found.push(FoundPage {
                stream,
                segment: number,
                offset,
                order: offset,
                stored: bytes,
                page,
                is_copied: true,
            });
        }
        _ => {}
    }
    Ok(true)
}

/// Returns the known places of pages in the manifest, by their digests: from the remains of the
/// manifest, or from other roots. Pages that only the manifest has are added to `found`: their
/// segment is lost, or a repair wrote them after the pages that they replace.
fn known(
    id: &str,
    others: &[Archive],
    in_manifest: Vec<(u64, Vec<u8>, ManifestPage)>,
    found: &mut Vec<FoundPage>,
) -> HashMap<String, u64> {
    let mut known: HashMap<String, u64> = HashMap::new();
    for page in others
        .iter()
        .flat_map(|other| &other.root.pages)
        .filter(|page| page.backup == id)
    {
        known.extend(
            page.manifest_offset
                .map(|offset| (page.digest.clone(), offset)),
        );
    }
    let mut last: HashMap<u32, (u32, u64)> = HashMap::new();
    for (offset, stored, page) in in_manifest {
        let digest = hex(blake3::hash(&stored).as_bytes());
        known.insert(digest, offset);
        match found.iter().find(|found| found.stored == stored) {
            Some(found) => _ = last.insert(found.stream, (found.segment, found.order)),
            None => add(found, stored, page, &mut last),
        }
    }
    known
}

/// Adds a page that only the manifest has: in place of pages with the same records, or after
/// `behind`, the previous page of its stream.
fn add(
    found: &mut Vec<FoundPage>,
    stored: Vec<u8>,
    page: ManifestPage,
    behind: &mut HashMap<u32, (u32, u64)>,
) {
    let parts: HashSet<_> = page
        .records
        .iter()
        .map(|record| (&record.entry.path, record.from))
        .collect();
    let Some((first, last)) = ends(&page) else {
        return;
    };
    let is_beside = |old: &ManifestPage| {
        ends(old).is_none_or(|(source, target)| {
            order(source, last).is_gt() || order(target, first).is_lt()
        })
    };
    let is_replaced = |old: &FoundPage| {
        let mut records = old.page.records.iter();
        !is_beside(&old.page)
            && records.any(|record| parts.contains(&(&record.entry.path, record.from)))
    };
    let replaced = found
        .extract_if(.., |old| is_replaced(old))
        .map(|old| (old.stream, old.segment, old.order, old.offset));
    let own = page
        .segments
        .first()
        .filter(|segment| segment.backup.is_empty())
        .map(|segment| {
            let previous = behind
                .get(&segment.stream)
                .filter(|(number, _)| *number == segment.number);
            (
                segment.stream,
                segment.number,
                previous.map_or(0, |(_, order)| *order),
                0,
            )
        });
    // In place of the first page that it replaces, else behind the last one of its segment.
    if let Some((stream, segment, order, offset)) = replaced.min().or(own) {
        behind.insert(stream, (segment, order));
        found.push(FoundPage {
            stream,
            segment,
            offset,
            order,
            stored,
            page,
            is_copied: false,
        });
    }
}

/// Returns the paths of the first and the last record.
fn ends(page: &ManifestPage) -> Option<(&[u8], &[u8])> {
    Some((
        &page.records.first()?.entry.path,
        &page.records.last()?.entry.path,
    ))
}

/// Returns the end of the manifest, as far as it exists or other backups refer to it. They may
/// refer to pages that are unknown here.
fn end(store: &BackupObjects, id: &str, others: &[Archive]) -> u64 {
    let named = others
        .iter()
        .flat_map(|other| &other.root.pages)
        .filter(|page| page.backup == id);
    let ends = named.filter_map(|page| Some(page.manifest_offset?.saturating_add(page.bytes)));
    let with_lists = others.iter().filter(|other| other.root.lists_of == id);
    let lists = with_lists.filter_map(|other| other.root.lists_at.as_ref());
    let ends = ends.chain(lists.map(|at| at.offset.saturating_add(at.bytes)));
    ends.max()
        .unwrap_or(0)
        .max(store.len(&ObjectName::Manifest(String::new())).unwrap_or(0))
}

/// Returns the place of each page in the manifest, which has at least `least` bytes. Other backups
/// may refer to these places: pages with a known place keep it; the others follow after them.
fn place(known: &HashMap<String, u64>, least: u64, found: &mut [FoundPage]) -> Vec<u64> {
    found.sort_by_key(|found| (found.stream, found.segment, found.order));
    let places: Vec<Option<u64>> = found
        .iter()
        .map(|found| {
            known
                .get(&hex(blake3::hash(&found.stored).as_bytes()))
                .copied()
        })
        .collect();
    let ends = found
        .iter()
        .zip(&places)
        .filter_map(|(found, place)| Some((*place)? + found.stored.len() as u64));
    let mut end = ends.max().unwrap_or(0).max(least);
    let placed = found.iter().zip(places).map(|(found, place)| {
        place.unwrap_or_else(|| {
            end += found.stored.len() as u64;
            end - found.stored.len() as u64
        })
    });
    placed.collect()
}

/// The remains of a manifest.
struct FoundManifest {
    /// Offset and bytes of each page, up to the first that cannot be told from its successor.
    pages: Vec<(u64, Vec<u8>, ManifestPage)>,
    /// The page of lists, with its offset and bytes.
    lists: Option<(u64, Vec<u8>, Lists)>,
    /// Is that the whole manifest?
    is_whole: bool,
}

/// A root that was made of a page of lists.
struct ListedRoot {
    root: Root,
    /// The own pages, and their places in the manifest.
    pages: Vec<(u64, Vec<u8>)>,
}

/// Returns the root with these lists; `None` if a page that they name is lost.
fn from_lists(
    store: &BackupObjects,
    gathered: &GatheredFacts,
    (offset, stored, lists): (u64, Vec<u8>, Lists),
) -> Option<ListedRoot> {
    let mut root = gathered.root.clone();
    root.note_own_lists(&lists, offset, &stored);
    let mut root = root.with_lists(lists, "").ok()?;
    let (mut pages, mut own) = (Vec::new(), Vec::new());
    for at in &mut root.pages {
        let (from, len) = (at.manifest_offset?, usize::try_from(at.bytes).ok()?);
        let is_it = |stored: &[u8]| hex(blake3::hash(stored).as_bytes()) == at.digest;
        let mut stored = Vec::new();
        let read = store.read_at(
            &ObjectName::Manifest(at.backup.clone()),
            from,
            len,
            &mut stored,
        );
        if read.is_err() || !is_it(&stored) {
            let mut copies = gathered.found.iter().map(|found| &found.stored);
            stored = copies
                .find(|copy| at.backup.is_empty() && is_it(copy))?
                .clone();
        }
        pages.push(ManifestPage::decode(&stored).ok()?);
        if at.backup.is_empty() {
            let is_copy = |found: &FoundPage| {
                let place = (found.stream, found.segment, found.offset);
                place == (at.stream, at.segment, at.offset) && found.stored == stored
            };
            if !gathered.found.iter().any(is_copy) {
                (at.segment, at.offset) = (0, 0);
            }
            own.push((from, stored));
        }
    }
    describe_listed(&mut root, &pages);
    Some(ListedRoot { root, pages: own })
}

/// Returns the rebuilt root of a backup whose lists are left.
fn with_lists(
    objects: &Arc<dyn Objects>,
    gathered: GatheredFacts,
    listed: ListedRoot,
) -> Result<RebuiltRoot> {
    let ListedRoot { mut root, pages } = listed;
    let mut notes = gathered.notes;
    forget_nothing(&mut root, false, &mut notes);
    cluster_facts::add(objects, &mut root, &pages)?;
    Ok(RebuiltRoot { root, pages, notes })
}

/// Returns what is left of a manifest.
fn manifest(store: &BackupObjects) -> FoundManifest {
    let object = ObjectName::Manifest(String::new());
    let (mut bytes, mut found, mut index, mut is_whole) = (Vec::new(), Vec::new(), 0, true);
    let mut lists = None;
    let read = store
        .len(&object)
        .and_then(|len| store.read_at(&object, 0, len as usize, &mut bytes));
    while read.is_ok()
        && index < bytes.len()
        && let Ok(len) = zstd_safe::find_frame_compressed_size(&bytes[index..])
    {
        let stored = bytes[index..index + len].to_vec();
        match ManifestPage::decode(&stored) {
            Ok(page) => {
                // A repair has added pages: the lists are older.
                lists = None;
                found.push((index as u64, stored, page));
            }
            Err(_) => match Lists::of_page(&stored) {
                Ok(found) => lists = Some((index as u64, stored, found)),
                Err(_) => is_whole = false,
            },
        }
        index += len;
    }
    FoundManifest {
        pages: found,
        lists,
        is_whole: is_whole && index > 0 && index == bytes.len(),
    }
}

/// Returns the missing segments with a number below that of an existing one.
fn gaps(numbers: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let is_there: HashSet<_> = numbers.iter().copied().collect();
    let mut last: BTreeMap<u32, u32> = BTreeMap::new();
    for (stream, number) in numbers.iter().copied() {
        let last = last.entry(stream).or_default();
        *last = number.max(*last);
    }
    let streams = 1..=last.keys().last().copied().unwrap_or(0).min(MOST);
    let all = streams.flat_map(|stream| {
        (1..=last.get(&stream).copied().unwrap_or(1).min(MOST)).map(move |n| (stream, n))
    });
    all.filter(|id| !is_there.contains(id)).collect()
}

/// Records the unknown facts in the root itself.
fn forget_nothing(root: &mut Root, is_incremental: bool, notes: &mut Vec<String>) {
    let lost = "the root was lost and rebuilt: host, paths, tags and figures are unknown";
    root.tags.insert("rebuilt".to_owned(), lost.to_owned());
    notes.push("host, paths, tags and figures of the run are unknown".to_owned());
    let others: Vec<String> = root
        .referenced_backups()
        .into_iter()
        .map(str::to_owned)
        .collect();
    // A page of lists names all pages.
    if root.lists_at.is_none() && (is_incremental || !others.is_empty()) {
        unnamed_losses::record_root_loss(root);
        notes.push("it referred to other backups: entries that it shared with them by whole pages are lost".to_owned());
    }
    root.bases = others;
}
