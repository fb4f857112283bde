//! Assigns every frame its place in a segment, and records that place.
//!
//! Places are computed: bytes are numbered as they pass, in order, so no sink is asked for a
//! position and the index is the same for every sink. This file also starts and ends segments, and
//! writes the service frames between the data.

use super::{
    pages::{ClosedPage, PageWriter, Tell},
    segment::Filling,
};
use crate::{
    error::Result,
    format::{
        digest::crc32,
        page::{FrameAt, ManifestPage, SegmentId},
        pax,
        root::{BackupTotals, EntryName, Live, NotCaptured, PageAt, Segment},
        segment::{EMPTY_ZSTD, Label, Locator, SERVICE_HEADER_BYTES, Service},
        sizes,
    },
    frame::{Buf, Frame, FrameContent},
    metrics::meter::{Meter, timed},
    sink::{Placed, Role, Sink},
    stage::codec::{Codec, Compressor},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Settings that all streams of a backup share.
#[derive(Debug)]
pub struct StreamLayout {
    /// ID of the backup.
    pub backup: String,
    /// Version of the format, see [`crate::format::root::FORMAT`].
    pub format: u32,
    /// ID of the repository, or empty.
    pub repository: String,
    /// Compression of frames.
    pub codec: Codec,
    /// Stored bytes after which a segment ends at the next member; `None` for a one-file archive.
    pub segment_bytes: Option<u64>,
    /// Block size of files, in bytes.
    pub block_bytes: u64,
    /// Length of the manifest so far.
    pub manifest_bytes: AtomicU64,
}

/// The outcome of a stream.
#[derive(Debug, Default, Clone)]
pub struct Laid {
    /// The segments of the stream.
    pub segments: Vec<Segment>,
    /// The pages of the stream.
    pub pages: Vec<PageAt>,
    /// For each segment, the bytes that a later backup refers to if nothing changes.
    pub kept: Vec<u64>,
    /// References to earlier backups. The sizes of their segments are not known here.
    pub live: Vec<Live>,
    /// The totals of the stream.
    pub totals: BackupTotals,
    /// Entries that were not captured as they were.
    pub not_captured: Vec<NotCaptured>,
}

/// Makes the root of a one-file archive from the outcome of its stream.
pub type MakeRoot<'a> = &'a (dyn Fn(&Laid) -> Result<Vec<u8>> + Sync);

/// Lays one stream into its sink.
pub struct Lay {
    shared: Arc<StreamLayout>,
    meter: Arc<Meter>,
    stream: u32,
    sink: Box<dyn Sink>,
    compressor: Compressor,
    pages: PageWriter,
    filling: Filling,
    /// The label of the open segment, until it can be written.
    label: Option<Vec<u8>>,
    late: bool,
    /// Entries and files already counted by the meter.
    told: (u64, u64),
    laid: Laid,
}

impl Lay {
    /// Prepares stream `stream` for `sink`.
    ///
    /// # Errors
    /// Errors of the codec about its level.
    pub fn new(
        shared: Arc<StreamLayout>,
        meter: Arc<Meter>,
        stream: u32,
        sink: Box<dyn Sink>,
        tell: Tell,
    ) -> Result<Self> {
        let compressor = shared.codec.compressor()?;
        let filling = Filling::new(stream, 0);
        let (pages, laid) = (
            PageWriter::new(stream, shared.block_bytes, tell),
            Laid::default(),
        );
        Ok(Self {
            shared,
            meter,
            stream,
            sink,
            compressor,
            pages,
            filling,
            label: None,
            late: false,
            told: (0, 0),
            laid,
        })
    }

    /// Starts a new sequence: the entries that follow are in order among themselves.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn late(&mut self) -> Result<()> {
        self.pages.end();
        self.store_pages()?;
        self.late = true;
        Ok(())
    }

    /// Lays the next frame of the stream.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn frame(&mut self, frame: Frame) -> Result<()> {
        if frame.data.is_empty() && frame.parts.is_empty() {
            return Ok(()); // a piece of an unreadable file, or after the end of a stream
        }
        let (ends_member, endless) = (frame.ends_member, is_endless(&frame));
        // Data of earlier backups needs no segment.
        if !self.filling.is_open() && (endless || !frame.data.is_empty()) {
            self.begin()?;
        }
        if endless {
            self.gap(frame)?
        } else {
            self.data(frame)?
        }
        if self.pages.is_full() {
            self.pages.close_page();
        }
        self.store_pages()?;
        let full = self
            .shared
            .segment_bytes
            .is_some_and(|bytes| self.filling.offset >= bytes);
        if ends_member && full && self.filling.is_open() {
            self.end(None)
        } else {
            Ok(())
        }
    }

    /// Makes all data so far durable. Returns its description for a root. The page ends here,
    /// because its records would otherwise be missing; an unfinished large file continues on the
    /// next page.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn checkpoint(&mut self) -> Result<Laid> {
        self.pages.close_page();
        self.store_pages()?;
        timed(&self.meter.sink.busy, || self.sink.sync())?;
        self.count();
        let mut laid = self.laid.clone();
        if self.filling.is_open() {
            laid.segments.push(self.filling.facts());
        }
        Ok(laid)
    }

    /// Ends the stream. `root` makes the root of a one-file archive.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn finish(mut self, root: Option<MakeRoot<'_>>) -> Result<Laid> {
        if self.stream == 1
            && !self.filling.is_open()
            && self.laid.segments.is_empty()
            && self.laid.pages.is_empty()
            && self.pages.is_empty()
        {
            self.begin()?; // an empty source is a valid archive too
        }
        self.pages.end();
        self.store_pages()?;
        if self.filling.is_open() {
            self.end(root)?;
        }
        self.count();
        timed(&self.meter.sink.busy, || self.sink.finish())?;
        Ok(self.laid)
    }

    fn count(&mut self) {
        self.laid.totals = self.pages.totals.clone();
        self.laid.totals.plain_bytes =
            sizes::sum(self.laid.segments.iter().map(|segment| segment.plain_bytes));
        self.laid.totals.stored_bytes =
            sizes::sum(self.laid.segments.iter().map(|segment| segment.bytes));
        self.laid.not_captured.clone_from(&self.pages.not_captured);
        self.laid.live = self.pages.live();
        let id = |segment: &Segment| SegmentId {
            backup: String::new(),
            stream: self.stream,
            number: segment.number,
        };
        self.laid.kept = self
            .laid
            .segments
            .iter()
            .map(|segment| self.pages.kept_of(&id(segment)))
            .collect();
    }

    fn data(&mut self, frame: Frame) -> Result<()> {
        let Frame {
            data,
            plain_len,
            parts,
            crc32,
            ..
        } = frame;
        let at = FrameAt {
            segment: 0,
            offset: self.filling.offset,
            stored_len: data.len() as u32,
            plain_len,
        };
        self.meter
            .bytes
            .fetch_add(parts.iter().map(|part| u64::from(part.len)).sum(), Relaxed);
        parts.into_iter().for_each(|part| self.pages.add(at, part));
        let BackupTotals { entries, files, .. } = self.pages.totals;
        let before = std::mem::replace(&mut self.told, (entries, files));
        self.meter.entries.fetch_add(entries - before.0, Relaxed);
        self.meter.files.fetch_add(files - before.1, Relaxed);
        if data.is_empty() {
            return Ok(());
        }
        self.filling.plain(plain_len, crc32);
        self.put(data, plain_len as usize)
    }

    /// Reserves a gap for the header of a stream; it is filled when the length is known.
    fn gap(&mut self, frame: Frame) -> Result<()> {
        for part in frame.parts {
            if let FrameContent::Head(entry, _) = &part.what {
                let gap = self.filling.leave_gap(entry.clone(), self.shared.codec)?;
                self.send(
                    self.filling.offset - gap.len() as u64,
                    gap.into(),
                    Role::Stream,
                )?;
            }
            let at = FrameAt {
                segment: 0,
                offset: self.filling.offset,
                stored_len: 0,
                plain_len: 0,
            };
            self.pages.add(at, part);
        }
        self.label()
    }

    fn begin(&mut self) -> Result<()> {
        self.filling = Filling::new(self.stream, self.filling.number() + 1);
        let label = Label {
            format: self.shared.format,
            repository: self.shared.repository.clone(),
            backup: self.shared.backup.clone(),
            stream: self.stream,
            number: self.filling.number(),
            codec: self.shared.codec.name().to_owned(),
        };
        self.label = Some(label.frame());
        // The first bytes show the codec to tools that detect it.
        match self.shared.codec {
            Codec::Zstd(_) => self.put(EMPTY_ZSTD.to_vec().into(), 0),
            Codec::Gzip(_) => self.put(GZIP_HEADER.to_vec().into(), 0),
            // bsdtar takes an empty lz4 frame for the end of the archive: so with lz4, the label
            // follows the first data frame.
            Codec::Lz4 => Ok(()),
            Codec::None => self.label(),
        }
    }

    /// Writes the label if it is still pending.
    fn label(&mut self) -> Result<()> {
        self.label
            .take()
            .map_or(Ok(()), |label| self.service(&label, true).map(drop))
    }

    /// Closes the segment: end of the tar, last page, root of a one-file archive, seek table.
    fn end(&mut self, root: Option<MakeRoot<'_>>) -> Result<()> {
        self.tar_end()?;
        self.pages.close_page();
        self.store_pages()?;
        if let Some(root) = root {
            self.laid.segments.push(self.filling.facts());
            self.count();
            let root = root(&self.laid)?;
            self.laid.segments.pop();
            let offset = self.service(&Service::Root.frame(&root), true)?;
            self.service(
                &Locator {
                    offset,
                    len: root.len() as u64,
                }
                .frame(),
                true,
            )?;
        }
        self.service(&self.filling.seek.frame(), false)?;
        self.laid.segments.push(self.filling.facts());
        self.filling.close();
        Ok(())
    }

    fn tar_end(&mut self) -> Result<()> {
        if let Some((offset, bytes)) = self
            .filling
            .fill_gap(self.shared.codec, self.pages.totals.bytes)?
        {
            self.send(offset, bytes.into(), Role::Amend)?;
        }
        let mut data = Vec::new();
        self.compressor.compress(&pax::END, &mut data)?;
        self.filling
            .plain(pax::END.len() as u32, Some(crc32(&pax::END)));
        self.put(data.into(), pax::END.len())?;
        match self.shared.codec {
            Codec::Gzip(_) => self.put(self.filling.gzip_trailer().into(), 0),
            _ => Ok(()),
        }
    }

    /// Stores complete pages; of a page of an earlier backup only its place.
    fn store_pages(&mut self) -> Result<()> {
        if !self.filling.is_open() && self.pages.has_own() {
            self.begin()?; // a segment holds a copy of each page
        }
        let own = SegmentId {
            backup: String::new(),
            stream: self.stream,
            number: self.filling.number(),
        };
        for closed in self.pages.take(&own) {
            match closed {
                ClosedPage::Own(page) => self.store_page(&page)?,
                ClosedPage::Earlier(at) => self.laid.pages.push(PageAt::clone(&at)),
            }
        }
        Ok(())
    }

    fn store_page(&mut self, page: &ManifestPage) -> Result<()> {
        let first = EntryName(
            page.records
                .first()
                .map(|record| record.entry.path.clone())
                .unwrap_or_default(),
        );
        let stored = page.encode()?;
        let bytes = stored.len() as u64;
        let manifest_offset = self
            .shared
            .segment_bytes
            .map(|_| self.shared.manifest_bytes.fetch_add(bytes, Relaxed));
        let offset = self.service(&Service::Page.frame(&stored), true)?;
        self.laid.pages.push(PageAt {
            backup: String::new(),
            stream: self.stream,
            late: self.late,
            first,
            entries: page.records.len() as u64,
            manifest_offset,
            segment: self.filling.number(),
            offset,
            bytes,
            digest: blake3::hash(&stored).to_hex().to_string(),
        });
        manifest_offset.map_or(Ok(()), |at| self.send(at, stored.into(), Role::Page))
    }

    /// Put a service frame, in the segment or beside it; gives the offset of its payload. The seek table lists all but itself.
    fn service(&mut self, frame: &[u8], listed: bool) -> Result<u64> {
        let data = Buf::from(frame.to_vec());
        let offset = if !self.shared.codec.skips() {
            let offset = self.filling.beside(&data);
            self.send(offset, data, Role::Side)?;
            offset
        } else if listed {
            let offset = self.filling.offset;
            self.put(data, 0)?;
            offset
        } else {
            let offset = self.filling.stored(&data);
            self.send(offset, data, Role::Stream)?;
            offset
        };
        Ok(offset + SERVICE_HEADER_BYTES as u64)
    }

    fn put(&mut self, data: Buf, plain_len: usize) -> Result<()> {
        self.filling.seek.push(data.len(), plain_len);
        let offset = self.filling.stored(&data);
        self.meter.plain_bytes.fetch_add(plain_len as u64, Relaxed);
        self.send(offset, data, Role::Stream)?;
        self.label()
    }

    fn send(&mut self, offset: u64, data: Buf, role: Role) -> Result<()> {
        self.meter
            .stored_bytes
            .fetch_add(data.len() as u64, Relaxed);
        let placed = Placed {
            segment: self.filling.number(),
            offset,
            data,
            role,
        };
        timed(&self.meter.sink.busy, || self.sink.put(placed))
    }
}

/// Returns whether the frame ends in the header of a stream of unknown length. A stream that an
/// earlier backup has needs no header.
fn is_endless(frame: &Frame) -> bool {
    frame
        .parts
        .last()
        .is_some_and(|part| matches!(&part.what, FrameContent::Head(_, file) if file.is_endless() && file.known.is_none()))
}

/// Deflate, no name, no time, made on Unix: the same bytes for the same input.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
