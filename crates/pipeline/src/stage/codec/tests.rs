#[test]
fn the_words_for_no_memory_are_those_of_the_libraries() {
    const NO_MEMORY: usize = 64; // `ZSTD_error_memory_allocation`
    assert!(is_of_memory(zstd_safe::get_error_name(
        NO_MEMORY.wrapping_neg()
    )));
    assert!(is_of_memory(&lz4f::ErrorKind::AllocationFailed.to_string()));
    assert_eq!(
        (
            damaged("AllocationFailed").kind,
            refused("AllocationFailed").kind
        ),
        (ErrorKind::System, ErrorKind::System)
    );
}

use super::*;
use proptest::{collection::vec, prelude::*};

const ALL: [Codec; 4] = [Codec::Zstd(1), Codec::Zstd(-5), Codec::Lz4, Codec::None];

fn packed(codec: Codec, plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    codec
        .compressor()
        .unwrap()
        .compress(plain, &mut out)
        .unwrap();
    out
}

/// Frames of gzip have no end of their own, so the test reads them as raw deflate.
fn unpacked(codec: Codec, stored: &[u8], len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    match codec {
        Codec::Gzip(_) => {
            let inflate = flate2::read::DeflateDecoder::new(stored);
            inflate.take(len as u64).read_to_end(&mut out).unwrap();
        }
        _ => codec
            .decompressor()
            .decompress(stored, len, &mut out)
            .unwrap(),
    }
    out
}

proptest! {
    #[test]
    fn every_codec_reads_what_it_wrote(seed in vec(any::<u8>(), 0..300), times in 0usize..900) {
        let plain = seed.repeat(times);
        for codec in ALL {
            let mut out = Vec::new();
            codec.decompressor().decompress(&packed(codec, &plain), plain.len(), &mut out).unwrap();
            prop_assert_eq!(&out, &plain, "{}", codec);
        }
    }

    #[test]
    fn a_damaged_frame_never_panics_nor_takes_more_memory(plain in vec(any::<u8>(), 1..3000), at: usize, with: u8) {
        for codec in ALL {
            let mut stored = packed(codec, &plain);
            let offset = at % stored.len();
            stored[offset] = with;
            let mut out = Vec::new();
            let _ = codec.decompressor().decompress(&stored, plain.len(), &mut out);
            prop_assert!(out.capacity() <= 2 * plain.len() + 64, "{} took {}", codec, out.capacity());
        }
    }
}

/// zlib-rs has one fixed code at level 1: 9 bits for each byte of 144 and above.
#[test]
fn what_does_not_compress_is_stored_all_the_same() {
    let mut noise = vec![0; 2 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    for codec in [0, 1, 2, 6, 9].map(Codec::Gzip).into_iter().chain([
        Codec::Zstd(-7),
        Codec::Zstd(1),
        Codec::Lz4,
        Codec::None,
    ]) {
        let mut compressor = codec.compressor().unwrap();
        let mut stored = Vec::new();
        for high in [0, 64, 120, 132, 160, 255] {
            // Some bytes that were below that are not any more.
            let plain: Vec<u8> = noise
                .iter()
                .map(|byte| {
                    if *byte < high {
                        144 + byte % 112
                    } else {
                        *byte
                    }
                })
                .collect();
            for len in [1000, 1 << 20, 2 << 20] {
                compressor.compress(&plain[..len], &mut stored).unwrap();
                assert!(
                    unpacked(codec, &stored, len) == plain[..len],
                    "{codec}, {high}, {len}"
                );
            }
        }
    }
}

#[test]
fn every_codec_of_an_archive_finds_every_flipped_bit() {
    let plain: Vec<u8> = (0..500u32).map(|i| (i * i / 7) as u8).collect();
    for codec in ALL {
        let stored = packed(codec, &plain);
        for bit in 0..stored.len() * 8 {
            let mut stored = stored.clone();
            stored[bit / 8] ^= 1 << (bit % 8);
            let mut out = Vec::new();
            let read = codec
                .decompressor()
                .decompress(&stored, plain.len(), &mut out);
            assert!(read.is_err() || out == plain, "{codec}, bit {bit}");
        }
    }
}

#[test]
fn a_damaged_frame_is_judged_the_same_whatever_room_there_is() {
    for codec in ALL {
        for len in (1..60u32).chain([700]) {
            let plain: Vec<u8> = (0..len).map(|i| (i * i / 7) as u8 & 63).collect();
            let stored = packed(codec, &plain);
            for bit in 0..stored.len() * 8 {
                let mut stored = stored.clone();
                stored[bit / 8] ^= 1 << (bit % 8);
                let [tight, loose] = [0, 1 << 10].map(|room| {
                    let mut out = Vec::with_capacity(room);
                    codec
                        .decompressor()
                        .decompress(&stored, plain.len(), &mut out)
                        .map(|()| out)
                        .ok()
                });
                assert_eq!(tight, loose, "{codec}, {len} bytes, bit {bit}");
            }
        }
    }
}

#[test]
fn a_frame_of_another_length_is_refused() {
    let plain = [9; 500];
    for codec in ALL {
        for plain_len in [0, 1, 499, 501, 5000] {
            let mut out = vec![7; 600];
            let read = codec
                .decompressor()
                .decompress(&packed(codec, &plain), plain_len, &mut out);
            assert!(read.is_err(), "{codec}, {plain_len}");
        }
    }
}

#[test]
fn names_and_levels_read_back() {
    for text in ["auto", "zstd:1", "zstd:-7", "lz4", "gzip:6", "none"] {
        assert_eq!(text.parse::<Codec>().unwrap().to_string(), text);
    }
    for text in ["auto:1", "zstd:99", "lz4:1", "gzip:10", "none:0", "xz", ""] {
        assert!(text.parse::<Codec>().is_err(), "{text}");
    }
}
