//! Drops the lost files from a backup: its manifest still lists them, as not captured. Files whose content another backup has stay.
//!
//! If every copy of a page is damaged, its entries are lost: the root records their number and the
//! first one. Pages with lost files are written again, after the other pages in the backup's own
//! manifest, because other backups may refer to the old pages. The new pages have no copy in a
//! segment, because a segment never changes.

use super::{cut_off, remade_sums::RemadeSums, reused::ReusedContent, same_content::SameContent};
use crate::verify::losses::EntryLoss;
use fullbore_format::{
    digest::hex,
    entry::EntryPath,
    error::{Result, quoted},
    page::{EntryState, Extent, ManifestPage, Record, SegmentId, describe_whole_file},
    root::{EntryName, Live, MAX_NOT_CAPTURED, NotCaptured, PageAt, Root},
    text::counted,
};
use fullbore_pipeline::liveness::References;
use fullbore_repository::archive::unnamed_losses;
use fullbore_repository::{
    archive::{Archive, object::ObjectName},
    inventory::full,
};
use std::collections::HashSet;

/// The reason that is recorded for a file.
const REASON: &str = "it was backed up, and lost by damage to the repository";

/// The remaining part of a backup.
pub(crate) struct RemainingBackup {
    pub(crate) root: Root,
    /// Pages to add to its manifest.
    pub(crate) added: Vec<(u64, Vec<u8>)>,
    /// Lost files, and other names of them, in order.
    pub(crate) lost: Vec<EntryPath>,
    /// Descriptions of losses with pages, whose names are unknown.
    pub(crate) unnamed: Vec<String>,
    /// Parts of segments of other backups that it refers to for the first time.
    pub(crate) reused: Vec<Live>,
    /// The end of the manifest.
    end: u64,
}

/// Returns the backup without `loss` and without the segments that are `missing`. Files of `reused` get their content from there.
///
/// # Errors
/// If a page cannot be encoded; errors of the system.
pub(crate) fn forgo(
    archive: &Archive,
    loss: Option<&EntryLoss>,
    missing: &HashSet<SegmentId>,
    (reused, same): (&ReusedContent<'_>, &SameContent),
) -> Result<RemainingBackup> {
    let sums = RemadeSums::of(archive)?;
    let files = lost(archive, loss, reused);
    let mut references = References::default();
    let mut rest = RemainingBackup {
        root: archive.root.clone(),
        added: Vec::new(),
        lost: files.iter().cloned().collect(),
        unnamed: Vec::new(),
        reused: Vec::new(),
        end: end(archive),
    };
    // A hash set has another order in each run.
    rest.lost.sort();
    rest.root.pages.clear();
    for place in &archive.root.pages {
        match whole(archive, place) {
            Some(page)
                if page.records.iter().any(|record| {
                    let path = &record.entry.path;
                    files.contains(path) || reused.has(path)
                }) =>
            {
                let page = reused.apply(archive, page, &mut references);
                rest.add(place, page, &files)?;
            }
            Some(_) => rest
                .root
                .pages
                .push(without_copy(archive, place.clone(), missing)),
            None => rest.leave_out(place),
        }
    }
    sums.correct(&mut rest.root);
    rest.root.segments.retain(|segment| {
        let id = SegmentId {
            backup: archive.root.id.clone(),
            stream: segment.stream,
            number: segment.number,
        };
        !missing.contains(&id)
    });
    rest.root
        .liveness
        .retain(|live| !missing.contains(&full(archive, &live.id())));
    rest.reused = ReusedContent::count_in(&mut rest.root, archive, &references, same);
    Ok(rest)
}

/// Returns the files that cannot be restored, and their other names: those with lost content, and
/// those with lost records. Those that are `reused`, and their other names, can.
fn lost(
    archive: &Archive,
    loss: Option<&EntryLoss>,
    reused: &ReusedContent<'_>,
) -> HashSet<EntryPath> {
    let mut parts = Vec::new();
    each_page(archive, |page| {
        parts.extend(
            page.records
                .iter()
                .filter(|record| !describe_whole_file(&[*record]))
                .map(lean),
        );
    });
    let mut files = cut_off::cut_off(parts.iter());
    if let Some(loss) = loss {
        let is_lost = |path: &&EntryPath| {
            loss.cut_off
                .get(*path)
                .is_none_or(|first_name| files.contains(first_name))
        };
        let told: Vec<EntryPath> = loss.files.iter().filter(is_lost).cloned().collect();
        files.extend(told);
        leave_reused(archive, &mut files, reused);
    }
    // The other names can only be searched once the files are known: keeping all names would take
    // too much memory.
    if !files.is_empty() {
        let mut names = Vec::new();
        each_page(archive, |page| {
            names.extend(cut_off::names_of(&files, page.records.iter()))
        });
        files.extend(names);
    }
    files
}

/// Removes the files that get their content from elsewhere, and their other names.
fn leave_reused(archive: &Archive, files: &mut HashSet<EntryPath>, reused: &ReusedContent<'_>) {
    if reused.count() == 0 {
        return;
    }
    let kept = files.iter().filter(|path| reused.has(path));
    let mut kept: HashSet<EntryPath> = kept.cloned().collect();
    let mut names = Vec::new();
    each_page(archive, |page| {
        names.extend(cut_off::names_of(&kept, page.records.iter()));
    });
    kept.extend(names);
    files.retain(|path| !kept.contains(path));
}

/// Calls `take` for each page with an intact copy.
fn each_page(archive: &Archive, mut take: impl FnMut(&ManifestPage)) {
    for place in &archive.root.pages {
        if let Some(page) = whole(archive, place) {
            take(&page);
        }
    }
}

/// Returns the part of a file that is needed to tell which bytes it describes.
fn lean(part: &Record) -> Record {
    let mut left = part.described_bytes();
    let mut lean = Record {
        entry: part.entry.clone(),
        from: part.from,
        more: part.more,
        ..Record::default()
    };
    while let Some(extent) = part.extents.first().filter(|_| left > 0) {
        let len = u32::try_from(left).unwrap_or(u32::MAX);
        lean.extents.push(Extent { len, ..*extent });
        left -= u64::from(len);
    }
    Record {
        state: part.state.clone(),
        ..lean
    }
}

/// Returns a page, if any of its copies is intact.
fn whole(archive: &Archive, at: &PageAt) -> Option<ManifestPage> {
    archive
        .copies(at)
        .iter()
        .find_map(|copy| archive.read_copy(at, copy).ok())
}

/// Returns the end of a manifest. Other backups may refer to pages that this backup does not have
/// any more.
fn end(archive: &Archive) -> u64 {
    let own = archive
        .root
        .pages
        .iter()
        .filter(|page| page.backup.is_empty());
    let end = own.fold(0, |end, page| {
        page.manifest_offset
            .map_or(end, |offset| end.max(offset.saturating_add(page.bytes)))
    });
    end.max(
        archive
            .store()
            .len(&ObjectName::Manifest(String::new()))
            .unwrap_or(0),
    )
}

impl RemainingBackup {
    /// Records that a page is lost: the names of its entries are unknown.
    fn leave_out(&mut self, at: &PageAt) {
        unnamed_losses::record_page_loss(&mut self.root, &at.first.0, at.entries);
        self.unnamed.push(format!(
            "{} from {} on{}",
            counted(at.entries, "entry"),
            quoted(&at.first.0),
            place_of_copy(at)
        ));
    }

    /// Adds a page after the others, without these files.
    fn add(&mut self, at: &PageAt, page: ManifestPage, files: &HashSet<EntryPath>) -> Result<()> {
        let root = &mut self.root;
        let page = without(page, files, REASON, |record| {
            // The totals of a damaged root may be smaller than this file.
            root.totals.bytes -= record.entry.size().min(root.totals.bytes);
            note(root, &record.entry.path, REASON.to_owned());
        });
        let Some(first) = page.records.first() else {
            return Ok(());
        };
        let stored = page.encode()?;
        let (first, entries) = (
            EntryName(first.entry.path.clone()),
            page.records.len() as u64,
        );
        let (bytes, digest) = (stored.len() as u64, hex(blake3::hash(&stored).as_bytes()));
        let place = PageAt {
            backup: String::new(),
            manifest_offset: Some(self.end),
            segment: 0,
            offset: 0,
            ..at.clone()
        };
        self.root.pages.push(PageAt {
            first,
            entries,
            bytes,
            digest,
            ..place
        });
        self.added.push((self.end, stored));
        self.end += bytes;
        Ok(())
    }
}

/// Returns in words which segment had the copy of a lost page.
fn place_of_copy(at: &PageAt) -> String {
    if at.segment == 0 {
        return String::new();
    }
    format!(
        ", which a page in segment {} of stream {} described",
        at.segment, at.stream
    )
}

/// Removes the reference to a copy in a missing segment.
fn without_copy(archive: &Archive, at: PageAt, missing: &HashSet<SegmentId>) -> PageAt {
    let id = full(
        archive,
        &SegmentId {
            backup: at.backup.clone(),
            stream: at.stream,
            number: at.segment,
        },
    );
    if missing.contains(&id) {
        PageAt {
            segment: 0,
            offset: 0,
            ..at
        }
    } else {
        at
    }
}

/// Returns the records of a page, with lost files as not captured for that reason; calls `lost` for
/// each of those first. Later parts of a large file are left out.
pub(crate) fn without(
    page: ManifestPage,
    files: &HashSet<EntryPath>,
    reason: &str,
    mut lost: impl FnMut(&Record),
) -> ManifestPage {
    let mut records = Vec::with_capacity(page.records.len());
    for mut record in page.records {
        if !files.contains(&record.entry.path) {
            records.push(record);
        } else if record.from == 0 {
            lost(&record);
            record.entry.clear_content();
            records.push(Record {
                entry: record.entry,
                state: EntryState::Unreadable(reason.to_owned()),
                ..Record::default()
            });
        }
    }
    ManifestPage { records, ..page }
}

fn note(root: &mut Root, path: &[u8], reason: String) {
    root.totals.unreadable += 1;
    if root.not_captured.len() < MAX_NOT_CAPTURED {
        root.not_captured.push(NotCaptured {
            path: EntryName(path.to_vec()),
            reason,
        });
    }
}
