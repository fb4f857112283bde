//! Finds in the WAL the databases that the server copied file by file.
//!
//! `CREATE DATABASE … STRATEGY FILE_COPY` (before 15, every `CREATE DATABASE`) and `ALTER DATABASE
//! … SET TABLESPACE` write one record: copy this directory. Recovery then copies the files in the
//! backup. Those may have later changes, or lack files that were dropped or moved by then. For the
//! format of records see `xlogrecord.h` and `xlog_internal.h` of PostgreSQL.

use super::lsn::Lsn;
use fullbore_platform::safe_file;
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Bytes of a page. If PostgreSQL was built with another size, pages do not carry the expected
/// location, and reading fails.
const PAGE: u64 = 8192;
const PAGE_HEADER: u64 = 24;
/// Header of the first page of a segment.
const LONG_PAGE_HEADER: u64 = 40;
const RECORD_HEADER: usize = 24;
/// Resource managers, and the relevant record types of each.
const XLOG: u8 = 0;
const SWITCH: u8 = 0x40;
const DBASE: u8 = 4;
const COPY: u8 = 0;
/// Limit for a copy record; a real one is shorter.
const MAX_COPY_RECORD: usize = 256;

/// OIDs of a database and of its source. Both are the same if the database was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileCopies {
    /// The copy.
    pub database: u32,
    /// The database that it is a copy of.
    pub from: u32,
}

/// The segments of the WAL to read.
pub struct WalSegments<'a> {
    /// The directory that has them.
    pub directory: PathBuf,
    /// The possible names of each segment, the one to read first; from the segment with the start
    /// on.
    pub names: &'a [Vec<String>],
    /// Bytes of a segment.
    pub bytes: u64,
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

    /// The copies found.
    pub fn found(&self) -> &[FileCopies] {
        &self.found
    }

    /// Reads on, up to the last record that ends at `end` or before.
    ///
    /// # Errors
    /// The system's; `InvalidData` if the WAL is not understood.
    pub fn read(&mut self, segments: &WalSegments<'_>, end: Lsn) -> io::Result<()> {
        let first = self.start.0 / segments.bytes;
        let at = self.at.0;
        let end = end.0;
        let mut wal = CopyRecordReader {
            segments,
            first,
            at,
            end,
            page: Vec::new(),
            open: None,
        };
        let mut record = Vec::new();
        while wal.at < end {
            match wal.next_record(&mut record) {
                Ok(copied) => self.found.extend(copied),
                Err(error) if error.kind() == BEYOND => break,
                Err(error) => return Err(error),
            }
            self.at = Lsn(wal.at);
        }
        Ok(())
    }
}

/// Parses the body of a copy record. Its data follows headers that give the length of each part.
fn parse_copy(mut record: &[u8]) -> Option<FileCopies> {
    loop {
        let (mark, rest) = record.split_first()?;
        record = match mark {
            255 => {
                let number =
                    |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
                return Some(FileCopies {
                    database: number(1)?,
                    from: number(9)?,
                });
            }
            253 => rest.get(2..)?, // replication origin
            252 => rest.get(4..)?, // top-level transaction
            _ => return None,
        };
    }
}

/// Reads records one after the other.
struct CopyRecordReader<'a> {
    segments: &'a WalSegments<'a>,
    /// Number of the first segment.
    first: u64,
    at: u64,
    /// Bytes from here on are not read.
    end: u64,
    /// The page read last.
    page: Vec<u8>,
    /// The open segment: its number, its file, and the location of `page`.
    open: Option<(u64, File, u64)>,
}

/// Error kind for a record that continues beyond `end`.
const BEYOND: io::ErrorKind = io::ErrorKind::WouldBlock;

impl CopyRecordReader<'_> {
    /// Reads the next record; returns the copy if it is a copy record.
    fn next_record(&mut self, record: &mut Vec<u8>) -> io::Result<Option<FileCopies>> {
        self.read_bytes(RECORD_HEADER, record)?;
        let len = u32::from_le_bytes([record[0], record[1], record[2], record[3]]) as usize;
        let kind = record[16] & 0xf0;
        let manager = record[17];
        let rest = len
            .checked_sub(RECORD_HEADER)
            .ok_or(io::ErrorKind::InvalidData)?;
        let mut copied = None;
        match (manager, kind) {
            (DBASE, COPY) if rest <= MAX_COPY_RECORD => {
                self.read_bytes(rest, record)?;
                copied = Some(parse_copy(record).ok_or(io::ErrorKind::InvalidData)?);
            }
            _ => self.skip_bytes(rest)?,
        }
        if self.at > self.end {
            return Err(BEYOND.into()); // the record ends within the last page, after `end`
        }
        let next = if (manager, kind) == (XLOG, SWITCH) {
            self.segments.bytes
        } else {
            8
        };
        self.at = self.at.next_multiple_of(next);
        Ok(copied)
    }

    /// Reads the next `len` bytes of the record into `out`.
    fn read_bytes(&mut self, mut len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        while len > 0 {
            let there = self.rest_of_page()?;
            let count = there.len().min(len);
            out.extend(&there[..count]);
            self.at += count as u64;
            len -= count;
        }
        Ok(())
    }

    /// Skips the next `len` bytes of the record.
    fn skip_bytes(&mut self, mut len: usize) -> io::Result<()> {
        while len > 0 {
            let count = self.rest_of_page()?.len().min(len);
            self.at += count as u64;
            len -= count;
        }
        Ok(())
    }

    /// Returns the rest of the current page, after its header.
    fn rest_of_page(&mut self) -> io::Result<&[u8]> {
        let begin = self.at - self.at % PAGE;
        if self.at == begin {
            let is_first = begin.is_multiple_of(self.segments.bytes);
            self.at += if is_first {
                LONG_PAGE_HEADER
            } else {
                PAGE_HEADER
            };
        }
        self.load_page(begin)?;
        Ok(&self.page[(self.at - begin) as usize..])
    }

    /// Reads the page at `begin`, unless it is the page read last.
    fn load_page(&mut self, begin: u64) -> io::Result<()> {
        let number = begin / self.segments.bytes;
        let is_open = |(_, _, page): &(u64, File, u64)| *page == begin;
        if self.open.as_ref().is_some_and(is_open) {
            return Ok(());
        }
        if begin >= self.end {
            return Err(BEYOND.into());
        }
        let file = match self.open.take() {
            Some((open, file, _)) if open == number => file,
            _ => safe_file::open(&self.segment_path(number).ok_or(io::ErrorKind::NotFound)?)?,
        };
        self.page.resize(PAGE as usize, 0);
        file.read_exact_at(&mut self.page, begin % self.segments.bytes)?;
        self.open = Some((number, file, begin));
        let says: [u8; 8] = std::array::from_fn(|i| self.page[8 + i]);
        if u64::from_le_bytes(says) == begin {
            Ok(())
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }

    /// Path of segment `number`.
    fn segment_path(&self, number: u64) -> Option<PathBuf> {
        let names = self
            .segments
            .names
            .get(number.checked_sub(self.first)? as usize)?;
        Some(Path::new(&self.segments.directory).join(names.first()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    #[test]
    fn the_data_of_a_record_follows_its_headers() {
        let data: Vec<u8> = [7u32, 1663, 5, 1663]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let record = [&[255, 16][..], &data].concat();
        let copied = Some(FileCopies {
            database: 7,
            from: 5,
        });
        assert_eq!(parse_copy(&record), copied);
        assert_eq!(
            parse_copy(&[&[253, 1, 0, 252, 9, 0, 0, 0], &record[..]].concat()),
            copied
        );
        assert_eq!(
            (
                parse_copy(&record[..13]),
                parse_copy(&[0, 1, 2]),
                parse_copy(&[])
            ),
            (None, None, None)
        );
    }

    const SEGMENT: u64 = 1 << 20;

    /// Writes WAL from the second segment on, as a server does: records of these lengths after
    /// their headers. Each record of 16 bytes copies a database. Returns the end.
    fn written(directory: &Path, records: &[usize]) -> Lsn {
        let mut wal = Vec::new();
        let mut at = SEGMENT;
        let mut put = |bytes: &[u8], at: &mut u64| {
            for byte in bytes {
                if at.is_multiple_of(PAGE) {
                    let header = if at.is_multiple_of(SEGMENT) {
                        LONG_PAGE_HEADER
                    } else {
                        PAGE_HEADER
                    };
                    let mut page = vec![0; header as usize];
                    page[8..16].copy_from_slice(&at.to_le_bytes());
                    wal.extend(page);
                    *at += header;
                }
                wal.push(*byte);
                *at += 1;
            }
        };
        for (number, rest) in records.iter().enumerate() {
            let is_copy = *rest == 16;
            let mut record = vec![0; RECORD_HEADER];
            record[..4].copy_from_slice(
                &((RECORD_HEADER + rest + usize::from(is_copy) * 2) as u32).to_le_bytes(),
            );
            record[17] = if is_copy { DBASE } else { 10 };
            if is_copy {
                record.extend([255, 16]);
                record.extend(
                    [number as u32, 1663, 5, 1663]
                        .iter()
                        .flat_map(|number| number.to_le_bytes()),
                );
            } else {
                record.resize(RECORD_HEADER + rest, 7);
            }
            put(&record, &mut at);
            let padding = at.next_multiple_of(8) - at;
            put(&vec![0; padding as usize], &mut at);
        }
        wal.resize(wal.len().next_multiple_of(SEGMENT as usize), 0);
        for (number, bytes) in wal.chunks(SEGMENT as usize).enumerate() {
            std::fs::write(directory.join(number.to_string()), bytes).unwrap();
        }
        Lsn(at)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn reading_in_steps_finds_the_same_as_reading_at_once(
            records in vec(prop_oneof![4 => 0usize..300, 2 => Just(16), 1 => 5_000usize..40_000, 1 => Just(1_500_000)], 1..60),
            mut ends in vec(0u64..8 << 20, 0..12),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (start, stop) = (Lsn(SEGMENT + LONG_PAGE_HEADER), written(dir.path(), &records));
            let names: Vec<Vec<String>> = (0..stop.0.div_ceil(SEGMENT)).map(|number| vec![number.to_string()]).collect();
            let segments = WalSegments { directory: dir.path().to_owned(), names: &names, bytes: SEGMENT };
            let wanted: Vec<u32> = (0..records.len()).filter(|at| records[*at] == 16).map(|at| at as u32).collect();
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
