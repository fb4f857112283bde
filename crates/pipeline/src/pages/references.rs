//! References of pages to earlier backups: unchanged records, whole pages, and extents.

use super::{ClosedPage, MIN_RECORDS, PageWriter};
use crate::known::{BaseEntry, Trust};
use fullbore_format::{
    entry::Entry,
    page::{EntryState, Extent, ManifestPage, PageItem, Record, SegmentId},
    sizes,
};
use std::sync::Arc;

impl PageWriter {
    /// Adds an entry that an earlier backup has completely.
    pub(super) fn add_known(&mut self, entry: Entry, mut state: EntryState, known: &BaseEntry) {
        self.check_link(&entry, &mut state, true);
        self.totals.kept += u64::from(entry.is_file());
        sizes::add(
            &mut self.totals.kept_bytes,
            sizes::sum(known.parts.iter().map(|part| part.described_bytes())),
        );
        let crc32c = self.crc_of(known);
        for item in known.parts.iter() {
            // Whole pages can be referred to only if every record in them is the same to the byte.
            let is_same = known.trust == Trust::Same && state.is_stored() == item.state.is_stored();
            if is_same || (item.entry == entry && item.state == state) {
                self.mirror_record(item, crc32c);
            } else {
                let record = Record {
                    entry: entry.clone(),
                    state: state.clone(),
                    ..Record::clone(item)
                };
                self.add_reference(item, record, crc32c);
            }
        }
    }

    /// Adds an unchanged record of an earlier backup.
    pub(super) fn mirror_record(&mut self, item: &PageItem, crc32c: Option<u32>) {
        let page = item.page();
        let index = item.index();
        // Late pages and pages of other streams have another order. A page without a manifest goes
        // with its segment.
        if index == 0
            && page.origin.as_ref().is_some_and(|origin| {
                origin.stream == self.stream && !origin.late && origin.manifest_offset.is_some()
            })
            && self.may_close()
        {
            self.close_page();
            self.mirror = Some((page.clone(), 0));
        }
        match &mut self.mirror {
            Some((mirrored, next)) if Arc::ptr_eq(mirrored, page) && *next == index => *next += 1,
            _ => return self.add_reference(item, Record::clone(item), crc32c),
        }
        self.report_record(item, crc32c);
        self.count_references(item);
        self.complete_mirror();
    }

    fn may_close(&self) -> bool {
        self.sorter.is_none()
            && self.mirror.is_none()
            && (self.page.records.is_empty() || self.page.records.len() >= MIN_RECORDS)
    }

    fn complete_mirror(&mut self) {
        let complete = |(page, next): &(Arc<ManifestPage>, usize)| *next == page.records.len();
        if let Some((page, _)) = self.mirror.take_if(|mirror| complete(mirror))
            && let Some(origin) = &page.origin
        {
            self.closed.push(ClosedPage::Earlier(origin.clone()));
        }
    }

    /// Gives up the reference to a whole page because the next record differs: its records so far
    /// move to an own page.
    pub(super) fn end_mirror(&mut self) {
        let Some((page, count)) = self.mirror.take() else {
            return;
        };
        for item in (0..count).filter_map(|index| PageItem::new(page.clone(), index)) {
            self.append_record(&item, Record::clone(&item));
        }
    }

    /// Adds a record whose extents all belong to an earlier backup.
    fn add_reference(&mut self, item: &PageItem, record: Record, crc32c: Option<u32>) {
        self.end_mirror();
        self.report_record(&record, crc32c);
        self.count_references(item);
        self.append_record(item, record);
    }

    fn count_references(&mut self, item: &PageItem) {
        for extent in &item.extents {
            let number = self.references.number(item, extent.frame.segment);
            self.references.count(number, item, extent);
        }
    }

    /// Adds a record with the extents of `item` to the page. The references are counted already.
    fn append_record(&mut self, item: &PageItem, mut record: Record) {
        record.extents = item
            .extents
            .iter()
            .map(|extent| self.renumbered(item, *extent))
            .collect();
        let more = record.more;
        self.within = item.index() + 1 < item.page().records.len();
        self.store_record(record);
        // A record that continues on the next page must be the last in its page.
        if more || self.is_full() {
            self.close_page();
        }
    }

    /// Returns the extent with the number that its segment has in this page.
    pub(super) fn renumbered(&mut self, item: &PageItem, mut extent: Extent) -> Extent {
        let number = self.references.number(item, extent.frame.segment);
        let segments = &mut self.page.segments;
        let numbers = &mut self.numbers;
        extent.frame.segment = *self.segments.entry(number).or_insert_with(|| {
            if segments.is_empty() {
                segments.push(SegmentId::default()); // the open segment
            }
            segments.push(self.references.segment(number).clone());
            numbers.push(number);
            numbers.len() as u32
        });
        extent
    }

    /// Returns the CRC-32C of a file in the base, if known.
    pub(super) fn crc_of(&self, known: &BaseEntry) -> Option<u32> {
        let has_all = |part: &PageItem| {
            part.crcs.len() as u64 == part.described_bytes().div_ceil(self.block_bytes)
        };
        known
            .parts
            .iter()
            .try_fold(None, |crc, part| {
                has_all(part).then(|| self.crcs.join(crc, &part.crcs, part.described_bytes()))
            })
            .flatten()
    }

    /// Counts the references of a record to earlier segments.
    pub(super) fn count_earlier_references(&mut self, record: &Record) {
        for extent in record
            .extents
            .iter()
            .filter(|extent| extent.frame.segment > 0)
        {
            self.references.count(
                self.numbers[extent.frame.segment as usize - 1],
                record,
                extent,
            );
        }
    }
}
