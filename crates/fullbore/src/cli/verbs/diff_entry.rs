//! The differences of one entry between two backups.

use fullbore_format::{
    digest::Digest,
    entry::{Entry, EntryKind},
    entry_difference::difference,
    error::Result,
    page::{BLOCK_DIGEST_BYTES, PageItem},
    root::Root,
    sizes,
};
use std::{collections::HashMap, iter::Peekable};

/// The records of one entry; several if it spans pages. The first may be missing if both backups
/// share its page.
pub(super) type Parts = Vec<PageItem>;

/// Groups records by entry.
pub(super) struct DiffEntries<I: Iterator>(pub(super) Peekable<I>);

impl<I: Iterator<Item = Result<PageItem>>> Iterator for DiffEntries<I> {
    type Item = Result<Parts>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut parts = match self.0.next()? {
            Ok(item) => vec![item],
            Err(error) => return Some(Err(error)),
        };
        while let Some(Ok(next)) = self
            .0
            .next_if(|next| next.as_ref().is_ok_and(|next| follows(&parts, next)))
        {
            parts.push(next);
        }
        Some(Ok(parts))
    }
}

fn follows(parts: &Parts, next: &PageItem) -> bool {
    let last = last(parts);
    last.more && next.from > 0 && next.entry.path == last.entry.path
}

/// Returns the last part, which has the facts known only at the end of the entry.
pub(super) fn last(parts: &Parts) -> &PageItem {
    &parts[parts.len() - 1]
}

/// Lists the properties that differ. The time of a directory is ignored, because it follows from
/// added and removed entries.
pub(super) fn differing_properties(a: &Parts, b: &Parts) -> Vec<&'static str> {
    let a = last(a);
    let b = last(b);
    let was = &a.entry;
    let is = &b.entry;
    let found = difference(was, is);
    let captured = a.state.is_stored() != b.state.is_stored();
    [
        (found.kind, "kind"),
        (captured, "captured"),
        (found.target, "target"),
        (
            !found.kind && is.is_file() && !same_content(a, b),
            "content",
        ),
        (found.mode, "mode"),
        (found.owner, "owner"),
        (found.mtime && is.kind != EntryKind::Directory, "mtime"),
        (found.attributes, "attributes"),
    ]
    .into_iter()
    .filter_map(|(differs, word)| differs.then_some(word))
    .collect()
}

/// Compares content. Without digests, a file with the same times and inode counts as unchanged, as
/// in a backup.
fn same_content(a: &PageItem, b: &PageItem) -> bool {
    let looks = |entry: &Entry| (entry.mtime, entry.ctime, entry.inode);
    let digests = match (a.digest, b.digest) {
        (Some(was), Some(is)) if same_algorithm(was, is) => was == is,
        _ => looks(&a.entry) == looks(&b.entry),
    };
    a.entry.kind == b.entry.kind && digests
}

/// Returns whether both digests have the same algorithm.
fn same_algorithm(a: Digest, b: Digest) -> bool {
    std::mem::discriminant(&a) == std::mem::discriminant(&b)
}

/// Returns the bytes of the new content that the old content does not have at the same place, as
/// far as blocks and extents show.
pub(super) fn differing_bytes(a: (&Root, &Parts), b: (&Root, &Parts)) -> u64 {
    let was = last(a.1);
    let is = last(b.1);
    if !is.entry.is_file() || (was.entry.is_file() && same_content(was, is)) {
        return 0;
    }
    let all = sizes::sum(b.1.iter().map(|part| part.described_bytes()));
    if data_map(&was.entry) != data_map(&is.entry) {
        return all;
    }
    let options = &a.0.options;
    let others = &b.0.options;
    let alike = (options.block_bytes, options.digest) == (others.block_bytes, others.digest);
    let same = same_places(a, b).max(if alike {
        same_blocks(a.1, b.1, options.block_bytes)
    } else {
        0
    });
    all.saturating_sub(same)
}

/// Returns the data ranges of a sparse file. Digests skip the holes, so other holes shift every
/// block.
fn data_map(entry: &Entry) -> Option<&[fullbore_format::entry::ByteRun]> {
    match &entry.kind {
        EntryKind::File { map, .. } => map.as_deref(),
        _ => None,
    }
}

/// Returns the bytes that both backups read from the same place.
fn same_places((a, was): (&Root, &Parts), (b, is): (&Root, &Parts)) -> u64 {
    let before: HashMap<_, _> = places(a, was).collect();
    let same = places(b, is).filter(|(offset, place)| before.get(offset) == Some(place));
    sizes::sum(same.map(|(_, (.., len))| u64::from(len)))
}

/// Backup, stream, segment number, frame offset, offset in the frame, length.
type RecordPlace<'a> = (&'a str, u32, u32, u64, u32, u32);

/// Returns the places of the data, with the offset of each in the data of the file.
fn places<'a>(root: &'a Root, parts: &'a Parts) -> impl Iterator<Item = (u64, RecordPlace<'a>)> {
    parts.iter().flat_map(move |part| {
        let mut offset = part.from;
        part.extents.iter().map(move |extent| {
            let segment = part.segment(&extent.frame);
            let backup = if segment.backup.is_empty() {
                &root.id
            } else {
                &segment.backup
            };
            let place = (
                &backup[..],
                segment.stream,
                segment.number,
                extent.frame.offset,
                extent.inner,
                extent.len,
            );
            offset += u64::from(extent.len);
            (offset - u64::from(extent.len), place)
        })
    })
}

/// Returns the bytes of the new content in blocks with the same digest as the old block at that
/// place.
fn same_blocks(was: &Parts, is: &Parts, block: u64) -> u64 {
    let before: HashMap<_, _> = blocks(was, block).collect();
    let len = last(is).entry.data_len();
    let same = blocks(is, block).filter(|(number, digest)| before.get(number) == Some(digest));
    sizes::sum(same.map(|(number, _)| block.min(len.saturating_sub(number * block))))
}

/// Returns the known block digests with their block numbers.
fn blocks(parts: &Parts, block: u64) -> impl Iterator<Item = (u64, &[u8; BLOCK_DIGEST_BYTES])> {
    parts.iter().flat_map(move |part| {
        let first = part.from / block.max(1);
        (0..part.blocks.len())
            .filter_map(move |offset| Some((first + offset as u64, part.block(offset)?)))
    })
}
