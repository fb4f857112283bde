//! The service frames of a segment: everything in it besides the tar stream, in skippable frames
//! that zstd and lz4 ignore.
//!
//! ```text
//! [empty frame] [label] [frame]… [page]… [root, in a one-file archive] [locator, likewise] [seek table]
//! ```
//! The empty frame comes first, so that tools which look at the first bytes recognize the codec.
//! With lz4 the first frame is one of data, because bsdtar takes an empty frame for the end. A page
//! follows the frames that it describes. The seek table is zstd's official seekable format, in
//! which skippable frames count as size 0.

use crate::error::{Error, Result};
use minicbor::{Decode, Encode};

/// Magic number of fullbore's skippable frames; zstd reserves 16 such numbers for users.
const SKIPPABLE: u32 = 0x184D_2A5B;
/// Magic of the skippable frame that holds the seek table.
const SEEK_TABLE: u32 = 0x184D_2A5E;
const SEEKABLE: u32 = 0x8F92_EAB1;
/// One frame of a segment: offset, stored bytes, plain bytes.
pub type FrameSpan = (u64, u32, u32);

/// An empty zstd frame with content size 0 and the checksum of nothing.
pub const EMPTY_ZSTD: [u8; 13] = [
    0x28, 0xb5, 0x2f, 0xfd, 0x24, 0, 1, 0, 0, 0x99, 0xe9, 0xd8, 0x51,
];
/// Bytes of the longest header of a zstd frame.
pub const ZSTD_HEADER_BYTES: usize = 18;
/// Bytes before the payload of a service frame: magic, length, tag.
pub const SERVICE_HEADER_BYTES: usize = 16;
/// Bytes of a locator.
pub const LOCATOR_BYTES: u64 = SERVICE_HEADER_BYTES as u64 + 24;
/// Bytes of the footer of a seek table, which tells its length.
pub const SEEK_FOOTER_BYTES: usize = 9;
const SEEK_ENTRY_BYTES: u64 = 8;

/// Kind of a service frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Identity of the segment.
    Label,
    /// A page of the manifest.
    Page,
    /// The root of a one-file archive.
    Root,
    /// The place of that root.
    Locator,
    /// The index of a run of WAL segments.
    WalIndex,
    /// A page of the manifest that describes an earlier volume.
    Catalog,
}

impl Service {
    const ALL: [(Self, &'static [u8; 8]); 6] = [
        (Self::Label, b"FBLABEL1"),
        (Self::Page, b"FBPAGE_1"),
        (Self::Root, b"FBROOT_1"),
        (Self::Locator, b"FBLOCAT1"),
        (Self::WalIndex, b"FBWALIX1"),
        (Self::Catalog, b"FBCATLG1"),
    ];

    fn tag(self) -> &'static [u8; 8] {
        Self::ALL
            .iter()
            .find(|(service, _)| *service == self)
            .map_or(b"FBUNKNWN", |(_, tag)| tag)
    }

    /// Returns the frame that holds `payload`.
    pub fn frame(self, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(payload.len() + SERVICE_HEADER_BYTES);
        out.extend(SKIPPABLE.to_le_bytes());
        out.extend((payload.len() as u32 + 8).to_le_bytes());
        out.extend(self.tag());
        out.extend(payload);
        out
    }

    /// Returns the kind of a service frame and the length of its payload, from its first
    /// [`SERVICE_HEADER_BYTES`].
    pub fn parse(header: &[u8]) -> Option<(Self, u64)> {
        let len = le32(header, 4)?;
        let tag = header.get(8..16)?;
        let service = Self::ALL.iter().find(|(_, known)| &known[..] == tag)?.0;
        (le32(header, 0)? == SKIPPABLE).then_some((service, u64::from(len).checked_sub(8)?))
    }

    /// Returns whether a frame may be a service frame, when only its first bytes `start` have
    /// arrived.
    pub fn may_begin(start: &[u8]) -> bool {
        match start.get(..SERVICE_HEADER_BYTES) {
            Some(header) => Self::parse(header).is_some(),
            None => SKIPPABLE
                .to_le_bytes()
                .starts_with(&start[..start.len().min(4)]),
        }
    }

    /// Returns the kind and the payload of a whole service frame.
    pub fn payload(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (service, len) = Self::parse(frame)?;
        let payload = &frame[SERVICE_HEADER_BYTES..];
        (payload.len() as u64 == len).then_some((service, payload))
    }
}

/// Returns a skippable frame of exactly `len` bytes without content; `None` if `len` is below 8.
pub fn filler(len: usize) -> Option<Vec<u8>> {
    let rest = u32::try_from(len).ok()?.checked_sub(8)?;
    let mut out = [SKIPPABLE.to_le_bytes(), rest.to_le_bytes()].concat();
    out.resize(len, 0);
    Some(out)
}

/// Returns the whole length of a skippable frame, or `None` if `header` does not start one.
pub fn skippable_len(header: &[u8]) -> Option<u64> {
    let magic = le32(header, 0)?;
    (magic & 0xffff_fff0 == 0x184D_2A50).then_some(u64::from(le32(header, 4)?) + 8)
}

/// Identity of a segment: enough to rebuild a repository from its segments.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct Label {
    /// Version of the format.
    #[n(0)]
    pub format: u32,
    /// Repository; empty for a one-file archive.
    #[n(1)]
    pub repository: String,
    /// Backup.
    #[n(2)]
    pub backup: String,
    /// Stream, from 1.
    #[n(3)]
    pub stream: u32,
    /// Number in the stream, from 1.
    #[n(4)]
    pub number: u32,
    /// `zstd`, `lz4` or `none`.
    #[n(5)]
    pub codec: String,
    /// Was the backup compared with others? Then it may refer to them, and pieces of files may be
    /// in it.
    #[n(6)]
    pub is_incremental: bool,
}

impl Label {
    /// Returns the service frame that holds the label.
    pub fn frame(&self) -> Vec<u8> {
        Service::Label.frame(&minicbor::to_vec(self).unwrap_or_default())
    }

    /// Reads the payload of a label.
    pub fn parse(payload: &[u8]) -> Result<Self> {
        minicbor::decode(payload)
            .map_err(|e| Error::corrupt("a segment label is damaged").because(e.to_string()))
    }
}

/// The place of the root in a one-file archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Locator {
    /// Bytes before the root itself (not before its frame).
    pub offset: u64,
    /// Bytes of the root.
    pub len: u64,
}

impl Locator {
    /// Returns the service frame that holds the locator, [`LOCATOR_BYTES`] long. The last 8 bytes
    /// are a checksum of the first 16.
    pub fn frame(self) -> Vec<u8> {
        let mut payload = [self.offset.to_le_bytes(), self.len.to_le_bytes()].concat();
        payload.extend(crate::digest::crc64(&payload).to_le_bytes());
        Service::Locator.frame(&payload)
    }

    /// Reads a whole service frame.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (service, len) = Service::parse(frame)?;
        let payload = frame.get(SERVICE_HEADER_BYTES..)?;
        let check = le64(payload, 16)?;
        let whole = service == Service::Locator
            && len == 24
            && check == crate::digest::crc64(&payload[..16]);
        whole.then_some(Self {
            offset: le64(payload, 0)?,
            len: le64(payload, 8)?,
        })
    }
}

/// The sizes of all frames of a segment, in order: stored and plain bytes. 8 bytes of memory a
/// frame.
#[derive(Debug, Default)]
pub struct SeekTable(Vec<(u32, u32)>);

impl SeekTable {
    /// Records one frame; a skippable frame has 0 plain bytes.
    pub fn push(&mut self, stored_len: usize, plain_len: usize) {
        self.0.push((stored_len as u32, plain_len as u32));
    }

    /// Number of recorded frames.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Corrects the sizes of one frame.
    pub fn set(&mut self, index: usize, stored_len: usize, plain_len: usize) {
        self.0[index] = (stored_len as u32, plain_len as u32);
    }

    /// Returns the skippable frame that holds the table. It is the last frame of a segment.
    pub fn frame(&self) -> Vec<u8> {
        let len = self.0.len() * SEEK_ENTRY_BYTES as usize + SEEK_FOOTER_BYTES;
        let mut out = Vec::with_capacity(len + 8);
        out.extend(SEEK_TABLE.to_le_bytes());
        out.extend((len as u32).to_le_bytes());
        for (stored, plain) in &self.0 {
            out.extend(stored.to_le_bytes());
            out.extend(plain.to_le_bytes());
        }
        out.extend((self.0.len() as u32).to_le_bytes());
        out.push(0); // no checksums in the table: each frame has its own
        out.extend(SEEKABLE.to_le_bytes());
        out
    }
}

/// Returns the length of the whole seek table frame, from the last [`SEEK_FOOTER_BYTES`] of a file
/// of `file_len` bytes.
pub(crate) fn seek_table_len(footer: &[u8], file_len: u64) -> Option<u64> {
    let entry = match footer.get(4)? {
        flags if flags & 0x80 != 0 => SEEK_ENTRY_BYTES + 4,
        _ => SEEK_ENTRY_BYTES,
    };
    let len = u64::from(le32(footer, 0)?) * entry + SEEK_FOOTER_BYTES as u64 + 8;
    (le32(footer, 5)? == SEEKABLE && len <= file_len).then_some(len)
}

/// Returns stored and plain bytes of every frame, from a whole seek table frame.
pub(crate) fn parse_seek_table(frame: &[u8]) -> Option<Vec<(u32, u32)>> {
    let footer = frame.get(frame.len().checked_sub(SEEK_FOOTER_BYTES)?..)?;
    let len = seek_table_len(footer, frame.len() as u64)?;
    let entries = frame.get(8..frame.len() - SEEK_FOOTER_BYTES)?;
    let count = le32(footer, 0)? as usize;
    let entry = entries.len().checked_div(count).unwrap_or(8);
    let whole = len == frame.len() as u64 && le32(frame, 0)? == SEEK_TABLE && entry >= 8;
    whole.then(|| {
        entries
            .chunks_exact(entry)
            .filter_map(|e| Some((le32(e, 0)?, le32(e, 4)?)))
            .collect()
    })
}

fn le32(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        bytes.get(offset..offset + 4)?.try_into().ok()?,
    ))
}

fn le64(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        bytes.get(offset..offset + 8)?.try_into().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    proptest! {
        #[test]
        fn service_frames_read_back(payload in vec(any::<u8>(), 0..99), offset: u64, len: u64) {
            let frame = Service::Page.frame(&payload);
            prop_assert_eq!(Service::parse(&frame), Some((Service::Page, payload.len() as u64)));
            prop_assert_eq!(skippable_len(&frame), Some(frame.len() as u64));
            let locator = Locator { offset, len };
            prop_assert_eq!(locator.frame().len() as u64, LOCATOR_BYTES);
            prop_assert_eq!(Locator::parse(&locator.frame()), Some(locator));
        }

        #[test]
        fn seek_tables_read_back(sizes in vec((any::<u32>(), any::<u32>()), 0..40)) {
            let frame = SeekTable(sizes.clone()).frame();
            let footer = &frame[frame.len() - SEEK_FOOTER_BYTES..];
            prop_assert_eq!(seek_table_len(footer, frame.len() as u64), Some(frame.len() as u64));
            prop_assert_eq!(parse_seek_table(&frame), Some(sizes));
        }

        #[test]
        fn any_bytes_are_refused_and_never_a_panic(bytes in vec(any::<u8>(), 0..80)) {
            let _ = (Service::parse(&bytes), Locator::parse(&bytes), parse_seek_table(&bytes));
            let _ = (Label::parse(&bytes), seek_table_len(&bytes, 80), skippable_len(&bytes));
        }
    }

    #[test]
    fn a_flipped_bit_in_a_locator_is_found() {
        let frame = Locator {
            offset: 77,
            len: 99,
        }
        .frame();
        for bit in 0..frame.len() * 8 {
            let mut frame = frame.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Locator::parse(&frame), None, "bit {bit}");
        }
    }
}
