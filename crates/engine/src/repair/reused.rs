//! Lost files of a backup that get their content from another backup of the same source.
//!
//! No content is written. The record of the file keeps its metadata and its digest, and refers to the extents of the other backup, as
//! in an incremental backup. The digest is that of the lost content, so a restore notices any other content. A file that is
//! described in several records is only taken if both backups cut it at the same places.

use super::same_content::{ContentPart, SameContent, key_of};
use crate::verify::losses::EntryLoss;
use fullbore_format::{
    entry::EntryPath,
    error::quoted,
    page::{ManifestPage, PageItem, Record, SegmentId},
    root::{Live, Root},
};
use fullbore_pipeline::liveness::References;
use fullbore_repository::{
    archive::{Archive, Selection},
    inventory::{files, full},
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Content for lost files of one backup. Memory grows with their extents.
#[derive(Default)]
pub(crate) struct ReusedContent<'a> {
    files: HashMap<EntryPath, &'a [ContentPart]>,
    /// The backups that the content is taken from.
    pub(crate) bases: BTreeSet<String>,
    /// Lines about these files, in order.
    pub(crate) lines: Vec<String>,
    /// Where the content of other lost files is, in words: it cannot be referred to.
    pub(crate) elsewhere: BTreeMap<EntryPath, String>,
}

impl<'a> ReusedContent<'a> {
    /// Looks for the lost files of a backup in what was found.
    pub(crate) fn find(
        archives: &[Archive],
        archive: &Archive,
        loss: Option<&EntryLoss>,
        same: &'a SameContent,
    ) -> Self {
        let mut reused = Self::default();
        let Some(loss) = loss.filter(|_| !same.is_empty()) else {
            return reused;
        };
        let lost: BTreeSet<&EntryPath> = loss.files.iter().collect();
        for parts in files(archive.records(&Selection::default(), false)) {
            if lost.contains(&parts[0].entry.path) {
                reused.look(archives, archive, &parts, same);
            }
        }
        reused
    }

    fn look(
        &mut self,
        archives: &[Archive],
        archive: &Archive,
        parts: &[PageItem],
        same: &'a SameContent,
    ) {
        let path = &parts[0].entry.path;
        let places = key_of(parts).map_or(&[][..], |key| same.places(&key));
        let fits = places.iter().find(|place| {
            place.serves(&archive.root, archives)
                && place.kind == parts[0].entry.kind
                && are_cut_alike(parts, &place.parts)
        });
        if let Some(place) = fits {
            self.files.insert(path.clone(), &place.parts);
            self.bases.insert(place.backup.clone());
            self.lines
                .push(format!("{}: {}", quoted(path), place.line()));
        } else if let Some(place) = places.first() {
            self.elsewhere.insert(path.clone(), place.line());
        }
    }

    /// Returns whether the file gets its content from another backup.
    pub(crate) fn has(&self, path: &[u8]) -> bool {
        self.files.contains_key(path)
    }

    /// Returns the number of these files.
    pub(crate) fn count(&self) -> u64 {
        self.files.len() as u64
    }

    /// Changes the records of a page of `archive` that describe these files, and counts what they refer to.
    pub(crate) fn apply(
        &self,
        archive: &Archive,
        mut page: ManifestPage,
        references: &mut References,
    ) -> ManifestPage {
        let mut segments = std::mem::take(&mut page.segments);
        for record in &mut page.records {
            let parts = self.files.get(&record.entry.path);
            let part = parts.and_then(|parts| parts.iter().find(|part| part.from == record.from));
            if let Some(part) = part {
                refer(archive, record, part, &mut segments, references);
            }
        }
        ManifestPage { segments, ..page }
    }

    /// Adds what the records refer to now to a root, so that a prune keeps it. Returns the added parts of segments.
    pub(crate) fn count_in(
        root: &mut Root,
        archive: &Archive,
        references: &References,
        same: &SameContent,
    ) -> Vec<Live> {
        let mut added = references.all();
        for live in &mut added {
            if let Some(known) = same.segment(&full(archive, &live.id())) {
                live.of_bytes = known.of_bytes.max(live.of_bytes);
                live.data_bytes = known.data_bytes;
            }
            match root.liveness.iter_mut().find(|old| old.id() == live.id()) {
                Some(old) => {
                    old.frames = old.frames.saturating_add(live.frames);
                    old.bytes = old.bytes.saturating_add(live.bytes).min(old.of_bytes);
                }
                None => root.liveness.push(live.clone()),
            }
        }
        added
    }
}

/// Returns whether both describe the same bytes in each record.
fn are_cut_alike(parts: &[PageItem], others: &[ContentPart]) -> bool {
    parts.len() == others.len() && parts.iter().zip(others).all(is_like)
}

fn is_like((item, other): (&PageItem, &ContentPart)) -> bool {
    (item.from, item.described_bytes(), !item.more) == (other.from, other.bytes, other.is_last)
}

/// Has a record refer to the extents of a part.
fn refer(
    archive: &Archive,
    record: &mut Record,
    part: &ContentPart,
    segments: &mut Vec<SegmentId>,
    references: &mut References,
) {
    record.extents.clear();
    for (id, extent) in &part.extents {
        let named = relative(archive, id);
        let known = segments.iter().rposition(|segment| *segment == named);
        let index = known.unwrap_or(segments.len());
        if known.is_none() {
            segments.push(named.clone());
        }
        let mut extent = *extent;
        extent.frame.segment = index as u32;
        record.extents.push(extent);
    }
    for (extent, (id, _)) in record.extents.iter().zip(&part.extents) {
        let number = references.number_of(&relative(archive, id));
        references.count(number, record, extent);
    }
}

/// Returns the name of a segment in pages of this backup: its own have no backup.
fn relative(archive: &Archive, id: &SegmentId) -> SegmentId {
    let is_own = id.backup == archive.root.id;
    SegmentId {
        backup: if is_own {
            String::new()
        } else {
            id.backup.clone()
        },
        ..*id
    }
}
