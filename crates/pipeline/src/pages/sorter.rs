//! Sorts the records of a source that is not in archive order.
//!
//! Memory: [`HELD_BYTES`] of records. Beyond that they go, sorted, as one run to a temporary file
//! without a name, in blocks that are pages themselves. At the end the runs are merged, with one
//! block of each in memory.

use fullbore_format::{
    entry::order,
    error::{Error, ErrorKind, Result, quoted},
    page::{ManifestPage, Record, SegmentId},
};
use fullbore_platform::write;
use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, HashMap, VecDeque},
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::Arc,
};

/// Corrects a record before its page is written.
pub type RecordSettler = Arc<dyn Fn(&mut Record) + Send + Sync>;

/// Bytes of records in memory, about, before they are written as a run.
const HELD_BYTES: usize = 16 << 20;
/// Bytes of a record beside its path, its digests and its extents.
const RECORD_BYTES: usize = 400;
/// Bytes of an extent.
const EXTENT_BYTES: usize = 24;
/// Records in a block, and bytes of records after which a block ends.
const BLOCK_RECORDS: usize = 128;
const BLOCK_BYTES: usize = 256 << 10;

/// A record, with the segments that its extents refer to by index.
pub(super) struct SortableRecord {
    pub(super) record: Record,
    pub(super) segments: Vec<SegmentId>,
    pub(super) crc32c: Option<u32>,
}

/// Collects records in any order.
pub(super) struct RecordSorter {
    settle: RecordSettler,
    held: Vec<SortableRecord>,
    held_bytes: usize,
    runs: Vec<SortedRun>,
    file: Option<File>,
    file_bytes: u64,
    crc32c: Option<u32>,
    failed: Option<Error>,
}

/// A sorted run in the temporary file.
#[derive(Default)]
struct SortedRun {
    blocks: VecDeque<BlockAt>,
}

/// A block of a run: its place in the file, and the CRCs of its records, which pages do not hold.
struct BlockAt {
    offset: u64,
    bytes: usize,
    crcs: Vec<Option<u32>>,
}

impl RecordSorter {
    pub(super) fn new(settle: RecordSettler) -> Self {
        Self {
            settle,
            held: Vec::new(),
            held_bytes: 0,
            runs: Vec::new(),
            file: None,
            file_bytes: 0,
            crc32c: None,
            failed: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.runs.is_empty()
    }

    /// Sets the CRC of the next record.
    pub(super) fn note_crc(&mut self, crc32c: Option<u32>) {
        self.crc32c = crc32c;
    }

    /// Adds a record. An error is kept for [`RecordSorter::check`].
    pub(super) fn add(&mut self, record: Record, segments: Vec<SegmentId>) {
        let crc32c = self.crc32c.take();
        let added = SortableRecord {
            record,
            segments,
            crc32c,
        };
        self.held_bytes += added.bytes();
        self.held.push(added);
        if self.held_bytes >= HELD_BYTES && self.failed.is_none() {
            self.failed = self.write_run().err();
        }
    }

    /// # Errors
    /// The system's, if the temporary file could not be written.
    pub(super) fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Returns all records in order, and the function that corrects them.
    pub(super) fn finish(mut self) -> Result<(MergedRecords, RecordSettler)> {
        self.check()?;
        self.held.sort_by(SortableRecord::compare);
        let mut merged = MergedRecords {
            file: self.file,
            sources: Vec::new(),
            heads: BinaryHeap::new(),
        };
        merged.sources.push(RunSource {
            run: SortedRun::default(),
            block: self.held.into(),
        });
        merged
            .sources
            .extend(self.runs.into_iter().map(RunSource::new));
        for index in 0..merged.sources.len() {
            merged.advance(index)?;
        }
        Ok((merged, self.settle))
    }

    fn write_run(&mut self) -> Result<()> {
        let mut held = std::mem::take(&mut self.held);
        self.held_bytes = 0;
        held.sort_by(SortableRecord::compare);
        let mut run = SortedRun::default();
        let mut block: Vec<SortableRecord> = Vec::new();
        let mut bytes = 0;
        for next in held {
            let is_full = block.len() >= BLOCK_RECORDS || bytes >= BLOCK_BYTES;
            // In a page, every path is another one.
            let is_same = |last: &SortableRecord| last.record.entry.path == next.record.entry.path;
            if is_full || block.last().is_some_and(is_same) {
                run.blocks
                    .push_back(self.write_block(std::mem::take(&mut block))?);
                bytes = 0;
            }
            bytes += next.bytes();
            block.push(next);
        }
        run.blocks.push_back(self.write_block(block)?);
        self.runs.push(run);
        Ok(())
    }

    fn write_block(&mut self, records: Vec<SortableRecord>) -> Result<BlockAt> {
        let crcs = records.iter().map(|one| one.crc32c).collect();
        let stored = block_page(records).encode()?;
        let offset = self.file_bytes;
        self.append(&stored).map_err(|error| {
            let hint = "TMPDIR names another directory for temporary files";
            Error::io("could not write records to a temporary file", error).hint(hint)
        })?;
        Ok(BlockAt {
            offset,
            bytes: stored.len(),
            crcs,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(write::anonymous_file(&std::env::temp_dir())?),
        };
        write::pwrite_all(&*file, bytes, self.file_bytes)?;
        self.file_bytes += bytes.len() as u64;
        Ok(())
    }
}

impl SortableRecord {
    fn compare(&self, other: &Self) -> Ordering {
        let by_path = order(&self.record.entry.path, &other.record.entry.path);
        by_path.then(self.record.from.cmp(&other.record.from))
    }

    fn bytes(&self) -> usize {
        let record = &self.record;
        let texts = record.entry.text_bytes() + record.digest_bytes();
        RECORD_BYTES + texts + record.extents.len() * EXTENT_BYTES
    }
}

/// Returns a page of these records. The last one may continue elsewhere.
fn block_page(records: Vec<SortableRecord>) -> ManifestPage {
    let mut page = ManifestPage::default();
    let mut numbers = SegmentNumbers::default();
    for SortableRecord {
        mut record,
        segments,
        ..
    } in records
    {
        for extent in &mut record.extents {
            let id = &segments[extent.frame.segment as usize];
            extent.frame.segment = numbers.number(id, &mut page.segments);
        }
        page.records.push(record);
    }
    page
}

/// The numbers of segments in a page.
#[derive(Default)]
pub(super) struct SegmentNumbers(HashMap<SegmentId, u32>);

impl SegmentNumbers {
    /// Returns the number of a segment, and adds it to those of the page if it is new.
    pub(super) fn number(&mut self, id: &SegmentId, segments: &mut Vec<SegmentId>) -> u32 {
        if let Some(number) = self.0.get(id) {
            return *number;
        }
        let number = segments.len() as u32;
        segments.push(id.clone());
        self.0.insert(id.clone(), number);
        number
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// All records, in order.
pub(super) struct MergedRecords {
    file: Option<File>,
    sources: Vec<RunSource>,
    heads: BinaryHeap<Reverse<RunHead>>,
}

/// A run that is read.
struct RunSource {
    run: SortedRun,
    block: VecDeque<SortableRecord>,
}

/// The next record of a run.
struct RunHead {
    next: SortableRecord,
    source: usize,
}

impl RunSource {
    fn new(run: SortedRun) -> Self {
        Self {
            run,
            block: VecDeque::new(),
        }
    }
}

impl MergedRecords {
    /// Returns the next record.
    ///
    /// # Errors
    /// The system's, about the temporary file.
    pub(super) fn next(&mut self) -> Result<Option<SortableRecord>> {
        let Some(Reverse(head)) = self.heads.pop() else {
            return Ok(None);
        };
        self.advance(head.source)?;
        Ok(Some(head.next))
    }

    /// Makes the next record of a run its head.
    fn advance(&mut self, source: usize) -> Result<()> {
        let run = &mut self.sources[source];
        if run.block.is_empty()
            && let Some(place) = run.run.blocks.pop_front()
        {
            run.block = read_block(self.file.as_ref(), place)?;
        }
        let next = run.block.pop_front();
        self.heads
            .extend(next.map(|next| Reverse(RunHead { next, source })));
        Ok(())
    }
}

fn read_block(file: Option<&File>, at: BlockAt) -> Result<VecDeque<SortableRecord>> {
    let lost = || Error::new(ErrorKind::Bug, "the file of sorted records is not there");
    let file = file.ok_or_else(lost)?;
    let mut stored = vec![0; at.bytes];
    file.read_exact_at(&mut stored, at.offset)
        .map_err(|error| Error::io("could not read records in a temporary file", error))?;
    let page = ManifestPage::decode(&stored)?;
    let segments = page.segments;
    let records = page.records.into_iter().zip(at.crcs);
    Ok(records
        .map(|(mut record, crc32c)| SortableRecord {
            segments: own_segments(&mut record, &segments),
            record,
            crc32c,
        })
        .collect())
}

/// Returns the segments that a record of a page refers to, and gives it their numbers.
pub(super) fn own_segments(record: &mut Record, of_page: &[SegmentId]) -> Vec<SegmentId> {
    let mut numbers = SegmentNumbers::default();
    let mut segments = Vec::new();
    for extent in &mut record.extents {
        let id = &of_page[extent.frame.segment as usize];
        extent.frame.segment = numbers.number(id, &mut segments);
    }
    segments
}

/// The error of a source that delivers an entry twice.
pub(super) fn twice(path: &[u8]) -> Error {
    let message = format!("cannot store {}", quoted(path));
    Error::new(ErrorKind::Corrupt, message).because("the source sent it twice")
}

impl Ord for RunHead {
    fn cmp(&self, other: &Self) -> Ordering {
        self.next
            .compare(&other.next)
            .then(self.source.cmp(&other.source))
    }
}

impl PartialOrd for RunHead {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RunHead {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for RunHead {}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::{
        entry::{Entry, EntryKind},
        page::{Extent, FrameAt},
    };
    use std::sync::Arc;

    fn record(path: String, segment: u32) -> Record {
        let frame = FrameAt {
            segment,
            offset: 7,
            stored_len: 8,
            plain_len: 9,
        };
        let entry = Entry {
            path: path.into_bytes(),
            kind: EntryKind::File { size: 9, map: None },
            ..Entry::default()
        };
        Record {
            entry,
            blocks: vec![[1; 16]; 1000],
            extents: vec![Extent {
                frame,
                inner: 0,
                len: 9,
            }],
            ..Record::default()
        }
    }

    #[test]
    fn records_come_back_in_order_with_their_segments_and_crcs_from_several_runs() {
        let mut sorter = RecordSorter::new(Arc::new(|_| {}));
        let id = |number: u32| SegmentId {
            backup: String::new(),
            stream: 1,
            number,
        };
        let count = 4000_u32;
        for index in 0..count {
            let number = index * 1237 % count; // every number once, as 1237 is a prime
            sorter.note_crc(Some(number));
            sorter.add(record(format!("{number:05}"), 1), vec![id(0), id(number)]);
        }
        sorter.check().unwrap();
        assert!(sorter.runs.len() > 2, "{}", sorter.runs.len());
        let (mut merged, _) = sorter.finish().unwrap();
        for number in 0..count {
            let next = merged.next().unwrap().unwrap();
            assert_eq!(next.record.entry.path, format!("{number:05}").as_bytes());
            assert_eq!(next.crc32c, Some(number));
            let segment = next.record.extents[0].frame.segment as usize;
            assert_eq!(next.segments[segment], id(number));
        }
        assert!(merged.next().unwrap().is_none());
    }
}
