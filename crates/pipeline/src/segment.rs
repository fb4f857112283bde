//! The segment that is being filled: its length, its frames, the checksums of its stored bytes.

use crate::stage::codec::Codec;
use fullbore_format::{
    digest::{Crc64, crc32, crc32_join, crc64, crc64_join},
    entry::{Entry, EntryKind},
    error::{Error, ErrorKind, Result},
    pax,
    root::{PART_BYTES, Segment},
    segment::{SeekTable, filler},
};

/// The open segment of a stream.
pub struct SegmentInProgress {
    /// Stored bytes so far.
    pub offset: u64,
    open: bool,
    /// Sizes of the frames.
    pub seek: SeekTable,
    gap: Option<Gap>,
    facts: Segment,
    /// Checksums of the stored bytes; `None` if the storage computes them.
    parts: Option<PartSums>,
    crc32: u32,
}

/// Space reserved for the header of a stream whose length is known only at its end.
struct Gap {
    /// Stored bytes before the gap.
    offset: u64,
    /// The entry of the stream, without its size.
    entry: Entry,
    /// Index of the gap in the seek table.
    index: usize,
}

impl SegmentInProgress {
    /// Creates an empty segment of a repository, whose storage computes the checksums of stored
    /// bytes. Number 0 stands before the first segment, and is closed.
    pub fn new(stream: u32, number: u32) -> Self {
        Self {
            offset: 0,
            open: number > 0,
            seek: SeekTable::default(),
            gap: None,
            facts: Segment {
                stream,
                number,
                ..Segment::default()
            },
            parts: None,
            crc32: 0,
        }
    }

    /// Creates the empty segment of a one-file archive, whose own end contains the checksums of the
    /// bytes before it.
    pub fn of_one_file(stream: u32, number: u32) -> Self {
        Self {
            parts: Some(PartSums::default()),
            ..Self::new(stream, number)
        }
    }

    /// Returns the number of the segment in its stream.
    pub fn number(&self) -> u32 {
        self.facts.number
    }

    /// Returns whether the segment takes more frames.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Closes the segment: it takes no more frames.
    pub fn close(&mut self) {
        self.open = false;
    }

    /// Counts stored bytes. Returns their offset.
    pub fn add_stored(&mut self, data: &[u8]) -> u64 {
        let offset = self.offset;
        self.offset += data.len() as u64;
        if let Some(parts) = &mut self.parts {
            parts.push(data);
        }
        offset
    }

    /// Counts a frame of the tar stream.
    pub fn add_plain(&mut self, plain_len: u32, crc32: Option<u32>) {
        self.facts.frames += 1;
        self.facts.plain_bytes += u64::from(plain_len);
        self.crc32 = crc32.map_or(0, |crc| crc32_join(self.crc32, crc, plain_len.into()));
    }

    /// Returns the description of the segment in its present state, for a root.
    pub fn description(&self) -> Segment {
        // The header that fills the gap changes the checksum of its part; the checksums are unknown
        // until then.
        let parts = self.parts.as_ref().filter(|_| self.gap.is_none());
        let checksums = parts.map(PartSums::checksums).unwrap_or_default();
        Segment {
            bytes: self.offset,
            parts: part_digits(&checksums),
            ..self.facts.clone()
        }
    }

    /// Reserves a gap for the header of `entry`. Returns the zeros to store there.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the header would not fit; errors of the codec.
    pub fn leave_gap(&mut self, entry: Entry, codec: Codec) -> Result<Vec<u8>> {
        [0, i64::MAX as u64]
            .into_iter()
            .try_for_each(|size| gap_header(&entry, codec, size).map(drop))?;
        let bytes = vec![0; gap_bytes(codec)?];
        self.gap = Some(Gap {
            offset: self.offset,
            entry,
            index: self.seek.len(),
        });
        self.seek.push(0, 0);
        self.seek.push(bytes.len(), 0);
        self.add_stored(&bytes);
        Ok(bytes)
    }

    /// Fills the gap. Returns its offset and its bytes, exactly as many as were reserved.
    ///
    /// # Errors
    /// Errors of the codec.
    pub fn fill_gap(&mut self, codec: Codec, size: u64) -> Result<Option<(u64, Vec<u8>)>> {
        let Some(gap) = self.gap.take() else {
            return Ok(None);
        };
        let (plain, mut bytes, filler) = gap_header(&gap.entry, codec, size)?;
        // The header is at the front of a stream whose length was unknown when its content was
        // written.
        self.seek.set(gap.index, bytes.len(), plain.len());
        self.seek.set(gap.index + 1, filler.len(), 0);
        bytes.extend(filler);
        if let Some(parts) = &mut self.parts {
            parts.amend(gap.offset, &bytes);
        }
        // The header precedes everything that was counted so far, so its CRC is joined in front.
        self.crc32 = crc32_join(crc32(&plain), self.crc32, self.facts.plain_bytes);
        self.facts.plain_bytes += plain.len() as u64;
        self.facts.frames += 1;
        Ok(Some((gap.offset, bytes)))
    }

    /// Returns the last 10 bytes of a gzip file: an empty last block, CRC-32 and length of all
    /// compressed data.
    pub fn gzip_trailer(&self) -> Vec<u8> {
        let mut out = vec![3, 0];
        out.extend(self.crc32.to_le_bytes());
        out.extend((self.facts.plain_bytes as u32).to_le_bytes());
        out
    }
}

/// Returns the header of a stream of this size: plain, as stored, and the filler for the rest of
/// the gap.
fn gap_header(entry: &Entry, codec: Codec, size: u64) -> Result<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let entry = Entry {
        kind: EntryKind::File { size, map: None },
        ..entry.clone()
    };
    let mut plain = Vec::new();
    let mut bytes = Vec::new();
    pax::write_header(&entry, &mut plain)?;
    gap_codec(codec)
        .compressor()?
        .compress(&plain, &mut bytes)?;
    let filling = match gap_bytes(codec)?
        .checked_sub(bytes.len())
        .ok_or_else(long_name_error)?
    {
        0 => Vec::new(),
        rest => filler(rest).ok_or_else(long_name_error)?,
    };
    Ok((plain, bytes, filling))
}

fn long_name_error() -> Error {
    Error::new(
        ErrorKind::Usage,
        "cannot store a stream under this name: it is too long",
    )
}

/// Returns the checksums of parts as a root has them.
pub fn part_digits(checksums: &[u64]) -> String {
    checksums.iter().map(|crc| format!("{crc:016x}")).collect()
}

/// CRC-64 of each [`PART_BYTES`] of the stored bytes.
#[derive(Default)]
struct PartSums {
    done: Vec<u64>,
    open: Crc64,
    /// The replacement of zeros in the first part: the difference of both checksums, and the end of
    /// the replaced bytes.
    change: Option<(u64, u64)>,
}

impl PartSums {
    fn push(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let room = PART_BYTES - self.open.value().1;
            let (now, later) = data.split_at(data.len().min(room as usize));
            self.open.update(now);
            if now.len() as u64 == room {
                self.done.push(std::mem::take(&mut self.open).value().0);
            }
            data = later;
        }
    }

    fn checksums(&self) -> Vec<u64> {
        let (crc, len) = self.open.value();
        let mut all: Vec<_> = self
            .done
            .iter()
            .copied()
            .chain((len > 0).then_some(crc))
            .collect();
        let first_len = if self.done.is_empty() {
            len
        } else {
            PART_BYTES
        };
        if let (Some(first), Some((change, end))) = (all.first_mut(), self.change) {
            *first ^= crc64_join(change, 0, first_len - end);
        }
        all
    }

    /// Replaces zeros at `offset` in the first part by `bytes`.
    ///
    /// A CRC is linear: the difference of both runs, shifted over the bytes that follow, is the
    /// difference of the whole part. The number of bytes that follow is known only at the end.
    fn amend(&mut self, offset: u64, bytes: &[u8]) {
        let zeros = crc64(&vec![0; bytes.len()]);
        self.change = Some((crc64(bytes) ^ zeros, offset + bytes.len() as u64));
    }
}

/// An extended header, its record and the header itself: a stream always has all three, because of
/// its nanoseconds.
const GAP_PLAIN_BYTES: usize = 1536;

/// Returns the codec of the header. gzip has no filler, so its header is stored uncompressed, with
/// a length known in advance.
fn gap_codec(codec: Codec) -> Codec {
    if matches!(codec, Codec::Gzip(_)) {
        Codec::Gzip(0)
    } else {
        codec
    }
}

/// Returns the size of the gap for the header of a stream; in an archive with frames that can be
/// skipped, a skippable frame fills the rest.
fn gap_bytes(codec: Codec) -> Result<usize> {
    if !codec.is_plain_stream() {
        return Ok(4096);
    }
    let mut frame = Vec::new();
    gap_codec(codec)
        .compressor()?
        .compress(&[0; GAP_PLAIN_BYTES], &mut frame)?;
    Ok(frame.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::entry::Time;

    #[test]
    fn a_gap_is_filled_to_the_byte_and_the_checks_hold() {
        for codec in [
            Codec::Zstd(1),
            Codec::Lz4,
            Codec::None,
            Codec::Gzip(6),
            Codec::Tar,
        ] {
            let entry = Entry {
                path: b"db.sql".to_vec(),
                mtime: Time {
                    seconds: 1,
                    nanos: 1,
                },
                ..Entry::default()
            };
            let mut filling = SegmentInProgress::of_one_file(1, 1);
            let mut stored = b"front".to_vec();
            filling.add_stored(b"front");
            stored.extend(filling.leave_gap(entry, codec).unwrap());
            stored.extend(b"content");
            filling.add_stored(b"content");
            assert_eq!(
                filling.description().parts,
                "",
                "a root that comes before the header cannot know"
            );
            let (offset, bytes) = filling.fill_gap(codec, 9 << 30).unwrap().unwrap();
            stored[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            assert_eq!(filling.offset, stored.len() as u64, "{codec}");
            assert_eq!(
                filling.description().parts,
                format!("{:016x}", crc64(&stored)),
                "{codec}"
            );
            filling.add_stored(b"what follows when the length is known");
            stored.extend(b"what follows when the length is known");
            assert_eq!(
                filling.description().parts,
                format!("{:016x}", crc64(&stored)),
                "{codec}"
            );
        }
    }

    #[test]
    fn a_name_for_whose_header_there_is_no_room_is_refused_before_anything_is_read() {
        let entry = Entry {
            path: "\u{e4}".repeat(200).into(),
            ..Entry::default()
        };
        for (codec, fits) in [
            (Codec::Zstd(1), true),
            (Codec::None, true),
            (Codec::Gzip(6), false),
            (Codec::Tar, false),
        ] {
            let left = SegmentInProgress::of_one_file(1, 1).leave_gap(entry.clone(), codec);
            assert_eq!(
                left.map(drop).map_err(|error| error.kind),
                if fits { Ok(()) } else { Err(ErrorKind::Usage) },
                "{codec}"
            );
        }
    }

    #[test]
    fn parts_are_checked_one_by_one() {
        let stored: Vec<u8> = (0..PART_BYTES as usize * 2 + 77)
            .map(|i| (i / 3) as u8)
            .collect();
        let mut filling = SegmentInProgress::of_one_file(1, 1);
        stored.chunks(1_000_003).for_each(|bytes| {
            filling.add_stored(bytes);
        });
        let whole: String = stored
            .chunks(PART_BYTES as usize)
            .map(|part| format!("{:016x}", crc64(part)))
            .collect();
        assert_eq!(filling.description().parts, whole);
    }
}
