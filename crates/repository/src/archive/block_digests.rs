//! Compares content with the block digests in a record.

use fullbore_format::{
    digest::{Algorithm, Piece, is_block_size, piece},
    page::{Record, matches_block},
    root::BackupOptions,
};
use std::ops::Range;

/// Larger blocks are not compared, because a whole block is held in memory.
const MAX_BLOCK_BYTES: u64 = 64 << 20;

/// Returns whether the record has a digest for each block of its `len` bytes.
pub fn are_digested(record: &Record, len: u64, options: &BackupOptions) -> bool {
    let block = options.block_bytes;
    let whole = is_block_size(block)
        && block <= MAX_BLOCK_BYTES
        && record.from.is_multiple_of(block)
        && record.blocks.len() as u64 == len.div_ceil(block);
    whole && options.digest == Algorithm::Blake3 && record.entry.data_len() > block
}

/// Returns the blocks of `len` bytes of data at `offset`, where a block begins, and whether each
/// has the digest in the record, if there is one. `found` may have fewer bytes than that.
pub fn judged(
    record: &Record,
    block: u64,
    offset: u64,
    found: &[u8],
    len: usize,
) -> Vec<(Range<usize>, Option<bool>)> {
    let hashed = match piece(
        Algorithm::Blake3,
        found,
        offset,
        record.entry.data_len(),
        block,
    ) {
        Piece::Blocks(hashed) => hashed,
        _ => Vec::new(),
    };
    let first = ((offset - record.from) / block) as usize;
    let block = block as usize;
    let span = |index: usize| index * block..((index + 1) * block).min(len);
    let same = |index: usize| {
        let wanted = record.block(first + index)?;
        Some(
            span(index).end <= found.len()
                && hashed
                    .get(index)
                    .is_some_and(|hash| matches_block(wanted, hash)),
        )
    };
    (0..len.div_ceil(block))
        .map(|index| (span(index), same(index)))
        .collect()
}

/// Returns the offset of the first block in these bytes, of the data at `offset`, that differs from
/// its digest in the record, which describes `len` bytes. Only whole blocks are compared.
pub fn first_wrong(
    record: &Record,
    len: u64,
    block: u64,
    offset: u64,
    content: &[u8],
) -> Option<u64> {
    let total = record.entry.data_len();
    let start = offset.max(record.from).next_multiple_of(block);
    let end = (offset + content.len() as u64).min(record.from + len);
    let end = if end == total { end } else { end - end % block };
    let whole =
        content.get(start.checked_sub(offset)? as usize..end.checked_sub(offset)? as usize)?;
    let wrong = judged(record, block, start, whole, whole.len())
        .into_iter()
        .find(|(_, same)| *same == Some(false));
    wrong.map(|(span, _)| start + span.start as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::entry::{Entry, EntryKind};

    /// BLAKE3 panics at an offset within a chunk.
    #[test]
    fn blocks_of_a_length_that_cannot_be_are_not_compared() {
        let digested = |block_bytes: u64| {
            let len = 4 * block_bytes;
            let entry = Entry {
                kind: EntryKind::File {
                    size: len,
                    map: None,
                },
                ..Entry::default()
            };
            let record = Record {
                entry,
                blocks: vec![[0; 16]; 4],
                ..Record::default()
            };
            are_digested(
                &record,
                len,
                &BackupOptions {
                    block_bytes,
                    ..BackupOptions::default()
                },
            )
        };
        assert!(digested(1024) && digested(1 << 20));
        assert!(
            [0, 1, 512, 1000, 1536, 128 << 20]
                .iter()
                .all(|block| !digested(*block))
        );
    }
}
