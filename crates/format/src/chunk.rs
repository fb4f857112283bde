//! Content-defined chunks, for files whose data shifts.
//!
//! An inserted byte moves all later bytes out of every fixed block. Chunk borders depend only on
//! the bytes just before them, so after the next border the chunks are the old ones again (FastCDC,
//! Xia et al., 2020). In a sparse file, a new or removed hole moves the data behind it in the data
//! stream but not in the file. So chunks of sparse files end at fixed places of the file.
//!
//! Each piece of a file is cut by itself, so that several threads can cut pieces in parallel. The
//! price: at both ends of a piece a chunk may differ although its bytes do not.

use super::{entry::ByteRun, page::BLOCK_DIGEST_BYTES};
use fastcdc::v2020::FastCDC;

/// Minimum, average and maximum bytes of a chunk. A piece of 1 MiB has about 32 chunks; the ends of
/// the piece cut two or three of them.
const BYTES: (usize, usize, usize) = (8 << 10, 32 << 10, 128 << 10);

/// Chunks of a sparse file end at multiples of this number of bytes of the file, holes included.
/// The ends of a shifted piece of 1 MiB cut two chunks, a thirtieth of the piece.
const PLACE_BYTES: u64 = 16 << 10;

/// Largest file that is cut in chunks. The chunk places are held in memory, 40 bytes each.
pub const MAX_FILE_BYTES: u64 = 32 << 30;

/// A chunk of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentChunk {
    /// Bytes of the chunk.
    pub len: u32,
    /// The first bytes of its BLAKE3 digest.
    pub digest: [u8; BLOCK_DIGEST_BYTES],
}

impl ContentChunk {
    fn of(bytes: &[u8]) -> Self {
        let hash = blake3::hash(bytes);
        Self {
            len: bytes.len() as u32,
            digest: std::array::from_fn(|i| hash.as_bytes()[i]),
        }
    }
}

/// Cuts a piece of a file at borders that its content determines.
pub fn by_content(piece: &[u8]) -> Vec<ContentChunk> {
    let (least, usual, most) = BYTES;
    FastCDC::new(piece, least, usual, most)
        .map(|chunk| ContentChunk::of(&piece[chunk.offset..][..chunk.length]))
        .collect()
}

/// Cuts a piece of a sparse file. `runs`, ascending, are the places of its bytes in the file.
pub fn by_place(piece: &[u8], runs: impl IntoIterator<Item = ByteRun>) -> Vec<ContentChunk> {
    let mut rest = piece;
    let mut chunk = |place: ByteRun| {
        let (chunk, tail) = rest.split_at(place.len as usize);
        rest = tail;
        ContentChunk::of(chunk)
    };
    places(runs).into_iter().map(&mut chunk).collect()
}

/// Returns where the chunks of a sparse file begin and how much data each has, from its data runs,
/// ascending.
pub fn places(runs: impl IntoIterator<Item = ByteRun>) -> Vec<ByteRun> {
    let mut places: Vec<ByteRun> = Vec::new();
    for run in runs {
        let mut position = run.offset;
        let end = run.offset + run.len;
        while position < end {
            let next = end.min((position / PLACE_BYTES + 1) * PLACE_BYTES);
            match places.last_mut() {
                Some(last) if last.offset / PLACE_BYTES == position / PLACE_BYTES => {
                    last.len += next - position
                }
                _ => places.push(ByteRun {
                    offset: position,
                    len: next - position,
                }),
            }
            position = next;
        }
    }
    places
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
        let before = by_content(&piece);
        let after = by_content(&shifted);
        assert_eq!(
            before.iter().map(|chunk| chunk.len as usize).sum::<usize>(),
            piece.len()
        );
        let known: HashSet<_> = before.iter().map(|chunk| chunk.digest).collect();
        let same: u64 = after
            .iter()
            .filter(|chunk| known.contains(&chunk.digest))
            .map(|chunk| u64::from(chunk.len))
            .sum();
        assert!(same > 900_000, "{same}");
    }

    #[test]
    fn nothing_and_little_are_pieces_too() {
        assert_eq!(by_content(b""), []);
        assert_eq!(by_content(b"little").len(), 1);
        assert_eq!(by_place(b"", []), []);
        assert_eq!(
            by_place(
                b"little",
                [ByteRun {
                    offset: PLACE_BYTES,
                    len: 6
                }]
            ),
            [ContentChunk::of(b"little")]
        );
    }

    #[test]
    fn what_stays_at_its_place_survives_a_hole_before_it() {
        let run = |offset, len| ByteRun { offset, len };
        let file = noise(1 << 20);
        let cut = |runs: &[ByteRun]| {
            let data: Vec<u8> = runs
                .iter()
                .flat_map(|run| &file[run.offset as usize..][..run.len as usize])
                .copied()
                .collect();
            let chunks = by_place(&data, runs.iter().copied());
            assert_eq!(
                chunks.iter().map(|chunk| chunk.len as usize).sum::<usize>(),
                data.len()
            );
            chunks
        };
        let before = cut(&[run(0, 300_000), run(304_096, (1 << 20) - 304_096)]);
        let after = cut(&[
            run(0, 4096),
            run(8192, 300_000 - 8192),
            run(304_096, (1 << 20) - 304_096),
        ]);
        assert_eq!(before.len(), 64);
        assert_eq!(before[1..], after[1..]);
        assert_eq!((before[0].len, after[0].len), (16_384, 16_384 - 4096));
        assert_eq!(before[18].len, 16_384 - 4096, "on both sides of a hole");
    }
}
