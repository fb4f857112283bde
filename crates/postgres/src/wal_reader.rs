//! Reads the records of WAL files, one after the other.
//!
//! Only the data of one kind of record is returned; the rest is skipped. Checksums of records are not
//! looked at. For the format see `xlogrecord.h` and `xlog_internal.h` of PostgreSQL.

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

/// The segments of the WAL to read.
pub struct WalSegments<'a> {
    pub directory: PathBuf,
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
    page: Vec<u8>,
    /// The open segment: its number, its file, and the location of `page`.
    open: Option<(u64, File, u64)>,
}

/// Returns the main data of a record. It follows headers that give the length of each part.
pub(crate) fn main_data(mut record: &[u8]) -> Option<&[u8]> {
    loop {
        let (mark, rest) = record.split_first()?;
        record = match mark {
            255 => return rest.get(1..)?.get(..usize::from(rest[0])),
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
            page: Vec::new(),
            open: None,
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
        Ok(&self.page[(self.at - begin) as usize..])
    }

    /// Reads the page at `begin`, unless it is the page read last.
    fn load_page(&mut self, begin: u64) -> io::Result<()> {
        let number = begin / self.segments.bytes;
        if self
            .open
            .as_ref()
            .is_some_and(|(_, _, page)| *page == begin)
        {
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
        // A recycled file has old pages behind the end: their address is not this one.
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
