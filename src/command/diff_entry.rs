//! How one entry differs between two backups.

use crate::{
    error::Result,
    format::{
        digest::Digest,
        entry::{self, Entry, EntryKind},
        page::{BLOCK_DIGEST_BYTES, PageItem},
        root::Root,
        sizes,
    },
};
use std::{collections::HashMap, iter::Peekable};

/// The records of one entry: several, if it goes on over pages. Of these the first may be missing, where both backups share it.
pub(super) type Parts = Vec<PageItem>;

/// Groups records by their entries.
pub(super) struct DiffEntries<I: Iterator>(pub(super) Peekable<I>);

impl<I: Iterator<Item = Result<PageItem>>> Iterator for DiffEntries<I> {
    type Item = Result<Parts>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut parts = match self.0.next()? {
            Ok(item) => vec![item],
            Err(error) => return Some(Err(error)),
        };
        let follows = |parts: &Parts, next: &PageItem| {
            let last = last(parts);
            last.more && next.from > 0 && next.entry.path == last.entry.path
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

/// The part that has what is known only at the end.
pub(super) fn last(parts: &Parts) -> &PageItem {
    &parts[parts.len() - 1]
}

/// What differs, in words. Of directories the time is not looked at: it follows from what was added and removed.
pub(super) fn what(a: &Parts, b: &Parts) -> Vec<&'static str> {
    let (a, b) = (last(a), last(b));
    let (was, is) = (&a.entry, &b.entry);
    let kind = std::mem::discriminant(&was.kind) != std::mem::discriminant(&is.kind);
    let captured = a.state.is_stored() != b.state.is_stored();
    [
        (kind, "kind"),
        (captured, "captured"),
        (!kind && !is.is_file() && was.kind != is.kind, "target"),
        (!kind && is.is_file() && !same_content(a, b), "content"),
        (was.mode != is.mode, "mode"),
        (was.owner != is.owner, "owner"),
        (
            was.mtime != is.mtime && is.kind != EntryKind::Directory,
            "mtime",
        ),
        (!entry::same_xattrs(&was.xattrs, &is.xattrs), "attributes"),
    ]
    .into_iter()
    .filter_map(|(differs, what)| differs.then_some(what))
    .collect()
}

/// Where nothing was digested, as a backup would judge: a file with the same times and the same inode was not changed.
fn same_content(a: &PageItem, b: &PageItem) -> bool {
    let looks = |entry: &Entry| (entry.mtime, entry.ctime, entry.inode);
    let digests = match (a.digest, b.digest) {
        (Some(was), Some(is)) if is_alike(was, is) => was == is,
        _ => looks(&a.entry) == looks(&b.entry),
    };
    a.entry.kind == b.entry.kind && digests
}

/// Are they digests of one algorithm?
fn is_alike(a: Digest, b: Digest) -> bool {
    std::mem::discriminant(&a) == std::mem::discriminant(&b)
}

/// Bytes of the new content that the old one does not have at the same place, as far as blocks and extents tell.
pub(super) fn differing_bytes(a: (&Root, &Parts), b: (&Root, &Parts)) -> u64 {
    let (was, is) = (last(a.1), last(b.1));
    if !is.entry.is_file() || (was.entry.is_file() && same_content(was, is)) {
        return 0;
    }
    let all = sizes::sum(b.1.iter().map(|part| part.described_bytes()));
    if map(&was.entry) != map(&is.entry) {
        return all;
    }
    let (options, others) = (&a.0.options, &b.0.options);
    let alike = (options.block_bytes, options.digest) == (others.block_bytes, others.digest);
    let same = same_places(a, b).max(if alike {
        same_blocks(a.1, b.1, options.block_bytes)
    } else {
        0
    });
    all.saturating_sub(same)
}

/// Where the data of a sparse file is. Digests leave the holes out: other holes put every block elsewhere.
fn map(entry: &Entry) -> Option<&[crate::format::entry::ByteRun]> {
    match &entry.kind {
        EntryKind::File { map, .. } => map.as_deref(),
        _ => None,
    }
}

/// Bytes that both backups read from the same place.
fn same_places((a, was): (&Root, &Parts), (b, is): (&Root, &Parts)) -> u64 {
    let before: HashMap<_, _> = places(a, was).collect();
    let same = places(b, is).filter(|(at, place)| before.get(at) == Some(place));
    sizes::sum(same.map(|(_, (.., len))| u64::from(len)))
}

/// Backup, stream, number, offset of the frame, bytes in it before, length.
type RecordPlace<'a> = (&'a str, u32, u32, u64, u32, u32);

/// Where the data is, by the bytes of it that are before.
fn places<'a>(root: &'a Root, parts: &'a Parts) -> impl Iterator<Item = (u64, RecordPlace<'a>)> {
    parts.iter().flat_map(move |part| {
        let mut at = part.from;
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
            at += u64::from(extent.len);
            (at - u64::from(extent.len), place)
        })
    })
}

/// Bytes of the new content in blocks that have the digest of the old one there.
fn same_blocks(was: &Parts, is: &Parts, block: u64) -> u64 {
    let before: HashMap<_, _> = blocks(was, block).collect();
    let len = last(is).entry.data_len();
    let same = blocks(is, block).filter(|(number, digest)| before.get(number) == Some(digest));
    sizes::sum(same.map(|(number, _)| block.min(len.saturating_sub(number * block))))
}

/// The digests that are known, by the numbers of their blocks.
fn blocks(parts: &Parts, block: u64) -> impl Iterator<Item = (u64, &[u8; BLOCK_DIGEST_BYTES])> {
    parts.iter().flat_map(move |part| {
        let first = part.from / block.max(1);
        (0..part.blocks.len()).filter_map(move |at| Some((first + at as u64, part.block(at)?)))
    })
}
