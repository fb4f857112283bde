//! Joins the entries with the places of their frames, into pages of the manifest.
//!
//! A page is closed only between frames, so that no frame is described by two pages and a restore decodes each once; but
//! where the records of an earlier backup's page come one after the other as they were, that page is referred to, and
//! what stood before them ends where it begins.

use super::live::References;
use crate::{
    format::{
        digest::{BlockCrcs, Joiner, Piece},
        entry::{Entry, Kind, Path},
        page::{
            Extent, FrameAt, Item, MAX_EXTENTS, MAX_RECORDS, MAX_TEXT_BYTES, Page, Record, SegmentId, State,
            UNKNOWN_BLOCK, block_digests,
        },
        root::{Live, MAX_NOT_CAPTURED, Name, NotCaptured, PageAt, Totals},
    },
    frame::{Large, Part, What},
    known::{Finder, Known, Stored, Trust},
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering::Acquire},
};

/// Is told of each entry when all of it has a place, with the CRC-32C of its content where that was asked for.
pub type Tell = Arc<dyn Fn(&Record, Option<u32>) + Send + Sync>;

/// A page that is complete.
pub enum Closed {
    /// Of this backup. The first of its segments is the one that is being filled.
    Own(Page),
    /// Of an earlier backup, with the count of its records.
    Earlier(Arc<PageAt>),
}

/// Records below which a page is not closed only because one of an earlier backup could be referred to next.
const MIN_RECORDS: usize = MAX_RECORDS / 4;

/// Builds the pages of one stream. Holds one page, and perhaps one of an earlier backup.
pub struct Pages {
    stream: u32,
    block_bytes: u64,
    tell: Tell,
    crcs: BlockCrcs,
    page: Page,
    /// Which segments of earlier backups the page speaks of: what they are numbered in `references`, and in the page, where
    /// 0 is the one that is being filled.
    segments: HashMap<u32, u32>,
    numbers: Vec<u32>,
    references: References,
    /// The page of an earlier backup of which so many records have come, and nothing else, while `page` is empty.
    mirror: Option<(Arc<Page>, usize)>,
    /// Are more records of the same page of an earlier backup to be expected? Then the page may become larger, so that
    /// the next one can be referred to.
    within: bool,
    closed: Vec<Closed>,
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
    finder: Finder,
    /// Did anything have to be stored?
    is_new: bool,
    /// Was only read what was known to have changed?
    is_patched: bool,
    /// Is the CRC of one of its blocks not known?
    lacks_crcs: bool,
    crc32c: Option<u32>,
    data_bytes: u64,
}

impl Pages {
    /// Of stream `stream`, of files whose blocks have so many bytes.
    pub fn new(stream: u32, block_bytes: u64, tell: Tell) -> Self {
        Self {
            stream,
            block_bytes,
            tell,
            crcs: BlockCrcs::new(block_bytes),
            page: Page::default(),
            segments: HashMap::new(),
            numbers: Vec::new(),
            references: References::default(),
            mirror: None,
            within: false,
            closed: Vec::new(),
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
            What::Whole(entry, state) => match (part.known, part.runs) {
                (Some(known), Some(_)) => self.known(entry, state, &known),
                _ => self.whole(entry, state, extent, &part.piece, part.crcs),
            },
            What::Head(entry, _) => self.head(entry),
            What::Piece { ref file, offset, last } => {
                self.extents(&extent, part.runs.as_deref(), file.known.as_ref());
                match (file.known.as_ref().filter(|known| known.changed.is_some()), &part.runs) {
                    (Some(known), Some(runs)) => self.carry(known, offset, runs, (&part.piece, &part.crcs)),
                    _ => self.digests(part.len, &part.piece, part.crcs),
                }
                self.open.iter_mut().for_each(|open| open.record.chunks.extend(&part.chunks));
                self.piece(part.len, last.then_some(&**file));
            }
        }
    }

    /// An earlier backup has all of it.
    fn known(&mut self, entry: Entry, state: State, known: &Known) {
        self.totals.kept += u64::from(entry.is_file());
        self.totals.kept_bytes += known.parts.iter().map(|part| part.described_bytes()).sum::<u64>();
        let crc32c = self.crc_of(known);
        for item in known.parts.iter() {
            if known.trust == Trust::Same || (item.entry == entry && item.state == state) {
                self.mirror(item, crc32c);
            } else {
                let record = Record { entry: entry.clone(), state: state.clone(), ..Record::clone(item) };
                self.refer(item, record, crc32c);
            }
        }
    }

    /// A record as it was.
    fn mirror(&mut self, item: &Item, crc32c: Option<u32>) {
        let (page, index) = (item.page(), item.index());
        // Pages of another stream, or late ones, have another order among themselves.
        let fits = |origin: &Arc<PageAt>| origin.stream == self.stream && !origin.late;
        if index == 0 && page.origin.as_ref().is_some_and(fits) && self.may_close() {
            self.close_page();
            self.mirror = Some((page.clone(), 0));
        }
        match &mut self.mirror {
            Some((mirrored, next)) if Arc::ptr_eq(mirrored, page) && *next == index => *next += 1,
            _ => return self.refer(item, Record::clone(item), crc32c),
        }
        self.learn(item, crc32c);
        self.refer_to(item);
        self.complete_mirror();
    }

    fn may_close(&self) -> bool {
        self.mirror.is_none() && (self.page.records.is_empty() || self.page.records.len() >= MIN_RECORDS)
    }

    fn complete_mirror(&mut self) {
        let complete = |(page, next): &(Arc<Page>, usize)| *next == page.records.len();
        if let Some((page, _)) = self.mirror.take_if(|mirror| complete(mirror))
            && let Some(origin) = &page.origin
        {
            self.closed.push(Closed::Earlier(origin.clone()));
        }
    }

    /// Something comes that the mirrored page does not have next: what came of it stands in a page of our own.
    fn unmirror(&mut self) {
        let Some((page, count)) = self.mirror.take() else { return };
        for item in (0..count).filter_map(|index| Item::new(page.clone(), index)) {
            self.append(&item, Record::clone(&item));
        }
    }

    /// A record, all of whose extents are of an earlier backup.
    fn refer(&mut self, item: &Item, record: Record, crc32c: Option<u32>) {
        self.unmirror();
        self.learn(&record, crc32c);
        self.refer_to(item);
        self.append(item, record);
    }

    fn refer_to(&mut self, item: &Item) {
        for extent in &item.extents {
            let number = self.references.number(item, extent.frame.segment);
            self.references.count(number, &extent.frame);
        }
    }

    /// Put a record with the extents of `item` into the page; counted is it already.
    fn append(&mut self, item: &Item, mut record: Record) {
        record.extents = item.extents.iter().map(|extent| self.ours(item, *extent)).collect();
        let more = record.more;
        self.within = item.index() + 1 < item.page().records.len();
        self.store(record);
        // In a page nothing follows a record that goes on.
        if more || self.is_full() {
            self.close_page();
        }
    }

    /// The same extent, with the number its segment has in this page.
    fn ours(&mut self, item: &Item, mut extent: Extent) -> Extent {
        let number = self.references.number(item, extent.frame.segment);
        let (segments, numbers) = (&mut self.page.segments, &mut self.numbers);
        extent.frame.segment = *self.segments.entry(number).or_insert_with(|| {
            if segments.is_empty() {
                segments.push(SegmentId::default()); // the place of the one that is being filled
            }
            segments.push(self.references.segment(number).clone());
            numbers.push(number);
            numbers.len() as u32
        });
        extent
    }

    /// Where the content of a piece is.
    fn extents(&mut self, here: &Extent, runs: Option<&[Stored]>, known: Option<&Known>) {
        let Some(mut open) = self.open.take() else { return };
        let whole = [Stored::Here { inner: here.inner, len: here.len }];
        open.is_new |= runs.unwrap_or(&whole).iter().any(|run| matches!(run, Stored::Here { len: 1.., .. }));
        for run in runs.unwrap_or(&whole) {
            match (*run, known) {
                (Stored::Here { inner, len }, _) if len > 0 => {
                    open.record.extents.push(Extent { frame: here.frame, inner, len });
                }
                (Stored::Kept { at, len }, Some(known)) => {
                    self.totals.kept_bytes += u64::from(len);
                    let mut found = Vec::new();
                    open.finder.find(known, at, len.into(), |item, extent| found.push((item.clone(), extent)));
                    for (item, extent) in found {
                        join(&mut open.record.extents, self.ours(&item, extent));
                    }
                }
                _ => {}
            }
        }
        self.open = Some(open);
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
        let (blocks, digest) = (block_digests(piece, self.block_bytes), joiner.finish());
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
        self.unmirror();
        let (joiner, finder, [is_new, is_patched, lacks_crcs]) = (Joiner::default(), Finder::default(), [false; 3]);
        self.open = Some(Open { record, joiner, finder, is_new, is_patched, lacks_crcs, crc32c: None, data_bytes: 0 });
    }

    fn digests(&mut self, len: u32, piece: &Piece, crcs: Vec<u32>) {
        let Some(open) = &mut self.open else { return };
        open.record.blocks.extend(block_digests(piece, self.block_bytes));
        open.joiner.push(piece);
        open.crc32c = self.crcs.join(open.crc32c, &crcs, len.into());
        open.record.crcs.extend(crcs);
    }

    /// Of a piece that was not read as a whole: the digests and CRCs of blocks that nothing changed in are what they were;
    /// those of blocks that were read as a whole are in `read`, one after the other. Others are not known, nor is the
    /// digest of the file.
    fn carry(&mut self, known: &Known, offset: u64, runs: &[Stored], read: (&Piece, &[u32])) {
        let Some(open) = &mut self.open else { return };
        let (block, mut at) = (self.block_bytes, offset);
        let (digests, crcs) = (block_digests(read.0, block), read.1.iter().copied());
        let mut read = digests.into_iter().zip(crcs);
        let mut touched = HashMap::new();
        for run in runs {
            let (Stored::Here { len, .. } | Stored::Kept { len, .. }) = *run;
            if matches!(run, Stored::Here { .. }) && len > 0 {
                touched.extend((at / block..=(at + u64::from(len) - 1) / block).map(|block| (block, read.next())));
            }
            at += u64::from(len);
        }
        let mut all_crcs = Some(Vec::new());
        for (number, place) in (offset / block..at.div_ceil(block)).map(|number| (number, number * block)) {
            let (digest, crc) = match touched.get(&number) {
                Some(read) => read.unzip(),
                None => (known.block(place, block).copied(), known.crc(place, block)),
            };
            open.record.blocks.push(digest.unwrap_or(UNKNOWN_BLOCK));
            all_crcs = all_crcs.zip(crc).map(|(mut crcs, crc)| {
                crcs.push(crc);
                crcs
            });
        }
        match all_crcs.filter(|_| !open.lacks_crcs) {
            Some(crcs) => {
                open.crc32c = self.crcs.join(open.crc32c, &crcs, at - offset);
                open.record.crcs.extend(crcs);
            }
            None => {
                (open.lacks_crcs, open.crc32c) = (true, None);
                open.record.crcs.clear();
            }
        }
        open.is_patched = true;
    }

    fn piece(&mut self, len: u32, done: Option<&Large>) {
        let Some(open) = &mut self.open else { return };
        open.data_bytes += u64::from(len);
        if let Some(file) = done {
            self.close(file);
        }
    }

    fn close(&mut self, file: &Large) {
        let Some(open) = self.open.take() else { return };
        let Open { mut record, joiner, mut crc32c, data_bytes, is_new, is_patched, .. } = open;
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
        if let Some(known) = file.known.as_ref().filter(|known| is_patched && !is_new && is_as_long(known, data_bytes))
        {
            (record.digest, crc32c) = (known.last().digest, self.crc_of(known));
            if record.from == 0 {
                record.crcs = known.parts.iter().flat_map(|part| &part.crcs).copied().collect();
            }
        }
        if let Some(reason) = file.failed.get() {
            self.lose(&mut record, reason);
        }
        let known = file.known.as_ref().filter(|known| !is_new && is_same(&record, known));
        self.totals.kept += u64::from(file.known.is_some() && !is_new);
        match known {
            Some(known) => known.parts.iter().for_each(|item| self.mirror(item, crc32c)),
            None => {
                self.refer_to_earlier(&record);
                self.push(record, crc32c);
            }
        }
    }

    /// CRC-32C of a file as it was, if it is known.
    fn crc_of(&self, known: &Known) -> Option<u32> {
        known.parts.iter().fold(None, |crc, part| self.crcs.join(crc, &part.crcs, part.described_bytes()))
    }

    /// Count what a record of this page refers to of earlier segments.
    fn refer_to_earlier(&mut self, record: &Record) {
        for extent in record.extents.iter().filter(|extent| extent.frame.segment > 0) {
            self.references.count(self.numbers[extent.frame.segment as usize - 1], &extent.frame);
        }
    }

    /// A file of which a piece could not be read is not there, though the stream has zeros in its place.
    fn lose(&mut self, record: &mut Record, reason: &str) {
        self.lost_links.insert(record.entry.path.clone());
        record.entry.kind = Kind::File { size: 0, map: None };
        let (state, from) = (State::Unreadable(reason.to_owned()), record.from);
        *record = Record { entry: std::mem::take(&mut record.entry), state, from, ..Record::default() };
    }

    fn push(&mut self, record: Record, crc32c: Option<u32>) {
        self.unmirror();
        self.learn(&record, crc32c);
        self.store(record);
    }

    /// Count a record, and tell of it if it is the last part.
    fn learn(&mut self, record: &Record, crc32c: Option<u32>) {
        if record.from == 0 {
            self.count(&record.entry);
        }
        if !record.more {
            (self.tell)(record, crc32c);
            self.note(record);
        }
    }

    fn store(&mut self, record: Record) {
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
        let full = |count: usize, max: usize| count >= if self.within { max + max / 2 } else { max };
        full(self.page.records.len(), MAX_RECORDS)
            || full(self.extents + open, MAX_EXTENTS)
            || full(self.text_bytes, MAX_TEXT_BYTES)
    }

    /// Close the page as far as it is, if there is anything in it; a file that is under way goes on in the next one.
    pub fn close_page(&mut self) {
        self.part();
        let page = std::mem::take(&mut self.page);
        (self.extents, self.text_bytes) = (0, 0);
        self.segments.clear();
        self.numbers.clear();
        self.within = false;
        if !page.records.is_empty() {
            self.closed.push(Closed::Own(page));
        }
    }

    /// Close the last page of a sequence.
    pub fn end(&mut self) {
        self.unmirror();
        self.close_page();
    }

    /// The pages that were closed since the last call; `own` is the segment that is being filled.
    pub fn take(&mut self, own: &SegmentId) -> Vec<Closed> {
        for closed in &mut self.closed {
            let Closed::Own(page) = closed else { continue };
            match page.segments.first_mut() {
                Some(first) => first.clone_from(own),
                None => page.segments.push(own.clone()),
            }
        }
        std::mem::take(&mut self.closed)
    }

    /// Is there a page to be stored?
    pub fn has_own(&self) -> bool {
        self.closed.iter().any(|closed| matches!(closed, Closed::Own(_)))
    }

    /// Is nothing closed, or about to be?
    pub fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.page.records.is_empty() && self.mirror.is_none() && self.open.is_none()
    }

    /// What was referred to of other backups.
    pub fn live(&self) -> Vec<Live> {
        self.references.all()
    }

    fn part(&mut self) {
        let Some(open) = &mut self.open else { return };
        if open.record.extents.is_empty() {
            return; // its header has passed and nothing else: it can stand in the next page as a whole
        }
        let next = Record { entry: open.record.entry.clone(), from: open.data_bytes, ..Record::default() };
        // What it has of earlier segments stays in this page, which knows their numbers.
        let mut part = std::mem::replace(&mut open.record, next);
        part.more = true;
        if part.from == 0 {
            self.count(&part.entry);
        }
        self.refer_to_earlier(&part);
        self.page.records.push(part);
    }
}

/// Is a file that was read what it was? Its parts of earlier pages have been stored again by now, if it has any.
fn is_same(record: &Record, known: &Known) -> bool {
    let then = &known.parts[0];
    let same = record.entry == then.entry && record.state == then.state && record.digest == known.last().digest;
    record.from == 0 && same
}

fn is_as_long(known: &Known, data_bytes: u64) -> bool {
    known.parts[0].entry.data_len() == data_bytes
}

/// What is said of a file with pages that the server would refuse.
fn bad_pages(pages: &[u32]) -> String {
    const SHOWN: usize = 10;
    let shown: Vec<_> = pages.iter().take(SHOWN).map(u32::to_string).collect();
    let more = if pages.len() > SHOWN { format!(" and {} more", pages.len() - SHOWN) } else { String::new() };
    let blocks = if pages.len() == 1 { "block" } else { "blocks" };
    format!("it is stored, but page checksums are wrong: {blocks} {}{more}", shown.join(", "))
}

/// Add an extent, joined with the one before it where they touch.
fn join(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last) if last.frame == extent.frame && last.inner + last.len == extent.inner => last.len += extent.len,
        _ => extents.push(extent),
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
