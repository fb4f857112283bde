//! Standard input, or a file of some other program, as plain bytes: whatever it is compressed with, decoded on a thread ahead.
//!
//! zstd, lz4 and gzip are told by their first bytes; anything else is passed on as it is. All frames of a stream are
//! decoded, one after the other, and skippable ones passed over, so our own archives are streams too.

use crate::queue::{End, Queue};
use flate2::bufread::MultiGzDecoder;
use lzzzz::lz4f::BufReadDecompressor;
use std::{
    io::{self, BufRead, BufReader, Read},
    sync::Arc,
    thread,
};
use zstd_safe::{DCtx, InBuffer, OutBuffer};

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
    let filled = End(chunks.clone());
    thread::spawn(move || pump(input, &filled.0));
    Plain { chunks: End(chunks), now: Vec::new(), at: 0 }
}

fn pump(input: impl Read + Send + 'static, chunks: &Queue<Chunk>) {
    let mut plain = match decoder(input) {
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
        // What came before an error is good, and counts.
        if !chunk.is_empty() && !chunks.push(Ok(chunk)) {
            return;
        }
        if let Err(error) = read {
            chunks.push(Err(error));
        }
        if ends {
            return;
        }
    }
}

fn decoder(mut input: impl Read + Send + 'static) -> io::Result<Box<dyn Read>> {
    let mut magic = Vec::new();
    input.by_ref().take(4).read_to_end(&mut magic)?;
    let first = u32::from_le_bytes(magic.as_slice().try_into().unwrap_or_default());
    let input = BufReader::with_capacity(CHUNK, io::Cursor::new(magic).chain(input));
    Ok(match first {
        0xfd2f_b528 | 0x184d_2a50..=0x184d_2a5f => Box::new(Zstd { context: DCtx::create(), input, within: false }),
        0x184d_2204 => Box::new(BufReadDecompressor::new(input).map_err(io::Error::other)?),
        _ if first & 0xffff == 0x8b1f => Box::new(MultiGzDecoder::new(input)),
        _ => Box::new(input),
    })
}

/// Many zstd frames, one after the other.
struct Zstd<R> {
    context: DCtx<'static>,
    input: R,
    /// Has a frame begun that has not ended?
    within: bool,
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let stored = self.input.fill_buf()?;
            let at_end = stored.is_empty();
            let mut from = InBuffer::around(stored);
            let mut to = OutBuffer::around(&mut *buffer);
            let hint = self.context.decompress_stream(&mut to, &mut from).map_err(damaged)?;
            let (consumed, written) = (from.pos(), to.pos());
            self.input.consume(consumed);
            // Asked with nothing between two frames, it wants the next header: that is the end and not a cut.
            self.within = if consumed == 0 && written == 0 { self.within } else { hint != 0 };
            match (written, at_end) {
                (0, true) if self.within => return Err(io::ErrorKind::UnexpectedEof.into()),
                (0, true) => return Ok(0),
                (0, false) if buffer.is_empty() => return Ok(0),
                (0, false) => {}
                _ => return Ok(written),
            }
        }
    }
}

fn damaged(code: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, zstd_safe::get_error_name(code))
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
    fn short_and_empty_inputs_are_passed_on() {
        for input in [&b""[..], b"a", b"abc", b"abcdef"] {
            assert_eq!(read(input.to_vec()).unwrap(), input);
        }
    }
}
