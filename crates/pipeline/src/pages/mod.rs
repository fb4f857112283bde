//! Joins entries with the places of their frames into pages of the manifest.
//!
//! A page is closed only between frames, so that each frame belongs to one page and a restore
//! decodes it once. The exception: if the records of an earlier backup's page come unchanged and in
//! order, that page is referred to, and the page before it ends early.
//!
//! The records of a source that is not in archive order are sorted first, see `sorter`. Then a frame
//! may belong to several pages.

mod large_file;
mod references;
mod sorted;
mod sorter;

pub use sorter::RecordSettler;

use super::liveness::References;
use crate::frame::{FrameContent, FrameEntry, LOST_LINK};
use fullbore_format::{
    digest::{BlockCrcs, Joiner, Piece},
    entry::{Entry, EntryKind, EntryPath},
    page::{
        EntryState, Extent, FrameAt, MAX_DIGEST_BYTES, MAX_EXTENTS, MAX_RECORDS, MAX_TEXT_BYTES,
        ManifestPage, Record, SegmentId, block_digests,
    },
    root::{
        BAD_PAGES, BackupTotals, CHANGED, EntryName, Live, MAX_NOT_CAPTURED, NotCaptured, PageAt,
    },
    sizes,
};
use large_file::OpenLargeFile;
use sorted::SortedPages;
use sorter::RecordSorter;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// Receives each entry when all its content has a place, with the CRC-32C of the content if
/// requested.
pub type EntryListener = Arc<dyn Fn(&Record, Option<u32>) + Send + Sync>;

/// The order in which entries are added.
pub enum RecordOrder {
    /// Archive order.
    Sorted,
    /// Any order. The records are sorted at the end, and corrected by this function.
    Unsorted(RecordSettler),
}

pub enum ClosedPage {
    /// A page of this backup. Its first segment is the open one.
    Own(ManifestPage),
    Earlier(Arc<PageAt>),
}

/// Minimum number of records in a page that is closed only because the next page of an earlier
/// backup may be referred to.
const MIN_RECORDS: usize = MAX_RECORDS / 4;

/// Bytes of the columns of a record without texts, digests and extents, at most: numbers have up to 9 bytes.
const RECORD_BYTES: usize = 160;
/// Bytes of the columns of an extent, at most.
const EXTENT_BYTES: usize = 48;

/// Builds the pages of one stream. Holds one page, and at most one page of an earlier backup.
pub struct PageWriter {
    stream: u32,
    /// Number of the open segment.
    segment: u32,
    block_bytes: u64,
    tell: EntryListener,
    crcs: BlockCrcs,
    page: ManifestPage,
    /// Segments of earlier backups in this page: from the number in `references` to the number in
    /// the page, where 0 is the open segment.
    segments: HashMap<u32, u32>,
    numbers: Vec<u32>,
    references: References,
    /// References to own segments, as a later backup that keeps everything will have them.
    own: References,
    /// A page of an earlier backup, while `page` is empty, and the number of its records that have
    /// come unchanged.
    mirror: Option<(Arc<ManifestPage>, usize)>,
    /// Whether more records of the same earlier page are expected. Then this page may grow larger,
    /// so that the next earlier page can be referred to.
    within: bool,
    closed: Vec<ClosedPage>,
    extents: usize,
    text_bytes: usize,
    digest_bytes: usize,
    open: Option<OpenLargeFile>,
    lost_links: HashSet<EntryPath>,
    /// Sorts the records of a sequence that is not in archive order.
    sorter: Option<RecordSorter>,
    /// The sorted records, while their pages are written.
    sorted: Option<SortedPages>,
    /// Totals of all entries; stored bytes are not included.
    pub totals: BackupTotals,
    /// The first entries that were not captured as they were.
    pub not_captured: Vec<NotCaptured>,
}

impl PageWriter {
    /// Creates the writer for stream `stream`, for files with blocks of `block_bytes`.
    pub fn new(stream: u32, block_bytes: u64, tell: EntryListener, order: RecordOrder) -> Self {
        let sorter = match order {
            RecordOrder::Sorted => None,
            RecordOrder::Unsorted(settle) => Some(RecordSorter::new(settle)),
        };
        Self {
            sorter,
            sorted: None,
            segment: 0,
            stream,
            block_bytes,
            tell,
            crcs: BlockCrcs::new(block_bytes),
            page: ManifestPage::default(),
            segments: HashMap::new(),
            numbers: Vec::new(),
            references: References::default(),
            own: References::default(),
            mirror: None,
            within: false,
            closed: Vec::new(),
            extents: 0,
            text_bytes: 0,
            digest_bytes: 0,
            open: None,
            lost_links: HashSet::new(),
            totals: BackupTotals::default(),
            not_captured: Vec::new(),
        }
    }

    /// Adds the next part and its frame.
    pub fn add(&mut self, frame: FrameAt, part: FrameEntry) {
        let extent = Extent {
            frame,
            inner: part.inner,
            len: part.len,
        };
        // Hard links that follow would name another file than the one that the scan saw.
        if let FrameContent::Whole(entry, _) | FrameContent::Head(entry, _) = &part.what
            && part.replaced
        {
            self.lost_links.insert(entry.path.clone());
        }
        match part.what {
            FrameContent::Whole(entry, state) => match (part.known, part.runs) {
                (Some(known), Some(_)) => self.add_known(entry, state, &known),
                _ => self.add_whole(
                    entry,
                    state,
                    extent,
                    &part.piece,
                    (part.crcs, part.is_first),
                ),
            },
            FrameContent::Head(entry, _) => self.begin_file(entry),
            FrameContent::Piece {
                ref file,
                offset,
                last,
            } => {
                self.add_extents(&extent, part.runs.as_deref(), file.known.as_ref());
                match (
                    file.known.as_ref().filter(|known| known.changed.is_some()),
                    &part.runs,
                ) {
                    (Some(known), Some(runs)) => {
                        self.carry_blocks(known, offset, runs, (&part.piece, &part.crcs))
                    }
                    _ => self.add_digests(part.len, &part.piece, part.crcs),
                }
                self.open
                    .iter_mut()
                    .for_each(|open| open.record.chunks.extend(&part.chunks));
                self.add_piece(part.len, last.then_some(&**file));
            }
        }
    }

    fn add_whole(
        &mut self,
        mut entry: Entry,
        mut state: EntryState,
        extent: Extent,
        piece: &Piece,
        (crcs, is_first): (Vec<u32>, bool),
    ) {
        self.check_link(&entry, &mut state, is_first);
        let mut joiner = Joiner::default();
        joiner.push(piece);
        if !state.is_stored() {
            entry.clear_content();
        }
        let extents = if extent.len > 0 && state.is_stored() {
            vec![extent]
        } else {
            Vec::new()
        };
        let crc32c = self.crcs.join(None, &crcs, extent.len.into());
        let blocks = block_digests(piece, self.block_bytes);
        let digest = joiner.finish();
        self.push_record(
            Record {
                blocks,
                digest,
                crcs,
                extents,
                entry,
                state,
                ..Record::default()
            },
            crc32c,
        );
    }

    /// Marks hard links to a file that could not be read or was replaced as unreadable.
    fn check_link(&mut self, entry: &Entry, state: &mut EntryState, is_first: bool) {
        match &entry.kind {
            EntryKind::HardLink(target) if self.lost_links.contains(target) => {
                *state = EntryState::Unreadable(LOST_LINK.to_owned());
            }
            EntryKind::File { .. } if is_first && !state.is_stored() => {
                self.lost_links.insert(entry.path.clone());
            }
            _ => {}
        }
    }

    fn push_record(&mut self, record: Record, crc32c: Option<u32>) {
        self.end_mirror();
        self.report_record(&record, crc32c);
        self.store_record(record);
        // Files with little content may have many attributes, but no page may be too large to be
        // read.
        if self.text_bytes >= 8 * MAX_TEXT_BYTES {
            self.close_page();
        }
    }

    /// Counts a record and passes it on, if it is the last part of its file: only the last part
    /// describes the whole file.
    fn report_record(&mut self, record: &Record, crc32c: Option<u32>) {
        if let Some(sorter) = &mut self.sorter {
            sorter.note_crc(crc32c); // it is reported when its page is written
        } else if !record.more {
            self.count(record);
            (self.tell)(record, crc32c);
            self.count_incomplete(record);
        }
    }

    fn store_record(&mut self, record: Record) {
        if self.sorter.is_some() {
            return self.defer_record(record);
        }
        self.extents += record.extents.len();
        self.text_bytes += record.entry.text_bytes();
        self.digest_bytes += record.digest_bytes();
        self.page.records.push(record);
    }

    fn count(&mut self, record: &Record) {
        self.totals.entries += 1;
        match record.entry.kind {
            // What could not be read is counted as that alone.
            EntryKind::File { .. } if !record.state.is_stored() => {}
            EntryKind::File { size, .. } => {
                self.totals.files += 1;
                sizes::add(&mut self.totals.bytes, size);
            }
            EntryKind::Directory => self.totals.directories += 1,
            _ => {}
        }
    }

    fn count_incomplete(&mut self, record: &Record) {
        let (counter, reason) = match &record.state {
            EntryState::Whole => return,
            EntryState::Changed => (&mut self.totals.changed, CHANGED.to_owned()),
            EntryState::Unreadable(reason) => (&mut self.totals.unreadable, reason.clone()),
            EntryState::Vanished => (
                &mut self.totals.vanished,
                "vanished before it was read".to_owned(),
            ),
            EntryState::Noted => (
                &mut self.totals.sockets,
                "sockets are not stored".to_owned(),
            ),
            EntryState::BadPages(pages) => (&mut self.totals.bad_pages, bad_pages(pages)),
        };
        *counter += 1;
        // The counters are exact. The list in the root is only a sample: a failing disk can have
        // millions.
        if self.not_captured.len() < MAX_NOT_CAPTURED {
            let path = EntryName(record.entry.path.clone());
            self.not_captured.push(NotCaptured { path, reason });
        }
    }

    /// Returns whether the page must be closed before the next frame.
    pub fn is_full(&self) -> bool {
        let (open, digests) = self.open.as_ref().map_or((0, 0), |open| {
            (open.record.extents.len(), open.record.digest_bytes())
        });
        let full =
            |count: usize, max: usize| count >= if self.within { max + max / 2 } else { max };
        full(self.page.records.len(), MAX_RECORDS)
            || full(self.extents + open, MAX_EXTENTS)
            || full(self.text_bytes, MAX_TEXT_BYTES)
            || full(self.digest_bytes + digests, MAX_DIGEST_BYTES)
    }

    /// Returns the bytes of the first path of the page that closes next.
    pub fn first_path_bytes(&self) -> u64 {
        let first = self.page.records.first();
        let open = self.open.as_ref().map(|open| &open.record);
        let longest = first.into_iter().chain(open);
        let lengths = longest.map(|record| record.entry.path.len() as u64);
        lengths.max().unwrap_or(0)
    }

    /// Returns a bound of the stored bytes of the page that closes next.
    pub fn open_bytes(&self) -> u64 {
        let (open, digests) = self.open.as_ref().map_or((0, 0), |open| {
            (open.record.extents.len(), open.record.digest_bytes())
        });
        let records = (self.page.records.len() + 1) * RECORD_BYTES;
        let extents = (self.extents + open) * EXTENT_BYTES;
        let digests = self.digest_bytes + digests;
        (records + extents + 2 * (self.text_bytes + digests)) as u64
    }

    /// Closes the page if it has records; an unfinished large file continues on the next page.
    pub fn close_page(&mut self) {
        self.split_file();
        let page = std::mem::take(&mut self.page);
        (self.extents, self.text_bytes, self.digest_bytes) = (0, 0, 0);
        self.segments.clear();
        self.numbers.clear();
        self.within = false;
        if !page.records.is_empty() {
            self.closed.push(ClosedPage::Own(page));
        }
    }

    /// Closes the last page of a sequence.
    pub fn end(&mut self) {
        self.end_mirror();
        self.close_page();
    }

    /// Returns the pages closed since the last call; `own` is the open segment.
    pub fn take(&mut self, own: &SegmentId) -> Vec<ClosedPage> {
        for closed in &mut self.closed {
            let ClosedPage::Own(page) = closed else {
                continue;
            };
            match page.segments.first_mut() {
                Some(first) => first.clone_from(own),
                None => page.segments.push(own.clone()),
            }
            let number = self.own.number_of(own);
            for record in &page.records {
                let extents = record
                    .extents
                    .iter()
                    .filter(|extent| extent.frame.segment == 0);
                extents.for_each(|extent| self.own.count(number, record, extent));
            }
        }
        std::mem::take(&mut self.closed)
    }

    /// Returns whether there is a page to store.
    pub fn has_own_pages(&self) -> bool {
        self.closed
            .iter()
            .any(|closed| matches!(closed, ClosedPage::Own(_)))
    }

    /// Returns whether there are no records at all.
    pub fn is_empty(&self) -> bool {
        self.sorter.as_ref().is_none_or(RecordSorter::is_empty)
            && self.closed.is_empty()
            && self.page.records.is_empty()
            && self.mirror.is_none()
            && self.open.is_none()
    }

    pub fn references_to_earlier(&self) -> Vec<Live> {
        self.references.all()
    }

    /// Returns the bytes of this segment that a later backup refers to if it keeps everything.
    pub fn kept_of(&self, own: &SegmentId) -> u64 {
        self.own.bytes_of(own)
    }
}

/// Describes pages that the server would refuse.
fn bad_pages(pages: &[u32]) -> String {
    const SHOWN: usize = 10;
    let shown: Vec<_> = pages.iter().take(SHOWN).map(u32::to_string).collect();
    let more = if pages.len() > SHOWN {
        format!(" and {} more", pages.len() - SHOWN)
    } else {
        String::new()
    };
    let blocks = if pages.len() == 1 { "block" } else { "blocks" };
    format!("{BAD_PAGES}: {blocks} {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests;
