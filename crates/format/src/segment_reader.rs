//! Reads the service frames and the seek table of a segment at their places.
//!
//! This module does no input: a [`SegmentReader`] gets its bytes from a function, which may read a
//! file, an object of a storage or memory. It is the one reader of the end of a segment, of the
//! service frames by offset, and of the lengths of lz4 frames. Streams that cannot seek decode
//! frame after frame instead.

use crate::{
    error::Result,
    segment::{
        EMPTY_ZSTD, FrameSpan, LOCATOR_BYTES, Label, Locator, SEEK_FOOTER_BYTES,
        SERVICE_HEADER_BYTES, Service, parse_seek_table, seek_table_len, skippable_len,
    },
};

/// Most blocks in a frame of lz4: 64 MiB in blocks of 4 MiB, and the mark of the end.
const MAX_LZ4_BLOCKS: usize = 17;
/// The first bytes of a frame of lz4.
const LZ4_MAGIC: [u8; 4] = 0x184D_2204u32.to_le_bytes();
/// Bytes of the header of an lz4 frame with the size of its content.
const LZ4_HEADER_BYTES: u64 = 15;

/// Offset of the label of a volume or of a part on tape, which begins with an empty frame of zstd.
const LABEL_OFFSET: u64 = EMPTY_ZSTD.len() as u64;

/// A segment, or a one-file archive, whose bytes can be read at any offset.
#[derive(Debug)]
pub struct SegmentReader<F> {
    bytes: u64,
    read_at: F,
}

impl<F> SegmentReader<F>
where
    F: Fn(u64, usize, &mut Vec<u8>) -> Result<()>,
{
    /// Makes a reader of a segment of this size. `read_at` replaces the contents of a buffer by as
    /// many bytes from an offset, and fails if there are fewer. It is asked for bytes within the
    /// segment only.
    pub fn new(bytes: u64, read_at: F) -> Self {
        Self { bytes, read_at }
    }

    /// Returns all frames but the seek table itself, in order; `None` if the segment has no seek
    /// table, or a damaged one.
    ///
    /// # Errors
    /// Those of reading.
    pub fn frames(&self) -> Result<Option<Vec<FrameSpan>>> {
        let Some(table_bytes) = self.table_bytes()? else {
            return Ok(None);
        };
        let mut table = Vec::new();
        let start = self.bytes - table_bytes;
        (self.read_at)(start, table_bytes as usize, &mut table)?;
        // Skippable frames begin with their length: that of the table itself must be right too. Of
        // the flags near its end only one has a meaning, and fullbore does not set it.
        let flags = table.get(table.len().saturating_sub(SEEK_FOOTER_BYTES) + 4);
        if skippable_len(&table) != Some(table_bytes) || flags != Some(&0) {
            return Ok(None);
        }
        Ok(parse_seek_table(&table).and_then(|sizes| placed(&sizes, start)))
    }

    /// Returns the place of the root of a one-file archive: before the seek table, or at the very
    /// end if there is no seek table.
    ///
    /// # Errors
    /// Those of reading.
    pub fn locator(&self) -> Result<Option<Locator>> {
        let table_bytes = self.table_bytes()?.unwrap_or(0);
        let Some(start) = self.bytes.checked_sub(table_bytes + LOCATOR_BYTES) else {
            return Ok(None);
        };
        let mut frame = Vec::new();
        (self.read_at)(start, LOCATOR_BYTES as usize, &mut frame)?;
        Ok(Locator::parse(&frame).filter(|root| self.has(root.offset, root.len)))
    }

    /// Returns the first bytes of the frame at `offset`, filled with zeros at the end of the
    /// segment.
    ///
    /// # Errors
    /// Those of reading.
    pub fn header(&self, offset: u64) -> Result<[u8; SERVICE_HEADER_BYTES]> {
        let left = self.bytes.saturating_sub(offset);
        let len = left.min(SERVICE_HEADER_BYTES as u64) as usize;
        let mut header = Vec::new();
        if len > 0 {
            (self.read_at)(offset, len, &mut header)?;
        }
        header.resize(SERVICE_HEADER_BYTES, 0);
        Ok(std::array::from_fn(|index| header[index]))
    }

    /// Returns kind and payload of the service frame at `offset`, if it is whole and of a wanted
    /// kind. The payload of another frame is not read.
    ///
    /// # Errors
    /// Those of reading.
    pub fn service(
        &self,
        offset: u64,
        is_wanted: impl Fn(Service) -> bool,
    ) -> Result<Option<(Service, Vec<u8>)>> {
        let header = self.header(offset)?;
        let payload_at = offset.saturating_add(SERVICE_HEADER_BYTES as u64);
        let whole = Service::parse(&header)
            .filter(|(service, len)| is_wanted(*service) && self.has(payload_at, *len));
        let Some((service, len)) = whole else {
            return Ok(None);
        };
        let mut payload = Vec::new();
        (self.read_at)(payload_at, len as usize, &mut payload)?;
        Ok(Some((service, payload)))
    }

    /// Returns the label behind an empty frame of zstd; `None` if there is no whole one.
    ///
    /// # Errors
    /// Those of reading.
    pub fn label(&self) -> Result<Option<Label>> {
        let service = self.service(LABEL_OFFSET, |service| service == Service::Label)?;
        Ok(service.and_then(|(_, payload)| Label::parse(&payload).ok()))
    }

    /// Returns the offset behind that label.
    ///
    /// # Errors
    /// Those of reading.
    pub fn label_end(&self) -> Result<u64> {
        let header = self.header(LABEL_OFFSET)?;
        Ok(LABEL_OFFSET + skippable_len(&header).unwrap_or(0))
    }

    /// Returns whether the segment begins with a frame and a label, as all segments of fullbore do.
    /// The first frame is empty in zstd and has data in lz4; a filler may follow it.
    ///
    /// # Errors
    /// Those of reading.
    pub fn begins_with_label(&self) -> Result<bool> {
        let mut offset = if self.header(0)?.starts_with(&EMPTY_ZSTD) {
            EMPTY_ZSTD.len() as u64
        } else {
            self.lz4_frame(0)?.map_or(0, |(stored, _)| stored)
        };
        let mut header = self.header(offset)?;
        if Service::parse(&header).is_none()
            && let Some(filler_bytes) = skippable_len(&header)
        {
            offset += filler_bytes;
            header = self.header(offset)?;
        }
        Ok(matches!(Service::parse(&header), Some((Service::Label, _))))
    }

    /// Returns stored and plain bytes of the lz4 frame at `start`: each block has its length, and
    /// the header has the length of the content. `None` if there is no such frame.
    ///
    /// # Errors
    /// Those of reading.
    pub fn lz4_frame(&self, start: u64) -> Result<Option<(u64, u64)>> {
        let header = self.header(start)?;
        let Some(plain_bytes) = lz4_content_bytes(&header) else {
            return Ok(None);
        };
        let flags = header[4];
        let block_sum_bytes = if flags & 0b1_0000 != 0 { 4 } else { 0 };
        let content_sum_bytes = if flags & 0b100 != 0 { 4 } else { 0 };
        let mut offset = start + LZ4_HEADER_BYTES;
        for _ in 0..MAX_LZ4_BLOCKS {
            if !self.has(offset, 4) {
                break;
            }
            let [a, b, c, d, ..] = self.header(offset)?;
            // The highest bit says that the block is stored as it is.
            let block_bytes = u32::from_le_bytes([a, b, c, d]) & 0x7fff_ffff;
            offset += 4;
            if block_bytes == 0 {
                return Ok(Some((offset + content_sum_bytes - start, plain_bytes)));
            }
            offset += u64::from(block_bytes) + block_sum_bytes;
        }
        Ok(None)
    }

    fn has(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.bytes)
    }

    /// Returns the length of the seek table, as the footer tells it.
    fn table_bytes(&self) -> Result<Option<u64>> {
        let Some(start) = self.bytes.checked_sub(SEEK_FOOTER_BYTES as u64) else {
            return Ok(None);
        };
        let mut footer = Vec::new();
        (self.read_at)(start, SEEK_FOOTER_BYTES, &mut footer)?;
        Ok(seek_table_len(&footer, self.bytes))
    }
}

/// Returns a reader of a whole segment in memory.
pub fn segment_in_memory(
    segment: &[u8],
) -> SegmentReader<impl Fn(u64, usize, &mut Vec<u8>) -> Result<()>> {
    SegmentReader::new(segment.len() as u64, |offset, len, out: &mut Vec<u8>| {
        out.clear();
        out.extend_from_slice(&segment[offset as usize..][..len]);
        Ok(())
    })
}

/// Returns the content size in the header of an lz4 frame. Fullbore always writes it, and uses no
/// dictionary.
pub fn lz4_content_bytes(header: &[u8]) -> Option<u64> {
    let flags = header.get(4)?;
    let size = header.get(6..14)?.try_into().ok()?;
    let is_own = header.starts_with(&LZ4_MAGIC) && flags & 0b1001 == 0b1000;
    is_own.then_some(u64::from_le_bytes(size))
}

/// Returns where frames of these sizes are; `None` if they do not end at `end`.
fn placed(sizes: &[(u32, u32)], end: u64) -> Option<Vec<FrameSpan>> {
    let mut frames = Vec::with_capacity(sizes.len());
    let mut offset = 0;
    for (stored, plain) in sizes {
        // A reserved place that was not needed is an entry of zero bytes.
        if *stored > 0 {
            frames.push((offset, *stored, *plain));
        }
        offset += u64::from(*stored);
    }
    (offset == end).then_some(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::SeekTable;
    use proptest::{collection::vec, prelude::*};

    /// A segment of an empty frame, a label, a page and a seek table with an unused place.
    fn segment() -> (Vec<u8>, Vec<FrameSpan>) {
        let label = Service::Label.frame(b"label");
        let page = Service::Page.frame(&[7; 99]);
        let mut table = SeekTable::default();
        let mut segment = Vec::new();
        let mut frames = Vec::new();
        for frame in [&EMPTY_ZSTD[..], &[], &label, &page] {
            table.push(frame.len(), 0);
            if !frame.is_empty() {
                frames.push((segment.len() as u64, frame.len() as u32, 0));
            }
            segment.extend_from_slice(frame);
        }
        segment.extend(table.frame());
        (segment, frames)
    }

    #[test]
    fn frames_and_payloads_are_found_at_their_places() {
        let (segment, frames) = segment();
        let reader = segment_in_memory(&segment);
        assert_eq!(reader.frames().unwrap(), Some(frames.clone()));
        assert!(reader.begins_with_label().unwrap());
        let page_at = frames[2].0;
        let page = reader.service(page_at, |_| true).unwrap();
        assert_eq!(page, Some((Service::Page, vec![7; 99])));
        let is_label = |service| service == Service::Label;
        assert_eq!(reader.service(page_at, is_label).unwrap(), None);
    }

    #[test]
    fn a_table_that_does_not_fit_the_segment_is_not_used() {
        let (segment, _) = segment();
        let longer = [&[0; 1][..], &segment].concat();
        assert_eq!(segment_in_memory(&longer).frames().unwrap(), None);
        for from_end in [1, 5, SEEK_FOOTER_BYTES, SEEK_FOOTER_BYTES + 8] {
            let mut damaged = segment.clone();
            let offset = damaged.len() - from_end;
            damaged[offset] ^= 1;
            let found = segment_in_memory(&damaged).frames().unwrap();
            assert_eq!(found, None, "byte {from_end} from the end");
        }
    }

    #[test]
    fn a_payload_beyond_the_end_is_not_read() {
        let frame = Service::Page.frame(&[7; 99]);
        let cut = &frame[..frame.len() - 1];
        assert_eq!(segment_in_memory(cut).service(0, |_| true).unwrap(), None);
    }

    #[test]
    fn the_place_of_a_root_is_found_with_and_without_a_seek_table() {
        let root = Locator { offset: 3, len: 9 };
        let mut archive = vec![0; 30];
        archive.extend(root.frame());
        assert_eq!(segment_in_memory(&archive).locator().unwrap(), Some(root));
        archive.extend(SeekTable::default().frame());
        assert_eq!(segment_in_memory(&archive).locator().unwrap(), Some(root));
        let beyond = Locator { offset: 3, len: 99 };
        let found = segment_in_memory(&beyond.frame()).locator().unwrap();
        assert_eq!(found, None);
    }

    #[test]
    fn an_lz4_frame_ends_at_its_mark() {
        let mut frame = LZ4_MAGIC.to_vec();
        frame.extend([0b0110_1100, 0x70]); // independent blocks, content size, content checksum
        frame.extend(5u64.to_le_bytes());
        frame.push(0);
        frame.extend((5u32 | 1 << 31).to_le_bytes());
        frame.extend([1, 2, 3, 4, 5, 0, 0, 0, 0, 9, 9, 9, 9]);
        let found = segment_in_memory(&frame).lz4_frame(0).unwrap();
        assert_eq!(found, Some((frame.len() as u64, 5)));
        let cut = segment_in_memory(&frame[..20]).lz4_frame(0).unwrap();
        assert_eq!(cut, None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_within_their_end(bytes in vec(any::<u8>(), 0..80), offset in 0..99u64) {
            let reader = segment_in_memory(&bytes);
            reader.frames().unwrap();
            reader.locator().unwrap();
            reader.service(offset, |_| true).unwrap();
            reader.begins_with_label().unwrap();
            reader.lz4_frame(offset).unwrap();
        }
    }
}
