//! The files beside segments of gzip and plain tar, made again from what is known elsewhere.
//!
//! Their pages are in manifests. Where frames are is in the records; what no record speaks of is decoded to
//! see how much it is.

use crate::format::segment::FrameSpan;
use crate::{
    archive::{
        Archive,
        object::{ObjectName, ObjectReader},
        preview::Virtual,
    },
    format::{
        digest::hex,
        layout::{self, SIDE_SUFFIX},
        page::SegmentId,
        root::{FORMAT_ALONE, PageAt},
        segment::{Label, SERVICE_HEADER_BYTES, SeekTable, Service},
        sizes,
    },
    repo::inventory::{Inventory, KnownFrames, SegmentPlace, full, known_frames},
    report::damage::Report,
    stage::codec::Codec,
    verify::seek_tables::{self, SegmentFrames, Table},
};
use flate2::{Decompress, FlushDecompress};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Bytes of the header of a member of gzip, and of what follows its last frame.
const GZIP_AROUND_BYTES: u32 = 10;
/// So many bytes of which no record speaks make one frame at most; gzip cannot be cut there but where a frame ends.
const BETWEEN_BYTES: u64 = 32 << 20;
/// Bytes between two pages beside a segment that may be larger than the segment.
const MAX_GAP: u64 = 64 << 20;

/// A file beside a segment that is to be written again.
pub(crate) struct MadeSideFile {
    pub(crate) backup: String,
    /// The directory of that backup.
    pub(crate) dir: PathBuf,
    pub(crate) name: String,
    /// `None` if it cannot be made.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// The files that are missing or damaged, for the repository with this id.
pub(crate) fn lacking(repository: &Path, id: &str, stock: &Inventory) -> Vec<MadeSideFile> {
    let places: Vec<(&SegmentPlace, Option<Table>)> = stock
        .segments
        .iter()
        .filter_map(|place| Some((place, lack(stock, place)?)))
        .collect();
    let wanted = || {
        places
            .iter()
            .filter(|(_, table)| table.is_none())
            .map(|(place, _)| place.id.clone())
    };
    let mut known = known_frames(&stock.archives, wanted());
    // What nobody refers to any more its own backup still knows.
    let forgotten: BTreeSet<String> = wanted().map(|id| id.backup).collect();
    let own = |id: &String| {
        Virtual::open(repository, &KnownFrames::read(repository, id)?.0.root, &[]).ok()
    };
    let own: Vec<Archive> = forgotten.iter().filter_map(own).collect();
    for (id, frames) in known_frames(&own, wanted()) {
        known.entry(id).or_default().extend(frames);
    }
    let made = |(place, table): (&SegmentPlace, Option<Table>)| {
        let SegmentId {
            backup,
            stream,
            number,
        } = &place.id;
        let name = layout::segment(
            *stream,
            *number,
            stock.archives[place.archive].codec.suffix(),
        ) + SIDE_SUFFIX;
        let bytes = made(id, stock, place, table, known.get(&place.id));
        MadeSideFile {
            backup: backup.clone(),
            dir: repository.join(layout::BACKUPS).join(backup),
            name,
            bytes,
        }
    };
    places.into_iter().map(made).collect()
}

/// Is the file beside a segment missing or damaged? Then its table, if that is whole.
fn lack(stock: &Inventory, place: &SegmentPlace) -> Option<Option<Table>> {
    let archive = &stock.archives[place.archive];
    if archive.codec.skips() || !place.ended || !place.beside {
        return None;
    }
    match seek_tables::read(archive, place, false, &Report::new(true)).ok()? {
        SegmentFrames::Within(_) => Some(None),
        SegmentFrames::Table(table) => {
            let is_damaged = |(archive, at): (&Archive, &PageAt)| {
                let copy = (ObjectName::Side(place.id.clone()), at.offset);
                archive
                    .read_copy(at, &copy)
                    .is_err_and(|error| error.kind.is_loss())
                    && archive.read_page(at).is_ok()
            };
            sheets(stock, &place.id)
                .any(is_damaged)
                .then_some(Some(table))
        }
    }
}

/// Label, pages where roots say that they are, seek table. `None` if the segment is not what is known of it.
fn made(
    repository: &str,
    stock: &Inventory,
    place: &SegmentPlace,
    table: Option<Table>,
    known: Option<&BTreeSet<FrameSpan>>,
) -> Option<Vec<u8>> {
    let (
        archive,
        SegmentId {
            backup,
            stream,
            number,
        },
    ) = (&stock.archives[place.archive], &place.id);
    let label = Label {
        format: place.format.unwrap_or(FORMAT_ALONE),
        repository: repository.to_owned(),
        backup: backup.clone(),
        stream: *stream,
        number: *number,
        codec: archive.codec.name().to_owned(),
    };
    let mut bytes = label.frame();
    for (offset, page) in pages(stock, &place.id) {
        // What no backup refers to any more leaves its place to a page that is none.
        let gap = offset
            .checked_sub(SERVICE_HEADER_BYTES as u64)?
            .checked_sub(bytes.len() as u64)?;
        // Pages of all that is in a segment are less than it; a forged root may say anything.
        if gap > place.bytes.max(MAX_GAP) || gap > u32::MAX.into() {
            return None;
        }
        if gap > 0 {
            bytes.extend(
                Service::Page.frame(&vec![0; (gap as usize).checked_sub(SERVICE_HEADER_BYTES)?]),
            );
        }
        bytes.extend(Service::Page.frame(&page));
    }
    let object = ObjectName::Segment(place.id.clone());
    let frames = match (table, known) {
        (Some(table), _) => table
            .into_iter()
            .map(|(_, stored, plain)| (stored, plain))
            .collect(),
        (None, known) => all_frames(archive.store(), archive.codec, &object, place.bytes, known?)?,
    };
    let plain_bytes = sizes::sum(frames.iter().map(|(_, plain)| u64::from(*plain)));
    let mut table = SeekTable::default();
    frames
        .iter()
        .for_each(|(stored, plain)| table.push(*stored as usize, *plain as usize));
    bytes.extend(table.frame());
    (place.plain_bytes.is_none_or(|wanted| wanted == plain_bytes)).then_some(bytes)
}

/// The pages that are beside a segment, by their offsets; of one of which no copy is whole, nothing in its place.
fn pages(stock: &Inventory, id: &SegmentId) -> Vec<(u64, Vec<u8>)> {
    let read = |(archive, at): (&Archive, &PageAt)| {
        let stored = archive.copies(at).into_iter().find_map(|(object, offset)| {
            let mut stored = Vec::new();
            archive
                .store()
                .read_at(&object, offset, at.bytes as usize, &mut stored)
                .ok()?;
            (hex(blake3::hash(&stored).as_bytes()) == at.digest).then_some(stored)
        });
        (
            at.offset,
            stored.unwrap_or_else(|| vec![0; at.bytes as usize]),
        )
    };
    let mut found: Vec<_> = sheets(stock, id).map(read).collect();
    found.sort();
    found
}

/// Where these pages are.
fn sheets<'a>(
    stock: &'a Inventory,
    id: &'a SegmentId,
) -> impl Iterator<Item = (&'a Archive, &'a PageAt)> {
    let places = stock
        .sheets
        .iter()
        .map(|sheet| (&stock.archives[sheet.at.0], stock.page_at(sheet)));
    places.filter(move |(archive, at)| {
        let of = SegmentId {
            backup: at.backup.clone(),
            stream: at.stream,
            number: at.segment,
        };
        full(archive, &of) == *id
    })
}

/// Stored and plain bytes of all frames of a segment of `len` bytes, of which some are known.
fn all_frames(
    store: &dyn ObjectReader,
    codec: Codec,
    object: &ObjectName,
    len: u64,
    known: &BTreeSet<FrameSpan>,
) -> Option<Vec<(u32, u32)>> {
    // A segment of gzip is one member, of which neither header nor trailer is part of the tar.
    let around = if codec == Codec::None {
        0
    } else {
        GZIP_AROUND_BYTES
    };
    let end = len.checked_sub(around.into())?;
    let read = |from: u64, len: u64| {
        let (mut bytes, is_small) = (Vec::new(), len <= BETWEEN_BYTES);
        is_small.then(|| store.read_at(object, from, len as usize, &mut bytes).ok())??;
        Some(bytes)
    };
    let (mut frames, mut at) = (vec![(around, 0)], u64::from(around));
    for (offset, stored, plain) in known.iter().copied().chain([(end, 0, 0)]) {
        while at < offset {
            let (stored, plain) = match codec {
                Codec::None => [(offset - at).min(BETWEEN_BYTES); 2].into(),
                _ => (offset - at, inflated_len(&read(at, offset - at)?)?),
            };
            frames.push((stored as u32, plain as u32));
            at += stored;
        }
        frames.push((stored, plain));
        at += u64::from(stored);
    }
    frames.push((around, 0));
    frames.retain(|(stored, _)| *stored > 0);
    (at == end).then_some(frames)
}

/// How much comes out of frames of gzip, one after the other.
fn inflated_len(stored: &[u8]) -> Option<u64> {
    let (mut inflate, mut out, mut len) = (Decompress::new(false), vec![0; 1 << 16], 0);
    while len < BETWEEN_BYTES {
        let rest = &stored[inflate.total_in() as usize..];
        inflate
            .decompress(rest, &mut out, FlushDecompress::None)
            .ok()?;
        let more = inflate.total_out() - len;
        len += more;
        if more < out.len() as u64 {
            return (inflate.total_in() == stored.len() as u64).then_some(len);
        }
    }
    None
}
