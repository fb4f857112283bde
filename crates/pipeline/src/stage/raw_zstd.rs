//! zstd frames of raw blocks: the bytes as they are, in a form that every zstd tool reads.
//!
//! A compressor has no setting for this, so the frame is written here: a header with the content
//! size, raw blocks of at most 128 KiB, and the XXH64 of the content (RFC 8878, section 3.1.1). It
//! costs 3 bytes for each block and at most 17 for the frame.

/// The largest block that the format allows.
const BLOCK_BYTES: usize = 128 << 10;
/// Bytes that are copied at once.
///
/// The C library copies 2112 bytes and more with one instruction. On some processors (AMD Zen 3 to 5) it is four times slower
/// if the target lies a few bytes further in its page than the source does in its own: as here, where both buffers start at a page
/// and headers come first.
const COPY_BYTES: usize = 2 << 10;
/// How every frame of zstd begins.
const MAGIC: [u8; 4] = 0xFD2F_B528u32.to_le_bytes();
/// The content is one segment, so that the window is as large as the content; a checksum follows
/// the last block.
const SINGLE_SEGMENT_AND_CHECKSUM: u8 = 0b0010_0100;
/// In the two highest bits: the content size has 2, 4 or 8 bytes. Without them it has one.
const SIZE_OF: [(u64, u8); 3] = [(256, 0), (65_536 + 256, 1 << 6), (1 << 32, 2 << 6)];

/// Append `plain` to `out` as one frame.
pub(super) fn write_frame(plain: &[u8], out: &mut Vec<u8>) {
    out.reserve(frame_bytes(plain.len()));
    out.extend_from_slice(&MAGIC);
    write_content_size(plain.len() as u64, out);
    let mut blocks = plain.chunks(BLOCK_BYTES).peekable();
    if plain.is_empty() {
        write_block_header(0, true, out);
    }
    while let Some(block) = blocks.next() {
        write_block_header(block.len(), blocks.peek().is_none(), out);
        for piece in block.chunks(COPY_BYTES) {
            out.extend_from_slice(piece);
        }
    }
    // The low half of the hash.
    out.extend_from_slice(&(xxh64(plain) as u32).to_le_bytes());
}

/// The most bytes that a frame of `plain_len` bytes has.
fn frame_bytes(plain_len: usize) -> usize {
    let blocks = plain_len.div_ceil(BLOCK_BYTES).max(1);
    MAGIC.len() + 1 + 8 + 3 * blocks + plain_len + 4
}

/// The descriptor of the frame, then the size in as few bytes as it needs. Two bytes count from 256
/// on.
fn write_content_size(len: u64, out: &mut Vec<u8>) {
    let found = SIZE_OF.iter().find(|(limit, _)| len < *limit);
    let flag = found.map_or(3 << 6, |(_, flag)| *flag);
    out.push(SINGLE_SEGMENT_AND_CHECKSUM | flag);
    match flag >> 6 {
        0 => out.push(len as u8),
        1 => out.extend_from_slice(&((len - 256) as u16).to_le_bytes()),
        2 => out.extend_from_slice(&(len as u32).to_le_bytes()),
        _ => out.extend_from_slice(&len.to_le_bytes()),
    }
}

/// Three bytes: is it the last block, the type (0, raw), the length.
fn write_block_header(len: usize, is_last: bool, out: &mut Vec<u8>) {
    let header = (len as u32) << 3 | u32::from(is_last);
    out.extend_from_slice(&header.to_le_bytes()[..3]);
}

const PRIME_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME_5: u64 = 0x27D4_EB2F_1656_67C5;

/// XXH64 with seed 0, by the specification of xxHash: four lanes of 8 bytes each, then the rest.
fn xxh64(data: &[u8]) -> u64 {
    let stripes = data.chunks_exact(32);
    let mut rest = stripes.remainder();
    let mut hash = if data.len() < 32 {
        PRIME_5
    } else {
        let mut lanes = [
            PRIME_1.wrapping_add(PRIME_2),
            PRIME_2,
            0,
            0u64.wrapping_sub(PRIME_1),
        ];
        for stripe in stripes {
            for (lane, word) in lanes.iter_mut().zip(stripe.chunks_exact(8)) {
                *lane = round(*lane, u64_of(word));
            }
        }
        merge(lanes)
    };
    // The steps and constants are those of the specification, in its order.
    hash = hash.wrapping_add(data.len() as u64);
    while let Some((word, tail)) = rest.split_first_chunk::<8>() {
        hash = (hash ^ round(0, u64::from_le_bytes(*word))).rotate_left(27);
        hash = hash.wrapping_mul(PRIME_1).wrapping_add(PRIME_4);
        rest = tail;
    }
    if let Some((word, tail)) = rest.split_first_chunk::<4>() {
        let word = u64::from(u32::from_le_bytes(*word));
        hash = (hash ^ word.wrapping_mul(PRIME_1)).rotate_left(23);
        hash = hash.wrapping_mul(PRIME_2).wrapping_add(PRIME_3);
        rest = tail;
    }
    for byte in rest {
        hash = (hash ^ u64::from(*byte).wrapping_mul(PRIME_5)).rotate_left(11);
        hash = hash.wrapping_mul(PRIME_1);
    }
    avalanche(hash)
}

fn u64_of(word: &[u8]) -> u64 {
    word.try_into().map_or(0, u64::from_le_bytes)
}

fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(PRIME_2))
        .rotate_left(31)
        .wrapping_mul(PRIME_1)
}

fn merge(lanes: [u64; 4]) -> u64 {
    let [a, b, c, d] = lanes;
    let mut hash = a
        .rotate_left(1)
        .wrapping_add(b.rotate_left(7))
        .wrapping_add(c.rotate_left(12))
        .wrapping_add(d.rotate_left(18));
    for lane in lanes {
        hash = (hash ^ round(0, lane))
            .wrapping_mul(PRIME_1)
            .wrapping_add(PRIME_4);
    }
    hash
}

fn avalanche(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(PRIME_2);
    hash = (hash ^ (hash >> 29)).wrapping_mul(PRIME_3);
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Around every border: of the size field, of a block, of a stripe of the checksum.
    const LENGTHS: [usize; 18] = [
        0, 1, 3, 4, 7, 8, 31, 32, 33, 255, 256, 257, 65_791, 65_792, 131_071, 131_072, 131_073,
        3_000_001,
    ];

    fn plain(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * i / 7) as u8).collect()
    }

    #[test]
    fn libzstd_reads_raw_frames_of_every_length_and_checks_their_checksum() {
        for len in LENGTHS {
            let plain = plain(len);
            let mut frame = Vec::new();
            write_frame(&plain, &mut frame);
            let size = zstd_safe::get_frame_content_size(&frame).unwrap();
            assert_eq!(size, Some(len as u64));
            let found = zstd_safe::find_frame_compressed_size(&frame).unwrap();
            assert_eq!(found, frame.len(), "{len}");
            let mut out = Vec::with_capacity(len);
            let mut context = zstd_safe::DCtx::create();
            context.decompress(&mut out, &frame).unwrap();
            assert!(out == plain, "{len}");
            let last = frame.len() - 1;
            frame[last] ^= 1;
            out.clear();
            let error = context.decompress(&mut out, &frame).unwrap_err();
            let why = zstd_safe::get_error_name(error);
            assert!(why.contains("checksum"), "{len}: {why}");
        }
    }

    #[test]
    fn a_raw_frame_is_no_longer_than_the_bytes_that_are_reserved_for_it() {
        for len in LENGTHS {
            let mut frame = Vec::new();
            write_frame(&plain(len), &mut frame);
            assert!(frame.len() <= frame_bytes(len), "{len}");
            assert!(frame.len() <= len + len / 40_000 + 24, "{len}");
        }
    }
}
