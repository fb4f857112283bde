//! Finds in the WAL the databases that the server copied file by file.
//!
//! `CREATE DATABASE … STRATEGY FILE_COPY` (before 15, every `CREATE DATABASE`) and `ALTER DATABASE
//! … SET TABLESPACE` write one record: copy this directory. Recovery then copies the files in the
//! backup. Those may have later changes, or lack files that were dropped or moved by then.

use super::{
    lsn::Lsn,
    wal_reader::{RecordKind, WalReader, WalSegments},
};
use std::io;

/// The kind of record that says that a directory is copied: resource manager 4, operation 0.
const COPY: RecordKind = RecordKind {
    manager: 4,
    operation: 0,
};

/// OIDs of a database and of its source. Both are the same if the database was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileCopies {
    pub database: u32,
    /// The database that it is a copy of.
    pub from: u32,
}

/// The copies found since a location in the WAL, as far as the WAL was read.
#[derive(Debug)]
pub struct Copies {
    start: Lsn,
    at: Lsn,
    found: Vec<FileCopies>,
}

impl Copies {
    /// Begins at `start`, the location of a record; nothing is read yet.
    pub fn since(start: Lsn) -> Self {
        Self {
            start,
            at: start,
            found: Vec::new(),
        }
    }

    /// Location of the first record that was not read.
    pub fn at(&self) -> Lsn {
        self.at
    }

    pub fn found(&self) -> &[FileCopies] {
        &self.found
    }

    /// Reads on, up to the last record that ends at `end` or before.
    ///
    /// # Errors
    /// The system's; `InvalidData` if the WAL is not understood.
    pub fn read(&mut self, segments: &WalSegments<'_>, end: Lsn) -> io::Result<()> {
        let mut wal = WalReader::new(segments, self.start, self.at, end, COPY);
        while let Some(data) = wal.next_record()? {
            let copied = data.map(|data| parse_copy(data).ok_or(io::ErrorKind::InvalidData));
            self.found.extend(copied.transpose()?);
            self.at = wal.at();
        }
        Ok(())
    }
}

/// Parses the data of a copy record.
fn parse_copy(data: &[u8]) -> Option<FileCopies> {
    let number = |offset: usize| {
        Some(u32::from_le_bytes(
            data.get(offset..offset + 4)?.try_into().ok()?,
        ))
    };
    Some(FileCopies {
        database: number(0)?,
        from: number(8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_wal::{TEST_SEGMENT, TEST_START, write_wal};
    use proptest::{collection::vec, prelude::*};
    use std::path::Path;

    const SEGMENT: u64 = TEST_SEGMENT;

    /// Writes records of these lengths after their headers. Each record of 16 bytes copies a
    /// database. Returns the end.
    fn written(directory: &Path, records: &[usize]) -> Lsn {
        let record = |(number, rest): (usize, &usize)| match rest {
            16 => {
                let data = [number as u32, 1663, 5, 1663].map(u32::to_le_bytes);
                (COPY, [&[255, 16][..], data.as_flattened()].concat())
            }
            _ => {
                let other = RecordKind {
                    manager: 10,
                    operation: 0,
                };
                (other, vec![7; *rest])
            }
        };
        let records: Vec<_> = records.iter().enumerate().map(record).collect();
        write_wal(directory, &records)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn reading_in_steps_finds_the_same_as_reading_at_once(
            records in vec(prop_oneof![4 => 0usize..300, 2 => Just(16), 1 => 5_000usize..40_000, 1 => Just(1_500_000)], 1..60),
            mut ends in vec(0u64..8 << 20, 0..12),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (start, stop) = (TEST_START, written(dir.path(), &records));
            let names: Vec<Vec<String>> = (0..stop.0.div_ceil(SEGMENT)).map(|number| vec![number.to_string()]).collect();
            let segments = WalSegments { files: &dir.path().to_owned(), names: &names, bytes: SEGMENT };
            let wanted: Vec<u32> = (0..records.len()).filter(|offset| records[*offset] == 16).map(|offset| offset as u32).collect();
            ends.sort_unstable();
            let mut copies = Copies::since(start);
            for end in ends.into_iter().map(|end| SEGMENT + end).filter(|end| *end < stop.0) {
                copies.read(&segments, Lsn(end)).unwrap();
                prop_assert!(copies.at() <= Lsn(end.next_multiple_of(8).max(start.0)));
            }
            copies.read(&segments, stop).unwrap();
            let found: Vec<u32> = copies.found().iter().map(|copied| copied.database).collect();
            prop_assert_eq!((found, copies.at()), (wanted, stop));
        }
    }
}
