//! Digests of the parts of an object, from digests of the pieces that were stored.

use fullbore_format::{
    digest::{crc64, crc64_join},
    error::{Error, ErrorKind, Result},
    root::PART_BYTES,
};
use std::ops::Range;

/// The digest of one piece of an object. Pieces follow each other, and no piece crosses a border of parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct PieceDigest {
    pub(super) crc: u64,
    pub(super) bytes: u64,
}

impl PieceDigest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self {
            crc: crc64(bytes),
            bytes: bytes.len() as u64,
        }
    }
}

/// A table of how a digest changes when so many bytes follow costs as much as this many joins without one.
const TABLE_JOINS: usize = 64;

/// Returns the digest of each part of an object.
pub(super) fn part_digests(pieces: &[PieceDigest]) -> Vec<u64> {
    let is_worth_a_table = pieces.len() > 2 * TABLE_JOINS;
    let table = pieces
        .first()
        .filter(|_| is_worth_a_table)
        .map(|piece| JoinTable::new(piece.bytes));
    let mut parts = Vec::new();
    let mut filled_bytes = PART_BYTES;
    for piece in pieces {
        if filled_bytes == PART_BYTES {
            parts.push(piece.crc);
            filled_bytes = piece.bytes;
        } else if let Some(part) = parts.last_mut() {
            *part = match &table {
                Some(table) if table.bytes == piece.bytes => table.join(*part, piece.crc),
                _ => crc64_join(*part, piece.crc, piece.bytes),
            };
            filled_bytes += piece.bytes;
        }
    }
    parts
}

/// Joins digests with those of pieces of one length. A CRC is linear, so what becomes of each bit of it is enough to know.
struct JoinTable {
    bytes: u64,
    by_bit: [u64; u64::BITS as usize],
}

impl JoinTable {
    fn new(bytes: u64) -> Self {
        Self {
            bytes,
            by_bit: std::array::from_fn(|bit| crc64_join(1 << bit, 0, bytes)),
        }
    }

    fn join(&self, first: u64, second: u64) -> u64 {
        let moved = self
            .by_bit
            .iter()
            .enumerate()
            .filter(|(bit, _)| first >> bit & 1 == 1);
        moved.fold(second, |joined, (_, changed)| joined ^ changed)
    }
}

/// Returns the digest of each part of these bytes.
pub(super) fn part_digests_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(PART_BYTES as usize).map(crc64).collect()
}

/// Returns the bytes of an upload that an amendment replaces.
///
/// # Errors
/// [`ErrorKind::Bug`] if they were not all appended, or if one is behind the first part.
pub(super) fn amended_range(offset: u64, len: usize, appended: u64) -> Result<Range<usize>> {
    let end = offset
        .checked_add(len as u64)
        .filter(|end| *end <= appended.min(PART_BYTES));
    let end = end.ok_or_else(|| {
        Error::new(
            ErrorKind::Bug,
            format!("cannot amend {len} bytes at byte {offset} of an upload of {appended} bytes"),
        )
    })?;
    Ok(offset as usize..end as usize)
}
