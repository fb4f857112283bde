//! Fetches and decodes frames on one thread.
//!
//! A [`FrameReader`] holds decoders and buffers, and reads frames of any archive: memory is taken
//! once for the largest frame, stored and decoded. Every frame of a backup is decoded here. Does not
//! belong here: pages and roots, which are objects of their own, and plain streams of other
//! programs.

use super::{Archive, held_bytes::HeldBytes};
use fullbore_format::{
    error::{Error, Result},
    page::{Extent, FrameAt, SegmentId},
};
use fullbore_pipeline::stage::codec::{Codec, Decompressor};
use std::collections::HashMap;

/// Decoders and buffers of one thread, for frames of any archive.
#[derive(Default)]
pub struct FrameReader {
    /// One for each codec that occurred, by its name.
    decompressors: HashMap<&'static str, Decompressor>,
    stored: Vec<u8>,
    plain: Vec<u8>,
}

/// A fetched frame that is not decoded.
#[must_use]
pub struct StoredFrame<'a> {
    reader: &'a mut FrameReader,
    codec: Codec,
    plain_len: usize,
}

impl FrameReader {
    /// Reads the stored bytes of a frame. Decoding is apart, so that callers can measure and limit
    /// both.
    ///
    /// # Errors
    /// As `Archive::fetch`.
    pub fn fetch(
        &mut self,
        archive: &Archive,
        segment: &SegmentId,
        frame: &FrameAt,
    ) -> Result<StoredFrame<'_>> {
        archive.fetch(segment, frame, &mut self.stored)?;
        Ok(self.stored_frame(archive, frame))
    }

    /// As [`FrameReader::fetch`], from stored bytes of the segment if they are held and have the
    /// frame.
    ///
    /// # Errors
    /// As `Archive::fetch`.
    pub fn fetch_held(
        &mut self,
        archive: &Archive,
        segment: &SegmentId,
        frame: &FrameAt,
        held: &HeldBytes,
    ) -> Result<StoredFrame<'_>> {
        archive.fetch_held(segment, frame, held, &mut self.stored)?;
        Ok(self.stored_frame(archive, frame))
    }

    fn stored_frame(&mut self, archive: &Archive, frame: &FrameAt) -> StoredFrame<'_> {
        StoredFrame {
            reader: self,
            codec: archive.codec,
            plain_len: frame.plain_len as usize,
        }
    }

    /// Fetches and decodes a frame, and returns its plain bytes.
    ///
    /// # Errors
    /// As `Archive::fetch` and [`StoredFrame::decode`].
    pub fn read(
        &mut self,
        archive: &Archive,
        segment: &SegmentId,
        frame: &FrameAt,
    ) -> Result<&[u8]> {
        self.fetch(archive, segment, frame)?.decode()
    }

    /// Returns the plain bytes of the last decoded frame.
    pub fn plain(&self) -> &[u8] {
        &self.plain
    }

    /// Returns the plain bytes of the last decoded frame with their memory; the next frame takes
    /// new memory.
    pub fn take_plain(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.plain)
    }

    fn decompressor(&mut self, codec: Codec) -> (&mut Decompressor, &[u8], &mut Vec<u8>) {
        let decompressor = self
            .decompressors
            .entry(codec.name())
            .or_insert_with(|| codec.decompressor());
        (decompressor, &self.stored, &mut self.plain)
    }
}

impl<'a> StoredFrame<'a> {
    /// Decodes the frame, and returns its plain bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if it is damaged.
    pub fn decode(self) -> Result<&'a [u8]> {
        let (decompressor, stored, plain) = self.reader.decompressor(self.codec);
        decompressor.decompress(stored, self.plain_len, plain)?;
        Ok(plain)
    }

    /// Decodes the frame even if its checksum is wrong; its bytes are then in
    /// [`FrameReader::plain`]. Returns the checksum error if the checksum is the only fault: the
    /// caller compares the content with digests.
    ///
    /// # Errors
    /// As [`StoredFrame::decode`].
    pub fn salvage(self) -> Result<Option<Error>> {
        let (decompressor, stored, plain) = self.reader.decompressor(self.codec);
        decompressor.salvage(stored, self.plain_len, plain)
    }
}

/// Returns the bytes of an extent within its decoded frame; `None` if the frame is too short.
pub fn extent_content<'a>(extent: &Extent, plain: &'a [u8]) -> Option<&'a [u8]> {
    let start = extent.inner as usize;
    plain.get(start..)?.get(..extent.len as usize)
}
