//! Decoded frames, for all threads and all backups of a repository, bounded in bytes.

use super::{Archive, byte_cache::ByteCache, frame_reader::FrameReader};
use fullbore_format::{
    digest::Digest,
    error::{Error, Result},
    page::{FrameAt, SegmentId},
};
use fullbore_platform::queue::Locked;
use std::{
    ops::Deref,
    sync::{Arc, Mutex},
};

/// Most plain bytes that are kept where the caller has no limit of its own.
const KEPT_BYTES: usize = 16 << 20;

/// A frame of any backup: its segment, and its offset in the segment.
pub type FrameKey = (SegmentId, u64);

/// Fetches and decodes frames, for any number of threads. Threads that need the same frame at the
/// same moment decode it once.
pub struct FrameCache {
    kept: ByteCache<FrameKey, DecodedFrame>,
    readers: Mutex<Vec<FrameReader>>,
}

/// The plain bytes of a frame whose own checksum is right.
pub struct DecodedFrame {
    plain: Vec<u8>,
    /// Ranges of files in it that were compared with their digests.
    checked: Mutex<Vec<CheckedRange>>,
}

/// A range of a frame as the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CheckedRange {
    /// Its start in the frame.
    pub(super) inner: usize,
    pub(super) len: usize,
    /// Its start in the data of the file.
    pub(super) offset: u64,
    /// The digest of the file.
    pub(super) digest: Option<Digest>,
}

impl Deref for DecodedFrame {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.plain
    }
}

impl DecodedFrame {
    pub(super) fn new(plain: Vec<u8>) -> Self {
        let checked = Mutex::default();
        Self { plain, checked }
    }

    /// Returns whether the range was checked before.
    pub(super) fn is_checked(&self, range: &CheckedRange) -> bool {
        self.checked.locked().contains(range)
    }

    pub(super) fn set_checked(&self, range: CheckedRange) {
        self.checked.locked().push(range);
    }
}

impl Default for FrameCache {
    fn default() -> Self {
        Self::new(KEPT_BYTES)
    }
}

impl FrameCache {
    /// Makes an empty cache of at most `most_bytes` plain bytes, or one frame.
    pub fn new(most_bytes: usize) -> Self {
        Self {
            kept: ByteCache::new(most_bytes),
            readers: Mutex::default(),
        }
    }

    /// Returns the decoded bytes of a frame even if its checksum is wrong.
    ///
    /// # Errors
    /// As [`FrameCache::plain`].
    pub fn salvage(
        &self,
        archive: &Archive,
        segment: &SegmentId,
        frame: &FrameAt,
    ) -> Result<Vec<u8>> {
        Ok(self.decode(archive, segment, frame)?.0)
    }

    /// Returns the plain bytes of a frame. With `keep`, other threads find them here.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if it is damaged, or an error of the system.
    pub fn plain(
        &self,
        archive: &Archive,
        segment: &SegmentId,
        frame: &FrameAt,
        keep: bool,
    ) -> Result<Arc<DecodedFrame>> {
        let key = (archive.full_name(segment), frame.offset);
        if !keep && !self.kept.has(&key) {
            return Ok(Arc::new(self.load(archive, segment, frame)?.0));
        }
        self.kept.get(&key, || self.load(archive, segment, frame))
    }

    fn load(
        &self,
        archive: &Archive,
        segment: &SegmentId,
        frame: &FrameAt,
    ) -> Result<(DecodedFrame, usize)> {
        let (plain, wrong) = self.decode(archive, segment, frame)?;
        wrong.map_or(Ok(()), Err)?;
        let bytes = plain.capacity();
        Ok((DecodedFrame::new(plain), bytes))
    }

    /// Returns the plain bytes, and the checksum error if the checksum is the only fault.
    fn decode(
        &self,
        archive: &Archive,
        segment: &SegmentId,
        frame: &FrameAt,
    ) -> Result<(Vec<u8>, Option<Error>)> {
        let mut reader = self.readers.locked().pop().unwrap_or_default();
        let wrong = reader.fetch(archive, segment, frame)?.salvage()?;
        let plain = reader.take_plain();
        self.readers.locked().push(reader);
        Ok((plain, wrong))
    }
}
