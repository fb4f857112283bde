//! Stored bytes of a segment that were read once, for a checksum and for the frames in them.

use fullbore_format::page::SegmentId;

/// Stored bytes of a segment that were read, so that what is in them need not be read again.
#[derive(Debug, Default)]
pub struct HeldBytes {
    /// The segment, under its full name; `None` if there are no bytes.
    pub segment: Option<SegmentId>,
    /// The place of the first byte in the stored segment.
    pub from: u64,
    pub bytes: Vec<u8>,
}

impl HeldBytes {
    /// Returns these stored bytes, if all of them are held.
    pub fn get(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let index = usize::try_from(offset.checked_sub(self.from)?).ok()?;
        self.bytes.get(index..index.checked_add(len)?)
    }

    /// Replaces the contents of `out` by these stored bytes, if all of them are held.
    pub(super) fn copy(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> bool {
        let found = self.get(offset, len);
        if let Some(bytes) = found {
            out.clear();
            out.extend_from_slice(bytes);
        }
        found.is_some()
    }

    /// Lets the bytes go, and keeps their memory.
    pub fn clear(&mut self) {
        self.segment = None;
        self.bytes.clear();
    }
}
