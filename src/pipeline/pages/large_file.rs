//! A large file that is under way: piece by piece it gets its extents, its digests and its CRC.

use super::PageWriter;
use crate::{
    format::{
        digest::{Joiner, Piece},
        entry::{Entry, EntryKind},
        page::{EntryState, Extent, Record, UNKNOWN_BLOCK, block_digests},
        sizes,
    },
    frame::LargeFile,
    known::{BaseEntry, Finder, StoredRun},
    queue::Locked,
};
use std::{collections::HashMap, sync::atomic::Ordering::Acquire};

/// A large file that is under way.
pub(super) struct OpenLargeFile {
    pub(super) record: Record,
    joiner: Joiner,
    finder: Finder,
    /// Did anything have to be stored?
    is_new: bool,
    /// Was only read what was known to have changed?
    is_patched: bool,
    /// Did any of that differ?
    differs: bool,
    /// Is the CRC of one of its blocks not known?
    lacks_crcs: bool,
    crc32c: Option<u32>,
    data_bytes: u64,
}

impl PageWriter {
    /// Where the content of a piece is.
    pub(super) fn extents(
        &mut self,
        here: &Extent,
        runs: Option<&[StoredRun]>,
        known: Option<&BaseEntry>,
    ) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        let whole = [StoredRun::Here {
            inner: here.inner,
            len: here.len,
        }];
        open.is_new |= runs
            .unwrap_or(&whole)
            .iter()
            .any(|run| matches!(run, StoredRun::Here { len: 1.., .. }));
        for run in runs.unwrap_or(&whole) {
            match (*run, known) {
                (StoredRun::Here { inner, len }, _) if len > 0 => {
                    open.record.extents.push(Extent {
                        frame: here.frame,
                        inner,
                        len,
                    });
                }
                (StoredRun::Kept { at, len }, Some(known)) => {
                    sizes::add(&mut self.totals.kept_bytes, len.into());
                    let mut found = Vec::new();
                    open.finder.find(known, at, len.into(), |item, extent| {
                        found.push((item.clone(), extent))
                    });
                    for (item, extent) in found {
                        join(&mut open.record.extents, self.ours(&item, extent));
                    }
                }
                _ => {}
            }
        }
        self.open = Some(open);
    }

    pub(super) fn head(&mut self, entry: Entry) {
        let record = Record {
            entry,
            ..Record::default()
        };
        self.unmirror();
        let (joiner, finder) = (Joiner::default(), Finder::default());
        let [is_new, is_patched, differs, lacks_crcs] = [false; 4];
        let (crc32c, data_bytes) = (None, 0);
        let open = OpenLargeFile {
            record,
            joiner,
            finder,
            is_new,
            is_patched,
            differs,
            lacks_crcs,
            crc32c,
            data_bytes,
        };
        self.open = Some(open);
    }

    pub(super) fn digests(&mut self, len: u32, piece: &Piece, crcs: Vec<u32>) {
        let Some(open) = &mut self.open else { return };
        open.record
            .blocks
            .extend(block_digests(piece, self.block_bytes));
        open.joiner.push(piece);
        open.crc32c = self.crcs.join(open.crc32c, &crcs, len.into());
        open.record.crcs.extend(crcs);
    }

    /// Of a piece that was not read as a whole: the digests and CRCs of blocks that nothing changed in are what they were;
    /// those of blocks that were read as a whole are in `read`, one after the other. Others are not known, nor is the
    /// digest of the file.
    pub(super) fn carry(
        &mut self,
        known: &BaseEntry,
        offset: u64,
        runs: &[StoredRun],
        read: (&Piece, &[u32]),
    ) {
        let Some(open) = &mut self.open else { return };
        let (block, mut at) = (self.block_bytes, offset);
        let (digests, crcs) = (block_digests(read.0, block), read.1.iter().copied());
        let mut read = digests.into_iter().zip(crcs);
        let mut touched = HashMap::new();
        for run in runs {
            let (StoredRun::Here { len, .. } | StoredRun::Kept { len, .. }) = *run;
            if matches!(run, StoredRun::Here { .. }) && len > 0 {
                touched.extend(
                    (at / block..=(at + u64::from(len) - 1) / block)
                        .map(|block| (block, read.next())),
                );
            }
            at += u64::from(len);
        }
        let mut all_crcs = Some(Vec::new());
        for (number, place) in
            (offset / block..at.div_ceil(block)).map(|number| (number, number * block))
        {
            let (digest, crc) = match touched.get(&number) {
                Some(read) => {
                    open.differs |=
                        read.is_none_or(|(digest, _)| known.block(place, block) != Some(&digest));
                    read.unzip()
                }
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

    pub(super) fn piece(&mut self, len: u32, done: Option<&LargeFile>) {
        let Some(open) = &mut self.open else { return };
        open.data_bytes += u64::from(len);
        if let Some(file) = done {
            self.close(file);
        }
    }

    fn close(&mut self, file: &LargeFile) {
        let Some(open) = self.open.take() else { return };
        let OpenLargeFile {
            mut record,
            joiner,
            mut crc32c,
            data_bytes,
            is_patched,
            is_new,
            differs,
            ..
        } = open;
        if let (true, EntryKind::File { size, .. }) = (file.is_endless(), &mut record.entry.kind) {
            *size = data_bytes;
        }
        if file.changed.load(Acquire) {
            record.state = EntryState::Changed;
        }
        let bad_pages = std::mem::take(&mut *file.bad_pages.locked());
        if !bad_pages.is_empty() {
            record.state = EntryState::bad_pages(bad_pages);
        }
        record.digest = joiner.finish();
        if record.from == 0 && record.blocks.len() < 2 {
            record.blocks.clear();
        }
        let is_same_content = is_patched && !differs && record.state != EntryState::Changed;
        if let Some(known) = file
            .known
            .as_ref()
            .filter(|known| is_same_content && is_as_long(known, data_bytes))
        {
            (record.digest, crc32c) = (known.last().digest, self.crc_of(known));
            if record.from == 0 {
                record.crcs = known
                    .parts
                    .iter()
                    .flat_map(|part| &part.crcs)
                    .copied()
                    .collect();
            }
        }
        if let Some(reason) = file.failed.get() {
            self.lose(&mut record, reason);
        }
        let known = file
            .known
            .as_ref()
            .filter(|known| !is_new && is_same(&record, known));
        self.totals.kept += u64::from(file.known.is_some() && !is_new);
        match known {
            Some(known) => known
                .parts
                .iter()
                .for_each(|item| self.mirror(item, crc32c)),
            None => {
                self.refer_to_earlier(&record);
                self.push(record, crc32c);
            }
        }
    }

    /// A file of which a piece could not be read is not there, though the stream has zeros in its place.
    fn lose(&mut self, record: &mut Record, reason: &str) {
        self.lost_links.insert(record.entry.path.clone());
        record.entry.clear_content();
        let (state, from) = (EntryState::Unreadable(reason.to_owned()), record.from);
        *record = Record {
            entry: std::mem::take(&mut record.entry),
            state,
            from,
            ..Record::default()
        };
    }

    pub(super) fn part(&mut self) {
        let Some(open) = &mut self.open else { return };
        if open.record.extents.is_empty() {
            return; // its header has passed and nothing else: it can stand in the next page as a whole
        }
        let next = Record {
            entry: open.record.entry.clone(),
            from: open.data_bytes,
            ..Record::default()
        };
        // What it has of earlier segments stays in this page, which knows their numbers.
        let mut part = std::mem::replace(&mut open.record, next);
        part.more = true;
        if let EntryKind::File {
            size: size @ u64::MAX,
            ..
        } = &mut part.entry.kind
        {
            *size = open.data_bytes; // so much is known of a stream
        }
        self.refer_to_earlier(&part);
        self.page.records.push(part);
    }
}

/// Is a file that was read what it was? Its parts of earlier pages have been stored again by now, if it has any.
fn is_same(record: &Record, known: &BaseEntry) -> bool {
    let then = &known.parts[0];
    let same = record.entry == then.entry
        && record.state == then.state
        && record.digest == known.last().digest;
    record.from == 0 && same
}

fn is_as_long(known: &BaseEntry, data_bytes: u64) -> bool {
    known.parts[0].entry.data_len() == data_bytes
}

/// Add an extent, joined with the one before it where they touch.
fn join(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last) if last.frame == extent.frame && last.inner + last.len == extent.inner => {
            last.len += extent.len
        }
        _ => extents.push(extent),
    }
}
