//! Assigns every frame its place in a segment, and records that place.
//!
//! Places are computed: bytes are numbered as they pass, in order, so no sink is asked for a
//! position and the index is the same for every sink. This file also starts and ends segments, and
//! writes the service frames between the data.

mod error_budget;
mod volumes;

pub use error_budget::ErrorBudget;

use super::{
    pages::{ClosedPage, EntryListener, PageWriter, RecordOrder},
    segment::{SegmentInProgress, part_digits},
};
use crate::{
    frame::{Buf, Frame, FrameContent},
    sink::{Placed, Role, Sink, StoredSegment},
    stage::codec::{Codec, Compressor},
};
use fullbore_format::{
    content_list::encode_page,
    digest::crc32,
    entry::{Entry, EntryKind},
    error::{Error, ErrorKind, Result},
    page::{FrameAt, ManifestPage, SegmentId},
    pax,
    root::{BackupTotals, EntryName, FORMAT, Live, NotCaptured, PageAt, Segment},
    segment::{EMPTY_ZSTD, Label, Locator, SERVICE_HEADER_BYTES, Service},
    sizes,
};
use fullbore_platform::metrics::meter::Meter;
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// Settings that all streams of a backup share.
#[derive(Debug)]
pub struct StreamLayout {
    pub backup: String,
    /// Whether the backup is compared with others.
    pub is_incremental: bool,
    /// ID of the repository, or empty.
    pub repository: String,
    /// Compression of frames.
    pub codec: Codec,
    /// Stored bytes after which a segment ends at the next member; `None` for a one-file archive.
    pub segment_bytes: Option<u64>,
    /// Whether the segments are volumes, each with a root.
    pub is_in_volumes: bool,
    /// Whether the last segment has the pages of all others and nothing else: on a tape it is read first.
    pub ends_with_catalog: bool,
    /// Block size of files, in bytes.
    pub block_bytes: u64,
    /// Whether the contents of files are listed, for backups of other sources.
    pub lists_contents: bool,
    /// How many entries may be unreadable.
    pub errors: ErrorBudget,
}

#[derive(Debug, Default, Clone)]
pub struct StreamOutcome {
    pub segments: Vec<Segment>,
    pub pages: Vec<PageAt>,
    /// For each segment, the bytes that a later backup refers to if nothing changes.
    pub kept: Vec<u64>,
    /// References to earlier backups. The sizes of their segments are not known here.
    pub live: Vec<Live>,
    pub totals: BackupTotals,
    /// Entries that were not captured as they were.
    pub not_captured: Vec<NotCaptured>,
}

/// Makes the root of a one-file archive from the outcome of its stream.
pub type MakeRoot<'a> = &'a (dyn Fn(&StreamOutcome, RootUse) -> Result<Vec<u8>> + Sync);

/// What a root in a stream describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootUse {
    /// The whole backup.
    Last,
    /// The volumes so far.
    Interim,
}

/// Lays one stream into its sink.
pub struct StreamWriter {
    shared: Arc<StreamLayout>,
    meter: Arc<Meter>,
    stream: u32,
    sink: Box<dyn Sink>,
    compressor: Compressor,
    pages: PageWriter,
    filling: SegmentInProgress,
    /// The label of the open segment, until it can be written.
    label: Option<Vec<u8>>,
    /// The entry of a stream of unknown length, whose header is segment 1 of a repository.
    header: Option<Entry>,
    /// Whether the last frame ended inside a member of the tar.
    is_in_member: bool,
    late: bool,
    /// Bytes of a root without segments and pages, once they are known.
    bare_root_bytes: Option<u64>,
    /// The segments that begin with the pages of all earlier ones.
    catalogs: Vec<u32>,
    /// Entries and files already counted by the meter.
    told: (u64, u64),
    /// Unreadable entries already counted by the budget.
    told_errors: u64,
    laid: StreamOutcome,
}

impl StreamWriter {
    /// Prepares stream `stream` for `sink`.
    ///
    /// # Errors
    /// Errors of the codec about its level.
    pub fn new(
        shared: Arc<StreamLayout>,
        meter: Arc<Meter>,
        stream: u32,
        sink: Box<dyn Sink>,
        tell: EntryListener,
        order: RecordOrder,
    ) -> Result<Self> {
        let compressor = shared.codec.compressor()?;
        let filling = SegmentInProgress::new(stream, 0);
        let pages = PageWriter::new(stream, shared.block_bytes, tell, order);
        let laid = StreamOutcome::default();
        Ok(Self {
            shared,
            meter,
            stream,
            sink,
            compressor,
            pages,
            filling,
            label: None,
            header: None,
            is_in_member: false,
            late: false,
            bare_root_bytes: None,
            catalogs: Vec::new(),
            told: (0, 0),
            told_errors: 0,
            laid,
        })
    }

    /// Starts a new sequence: the entries that follow are in order among themselves.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn begin_late_sequence(&mut self) -> Result<()> {
        self.end_sequence()?;
        self.late = true;
        Ok(())
    }

    /// Stores the pages of a sequence that had to be sorted. The source learns then what is stored.
    ///
    /// # Errors
    /// Errors of the sink; the system's, about a temporary file.
    pub fn store_sorted_pages(&mut self) -> Result<()> {
        while self.pages.add_sorted_page()? {
            self.count_entries();
            self.store_pages()?;
        }
        self.count_entries();
        Ok(())
    }

    /// Stores the last pages of a sequence.
    fn end_sequence(&mut self) -> Result<()> {
        self.pages.end();
        self.store_pages()
    }

    /// Lays the next frame of the stream. `root` makes the root of a volume that ends before it.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn frame(&mut self, frame: Frame, root: Option<MakeRoot<'_>>) -> Result<()> {
        if frame.data.is_empty() && frame.parts.is_empty() {
            return Ok(()); // a piece of an unreadable file, or after the end of a stream
        }
        let ends_member = frame.ends_member;
        let endless = ends_in_open_header(&frame);
        self.make_room(&frame, root)?;
        self.is_in_member = !ends_member;
        if endless && self.shared.segment_bytes.is_some() {
            return self.hold_header(frame);
        }
        // Data of earlier backups needs no segment.
        if !self.filling.is_open() && (endless || !frame.data.is_empty()) {
            self.begin_segment()?;
        }
        if endless {
            self.reserve_gap(frame)?
        } else {
            self.add_data(frame)?
        }
        if self.pages.is_full() {
            self.pages.close_page();
        }
        self.pages.check_sorter()?;
        self.check_errors()?;
        self.store_pages()?;
        let full = self
            .shared
            .segment_bytes
            .is_some_and(|bytes| self.filling.offset >= bytes);
        if ends_member && full && self.filling.is_open() {
            self.end_segment(None, RootUse::Interim)
        } else {
            Ok(())
        }
    }

    /// Returns whether the last frame ended inside a member of the tar.
    pub fn is_in_member(&self) -> bool {
        self.is_in_member
    }

    /// Ends the open segment and makes all data so far durable. Returns its description for a root.
    ///
    /// The page ends here, because its records would otherwise be missing. A large file continues
    /// on the next page and in the next segment: the tar of this segment has no end then, and that
    /// of the next one begins inside the member.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn checkpoint(&mut self) -> Result<StreamOutcome> {
        self.pages.close_page();
        self.store_pages()?;
        if self.filling.is_open() {
            self.end_segment(None, RootUse::Interim)?;
        }
        let stored = self.meter.sink.work(|| self.sink.sync())?;
        self.note_stored(stored)?;
        self.update_totals();
        let mut laid = self.laid.clone();
        // The manifest is stored at the end of the backup.
        for page in laid.pages.iter_mut().filter(|page| page.backup.is_empty()) {
            page.manifest_offset = None;
        }
        Ok(laid)
    }

    /// Ends the stream. `root` makes the root of a one-file archive.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn finish(mut self, root: Option<MakeRoot<'_>>) -> Result<StreamOutcome> {
        if self.stream == 1
            && !self.filling.is_open()
            && self.laid.segments.is_empty()
            && self.laid.pages.is_empty()
            && self.pages.is_empty()
        {
            self.begin_segment()?; // an empty source is a valid archive too
        }
        self.end_sequence()?;
        self.is_in_member = false;
        if self.shared.ends_with_catalog {
            self.end_with_catalog(root)?;
        } else if self.filling.is_open() {
            self.end_segment(root, RootUse::Last)?;
        }
        if let Some(entry) = self.header.take() {
            self.write_header_segment(entry)?;
        }
        self.update_totals();
        let Self {
            meter,
            sink,
            mut laid,
            ..
        } = self;
        let stored = meter.sink.work(|| sink.finish())?;
        note_checksums(&mut laid, stored)?;
        Ok(laid)
    }

    fn note_stored(&mut self, stored: Vec<StoredSegment>) -> Result<()> {
        note_checksums(&mut self.laid, stored)
    }

    fn update_totals(&mut self) {
        self.laid.totals = self.pages.totals.clone();
        self.laid.totals.plain_bytes =
            sizes::sum(self.laid.segments.iter().map(|segment| segment.plain_bytes));
        self.laid.totals.stored_bytes =
            sizes::sum(self.laid.segments.iter().map(|segment| segment.bytes));
        self.laid.not_captured.clone_from(&self.pages.not_captured);
        self.laid.live = self.pages.references_to_earlier();
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

    fn add_data(&mut self, frame: Frame) -> Result<()> {
        let Frame {
            data,
            plain_len,
            parts,
            crc32,
            ..
        } = frame;
        let frame_at = FrameAt {
            segment: 0,
            offset: self.filling.offset,
            stored_len: data.len() as u32,
            plain_len,
        };
        self.meter
            .bytes
            .fetch_add(parts.iter().map(|part| u64::from(part.len)).sum(), Relaxed);
        parts
            .into_iter()
            .for_each(|part| self.pages.add(frame_at, part));
        self.count_entries();
        // A frame of unchanged files has records and no bytes: only the pages have changed.
        if data.is_empty() {
            return Ok(());
        }
        self.filling.add_plain(plain_len, crc32);
        self.write_frame(data, plain_len as usize)
    }

    /// Adds the entries since the last call to the meter, which all streams share.
    fn count_entries(&mut self) {
        let BackupTotals { entries, files, .. } = self.pages.totals;
        let previous = std::mem::replace(&mut self.told, (entries, files));
        self.meter.entries.fetch_add(entries - previous.0, Relaxed);
        self.meter.files.fetch_add(files - previous.1, Relaxed);
    }

    /// Counts entries that could not be read.
    fn check_errors(&mut self) -> Result<()> {
        let found = self.pages.totals.unreadable;
        let new = found.saturating_sub(std::mem::replace(&mut self.told_errors, found));
        self.shared.errors.add(new)
    }

    /// Keeps the header of a stream until its length is known. Its content begins in segment 2.
    fn hold_header(&mut self, frame: Frame) -> Result<()> {
        if self.filling.number() > 0 {
            let message = "cannot store a stream of unknown length behind other entries";
            return Err(Error::new(ErrorKind::Bug, message));
        }
        self.filling = SegmentInProgress::new(self.stream, 1);
        self.filling.close();
        for part in frame.parts {
            if let FrameContent::Head(entry, _) = &part.what {
                self.header = Some(entry.clone());
            }
            self.pages.add(NO_FRAME, part);
        }
        Ok(())
    }

    /// Writes segment 1, which holds only the header of a stream.
    fn write_header_segment(&mut self, entry: Entry) -> Result<()> {
        let size = self.pages.totals.bytes;
        let entry = Entry {
            kind: EntryKind::File { size, map: None },
            ..entry
        };
        let mut plain = Vec::new();
        pax::write_header(&entry, &mut plain)?;
        let mut data = Vec::new();
        self.compressor.compress(&plain, &mut data)?;
        self.open_segment(1)?;
        self.filling
            .add_plain(plain.len() as u32, Some(crc32(&plain)));
        self.write_frame(data.into(), plain.len())?;
        self.write_service(&self.filling.seek.frame(), false)?;
        self.laid.segments.insert(0, self.filling.description());
        self.close_segment()
    }

    fn close_segment(&mut self) -> Result<()> {
        self.filling.close();
        self.meter.sink.work(|| self.sink.end_segment())
    }

    /// Reserves a gap for the header of a stream; it is filled when the length is known.
    fn reserve_gap(&mut self, frame: Frame) -> Result<()> {
        for part in frame.parts {
            if let FrameContent::Head(entry, _) = &part.what {
                let gap = self.filling.leave_gap(entry.clone(), self.shared.codec)?;
                self.send_to_sink(
                    self.filling.offset - gap.len() as u64,
                    gap.into(),
                    Role::Stream,
                )?;
            }
            self.pages.add(NO_FRAME, part);
        }
        self.write_label()
    }

    fn begin_segment(&mut self) -> Result<()> {
        let number = self.filling.number() + 1;
        let has_catalog = self.shared.is_in_volumes && self.sink.begins_volume(number)?;
        self.open_segment(number)?;
        if has_catalog {
            self.write_catalog()?;
        }
        Ok(())
    }

    fn open_segment(&mut self, number: u32) -> Result<()> {
        self.filling = if self.shared.segment_bytes.is_some() {
            SegmentInProgress::new(self.stream, number)
        } else {
            SegmentInProgress::of_one_file(self.stream, number)
        };
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
        self.pages.begin_segment(number);
        // The first bytes show the codec to tools that detect it.
        match self.shared.codec {
            Codec::Zstd(_) | Codec::Auto | Codec::None => {
                self.write_frame(EMPTY_ZSTD.to_vec().into(), 0)
            }
            Codec::Gzip(_) => self.write_frame(GZIP_HEADER.to_vec().into(), 0),
            // bsdtar takes an empty lz4 frame for the end of the archive: so with lz4, the label
            // follows the first data frame.
            Codec::Lz4 | Codec::Tar => Ok(()),
        }
    }

    /// Writes the label if it is still pending.
    fn write_label(&mut self) -> Result<()> {
        self.label
            .take()
            .map_or(Ok(()), |label| self.write_service(&label, true).map(drop))
    }

    /// Closes the segment: end of the tar unless a member continues, last page, root of a one-file
    /// archive, seek table.
    fn end_segment(&mut self, root: Option<MakeRoot<'_>>, of: RootUse) -> Result<()> {
        if !self.is_in_member {
            self.write_tar_end()?;
        }
        self.pages.close_page();
        self.store_pages()?;
        if let Some(root) = root {
            self.laid.segments.push(self.filling.description());
            self.note_places();
            self.update_totals();
            // The root describes its own segment as it is before the root. The segment is described
            // again when it ends.
            let root = root(&self.laid, of)?;
            self.laid.segments.pop();
            let offset = self.write_service(&Service::Root.frame(&root), true)?;
            self.write_service(
                &Locator {
                    offset,
                    len: root.len() as u64,
                }
                .frame(),
                true,
            )?;
        }
        self.write_service(&self.filling.seek.frame(), false)?;
        self.laid.segments.push(self.filling.description());
        self.close_segment()
    }

    fn write_tar_end(&mut self) -> Result<()> {
        if let Some((offset, bytes)) = self
            .filling
            .fill_gap(self.shared.codec, self.pages.totals.bytes)?
        {
            self.send_to_sink(offset, bytes.into(), Role::Amend)?;
        }
        let mut data = Vec::new();
        self.compressor.compress(&pax::END, &mut data)?;
        self.filling
            .add_plain(pax::END.len() as u32, Some(crc32(&pax::END)));
        self.write_frame(data.into(), pax::END.len())?;
        match self.shared.codec {
            Codec::Gzip(_) => self.write_frame(self.filling.gzip_trailer().into(), 0),
            _ => Ok(()),
        }
    }

    /// Stores complete pages; of a page of an earlier backup only its place.
    fn store_pages(&mut self) -> Result<()> {
        if !self.filling.is_open() && self.pages.has_own_pages() {
            self.begin_segment()?; // a segment holds a copy of each page
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
        let offset = self.write_service(&Service::Page.frame(&stored), true)?;
        // In a repository the manifest has a copy of the page: if one is damaged, the other is
        // read.
        let manifest_offset = self.meter.sink.work(|| self.sink.put_page(&stored))?;
        if let Some(offset) = manifest_offset {
            self.meter.stored_bytes.fetch_add(bytes, Relaxed);
            if self.shared.lists_contents {
                self.sink.put_contents(&encode_page(page, offset))?;
            }
        }
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
        Ok(())
    }

    /// Writes a service frame. Returns the offset of its payload. The seek table lists all frames
    /// but itself. A plain stream has no service frames.
    fn write_service(&mut self, frame: &[u8], listed: bool) -> Result<u64> {
        if self.shared.codec.is_plain_stream() {
            return Ok(0);
        }
        let data = Buf::from(frame.to_vec());
        let offset = if listed {
            let offset = self.filling.offset;
            self.write_frame(data, 0)?;
            offset
        } else {
            let offset = self.filling.add_stored(&data);
            self.send_to_sink(offset, data, Role::Stream)?;
            offset
        };
        Ok(offset + SERVICE_HEADER_BYTES as u64)
    }

    fn write_frame(&mut self, data: Buf, plain_len: usize) -> Result<()> {
        self.filling.seek.push(data.len(), plain_len);
        let offset = self.filling.add_stored(&data);
        self.meter.plain_bytes.fetch_add(plain_len as u64, Relaxed);
        self.send_to_sink(offset, data, Role::Stream)?;
        self.write_label()
    }

    fn send_to_sink(&mut self, offset: u64, data: Buf, role: Role) -> Result<()> {
        self.meter
            .stored_bytes
            .fetch_add(data.len() as u64, Relaxed);
        let placed = Placed {
            segment: self.filling.number(),
            offset,
            data,
            role,
        };
        self.meter.sink.work(|| self.sink.put(placed))
    }
}

/// The place of a part without content.
const NO_FRAME: FrameAt = FrameAt {
    segment: 0,
    offset: 0,
    stored_len: 0,
    plain_len: 0,
};

/// Writes the checksums of stored segments into their descriptions.
fn note_checksums(laid: &mut StreamOutcome, stored: Vec<StoredSegment>) -> Result<()> {
    for stored in stored {
        let described = laid
            .segments
            .iter_mut()
            .find(|segment| segment.number == stored.number && segment.bytes == stored.bytes);
        let Some(segment) = described else {
            let number = stored.number;
            let message = format!("segment {number} was not stored as it was laid");
            return Err(Error::new(ErrorKind::Bug, message));
        };
        segment.parts = part_digits(&stored.parts);
    }
    Ok(())
}

/// Returns whether the frame ends in the header of a stream of unknown length. A stream that an
/// earlier backup has needs no header.
fn ends_in_open_header(frame: &Frame) -> bool {
    frame
        .parts
        .last()
        .is_some_and(|part| matches!(&part.what, FrameContent::Head(_, file) if file.is_endless() && file.known.is_none()))
}

/// Deflate, no name, no time, made on Unix: the same bytes for the same input.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
