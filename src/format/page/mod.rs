//! Pages of the manifest: what each entry is and where its bytes are.
//!
//! A page holds up to [`MAX_RECORDS`] records in archive order, one column for each property, as CBOR with numbered
//! fields inside one zstd frame. A later version may add columns; a reader leaves out what it does not know.
//! A file with more extents than fit a page goes on in the next one, see [`Record::more`].

mod item;
mod limit;
mod read;
#[cfg(test)]
mod tests;
mod write;

use super::{
    chunk::ContentChunk,
    digest::{BlockDigest, Digest, Piece},
    entry::Entry,
    layout::is_backup_id,
    root::PageAt,
};
use crate::error::{Error, Result};
pub use item::PageItem;
use minicbor::{Decode, Encode, bytes::ByteVec};
use read::PageReader;
use std::{ops::Deref, sync::Arc};
use write::PageEncoder;
use zstd_safe::CParameter;

/// Records in a page. 8,192: about 0.3 MiB compressed, what one pick reads to find one file.
pub const MAX_RECORDS: usize = 8192;
/// Extents in a page; an 8 GiB file in 1 MiB frames has 8,192.
pub const MAX_EXTENTS: usize = 32_768;
/// Bytes of names, attributes and sparse maps in a page before it is closed.
pub const MAX_TEXT_BYTES: usize = 2 << 20;
/// Bytes of what is known of blocks and chunks in a page before it is closed: those of the most extents of 256 KiB in blocks of 8.
pub const MAX_DIGEST_BYTES: usize = 24 << 20;
/// The largest page that is decoded, in bytes before compression. A single entry may be as long as its attributes.
const MAX_PAGE_BYTES: usize = 256 << 20;
/// Bytes kept of a block's chaining value: enough, as a block is only compared with the same place of the same file.
pub const BLOCK_DIGEST_BYTES: usize = 16;
/// Of blocks shorter than [`SHORT_BLOCK_BYTES`] there are many, and half of that is kept; the other half is zeros in memory.
const SHORT_DIGEST_BYTES: usize = 8;
const SHORT_BLOCK_BYTES: u64 = 64 << 10;

/// An entry, how well it was captured, and where its content is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// What it is.
    pub entry: Entry,
    /// How well it was captured.
    pub state: EntryState,
    /// Digest of the content; on the last part if the record goes on over pages.
    pub digest: Option<Digest>,
    /// Digests of the blocks, if there is more than one, see [`block_digests`].
    pub blocks: Vec<[u8; BLOCK_DIGEST_BYTES]>,
    /// CRC-32C of each block, the only one too, where PostgreSQL's manifest needs the CRC of the file.
    pub crcs: Vec<u32>,
    /// Its chunks, if it is a large file that has holes, or is compared by content.
    pub chunks: Vec<ContentChunk>,
    /// Where the content is, in order of the file's data (holes left out).
    pub extents: Vec<Extent>,
    /// Bytes of data that earlier pages described; above 0, this is a later part of the record before it.
    pub from: u64,
    /// Does the record go on in the next page?
    pub more: bool,
}

/// Stands for the digest of a block that is not known, as only some of the block was read.
pub const UNKNOWN_BLOCK: [u8; BLOCK_DIGEST_BYTES] = [0; BLOCK_DIGEST_BYTES];

/// What is kept of the digests of a piece's blocks, each of `block_bytes`.
pub fn block_digests(piece: &Piece, block_bytes: u64) -> Vec<[u8; BLOCK_DIGEST_BYTES]> {
    let kept = if block_bytes < SHORT_BLOCK_BYTES {
        SHORT_DIGEST_BYTES
    } else {
        BLOCK_DIGEST_BYTES
    };
    let keep =
        |digest: &BlockDigest| std::array::from_fn(|at| if at < kept { digest[at] } else { 0 });
    match piece {
        Piece::Blocks(digests) => digests.iter().map(keep).collect(),
        _ => Vec::new(),
    }
}

/// Is this the block that `kept` was kept of?
pub fn is_block(kept: &[u8; BLOCK_DIGEST_BYTES], digest: &BlockDigest) -> bool {
    digest.starts_with(if is_short(kept) {
        &kept[..SHORT_DIGEST_BYTES]
    } else {
        kept
    })
}

fn is_short(kept: &[u8; BLOCK_DIGEST_BYTES]) -> bool {
    kept[SHORT_DIGEST_BYTES..] == [0; BLOCK_DIGEST_BYTES - SHORT_DIGEST_BYTES]
}

impl Record {
    /// Bytes of what is known of its blocks and chunks.
    pub fn digest_bytes(&self) -> usize {
        (self.blocks.len() + self.chunks.len()) * BLOCK_DIGEST_BYTES
            + (self.crcs.len() + self.chunks.len()) * 4
    }

    /// Digest of the block at `index` of those that this part of the record describes, if it is known.
    pub fn block(&self, index: usize) -> Option<&[u8; BLOCK_DIGEST_BYTES]> {
        self.blocks
            .get(index)
            .filter(|digest| **digest != UNKNOWN_BLOCK)
    }

    /// Bytes of the file's data up to the end of this part.
    fn end(&self) -> u64 {
        self.from.saturating_add(self.described_bytes())
    }

    /// Bytes of the file's data that this part of the record describes.
    pub fn described_bytes(&self) -> u64 {
        self.extents
            .iter()
            .map(|extent| u64::from(extent.len))
            .sum()
    }
}

/// Do these records, in order, say where the content of one file is, from its beginning on?
pub fn begin<R: Deref<Target = Record>>(parts: &[R]) -> bool {
    let follows = |pair: &[R]| pair[0].more && pair[1].from == pair[0].end();
    parts.first().is_some_and(|first| first.from == 0) && parts.windows(2).all(follows)
}

/// Do they say it up to its end?
pub fn are_all<R: Deref<Target = Record>>(parts: &[R]) -> bool {
    let ends = |last: &R| last.end() == last.entry.data_len() || !last.state.is_stored();
    begin(parts)
        && parts
            .last()
            .is_some_and(|last| !last.more && (ends(last) || !last.entry.is_file()))
}

/// How well an entry was captured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EntryState {
    /// As it was at the scan.
    #[default]
    Whole,
    /// It shrank, grew or was rewritten while it was read; the stored length is that of the scan.
    Changed,
    /// It could not be read, with the reason; nothing is stored.
    Unreadable(String),
    /// It was there at the scan and gone when it was to be read; nothing is stored.
    Vanished,
    /// Sockets are noted, not stored.
    Noted,
    /// Pages of it have wrong checksums: their numbers, ascending, counted from the start of the relation. It is stored.
    BadPages(Vec<u32>),
}

/// Pages that are remembered of one file with wrong checksums.
const MAX_BAD_PAGES: usize = 1000;

impl EntryState {
    /// Is there something to restore?
    pub fn is_stored(&self) -> bool {
        matches!(self, Self::Whole | Self::Changed | Self::BadPages(_))
    }

    /// Of a file with wrong pages; only the first are kept.
    pub fn bad_pages(mut pages: Vec<u32>) -> Self {
        pages.sort_unstable();
        pages.truncate(MAX_BAD_PAGES);
        Self::BadPages(pages)
    }
}

/// A run of bytes of a file within one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Which frame.
    pub frame: FrameAt,
    /// Bytes of the decoded frame before the run.
    pub inner: u32,
    /// Length of the run.
    pub len: u32,
}

/// Where a frame is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameAt {
    /// In which segment: an index into [`Page::segments`].
    pub segment: u32,
    /// Bytes of the segment before it.
    pub offset: u64,
    /// Stored bytes.
    pub stored_len: u32,
    /// Bytes after decoding.
    pub plain_len: u32,
}

/// Names a segment of this or an earlier backup.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Encode, Decode)]
pub struct SegmentId {
    /// Backup; empty for the one the page belongs to.
    #[n(0)]
    pub backup: String,
    /// Stream, from 1.
    #[n(1)]
    pub stream: u32,
    /// Number in the stream, from 1.
    #[n(2)]
    pub number: u32,
}

/// A page, decoded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManifestPage {
    /// The segments that extents speak of.
    pub segments: Vec<SegmentId>,
    /// The records, in archive order.
    pub records: Vec<Record>,
    /// Where it is stored, if somebody wants to refer to it; not part of what is stored.
    pub origin: Option<Arc<PageAt>>,
}

const FILE: u8 = 0;
const SPARSE: u8 = 1;
const DIRECTORY: u8 = 2;
const SYMLINK: u8 = 3;
const HARD_LINK: u8 = 4;
const FIFO: u8 = 5;
const CHAR_DEVICE: u8 = 6;
const BLOCK_DEVICE: u8 = 7;
const SOCKET: u8 = 8;

/// The page as it is stored: one column for each property. Lists in brackets are as long as there are records of that sort.
#[derive(Default, Encode, Decode)]
struct Columns {
    #[n(0)]
    segments: Vec<SegmentId>,
    /// Paths, each closed by a NUL.
    #[cbor(n(1), with = "minicbor::bytes")]
    paths: Vec<u8>,
    #[cbor(n(2), with = "minicbor::bytes")]
    kinds: Vec<u8>,
    #[n(3)]
    modes: Vec<u32>,
    #[n(4)]
    owners: Vec<(u32, u32, String, String)>,
    /// Index into `owners`.
    #[n(5)]
    owner: Vec<u32>,
    /// Seconds, as the difference from the record before.
    #[n(6)]
    mtimes: Vec<i64>,
    #[n(7)]
    mtime_nanos: Vec<u32>,
    #[n(8)]
    ctimes: Vec<i64>,
    #[n(9)]
    ctime_nanos: Vec<u32>,
    /// As the difference from the record before.
    #[n(10)]
    inodes: Vec<i64>,
    /// [files] Logical bytes.
    #[n(11)]
    sizes: Vec<u64>,
    /// [sparse files] Count of runs, then for each the gap before it and its length.
    #[n(12)]
    maps: Vec<u64>,
    /// [links] Targets, each closed by a NUL.
    #[cbor(n(13), with = "minicbor::bytes")]
    links: Vec<u8>,
    /// [devices]
    #[n(14)]
    devices: Vec<(u32, u32)>,
    /// Record, name, value.
    #[n(15)]
    xattrs: Vec<(u32, ByteVec, ByteVec)>,
    /// 0 no digest, 1 BLAKE3, 2 CRC-32C.
    #[cbor(n(16), with = "minicbor::bytes")]
    digest_kinds: Vec<u8>,
    #[cbor(n(17), with = "minicbor::bytes")]
    digests: Vec<u8>,
    /// Record, count of blocks.
    #[n(18)]
    block_counts: Vec<(u32, u32)>,
    #[cbor(n(19), with = "minicbor::bytes")]
    blocks: Vec<u8>,
    /// Frames in order of their first use: segment, offset as the difference from the frame before, stored, plain bytes.
    #[n(20)]
    frame_segments: Vec<u32>,
    #[n(21)]
    frame_offsets: Vec<i64>,
    #[n(22)]
    frame_stored: Vec<u32>,
    #[n(23)]
    frame_plain: Vec<u32>,
    /// [files] Count of extents.
    #[n(24)]
    extent_counts: Vec<u32>,
    /// Index of the frame, as the difference from the extent before.
    #[n(25)]
    extent_frames: Vec<i32>,
    #[n(26)]
    extent_inner: Vec<u32>,
    #[n(27)]
    extent_lens: Vec<u32>,
    /// Record, state (1 changed, 2 unreadable, 3 vanished, 4 noted, 5 wrong pages), reason or numbers of pages.
    #[n(28)]
    states: Vec<(u32, u8, String)>,
    /// Record, bytes of data that earlier pages described.
    #[n(29)]
    from: Vec<(u32, u64)>,
    /// Does the last record go on?
    #[n(30)]
    more: bool,
    /// Record, count of CRC-32Cs.
    #[cbor(n(31), default)]
    crc_counts: Vec<(u32, u32)>,
    #[cbor(n(32), default)]
    crcs: Vec<u32>,
    /// Record, count of chunks.
    #[cbor(n(33), default)]
    chunk_counts: Vec<(u32, u32)>,
    #[cbor(n(34), default)]
    chunk_lens: Vec<u32>,
    #[cbor(n(35), with = "minicbor::bytes", default)]
    chunks: Vec<u8>,
    /// Record, count of blocks whose digests are short.
    #[cbor(n(36), default)]
    short_counts: Vec<(u32, u32)>,
    #[cbor(n(37), with = "minicbor::bytes", default)]
    short_blocks: Vec<u8>,
}

impl ManifestPage {
    /// The page as it is stored: one zstd frame.
    ///
    /// # Errors
    /// [`Kind::Bug`](crate::error::Kind::Bug) if it has more than [`Page::decode`] takes.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut writer = PageEncoder::default();
        writer.columns.segments.clone_from(&self.segments);
        for (index, record) in self.records.iter().enumerate() {
            writer.record(index as u32, record);
        }
        let plain = minicbor::to_vec(&writer.columns).map_err(|e| bug().because(e.to_string()))?;
        if plain.len() > MAX_PAGE_BYTES || !limit::fits(&plain).unwrap_or(false) {
            return Err(bug().because("nobody could read it again".to_owned()));
        }
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
        let failed = |code| bug().because(zstd_safe::get_error_name(code));
        let mut context = zstd_safe::CCtx::try_create().ok_or_else(bug)?;
        // Where the root is lost nothing else says whether a copy of the page is whole.
        for parameter in [
            CParameter::CompressionLevel(3),
            CParameter::ChecksumFlag(true),
        ] {
            context.set_parameter(parameter).map_err(failed)?;
        }
        context.compress2(&mut out, &plain).map_err(failed)?;
        Ok(out)
    }

    /// Read a page; everything in it is checked, nothing in it is trusted.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt) if it is not what [`Page::encode`] writes.
    pub fn decode(stored: &[u8]) -> Result<Self> {
        let size = zstd_safe::get_frame_content_size(stored).ok().flatten();
        let size = size
            .filter(|n| *n <= MAX_PAGE_BYTES as u64)
            .ok_or_else(|| damaged("it is no page"))?;
        let mut plain = Vec::with_capacity(size as usize);
        zstd_safe::decompress(&mut plain, stored)
            .map_err(|code| damaged(zstd_safe::get_error_name(code)))?;
        Self::from_columns(&plain)
    }

    /// Read the columns of a page, as they are before compression.
    ///
    /// # Errors
    /// As [`Page::decode`].
    pub fn from_columns(plain: &[u8]) -> Result<Self> {
        if !limit::fits(plain).map_err(|e| damaged(&e.to_string()))? {
            return Err(damaged("it has more than a page can have"));
        }
        let columns: Columns = minicbor::decode(plain).map_err(|e| damaged(&e.to_string()))?;
        // They become parts of paths.
        if !columns
            .segments
            .iter()
            .all(|id| id.backup.is_empty() || is_backup_id(&id.backup))
        {
            return Err(damaged("the name of a backup is none"));
        }
        PageReader::new(columns)
            .ok_or_else(|| damaged("its columns do not fit"))?
            .page()
    }
}

fn bug() -> Error {
    Error::new(
        crate::error::ErrorKind::Bug,
        "cannot encode a manifest page",
    )
}

fn damaged(why: &str) -> Error {
    Error::corrupt("a manifest page is damaged").because(why.to_owned())
}

/// The values differences are taken from.
#[derive(Default)]
struct PreviousValues {
    mtime: i64,
    ctime: i64,
    inode: u64,
    offset: u64,
    frame: u32,
}
