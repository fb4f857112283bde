//! Pages of the manifest: the metadata of each entry and the place of its content.
//!
//! A page holds up to [`MAX_RECORDS`] records in archive order, with one column for each property,
//! as CBOR with numbered fields inside one zstd frame. A later version may add columns; readers
//! ignore columns that they do not know. A file with more extents than fit a page continues in the
//! next page, see [`Record::more`].

mod codec;
mod item;
mod limit;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use super::digest::BLOCK_DIGEST_BYTES;
use super::{
    chunk::ContentChunk,
    digest::{BlockDigest, Digest, Piece},
    entry::{Entry, Xattr},
    root::PageAt,
};
pub use codec::{decode_entries, encode_entries, plain_bytes};
pub(crate) use codec::{decompressed, packed};
pub use item::PageItem;
use minicbor::{Decode, Encode, bytes::ByteVec};
use std::{ops::Deref, sync::Arc};

/// Records in a page. 8,192 records are about 0.3 MiB compressed; a reader fetches that much to
/// find one file.
pub const MAX_RECORDS: usize = 8192;
/// Extents in a page. An 8 GiB file in 1 MiB frames has 8,192.
pub const MAX_EXTENTS: usize = 32_768;
/// Bytes of names, attributes and sparse maps in a page before it is closed.
pub const MAX_TEXT_BYTES: usize = 2 << 20;
/// Bytes of block digests and chunks at which a page is closed: the most extents of 256 KiB, in
/// blocks of 8 KiB.
pub const MAX_DIGEST_BYTES: usize = 24 << 20;
/// Bytes that are kept for blocks shorter than [`SHORT_BLOCK_BYTES`], which are numerous. In memory
/// the other half is zeros.
const SHORT_DIGEST_BYTES: usize = 8;
const SHORT_BLOCK_BYTES: u64 = 64 << 10;

/// An entry, how well it was captured, and where its content is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Path, kind and metadata.
    pub entry: Entry,
    /// How well it was captured.
    pub state: EntryState,
    /// Digest of the content. If the record continues over several pages, the last part has it.
    pub digest: Option<Digest>,
    /// Digests of the blocks if there are at least two, see [`block_digests`].
    pub blocks: Vec<[u8; BLOCK_DIGEST_BYTES]>,
    /// CRC-32C of each block, even of a single one, if PostgreSQL's manifest needs the CRC of the
    /// file.
    pub crcs: Vec<u32>,
    /// Chunks of a large file that has holes or is compared by content.
    pub chunks: Vec<ContentChunk>,
    /// Places of the content, in order of the file's data (without holes).
    pub extents: Vec<Extent>,
    /// Bytes of data that earlier pages describe. Above 0, this is a later part of the previous
    /// record.
    pub from: u64,
    /// Whether the record continues in the next page.
    pub more: bool,
}

/// Placeholder for the digest of a block that was read only in part.
pub const UNKNOWN_BLOCK: [u8; BLOCK_DIGEST_BYTES] = [0; BLOCK_DIGEST_BYTES];

/// Returns the shortened digests of the blocks of a piece; each block has `block_bytes`.
pub fn block_digests(piece: &Piece, block_bytes: u64) -> Vec<[u8; BLOCK_DIGEST_BYTES]> {
    let kept = if block_bytes < SHORT_BLOCK_BYTES {
        SHORT_DIGEST_BYTES
    } else {
        BLOCK_DIGEST_BYTES
    };
    match piece {
        Piece::Blocks(digests) => digests
            .iter()
            .map(|digest| std::array::from_fn(|index| if index < kept { digest[index] } else { 0 }))
            .collect(),
        _ => Vec::new(),
    }
}

/// Returns whether `kept` is the shortened form of `digest`.
pub fn matches_block(kept: &[u8; BLOCK_DIGEST_BYTES], digest: &BlockDigest) -> bool {
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
    /// A record of an entry of which no content is known.
    pub fn without_content(entry: Entry, state: EntryState) -> Self {
        Self {
            entry,
            state,
            digest: None,
            blocks: Vec::new(),
            crcs: Vec::new(),
            chunks: Vec::new(),
            extents: Vec::new(),
            from: 0,
            more: false,
        }
    }

    /// Bytes of its block digests, CRCs and chunks.
    pub fn digest_bytes(&self) -> usize {
        (self.blocks.len() + self.chunks.len()) * BLOCK_DIGEST_BYTES
            + (self.crcs.len() + self.chunks.len()) * 4
    }

    /// Returns roughly the bytes that the record takes in memory.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.entry.text_bytes()
            + self.entry.xattrs.len() * size_of::<Xattr>()
            + self.digest_bytes()
            + self.extents.len() * size_of::<Extent>()
    }

    /// Returns the digest of block `index` of this part, if known.
    pub fn block(&self, index: usize) -> Option<&[u8; BLOCK_DIGEST_BYTES]> {
        self.blocks
            .get(index)
            .filter(|digest| **digest != UNKNOWN_BLOCK)
    }

    /// Returns the bytes of the file's data up to the end of this part.
    fn end(&self) -> u64 {
        self.from.saturating_add(self.described_bytes())
    }

    /// Returns the bytes of the file's data that this part describes.
    pub fn described_bytes(&self) -> u64 {
        self.extents
            .iter()
            .map(|extent| u64::from(extent.len))
            .sum()
    }
}

/// Returns whether these records, in order, describe one file from its start without gaps.
pub fn are_contiguous<R: Deref<Target = Record>>(parts: &[R]) -> bool {
    parts.first().is_some_and(|first| first.from == 0)
        && parts
            .windows(2)
            .all(|pair| pair[0].more && pair[1].from == pair[0].end())
}

/// Returns whether these records, in order, describe one file from its start to its end.
pub fn describe_whole_file<R: Deref<Target = Record>>(parts: &[R]) -> bool {
    let ends = |last: &R| last.end() == last.entry.data_len() || !last.state.is_stored();
    are_contiguous(parts)
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
    /// It could not be read, for this reason; no content is stored.
    Unreadable(String),
    /// It existed at the scan and was gone when it was read; no content is stored.
    Vanished,
    /// A socket: listed, not stored.
    Noted,
    /// It is stored, but some pages have wrong checksums: their numbers, ascending, counted from
    /// the start of the relation.
    BadPages(Vec<u32>),
}

/// Maximum number of wrong pages that are kept for one file.
const MAX_BAD_PAGES: usize = 1000;

impl EntryState {
    /// Returns whether the entry can be restored.
    pub fn is_stored(&self) -> bool {
        matches!(self, Self::Whole | Self::Changed | Self::BadPages(_))
    }

    /// Returns the state of a file with wrong pages. Keeps only the first 1,000 page numbers.
    pub fn bad_pages(mut pages: Vec<u32>) -> Self {
        pages.sort_unstable();
        pages.truncate(MAX_BAD_PAGES);
        Self::BadPages(pages)
    }
}

/// A run of bytes of a file within one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The frame that holds the run.
    pub frame: FrameAt,
    /// Bytes of the decoded frame before the run.
    pub inner: u32,
    /// Length of the run.
    pub len: u32,
}

/// Where a frame is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameAt {
    /// Index of its segment in [`ManifestPage::segments`].
    pub segment: u32,
    /// Bytes of the segment before the frame.
    pub offset: u64,
    /// Stored bytes.
    pub stored_len: u32,
    /// Bytes after decoding.
    pub plain_len: u32,
}

/// Names a segment of this or an earlier backup.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Encode, Decode)]
pub struct SegmentId {
    /// Backup; empty for the backup that the page belongs to.
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
    /// Segments that extents refer to.
    pub segments: Vec<SegmentId>,
    /// The records, in archive order.
    pub records: Vec<Record>,
    /// Place of the page, for a caller that refers to it. Not part of the stored page.
    pub origin: Option<Arc<PageAt>>,
}

impl ManifestPage {
    /// Returns roughly the bytes that the page takes in memory.
    pub fn memory_bytes(&self) -> usize {
        let segments = self.segments.len() * (size_of::<SegmentId>() + 32);
        segments + self.records.iter().map(Record::memory_bytes).sum::<usize>()
    }
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

/// The page as it is stored: one column for each property. A list marked in brackets has one
/// element for each record of that kind.
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
    /// Frames in order of their first use: segment, offset as the difference from the frame before,
    /// stored, plain bytes.
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
    /// Record, state (1 changed, 2 unreadable, 3 vanished, 4 noted, 5 wrong pages), reason or
    /// numbers of pages.
    #[n(28)]
    states: Vec<(u32, u8, String)>,
    /// Record, bytes of data that earlier pages described.
    #[n(29)]
    from: Vec<(u32, u64)>,
    /// Whether the last record continues.
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

/// The previous values, to which the columns store differences.
#[derive(Default)]
struct PreviousValues {
    mtime: i64,
    ctime: i64,
    inode: u64,
    offset: u64,
    frame: u32,
}
