//! Digests of files, joined from pieces that threads hash in any order.
//!
//! BLAKE3 is a tree over chunks of 1 KiB. The chaining value of an aligned piece of 2ⁿ chunks
//! depends only on its bytes and its place, so each piece is hashed where it is read and joined
//! later. The result is the value that `b3sum` prints. CRC-32C joins in the same way. The digest of
//! a sparse file covers its data runs, one after the other, without the holes: to hash a terabyte
//! of zeros would cost minutes. The manifest holds the places of the runs.

use super::blake3_lanes;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use crc_fast::{CrcAlgorithm, checksum, checksum_combine};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a chunk of BLAKE3. A piece that does not start at a multiple of this cannot be hashed
/// by itself.
pub const CHUNK: u64 = 1024;
/// Largest unit in which a piece is hashed.
const MAX_BLOCK: u64 = 1 << 20;

/// How files are digested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// BLAKE3, what b3sum prints
    #[default]
    Blake3,
    /// CRC-32C, finds accidents only
    Crc32c,
    /// No digest of files; a restore then sees damage to frames of zstd and lz4 only, which have
    /// checksums, and --delta writes all files anew
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

/// Chaining value of one block of a file. Its first 16 bytes are the block digest in the manifest.
pub type BlockDigest = [u8; 32];

/// The digest of one piece of a file, in the form that [`Joiner`] takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// No digest was requested.
    None,
    /// The whole file at once.
    Whole(Digest),
    /// Chaining values of its blocks, in order.
    Blocks(Vec<BlockDigest>),
    /// CRC-32C of the piece and its length in bytes.
    Crc(u32, u64),
}

/// Returns whether `bytes` is a valid block size: a power of two of at least 1,024. The size in a
/// root that was read is not trusted.
pub fn is_block_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes >= CHUNK
}

/// Hashes the piece of a file that starts at `offset`; `total` is the length of the whole file's
/// data.
///
/// `block` is a [valid block size](is_block_size), and `offset` is a multiple of `block`.
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

/// Returns the BLAKE3 digest of each of these contents.
pub fn digests(contents: &[&[u8]]) -> Vec<Digest> {
    blake3_lanes::hash_contents(contents)
        .into_iter()
        .map(Digest::Blake3)
        .collect()
}

fn block_digests(data: &[u8], offset: u64, block: u64) -> Vec<BlockDigest> {
    let whole = if blake3_lanes::is_short_block(block) {
        data.len() - data.len() % block as usize
    } else {
        0
    };
    let mut digests = blake3_lanes::chaining_values(&data[..whole], offset, block);
    let rest = data[whole..]
        .chunks(block as usize)
        .zip((offset + whole as u64..).step_by(block as usize));
    digests.extend(rest.map(|(bytes, position)| block_digest(bytes, position)));
    digests
}

pub(super) fn block_digest(bytes: &[u8], offset: u64) -> BlockDigest {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset);
    hasher.update(bytes);
    hasher.finalize_non_root()
}

/// Hashes a piece with any start and end, like [`piece`].
///
/// Returns the piece in the largest blocks that it divides into, and the number of BLAKE3 chunks in
/// each block. Returns `None` if the piece does not start and end at chunk borders.
pub fn piece_of_any_bounds(
    algorithm: Algorithm,
    data: &[u8],
    offset: u64,
    total: u64,
) -> Option<(Piece, u64)> {
    let end = offset + data.len() as u64;
    let block = largest_block_at(offset).min(if end == total {
        MAX_BLOCK
    } else {
        largest_block_at(end)
    });
    let fits = block >= CHUNK || algorithm != Algorithm::Blake3;
    fits.then(|| (piece(algorithm, data, offset, total, block), block / CHUNK))
}

fn largest_block_at(place: u64) -> u64 {
    1 << place.trailing_zeros().min(MAX_BLOCK.trailing_zeros())
}

/// CRC-32C (Castagnoli), as in PostgreSQL's manifest.
pub fn crc32c(data: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// CRC-64/NVME, which S3 computes for objects and parts. Covers stored bytes, for scrubbing.
pub fn crc64(data: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, data)
}

/// A CRC-64 that is computed piece by piece.
#[derive(Debug)]
pub struct Crc64(crc_fast::Digest);

impl Default for Crc64 {
    fn default() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme))
    }
}

impl Crc64 {
    /// Adds the next bytes.
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// Returns the CRC of all bytes so far, and their count.
    pub fn value(&self) -> (u64, u64) {
        (self.0.finalize(), self.0.get_amount())
    }
}

/// Digests of content that arrives in order, for a caller that learns only at the end which
/// algorithm it needs.
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
    /// Adds the next bytes.
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
        self.1.update(data);
    }

    /// Returns BLAKE3 and CRC-32C of all bytes.
    pub fn finish(&self) -> [Digest; 2] {
        [
            Digest::Blake3(self.0.finalize().into()),
            Digest::Crc32c(self.1.finalize() as u32),
        ]
    }
}

/// Returns the CRC-64 of `a` followed by `b`, from both CRCs and the length of `b` in bytes.
pub fn crc64_join(a: u64, b: u64, len_b: u64) -> u64 {
    checksum_combine(CrcAlgorithm::Crc64Nvme, a, b, len_b)
}

/// CRC-32, as in gzip.
pub fn crc32(data: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32IsoHdlc, data) as u32
}

/// Returns the CRC-32 of `a` followed by `b`, from both CRCs and the length of `b` in bytes.
pub fn crc32_join(a: u32, b: u32, len_b: u64) -> u32 {
    checksum_combine(CrcAlgorithm::Crc32IsoHdlc, a.into(), b.into(), len_b) as u32
}

/// Joins the pieces of one file, in order, into its digest. Holds one value for each level of the
/// tree.
#[derive(Debug, Default)]
pub struct Joiner {
    whole: Option<Digest>,
    stack: Vec<BlockDigest>,
    /// Length of the blocks on the stack, in units; every block has 2ⁿ units.
    len: u64,
    crc: Option<u32>,
}

impl Joiner {
    /// Adds the next piece of a file whose blocks all have the same length.
    pub fn push(&mut self, piece: &Piece) {
        self.push_units(piece, 1);
    }

    /// Adds the next piece. Each of its blocks has this number of units; the unit is the same for
    /// all pieces of the file.
    pub fn push_units(&mut self, piece: &Piece, units: u64) {
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

    /// Complete subtrees are joined only when another block follows, because the last join must be
    /// the root's.
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

    /// Returns the digest of all pieces, or `None` if no digest was requested.
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
        let right = self.stack.pop()?;
        let left = self.stack.pop()?;
        Some(Digest::Blake3(
            merge_subtrees_root(&left, &right, Mode::Hash).into(),
        ))
    }
}

fn crc32c_join(a: u32, b: u32, len_b: u64) -> u32 {
    checksum_combine(CrcAlgorithm::Crc32Iscsi, a.into(), b.into(), len_b) as u32
}

/// Joins CRC-32Cs of blocks of files.
///
/// To join two CRCs takes microseconds if the second block may have any length, and nanoseconds if
/// the length is fixed: appending a fixed number of zero bytes is linear in the bits of a CRC.
/// `shift` holds the result for each bit.
#[derive(Debug, Clone)]
pub struct BlockCrcs {
    block: u64,
    shift: [u32; 32],
}

impl BlockCrcs {
    /// Prepares for blocks of this number of bytes.
    pub fn new(block: u64) -> Self {
        Self {
            block,
            shift: std::array::from_fn(|bit| crc32c_join(1 << bit, 0, block)),
        }
    }

    /// Returns the CRC of content with CRC `previous`, followed by blocks with these CRCs. The blocks
    /// have `len` bytes in total; all but the last are whole.
    pub fn join(&self, previous: Option<u32>, blocks: &[u32], len: u64) -> Option<u32> {
        let last = len - (blocks.len() as u64).saturating_sub(1) * self.block;
        let end = blocks.len().saturating_sub(1);
        blocks
            .iter()
            .enumerate()
            .fold(previous, |previous, (index, block)| {
                Some(match previous {
                    None => *block,
                    Some(previous) if index == end && last != self.block => {
                        crc32c_join(previous, *block, last)
                    }
                    Some(previous) => self.shift_by_block(previous) ^ block,
                })
            })
    }

    fn shift_by_block(&self, crc: u32) -> u32 {
        let bits = (0..32).filter(|bit| crc >> bit & 1 == 1);
        bits.fold(0, |sum, bit| sum ^ self.shift[bit])
    }
}

/// Returns the bytes in lower-case hexadecimal.
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
mod tests;
