//! A backup without what nothing can restore: the files are in its manifest still, as not captured.
//!
//! What was described by pages of which no copy is whole is lost: the root says how many entries, and which is the first.
//! Pages that speak of lost files are written anew, behind the others in the backup's own manifest: other backups may refer to
//! those that are there. They have no copy in a segment, as no segment is ever changed.

use super::{cut_off, remade_sums::RemadeSums};
use crate::archive::unnamed_losses;
use crate::{
    archive::{Archive, object::ObjectName},
    error::{Result, quoted},
    format::{
        digest::hex,
        entry::EntryPath,
        page::{EntryState, Extent, ManifestPage, Record, SegmentId, describe_whole_file},
        root::{EntryName, MAX_NOT_CAPTURED, NotCaptured, PageAt, Root},
    },
    repo::inventory::full,
    text::counted,
    verify::losses::EntryLoss,
};
use std::collections::HashSet;

/// What is said of a file.
const REASON: &str = "it was backed up, and lost by damage to the repository";

/// What is left of a backup.
pub(crate) struct Rest {
    pub(crate) root: Root,
    /// Pages that are to be added to its manifest.
    pub(crate) added: Vec<(u64, Vec<u8>)>,
    /// Files that are lost, and other names of them, in order.
    pub(crate) lost: Vec<EntryPath>,
    /// What is lost with pages, in words: nobody knows the names.
    pub(crate) unnamed: Vec<String>,
    /// Where the manifest ends.
    end: u64,
}

/// The backup without `loss` and without the segments that are `missing`.
///
/// # Errors
/// If a page cannot be encoded; the system's.
pub(crate) fn forgo(
    archive: &Archive,
    loss: Option<&EntryLoss>,
    missing: &HashSet<SegmentId>,
) -> Result<Rest> {
    let sums = RemadeSums::of(archive)?;
    let files = lost(archive, loss);
    let mut rest = Rest {
        root: archive.root.clone(),
        added: Vec::new(),
        lost: files.iter().cloned().collect(),
        unnamed: Vec::new(),
        end: end(archive),
    };
    rest.lost.sort();
    rest.root.pages.clear();
    for at in &archive.root.pages {
        match whole(archive, at) {
            Some(page)
                if page
                    .records
                    .iter()
                    .any(|record| files.contains(&record.entry.path)) =>
            {
                rest.add(at, page, &files)?;
            }
            Some(_) => rest
                .root
                .pages
                .push(without_copy(archive, at.clone(), missing)),
            None => rest.leave_out(at),
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
    Ok(rest)
}

/// The files that no restore gives, and their other names: those that are lost in themselves, and those of which nothing says
/// where all is.
fn lost(archive: &Archive, loss: Option<&EntryLoss>) -> HashSet<EntryPath> {
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
        let is_lost =
            |path: &&EntryPath| loss.cut_off.get(*path).is_none_or(|of| files.contains(of));
        let told: Vec<EntryPath> = loss.files.iter().filter(is_lost).cloned().collect();
        files.extend(told);
    }
    // Only now it is known of which files names are looked for: all of them are too many to be kept.
    if !files.is_empty() {
        let mut names = Vec::new();
        each_page(archive, |page| {
            names.extend(cut_off::names_of(&files, page.records.iter()))
        });
        files.extend(names);
    }
    files
}

/// Each page of which a copy is whole.
fn each_page(archive: &Archive, mut take: impl FnMut(&ManifestPage)) {
    for at in &archive.root.pages {
        if let Some(page) = whole(archive, at) {
            take(&page);
        }
    }
}

/// A part of a file, with as much as says which bytes of it it describes.
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

/// A page, if any of its copies is whole.
fn whole(archive: &Archive, at: &PageAt) -> Option<ManifestPage> {
    archive
        .copies(at)
        .iter()
        .find_map(|copy| archive.read_copy(at, copy).ok())
}

/// Where a manifest ends. Others may refer to pages that this backup does not have any more.
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

impl Rest {
    /// Say that a page is lost: nothing names its entries any more.
    fn leave_out(&mut self, at: &PageAt) {
        unnamed_losses::record_page_loss(&mut self.root, &at.first.0, at.entries);
        self.unnamed.push(format!(
            "{} from {} on{}",
            counted(at.entries, "entry"),
            quoted(&at.first.0),
            place_of_copy(at)
        ));
    }

    /// Add a page behind the others, without these files.
    fn add(&mut self, at: &PageAt, page: ManifestPage, files: &HashSet<EntryPath>) -> Result<()> {
        let root = &mut self.root;
        let page = without(page, files, REASON, |record| {
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

/// In which segment the copy of a lost page was, in words.
fn place_of_copy(at: &PageAt) -> String {
    if at.segment == 0 {
        return String::new();
    }
    format!(
        ", which a page in segment {} of stream {} described",
        at.segment, at.stream
    )
}

/// A copy that was in a segment that is gone is not looked for any more.
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

/// The records of a page, those of lost files without content, for that reason; each is told to `lost` first. Later parts of a
/// large file are left out.
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
