//! Decoded frames, kept a moment: small files that follow each other share one.

use super::Archive;
use crate::{
    error::{Error, Result},
    format::page::{FrameAt, SegmentId},
    queue::Locked,
    stage::codec::Decompressor,
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

/// Plain bytes that are kept, for all threads together.
const KEPT_BYTES: usize = 16 << 20;

/// A frame of any backup: its segment and where it begins there.
pub(crate) type Place = (SegmentId, u64);

/// What one thread decodes with.
type Hand = (Decompressor, Vec<u8>);

/// Fetches and decodes frames of an archive, for any number of threads. Two that want the same frame at the same moment both
/// decode it.
pub(crate) struct FrameCache {
    archive: Arc<Archive>,
    hands: Mutex<Vec<Hand>>,
    kept: Mutex<VecDeque<(Place, Arc<Vec<u8>>)>>,
}

impl FrameCache {
    pub(crate) fn new(archive: Arc<Archive>) -> Self {
        Self {
            archive,
            hands: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// What comes out of a frame of which only the checksum is wrong.
    ///
    /// # Errors
    /// As [`Frames::plain`].
    pub(crate) fn salvage(&self, segment: &SegmentId, frame: &FrameAt) -> Result<Vec<u8>> {
        Ok(self.decode(segment, frame)?.0)
    }

    /// The plain bytes of a frame; `keep` them if others will want them too.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt) if it is damaged, or the system's.
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
            .find(|(at, _)| at.0 == *segment && at.1 == frame.offset)
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

    /// The plain bytes, with what is wrong with the checksum if that is all.
    fn decode(&self, segment: &SegmentId, frame: &FrameAt) -> Result<(Vec<u8>, Option<Error>)> {
        let hand = self.hands.locked().pop();
        let (mut decompressor, mut stored) =
            hand.unwrap_or_else(|| (self.archive.codec.decompressor(), Vec::new()));
        let mut plain = Vec::new();
        self.archive.fetch(segment, frame, &mut stored)?;
        let wrong = decompressor.salvage(&stored, frame.plain_len as usize, &mut plain)?;
        self.hands.locked().push((decompressor, stored));
        Ok((plain, wrong))
    }

    fn keep(&self, place: Place, plain: Arc<Vec<u8>>) {
        let mut kept = self.kept.locked();
        kept.push_back((place, plain));
        while kept.iter().map(|(_, plain)| plain.len()).sum::<usize>() > KEPT_BYTES
            && kept.len() > 1
        {
            kept.pop_front();
        }
    }
}
