//! A root from what it was about: labels, page copies, seek tables and the manifest.
//!
//! What only the root knew (host, paths, tags, figures of the run) is lost. So are references to whole pages of other
//! backups: a root that may have had some is marked as not complete. Checksums of stored parts are made anew, of what is
//! there now. Nothing is written here.

use super::{cluster_facts, cut_off, frame_index::Index, totals::describe};
use crate::archive::unnamed_losses;
use crate::{
    archive::{
        Archive,
        object::{BackupObjects, ObjectName, ObjectReader},
    },
    error::{Error, Result},
    format::{
        digest::{Crc64, hex},
        entry::order,
        layout,
        page::{ManifestPage, SegmentId},
        root::{BackupOptions, FORMAT, PART_BYTES, Root, Segment, SourceInfo},
        segment::{
            Label, SEEK_FOOTER_BYTES, SERVICE_HEADER_BYTES, Service, parse_seek_table,
            seek_table_len,
        },
        sizes,
    },
    repo::roots::files_of,
    stage::codec::Codec,
    storage::Objects,
    text::counted,
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

/// Higher numbers of streams and segments are not looked for.
const MOST: u32 = 1 << 16;

/// What was put together again.
pub(crate) struct Rebuilt {
    pub(crate) root: Root,
    /// Pages and where they are in the manifest.
    pub(crate) pages: Vec<(u64, Vec<u8>)>,
    /// What is lost for good.
    pub(crate) notes: Vec<String>,
}

/// A page that was found.
pub(crate) struct FoundPage {
    pub(crate) stream: u32,
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    /// Bytes of the segment before it, or before the page that stands before it in the manifest: where it belongs.
    pub(crate) order: u64,
    pub(crate) stored: Vec<u8>,
    pub(crate) page: ManifestPage,
    /// Is it in the segment too?
    pub(crate) is_copied: bool,
}

/// What the segments of a backup say of it.
struct Gathered {
    /// With facts of the segments, and the options that these tell.
    root: Root,
    found: Vec<FoundPage>,
    lost: Vec<LostPage>,
    /// Does a label say that it was compared with others?
    is_incremental: bool,
}

/// A copy of a page in a segment that cannot be read.
struct LostPage {
    /// Where it stands, in words.
    place: String,
    /// Stored bytes of its frame.
    frame_bytes: u64,
}

/// Has the manifest a page of that length of which no copy was found in a segment? Then it is that one.
fn is_in_manifest(lost: &LostPage, found: &[FoundPage]) -> bool {
    found.iter().any(|page| {
        let frame_bytes = (page.stored.len() + SERVICE_HEADER_BYTES) as u64;
        !page.is_copied && frame_bytes == lost.frame_bytes
    })
}

/// Rebuild the root of backup `id`; `others` are those whose roots may know where pages of it are.
///
/// # Errors
/// [`Kind::Corrupt`](crate::error::Kind::Corrupt) if nothing is left to rebuild it from.
pub(crate) fn rebuild(objects: &Arc<dyn Objects>, id: &str, others: &[Archive]) -> Result<Rebuilt> {
    let names = segments(&**objects, id)?;
    let codec = names
        .first()
        .map(|name| name.2)
        .ok_or_else(|| nothing(id))?;
    let store = BackupObjects::new(objects, id);
    store.set_suffix(codec.suffix());
    let root = Root {
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
    };
    let mut gathered = Gathered {
        root,
        found: Vec::new(),
        lost: Vec::new(),
        is_incremental: false,
    };
    let mut notes = Vec::new();
    // Behind what is damaged of a segment without a seek table there may have been more.
    let mut is_unsure = false;
    let numbers: Vec<(u32, u32)> = names
        .iter()
        .map(|(stream, number, _)| (*stream, *number))
        .collect();
    for (stream, number, _) in names {
        let at = (stream, number);
        match segment(&store, codec, at, &mut gathered) {
            Ok(segment) => gathered.root.segments.push(segment),
            Err(error) => {
                is_unsure = true;
                notes.push(error.line());
            }
        }
    }
    let Gathered {
        mut root,
        mut found,
        mut lost,
        is_incremental,
    } = gathered;
    let (in_manifest, is_whole) = manifest(&store);
    let known = known(id, others, in_manifest, &mut found);
    lost.retain(|page| !is_in_manifest(page, &found));
    if found.is_empty() {
        return Err(nothing(id).detail(notes.join("; ")));
    }
    let cut_off = cut_off::give_up(&mut found)?;
    if cut_off > 0 {
        notes.push(format!(
            "{} went on in pages of other backups, and cannot be restored",
            counted(cut_off as u64, "file")
        ));
    }
    let placed = place(&known, end(&store, id, others), &mut found);
    describe(&mut root, &found, &placed);
    forget_nothing(&mut root, is_incremental, &mut notes);
    let gaps = gaps(&numbers);
    if !is_whole && (!lost.is_empty() || !gaps.is_empty() || is_unsure) {
        unnamed_losses::record_segment_loss(&mut root);
        let pages = lost
            .iter()
            .map(|page| format!("the page at {} is lost with the entries in it", page.place));
        let gone = gaps
            .iter()
            .map(|(stream, number)| format!("segment {number} of stream {stream} is not there"));
        notes.extend(pages.chain(gone));
        notes.push("no page of the manifest says what is lost".to_owned());
    }
    let pages: Vec<_> = found
        .into_iter()
        .zip(&placed)
        .map(|(found, at)| (*at, found.stored))
        .collect();
    cluster_facts::add(objects, &mut root, &pages)?;
    Ok(Rebuilt { root, pages, notes })
}

/// The label of any segment of backup `id` that says which repository it is in.
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
        let index = Index::read(&store, codec, &segment).ok()?;
        let object = ObjectName::Segment(segment);
        let labels = index.service.into_iter().filter_map(|(_, at, _)| {
            let (service, payload) = service_frame(&store, &object, at).ok()??;
            Label::parse(&payload)
                .ok()
                .filter(|_| service == Service::Label)
        });
        { labels }.find(|label| label.backup == id && !label.repository.is_empty())
    })
}

fn nothing(id: &str) -> Error {
    Error::corrupt(format!("cannot rebuild backup {id:?}"))
        .because("no page of its manifest is left")
}

/// `2026-11-21T05:45:01Z` of an id that begins with `20261121T054501Z`.
fn time_of(id: &str) -> String {
    let part = |from: usize, to: usize| id.get(from..to).unwrap_or_default();
    let (day, time) = (
        (part(0, 4), part(4, 6), part(6, 8)),
        (part(9, 11), part(11, 13), part(13, 15)),
    );
    format!(
        "{}-{}-{}T{}:{}:{}Z",
        day.0, day.1, day.2, time.0, time.1, time.2
    )
}

/// Stream, number and codec of every segment of a backup, in order. zstd stands for frames of raw blocks too: a label tells.
fn segments(objects: &dyn Objects, id: &str) -> Result<Vec<(u32, u32, Codec)>> {
    let parsed = |name: &String| {
        let (stream, number) = layout::segment_numbers(name)?;
        let codecs = ["zstd", "lz4"].map(Codec::named);
        let codec = codecs
            .into_iter()
            .flatten()
            .find(|codec| name.ends_with(codec.suffix()))?;
        Some((stream, number, codec))
    };
    let files = files_of(objects, id)?;
    let mut found: Vec<_> = files.names().filter_map(parsed).collect();
    found.sort_by_key(|(stream, number, _)| (*stream, *number));
    Ok(found)
}

/// Facts of a segment; its pages and the sizes of its frames go to `gathered`.
fn segment(
    store: &BackupObjects,
    codec: Codec,
    (stream, number): (u32, u32),
    gathered: &mut Gathered,
) -> Result<Segment> {
    let id = SegmentId {
        backup: String::new(),
        stream,
        number,
    };
    let object = ObjectName::Segment(id.clone());
    let (bytes, parts) = sum(store, &object)?;
    let index = Index::read(store, codec, &id)?;
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
    for (at, offset, bytes) in &index.service {
        let is_known = service(store, &object, *offset, (stream, number), gathered)?;
        // The first two frames are an empty one, or one with data, and the label.
        if !is_known && *at > 1 {
            gathered.lost.push(LostPage {
                place: format!("byte {offset} of {}", store.name(&object)),
                frame_bytes: u64::from(*bytes),
            });
        }
    }
    if !index.has_table {
        // Like a segment of a backup that died: records speak of it, the root does not describe it.
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
    })
}

/// Length of a segment, and CRC-64 of each part of its stored bytes.
///
/// # Errors
/// The system's.
pub(crate) fn sum(store: &dyn ObjectReader, object: &ObjectName) -> Result<(u64, String)> {
    let len = store.len(object)?;
    let (mut parts, mut buffer) = (String::new(), Vec::new());
    let stored = store.sealing().stored_bytes(len);
    for from in (0..stored).step_by(PART_BYTES as usize) {
        let (mut crc, end) = (Crc64::default(), stored.min(from + PART_BYTES));
        for at in (from..end).step_by(1 << 20) {
            store.read_stored_at(object, at, (end - at).min(1 << 20) as usize, &mut buffer)?;
            crc.update(&buffer);
        }
        parts.push_str(&format!("{:016x}", crc.value().0));
    }
    Ok((len, parts))
}

/// Stored and plain bytes of every frame.
///
/// # Errors
/// [`Kind::Corrupt`](crate::error::Kind::Corrupt) if it cannot be read.
pub(crate) fn table(store: &dyn ObjectReader, object: &ObjectName) -> Result<Vec<(u32, u32)>> {
    let len = store.len(object)?;
    let damaged = || {
        Error::corrupt(format!(
            "the seek table of {} cannot be read",
            store.name(object)
        ))
    };
    let mut bytes = Vec::new();
    let footer = len
        .checked_sub(SEEK_FOOTER_BYTES as u64)
        .ok_or_else(damaged)?;
    store.read_at(object, footer, SEEK_FOOTER_BYTES, &mut bytes)?;
    let table_len = seek_table_len(&bytes, len).ok_or_else(damaged)?;
    store.read_at(object, len - table_len, table_len as usize, &mut bytes)?;
    parse_seek_table(&bytes).ok_or_else(damaged)
}

/// Take in the service frame at `at`. Gives whether it could be read, as what fills a place that was not needed can.
fn service(
    store: &BackupObjects,
    object: &ObjectName,
    at: u64,
    (stream, number): (u32, u32),
    gathered: &mut Gathered,
) -> Result<bool> {
    let Some((service, bytes)) = service_frame(store, object, at)? else {
        return is_filler(store, object, at);
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

/// Does the frame at byte `at` hold nothing? Then its tag is eight zeros.
fn is_filler(store: &BackupObjects, object: &ObjectName, at: u64) -> Result<bool> {
    let mut header = Vec::new();
    let there = store
        .len(object)?
        .saturating_sub(at)
        .min(SERVICE_HEADER_BYTES as u64);
    store.read_at(object, at, there as usize, &mut header)?;
    Ok(header.iter().skip(8).all(|byte| *byte == 0))
}

/// What the service frame at byte `at` is, and what it holds; `None` if none is there.
fn service_frame(
    store: &BackupObjects,
    object: &ObjectName,
    at: u64,
) -> Result<Option<(Service, Vec<u8>)>> {
    let mut bytes = Vec::new();
    let there = store
        .len(object)?
        .saturating_sub(at)
        .min(SERVICE_HEADER_BYTES as u64);
    store.read_at(object, at, there as usize, &mut bytes)?;
    let Some((service, len)) = Service::parse(&bytes) else {
        return Ok(None);
    };
    store.read_at(
        object,
        at + SERVICE_HEADER_BYTES as u64,
        len as usize,
        &mut bytes,
    )?;
    Ok(Some((service, bytes)))
}

/// Where pages are known to be in the manifest, by their digests: by what is left of it or by other roots. Pages that only
/// the manifest has are found there: their segment is gone, or a repair wrote them, behind those that they replace.
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

/// Add a page that only the manifest has, in place of those that speak of the same, or `behind` the one before it of its stream.
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
        ends(old).is_none_or(|(from, to)| order(from, last).is_gt() || order(to, first).is_lt())
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
            let before = behind
                .get(&segment.stream)
                .filter(|(number, _)| *number == segment.number);
            (
                segment.stream,
                segment.number,
                before.map_or(0, |(_, order)| *order),
                0,
            )
        });
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

/// The paths of the first and the last record.
fn ends(page: &ManifestPage) -> Option<(&[u8], &[u8])> {
    Some((
        &page.records.first()?.entry.path,
        &page.records.last()?.entry.path,
    ))
}

/// Where the manifest ends, as far as it is there or others refer to it. They may mean pages that nothing here speaks of any more.
fn end(store: &BackupObjects, id: &str, others: &[Archive]) -> u64 {
    let named = others
        .iter()
        .flat_map(|other| &other.root.pages)
        .filter(|page| page.backup == id);
    let ends = named.filter_map(|page| Some(page.manifest_offset?.saturating_add(page.bytes)));
    ends.max()
        .unwrap_or(0)
        .max(store.len(&ObjectName::Manifest(String::new())).unwrap_or(0))
}

/// Where each page is in the manifest, which has `least` bytes. Other backups may refer to it there: pages stay where they are known
/// to be; the others follow behind.
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
        .filter_map(|(found, at)| Some((*at)? + found.stored.len() as u64));
    let mut end = ends.max().unwrap_or(0).max(least);
    let placed = found.iter().zip(places).map(|(found, at)| {
        at.unwrap_or_else(|| {
            end += found.stored.len() as u64;
            end - found.stored.len() as u64
        })
    });
    placed.collect()
}

/// The pages of what is there of a manifest, one after the other as far as they can be read, and whether that is all of it.
fn manifest(store: &BackupObjects) -> (Vec<(u64, Vec<u8>, ManifestPage)>, bool) {
    let object = ObjectName::Manifest(String::new());
    let (mut bytes, mut found, mut at, mut is_whole) = (Vec::new(), Vec::new(), 0, true);
    let read = store
        .len(&object)
        .and_then(|len| store.read_at(&object, 0, len as usize, &mut bytes));
    while read.is_ok()
        && at < bytes.len()
        && let Ok(len) = zstd_safe::find_frame_compressed_size(&bytes[at..])
    {
        let stored = bytes[at..at + len].to_vec();
        match ManifestPage::decode(&stored) {
            Ok(page) => found.push((at as u64, stored, page)),
            Err(_) => is_whole = false,
        }
        at += len;
    }
    (found, is_whole && at > 0 && at == bytes.len())
}

/// The segments that were before others that are there, and are not there.
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

/// Say in the root itself what is not known any more.
fn forget_nothing(root: &mut Root, is_incremental: bool, notes: &mut Vec<String>) {
    let lost = "the root was lost and rebuilt: host, paths, tags and figures are unknown";
    root.tags.insert("rebuilt".to_owned(), lost.to_owned());
    notes.push("host, paths, tags and figures of the run are unknown".to_owned());
    let others: Vec<String> = root
        .referenced_backups()
        .into_iter()
        .map(str::to_owned)
        .collect();
    if is_incremental || !others.is_empty() {
        unnamed_losses::record_root_loss(root);
        notes.push("it referred to other backups: entries that it shared with them by whole pages are lost".to_owned());
    }
    root.bases = others;
}
