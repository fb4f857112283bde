//! Writes the pages of a source that was not in archive order, when all of it was read.

use super::{
    PageWriter,
    sorter::{MergedRecords, RecordSettler, SegmentNumbers, SortableRecord, twice},
};
use fullbore_format::{
    entry::EntryPath,
    error::Result,
    page::{Record, SegmentId},
};

/// The sorted records, and the page that is filled with them.
pub(super) struct SortedPages {
    records: MergedRecords,
    settle: RecordSettler,
    numbers: SegmentNumbers,
    /// Path of the last record, and whether the record continues.
    last: Option<(EntryPath, bool)>,
}

impl PageWriter {
    /// Reports that the frames that follow are in the segment of this number.
    pub fn begin_segment(&mut self, number: u32) {
        self.segment = number;
    }

    /// Returns an error of the records that are sorted.
    ///
    /// # Errors
    /// The system's, about a temporary file.
    pub fn check_sorter(&mut self) -> Result<()> {
        self.sorter.as_mut().map_or(Ok(()), |sorter| sorter.check())
    }

    /// Keeps a record until all are known, with the segments that it refers to.
    pub(super) fn defer_record(&mut self, mut record: Record) {
        let own = SegmentId {
            backup: String::new(),
            stream: self.stream,
            number: self.segment,
        };
        let number = self.own.number_of(&own);
        let extents = record.extents.iter();
        for extent in extents.filter(|extent| extent.frame.segment == 0) {
            self.own.count(number, &record, extent);
        }
        let mut numbers = SegmentNumbers::default();
        let mut segments = Vec::new();
        for extent in &mut record.extents {
            let id = match extent.frame.segment {
                0 => &own,
                earlier => &self.page.segments[earlier as usize],
            };
            extent.frame.segment = numbers.number(id, &mut segments);
        }
        if let Some(sorter) = &mut self.sorter {
            sorter.add(record, segments);
        }
    }

    /// Fills the next page of a sequence that was not in order. Returns false when there is none,
    /// as for all sequences that were.
    ///
    /// # Errors
    /// The system's, about a temporary file; [`ErrorKind::Corrupt`] if an entry came twice.
    ///
    /// [`ErrorKind::Corrupt`]: fullbore_format::error::ErrorKind::Corrupt
    pub fn add_sorted_page(&mut self) -> Result<bool> {
        if self.sorter.is_some() {
            self.close_page(); // a file that was not completed
        }
        if let Some(sorter) = self.sorter.take() {
            let (records, settle) = sorter.finish()?;
            self.sorted = Some(SortedPages {
                records,
                settle,
                numbers: SegmentNumbers::default(),
                last: None,
            });
        }
        let Some(mut sorted) = self.sorted.take() else {
            return Ok(false);
        };
        while let Some(next) = sorted.records.next()? {
            sorted.check_order(&next.record)?;
            let more = next.record.more;
            self.add_sorted(&mut sorted, next);
            // A record that continues on the next page must be the last in its page.
            if more || self.is_full() {
                self.close_page();
                sorted.numbers.clear();
                self.sorted = Some(sorted);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn add_sorted(&mut self, sorted: &mut SortedPages, next: SortableRecord) {
        let SortableRecord {
            mut record,
            segments,
            crc32c,
        } = next;
        (sorted.settle)(&mut record);
        let page = &mut self.page.segments;
        for extent in &mut record.extents {
            if page.is_empty() {
                page.push(SegmentId::default()); // the segment of the page
            }
            let id = &segments[extent.frame.segment as usize];
            extent.frame.segment = sorted.numbers.number(id, page);
        }
        self.report_record(&record, crc32c);
        self.store_record(record);
    }
}

impl SortedPages {
    /// Checks that a path comes once, or in parts.
    fn check_order(&mut self, record: &Record) -> Result<()> {
        let path = &record.entry.path;
        let is_twice = |(last, more): &(EntryPath, bool)| last == path && !more;
        if self.last.as_ref().is_some_and(is_twice) {
            return Err(twice(path));
        }
        self.last = Some((path.clone(), record.more));
        Ok(())
    }
}
