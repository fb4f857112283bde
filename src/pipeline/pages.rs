//! Joins the entries with the places of their frames, into pages of the manifest.
//!
//! A page is closed only between frames, so that no frame is described by two pages and a restore decodes each once.

use crate::{
    format::{
        digest::{BlockCrcs, Joiner, Piece},
        entry::{Entry, Kind, Path},
        page::{
            BLOCK_DIGEST_BYTES, Extent, FrameAt, MAX_EXTENTS, MAX_RECORDS, MAX_TEXT_BYTES, Page, Record, SegmentId,
            State,
        },
        root::{MAX_NOT_CAPTURED, Name, NotCaptured, Totals},
    },
    frame::{Large, Part, What},
};
use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering::Acquire},
};

/// Is told of each entry when all of it has a place, with the CRC-32C of its content where that was asked for.
pub type Tell = Arc<dyn Fn(&Record, Option<u32>) + Send + Sync>;

/// Builds the pages of one stream. Holds one page.
pub struct Pages {
    tell: Tell,
    crcs: BlockCrcs,
    page: Page,
    extents: usize,
    text_bytes: usize,
    open: Option<Open>,
    lost_links: HashSet<Path>,
    /// Counts of all that passed; the bytes stored are not counted here.
    pub totals: Totals,
    /// The first entries that were not captured as they were.
    pub not_captured: Vec<NotCaptured>,
}

/// A large file that is under way.
struct Open {
    record: Record,
    joiner: Joiner,
    crc32c: Option<u32>,
    data_bytes: u64,
}

impl Pages {
    /// Of files whose blocks have so many bytes.
    pub fn new(block_bytes: u64, tell: Tell) -> Self {
        Self {
            tell,
            crcs: BlockCrcs::new(block_bytes),
            page: Page::default(),
            extents: 0,
            text_bytes: 0,
            open: None,
            lost_links: HashSet::new(),
            totals: Totals::default(),
            not_captured: Vec::new(),
        }
    }

    /// The next part, and the frame it is in.
    pub fn add(&mut self, frame: FrameAt, part: Part) {
        let extent = Extent { frame, inner: part.inner, len: part.len };
        match part.what {
            What::Whole(entry, state) => self.whole(entry, state, extent, &part.piece, part.crcs),
            What::Head(entry, _) => self.head(entry),
            What::Piece { file, last, .. } => self.piece(extent, &part.piece, part.crcs, last.then_some(&*file)),
        }
    }

    fn whole(&mut self, mut entry: Entry, mut state: State, extent: Extent, piece: &Piece, crcs: Vec<u32>) {
        self.check_link(&entry, &mut state);
        let mut joiner = Joiner::default();
        joiner.push(piece);
        if !state.is_stored()
            && let Kind::File { size, .. } = &mut entry.kind
        {
            *size = 0;
        }
        let extents = if extent.len > 0 && state.is_stored() { vec![extent] } else { Vec::new() };
        let crc32c = self.crcs.join(None, &crcs, extent.len.into());
        let (blocks, digest) = (blocks(piece), joiner.finish());
        self.push(Record { blocks, digest, crcs, extents, entry, state, ..Record::default() }, crc32c);
    }

    /// Another name of a file that could not be read could not be read either.
    fn check_link(&mut self, entry: &Entry, state: &mut State) {
        match &entry.kind {
            Kind::HardLink(target) if self.lost_links.contains(target) => {
                *state = State::Unreadable("the file it is another name of could not be read".to_owned());
            }
            Kind::File { .. } if !state.is_stored() => {
                self.lost_links.insert(entry.path.clone());
            }
            _ => {}
        }
    }

    fn head(&mut self, entry: Entry) {
        let record = Record { entry, ..Record::default() };
        self.open = Some(Open { record, joiner: Joiner::default(), crc32c: None, data_bytes: 0 });
    }

    fn piece(&mut self, extent: Extent, piece: &Piece, crcs: Vec<u32>, done: Option<&Large>) {
        let Some(open) = &mut self.open else { return };
        if extent.len > 0 {
            open.record.extents.push(extent);
        }
        open.record.blocks.extend(blocks(piece));
        open.joiner.push(piece);
        open.crc32c = self.crcs.join(open.crc32c, &crcs, extent.len.into());
        open.record.crcs.extend(crcs);
        open.data_bytes += u64::from(extent.len);
        if let Some(file) = done {
            self.close(file);
        }
    }

    fn close(&mut self, file: &Large) {
        let Some(Open { mut record, joiner, crc32c, data_bytes }) = self.open.take() else { return };
        if let (true, Kind::File { size, .. }) = (file.is_endless(), &mut record.entry.kind) {
            *size = data_bytes;
        }
        if file.changed.load(Acquire) {
            record.state = State::Changed;
        }
        let bad_pages = std::mem::take(&mut *file.bad_pages.lock().unwrap_or_else(|e| e.into_inner()));
        if !bad_pages.is_empty() {
            record.state = State::bad_pages(bad_pages);
        }
        record.digest = joiner.finish();
        if record.blocks.len() < 2 {
            record.blocks.clear();
        }
        if let Some(reason) = file.failed.get() {
            self.lose(&mut record, reason);
        }
        self.push(record, crc32c);
    }

    /// A file of which a piece could not be read is not there, though the stream has zeros in its place.
    fn lose(&mut self, record: &mut Record, reason: &str) {
        self.lost_links.insert(record.entry.path.clone());
        record.entry.kind = Kind::File { size: 0, map: None };
        let (state, from) = (State::Unreadable(reason.to_owned()), record.from);
        *record = Record { entry: std::mem::take(&mut record.entry), state, from, ..Record::default() };
    }

    fn push(&mut self, record: Record, crc32c: Option<u32>) {
        (self.tell)(&record, crc32c);
        if record.from == 0 {
            self.count(&record.entry);
        }
        self.note(&record);
        self.extents += record.extents.len();
        self.text_bytes += text_bytes(&record.entry);
        self.page.records.push(record);
    }

    fn count(&mut self, entry: &Entry) {
        self.totals.entries += 1;
        match entry.kind {
            Kind::File { size, .. } => {
                self.totals.files += 1;
                self.totals.bytes += size;
            }
            Kind::Directory => self.totals.directories += 1,
            _ => {}
        }
    }

    fn note(&mut self, record: &Record) {
        let (counter, reason) = match &record.state {
            State::Whole => return,
            State::Changed => (&mut self.totals.changed, "changed while it was read".to_owned()),
            State::Unreadable(reason) => (&mut self.totals.unreadable, reason.clone()),
            State::Vanished => (&mut self.totals.vanished, "vanished before it was read".to_owned()),
            State::Noted => (&mut self.totals.sockets, "sockets are not stored".to_owned()),
            State::BadPages(pages) => (&mut self.totals.bad_pages, bad_pages(pages)),
        };
        *counter += 1;
        if self.not_captured.len() < MAX_NOT_CAPTURED {
            let path = Name(record.entry.path.clone());
            self.not_captured.push(NotCaptured { path, reason });
        }
    }

    /// Should the page be closed before the next frame?
    pub fn is_full(&self) -> bool {
        let open = self.open.as_ref().map_or(0, |open| open.record.extents.len());
        self.page.records.len() >= MAX_RECORDS
            || self.extents + open >= MAX_EXTENTS
            || self.text_bytes >= MAX_TEXT_BYTES
    }

    /// The page as far as it is, if there is anything in it; a file that is under way goes on in the next one.
    pub fn take(&mut self, segment: SegmentId) -> Option<Page> {
        self.part();
        let mut page = std::mem::take(&mut self.page);
        (self.extents, self.text_bytes) = (0, 0);
        page.segments = vec![segment];
        (!page.records.is_empty()).then_some(page)
    }

    fn part(&mut self) {
        let Some(open) = &mut self.open else { return };
        if open.record.extents.is_empty() {
            return; // its header has passed and nothing else: it can stand in the next page as a whole
        }
        let next = Record { entry: open.record.entry.clone(), from: open.data_bytes, ..Record::default() };
        let mut part = std::mem::replace(&mut open.record, next);
        part.more = true;
        if part.from == 0 {
            self.count(&part.entry);
        }
        self.page.records.push(part);
    }
}

/// What is said of a file with pages that the server would refuse.
fn bad_pages(pages: &[u32]) -> String {
    const SHOWN: usize = 10;
    let shown: Vec<_> = pages.iter().take(SHOWN).map(u32::to_string).collect();
    let more = if pages.len() > SHOWN { format!(" and {} more", pages.len() - SHOWN) } else { String::new() };
    let blocks = if pages.len() == 1 { "block" } else { "blocks" };
    format!("it is stored, but page checksums are wrong: {blocks} {}{more}", shown.join(", "))
}

fn blocks(piece: &Piece) -> Vec<[u8; BLOCK_DIGEST_BYTES]> {
    let cut = |block: &[u8; 32]| std::array::from_fn(|i| block[i]);
    match piece {
        Piece::Blocks(blocks) => blocks.iter().map(cut).collect(),
        _ => Vec::new(),
    }
}

fn text_bytes(entry: &Entry) -> usize {
    let map = match &entry.kind {
        Kind::File { map: Some(map), .. } => map.len() * 16,
        Kind::Symlink(target) | Kind::HardLink(target) => target.len(),
        _ => 0,
    };
    entry.path.len() + map + entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
}
