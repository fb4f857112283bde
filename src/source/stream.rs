//! Standard input, or a file of some other program, as plain bytes: whatever it is compressed with, decoded on a thread ahead.
//!
//! Skippable frames are passed over, so our own archives are streams too.

use super::decode::decoder;
use crate::queue::{End, Queue};
use std::{
    io::{self, BufRead, Read},
    sync::Arc,
    thread,
};

/// Bytes handed over at once.
const CHUNK: usize = 256 << 10;
/// Chunks that wait: 2 MiB, enough to even out what tar members of different sizes cost to write.
const DEPTH: usize = 8;

type Chunk = io::Result<Vec<u8>>;

/// Decoded bytes, as they come.
#[derive(Debug)]
pub struct Plain {
    chunks: End<Chunk>,
    now: Vec<u8>,
    at: usize,
}

/// Decode `input` on a thread of its own, which ends with the input, or soon after the result is dropped.
///
/// Errors of the input come out where its bytes would: `InvalidData` or `UnexpectedEof` for damage.
pub fn decode(input: impl Read + Send + 'static) -> Plain {
    let chunks = Arc::new(Queue::with_room(DEPTH));
    let filled = chunks.clone();
    // Closed by the thread only: if there is none, its error is to be read.
    if let Err(error) = thread::Builder::new().spawn(move || pump(input, &End(filled).0)) {
        chunks.push(Err(error));
        chunks.close();
    }
    Plain { chunks: End(chunks), now: Vec::new(), at: 0 }
}

fn pump(input: impl Read + Send + 'static, chunks: &Queue<Chunk>) {
    let mut plain = match decoder(input, CHUNK) {
        Ok(plain) => plain,
        Err(error) => {
            chunks.push(Err(error));
            return;
        }
    };
    loop {
        let mut chunk = Vec::with_capacity(CHUNK);
        let read = (&mut plain).take(CHUNK as u64).read_to_end(&mut chunk);
        let ends = chunk.is_empty() || read.is_err();
        // What came before an error counts, though a checksum that stands behind it may have been wrong.
        if !chunk.is_empty() && !chunks.push(Ok(chunk)) {
            return;
        }
        if let Err(error) = read {
            chunks.push(Err(damage(error)));
        }
        if ends {
            return;
        }
    }
}

/// What a decoder refuses is damage; what the system refuses has a number.
fn damage(error: io::Error) -> io::Error {
    match error.raw_os_error().is_some() || error.kind() == io::ErrorKind::UnexpectedEof {
        true => error,
        false => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

impl BufRead for Plain {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.now.len() {
            (self.now, self.at) = (self.chunks.0.pop().unwrap_or_else(|| Ok(Vec::new()))?, 0);
        }
        Ok(&self.now[self.at..])
    }

    fn consume(&mut self, count: usize) {
        self.at += count;
    }
}

impl Read for Plain {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut there = self.fill_buf()?;
        let count = there.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::codec::Codec;

    fn frames(codec: Codec, pieces: &[&[u8]]) -> Vec<u8> {
        let mut compressor = codec.compressor().unwrap();
        let frame = |piece: &&[u8]| {
            let mut out = Vec::new();
            compressor.compress(piece, &mut out).unwrap();
            out
        };
        pieces.iter().flat_map(frame).collect()
    }

    fn read(stored: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        decode(io::Cursor::new(stored)).read_to_end(&mut plain).map(|_| plain)
    }

    #[test]
    fn many_frames_are_one_stream() {
        let large = vec![7; 3 << 20];
        let pieces: [&[u8]; 4] = [b"", b"hello ", &large, b"world"];
        for codec in [Codec::Zstd(1), Codec::Lz4, Codec::None] {
            assert!(read(frames(codec, &pieces)).unwrap() == pieces.concat(), "{codec}");
        }
    }

    #[test]
    fn skippable_frames_are_passed_over() {
        use crate::format::segment::Service;
        for codec in [Codec::Zstd(1), Codec::Lz4] {
            let label = Service::Label.frame(b"anything");
            let stored = [frames(codec, &[b"a"]), label.clone(), frames(codec, &[b"b"]), label].concat();
            assert_eq!(read(stored).unwrap(), b"ab", "{codec}");
        }
    }

    #[test]
    fn several_gzip_members_are_one_stream() {
        use std::io::Write;
        let member = |bytes: &[u8]| {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(bytes).unwrap();
            gzip.finish().unwrap()
        };
        assert_eq!(read([member(b"a"), member(b"b")].concat()).unwrap(), b"ab");
    }

    #[test]
    fn a_cut_stream_is_an_error_after_what_was_whole() {
        let stored = frames(Codec::Zstd(1), &[b"whole", &[9; 5000]]);
        let mut plain = Vec::new();
        let mut cut = decode(io::Cursor::new(stored[..stored.len() - 3].to_vec()));
        assert_eq!(cut.read_to_end(&mut plain).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(plain.starts_with(b"whole"));
    }

    #[test]
    fn a_stream_ends_between_frames_and_nowhere_else() {
        use crate::format::segment::Service;
        let noise: Vec<u8> = (0..3000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for codec in [Codec::Zstd(1), Codec::Lz4] {
            let pieces = [frames(codec, &[&[9; 500]]), Service::Label.frame(b"x"), frames(codec, &[&noise])];
            let borders: Vec<usize> = (1..=3).map(|count| pieces[..count].concat().len()).collect();
            let stored = pieces.concat();
            // A shorter one has no magic, and is passed on.
            for len in 4..=stored.len() {
                let read = read(stored[..len].to_vec());
                assert_eq!(read.is_ok(), borders.contains(&len), "{codec}, {len} of {borders:?}");
            }
        }
    }

    #[test]
    fn what_was_decoded_before_damage_comes_out() {
        let noise: Vec<u8> =
            (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ (i >> 9) as u8).collect();
        let mut damaged = frames(Codec::Zstd(1), &[&noise]);
        let half = damaged.len() / 2;
        damaged[half..].fill(0xff);
        let mut plain = Vec::new();
        assert!(decode(io::Cursor::new(damaged)).read_to_end(&mut plain).is_err());
        assert!(
            plain.len() > noise.len() / 4 && plain[..noise.len() / 4] == noise[..noise.len() / 4],
            "{}",
            plain.len()
        );
        for codec in [Codec::Zstd(1), Codec::Lz4] {
            let trailed = [frames(codec, &[b"whole ", b"frames"]), vec![0; 100]].concat();
            let mut plain = Vec::new();
            assert_eq!(
                decode(io::Cursor::new(trailed)).read_to_end(&mut plain).unwrap_err().kind(),
                io::ErrorKind::InvalidData
            );
            assert_eq!(plain, b"whole frames", "{codec}");
        }
    }

    #[test]
    fn short_and_empty_inputs_are_passed_on() {
        for input in [&b""[..], b"a", b"abc", b"abcdef"] {
            assert_eq!(read(input.to_vec()).unwrap(), input);
        }
    }
}
