//! The contents that other backups list, in memory: sorted by digest, and large files by size.
//!
//! A row is a hint of 16 bytes. If there are more rows than the memory may have, those of the smallest files are dropped: then less is
//! found, and nothing wrong.

use fullbore_format::content_list::ListedContent;

/// Where a record is: the number of its page in [`ContentTable::pages`], and its number in the page.
pub(super) type RecordPlace = (u32, u16);

/// A content by its digest.
#[derive(Debug, Clone, Copy)]
struct ContentRow {
    digest: u64,
    page: u32,
    record: u16,
    /// Grows with the size.
    size_class: u16,
}

/// Rows of listed contents.
#[derive(Debug, Default)]
pub(super) struct ContentTable {
    /// By digest, each digest once.
    rows: Vec<ContentRow>,
    /// Files with frames of their own, by size.
    large: Vec<(u64, RecordPlace)>,
    /// For each page its backup, by number, and its number in the root of that backup.
    pub(super) pages: Vec<(u32, u32)>,
}

/// Bytes of a row.
const ROW_BYTES: u64 = 16;

/// Collects rows.
pub(super) struct ContentTableBuilder {
    table: ContentTable,
    /// Rows at most, of each kind.
    most: usize,
    /// Bytes above which a file has frames of its own.
    frame_bytes: u64,
    /// The least class that is kept.
    least: u16,
}

impl ContentTableBuilder {
    /// Begins a table of at most `most_bytes`.
    pub(super) fn new(most_bytes: u64, frame_bytes: u64, pages: Vec<(u32, u32)>) -> Self {
        let table = ContentTable {
            pages,
            ..ContentTable::default()
        };
        // Twice as many rows are collected before the smallest are dropped.
        let most = usize::try_from(most_bytes / ROW_BYTES / 2).unwrap_or(usize::MAX);
        Self {
            table,
            most: most.max(1024),
            frame_bytes,
            least: 0,
        }
    }

    /// Adds a file whose record is in this page. Of equal contents the first one counts.
    pub(super) fn add(&mut self, file: &ListedContent, page: u32) {
        if file.size > self.frame_bytes {
            if self.table.large.len() < self.most / 4 {
                self.table.large.push((file.size, (page, file.record)));
            }
            return;
        }
        let row = ContentRow {
            digest: file.digest,
            page,
            record: file.record,
            size_class: size_class(file.size),
        };
        if row.size_class < self.least {
            return;
        }
        self.table.rows.push(row);
        if self.table.rows.len() > 2 * self.most {
            self.shorten();
        }
    }

    fn shorten(&mut self) {
        self.sort();
        let rows = &mut self.table.rows;
        if rows.len() > self.most {
            let most = self.most;
            rows.select_nth_unstable_by(most, |a, b| b.size_class.cmp(&a.size_class));
            rows.truncate(most);
            self.least = { rows.iter() }.map(|row| row.size_class).min().unwrap_or(0);
        }
    }

    /// Pages are numbered in the order of trust, so that the first of equal rows is the best.
    fn sort(&mut self) {
        let rows = &mut self.table.rows;
        rows.sort_unstable_by_key(|row| (row.digest, row.page, row.record));
        rows.dedup_by_key(|row| row.digest);
    }

    pub(super) fn finish(mut self) -> ContentTable {
        self.shorten();
        self.sort();
        self.table.large.sort_unstable();
        self.table.rows.shrink_to_fit();
        self.table
    }
}

impl ContentTable {
    /// Returns the place of the record of a file whose digest begins so.
    pub(super) fn with_digest(&self, digest: u64) -> Option<RecordPlace> {
        let found = self.rows.binary_search_by_key(&digest, |row| row.digest);
        let row = self.rows[found.ok()?];
        Some((row.page, row.record))
    }

    /// Returns the places of the records of large files of this size.
    pub(super) fn with_size(&self, size: u64) -> impl Iterator<Item = RecordPlace> {
        let first = self.large.partition_point(|(other, _)| *other < size);
        let equal = self.large[first..].iter();
        equal
            .take_while(move |(other, _)| *other == size)
            .map(|(_, place)| *place)
    }
}

/// Returns a number of 16 bits that grows with a size: the position of its first bit, and the ten bits behind.
fn size_class(size: u64) -> u16 {
    let size = size.min(1 << 62);
    let bits = 64 - size.leading_zeros();
    let behind = (size << (64 - bits).min(63)) << 1 >> 54;
    (bits as u16) << 10 | behind as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(digest: u64, size: u64, record: u16) -> ListedContent {
        ListedContent {
            page: 0,
            record,
            digest,
            size,
        }
    }

    #[test]
    fn a_full_table_keeps_the_largest_files() {
        let mut builder = ContentTableBuilder::new(0, 1 << 20, vec![(0, 0)]);
        for number in 0..10_000u64 {
            builder.add(
                &file(number * 7919 % 10_007, 1000 + number, number as u16),
                0,
            );
        }
        let table = builder.finish();
        assert!((900..=1024).contains(&table.rows.len()));
        let found = |number: u64| table.with_digest(number * 7919 % 10_007);
        assert_eq!(found(9_999), Some((0, 9_999)));
        assert_eq!(found(9_500), Some((0, 9_500)));
        assert_eq!(found(1), None);
        assert_eq!(table.with_digest(10_007), None);
    }

    #[test]
    fn of_equal_contents_that_of_the_first_page_counts() {
        let mut builder = ContentTableBuilder::new(1 << 20, 1 << 20, Vec::new());
        builder.add(&file(5, 2000, 9), 3);
        builder.add(&file(5, 2000, 8), 1);
        builder.add(&file(0, 2 << 20, 4), 2);
        builder.add(&file(0, 2 << 20, 7), 2);
        builder.add(&file(0, 3 << 20, 1), 2);
        let table = builder.finish();
        assert_eq!(table.with_digest(5), Some((1, 8)));
        let large: Vec<RecordPlace> = table.with_size(2 << 20).collect();
        assert_eq!(large, [(2, 4), (2, 7)]);
        assert_eq!(table.with_size(1).count(), 0);
    }

    proptest! {
        #[test]
        fn classes_grow_with_sizes(a: u64, b: u64) {
            let (small, large) = (a.min(b), a.max(b));
            prop_assert!(size_class(small) <= size_class(large));
        }
    }
}
