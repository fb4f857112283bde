//! Digests of files, assembled from pieces that were hashed on any thread, in any order.
//!
//! A file's BLAKE3 is a tree over 1 KiB chunks: the chaining value of an aligned piece of 2ⁿ chunks depends only on its
//! bytes and its place, so pieces are hashed where they are read and joined later. The value is the one `b3sum` prints.
//! CRC-32C joins likewise. The digest of a sparse file covers its data runs, one after the other, without the holes:
//! hashing a terabyte of zeros would cost minutes for nothing, and the runs' places stand in the manifest.

use super::blake3_lanes;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use clap::ValueEnum;
use crc_fast::{CrcAlgorithm, checksum, checksum_combine};
use serde::{Deserialize, Serialize};
use std::fmt;

/// BLAKE3's chunk: a piece that begins elsewhere cannot be hashed by itself.
pub const CHUNK: u64 = 1024;
/// The largest unit in which a piece is hashed.
const MAX_BLOCK: u64 = 1 << 20;

/// How files are digested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// BLAKE3, what b3sum prints
    #[default]
    Blake3,
    /// CRC-32C, finds accidents only
    Crc32c,
    /// No digest of files; a restore then sees damage to frames of zstd and lz4 only, which have checksums, and --delta writes all files anew
    None,
}

/// The digest of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Digest {
    /// BLAKE3 of the content.
    Blake3([u8; 32]),
    /// CRC-32C of the content.
    Crc32c(u32),
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blake3(bytes) => f.write_str(&hex(bytes)),
            Self::Crc32c(value) => write!(f, "{value:08x}"),
        }
    }
}

/// Chaining value of one block of a file; its first 16 bytes are the block digest of the manifest.
pub type BlockDigest = [u8; 32];

/// What was learned of one piece of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Nothing was asked for.
    None,
    /// The whole file at once.
    Whole(Digest),
    /// Chaining values of its blocks, in order.
    Blocks(Vec<BlockDigest>),
    /// CRC-32C of the piece and its length in bytes.
    Crc(u32, u64),
}

/// May blocks have so many bytes? Others cannot be hashed each by itself. A root may say anything.
pub fn is_block_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes >= CHUNK
}

/// Hash the piece of a file that starts at `offset`; `total` is the length of the whole file's data.
///
/// `block` [can be one](is_block_size), and `offset` is a multiple of it.
pub fn piece(algorithm: Algorithm, data: &[u8], offset: u64, total: u64, block: u64) -> Piece {
    match algorithm {
        Algorithm::None => Piece::None,
        Algorithm::Crc32c => Piece::Crc(crc32c(data), data.len() as u64),
        Algorithm::Blake3 if total <= block => {
            Piece::Whole(Digest::Blake3(blake3::hash(data).into()))
        }
        Algorithm::Blake3 => Piece::Blocks(block_digests(data, offset, block)),
    }
}

/// BLAKE3 of each of these contents.
pub fn digests(contents: &[&[u8]]) -> Vec<Digest> {
    blake3_lanes::hashes(contents)
        .into_iter()
        .map(Digest::Blake3)
        .collect()
}

fn block_digests(data: &[u8], offset: u64, block: u64) -> Vec<BlockDigest> {
    let whole = if blake3_lanes::are_short(block) {
        data.len() - data.len() % block as usize
    } else {
        0
    };
    let mut digests = blake3_lanes::chaining_values(&data[..whole], offset, block);
    let rest = data[whole..]
        .chunks(block as usize)
        .zip((offset + whole as u64..).step_by(block as usize));
    digests.extend(rest.map(|(bytes, at)| block_digest(bytes, at)));
    digests
}

pub(super) fn block_digest(bytes: &[u8], offset: u64) -> BlockDigest {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset);
    hasher.update(bytes);
    hasher.finalize_non_root()
}

/// As [`piece`], of a piece that may begin and end anywhere: the largest blocks it divides into, and how many of BLAKE3's
/// chunks each of them has. `None` if its ends are not those of chunks.
pub fn piece_of_any(
    algorithm: Algorithm,
    data: &[u8],
    offset: u64,
    total: u64,
) -> Option<(Piece, u64)> {
    let aligned = |at: u64| 1 << at.trailing_zeros().min(MAX_BLOCK.trailing_zeros());
    let end = offset + data.len() as u64;
    let block = aligned(offset).min(if end == total {
        MAX_BLOCK
    } else {
        aligned(end)
    });
    let fits = block >= CHUNK || algorithm != Algorithm::Blake3;
    fits.then(|| (piece(algorithm, data, offset, total, block), block / CHUNK))
}

/// CRC-32C (Castagnoli), as PostgreSQL's manifest has it.
pub fn crc32c(data: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// CRC-64/NVME, what S3 computes of objects and parts; of stored bytes, for scrubbing.
pub fn crc64(data: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, data)
}

/// A CRC-64 that is fed piece by piece.
#[derive(Debug)]
pub struct Crc64(crc_fast::Digest);

impl Default for Crc64 {
    fn default() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme))
    }
}

impl Crc64 {
    /// More bytes.
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// The CRC of all bytes so far, and their count.
    pub fn value(&self) -> (u64, u64) {
        (self.0.finalize(), self.0.get_amount())
    }
}

/// Digests of content that comes in order, of which it is told later which was wanted.
#[derive(Debug)]
pub struct Running(Box<blake3::Hasher>, crc_fast::Digest);

impl Default for Running {
    fn default() -> Self {
        Self(
            Box::default(),
            crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi),
        )
    }
}

impl Running {
    /// More bytes.
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
        self.1.update(data);
    }

    /// BLAKE3 and CRC-32C of all of it.
    pub fn finish(&self) -> [Digest; 2] {
        [
            Digest::Blake3(self.0.finalize().into()),
            Digest::Crc32c(self.1.finalize() as u32),
        ]
    }
}

/// The CRC-64 of `a` followed by `b`, from both and the length of `b` in bytes.
pub fn crc64_join(a: u64, b: u64, len_b: u64) -> u64 {
    checksum_combine(CrcAlgorithm::Crc64Nvme, a, b, len_b)
}

/// CRC-32 as gzip has it.
pub fn crc32(data: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32IsoHdlc, data) as u32
}

/// The CRC-32 of `a` followed by `b`, from both and the length of `b` in bytes.
pub fn crc32_join(a: u32, b: u32, len_b: u64) -> u32 {
    checksum_combine(CrcAlgorithm::Crc32IsoHdlc, a.into(), b.into(), len_b) as u32
}

/// Joins the pieces of one file, given in order, into its digest. Holds one value for each level of the tree.
#[derive(Debug, Default)]
pub struct Joiner {
    whole: Option<Digest>,
    stack: Vec<BlockDigest>,
    /// Length of what is on the stack, in units of which every block has 2ⁿ.
    len: u64,
    crc: Option<u32>,
}

impl Joiner {
    /// The next piece, of a file with blocks of one length.
    pub fn push(&mut self, piece: &Piece) {
        self.push_of(piece, 1);
    }

    /// The next piece; each of its blocks has so many units of a length that all pieces are given in.
    pub fn push_of(&mut self, piece: &Piece, units: u64) {
        match piece {
            Piece::None => {}
            Piece::Whole(digest) => self.whole = Some(*digest),
            Piece::Crc(crc, len) => {
                self.crc = Some(self.crc.map_or(*crc, |have| crc32c_join(have, *crc, *len)))
            }
            Piece::Blocks(blocks) => blocks
                .iter()
                .for_each(|block| self.push_block(*block, units)),
        }
    }

    /// Complete subtrees are joined only when another block follows: the last join of all is the root's.
    fn push_block(&mut self, block: BlockDigest, units: u64) {
        while self.stack.len() > self.len.count_ones() as usize {
            self.join_top();
        }
        self.stack.push(block);
        self.len += units;
    }

    fn join_top(&mut self) {
        if let (Some(right), Some(left)) = (self.stack.pop(), self.stack.pop()) {
            self.stack
                .push(merge_subtrees_non_root(&left, &right, Mode::Hash));
        }
    }

    /// The digest of all pieces, if any was asked for.
    pub fn finish(mut self) -> Option<Digest> {
        if self.whole.is_some() {
            return self.whole;
        }
        if let Some(crc) = self.crc {
            return Some(Digest::Crc32c(crc));
        }
        while self.stack.len() > 2 {
            self.join_top();
        }
        let (right, left) = (self.stack.pop()?, self.stack.pop()?);
        Some(Digest::Blake3(
            merge_subtrees_root(&left, &right, Mode::Hash).into(),
        ))
    }
}

fn crc32c_join(a: u32, b: u32, len_b: u64) -> u32 {
    checksum_combine(CrcAlgorithm::Crc32Iscsi, a.into(), b.into(), len_b) as u32
}

/// Joins CRC-32Cs of the blocks of files. To join two costs some microseconds if the length of the second may be any, and
/// some nanoseconds if it is always the same: what a CRC becomes when so many bytes follow is linear in its bits.
#[derive(Debug, Clone)]
pub struct BlockCrcs {
    block: u64,
    shift: [u32; 32],
}

impl BlockCrcs {
    /// For blocks of so many bytes.
    pub fn new(block: u64) -> Self {
        Self {
            block,
            shift: std::array::from_fn(|bit| crc32c_join(1 << bit, 0, block)),
        }
    }

    /// The CRC of what had CRC `before`, followed by blocks with these CRCs, `len` bytes together; all but the last are whole.
    pub fn join(&self, before: Option<u32>, blocks: &[u32], len: u64) -> Option<u32> {
        let last = len - (blocks.len() as u64).saturating_sub(1) * self.block;
        let end = blocks.len().saturating_sub(1);
        blocks
            .iter()
            .enumerate()
            .fold(before, |before, (at, block)| {
                Some(match before {
                    None => *block,
                    Some(before) if at == end && last != self.block => {
                        crc32c_join(before, *block, last)
                    }
                    Some(before) => self.follow(before) ^ block,
                })
            })
    }

    fn follow(&self, crc: u32) -> u32 {
        let bits = (0..32).filter(|bit| crc >> bit & 1 == 1);
        bits.fold(0, |sum, bit| sum ^ self.shift[bit])
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            for nibble in [byte >> 4, byte & 15] {
                text.push(char::from_digit(nibble.into(), 16).unwrap_or('?'));
            }
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(algorithm: Algorithm, data: &[u8], frame: usize, block: u64) -> Option<Digest> {
        let mut joiner = Joiner::default();
        if data.is_empty() {
            joiner.push(&piece(algorithm, data, 0, 0, block));
        }
        for (i, bytes) in data.chunks(frame).enumerate() {
            joiner.push(&piece(
                algorithm,
                bytes,
                (i * frame) as u64,
                data.len() as u64,
                block,
            ));
        }
        joiner.finish()
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_digest_of_the_whole(len in 0usize..70_000, frame_log in 10u32..16, block_log in 10u32..16) {
            let data: Vec<u8> = (0..len).map(|i| (i / 7 % 251) as u8).collect();
            let (frame, block) = (1usize << frame_log, 1u64 << block_log.min(frame_log));
            prop_assert_eq!(joined(Algorithm::Blake3, &data, frame, block), Some(Digest::Blake3(blake3::hash(&data).into())));
            prop_assert_eq!(joined(Algorithm::Crc32c, &data, frame, block), Some(Digest::Crc32c(crc32c(&data))));
            prop_assert_eq!(joined(Algorithm::None, &data, frame, block), None);
        }
    }

    proptest! {
        #[test]
        fn blocks_are_hashed_together_as_each_by_itself(len in 0usize..300_000, block_log in 10u32..18, first in 0u64..1 << 30) {
            let data: Vec<u8> = (0..len).map(|i| (i / 7 % 251) as u8).collect();
            let (block, offset) = (1usize << block_log, first << block_log);
            let alone = data.chunks(block).zip((offset..).step_by(block)).map(|(bytes, at)| block_digest(bytes, at));
            prop_assert_eq!(block_digests(&data, offset, block as u64), alone.collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn files_are_hashed_together_as_each_by_itself(lens in prop::collection::vec(
            prop_oneof![4 => 0usize..5000, 2 => 0usize..40_000, 1 => 0usize..300_000, 1 => (0usize..70).prop_map(|n| n * 1024)],
            0..40,
        )) {
            let data: Vec<u8> = (0..400_000).map(|i| (i / 7 % 251) as u8).collect();
            let contents: Vec<&[u8]> = lens.iter().enumerate().map(|(at, len)| &data[at * 17..][..*len]).collect();
            let alone = contents.iter().map(|content| Digest::Blake3(blake3::hash(content).into()));
            prop_assert_eq!(digests(&contents), alone.collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn pieces_of_any_length_join_too(len in 1u64..300_000, mut cuts in prop::collection::vec(0u64..300, 0..20)) {
            let data: Vec<u8> = (0..len).map(|i| (i / 7 % 251) as u8).collect();
            cuts.retain_mut(|cut| { *cut *= CHUNK; *cut < len });
            cuts.extend([0, len]);
            cuts.sort_unstable();
            for algorithm in [Algorithm::Blake3, Algorithm::Crc32c] {
                let mut joiner = Joiner::default();
                for ends in cuts.windows(2).filter(|ends| ends[0] < ends[1]) {
                    let (piece, units) = piece_of_any(algorithm, &data[ends[0] as usize..ends[1] as usize], ends[0], len).unwrap();
                    joiner.push_of(&piece, units);
                }
                let whole = piece_of_any(algorithm, &data, 0, len).map(|(piece, units)| {
                    let mut joiner = Joiner::default();
                    joiner.push_of(&piece, units);
                    joiner.finish()
                });
                let found = joiner.finish();
                prop_assert_eq!(whole, Some(found));
                if algorithm == Algorithm::Blake3 {
                    prop_assert_eq!(found, Some(Digest::Blake3(blake3::hash(&data).into())));
                }
            }
            prop_assert!(len < 2 || piece_of_any(Algorithm::Blake3, &data[1..], 1, len).is_none());
        }
    }

    proptest! {
        #[test]
        fn crcs_of_blocks_join_to_the_crc_of_the_whole(len in 0usize..70_000, blocks_of_piece in 1usize..5) {
            let data: Vec<u8> = (0..len).map(|i| (i / 7 % 251) as u8).collect();
            let join = BlockCrcs::new(4096);
            let crc = data.chunks(4096 * blocks_of_piece).fold(None, |before, piece| {
                let blocks: Vec<u32> = piece.chunks(4096).map(crc32c).collect();
                join.join(before, &blocks, piece.len() as u64)
            });
            prop_assert_eq!(crc.unwrap_or(0), crc32c(&data));
        }
    }

    #[test]
    fn crc32c_of_the_check_string_is_the_published_one() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
