//! Reads the records of WAL files, one after the other.
//!
//! Only the data of one kind of record is returned; the rest is skipped. Checksums of records are not
//! looked at. For the format see `xlogrecord.h` and `xlog_internal.h` of PostgreSQL.

use super::{
    data_dir::{DataDir, FileRange, rows},
    lsn::Lsn,
};
use fullbore_platform::safe_file;
use std::{io, os::unix::fs::FileExt, path::PathBuf};

/// Bytes of a page. If PostgreSQL was built with another size, pages do not carry the expected
/// location, and reading fails.
pub(crate) const PAGE: u64 = 8192;
pub(crate) const PAGE_HEADER: u64 = 24;
/// Header of the first page of a segment.
pub(crate) const LONG_PAGE_HEADER: u64 = 40;
pub(crate) const RECORD_HEADER: usize = 24;
/// The record after which the rest of a segment is empty.
pub(crate) const SWITCH: RecordKind = RecordKind {
    manager: 0,
    operation: 0x40,
};
/// Bytes that are read at once: to read each page by itself would cost a server a statement each.
const WINDOW: u64 = 1 << 20;
/// Limit for a record whose data is returned; a real one is shorter.
const MAX_RECORD: usize = 256;

/// The resource manager and the operation of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordKind {
    /// The number of the resource manager.
    pub manager: u8,
    /// The upper four bits.
    pub operation: u8,
}

/// The files of WAL segments, by their names.
pub trait SegmentFiles {
    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof` if the file is shorter.
    fn read_segment(&self, name: &str, offset: u64, len: u64) -> io::Result<Vec<u8>>;
}

/// A directory of segments.
impl SegmentFiles for PathBuf {
    fn read_segment(&self, name: &str, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        safe_file::open(&self.join(name))?.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

/// The segments in `pg_wal`.
impl SegmentFiles for &dyn DataDir {
    fn read_segment(&self, name: &str, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let path = format!("pg_wal/{name}");
        let ranges: Vec<FileRange<'_>> = rows(path.as_bytes(), offset, len).collect();
        let mut bytes = Vec::new();
        let read = self.read(&ranges, &mut |row| {
            bytes.extend_from_slice(row.unwrap_or_default());
        });
        read.map_err(|error| io::Error::other(error.line()))?;
        if bytes.len() as u64 == len {
            Ok(bytes)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// The segments of the WAL to read.
pub struct WalSegments<'a> {
    /// The files.
    pub files: &'a dyn SegmentFiles,
    /// The possible names of each segment, the one to read first; from the segment with the start
    /// on.
    pub names: &'a [Vec<String>],
    pub bytes: u64,
}

/// Reads records up to a location.
pub(crate) struct WalReader<'a> {
    segments: &'a WalSegments<'a>,
    /// The kind of record whose data is returned.
    wanted: RecordKind,
    /// Number of the first segment.
    first: u64,
    at: u64,
    /// Bytes from here on are not read.
    end: u64,
    record: Vec<u8>,
    /// Bytes that were read, from the page at `window_at` on.
    window: Vec<u8>,
    window_at: u64,
    /// Location of the page whose header was checked last.
    page_at: Option<u64>,
}

/// Returns the main data of a record. It follows headers that give the length of each part.
pub(crate) fn main_data(mut record: &[u8]) -> Option<&[u8]> {
    loop {
        let (mark, rest) = record.split_first()?;
        record = match mark {
            255 => return rest.get(1..)?.get(..usize::from(rest[0])),
            254 => {
                let (len, data) = rest.split_first_chunk()?;
                return data.get(..u32::from_le_bytes(*len) as usize);
            }
            253 => rest.get(2..)?, // replication origin
            252 => rest.get(4..)?, // top-level transaction
            _ => return None,
        };
    }
}

/// Error kind for a record that continues beyond `end`.
const BEYOND: io::ErrorKind = io::ErrorKind::WouldBlock;

impl<'a> WalReader<'a> {
    /// Begins at the record at `position`, and returns those that end at `end` or before. The first of the
    /// `segments` is that with `start`.
    pub(crate) fn new(
        segments: &'a WalSegments<'a>,
        start: Lsn,
        position: Lsn,
        end: Lsn,
        wanted: RecordKind,
    ) -> Self {
        Self {
            segments,
            wanted,
            first: start.0 / segments.bytes,
            at: position.0,
            end: end.0,
            record: Vec::new(),
            window: Vec::new(),
            window_at: 0,
            page_at: None,
        }
    }

    /// Location of the first record that was not read.
    pub(crate) fn at(&self) -> Lsn {
        Lsn(self.at)
    }

    /// Reads the next record; returns its data if it is a wanted one. `None` at the end.
    ///
    /// # Errors
    /// The system's; `InvalidData` if the WAL is not understood.
    pub(crate) fn next_record(&mut self) -> io::Result<Option<Option<&[u8]>>> {
        if self.at >= self.end {
            return Ok(None);
        }
        match self.read_record() {
            Ok(true) => {
                let data = main_data(&self.record).ok_or(io::ErrorKind::InvalidData)?;
                Ok(Some(Some(data)))
            }
            Ok(false) => Ok(Some(None)),
            Err(error) if error.kind() == BEYOND => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the next record. Returns whether it is a wanted one; then its body is in `record`.
    fn read_record(&mut self) -> io::Result<bool> {
        self.read_bytes(RECORD_HEADER)?;
        let record = &self.record;
        let len = u32::from_le_bytes([record[0], record[1], record[2], record[3]]) as usize;
        let kind = RecordKind {
            manager: record[17],
            operation: record[16] & 0xf0,
        };
        let rest = len
            .checked_sub(RECORD_HEADER)
            .ok_or(io::ErrorKind::InvalidData)?;
        let is_wanted = kind == self.wanted && rest <= MAX_RECORD;
        if is_wanted {
            self.read_bytes(rest)?;
        } else {
            self.skip_bytes(rest)?;
        }
        if self.at > self.end {
            return Err(BEYOND.into()); // the record ends within the last page, after `end`
        }
        let next = if kind == SWITCH {
            self.segments.bytes
        } else {
            8
        };
        self.at = self.at.next_multiple_of(next);
        Ok(is_wanted)
    }

    /// Reads the next `len` bytes of the record into `self.record`.
    fn read_bytes(&mut self, mut len: usize) -> io::Result<()> {
        let mut out = std::mem::take(&mut self.record);
        out.clear();
        while len > 0 {
            let available = self.rest_of_page()?;
            let count = available.len().min(len);
            out.extend(&available[..count]);
            self.at += count as u64;
            len -= count;
        }
        self.record = out;
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
        let page = &self.window[(begin - self.window_at) as usize..][..PAGE as usize];
        Ok(&page[(self.at - begin) as usize..])
    }

    /// Has the page at `begin` in the window, and checks that it is that page.
    fn load_page(&mut self, begin: u64) -> io::Result<()> {
        if self.page_at == Some(begin) {
            return Ok(());
        }
        if begin >= self.end {
            return Err(BEYOND.into());
        }
        let window = self.window_at..self.window_at + self.window.len() as u64;
        if !window.contains(&begin) {
            self.load_window(begin)?;
        }
        let header = &self.window[(begin - self.window_at) as usize..];
        // A recycled file has old pages behind the end: their address is not this one.
        let says: [u8; 8] = std::array::from_fn(|i| header[8 + i]);
        if u64::from_le_bytes(says) != begin {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.page_at = Some(begin);
        Ok(())
    }

    /// Reads the pages from `begin` on, within the segment and up to the end.
    fn load_window(&mut self, begin: u64) -> io::Result<()> {
        let bytes = self.segments.bytes;
        let name = self.segment_name(begin / bytes);
        let name = name.ok_or(io::ErrorKind::NotFound)?;
        let offset = begin % bytes;
        let wanted = (self.end - begin).next_multiple_of(PAGE);
        let len = wanted.min(WINDOW).min(bytes - offset);
        self.window = self.segments.files.read_segment(name, offset, len)?;
        self.window_at = begin;
        Ok(())
    }

    /// The name of segment `number` to read first.
    fn segment_name(&self, number: u64) -> Option<&'a str> {
        let number = number.checked_sub(self.first)?;
        let names = self.segments.names.get(number as usize)?;
        names.first().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_a_record_follows_its_headers() {
        let record = [&[255, 3][..], b"abc"].concat();
        assert_eq!(main_data(&record), Some(&b"abc"[..]));
        let marked = [&[253, 1, 0, 252, 9, 0, 0, 0], &record[..]].concat();
        assert_eq!(main_data(&marked), Some(&b"abc"[..]));
        for bad in [&record[..4], &[255], &[0, 1, 2], &[]] {
            assert_eq!(main_data(bad), None, "{bad:?}");
        }
    }
}
