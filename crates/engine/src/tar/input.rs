//! Standard input or a foreign file as plain bytes: detects the compression and decodes ahead on a
//! thread of its own.
//!
//! Skippable frames are skipped, so own archives are streams too; the content of their service
//! frames is available separately.

use super::decode::decoder;
use fullbore_format::seal::MAX_BYTES;
use fullbore_platform::{
    memory,
    queue::{End, Queue},
};
use std::{
    io::{self, BufRead, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// Bytes handed over at once.
const CHUNK: usize = 256 << 10;
/// Chunks that wait: 2 MiB, enough to level out the different cost of writing tar members.
const DEPTH: usize = 8;

/// A message from the decoding thread.
#[derive(Debug)]
enum InputChunk {
    /// Decoded bytes.
    PlainInput(Vec<u8>),
    /// A service frame that follows the bytes before.
    Service(Vec<u8>),
}

/// Decoded bytes as they arrive.
#[derive(Debug)]
pub struct PlainInput {
    chunks: End<io::Result<InputChunk>>,
    now: Vec<u8>,
    at: usize,
    services: Vec<Vec<u8>>,
    service_bytes: u64,
    stored: Arc<AtomicU64>,
}

impl PlainInput {
    /// Returns the service frames before the next byte to read, since the last call.
    pub fn take_services(&mut self) -> Vec<Vec<u8>> {
        self.service_bytes = 0;
        std::mem::take(&mut self.services)
    }

    /// Keeps a service frame. Frames beyond the limit are dropped: an own stream never has so many
    /// in one place.
    fn keep_service(&mut self, frame: Vec<u8>) {
        self.service_bytes += frame.len() as u64;
        if self.service_bytes <= MAX_BYTES {
            self.services.push(frame);
        }
    }

    /// Returns the bytes of the input read so far.
    pub fn stored_bytes(&self) -> u64 {
        self.stored.load(Relaxed)
    }
}

/// An input that counts its bytes.
struct CountedInput<R>(R, Arc<AtomicU64>);

impl<R: Read> Read for CountedInput<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(buffer)?;
        self.1.fetch_add(count as u64, Relaxed);
        Ok(count)
    }
}

/// Decodes `input` on a thread of its own, which ends with the input, or soon after the result is
/// dropped.
///
/// Errors of the input appear in place of its bytes: `InvalidData` or `UnexpectedEof` for damage.
pub fn decode(input: impl Read + Send + 'static) -> PlainInput {
    let chunks = Arc::new(Queue::with_room(DEPTH));
    let filled = chunks.clone();
    let stored = Arc::new(AtomicU64::new(0));
    let input = CountedInput(input, stored.clone());
    // Only the thread closes the queue: if it could not start, its error must be read.
    if let Err(error) = memory::check_thread()
        .and_then(|()| thread::Builder::new().spawn(move || decode_loop(input, &End(filled).0)))
    {
        chunks.push(Err(error));
        chunks.close();
    }
    PlainInput {
        chunks: End(chunks),
        now: Vec::new(),
        at: 0,
        services: Vec::new(),
        service_bytes: 0,
        stored,
    }
}

fn decode_loop(input: impl Read + Send + 'static, chunks: &Queue<io::Result<InputChunk>>) {
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
        let service = plain.take_service();
        let ends = chunk.is_empty() && service.is_none() || read.is_err();
        // Bytes before an error count, although a checksum after them may have been wrong.
        let plain = (!chunk.is_empty()).then_some(InputChunk::PlainInput(chunk));
        if !plain
            .into_iter()
            .chain(service.map(InputChunk::Service))
            .all(|chunk| chunks.push(Ok(chunk)))
        {
            return;
        }
        if let Err(error) = read {
            chunks.push(Err(as_damage(error)));
        }
        if ends {
            return;
        }
    }
}

/// Turns an error of a decoder into damage, unless it has another meaning. Errors of the system
/// have a number.
fn as_damage(error: io::Error) -> io::Error {
    let says_other =
        [io::ErrorKind::UnexpectedEof, io::ErrorKind::Unsupported].contains(&error.kind());
    if error.raw_os_error().is_some() || says_other {
        error
    } else {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

impl BufRead for PlainInput {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.at == self.now.len() {
            match self.chunks.0.pop().transpose()? {
                Some(InputChunk::PlainInput(bytes)) => (self.now, self.at) = (bytes, 0),
                Some(InputChunk::Service(frame)) => self.keep_service(frame),
                None => return Ok(&[]),
            }
        }
        Ok(&self.now[self.at..])
    }

    fn consume(&mut self, count: usize) {
        self.at += count;
    }
}

impl Read for PlainInput {
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
    use fullbore_pipeline::stage::codec::Codec;

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
        decode(io::Cursor::new(stored))
            .read_to_end(&mut plain)
            .map(|_| plain)
    }

    #[test]
    fn many_frames_are_one_stream() {
        let large = vec![7; 3 << 20];
        let pieces: [&[u8]; 4] = [b"", b"hello ", &large, b"world"];
        for codec in [Codec::Zstd(1), Codec::Lz4, Codec::None] {
            assert!(
                read(frames(codec, &pieces)).unwrap() == pieces.concat(),
                "{codec}"
            );
        }
    }

    #[test]
    fn skippable_frames_are_passed_over() {
        use fullbore_format::segment::Service;
        for codec in [Codec::Zstd(1), Codec::Lz4] {
            let label = Service::Label.frame(b"anything");
            let stored = [
                frames(codec, &[b"a"]),
                label.clone(),
                frames(codec, &[b"b"]),
                label,
            ]
            .concat();
            assert_eq!(read(stored).unwrap(), b"ab", "{codec}");
        }
    }

    #[test]
    fn service_frames_come_where_they_stood() {
        use fullbore_format::segment::{EMPTY_ZSTD, Service, filler};
        for codec in [Codec::Zstd(1), Codec::Lz4] {
            let page = |number: u32| Service::Page.frame(&vec![number as u8; 200_000]);
            let mut stored = if codec == Codec::Lz4 {
                Vec::new()
            } else {
                EMPTY_ZSTD.to_vec()
            };
            for number in 0..3 {
                stored.extend(frames(codec, &[&vec![number as u8; 700_000]]));
                stored.extend([page(number), filler(99).unwrap(), page(number + 100)].concat());
            }
            let mut plain = decode(io::Cursor::new(stored.clone()));
            for number in 0..3 {
                let mut bytes = vec![0; 700_000];
                plain.read_exact(&mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == number as u8));
                let before = if number == 0 {
                    vec![]
                } else {
                    vec![page(number - 1), page(number + 99)]
                };
                assert!(plain.take_services() == before, "{codec}, {number}");
            }
            assert_eq!(plain.read(&mut [0; 1]).unwrap(), 0);
            assert!(
                plain.take_services() == [page(2), page(102)] && plain.take_services().is_empty(),
                "{codec}"
            );
            assert_eq!(plain.stored_bytes(), stored.len() as u64);
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
        assert_eq!(
            cut.read_to_end(&mut plain).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert!(plain.starts_with(b"whole"));
    }

    #[test]
    fn a_stream_ends_between_frames_and_nowhere_else() {
        use fullbore_format::segment::Service;
        let noise: Vec<u8> = (0..3000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for codec in [Codec::Zstd(1), Codec::Lz4] {
            let pieces = [
                frames(codec, &[&[9; 500]]),
                Service::Label.frame(b"x"),
                frames(codec, &[&noise]),
            ];
            let borders: Vec<usize> = (1..=3)
                .map(|count| pieces[..count].concat().len())
                .collect();
            let stored = pieces.concat();
            // A shorter one has no magic and is passed on.
            for len in 4..=stored.len() {
                let read = read(stored[..len].to_vec());
                assert_eq!(
                    read.is_ok(),
                    borders.contains(&len),
                    "{codec}, {len} of {borders:?}"
                );
            }
        }
    }

    #[test]
    fn what_was_decoded_before_damage_comes_out() {
        let noise: Vec<u8> = (0..1u32 << 20)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ (i >> 9) as u8)
            .collect();
        let spoilt = |mut stored: Vec<u8>| {
            let (half, mut plain) = (stored.len() / 2, Vec::new());
            stored[half..].fill(0xff);
            assert!(
                decode(io::Cursor::new(stored))
                    .read_to_end(&mut plain)
                    .is_err()
            );
            plain
        };
        // A frame with its length and a checksum is held back until it is complete.
        assert_eq!(spoilt(frames(Codec::Zstd(1), &[&noise])), b"");
        let mut context = zstd_safe::CCtx::create();
        context
            .set_parameter(zstd_safe::CParameter::ContentSizeFlag(false))
            .unwrap();
        let mut foreign = Vec::with_capacity(2 << 20);
        context.compress2(&mut foreign, &noise).unwrap();
        let plain = spoilt(foreign);
        assert!(
            plain.len() > noise.len() / 4 && plain[..noise.len() / 4] == noise[..noise.len() / 4],
            "{}",
            plain.len()
        );
        for codec in [Codec::Zstd(1), Codec::Lz4] {
            let trailed = [frames(codec, &[b"whole ", b"frames"]), vec![0; 100]].concat();
            let mut plain = Vec::new();
            assert_eq!(
                decode(io::Cursor::new(trailed))
                    .read_to_end(&mut plain)
                    .unwrap_err()
                    .kind(),
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
