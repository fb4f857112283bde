//! Gives every frame its place, and writes down where that is.
//!
//! Places are arithmetic: bytes are numbered as they pass, in order, so no sink is asked where it put them and the index is
//! the same for every sink. Here segments begin and end, and the service frames come in between.

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
        root::{BackupTotals, EntryName, FORMAT, Live, NotCaptured, PageAt, Segment},
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

/// What all streams of a backup share.
#[derive(Debug)]
pub struct StreamLayout {
    /// Name of the backup.
    pub backup: String,
    /// Is the backup compared with others?
    pub is_incremental: bool,
    /// Repository, or empty.
    pub repository: String,
    /// How frames are compressed.
    pub codec: Codec,
    /// Stored bytes after which a segment ends at the next member; `None` for a one-file archive.
    pub segment_bytes: Option<u64>,
    /// Bytes of a block of a file.
    pub block_bytes: u64,
    /// Length of the manifest so far.
    pub manifest_bytes: AtomicU64,
}

/// What a stream came to.
#[derive(Debug, Default, Clone)]
pub struct Laid {
    /// Its segments.
    pub segments: Vec<Segment>,
    /// Its pages.
    pub pages: Vec<PageAt>,
    /// How much of each of its segments later backups refer to that keep all that is in it.
    pub kept: Vec<u64>,
    /// What it refers to of earlier backups; how large those segments are is not known here.
    pub live: Vec<Live>,
    /// Its counts.
    pub totals: BackupTotals,
    /// Entries that were not captured as they were.
    pub not_captured: Vec<NotCaptured>,
}

/// Makes the root of a one-file archive from what its stream came to.
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
    /// The label of the open segment, until there is a frame that it can follow.
    label: Option<Vec<u8>>,
    late: bool,
    /// Files that the meter knows of.
    told: (u64, u64),
    laid: Laid,
}

impl Lay {
    /// Lay stream `stream` into `sink`.
    ///
    /// # Errors
    /// What the codec says of its level.
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

    /// What follows is in order by itself, not behind what came so far.
    ///
    /// # Errors
    /// The sink's.
    pub fn late(&mut self) -> Result<()> {
        self.pages.end();
        self.store_pages()?;
        self.late = true;
        Ok(())
    }

    /// The next frame of the stream.
    ///
    /// # Errors
    /// The sink's.
    pub fn frame(&mut self, frame: Frame) -> Result<()> {
        if frame.data.is_empty() && frame.parts.is_empty() {
            return Ok(()); // a piece of a file that could not be opened, or of a stream that had ended
        }
        let (ends_member, endless) = (frame.ends_member, is_endless(&frame));
        // What is only referred to needs no segment.
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

    /// Make durable what has passed; gives what a root can say of it. The page ends here: what it describes would be lost
    /// without it. A large file that is under way goes on in the next.
    ///
    /// # Errors
    /// The sink's.
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

    /// End the stream. `root` makes the root of a one-file archive.
    ///
    /// # Errors
    /// The sink's.
    pub fn finish(mut self, root: Option<MakeRoot<'_>>) -> Result<Laid> {
        if self.stream == 1
            && !self.filling.is_open()
            && self.laid.segments.is_empty()
            && self.laid.pages.is_empty()
            && self.pages.is_empty()
        {
            self.begin()?; // an empty source is a valid archive all the same
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

    /// The header of a stream: its place is kept, and filled when the length is known.
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
            format: FORMAT,
            repository: self.shared.repository.clone(),
            backup: self.shared.backup.clone(),
            stream: self.stream,
            number: self.filling.number(),
            codec: self.shared.codec.name().to_owned(),
            is_incremental: self.shared.is_incremental,
        };
        self.label = Some(label.frame());
        // What stands before everything else, so that tools which look at the first bytes see the codec.
        match self.shared.codec {
            Codec::Zstd(_) | Codec::None => self.put(EMPTY_ZSTD.to_vec().into(), 0),
            Codec::Gzip(_) => self.put(GZIP_HEADER.to_vec().into(), 0),
            // To bsdtar an empty frame of lz4 is the end of the archive: there the label follows the first frame of data.
            Codec::Lz4 | Codec::Tar => Ok(()),
        }
    }

    /// Put the label, if it is still to be put.
    fn label(&mut self) -> Result<()> {
        self.label
            .take()
            .map_or(Ok(()), |label| self.service(&label, true).map(drop))
    }

    /// Close the segment: the end of the tar, its last page, the root if this is a one-file archive, the seek table.
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

    /// Store the pages that are complete, or say where an earlier backup has them.
    fn store_pages(&mut self) -> Result<()> {
        if !self.filling.is_open() && self.pages.has_own() {
            self.begin()?; // a copy of each page stands in a segment
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

    /// Put a service frame; gives the offset of its payload. The seek table lists all but itself. A plain stream has none.
    fn service(&mut self, frame: &[u8], listed: bool) -> Result<u64> {
        if self.shared.codec.is_plain_stream() {
            return Ok(0);
        }
        let data = Buf::from(frame.to_vec());
        let offset = if listed {
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

/// Is it the header of a stream whose length is known only at its end? Of one that an earlier backup has there is none.
fn is_endless(frame: &Frame) -> bool {
    frame
        .parts
        .last()
        .is_some_and(|part| matches!(&part.what, FrameContent::Head(_, file) if file.is_endless() && file.known.is_none()))
}

/// Deflate, no name, no time, made on Unix: the same bytes for the same input.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
