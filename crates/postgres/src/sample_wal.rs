//! WAL that tests write.

use crate::{
    lsn::Lsn,
    wal_reader::{LONG_PAGE_HEADER, PAGE, PAGE_HEADER, RECORD_HEADER, RecordKind},
};
use std::path::Path;

pub const TEST_SEGMENT: u64 = 1 << 20;
/// The first record of [`write_wal`].
pub const TEST_START: Lsn = Lsn(TEST_SEGMENT + LONG_PAGE_HEADER);

/// The system of [`sample_segment`].
pub const SAMPLE_SYSTEM: u64 = 77;

/// Returns a segment of `bytes` bytes with a header, and zeros behind it.
pub fn sample_segment(timeline: u32, start: u64, bytes: u32) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    content[0..2].copy_from_slice(&0xD118_u16.to_ne_bytes());
    content[2..4].copy_from_slice(&6_u16.to_ne_bytes());
    content[4..8].copy_from_slice(&timeline.to_ne_bytes());
    content[8..16].copy_from_slice(&start.to_ne_bytes());
    content[24..32].copy_from_slice(&SAMPLE_SYSTEM.to_ne_bytes());
    content[32..36].copy_from_slice(&bytes.to_ne_bytes());
    content[36..40].copy_from_slice(&8192_u32.to_ne_bytes());
    content
}

/// Writes WAL from the second segment on, as a server does: records with these bodies. The files
/// are named by numbers from 0. Returns the end.
pub fn write_wal(directory: &Path, records: &[(RecordKind, Vec<u8>)]) -> Lsn {
    let mut wal = Vec::new();
    let mut index = TEST_SEGMENT;
    let mut put = |bytes: &[u8], index: &mut u64| {
        for byte in bytes {
            if index.is_multiple_of(PAGE) {
                let header = if index.is_multiple_of(TEST_SEGMENT) {
                    LONG_PAGE_HEADER
                } else {
                    PAGE_HEADER
                };
                let mut page = vec![0; header as usize];
                page[8..16].copy_from_slice(&index.to_le_bytes());
                wal.extend(page);
                *index += header;
            }
            wal.push(*byte);
            *index += 1;
        }
    };
    for (kind, body) in records {
        let mut record = vec![0; RECORD_HEADER];
        record[..4].copy_from_slice(&((RECORD_HEADER + body.len()) as u32).to_le_bytes());
        (record[16], record[17]) = (kind.operation, kind.manager);
        record.extend(body);
        put(&record, &mut index);
        let padding = index.next_multiple_of(8) - index;
        put(&vec![0; padding as usize], &mut index);
    }
    wal.resize(wal.len().next_multiple_of(TEST_SEGMENT as usize), 0);
    for (number, bytes) in wal.chunks(TEST_SEGMENT as usize).enumerate() {
        std::fs::write(directory.join(number.to_string()), bytes).unwrap();
    }
    Lsn(index)
}
