//! BLAKE3's chaining values of many short blocks at once.
//!
//! A processor hashes up to sixteen of BLAKE3's chunks in one go, but those of one block of 8 KiB are eight, and the levels
//! above them four, two and one. So the chunks of several blocks are hashed together, then their parents, level by level: with
//! AVX-512 twice as fast as block by block (decision 36). The tree, its constants and its flags are those of the BLAKE3 paper,
//! 2.1 to 2.4.

use super::digest::{BlockDigest, CHUNK};
use blake3::{IncrementCounter, platform::Platform};

/// Chunks that are hashed together: their values, 2 KiB, stay in the cache.
const GROUP: usize = 64;
/// Bytes of a value.
const VALUE: usize = size_of::<BlockDigest>();
/// Bytes that one input of a level has: a chunk, or two values.
const INPUT: usize = CHUNK as usize;
const PAIR: usize = 2 * VALUE;

const IV: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];
const CHUNK_START: u8 = 1 << 0;
const CHUNK_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;

/// Is it worth it for blocks of so many bytes? Longer ones fill all lanes each by itself.
pub(super) fn are_short(block: u64) -> bool {
    block < GROUP as u64 * CHUNK
}

/// The chaining values of blocks of `block` bytes, a power of two of at least 1,024 that [`are_short`]. `data` is whole blocks,
/// and starts `offset` bytes, a multiple of 1,024, into its file.
pub(super) fn chaining_values(data: &[u8], offset: u64, block: u64) -> Vec<BlockDigest> {
    let platform = Platform::detect();
    let mut values = Vec::with_capacity(data.len() / block as usize);
    let (mut level, mut above) = ([0; GROUP * VALUE], [0; GROUP * VALUE]);
    for (at, group) in (offset / CHUNK..).step_by(GROUP).zip(data.chunks(GROUP * INPUT)) {
        let chunks: Vec<&[u8; INPUT]> = group.as_chunks().0.iter().collect();
        platform.hash_many(&chunks, &IV, at, IncrementCounter::Yes, 0, CHUNK_START, CHUNK_END, &mut level);
        let mut count = chunks.len();
        for _ in 0..(block / CHUNK).trailing_zeros() {
            let pairs: Vec<&[u8; PAIR]> = level[..count * VALUE].as_chunks().0.iter().collect();
            platform.hash_many(&pairs, &IV, 0, IncrementCounter::No, PARENT, 0, 0, &mut above);
            count = pairs.len();
            std::mem::swap(&mut level, &mut above);
        }
        values.extend_from_slice(level[..count * VALUE].as_chunks().0);
    }
    values
}
