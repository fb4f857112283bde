//! Compression, one frame by itself: zstd, lz4, or zstd frames of raw blocks; and gzip and tar for
//! plain streams.
//!
//! Contexts are reused: a new one for each frame costs 2 to 7 % at 128 KiB. A gzip stream is one
//! member whose frames end in a sync flush (`pg_verifybackup` 18 never ends on several members);
//! `lay` writes its header and trailer. Plain streams of gzip and tar are only read from their
//! beginning, like a tar of any other program.

use super::{Stage, raw_zstd};
use crate::frame::{Frame, FrameContent, FrameEntry, Pool};
use flate2::{Compress as Deflate, Compression, FlushCompress};
use fullbore_format::{
    digest::crc32,
    error::{Error, ErrorKind, Result},
    root::CodecLevel,
};
use fullbore_platform::{
    memory,
    metrics::cpu::{COMPRESSING, timed_cpu},
};
use lzzzz::lz4f::{self, BlockMode, BlockSize, ContentChecksum, PreferencesBuilder};
use std::{fmt, io::Read, str::FromStr, sync::Arc};
use zstd_safe::{CCtx, CParameter, DCtx, DParameter};

/// The level at which adaptive compression starts.
pub(super) const START_LEVEL: i32 = 1;

/// The word for adaptive compression.
const AUTO: &str = "auto";

/// How frames are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Level -131072 to 22.
    Zstd(i32),
    /// zstd at a level that follows the run, see [`LevelDial`](super::level::LevelDial).
    Auto,
    /// lz4 at its default level.
    Lz4,
    /// No compression: zstd frames of raw blocks.
    None,
    /// A plain gzip stream, at level 0 to 9.
    Gzip(u32),
    /// A plain tar stream.
    Tar,
}

impl Codec {
    /// Its name in labels and roots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd(_) | Self::Auto => "zstd",
            Self::Lz4 => "lz4",
            Self::Gzip(_) => "gzip",
            Self::None | Self::Tar => "none",
        }
    }

    /// Its level, or 0 for a codec without levels.
    pub fn level(self) -> CodecLevel {
        match self {
            Self::Auto => CodecLevel::Auto,
            Self::Zstd(level) => CodecLevel::Fixed(level),
            Self::Gzip(level) => CodecLevel::Fixed(level as i32),
            Self::Lz4 | Self::None | Self::Tar => CodecLevel::Fixed(0),
        }
    }

    /// The suffix of file names, such as `tar.zst`.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Zstd(_) | Self::Auto | Self::None => "tar.zst",
            Self::Lz4 => "tar.lz4",
            Self::Gzip(_) => "tar.gz",
            Self::Tar => "tar",
        }
    }

    /// The codec with this name in a label or root, at any level.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if this build does not know it.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "zstd" => Ok(Self::Zstd(1)),
            "lz4" => Ok(Self::Lz4),
            "none" => Ok(Self::None),
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                format!("cannot read codec {name:?}"),
            )
            .hint("use a newer fullbore")),
        }
    }

    /// The same codec at the level that a root gives.
    #[must_use]
    pub fn at_level(self, level: CodecLevel) -> Self {
        match (self, level) {
            (Self::Zstd(_) | Self::Auto, CodecLevel::Fixed(level)) => Self::Zstd(level),
            (Self::Zstd(_), CodecLevel::Auto) => Self::Auto,
            (Self::Gzip(_), CodecLevel::Fixed(level)) => Self::Gzip(level.unsigned_abs()),
            _ => self,
        }
    }

    /// The same codec at its fastest level that still compresses, or below that as it is.
    #[must_use]
    pub fn at_fast_level(self) -> Self {
        match self {
            Self::Auto => Self::Zstd(1),
            Self::Zstd(level) => Self::Zstd(level.min(1)),
            Self::Gzip(level) => Self::Gzip(level.min(1)),
            Self::Lz4 | Self::None | Self::Tar => self,
        }
    }

    /// Does it write a plain stream? gzip and tar have no skippable frames, so such a stream has no
    /// label, pages, root or seek table.
    pub fn is_plain_stream(self) -> bool {
        matches!(self, Self::Gzip(_) | Self::Tar)
    }

    /// The codec of a stream for other programs: `none` becomes a plain tar.
    #[must_use]
    pub fn for_pipe(self) -> Self {
        if self == Self::None { Self::Tar } else { self }
    }

    /// Makes a compressor for one thread.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the level is out of range.
    pub fn compressor(self) -> Result<Compressor> {
        Ok(match self {
            Self::Zstd(level) => Compressor::Zstd(zstd_context(level)?, level),
            Self::Auto => Compressor::Zstd(zstd_context(START_LEVEL)?, START_LEVEL),
            Self::Lz4 => Compressor::Lz4(0),
            Self::None => Compressor::None,
            Self::Gzip(level) => Compressor::Gzip(Deflate::new(Compression::new(level), false)),
            Self::Tar => Compressor::Tar,
        })
    }

    /// Makes a decompressor for one thread. It decodes frames of an archive, never a plain stream,
    /// see [`Codec::named`].
    pub fn decompressor(self) -> Decompressor {
        match self {
            Self::Lz4 => Decompressor::Lz4,
            _ => Decompressor::Zstd(DCtx::try_create().map(Box::new)),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zstd(level) => write!(f, "zstd:{level}"),
            Self::Auto => f.write_str(AUTO),
            Self::Gzip(level) => write!(f, "gzip:{level}"),
            Self::Lz4 | Self::None | Self::Tar => f.write_str(self.name()),
        }
    }
}

impl FromStr for Codec {
    type Err = String;

    /// `auto`, `zstd[:LEVEL]`, `lz4`, `gzip[:LEVEL]` or `none`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, level) = text
            .split_once(':')
            .map_or((text, None), |(name, level)| (name, Some(level)));
        let level = |default: i32, range: std::ops::RangeInclusive<i32>| match level {
            None => Ok(default),
            Some(level) => level
                .parse()
                .ok()
                .filter(|level| range.contains(level))
                .ok_or_else(|| {
                    format!(
                        "the level of {name} is a number from {} to {}",
                        range.start(),
                        range.end()
                    )
                }),
        };
        // lz4, auto and none have no level: a level behind them is a mistake and not ignored.
        match (name, text.contains(':')) {
            ("zstd", _) => Ok(Self::Zstd(level(
                1,
                zstd_safe::min_c_level()..=zstd_safe::max_c_level(),
            )?)),
            ("gzip", _) => Ok(Self::Gzip(level(6, 0..=9)? as u32)),
            (AUTO, false) => Ok(Self::Auto),
            ("lz4", false) => Ok(Self::Lz4),
            ("none", false) => Ok(Self::None),
            _ => Err("use auto, zstd[:LEVEL], lz4, gzip[:LEVEL] or none".to_owned()),
        }
    }
}

fn zstd_context(level: i32) -> Result<Box<CCtx<'static>>> {
    let mut context = CCtx::try_create().ok_or_else(no_memory)?;
    [
        CParameter::CompressionLevel(level),
        CParameter::ChecksumFlag(true),
    ]
    .into_iter()
    .try_for_each(|parameter| context.set_parameter(parameter).map(drop))
    .map_err(|code| {
        Error::new(
            ErrorKind::Usage,
            format!("cannot compress at level {level}"),
        )
        .because(zstd_safe::get_error_name(code))
    })?;
    Ok(Box::new(context))
}

/// Compresses frames on one thread.
pub enum Compressor {
    /// zstd at this level, with content size and checksum in each frame.
    Zstd(Box<CCtx<'static>>, i32),
    /// lz4 at this level of its frame API, with content size and checksum in each frame.
    Lz4(i32),
    /// zstd frames of raw blocks.
    None,
    /// Raw deflate, ended by a sync flush.
    Gzip(Deflate),
    /// A copy.
    Tar,
}

impl Compressor {
    /// Sets the level of the next frames. Only zstd has one that can change.
    pub(super) fn set_level(&mut self, level: i32) {
        match self {
            Self::Zstd(context, now) if *now != level => {
                *now = level;
                // zstd refuses these only in the middle of a frame, and each call completes one.
                let _ = context.set_parameter(CParameter::CompressionLevel(level));
                // The table of `expect_one_file` is for level 1 only.
                let _ = context.set_parameter(CParameter::HashLog(0));
            }
            _ => {}
        }
    }

    /// Tells whether the next frames are each of one large file, or of many small files. For a
    /// large file zstd:1 uses a match table of 32 KiB instead of 64, which fits the first-level
    /// cache (decision 35), and lz4 skips ahead faster where it finds no matches (decision 38).
    pub fn expect_one_file(&mut self, one: bool) {
        match self {
            // zstd refuses this only in the middle of a frame, and each call completes one. 0 is
            // zstd's own choice.
            Self::Zstd(context, 1) => {
                let _ = context.set_parameter(CParameter::HashLog(if one { 13 } else { 0 }));
            }
            Self::Lz4(level) => *level = if one { -2 } else { 0 },
            _ => {}
        }
    }

    /// Writes `plain` to `out` as one frame. Its bytes depend only on `plain`, codec, level and
    /// [`Compressor::expect_one_file`].
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there is no memory, else [`ErrorKind::Bug`] only: any bytes can be compressed.
    pub fn compress(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        match self {
            Self::Zstd(context, _) => {
                out.reserve(zstd_safe::compress_bound(plain.len()));
                context
                    .compress2(out, plain)
                    .map(drop)
                    .map_err(|code| refused(zstd_safe::get_error_name(code)))
            }
            Self::Lz4(level) => compress_lz4(plain, *level, out),
            Self::None => {
                raw_zstd::write_frame(plain, out);
                Ok(())
            }
            Self::Gzip(context) => deflate(context, plain, out),
            Self::Tar => {
                out.extend_from_slice(plain);
                Ok(())
            }
        }
    }
}

/// Does this message of zstd or liblz4 mean that memory is exhausted? Then the frame itself is not
/// damaged.
fn is_of_memory(reason: &str) -> bool {
    reason == "Allocation error : not enough memory" || reason == "AllocationFailed"
}

fn no_memory() -> Error {
    Error::io("could not go on", memory::shortage())
}

fn refused(reason: &str) -> Error {
    if is_of_memory(reason) {
        return no_memory();
    }
    Error::new(ErrorKind::Bug, "cannot compress a frame").because(reason.to_owned())
}

/// Independent 4 MiB blocks with content size and checksum, which `lz4 -t` checks.
fn compress_lz4(plain: &[u8], level: i32, out: &mut Vec<u8>) -> Result<()> {
    let preferences = PreferencesBuilder::new()
        .block_size(BlockSize::Max4MB)
        .block_mode(BlockMode::Independent)
        .content_checksum(ContentChecksum::Enabled)
        .content_size(plain.len())
        .compression_level(level)
        .build();
    lz4f::compress_to_vec(plain, out, &preferences)
        .map(drop)
        .map_err(|e| refused(&e.to_string()))
}

fn deflate(context: &mut Deflate, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
    context.reset();
    // At worst 9 bits a byte, with one code only, and the flush.
    out.reserve(plain.len() + plain.len() / 8 + 256);
    loop {
        let rest = &plain[context.total_in() as usize..];
        context
            .compress_vec(rest, out, FlushCompress::Sync)
            .map_err(|e| refused(&e.to_string()))?;
        // With no room left in the output, more may be pending although all input was consumed.
        if out.len() < out.capacity() {
            break;
        }
        out.reserve(plain.len() / 8 + 256);
    }
    if context.total_in() == plain.len() as u64 {
        Ok(())
    } else {
        Err(refused("the compressor did not take all input"))
    }
}

/// Decompresses frames on one thread.
pub enum Decompressor {
    /// Decodes zstd and raw blocks; `None` if memory was exhausted.
    Zstd(Option<Box<DCtx<'static>>>),
    /// Keeps nothing between frames.
    Lz4,
}

impl Decompressor {
    /// As [`Decompressor::decompress`], but a zstd frame whose only fault is its checksum is
    /// decoded and returned with the error: the caller compares the content with digests (decision
    /// 32).
    ///
    /// # Errors
    /// As [`Decompressor::decompress`].
    pub fn salvage(
        &mut self,
        stored: &[u8],
        plain_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Error>> {
        let Err(error) = self.decompress(stored, plain_len, out) else {
            return Ok(None);
        };
        self.compare_checksums(false);
        let came_out = self.decompress(stored, plain_len, out);
        self.compare_checksums(true);
        if came_out.is_ok() {
            Ok(Some(error))
        } else {
            Err(error)
        }
    }

    fn compare_checksums(&mut self, compare: bool) {
        if let Self::Zstd(Some(context)) = self {
            // zstd refuses this only in the middle of a frame, and each call completes one.
            let _ = context.set_parameter(DParameter::ForceIgnoreChecksum(!compare));
        }
    }

    /// Decodes one frame into `out`. It must have `plain_len` bytes; no more memory is allocated.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the frame is damaged or has another length, [`ErrorKind::System`] if there is no memory.
    pub fn decompress(&mut self, stored: &[u8], plain_len: usize, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        out.reserve_exact(plain_len);
        match self {
            Self::Zstd(Some(context)) => decompress_zstd(context, stored, plain_len, out)?,
            Self::Zstd(None) => return Err(no_memory()),
            Self::Lz4 => decompress_lz4(stored, plain_len, out)?,
        }
        if out.len() == plain_len {
            return Ok(());
        }
        Err(damaged(&format!(
            "it holds {} bytes instead of {plain_len}",
            out.len()
        )))
    }
}

fn damaged(reason: &str) -> Error {
    if is_of_memory(reason) {
        return no_memory();
    }
    Error::corrupt("a frame is damaged").because(reason.to_owned())
}

fn decompress_zstd(
    context: &mut DCtx<'_>,
    stored: &[u8],
    plain_len: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    match zstd_safe::get_frame_content_size(stored) {
        Ok(Some(len)) if len == plain_len as u64 => {}
        _ => return Err(damaged("it does not have the length it should")),
    }
    context
        .decompress(out, stored)
        .map(drop)
        .map_err(|code| damaged(zstd_safe::get_error_name(code)))
}

fn decompress_lz4(stored: &[u8], plain_len: usize, out: &mut Vec<u8>) -> Result<()> {
    let mut reader = lz4f::BufReadDecompressor::new(stored).map_err(|e| damaged(&e.to_string()))?;
    // One byte more than expected shows a frame that is too long, and makes lz4 verify the checksum
    // at its end.
    (&mut reader)
        .take(plain_len as u64 + 1)
        .read_to_end(out)
        .map_err(|e| damaged(&e.to_string()))?;
    Ok(())
}

/// The stage that compresses at one level.
pub struct Compress {
    compressor: Compressor,
    pool: Arc<Pool>,
}

impl Compress {
    /// Makes a stage that compresses with `codec` into buffers of `pool`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the level is out of range.
    pub fn new(codec: Codec, pool: Arc<Pool>) -> Result<Self> {
        Ok(Self {
            compressor: codec.compressor()?,
            pool,
        })
    }
}

impl Stage for Compress {
    fn apply(&mut self, frame: Frame) -> Result<Frame> {
        compress_frame(&mut self.compressor, frame, &self.pool)
    }
}

/// Compresses a frame into a buffer of `pool`.
///
/// # Errors
/// As [`Compressor::compress`].
pub(super) fn compress_frame(
    compressor: &mut Compressor,
    mut frame: Frame,
    pool: &Arc<Pool>,
) -> Result<Frame> {
    if frame.data.is_empty() {
        return Ok(frame); // an earlier backup has all of its content
    }
    if matches!(compressor, Compressor::Gzip(_)) {
        frame.crc32 = Some(crc32(&frame.data)); // joined into the CRC of the stream
    }
    if !matches!(compressor, Compressor::Tar) {
        let mut out = pool.take();
        compressor.expect_one_file(matches!(
            frame.parts[..],
            [FrameEntry {
                what: FrameContent::Piece { .. },
                ..
            }]
        ));
        timed_cpu(&COMPRESSING, || compressor.compress(&frame.data, &mut out))?;
        frame.data = out;
    }
    Ok(frame)
}

#[cfg(test)]
mod tests;
