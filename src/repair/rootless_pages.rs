//! What no page of a backup without a root describes, from the headers of its tar.

use super::{
    UNKNOWN,
    frame_index::{Index, Stretch},
    pages::{pieces, unreadable},
    root::FoundPage,
    tar_scan::{Recovered, Tar},
    totals::block_of,
};
use crate::{
    archive::object::DirectoryObjects,
    error::Result,
    format::{
        digest::{Algorithm, Digest},
        page::{ManifestPage, SegmentId},
        root::Root,
        segment::SERVICE_HEADER_BYTES,
    },
    stage::codec::Codec,
    text::counted,
};
use std::collections::HashSet;

/// The smallest block that can be digested by itself.
const MIN_BLOCK_BYTES: u64 = 1 << 10;
/// The largest block of a file.
const MAX_BLOCK_BYTES: u64 = 1 << 20;

/// Add what is found to `found`; gives what is not known of it, in words, and whether all of the tar could be read.
///
/// # Errors
/// If a page cannot be encoded.
pub(crate) fn add(
    store: &DirectoryObjects,
    codec: Codec,
    segments: &[(u32, u32)],
    root: &mut Root,
    found: &mut Vec<FoundPage>,
) -> Result<(Vec<String>, bool)> {
    let indices: Vec<_> = segments
        .iter()
        .filter_map(|at| Some((*at, Index::read(store, codec, &id(*at)).ok()?)))
        .collect();
    let (algorithm, block_bytes) = (algorithm(found), block_bytes(root, found, &indices));
    let (mut notes, mut count, mut is_all) = (Vec::new(), 0, indices.len() == segments.len());
    for ((stream, number), index) in &indices {
        let wanted = undescribed(index, (*stream, *number), found);
        if wanted.is_empty() {
            continue;
        }
        let tar = Tar {
            store,
            codec,
            id: id((*stream, *number)),
            format: root.format,
            algorithm,
            block_bytes,
        };
        let Recovered {
            pages,
            pieces: parts,
            damage,
        } = tar.recover(index, &wanted)?;
        notes.extend((parts > 0).then(|| pieces(parts)));
        is_all &= damage.is_none();
        notes.extend(damage.iter().map(unreadable));
        for (offset, stored) in pages
            .into_iter()
            .flat_map(|(at, pages)| pages.into_iter().map(move |page| (at, page)))
        {
            let page = ManifestPage::decode(&stored)?;
            let (stream, segment) = (*stream, *number);
            found.push(FoundPage {
                stream,
                segment,
                offset,
                order: offset,
                stored,
                page,
                is_copied: false,
            });
            count += 1;
        }
    }
    if count > 0 {
        root.options.block_bytes = block_bytes;
        notes.push(format!(
            "{} made anew from the headers of the tar; {UNKNOWN}",
            counted(count, "page")
        ));
    }
    Ok((notes, is_all))
}

fn id((stream, number): (u32, u32)) -> SegmentId {
    SegmentId {
        backup: String::new(),
        stream,
        number,
    }
}

/// Stretches of a segment of which no page is there. Of one that is in the manifest only it is told by its frames, or by its
/// length if it speaks of none here.
fn undescribed(index: &Index, at: (u32, u32), found: &[FoundPage]) -> HashSet<Stretch> {
    let of_this = |found: &&FoundPage| (found.stream, found.segment) == at;
    let mut all: HashSet<Stretch> = index.data.iter().map(|frame| frame.0).collect();
    for found in found {
        let own = found
            .page
            .records
            .iter()
            .flat_map(|record| &record.extents)
            .filter(|extent| {
                let segment = &found.page.segments[extent.frame.segment as usize];
                segment.backup.is_empty() && (segment.stream, segment.number) == at
            });
        let stretches: HashSet<Stretch> = own
            .filter_map(|extent| index.stretch(extent.frame.offset))
            .collect();
        all.retain(|stretch| !stretches.contains(stretch));
    }
    for found in found.iter().filter(of_this) {
        all.remove(&found.offset);
        let header = SERVICE_HEADER_BYTES as u64;
        let is_its =
            |service: &&(u64, u32)| u64::from(service.1) == found.stored.len() as u64 + header;
        if found.offset == 0
            && found
                .page
                .records
                .iter()
                .all(|record| record.extents.is_empty())
        {
            let its: HashSet<Stretch> = index
                .service
                .iter()
                .filter(is_its)
                .map(|service| service.0 + header)
                .collect();
            all.retain(|stretch| !its.contains(stretch));
        }
    }
    all
}

/// The digest that pages have which are there.
fn algorithm(found: &[FoundPage]) -> Algorithm {
    let mut files = found
        .iter()
        .flat_map(|found| &found.page.records)
        .filter(|record| !record.extents.is_empty());
    match files.find_map(|record| record.digest) {
        Some(Digest::Crc32c(_)) => Algorithm::Crc32c,
        _ => Algorithm::Blake3,
    }
}

/// The length of blocks that pages have which are there; or the largest by which the pieces of large files can be digested:
/// each of them but the last is a frame of a length that is a power of two, if it is one.
fn block_bytes(root: &Root, found: &[FoundPage], indices: &[((u32, u32), Index)]) -> u64 {
    let known = found
        .iter()
        .flat_map(|found| &found.page.records)
        .find_map(block_of);
    let lens = || {
        indices
            .iter()
            .flat_map(|(_, index)| &index.data)
            .map(|frame| u64::from(frame.3))
    };
    let pieces = lens()
        .filter(|len| len.is_power_of_two() && *len >= MIN_BLOCK_BYTES)
        .max();
    let guess = pieces
        .unwrap_or(root.options.frame_bytes.next_power_of_two())
        .clamp(MIN_BLOCK_BYTES, MAX_BLOCK_BYTES);
    known.unwrap_or(guess)
}
