//! The records in one WAL segment, from its bytes alone.
//!
//! Two files of one segment may have the same records and yet differ: a standby writes other bytes behind a switch than its
//! primary does. So contents are compared record by record. For the format see `xlogrecord.h` of PostgreSQL.

use super::read_segment_facts;
use crate::{
    lsn::Lsn,
    wal_reader::{
        LONG_PAGE_HEADER, PAGE, PAGE_HEADER, RECORD_HEADER, RecordKind, SWITCH, main_data,
    },
};
use fullbore_format::digest::crc32c;

/// Where the checksum is in the header of a record.
const CRC_AT: usize = 20;
/// The resource manager of transactions, and its operations that commit one.
const TRANSACTIONS: u8 = 1;
const COMMITS: [u8; 2] = [0x00, 0x30];
/// The bits of a transaction's operation.
const TRANSACTION_BITS: u8 = 0x70;
/// Seconds from 1970 to 2000, where the server's times begin.
const EPOCH_SECONDS: i64 = 946_684_800;

/// A record that is complete in its segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalRecord {
    /// Its location.
    pub at: Lsn,
    kind: RecordKind,
    bytes: Vec<u8>,
}

/// The end of the records of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordsEnd {
    /// Nothing was written from here on, or the segment was ended here.
    Empty(Lsn),
    /// A record goes on in the next segment: its location, and its bytes in this one.
    Open(Lsn, Vec<u8>),
    /// No record begins here, or its checksum is wrong.
    Damaged(Lsn),
}

/// Reads the records of a segment one after the other.
#[derive(Debug)]
pub struct SegmentRecords<'a> {
    content: &'a [u8],
    start: u64,
    at: usize,
    /// The rest of a record that began in the segment before.
    rest: Vec<u8>,
}

/// The records of a segment in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordsSummary {
    /// The first record that begins in the segment.
    pub first: Option<Lsn>,
    /// The last record that is complete in it.
    pub last: Option<Lsn>,
    /// Records that are complete in it.
    pub count: u64,
    /// The newest commit, in microseconds since 1970.
    pub last_commit: Option<i64>,
    /// How they end.
    pub end: RecordsEnd,
}

impl WalRecord {
    /// Returns the time of a commit, in microseconds since 1970; `None` for any other record.
    pub fn commit_time(&self) -> Option<i64> {
        let is_commit = self.kind.manager == TRANSACTIONS
            && COMMITS.contains(&(self.bytes[16] & TRANSACTION_BITS));
        let data = main_data(self.bytes.get(RECORD_HEADER..)?).filter(|_| is_commit)?;
        let time = i64::from_le_bytes(data.get(..8)?.try_into().ok()?);
        time.checked_add(EPOCH_SECONDS * 1_000_000)
    }
}

impl<'a> SegmentRecords<'a> {
    /// Of a segment with a valid header; `None` for other bytes.
    pub fn new(content: &'a [u8]) -> Option<Self> {
        let facts = read_segment_facts(content)?;
        let mut records = Self {
            content,
            start: facts.start,
            at: LONG_PAGE_HEADER as usize,
            rest: Vec::new(),
        };
        let rest = u32::from_le_bytes(content.get(16..20)?.try_into().ok()?) as usize;
        let continues = u16::from_le_bytes(content.get(2..4)?.try_into().ok()?) & 1 != 0;
        if continues {
            records.rest = records.take(rest);
            records.align();
        }
        Some(records)
    }

    fn lsn(&self) -> Lsn {
        Lsn(self.start + self.at as u64)
    }

    /// Takes up to `len` bytes of records, fewer at the end of the segment.
    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        while taken.len() < len && self.at < self.content.len() {
            if !self.skip_header() {
                break;
            }
            let page_end = (self.at + 1)
                .next_multiple_of(PAGE as usize)
                .min(self.content.len());
            let end = page_end.min(self.at + len - taken.len());
            taken.extend_from_slice(&self.content[self.at..end]);
            self.at = end;
        }
        taken
    }

    /// Records begin behind the header of a page. False for a page that was written for another place: a server recycles files,
    /// and what it has not written yet is of an earlier segment.
    fn skip_header(&mut self) -> bool {
        if !self.at.is_multiple_of(PAGE as usize) {
            return true;
        }
        let address = self.content.get(self.at + 8..self.at + 16);
        let address = address.and_then(|bytes| bytes.try_into().ok());
        let is_own = address.map(u64::from_le_bytes) == Some(self.lsn().0);
        if is_own {
            self.at += PAGE_HEADER as usize;
        }
        is_own
    }

    fn align(&mut self) {
        self.at = self.at.next_multiple_of(8);
    }

    /// Returns the next record, or how the records end.
    ///
    /// # Errors
    /// The end, from the first call on that meets it.
    pub fn next_record(&mut self) -> Result<WalRecord, RecordsEnd> {
        if self.at >= self.content.len() {
            return Err(RecordsEnd::Empty(self.lsn()));
        }
        if !self.skip_header() {
            return Err(RecordsEnd::Empty(self.lsn()));
        }
        let (start, position) = (self.at, self.lsn());
        let mut bytes = self.take(RECORD_HEADER);
        let len = bytes.get(..4).and_then(|len| len.try_into().ok());
        let len = len.map_or(0, u32::from_le_bytes) as usize;
        if len == 0 {
            self.at = start;
            return Err(RecordsEnd::Empty(position));
        }
        if len >= RECORD_HEADER {
            let rest = self.take(len - bytes.len().min(len));
            bytes.extend(rest);
        }
        if self.at >= self.content.len() && bytes.len() < len {
            self.at = start;
            return Err(RecordsEnd::Open(position, bytes));
        }
        if bytes.len() != len || !has_right_sum(&bytes) {
            self.at = start;
            return Err(RecordsEnd::Damaged(position));
        }
        let kind = RecordKind {
            manager: bytes[17],
            operation: bytes[16] & 0xf0,
        };
        match kind == SWITCH {
            true => self.at = self.content.len(),
            false => self.align(),
        }
        Ok(WalRecord {
            at: position,
            kind,
            bytes,
        })
    }

    /// Returns whether the records go on to the end of the segment, or the server ended it.
    pub fn are_complete(self) -> bool {
        let end = Lsn(self.start + self.content.len() as u64);
        match self.summary().end {
            RecordsEnd::Open(..) => true,
            RecordsEnd::Empty(at) => at >= end,
            RecordsEnd::Damaged(_) => false,
        }
    }

    /// Reads the rest of the records, and returns them in numbers.
    pub fn summary(mut self) -> RecordsSummary {
        let mut summary = RecordsSummary {
            first: None,
            last: None,
            count: 0,
            last_commit: None,
            end: RecordsEnd::Empty(self.lsn()),
        };
        loop {
            match self.next_record() {
                Ok(record) => {
                    summary.first.get_or_insert(record.at);
                    summary.last = Some(record.at);
                    summary.count += 1;
                    summary.last_commit = summary.last_commit.max(record.commit_time());
                }
                Err(end) => {
                    summary.end = end;
                    return summary;
                }
            }
        }
    }
}

/// The checksum is over the body and then over the header up to it.
fn has_right_sum(record: &[u8]) -> bool {
    let mut summed = record[RECORD_HEADER..].to_vec();
    summed.extend_from_slice(&record[..CRC_AT]);
    let sum = record[CRC_AT..RECORD_HEADER].try_into();
    sum.is_ok_and(|sum| u32::from_le_bytes(sum) == crc32c(&summed))
}

/// Returns the location of the first record that differs in two contents of one segment; `None` if they have the same records to
/// the end, so that a recovery with either is the same.
pub fn first_difference(one: &[u8], other: &[u8]) -> Option<Lsn> {
    let start = Lsn(read_segment_facts(one).map_or(0, |facts| facts.start));
    let (Some(mut one), Some(mut other)) = (SegmentRecords::new(one), SegmentRecords::new(other))
    else {
        return Some(start);
    };
    if one.start != other.start || one.rest != other.rest {
        return Some(start);
    }
    loop {
        let position = one.lsn();
        match (one.next_record(), other.next_record()) {
            (Ok(first), Ok(second)) if first == second => {}
            (Err(RecordsEnd::Damaged(at)), _) | (_, Err(RecordsEnd::Damaged(at))) => {
                return Some(at);
            }
            (Err(first), Err(second)) if first == second => return None,
            _ => return Some(position),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1 << 20;

    /// A segment with these records, as a server writes it.
    fn segment(records: &[(RecordKind, Vec<u8>)]) -> Vec<u8> {
        let start = 5 * BYTES as u64;
        let mut wal = Vec::new();
        for (kind, body) in records {
            let mut record = vec![0; RECORD_HEADER];
            record[..4].copy_from_slice(&((RECORD_HEADER + body.len()) as u32).to_le_bytes());
            (record[16], record[17]) = (kind.operation, kind.manager);
            let summed = [&body[..], &record[..CRC_AT]].concat();
            record[CRC_AT..].copy_from_slice(&crc32c(&summed).to_le_bytes());
            record.extend(body);
            for byte in record {
                put(&mut wal, byte, start);
            }
            while !wal.len().is_multiple_of(8) {
                put(&mut wal, 0, start);
            }
        }
        wal.resize(BYTES, 0);
        wal
    }

    fn put(wal: &mut Vec<u8>, byte: u8, start: u64) {
        if wal.len().is_multiple_of(PAGE as usize) {
            let is_first = wal.is_empty();
            let offset = start + wal.len() as u64;
            let mut header = vec![0; if is_first { 40 } else { 24 }];
            header[..2].copy_from_slice(&0xD118_u16.to_le_bytes());
            header[2] = if is_first { 2 } else { 0 };
            header[4..8].copy_from_slice(&1_u32.to_le_bytes());
            header[8..16].copy_from_slice(&offset.to_le_bytes());
            if is_first {
                header[32..36].copy_from_slice(&(BYTES as u32).to_le_bytes());
            }
            wal.extend(header);
        }
        wal.push(byte);
    }

    fn heap(body: &[u8]) -> (RecordKind, Vec<u8>) {
        let kind = RecordKind {
            manager: 10,
            operation: 0,
        };
        (kind, body.to_vec())
    }

    fn commit(micros_since_2000: i64) -> (RecordKind, Vec<u8>) {
        let kind = RecordKind {
            manager: 1,
            operation: 0,
        };
        let body = [&[255, 8][..], &micros_since_2000.to_le_bytes()].concat();
        (kind, body)
    }

    #[test]
    fn records_across_pages_are_read_with_their_commit_times() {
        let records = [heap(&[7; 9000]), commit(1_000_000), heap(b"x"), commit(500)];
        let content = segment(&records);
        let summary = SegmentRecords::new(&content).unwrap().summary();
        assert_eq!(summary.count, 4);
        assert_eq!(summary.last_commit, Some((EPOCH_SECONDS + 1) * 1_000_000));
        assert_eq!(summary.first, Some(Lsn(5 * BYTES as u64 + 40)));
        assert!(matches!(summary.end, RecordsEnd::Empty(_)));
    }

    #[test]
    fn the_commit_of_a_change_of_a_table_has_its_time() {
        // Such a commit lists what other sessions have to forget: more than 255 bytes.
        let data = [&3_000_000_i64.to_le_bytes()[..], &[9; 400]].concat();
        let body = [&[254][..], &(data.len() as u32).to_le_bytes(), &data].concat();
        let (kind, _) = commit(0);
        let content = segment(&[commit(1_000_000), (kind, body)]);
        let summary = SegmentRecords::new(&content).unwrap().summary();
        assert_eq!(summary.last_commit, Some((EPOCH_SECONDS + 3) * 1_000_000));
    }

    #[test]
    fn contents_are_the_same_if_they_have_the_same_records_to_the_end() {
        let end = (SWITCH, Vec::new());
        let one = segment(&[heap(b"abc"), end.clone()]);
        let mut behind = one.clone();
        behind[900_000] = 9;
        assert_eq!(first_difference(&one, &behind), None);
        let mut within = one.clone();
        within[66] ^= 1;
        assert_eq!(
            first_difference(&one, &within),
            Some(Lsn(5 * BYTES as u64 + 40))
        );
        let longer = segment(&[heap(b"abc"), heap(b"d")]);
        let shorter = segment(&[heap(b"abc")]);
        assert!(first_difference(&longer, &shorter).is_some());
        assert!(first_difference(&one, &longer).is_some());
        assert!(first_difference(&one, b"nothing").is_some());
        assert!(first_difference(b"", &one).is_some());
    }

    #[test]
    fn a_record_that_goes_on_in_the_next_segment_is_compared_as_far_as_it_is_here() {
        let long = segment(&[heap(&vec![3; 2 * BYTES])]);
        let open = SegmentRecords::new(&long[..BYTES]).unwrap().summary().end;
        assert!(matches!(open, RecordsEnd::Open(..)), "{open:?}");
        assert_eq!(first_difference(&long, &long), None);
        let mut other = long.clone();
        other[BYTES - 100] ^= 1;
        assert!(first_difference(&long, &other).is_some());
    }

    #[test]
    fn a_segment_that_is_not_full_is_told_from_one_that_is() {
        let are_complete = |content: &[u8]| SegmentRecords::new(content).unwrap().are_complete();
        let written = segment(&[heap(b"abc")]);
        assert!(!are_complete(&written));
        assert!(are_complete(&segment(&[
            heap(b"abc"),
            (SWITCH, Vec::new())
        ])));
        assert!(are_complete(&segment(&[heap(&vec![3; 2 * BYTES])])));
        // A file that was used before has old pages behind the new ones.
        let page = 8192 - 40 - RECORD_HEADER;
        let mut recycled = segment(&[heap(&vec![3; page])]);
        let old = segment(&[heap(&vec![5; 3 * BYTES])]);
        recycled[8192..].copy_from_slice(&old[8192..]);
        for address in (8192..BYTES).step_by(8192) {
            recycled[address + 8] ^= 1;
        }
        assert!(!are_complete(&recycled));
    }

    #[test]
    fn bytes_that_are_no_records_end_the_reading() {
        for seed in 0..64_u8 {
            let mut content = segment(&[heap(b"abc")]);
            let noise = (0..BYTES - 40).map(|index| (index as u8).wrapping_mul(seed | 1) ^ seed);
            content[40..]
                .iter_mut()
                .zip(noise)
                .for_each(|(byte, noise)| *byte = noise);
            let _ = SegmentRecords::new(&content).unwrap().summary();
            content.truncate(40 + usize::from(seed));
            SegmentRecords::new(&content).map(SegmentRecords::summary);
        }
    }
}
