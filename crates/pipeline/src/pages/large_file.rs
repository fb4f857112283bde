//! A large file in progress: collects the extents, digests and CRCs of its pieces.

use super::PageWriter;
use crate::{
    frame::LargeFile,
    known::{BaseEntry, Finder, StoredRun},
};
use fullbore_format::{
    digest::{Joiner, Piece},
    entry::{Entry, EntryKind},
    page::{BLOCK_DIGEST_BYTES, EntryState, Extent, Record, UNKNOWN_BLOCK, block_digests},
    sizes,
};
use fullbore_platform::queue::Locked;
use std::{collections::HashMap, sync::atomic::Ordering::Acquire};

pub(super) struct OpenLargeFile {
    pub(super) record: Record,
    joiner: Joiner,
    finder: Finder,
    /// Whether any content had to be stored.
    is_new: bool,
    /// Whether only known changes were read.
    is_patched: bool,
    /// Whether any of the read blocks differ.
    differs: bool,
    /// Whether the CRC of a block is unknown.
    lacks_crcs: bool,
    crc32c: Option<u32>,
    data_bytes: u64,
}

/// A large file after its last piece.
struct ClosedLargeFile {
    record: Record,
    crc32c: Option<u32>,
    data_bytes: u64,
    is_new: bool,
    /// Whether only known changes were read and none of them differed.
    is_same_content: bool,
}

impl OpenLargeFile {
    /// Completes the record with the state and the digest of the file.
    fn close(self, file: &LargeFile) -> ClosedLargeFile {
        let mut record = self.record;
        if file.is_endless()
            && let EntryKind::File { size, .. } = &mut record.entry.kind
        {
            *size = self.data_bytes;
        }
        if file.changed.load(Acquire) {
            record.state = EntryState::Changed;
        }
        let bad_pages = std::mem::take(&mut *file.bad_pages.locked());
        if !bad_pages.is_empty() {
            record.state = EntryState::bad_pages(bad_pages);
        }
        record.digest = self.joiner.finish();
        // One block covers the whole file, whose digest says the same.
        if record.from == 0 && record.blocks.len() < 2 {
            record.blocks.clear();
        }
        ClosedLargeFile {
            is_same_content: self.is_patched
                && !self.differs
                && record.state != EntryState::Changed,
            record,
            crc32c: self.crc32c,
            data_bytes: self.data_bytes,
            is_new: self.is_new,
        }
    }
}

impl ClosedLargeFile {
    /// Takes digest and CRCs from the base, for a file of which only some blocks were read.
    fn take_digests(&mut self, known: &BaseEntry, crc32c: Option<u32>) {
        self.record.digest = known.last().digest;
        self.crc32c = crc32c;
        if self.record.from == 0 {
            let crcs = known.parts.iter().flat_map(|part| &part.crcs);
            self.record.crcs = crcs.copied().collect();
        }
    }
}

impl PageWriter {
    /// Records the extents of a piece.
    pub(super) fn add_extents(
        &mut self,
        whole_extent: &Extent,
        runs: Option<&[StoredRun]>,
        known: Option<&BaseEntry>,
    ) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        let whole = [StoredRun::Here {
            inner: whole_extent.inner,
            len: whole_extent.len,
        }];
        open.is_new |= runs
            .unwrap_or(&whole)
            .iter()
            .any(|run| matches!(run, StoredRun::Here { len: 1.., .. }));
        for run in runs.unwrap_or(&whole) {
            match (*run, known) {
                (StoredRun::Here { inner, len }, _) if len > 0 => {
                    open.record.extents.push(Extent {
                        frame: whole_extent.frame,
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
                        // Neighbours in one frame are joined: a file with many small changes would
                        // have an extent for each block otherwise.
                        push_joined(&mut open.record.extents, self.renumbered(&item, extent));
                    }
                }
                _ => {}
            }
        }
        self.open = Some(open);
    }

    pub(super) fn begin_file(&mut self, entry: Entry) {
        let record = Record {
            entry,
            ..Record::default()
        };
        self.end_mirror();
        let joiner = Joiner::default();
        let finder = Finder::default();
        let [is_new, is_patched, differs, lacks_crcs] = [false; 4];
        let crc32c = None;
        let data_bytes = 0;
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

    pub(super) fn add_digests(&mut self, len: u32, piece: &Piece, crcs: Vec<u32>) {
        let Some(open) = &mut self.open else { return };
        open.record
            .blocks
            .extend(block_digests(piece, self.block_bytes));
        open.joiner.push(piece);
        open.crc32c = self.crcs.join(open.crc32c, &crcs, len.into());
        open.record.crcs.extend(crcs);
    }

    /// Records the blocks of a piece that was read in part. Unchanged blocks keep their digests and
    /// CRCs; those of completely read blocks are in `read`, in order. Other blocks become unknown,
    /// and so does the digest of the file.
    pub(super) fn carry_blocks(
        &mut self,
        known: &BaseEntry,
        offset: u64,
        runs: &[StoredRun],
        read: (&Piece, &[u32]),
    ) {
        let Some(open) = &mut self.open else { return };
        let block = self.block_bytes;
        let touched = touched_blocks(offset, runs, read, block);
        let end = offset + sizes::sum(runs.iter().map(run_len));
        let mut all_crcs = Some(Vec::new());
        for number in offset / block..end.div_ceil(block) {
            let place = number * block;
            let (digest, crc) = match touched.get(&number) {
                Some(read) => {
                    // A block may be read and be the same: only a digest that differs makes the
                    // file another one.
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
                open.crc32c = self.crcs.join(open.crc32c, &crcs, end - offset);
                open.record.crcs.extend(crcs);
            }
            None => {
                open.lacks_crcs = true;
                open.crc32c = None;
                open.record.crcs.clear();
            }
        }
        open.is_patched = true;
    }

    pub(super) fn add_piece(&mut self, len: u32, done: Option<&LargeFile>) {
        let Some(open) = &mut self.open else { return };
        open.data_bytes += u64::from(len);
        if let Some(file) = done {
            self.close_file(file);
        }
    }

    fn close_file(&mut self, file: &LargeFile) {
        let Some(open) = self.open.take() else { return };
        // The state is known only now: a file may change until its last piece was read.
        let mut closed = open.close(file);
        if let Some(known) = file
            .known
            .as_ref()
            .filter(|known| closed.is_same_content && has_length(known, closed.data_bytes))
        {
            let crc32c = self.crc_of(known);
            closed.take_digests(known, crc32c);
        }
        let ClosedLargeFile {
            mut record,
            crc32c,
            is_new,
            ..
        } = closed;
        if let Some(reason) = file.failed.get() {
            self.mark_lost(&mut record, reason);
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
                .for_each(|item| self.mirror_record(item, crc32c)),
            None => {
                self.count_earlier_references(&record);
                self.push_record(record, crc32c);
            }
        }
    }

    /// Marks a file as not captured because a piece could not be read. The stream has zeros in its
    /// place.
    fn mark_lost(&mut self, record: &mut Record, reason: &str) {
        self.lost_links.insert(record.entry.path.clone());
        record.entry.clear_content();
        let state = EntryState::Unreadable(reason.to_owned());
        let start = record.from;
        *record = Record {
            entry: std::mem::take(&mut record.entry),
            state,
            from: start,
            ..Record::default()
        };
    }

    pub(super) fn split_file(&mut self) {
        let Some(open) = &mut self.open else { return };
        if open.record.extents.is_empty() {
            return; // only the header so far: the next page can hold the whole record
        }
        let next = Record {
            entry: open.record.entry.clone(),
            from: open.data_bytes,
            ..Record::default()
        };
        // Its references to earlier segments stay in this page, which has their numbers.
        let mut part = std::mem::replace(&mut open.record, next);
        part.more = true;
        if let EntryKind::File {
            size: size @ u64::MAX,
            ..
        } = &mut part.entry.kind
        {
            *size = open.data_bytes; // the length of the stream so far
        }
        self.count_earlier_references(&part);
        match self.sorter {
            Some(_) => self.defer_record(part),
            None => self.page.records.push(part),
        }
    }
}

fn run_len(run: &StoredRun) -> u64 {
    let (StoredRun::Here { len, .. } | StoredRun::Kept { len, .. }) = *run;
    len.into()
}

/// Returns the numbers of the blocks with bytes that were read, each with its digest and CRC if it
/// was read completely.
fn touched_blocks(
    offset: u64,
    runs: &[StoredRun],
    (piece, crcs): (&Piece, &[u32]),
    block: u64,
) -> HashMap<u64, Option<([u8; BLOCK_DIGEST_BYTES], u32)>> {
    let digests = block_digests(piece, block);
    let mut read = digests.into_iter().zip(crcs.iter().copied());
    let mut touched = HashMap::new();
    let mut position = offset;
    for run in runs {
        let len = run_len(run);
        if matches!(run, StoredRun::Here { .. }) && len > 0 {
            let numbers = position / block..=(position + len - 1) / block;
            touched.extend(numbers.map(|number| (number, read.next())));
        }
        position += len;
    }
    touched
}

/// Returns whether a file is unchanged. A file with parts on earlier pages counts as changed,
/// because those parts are stored already.
fn is_same(record: &Record, known: &BaseEntry) -> bool {
    let earlier = &known.parts[0];
    let same = record.entry == earlier.entry
        && record.state == earlier.state
        && record.digest == known.last().digest;
    record.from == 0 && same
}

fn has_length(known: &BaseEntry, data_bytes: u64) -> bool {
    known.parts[0].entry.data_len() == data_bytes
}

/// Adds an extent, joined with the previous one if both touch.
fn push_joined(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last) if last.frame == extent.frame && last.inner + last.len == extent.inner => {
            last.len += extent.len
        }
        _ => extents.push(extent),
    }
}
