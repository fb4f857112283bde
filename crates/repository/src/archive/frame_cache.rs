//! Decoded frames, kept for a short time: consecutive small files share a frame.

use super::{Archive, frame_reader::FrameReader};
use fullbore_format::{
    error::{Error, Result},
    page::{FrameAt, SegmentId},
};
use fullbore_platform::queue::Locked;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

/// Most plain bytes that are kept, for all threads together.
const KEPT_BYTES: usize = 16 << 20;

/// A frame of any backup: its segment, and its offset in the segment.
pub type FrameKey = (SegmentId, u64);

/// Fetches and decodes frames of an archive, for any number of threads. Two threads that need the
/// same frame at the same moment both decode it.
pub struct FrameCache {
    archive: Arc<Archive>,
    readers: Mutex<Vec<FrameReader>>,
    kept: Mutex<VecDeque<(FrameKey, Arc<Vec<u8>>)>>,
}

impl FrameCache {
    /// Makes an empty cache for the frames of `archive`.
    pub fn new(archive: Arc<Archive>) -> Self {
        Self {
            archive,
            readers: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Returns the decoded bytes of a frame even if its checksum is wrong.
    ///
    /// # Errors
    /// As `Frames::plain`.
    pub fn salvage(&self, segment: &SegmentId, frame: &FrameAt) -> Result<Vec<u8>> {
        Ok(self.decode(segment, frame)?.0)
    }

    /// Returns the plain bytes of a frame; `keep` them if other threads will need them.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if it is damaged, or an error of the system.
    pub(crate) fn plain(
        &self,
        segment: &SegmentId,
        frame: &FrameAt,
        keep: bool,
    ) -> Result<Arc<Vec<u8>>> {
        let found = self
            .kept
            .locked()
            .iter()
            .find(|(place, _)| place.0 == *segment && place.1 == frame.offset)
            .cloned();
        if let Some((_, plain)) = found {
            return Ok(plain);
        }
        let (plain, wrong) = self.decode(segment, frame)?;
        wrong.map_or(Ok(()), Err)?;
        let plain = Arc::new(plain);
        if keep {
            self.keep((segment.clone(), frame.offset), plain.clone());
        }
        Ok(plain)
    }

    /// Returns the plain bytes, and the checksum error if the checksum is the only fault.
    fn decode(&self, segment: &SegmentId, frame: &FrameAt) -> Result<(Vec<u8>, Option<Error>)> {
        let mut reader = self.readers.locked().pop().unwrap_or_default();
        let wrong = reader.fetch(&self.archive, segment, frame)?.salvage()?;
        let plain = reader.take_plain();
        self.readers.locked().push(reader);
        Ok((plain, wrong))
    }

    fn keep(&self, place: FrameKey, plain: Arc<Vec<u8>>) {
        let mut kept = self.kept.locked();
        kept.push_back((place, plain));
        while kept.iter().map(|(_, plain)| plain.len()).sum::<usize>() > KEPT_BYTES
            && kept.len() > 1
        {
            kept.pop_front();
        }
    }
}
