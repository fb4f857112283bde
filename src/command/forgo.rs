//! A backup without what nothing can restore: the files are in its manifest still, as not captured.
//!
//! Pages that speak of lost files are written anew, behind the others in the backup's own manifest: other backups may refer to
//! those that are there. They have no copy in a segment, as no segment is ever changed.

use super::{blame::Loss, stock::full};
use crate::{
    error::Result,
    format::{
        digest::hex,
        entry::{Kind, Path as EntryPath},
        page::{Page, Record, SegmentId, State},
        root::{MAX_NOT_CAPTURED, Name, NotCaptured, PageAt, Root},
    },
    source::{archive::Archive, store::Object},
};
use std::collections::HashSet;

/// What is said of a file.
const REASON: &str = "it was backed up, and lost by damage to the repository";

/// What is left of a backup.
pub(super) struct Rest {
    pub(super) root: Root,
    /// Pages that are to be added to its manifest.
    pub(super) added: Vec<(u64, Vec<u8>)>,
}

/// The backup without `loss` and without the segments that are `missing`.
///
/// # Errors
/// If a page cannot be encoded.
pub(super) fn forgo(archive: &Archive, loss: Option<&Loss>, missing: &HashSet<SegmentId>) -> Result<Rest> {
    let files: HashSet<&EntryPath> = loss.iter().flat_map(|loss| &loss.files).collect();
    let mut rest = Rest { root: archive.root.clone(), added: Vec::new() };
    let root = &mut rest.root;
    let mut end = archive
        .root
        .pages
        .iter()
        .filter(|page| page.backup.is_empty())
        .fold(0, |end, page| page.manifest_offset.map_or(end, |offset| end.max(offset + page.bytes)));
    // Others may refer to pages that this backup does not have any more.
    end = end.max(archive.store().len(&Object::Manifest(String::new())).unwrap_or(0));
    root.pages.clear();
    for at in &archive.root.pages {
        let page = archive.copies(at).iter().find_map(|copy| archive.read_copy(at, copy).ok());
        let Some(page) = page else {
            note(
                root,
                &at.first.0,
                format!("{} entries from here on were lost with a page of the manifest", at.entries),
                at.entries,
            );
            continue;
        };
        if !page.records.iter().any(|record| files.contains(&record.entry.path)) {
            root.pages.push(without_copy(archive, at.clone(), missing));
            continue;
        }
        let page = without(root, page, &files);
        if let Some(first) = page.records.first() {
            let stored = page.encode()?;
            let (first, entries) = (Name(first.entry.path.clone()), page.records.len() as u64);
            let (bytes, digest) = (stored.len() as u64, hex(blake3::hash(&stored).as_bytes()));
            let place =
                PageAt { backup: String::new(), manifest_offset: Some(end), segment: 0, offset: 0, ..at.clone() };
            root.pages.push(PageAt { first, entries, bytes, digest, ..place });
            rest.added.push((end, stored));
            end += bytes;
        }
    }
    root.segments.retain(|segment| {
        let id = SegmentId { backup: archive.root.id.clone(), stream: segment.stream, number: segment.number };
        !missing.contains(&id)
    });
    root.liveness.retain(|live| !missing.contains(&full(archive, &live.id())));
    Ok(rest)
}

/// A copy that was in a segment that is gone is not looked for any more.
fn without_copy(archive: &Archive, at: PageAt, missing: &HashSet<SegmentId>) -> PageAt {
    let id = full(archive, &SegmentId { backup: at.backup.clone(), stream: at.stream, number: at.segment });
    if missing.contains(&id) { PageAt { segment: 0, offset: 0, ..at } } else { at }
}

/// The records of a page, those of lost files without content. Later parts of a large file are left out.
fn without(root: &mut Root, page: Page, files: &HashSet<&EntryPath>) -> Page {
    let mut records = Vec::with_capacity(page.records.len());
    for mut record in page.records {
        if !files.contains(&record.entry.path) {
            records.push(record);
        } else if record.from == 0 {
            root.totals.bytes -= record.entry.size().min(root.totals.bytes);
            note(root, &record.entry.path, REASON.to_owned(), 1);
            if let Kind::File { size, map } = &mut record.entry.kind {
                (*size, *map) = (0, None);
            }
            records.push(Record {
                entry: record.entry,
                state: State::Unreadable(REASON.to_owned()),
                ..Record::default()
            });
        }
    }
    Page { records, ..page }
}

fn note(root: &mut Root, path: &[u8], reason: String, entries: u64) {
    root.totals.unreadable += entries;
    if root.not_captured.len() < MAX_NOT_CAPTURED {
        root.not_captured.push(NotCaptured { path: Name(path.to_vec()), reason });
    }
}
