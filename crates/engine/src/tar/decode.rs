//! Detects the compression of a stream by its first bytes, and decodes it to its end.
//!
//! All frames or members form one stream. Skippable frames are skipped; own service frames are
//! available. With every codec, an end of the input within a frame is an error. The content of a
//! frame is released when its checksum was seen, if the frame states its length, as own frames do,
//! and is at most as large as most own frames. Other frames are released as far as they can be
//! decoded.

use flate2::bufread::GzDecoder;
use fullbore_format::{
    seal::MAX_BYTES,
    segment::{Service, ZSTD_HEADER_BYTES},
};
use fullbore_platform::memory;
use lzzzz::lz4f::BufReadDecompressor;
use std::io::{self, BufRead, BufReader, Read};
use zstd_safe::{DCtx, InBuffer, OutBuffer};

/// Plain bytes, and the service frames between them.
pub(crate) trait Decoder: Read {
    /// Returns the service frame before the bytes to come. The input ends at each service frame,
    /// and continues after this call.
    fn take_service(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Returns the bytes so far that belong to complete and correct frames; all bytes for a codec
    /// without frames.
    fn verified_bytes(&self) -> u64 {
        u64::MAX
    }
}

impl<R: Read> Decoder for BufReader<R> {}

/// Returns the decoder of `input`, which reads `chunk` bytes at a time. Uncompressed input is
/// passed on.
///
/// # Errors
/// Errors of the input.
pub(crate) fn decoder(
    mut input: impl Read + 'static,
    chunk: usize,
) -> io::Result<Box<dyn Decoder>> {
    let mut magic = Vec::new();
    input.by_ref().take(4).read_to_end(&mut magic)?;
    let first = u32::from_le_bytes(magic.as_slice().try_into().unwrap_or_default());
    let input = BufReader::with_capacity(chunk, io::Cursor::new(magic).chain(input));
    Ok(match first {
        // A skippable frame may come before the first one of Zstandard.
        0xfd2f_b528 | 0x184d_2a50..=0x184d_2a5f => {
            let context = DCtx::try_create().ok_or_else(memory::shortage)?;
            let skipped_frame = SkippedFrame::default();
            Box::new(HeldBack::new(Zstd {
                context,
                input,
                wanted: 0,
                skipped_frame,
                head: Vec::new(),
                passed: 0,
                sure: 0,
            }))
        }
        LZ4 => {
            let decoder =
                BufReadDecompressor::new(Lz4Frames::new(input)).map_err(io::Error::other)?;
            Box::new(HeldBack::new(Lz4 {
                decoder,
                passed: 0,
                sure: 0,
            }))
        }
        // The magic of gzip has two bytes.
        _ if first & 0xffff == 0x8b1f => Box::new(Gzip(Some(GzDecoder::new(input)))),
        _ => Box::new(input),
    })
}

/// Maximum number of bytes of a frame that wait for its checksum.
const HELD_BYTES: usize = 4 << 20;
/// Maximum length of the header of a zstd frame.
const ZSTD_HEADER_MAX_BYTES: usize = 18;
/// Bytes requested at once.
const ASKED_BYTES: usize = 128 << 10;

/// Releases verified bytes, and those of frames that are too large to be held back.
struct HeldBack<D> {
    inner: D,
    bytes: Vec<u8>,
    /// Bytes of the buffer already released, and bytes that may be released.
    given: usize,
    ready: usize,
    /// All bytes received from `inner`.
    passed: u64,
    /// The error at the end of the input, after the ready bytes.
    end: Option<io::Error>,
}

impl<D: Decoder> HeldBack<D> {
    fn new(inner: D) -> Self {
        Self {
            inner,
            bytes: Vec::new(),
            given: 0,
            ready: 0,
            passed: 0,
            end: None,
        }
    }

    /// Reads more. Returns whether there is more.
    fn fill(&mut self) -> io::Result<bool> {
        self.bytes.drain(..self.given);
        (self.given, self.ready) = (0, 0);
        let there = self.bytes.len();
        self.bytes.resize(there + ASKED_BYTES, 0);
        let read = self.inner.read(&mut self.bytes[there..]);
        let count = *read.as_ref().unwrap_or(&0);
        self.bytes.truncate(there + count);
        self.passed += count as u64;
        let unsure = self.passed.saturating_sub(self.inner.verified_bytes()) as usize;
        self.ready = match read {
            // Bytes before the cut are probably correct, and are reported as doubtful.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.end = Some(error);
                self.bytes.len()
            }
            Err(error) => {
                self.end = Some(error);
                self.bytes.len().saturating_sub(unsure)
            }
            Ok(0) => self.bytes.len(),
            Ok(_) if unsure >= HELD_BYTES => self.bytes.len(),
            Ok(_) => self.bytes.len().saturating_sub(unsure),
        };
        Ok(count > 0 || self.ready > 0)
    }
}

impl<D: Decoder> Decoder for HeldBack<D> {
    fn take_service(&mut self) -> Option<Vec<u8>> {
        if self.given < self.bytes.len() {
            None
        } else {
            self.inner.take_service()
        }
    }
}

impl<D: Decoder> Read for HeldBack<D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.ready {
            if let Some(end) = self.end.take() {
                return Err(end);
            }
            if !self.fill()? && self.end.is_none() {
                return Ok(0);
            }
        }
        let count = buffer.len().min(self.ready - self.given);
        buffer[..count].copy_from_slice(&self.bytes[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

/// A service frame that is being skipped. A longer frame than fullbore writes is ignored.
#[derive(Default)]
struct SkippedFrame {
    /// The bytes so far of a possible service frame.
    frame: Option<Vec<u8>>,
    /// A complete frame, until it is taken.
    whole: Option<Vec<u8>>,
}

impl SkippedFrame {
    /// Takes more `bytes` of a frame: its first if it `begins`, its last if it `ends`.
    fn pass(&mut self, bytes: &[u8], begins: bool, ends: bool) {
        if begins {
            self.frame = Some(Vec::new());
        }
        let Some(frame) = &mut self.frame else { return };
        frame.extend_from_slice(bytes);
        if !Service::may_begin(frame) || frame.len() as u64 > MAX_BYTES {
            self.frame = None;
        }
        if ends {
            self.whole = self.frame.take();
        }
    }
}

/// A sequence of zstd frames.
struct Zstd<R> {
    context: DCtx<'static>,
    input: R,
    /// Bytes up to the end of the next block; 0 between two frames.
    wanted: usize,
    skipped_frame: SkippedFrame,
    /// The first bytes of the frame, up to the maximum length of a header.
    head: Vec<u8>,
    /// Bytes returned so far, and those of complete frames.
    passed: u64,
    sure: u64,
}

impl<R: BufRead> Decoder for Zstd<R> {
    fn take_service(&mut self) -> Option<Vec<u8>> {
        self.skipped_frame.whole.take()
    }

    fn verified_bytes(&self) -> u64 {
        let stated = zstd_safe::get_frame_content_size(&self.head).ok().flatten();
        if stated.is_some_and(|bytes| bytes <= HELD_BYTES as u64) {
            self.sure
        } else {
            u64::MAX
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.skipped_frame.whole.is_none() {
            let stored = self.input.fill_buf()?;
            let at_end = stored.is_empty();
            // One block at a time: a call that meets damage returns none of the bytes before it.
            let wanted = if self.wanted == 0 {
                ZSTD_HEADER_BYTES
            } else {
                self.wanted
            };
            let mut packed = InBuffer::around(&stored[..stored.len().min(wanted)]);
            let mut plain = OutBuffer::around(&mut *buffer);
            let hint = self
                .context
                .decompress_stream(&mut plain, &mut packed)
                .map_err(|code| zstd_error(code, self.passed))?;
            let consumed = packed.pos();
            let written = plain.pos();
            if consumed > 0 {
                self.skipped_frame
                    .pass(&stored[..consumed], self.wanted == 0, hint == 0);
                self.head
                    .truncate(if self.wanted == 0 { 0 } else { self.head.len() });
                let rest = ZSTD_HEADER_MAX_BYTES - self.head.len();
                self.head.extend_from_slice(&stored[..consumed.min(rest)]);
            }
            self.input.consume(consumed);
            // Called without input between two frames, zstd asks for the next header: this is the
            // end, not a cut.
            self.wanted = if consumed == 0 && written == 0 {
                self.wanted
            } else {
                hint
            };
            self.passed += written as u64;
            if self.wanted == 0 {
                self.sure = self.passed;
            }
            match (written, at_end) {
                (0, true) if self.wanted != 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                (0, true) => return Ok(0),
                (0, false) if buffer.is_empty() => return Ok(0),
                (0, false) => {}
                _ => return Ok(written),
            }
        }
        Ok(0)
    }
}

/// Returns the error for input that zstd refuses after `passed` bytes: damage, or at the start
/// possibly an unsupported option.
fn zstd_error(code: usize, passed: u64) -> io::Error {
    let why = zstd_safe::get_error_name(code);
    let beyond = match why {
        "Frame requires too much memory for decoding" if passed == 0 => "--long=31",
        "Dictionary mismatch" if passed == 0 => "-D DICTIONARY",
        _ => return io::Error::new(io::ErrorKind::InvalidData, why),
    };
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!("{why}: use `zstd -dc {beyond} FILE | fullbore …`"),
    )
}

/// A sequence of gzip members; zeros after the last one are padding, as in `gzip`.
struct Gzip<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Decoder for Gzip<R> {}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let count = member.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            if let Some(member) = self.0.take() {
                self.0 = next_member(member.into_inner())?;
            }
        }
        Ok(0)
    }
}

fn next_member<R: BufRead>(mut input: R) -> io::Result<Option<GzDecoder<R>>> {
    loop {
        let there = input.fill_buf()?;
        match there.iter().position(|byte| *byte != 0) {
            _ if there.is_empty() => return Ok(None),
            Some(0) => return Ok(Some(GzDecoder::new(input))),
            Some(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the data after the last gzip member is not gzip",
                ));
            }
            None => {
                let zeros = there.len();
                input.consume(zeros);
            }
        }
    }
}

/// Magic of an lz4 frame.
const LZ4: u32 = 0x184d_2204;

/// A sequence of lz4 frames.
struct Lz4<R: BufRead> {
    decoder: BufReadDecompressor<'static, Lz4Frames<R>>,
    /// Bytes returned so far, and those of complete frames.
    passed: u64,
    sure: u64,
}

impl<R: BufRead> Decoder for Lz4<R> {
    fn take_service(&mut self) -> Option<Vec<u8>> {
        self.decoder.get_mut().skipped_frame.whole.take()
    }

    fn verified_bytes(&self) -> u64 {
        if self.decoder.get_ref().frames.state_length {
            self.sure
        } else {
            u64::MAX
        }
    }
}

impl<R: BufRead> Read for Lz4<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoder.get_ref().skipped_frame.whole.is_none() {
            let count = self.decoder.read(buffer)?;
            self.passed += count as u64;
            if !self.decoder.get_ref().frames.is_inside_frame() {
                self.sure = self.passed;
            }
            match count {
                0 if buffer.is_empty() => return Ok(0),
                // The decoder treats every end of the input as the end of the stream.
                0 if self.decoder.get_ref().frames.is_inside_frame() => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                0 if std::mem::take(&mut self.decoder.get_mut().paused) => {}
                count => return Ok(count),
            }
        }
        Ok(0)
    }
}

/// An input that follows the lz4 frames as they are consumed.
///
/// It ends once after each frame: the decoder returns its bytes only at an end, and none of them at
/// damage.
struct Lz4Frames<R> {
    input: R,
    frames: PlainFrames,
    skipped_frame: SkippedFrame,
    /// Whether a frame has just ended.
    ended: bool,
    /// Whether the last end was that of a frame.
    paused: bool,
}

impl<R> Lz4Frames<R> {
    fn new(input: R) -> Self {
        Self {
            input,
            frames: PlainFrames::default(),
            skipped_frame: SkippedFrame::default(),
            ended: false,
            paused: false,
        }
    }
}

impl<R: BufRead> Read for Lz4Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut there = self.fill_buf()?;
        let count = there.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Lz4Frames<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.paused = std::mem::take(&mut self.ended);
        if self.paused {
            Ok(&[])
        } else {
            self.input.fill_buf()
        }
    }

    fn consume(&mut self, count: usize) {
        // The consumed bytes are in the buffer, so this reads nothing.
        if let Ok(there) = self.input.fill_buf() {
            let there = &there[..count.min(there.len())];
            let begins = !self.frames.is_inside_frame();
            self.frames.pass(there);
            if count > 0 {
                self.skipped_frame
                    .pass(there, begins, !self.frames.is_inside_frame());
            }
        }
        self.input.consume(count);
        self.ended = count > 0 && !self.frames.is_inside_frame();
    }
}

/// The position of a stream within lz4 frames (`lz4_Frame_format.md`, 1.6). The decoder judges
/// their content.
#[derive(Default)]
struct PlainFrames {
    /// The part of a frame that the next bytes are.
    next: FramePart,
    /// Bytes of this part so far.
    head: Vec<u8>,
    /// Bytes to skip before this part.
    skip: u64,
    /// Whether the frame states its length.
    state_length: bool,
}

/// A part of a frame that tells what follows.
#[derive(Default, Clone, Copy, PartialEq)]
enum FramePart {
    /// The magic of a frame.
    #[default]
    Magic,
    /// The length of a skippable frame.
    Length,
    /// The flags of a frame, and the size of its blocks.
    Flags,
    /// The length of a block; the checksum bytes after each block, and after the last.
    Block(u64, u64),
}

impl PlainFrames {
    /// Returns whether a frame has started and not ended.
    fn is_inside_frame(&self) -> bool {
        self.next != FramePart::Magic || !self.head.is_empty() || self.skip > 0
    }

    fn pass(&mut self, mut bytes: &[u8]) {
        loop {
            let skipped = usize::try_from(self.skip)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            self.skip -= skipped as u64;
            let Some((first, rest)) = bytes[skipped..].split_first() else {
                return;
            };
            self.head.push(*first);
            bytes = rest;
            if self.head.len() == if self.next == FramePart::Flags { 2 } else { 4 } {
                if self.next == FramePart::Flags {
                    self.state_length = self.head[0] & 0x08 != 0;
                }
                (self.next, self.skip) = self.next_part();
                self.head.clear();
            }
        }
    }

    /// Returns the part after the complete one, and the number of bytes before it.
    fn next_part(&self) -> (FramePart, u64) {
        let number = self
            .head
            .iter()
            .rev()
            .fold(0, |number, byte| (number << 8) | u32::from(*byte));
        let checksum = |flag| if self.head[0] & flag == 0 { 0 } else { 4 };
        match self.next {
            FramePart::Magic if number == LZ4 => (FramePart::Flags, 0),
            FramePart::Magic if number & 0xffff_fff0 == 0x184d_2a50 => (FramePart::Length, 0),
            FramePart::Magic => (FramePart::Magic, u64::MAX), // the decoder rejects it
            FramePart::Length => (FramePart::Magic, number.into()),
            // Content size 8 bytes, dictionary ID 4, header checksum 1.
            FramePart::Flags => (
                FramePart::Block(checksum(0x10), checksum(0x04)),
                2 * checksum(0x08) + checksum(0x01) + 1,
            ),
            FramePart::Block(_, last) if number == 0 => (FramePart::Magic, last),
            FramePart::Block(each, _) => (self.next, u64::from(number & 0x7fff_ffff) + each), // the highest bit says "stored"
        }
    }
}
