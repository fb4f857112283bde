//! Cuts the segments of a backup into records.

use super::{
    media::{LoadedTape, TapeProgress, TapeSpec},
    writer::TapeWriter,
};
use fullbore_crypt::{SealingWriter, UserRecipient};
use fullbore_format::{
    digest::hex,
    error::{Error, ErrorKind, Result},
    root::{Segment, TapePlace},
};
use fullbore_pipeline::sink::{Placed, Role, Sink, StoredSegment};
use fullbore_platform::queue::Locked;
use fullbore_tape::RingItem;
use std::{
    collections::BTreeMap,
    io::Write,
    mem,
    sync::{Arc, Mutex},
};

/// Digests of keys in a label: so many, of so many bytes each.
const KEYS: usize = 16;
const KEY_DIGEST_BYTES: usize = 8;

/// The only stream of a backup on tapes.
pub(super) struct TapeSink {
    spec: TapeSpec,
    recipients: Option<Arc<[UserRecipient]>>,
    progress: Arc<Mutex<TapeProgress>>,
    writer: TapeWriter,
    open: Option<OpenPart>,
    parts: BTreeMap<u32, WrittenPart>,
}

/// The part that is written.
struct OpenPart {
    number: u32,
    /// Seals the bytes, if the part is encrypted.
    sealing: Option<SealingWriter<Vec<u8>>>,
    /// Bytes before sealing.
    plain_bytes: u64,
    /// The record that is filled.
    record: Vec<u8>,
}

/// A part whose first record has a number.
struct WrittenPart {
    first: u64,
    /// Stored bytes; 0 until it has ended.
    bytes: u64,
    /// The header of an encrypted part.
    header: Vec<u8>,
}

impl TapeSink {
    pub(super) fn new(
        spec: &TapeSpec,
        id: &str,
        recipients: Option<Arc<[UserRecipient]>>,
        first: LoadedTape,
        progress: Arc<Mutex<TapeProgress>>,
    ) -> Self {
        let keys = recipients.iter().flat_map(|all| all.iter()).take(KEYS);
        let keys = keys.map(key_digest).collect();
        Self {
            spec: spec.clone(),
            recipients,
            writer: TapeWriter::new(spec, id, keys, first, progress.clone()),
            progress,
            open: None,
            parts: BTreeMap::new(),
        }
    }

    /// Returns the open part `number`; begins it if it is the next one.
    fn part(&mut self, number: u32) -> Result<OpenPart> {
        match self.open.take() {
            Some(open) if open.number == number => Ok(open),
            Some(_) => Err(Error::new(
                ErrorKind::Bug,
                "cannot write parts out of order",
            )),
            None => self.begin(number),
        }
    }

    fn begin(&mut self, number: u32) -> Result<OpenPart> {
        let seal = |to: &Arc<[UserRecipient]>| SealingWriter::new(Vec::new(), to);
        let sealing = self.recipients.as_ref().map(seal).transpose()?;
        let written = WrittenPart {
            first: self.writer.next(),
            bytes: 0,
            header: Vec::new(),
        };
        self.parts.insert(number, written);
        Ok(OpenPart {
            number,
            sealing,
            plain_bytes: 0,
            record: Vec::new(),
        })
    }

    fn write(&mut self, part: &mut OpenPart, mut bytes: &[u8]) -> Result<()> {
        let record_bytes = self.writer.record_bytes() as usize;
        while !bytes.is_empty() {
            if part.record.capacity() == 0 {
                part.record.reserve_exact(record_bytes);
            }
            let room = record_bytes - part.record.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            part.record.extend_from_slice(now);
            bytes = later;
            if part.record.len() == record_bytes {
                self.push_record(part)?;
            }
        }
        Ok(())
    }

    fn push_record(&mut self, part: &mut OpenPart) -> Result<()> {
        let record = mem::take(&mut part.record);
        self.writer.push(RingItem::Record(Arc::new(record)))
    }

    fn put_data(&mut self, part: &mut OpenPart, placed: &Placed) -> Result<()> {
        if placed.role != Role::Stream || placed.offset != part.plain_bytes {
            return Err(Error::new(
                ErrorKind::Bug,
                "cannot write a part out of order",
            ));
        }
        part.plain_bytes += placed.data.len() as u64;
        let Some(sealing) = &mut part.sealing else {
            return self.write(part, &placed.data);
        };
        sealing.write_all(&placed.data).map_err(not_sealed)?;
        let sealed = mem::take(sealing.get_mut());
        self.write_sealed(part, &sealed)
    }

    /// Writes sealed bytes. The header of the part is kept.
    fn write_sealed(&mut self, part: &mut OpenPart, sealed: &[u8]) -> Result<()> {
        let header_bytes = part.sealing.as_ref().map_or(0, SealingWriter::header_bytes) as usize;
        let written = self.parts.get_mut(&part.number).ok_or_else(no_part)?;
        let missing = header_bytes.saturating_sub(written.header.len());
        written
            .header
            .extend_from_slice(&sealed[..missing.min(sealed.len())]);
        self.write(part, sealed)
    }

    fn end(&mut self, mut part: OpenPart) -> Result<()> {
        if part.sealing.is_some() {
            let empty = mem::take(&mut part.sealing);
            let header_bytes = empty.as_ref().map_or(0, SealingWriter::header_bytes) as usize;
            let rest = empty.map(SealingWriter::finish).transpose();
            let rest = rest.map_err(not_sealed)?.unwrap_or_default();
            let written = self.parts.get_mut(&part.number).ok_or_else(no_part)?;
            let missing = header_bytes.saturating_sub(written.header.len());
            written
                .header
                .extend_from_slice(&rest[..missing.min(rest.len())]);
            self.write(&mut part, &rest)?;
        }
        let record_bytes = u64::from(self.writer.record_bytes());
        let last_bytes = part.record.len() as u64;
        let first = self.parts.get(&part.number).ok_or_else(no_part)?.first;
        let full_records = self.writer.next() - first;
        if last_bytes > 0 {
            self.push_record(&mut part)?;
        }
        let written = self.parts.get_mut(&part.number).ok_or_else(no_part)?;
        written.bytes = full_records * record_bytes + last_bytes;
        self.writer.push(RingItem::Mark)
    }
}

fn not_sealed(error: std::io::Error) -> Error {
    Error::io("could not encrypt a part of a tape", error)
}

fn no_part() -> Error {
    Error::new(
        ErrorKind::Bug,
        "a part of a tape is written that was not begun",
    )
}

/// Returns a short digest of a public key: with it, an owner of many keys finds the right one.
fn key_digest(recipient: &UserRecipient) -> String {
    let digest = blake3::hash(recipient.to_string().as_bytes());
    hex(&digest.as_bytes()[..KEY_DIGEST_BYTES])
}

impl Sink for TapeSink {
    fn put(&mut self, placed: Placed) -> Result<()> {
        let mut part = self.part(placed.segment)?;
        self.put_data(&mut part, &placed)?;
        self.open = Some(part);
        Ok(())
    }

    fn put_page(&mut self, page: &[u8]) -> Result<Option<u64>> {
        self.progress.locked().pages.add(page).map(Some)
    }

    /// A part takes more until it has its length, or the tape is behind its early warning. The next part
    /// is on the next tape then.
    fn has_room(&mut self, segment: u32, _bytes: u64) -> Result<bool> {
        if let Some(open) = self.open.as_ref().filter(|open| open.number == segment) {
            let is_short = open.plain_bytes < self.spec.options.part_bytes();
            return Ok(is_short && !self.writer.is_near_end());
        }
        if self.writer.is_near_end() {
            self.writer.change_tape()?;
        }
        Ok(true)
    }

    fn begins_volume(&mut self, _segment: u32) -> Result<bool> {
        Ok(self.writer.begins_later_tape())
    }

    fn note_places(&self, segments: &mut [Segment]) {
        for segment in segments {
            if let Some(part) = self.parts.get(&segment.number) {
                segment.tape = Some(TapePlace {
                    record_bytes: self.writer.record_bytes(),
                    has_catalog: false,
                    header: hex(&part.header),
                    extents: self.writer.extents(part.first, part.bytes),
                });
            }
        }
    }

    fn earlier_page(&mut self, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        self.progress.locked().pages.read(offset, bytes)
    }

    fn end_segment(&mut self) -> Result<()> {
        match self.open.take() {
            Some(part) => self.end(part),
            None => Ok(()),
        }
    }

    fn sync(&mut self) -> Result<Vec<StoredSegment>> {
        self.writer.settle()?;
        Ok(Vec::new())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<StoredSegment>> {
        self.end_segment()?;
        self.writer.finish()?;
        Ok(Vec::new())
    }
}
