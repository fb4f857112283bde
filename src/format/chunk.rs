//! Chunks that end where the content says so, for files whose content shifts.
//!
//! A byte that is put in moves what follows it out of every fixed block; chunks end at places that depend on the bytes just
//! before them, so after the next such place they are the old ones again (FastCDC, Xia et al., 2020). Each piece of a file is
//! cut by itself, so that pieces are cut in parallel: at both ends of a piece a chunk may differ though its bytes do not.

use super::page::BLOCK_DIGEST_BYTES;
use fastcdc::v2020::FastCDC;

/// Bytes of a chunk: least, usual, most. A piece of 1 MiB has some 32 of them, two or three of which are cut by its ends.
const BYTES: (usize, usize, usize) = (8 << 10, 32 << 10, 128 << 10);

/// A larger file is not cut in chunks: where they are is held in memory, 40 bytes each.
pub const MAX_FILE_BYTES: u64 = 32 << 30;

/// A chunk of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Its length.
    pub len: u32,
    /// The beginning of its BLAKE3.
    pub digest: [u8; BLOCK_DIGEST_BYTES],
}

/// Cut a piece of a file.
pub fn chunks(piece: &[u8]) -> Vec<Chunk> {
    let (least, usual, most) = BYTES;
    let chunk = |chunk: fastcdc::v2020::Chunk| {
        let hash = blake3::hash(&piece[chunk.offset..][..chunk.length]);
        let digest = std::array::from_fn(|i| hash.as_bytes()[i]);
        Chunk { len: chunk.length as u32, digest }
    };
    FastCDC::new(piece, least, usual, most).map(chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn noise(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn chunks_cover_a_piece_and_most_of_them_survive_a_shift() {
        let piece = noise(1 << 20);
        let shifted = [b"some bytes more", &piece[..]].concat();
        let (before, after) = (chunks(&piece), chunks(&shifted));
        assert_eq!(before.iter().map(|chunk| chunk.len as usize).sum::<usize>(), piece.len());
        let known: HashSet<_> = before.iter().map(|chunk| chunk.digest).collect();
        let same: u64 =
            after.iter().filter(|chunk| known.contains(&chunk.digest)).map(|chunk| u64::from(chunk.len)).sum();
        assert!(same > 900_000, "{same}");
    }

    #[test]
    fn nothing_and_little_are_pieces_too() {
        assert_eq!(chunks(b""), []);
        assert_eq!(chunks(b"little").len(), 1);
    }
}
