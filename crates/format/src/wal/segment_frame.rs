//! A WAL segment as a tar member in one zstd frame, packed and unpacked a piece at a time: no whole segment is in memory.

use super::name::SegmentName;
use crate::{
    entry::{Entry, EntryKind, Owner, Time},
    error::{Error, ErrorKind, Result},
    pax::{padding, write_header},
};
use minicbor::{Decode, Encode};
use zstd_safe::{
    CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, zstd_sys::ZSTD_EndDirective,
};

/// Bytes of a tar header.
pub(super) const HEADER_BYTES: usize = 512;
/// Bytes that are unpacked at once: they stay in the cache of the processor until they are written.
const PIECE_BYTES: usize = 256 << 10;
/// The largest window of the levels that a segment is packed with (zstd: up to 19 it is 8 MiB).
const MAX_WINDOW_LOG: u32 = 23;

/// A segment of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct WalMember {
    /// Where its frame begins.
    #[n(0)]
    pub offset: u64,
    /// Bytes of its frame.
    #[n(1)]
    pub stored_bytes: u64,
    /// BLAKE3 of its content.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub digest: [u8; 32],
}

/// A segment as a run stores it.
#[derive(Debug, Clone)]
pub struct PackedSegment {
    /// Its name.
    pub name: SegmentName,
    /// BLAKE3 of its content.
    pub digest: [u8; 32],
    /// The zstd frame.
    pub frame: Vec<u8>,
    /// Bytes in the frame before compression.
    pub plain_bytes: usize,
}

/// Packs a segment of which the content comes in pieces.
pub struct SegmentPacker {
    name: SegmentName,
    hasher: blake3::Hasher,
    context: CCtx<'static>,
    frame: Vec<u8>,
    segment_bytes: u64,
    plain_bytes: usize,
}

impl SegmentPacker {
    /// For a segment of `segment_bytes` bytes. `level` is that of zstd.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`] if zstd fails.
    pub fn new(
        name: SegmentName,
        segment_bytes: u64,
        is_partial: bool,
        level: i32,
    ) -> Result<Self> {
        let header = tar_header(name, segment_bytes, is_partial)?;
        let mut context = CCtx::create();
        set_frame_parameters(&mut context, level)?;
        let plain = header.len() as u64 + segment_bytes + padding(segment_bytes) as u64;
        context.set_pledged_src_size(Some(plain)).map_err(bug)?;
        let mut packer = Self {
            name,
            hasher: blake3::Hasher::new(),
            context,
            // The usual share; a frame that needs more lets it grow.
            frame: Vec::with_capacity(segment_bytes as usize / 4),
            segment_bytes,
            plain_bytes: 0,
        };
        packer.compress(&header, ZSTD_EndDirective::ZSTD_e_continue)?;
        Ok(packer)
    }

    /// Adds the next bytes of the content.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`] if zstd fails.
    pub fn add(&mut self, piece: &[u8]) -> Result<()> {
        self.hasher.update(piece);
        self.compress(piece, ZSTD_EndDirective::ZSTD_e_continue)
    }

    /// Returns the segment. All of its bytes must have been added.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`] if zstd fails, or the bytes were fewer or more.
    pub fn finish(mut self) -> Result<PackedSegment> {
        let padding = vec![0; padding(self.segment_bytes)];
        self.compress(&padding, ZSTD_EndDirective::ZSTD_e_end)?;
        self.frame.shrink_to_fit();
        Ok(PackedSegment {
            name: self.name,
            digest: *self.hasher.finalize().as_bytes(),
            frame: self.frame,
            plain_bytes: self.plain_bytes,
        })
    }

    fn compress(&mut self, plain: &[u8], directive: ZSTD_EndDirective) -> Result<()> {
        self.plain_bytes += plain.len();
        let mut input = InBuffer::around(plain);
        loop {
            self.frame.reserve(CCtx::out_size());
            let filled = self.frame.len();
            let mut output = OutBuffer::around_pos(&mut self.frame, filled);
            let left = self
                .context
                .compress_stream2(&mut output, &mut input, directive);
            let left = left.map_err(bug)?;
            let is_end = directive == ZSTD_EndDirective::ZSTD_e_end;
            if input.pos == plain.len() && !(is_end && left > 0) {
                return Ok(());
            }
        }
    }
}

/// Compresses a segment, as a tar member of one frame.
///
/// # Errors
/// [`ErrorKind::Bug`] if zstd fails.
pub fn pack_segment(
    name: SegmentName,
    content: &[u8],
    is_partial: bool,
    level: i32,
) -> Result<PackedSegment> {
    let mut packer = SegmentPacker::new(name, content.len() as u64, is_partial, level)?;
    packer.add(content)?;
    packer.finish()
}

/// A segment in a run, as it was read.
#[derive(Debug)]
pub struct SegmentFrame<'a> {
    /// The zstd frame.
    pub frame: &'a [u8],
    /// What the index says of it.
    pub member: &'a WalMember,
    /// Bytes of a segment, from the index.
    pub segment_bytes: u64,
    /// What messages call it.
    pub name: String,
}

impl SegmentFrame<'_> {
    /// Returns the content, after checking its digest.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged.
    pub fn content(&self) -> Result<Vec<u8>> {
        // The size comes from the index, which is checked: no other number of the storage takes memory.
        let mut content = Vec::with_capacity(self.segment_bytes as usize);
        self.unpack(&mut |piece| {
            content.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(content)
    }

    /// Checks the content.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged.
    pub fn check(&self) -> Result<()> {
        self.unpack(&mut |_| Ok(()))
    }

    /// Returns the bytes in the frame before compression.
    pub fn plain_bytes(&self) -> usize {
        HEADER_BYTES + self.segment_bytes as usize
    }

    /// Hands the content to `take` in pieces. The digest is known only behind the last one: what was made of the pieces counts
    /// when this returns without an error. The first piece has the first page, if the segment is not damaged.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged; those of `take`.
    pub fn unpack(&self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = 0;
        self.unpack_member(&mut |content| {
            bytes += content.len() as u64;
            if bytes > self.segment_bytes {
                return Err(self.damaged("it is longer than a segment"));
            }
            hasher.update(content);
            take(content)
        })?;
        if bytes < self.segment_bytes {
            return Err(self.damaged("it is shorter than a segment"));
        }
        match hasher.finalize().as_bytes() == &self.member.digest {
            true => Ok(()),
            false => Err(self.damaged("its digest is another one")),
        }
    }

    /// Hands on what is behind the tar header, without a check.
    fn unpack_member(&self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let failed = |code| self.damaged(zstd_safe::get_error_name(code));
        let mut context = DCtx::create();
        // What a frame of a storage may ask for beside the piece.
        let limit = DParameter::WindowLogMax(MAX_WINDOW_LOG);
        context.set_parameter(limit).map_err(failed)?;
        let mut input = InBuffer::around(self.frame);
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        let mut header_left = HEADER_BYTES;
        let mut is_open = true;
        while is_open {
            piece.clear();
            is_open = fill(&mut context, &mut piece, &mut input).map_err(failed)?;
            let skipped = header_left.min(piece.len());
            header_left -= skipped;
            if piece.len() > skipped {
                take(&piece[skipped..])?;
            }
        }
        Ok(())
    }

    fn damaged(&self, reason: &str) -> Error {
        Error::corrupt(format!("{} is damaged", self.name)).because(reason.to_owned())
    }
}

/// Fills the piece. Returns whether more may follow: the frame has no end, and not all of it was read.
fn fill(
    context: &mut DCtx<'_>,
    piece: &mut Vec<u8>,
    input: &mut InBuffer<'_>,
) -> Result<bool, zstd_safe::ErrorCode> {
    loop {
        let (filled, taken) = (piece.len(), input.pos);
        let mut output = OutBuffer::around_pos(piece, filled);
        let wanted = context.decompress_stream(&mut output, input)?;
        let is_stuck = piece.len() == filled && input.pos == taken;
        if wanted == 0 || is_stuck {
            return Ok(false);
        }
        if piece.len() == piece.capacity() {
            return Ok(true);
        }
    }
}

fn tar_header(name: SegmentName, bytes: u64, is_partial: bool) -> Result<Vec<u8>> {
    let suffix = if is_partial { ".partial" } else { "" };
    let mut header = Vec::new();
    file_header(&format!("{name}{suffix}"), bytes, &mut header)?;
    Ok(header)
}

/// Writes the tar header of a file.
pub(super) fn file_header(name: &str, bytes: u64, header: &mut Vec<u8>) -> Result<()> {
    let entry = Entry {
        path: name.as_bytes().to_vec(),
        kind: EntryKind::File {
            size: bytes,
            map: None,
        },
        mode: 0o600,
        owner: Owner::default(),
        mtime: Time::default(),
        ..Entry::default()
    };
    write_header(&entry, header)
}

/// Returns header, content and padding of a file in a tar.
pub(super) fn tar_member(name: &str, content: &[u8]) -> Result<Vec<u8>> {
    let mut plain = Vec::with_capacity(HEADER_BYTES + content.len());
    file_header(name, content.len() as u64, &mut plain)?;
    plain.extend_from_slice(content);
    // With header and padding each frame is a whole tar member: zstd and tar read the object
    // without fullbore.
    plain.resize(plain.len() + padding(content.len() as u64), 0);
    Ok(plain)
}

/// Compresses bytes as one zstd frame.
pub(super) fn compress(plain: &[u8], level: i32) -> Result<Vec<u8>> {
    let mut frame = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
    let mut context = CCtx::create();
    set_frame_parameters(&mut context, level)?;
    context.compress2(&mut frame, plain).map_err(bug)?;
    frame.shrink_to_fit();
    Ok(frame)
}

fn set_frame_parameters(context: &mut CCtx<'_>, level: i32) -> Result<()> {
    for parameter in [
        CParameter::CompressionLevel(level),
        CParameter::ChecksumFlag(true),
    ] {
        context.set_parameter(parameter).map_err(bug)?;
    }
    Ok(())
}

fn bug(code: zstd_safe::ErrorCode) -> Error {
    Error::new(ErrorKind::Bug, "cannot compress a WAL segment")
        .because(zstd_safe::get_error_name(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: SegmentName = SegmentName {
        timeline: 1,
        log: 0,
        number: 5,
    };

    fn content(bytes: usize) -> Vec<u8> {
        (0..bytes)
            .map(|index| ((index * index) >> 7) as u8)
            .collect()
    }

    fn frame_of<'a>(
        frame: &'a [u8],
        member: &'a WalMember,
        segment_bytes: u64,
    ) -> SegmentFrame<'a> {
        SegmentFrame {
            frame,
            member,
            segment_bytes,
            name: "it".to_owned(),
        }
    }

    fn member_of(packed: &PackedSegment) -> WalMember {
        WalMember {
            digest: packed.digest,
            ..WalMember::default()
        }
    }

    #[test]
    fn a_segment_that_comes_in_pieces_is_one_tar_member() {
        let content = content(1 << 20);
        let mut packer = SegmentPacker::new(NAME, 1 << 20, false, 1).unwrap();
        for piece in content.chunks(70_001) {
            packer.add(piece).unwrap();
        }
        let packed = packer.finish().unwrap();
        assert_eq!(packed.plain_bytes, 512 + content.len());
        assert_eq!(packed.digest, *blake3::hash(&content).as_bytes());
        let mut plain = Vec::with_capacity(packed.plain_bytes);
        let plain_bytes = DCtx::create()
            .decompress(&mut plain, &packed.frame)
            .unwrap();
        assert_eq!(plain_bytes, packed.plain_bytes);
        assert!(plain.starts_with(b"000000010000000000000005\0"));
        let member = member_of(&packed);
        let read = frame_of(&packed.frame, &member, 1 << 20).content();
        assert!(read.unwrap() == content);
    }

    #[test]
    fn the_first_piece_has_the_first_page() {
        let packed = pack_segment(NAME, &content(1 << 20), false, 19).unwrap();
        let member = member_of(&packed);
        let mut lens = Vec::new();
        let unpacked = frame_of(&packed.frame, &member, 1 << 20).unpack(&mut |piece| {
            lens.push(piece.len());
            Ok(())
        });
        unpacked.unwrap();
        assert_eq!(lens.iter().sum::<usize>(), 1 << 20);
        assert!(
            lens[0] >= 8192 && lens.iter().all(|len| *len <= PIECE_BYTES),
            "{lens:?}"
        );
    }

    #[test]
    fn fewer_or_more_bytes_than_announced_are_an_error_of_the_packer() {
        for bytes in [0, 4095, 4097] {
            let mut packer = SegmentPacker::new(NAME, 4096, false, 1).unwrap();
            let added = packer.add(&content(bytes));
            assert!(added.and_then(|()| packer.finish()).is_err(), "{bytes}");
        }
    }

    #[test]
    fn damage_is_told() {
        let packed = pack_segment(NAME, &content(1 << 20), false, 1).unwrap();
        let member = member_of(&packed);
        let why = |frame: &[u8], member: &WalMember, bytes: u64| {
            let error = frame_of(frame, member, bytes).content().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt);
            error.line()
        };
        let cut = &packed.frame[..packed.frame.len() / 2];
        assert!(why(cut, &member, 1 << 20).contains("shorter than a segment"));
        assert!(why(&[], &member, 1 << 20).contains("shorter than a segment"));
        assert!(why(&packed.frame, &member, 1 << 21).contains("shorter than a segment"));
        assert!(why(&packed.frame, &member, 1 << 19).contains("longer than a segment"));
        let other = WalMember::default();
        assert!(why(&packed.frame, &other, 1 << 20).contains("digest"));
        for index in (0..packed.frame.len()).step_by(997) {
            let mut damaged = packed.frame.clone();
            damaged[index] ^= 1;
            why(&damaged, &member, 1 << 20);
        }
    }

    #[test]
    fn a_frame_that_asks_for_much_memory_is_refused() {
        let mut context = CCtx::create();
        for parameter in [
            CParameter::WindowLog(27),
            CParameter::ContentSizeFlag(false),
        ] {
            context.set_parameter(parameter).unwrap();
        }
        let mut frame = Vec::with_capacity(1 << 21);
        let plain = content(1 << 20);
        let mut output = OutBuffer::around(&mut frame);
        let mut input = InBuffer::around(&plain);
        let end = ZSTD_EndDirective::ZSTD_e_end;
        // In two steps: zstd takes a smaller window if it sees all at once.
        let flush = ZSTD_EndDirective::ZSTD_e_flush;
        context
            .compress_stream2(&mut output, &mut input, flush)
            .unwrap();
        context
            .compress_stream2(&mut output, &mut input, end)
            .unwrap();
        let member = WalMember::default();
        let error = frame_of(&frame, &member, 1 << 20).content().unwrap_err();
        assert!(error.line().contains("memory"), "{}", error.line());
    }
}
