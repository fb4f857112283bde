//! The places that the content of one stored file occupies.

use super::{
    Archive,
    frame_cache::FrameCache,
    frame_reader::extent_content,
    schedule::{ContentEnd, check_whole, is_saved},
};
use fullbore_format::{
    digest::{Algorithm, Digest, Piece, is_block_size, piece},
    entry::{Entry, EntryPath},
    error::{Error, Result, quoted},
    page::{EntryState, Extent, FrameAt, PageItem, SegmentId, are_contiguous, matches_block},
};
use fullbore_pipeline::{
    known::{BaseEntry, Trust},
    stage::codec::Codec,
};
use std::ops::Range;

/// A file with all of its records: several, if it continues over pages. Takes 16 bytes for each
/// extent besides the pages.
pub struct FileContent {
    known: BaseEntry,
    /// Offset of each extent in the data, its part, and its index in that part.
    extents: Vec<(u64, u32, u32)>,
}

/// A part of an extent: a range of bytes in one frame.
pub struct FrameRange<'a> {
    pub segment: &'a SegmentId,
    /// Its place in the segment.
    pub frame: FrameAt,
    /// The record that has the extent.
    pub(super) part: &'a PageItem,
    /// The whole extent, and the bytes of data before it.
    pub(super) extent: Extent,
    pub(super) extent_offset: u64,
    inner: usize,
    len: usize,
    /// Whether the range is all that the file's extent holds, and the extent nearly the whole
    /// frame.
    alone: bool,
}

impl FileContent {
    /// From the records of one file, in order, at least one; `None` if they do not cover the whole
    /// file.
    pub fn new(parts: Vec<PageItem>) -> Option<Self> {
        if !are_contiguous(&parts) {
            return None;
        }
        let (mut offset, mut extents) = (0, Vec::new());
        for (number, part) in parts.iter().enumerate() {
            for (index, extent) in part.extents.iter().enumerate() {
                extents.push((offset, number as u32, index as u32));
                offset += u64::from(extent.len);
            }
        }
        let content = Self {
            known: BaseEntry::new(parts.into(), Trust::Same),
            extents,
        };
        (!content.last().more && content.data_len() == offset).then_some(content)
    }

    pub(super) fn last(&self) -> &PageItem {
        &self.known.parts[self.known.parts.len() - 1]
    }

    pub fn path(&self) -> &EntryPath {
        &self.last().entry.path
    }

    /// The entry of the file, as its last part has it.
    pub fn entry(&self) -> &Entry {
        &self.last().entry
    }

    /// Bytes without the holes.
    pub fn data_len(&self) -> u64 {
        self.last().entry.data_len()
    }

    /// Returns roughly the bytes of its extents and of its records, without the other records of their pages.
    pub(super) fn record_bytes(&self) -> usize {
        let records = self.known.parts.iter().map(|part| part.memory_bytes());
        self.extents.len() * size_of::<(u64, u32, u32)>() + records.sum::<usize>()
    }

    /// Returns roughly the bytes of its extents and of the pages of its records.
    pub(super) fn memory_bytes(&self) -> usize {
        let pages = self
            .known
            .parts
            .iter()
            .map(|part| part.page().memory_bytes());
        self.extents.len() * size_of::<(u64, u32, u32)>() + pages.sum::<usize>()
    }

    /// Returns whether the file was read whole, and when it was not, why.
    pub fn state(&self) -> &EntryState {
        &self.last().state
    }

    pub fn digest(&self) -> Option<Digest> {
        self.last().digest
    }

    /// Returns the frame ranges that hold `len` bytes at `offset` of the data.
    pub fn runs(&self, offset: u64, len: u64) -> impl Iterator<Item = FrameRange<'_>> {
        let end = offset.saturating_add(len);
        let first = self
            .extents
            .partition_point(|(place, ..)| *place <= offset)
            .saturating_sub(1);
        let extents = self.extents[first..]
            .iter()
            .take_while(move |(place, ..)| *place < end);
        extents.map(move |(place, part, index)| {
            let part: &PageItem = &self.known.parts[*part as usize];
            let extent = &part.extents[*index as usize];
            let (start, stop) = (
                offset.max(*place) - place,
                (end - place).min(extent.len.into()),
            );
            // An extent that is all of its frame can be compared by the frame alone.
            let alone = stop - start == u64::from(extent.len) && extent.inner == 0;
            let (inner, len) = (
                extent.inner as usize + start as usize,
                (stop - start) as usize,
            );
            FrameRange {
                segment: part.segment(&extent.frame),
                frame: extent.frame,
                part,
                extent: *extent,
                extent_offset: *place,
                inner,
                len,
                alone,
            }
        })
    }

    /// Returns whether this is the whole file, although the checksum of its frame is wrong.
    pub fn is_saved(&self, content: &[u8]) -> bool {
        self.known.parts.len() == 1 && is_saved(self.last(), content)
    }

    /// Checks the bytes at `offset` by digest. Only bytes whose frame has no checksum of its own
    /// are checked.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if they differ.
    pub fn check(&self, archive: &Archive, offset: u64, content: &[u8]) -> Result<()> {
        let damaged = |reason: String| {
            Error::corrupt(format!("file {} is damaged", quoted(self.path()))).because(reason)
        };
        // Their frames have checksums, which were checked when they were decoded.
        if matches!(archive.codec, Codec::Zstd(_) | Codec::Lz4) {
            return Ok(());
        }
        if content.len() as u64 == self.data_len() && self.known.parts.len() == 1 {
            return match check_whole(self.last(), content) {
                ContentEnd::Damaged(reason) => Err(damaged(reason)),
                _ => Ok(()),
            };
        }
        let options = &archive.root.options;
        let block = options.block_bytes;
        if options.digest != Algorithm::Blake3
            || !is_block_size(block)
            || !offset.is_multiple_of(block)
        {
            return Ok(());
        }
        let Piece::Blocks(found) =
            piece(Algorithm::Blake3, content, offset, self.data_len(), block)
        else {
            return Ok(());
        };
        let wanted = (offset..)
            .step_by(block as usize)
            .map(|position| self.known.block(position, block));
        match found
            .iter()
            .zip(wanted)
            .position(|(found, wanted)| wanted.is_some_and(|wanted| !matches_block(wanted, found)))
        {
            Some(position) => Err(damaged(format!(
                "the digest of block {} is different",
                offset / block + position as u64 + 1
            ))),
            None => Ok(()),
        }
    }
}

impl FrameRange<'_> {
    /// Returns the bytes of this range from the decoded frame.
    pub fn of<'a>(&self, plain: &'a [u8]) -> Option<&'a [u8]> {
        plain
            .get(self.inner..)
            .and_then(|rest| rest.get(..self.len))
    }

    /// Its count of bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of the whole extent from the decoded frame.
    pub(super) fn whole_of<'a>(&self, plain: &'a [u8]) -> Option<&'a [u8]> {
        extent_content(&self.extent, plain)
    }

    /// The place of the range in the decoded frame.
    pub(super) fn in_frame(&self) -> Range<usize> {
        self.inner..self.inner + self.len
    }

    /// The place of the whole extent in the decoded frame.
    pub(super) fn whole_in_frame(&self) -> Range<usize> {
        self.extent.inner as usize..self.extent.inner as usize + self.extent.len as usize
    }

    /// Appends the bytes to `buf`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if the frame is damaged, or an error of the system.
    pub fn append(&self, archive: &Archive, frames: &FrameCache, buf: &mut Vec<u8>) -> Result<()> {
        let plain = frames.plain(archive, self.segment, &self.frame, !self.alone)?;
        buf.extend_from_slice(
            self.of(&plain)
                .ok_or_else(|| Error::corrupt("a frame is shorter than the manifest says"))?,
        );
        Ok(())
    }
}
