//! One file of a backup, read at any offset, from any thread.
//!
//! No byte is returned before its frame was checked: by the checksum of the frame, and by the
//! digest of the file or of its blocks, where the backup has them. Damage is an error for the range
//! of the damaged frame or extent; the rest of the file can be read. A frame without a checksum of
//! its own that holds a part of a large file without digests of blocks cannot be checked.

use super::{
    Archive,
    block_digests::{are_digested, first_wrong},
    extents::{FileContent, FrameRange},
    frame_cache::{CheckedRange, DecodedFrame, FrameCache},
    schedule::{ContentEnd, check_whole, misfit},
};
use fullbore_format::{
    digest::Running,
    entry::{ByteRun, Entry, EntryKind},
    error::{Error, ErrorKind, Result, quoted},
    page::PageItem,
};
use std::{
    io::{self, Read, Write},
    ops::Range,
    sync::Arc,
};

/// Bytes of a file that are written at once.
const STEP_BYTES: usize = 1 << 20;

/// A regular file of a backup. Takes its pages, and 16 bytes for each extent.
pub struct StoredFile {
    archive: Arc<Archive>,
    frames: Arc<FrameCache>,
    content: FileContent,
}

/// Data of a file, checked.
pub struct StoredPiece {
    /// Its place in the file.
    pub offset: u64,
    frame: Arc<DecodedFrame>,
    within: Range<usize>,
}

impl StoredPiece {
    /// The data.
    pub fn bytes(&self) -> &[u8] {
        &self.frame[self.within.clone()]
    }
}

impl StoredFile {
    /// Opens the file with these records, as [`Archive::file_parts`] returns them.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the backup could not capture the file,
    /// [`ErrorKind::Corrupt`] if the records do not describe the whole file.
    pub fn new(
        archive: Arc<Archive>,
        frames: Arc<FrameCache>,
        parts: Vec<PageItem>,
    ) -> Result<Self> {
        let path = parts.last().map(|last| last.entry.path.clone());
        let content = FileContent::new(parts);
        let content = content.ok_or_else(|| misfit(&path.unwrap_or_default()))?;
        if !content.state().is_stored() || !content.entry().is_file() {
            let name = quoted(content.path());
            let message = format!("cannot read {name}: the backup could not capture it");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        Ok(Self {
            archive,
            frames,
            content,
        })
    }

    /// Opens the file at `path`, also under another name of it; `None` if there is no file.
    ///
    /// # Errors
    /// As [`StoredFile::new`] and [`Archive::find`].
    pub fn open(
        archive: Arc<Archive>,
        frames: Arc<FrameCache>,
        path: &[u8],
    ) -> Result<Option<Self>> {
        let parts = archive.file_parts(path)?;
        if !parts.last().is_some_and(|item| item.entry.is_file()) {
            return Ok(None);
        }
        Self::new(archive, frames, parts).map(Some)
    }

    /// Its entry: path and metadata.
    pub fn entry(&self) -> &Entry {
        self.content.entry()
    }

    /// The places of its content.
    pub fn content(&self) -> &FileContent {
        &self.content
    }

    /// Logical bytes, with the holes.
    pub fn size(&self) -> u64 {
        self.entry().size()
    }

    /// The runs of data in the file that end behind `offset`, as [`data_runs`].
    pub fn data_runs(&self, offset: u64) -> impl Iterator<Item = ByteRun> + '_ {
        data_runs(self.entry(), offset)
    }

    /// The first byte of data at or behind `offset`; `None` if only a hole follows.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let run = self.data_runs(offset).next()?;
        Some(run.offset.max(offset))
    }

    /// The first byte at or behind `offset` that is in a hole. The end of the file is a hole.
    pub fn next_hole(&self, offset: u64) -> u64 {
        match self.data_runs(offset).next() {
            Some(run) if run.offset <= offset => run.offset + run.len,
            _ => offset.min(self.size()),
        }
    }

    /// Fills `buf` from `offset` of the file, with zeros for holes. Returns the count of bytes, less than
    /// `buf` has only at the end of the file.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if a part of this range is damaged, [`ErrorKind::Gone`] if the backup
    /// was removed, or an error of the storage. `buf` is undefined then.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = self.size().saturating_sub(offset);
        let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        let end = offset.saturating_add(len as u64);
        let mut filled = 0;
        for run in self.data_runs(offset) {
            let start = run.offset.max(offset);
            let stop = run.offset.saturating_add(run.len).min(end);
            if start >= end {
                break;
            }
            let from = (start - offset) as usize;
            let to = (stop - offset) as usize;
            buf[filled..from].fill(0);
            self.read_data(self.data_offset(start)?, &mut buf[from..to])?;
            filled = to;
        }
        buf[filled..len].fill(0);
        Ok(len)
    }

    /// The bytes of data before byte `place` of the file, which is not in a hole.
    /// Writes the content to `out`, with zeros for its holes, and compares its digest at the end. `failed` makes the error if `out` takes
    /// no more.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for damage, which is found after a part was written; those of reading, and of `failed`.
    pub fn write_to(&self, out: &mut dyn Write, failed: fn(io::Error) -> Error) -> Result<()> {
        let mut digest = Running::default();
        let mut buf = Vec::new();
        let mut written = 0;
        for run in self.data_runs(0) {
            write_zeros(run.offset - written, out).map_err(failed)?;
            written = run.offset + run.len;
            // In steps, so that a large run does not fill the memory.
            for offset in (run.offset..written).step_by(STEP_BYTES) {
                buf.resize((written - offset).min(STEP_BYTES as u64) as usize, 0);
                self.read_at(offset, &mut buf)?;
                digest.update(&buf);
                out.write_all(&buf).map_err(failed)?;
            }
        }
        write_zeros(self.size() - written, out).map_err(failed)?;
        match self.content().digest() {
            Some(wanted) if !digest.finish().contains(&wanted) => {
                let message = format!("file {} is damaged", quoted(&self.entry().path));
                Err(Error::corrupt(message).because("its digest is not the one in the backup"))
            }
            _ => Ok(()),
        }
    }

    fn data_offset(&self, place: u64) -> Result<u64> {
        match &self.entry().kind {
            EntryKind::File { map: Some(map), .. } => map.data_before(place),
            _ => Some(place),
        }
        .ok_or_else(|| misfit(self.content.path()))
    }

    fn read_data(&self, offset: u64, mut out: &mut [u8]) -> Result<()> {
        for range in self.content.runs(offset, out.len() as u64) {
            let (now, rest) = std::mem::take(&mut out)
                .split_at_mut_checked(range.len())
                .ok_or_else(|| misfit(self.content.path()))?;
            self.read_range(&range, now)?;
            out = rest;
        }
        match out.is_empty() {
            true => Ok(()),
            false => Err(misfit(self.content.path())),
        }
    }

    fn read_range(&self, range: &FrameRange<'_>, out: &mut [u8]) -> Result<()> {
        let frame = self.whole_frame(range)?;
        out.copy_from_slice(range.of(&frame).ok_or_else(too_short)?);
        Ok(())
    }

    /// As [`StoredFile::checked_frame`], also if only the checksum of the frame is wrong.
    fn whole_frame(&self, range: &FrameRange<'_>) -> Result<Arc<DecodedFrame>> {
        self.checked_frame(range).or_else(|error| match error.kind {
            ErrorKind::Corrupt => self.saved(range).ok_or(error),
            _ => Err(error),
        })
    }

    /// Returns the data in some ranges of the file, which ascend. Of a file without holes it returns all data of the
    /// frames that it decoded, so pieces may have more than was asked for.
    ///
    /// # Errors
    /// As [`StoredFile::read_at`].
    pub fn pieces(&self, ranges: &[Range<u64>]) -> Result<Vec<StoredPiece>> {
        let mut pieces: Vec<StoredPiece> = Vec::new();
        for wanted in ranges {
            for run in self.data_runs(wanted.start) {
                let start = run.offset.max(wanted.start);
                let end = run.offset.saturating_add(run.len).min(wanted.end);
                if start >= end {
                    break;
                }
                self.add_pieces(start..end, &mut pieces)?;
            }
        }
        Ok(pieces)
    }

    fn add_pieces(&self, wanted: Range<u64>, pieces: &mut Vec<StoredPiece>) -> Result<()> {
        let mut offset = wanted.start;
        let data = self.data_offset(offset)?;
        for range in self.content.runs(data, wanted.end - offset) {
            let (place, within) = match self.entry().is_sparse() {
                false => (range.extent_offset, range.whole_in_frame()),
                true => (offset, range.in_frame()),
            };
            offset += range.len() as u64;
            if pieces.last().is_some_and(|last| last.offset == place) {
                continue;
            }
            let frame = self.whole_frame(&range)?;
            frame.get(within.clone()).ok_or_else(too_short)?;
            pieces.push(StoredPiece {
                offset: place,
                frame,
                within,
            });
        }
        if offset != wanted.end {
            return Err(misfit(self.content.path()));
        }
        Ok(())
    }

    /// Returns the decoded frame of a range, with the whole extent compared with its digests.
    ///
    /// # Errors
    /// As [`StoredFile::read_at`].
    pub fn checked_frame(&self, range: &FrameRange<'_>) -> Result<Arc<DecodedFrame>> {
        let frame = self
            .frames
            .plain(&self.archive, range.segment, &range.frame, true)?;
        let extent = CheckedRange {
            inner: range.extent.inner as usize,
            len: range.extent.len as usize,
            offset: range.extent_offset,
            digest: self.content.digest(),
        };
        if !frame.is_checked(&extent) {
            let content = range.whole_of(&frame).ok_or_else(too_short)?;
            self.check(range, content)?;
            frame.set_checked(extent);
        }
        Ok(frame)
    }

    /// Compares an extent with the digest of the file, if it is the whole file, or with those of
    /// its blocks.
    fn check(&self, range: &FrameRange<'_>, content: &[u8]) -> Result<()> {
        let damaged = |reason: String| {
            Error::corrupt(format!("file {} is damaged", quoted(self.content.path())))
                .because(reason)
        };
        if content.len() as u64 == self.content.data_len() {
            return match check_whole(self.content.last(), content) {
                ContentEnd::Damaged(reason) => Err(damaged(reason)),
                _ => Ok(()),
            };
        }
        let options = &self.archive.root.options;
        let described = range.part.described_bytes();
        if !are_digested(range.part, described, options) {
            return Ok(());
        }
        let block = options.block_bytes;
        match first_wrong(range.part, described, block, range.extent_offset, content) {
            Some(place) => Err(damaged(format!(
                "its block at byte {place} differs from the manifest"
            ))),
            None => Ok(()),
        }
    }

    /// Returns the bytes of a frame whose checksum is wrong, if the file in it is whole all the
    /// same.
    fn saved(&self, range: &FrameRange<'_>) -> Option<Arc<DecodedFrame>> {
        let plain = self
            .frames
            .salvage(&self.archive, range.segment, &range.frame)
            .ok()?;
        let content = range.whole_of(&plain)?;
        let is_whole = self.content.is_saved(content);
        is_whole.then(|| Arc::new(DecodedFrame::new(plain)))
    }

    /// Returns roughly the bytes of its records, without the other records of their pages.
    pub fn record_bytes(&self) -> usize {
        self.content.record_bytes()
    }

    /// Returns roughly the bytes of the pages of its records.
    pub fn memory_bytes(&self) -> usize {
        self.content.memory_bytes()
    }

    /// Decodes the frames of a range into the cache. Errors show when the bytes are read.
    pub fn read_ahead(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size());
        for run in self.data_runs(offset).take_while(|run| run.offset < end) {
            let start = run.offset.max(offset);
            let stop = run.offset.saturating_add(run.len).min(end);
            let Ok(data) = self.data_offset(start) else {
                return;
            };
            for range in self.content.runs(data, stop - start) {
                let _ = self.checked_frame(&range);
            }
        }
    }
}

fn write_zeros(count: u64, out: &mut dyn Write) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(count), out).map(drop)
}

/// The runs of data of a regular file that end behind `offset`, ascending; holes lie between them.
pub fn data_runs(entry: &Entry, offset: u64) -> impl Iterator<Item = ByteRun> + '_ {
    let whole = ByteRun {
        offset: 0,
        len: entry.size(),
    };
    let (map, whole) = match &entry.kind {
        EntryKind::File { map: Some(map), .. } => (&map[..], None),
        _ => (&[][..], (offset < whole.len).then_some(whole)),
    };
    let first = map.partition_point(|run| run.offset + run.len <= offset);
    map[first..].iter().copied().chain(whole)
}

fn too_short() -> Error {
    Error::corrupt("a frame is shorter than the manifest says")
}
