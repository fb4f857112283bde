//! Computes the totals of a rebuilt root from its pages: places, references, and counts.

use super::found_page::FoundPage;
use fullbore_format::{
    digest::{Algorithm, Digest, hex},
    entry::{self, EntryKind},
    page::{EntryState, ManifestPage, Record},
    root::{BackupTotals, EntryName, MAX_NOT_CAPTURED, NotCaptured, PageAt, Root, Segment},
    sizes,
};
use fullbore_pipeline::liveness::References;

/// Small backups have small frames only, but a backup cannot use a smaller limit than this.
const LEAST_FRAME_BYTES: u64 = 64 << 10;

/// Fills in the facts of the root that follow from its pages.
pub(crate) fn describe(root: &mut Root, found: &[FoundPage], placed: &[u64]) {
    let mut references = References::default();
    let mut last: Option<(u32, bool, entry::EntryPath)> = None;
    root.options.digest = Algorithm::None;
    for (found, offset) in found.iter().zip(placed) {
        let Some(first) = found.page.records.first() else {
            continue;
        };
        // Only late entries are out of order in a stream.
        let late = last.as_ref().is_some_and(|(stream, late, path)| {
            *stream == found.stream && (*late || entry::order(path, &first.entry.path).is_gt())
        });
        root.pages.push(page_at(found, *offset, late));
        for record in &found.page.records {
            count(root, record);
            for extent in &record.extents {
                let number =
                    references.number_of(&found.page.segments[extent.frame.segment as usize]);
                references.count(number, record, extent);
            }
        }
        last = found
            .page
            .records
            .last()
            .map(|record| (found.stream, late, record.entry.path.clone()));
    }
    add_sizes(root);
    root.liveness = root.segments.iter().map(Segment::fully_live).collect();
    let mut others = references.all();
    others.retain(|other| root.liveness.iter().all(|own| own.id() != other.id()));
    root.liveness.extend(others);
}

/// Fills in the facts of a root with known lists that follow from the records of its pages.
pub(crate) fn describe_listed(root: &mut Root, pages: &[ManifestPage]) {
    root.options.digest = Algorithm::None;
    for record in pages.iter().flat_map(|page| &page.records) {
        count(root, record);
    }
    add_sizes(root);
}

/// Returns the root's entry of a page with this place in the manifest.
fn page_at(found: &FoundPage, manifest_offset: u64, late: bool) -> PageAt {
    let first = found.page.records.first();
    PageAt {
        backup: String::new(),
        stream: found.stream,
        late,
        first: EntryName(first.map_or_else(Vec::new, |first| first.entry.path.clone())),
        entries: found.page.records.len() as u64,
        manifest_offset: Some(manifest_offset),
        segment: if found.is_copied { found.segment } else { 0 },
        offset: if found.is_copied { found.offset } else { 0 },
        bytes: found.stored.len() as u64,
        digest: hex(blake3::hash(&found.stored).as_bytes()),
    }
}

/// Fills in the sizes of segments and pages, and the sizes of frames and blocks if they are
/// unknown.
fn add_sizes(root: &mut Root) {
    let segments = root.segments.iter().map(|segment| segment.bytes);
    let own = root.pages.iter().filter(|page| page.backup.is_empty());
    let pages = own.map(|page| page.bytes);
    root.totals.stored_bytes = sizes::sum(segments.chain(pages));
    root.totals.plain_bytes = sizes::sum(root.segments.iter().map(|segment| segment.plain_bytes));
    let options = &mut root.options;
    options.frame_bytes = options.frame_bytes.next_power_of_two();
    if options.block_bytes == 0 {
        options.block_bytes = options.frame_bytes.min(1 << 20);
    }
    options.frame_bytes = options
        .frame_bytes
        .max(options.block_bytes)
        .max(LEAST_FRAME_BYTES);
}

/// Returns the block size of a file from its record: the power of two that divides its data into
/// this many blocks.
fn block_of(record: &Record) -> Option<u64> {
    let (blocks, data) = (record.blocks.len() as u64, record.entry.data_len());
    let part = record.described_bytes();
    let is_whole = record.from == 0 && !record.more && blocks > 1 && part == data;
    is_whole
        .then(|| {
            (10..31)
                .map(|power| 1u64 << power)
                .find(|block| data.div_ceil(*block) == blocks)
        })
        .flatten()
}

fn count(root: &mut Root, record: &Record) {
    root.options.block_bytes = block_of(record).unwrap_or(root.options.block_bytes);
    match record.digest {
        Some(Digest::Blake3(_)) => root.options.digest = Algorithm::Blake3,
        Some(Digest::Crc32c(_)) => root.options.digest = Algorithm::Crc32c,
        None => {}
    }
    if record.more {
        return; // the last part of the file has its state
    }
    let totals: &mut BackupTotals = &mut root.totals;
    totals.entries += 1;
    match record.entry.kind {
        EntryKind::File { .. } if !record.state.is_stored() => {}
        EntryKind::File { size, .. } => {
            totals.files += 1;
            sizes::add(&mut totals.bytes, size);
        }
        EntryKind::Directory => totals.directories += 1,
        _ => {}
    }
    let (counter, reason) = match &record.state {
        EntryState::Whole => return,
        EntryState::Changed => (&mut totals.changed, "changed while it was read"),
        EntryState::Unreadable(reason) => (&mut totals.unreadable, &reason[..]),
        EntryState::Vanished => (&mut totals.vanished, "vanished before it was read"),
        EntryState::Noted => (&mut totals.sockets, "sockets are not stored"),
        EntryState::BadPages(_) => (
            &mut totals.bad_pages,
            "it is stored, but page checksums are wrong",
        ),
    };
    *counter += 1;
    if root.not_captured.len() < MAX_NOT_CAPTURED {
        let path = EntryName(record.entry.path.clone());
        root.not_captured.push(NotCaptured {
            path,
            reason: reason.to_owned(),
        });
    }
}
