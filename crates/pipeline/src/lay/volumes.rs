//! Ends a volume before a member that does not fit.
//!
//! A member is never divided: all of it must fit, with the end of the volume behind it. Its size is
//! bounded by the size in its header, so nothing is read or compressed twice. The bounds count
//! everything that a volume may still need: the rest of the member, the open page, the root and the
//! seek table.

use super::{MakeRoot, RootUse, StreamOutcome, StreamWriter};
use crate::frame::{Frame, FrameContent, FrameEntry};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{PART_BYTES, Segment},
    segment::{SERVICE_HEADER_BYTES, Service},
    sizes,
    text::size,
};

/// Bytes of the end of the tar, headers of service frames, the locator, and other small things.
const SMALL_BYTES: u64 = 16 << 10;
/// Bytes of the description of a segment in a root, without checksums.
const SEGMENT_BYTES: u64 = 1 << 10;
/// Bytes of a page in the list of a root, without its first path.
const PAGE_BYTES: u64 = 512;
/// Bytes of a byte in JSON, at most: `\u0000`.
const JSON_BYTES: u64 = 6;
/// How often the last segment is written, if places change meanwhile.
const MOST_ENDS: u32 = 3;
/// Pages that may close before the volume ends: the open one, and one that ends in a large file.
const OPEN_PAGES: u64 = 2;

impl StreamWriter {
    /// Ends the open volume if the frame, with the rest of the member that it begins, does not fit.
    /// Members are not divided, so this is done between members.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] if a new volume is too small; errors of the sink.
    pub(super) fn make_room(&mut self, frame: &Frame, root: Option<MakeRoot<'_>>) -> Result<()> {
        if !self.shared.is_in_volumes || self.is_in_member || frame.data.is_empty() {
            return Ok(());
        }
        let need = self.bytes_for(frame, root)?;
        if self.filling.is_open() {
            if self.has_room(self.filling.number(), self.filling.offset + need)? {
                return Ok(());
            }
            self.end_segment(root, RootUse::Interim)?;
        }
        let number = self.filling.number() + 1;
        let need = self.catalog_bytes() + self.bytes_for(frame, root)?;
        if self.has_room(number, need)? {
            return Ok(());
        }
        let message = format!("cannot continue on volume {number}: it is too small");
        Err(Error::new(ErrorKind::Full, message)
            .because(format!(
                "the next part of the backup needs {}",
                size::bytes(need)
            ))
            .hint(
                "use larger volumes (--volume-size), or smaller parts (--frame-size 256K): each volume lists the entries of all \
                 before it",
            ))
    }

    fn has_room(&mut self, number: u32, bytes: u64) -> Result<bool> {
        self.meter.sink.work(|| self.sink.has_room(number, bytes))
    }

    /// Returns a bound of the bytes for a frame, the rest of its member and the end of the volume.
    fn bytes_for(&mut self, frame: &Frame, root: Option<MakeRoot<'_>>) -> Result<u64> {
        let member = frame.data.len() as u64 + rest_of_member(frame);
        let bare_root = self.bare_root_bytes(root)?;
        let records: u64 = frame.parts.iter().map(record_bytes).sum();
        let frames = self.filling.seek.len() as u64 + frame.parts.len() as u64;
        let volume_bytes = self.filling.offset + member;
        let path_bytes = frame.parts.iter().map(path_bytes).max().unwrap_or(0);
        let open_path = self.pages.first_path_bytes().max(path_bytes);
        let root_bytes = bare_root
            + described_bytes(&self.laid)
            + lost_bytes(&self.pages.not_captured)
            + frame.parts.len() as u64 * PAGE_BYTES
            + OPEN_PAGES * (PAGE_BYTES + JSON_BYTES * open_path)
            + 2 * SEGMENT_BYTES
            + 16 * (volume_bytes / PART_BYTES + 1);
        let pages = self.pages.open_bytes() + records;
        Ok(member + root_bytes + pages + 8 * frames + SMALL_BYTES)
    }

    /// Returns the bytes of a root without segments and pages.
    fn bare_root_bytes(&mut self, root: Option<MakeRoot<'_>>) -> Result<u64> {
        if let Some(bytes) = self.bare_root_bytes {
            return Ok(bytes);
        }
        let root = root.map(|root| root(&StreamOutcome::default(), RootUse::Interim));
        let bytes = root.transpose()?.map_or(0, |root| root.len() as u64);
        Ok(*self.bare_root_bytes.insert(bytes + SMALL_BYTES))
    }

    /// Bytes of the pages of all earlier volumes, as the next volume has them.
    fn catalog_bytes(&self) -> u64 {
        let frame = |bytes: u64| bytes + SERVICE_HEADER_BYTES as u64 + 8;
        sizes::sum(self.laid.pages.iter().map(|page| frame(page.bytes)))
    }

    /// Writes the pages of all earlier volumes, so that the entries on a lost one have names.
    ///
    /// # Errors
    /// Errors of the sink.
    pub(super) fn write_catalog(&mut self) -> Result<()> {
        self.catalogs.push(self.filling.number());
        let places: Vec<_> = self
            .laid
            .pages
            .iter()
            .map(|page| (page.manifest_offset, page.bytes))
            .collect();
        for (offset, bytes) in places {
            let Some(offset) = offset else { continue };
            let page = self.sink.earlier_page(offset, bytes as usize)?;
            self.write_service(&Service::Catalog.frame(&page), true)?;
        }
        Ok(())
    }
}

impl StreamWriter {
    /// Ends the open segment, and adds one that has only the pages and the root.
    ///
    /// A destination may learn late that segments stand elsewhere than the root says, as a tape was
    /// full or failed; or the tape ended within this segment, which is then found on no tape. Then another such segment follows.
    ///
    /// # Errors
    /// Errors of the sink; [`ErrorKind::System`] if places change each time.
    pub(super) fn end_with_catalog(&mut self, root: Option<MakeRoot<'_>>) -> Result<()> {
        if self.filling.is_open() {
            self.end_segment(root, RootUse::Interim)?;
        }
        for _ in 0..MOST_ENDS {
            self.open_segment(self.filling.number() + 1)?;
            self.write_catalog()?;
            self.end_segment(root, RootUse::Last)?;
            let told = self.laid.segments.clone();
            let stored = self.meter.sink.work(|| self.sink.sync())?;
            self.note_stored(stored)?;
            self.note_places();
            let earlier = ..told.len() - 1;
            let is_as_told = told[earlier] == self.laid.segments[earlier];
            if is_as_told && self.laid.segments.last().is_some_and(is_in_one_piece) {
                return Ok(());
            }
        }
        let message = "could not end the backup: its last segments were moved again and again";
        Err(Error::new(ErrorKind::System, message))
    }

    /// Notes where the segments so far stand.
    pub(super) fn note_places(&mut self) {
        self.sink.note_places(&mut self.laid.segments);
        for segment in &mut self.laid.segments {
            if let Some(place) = &mut segment.tape {
                place.has_catalog = self.catalogs.contains(&segment.number);
            }
        }
    }
}

/// Returns whether a segment stands on one tape alone.
fn is_in_one_piece(segment: &Segment) -> bool {
    segment
        .tape
        .as_ref()
        .is_none_or(|place| place.extents.len() == 1)
}

/// Returns a bound of the stored bytes of a member behind its first frame. The size is in the
/// header. A frame that does not compress grows by 1/256 at most; the rest of 1/64 is for digests,
/// places and sizes of frames.
fn rest_of_member(frame: &Frame) -> u64 {
    let Some(FrameContent::Head(_, file)) = frame.parts.last().map(|part| &part.what) else {
        return 0;
    };
    if frame.ends_member {
        return 0;
    }
    (file.data_len + file.data_len / 64).saturating_add(SMALL_BYTES)
}

fn path_bytes(part: &FrameEntry) -> u64 {
    match &part.what {
        FrameContent::Whole(entry, _) | FrameContent::Head(entry, _) => entry.path.len() as u64,
        FrameContent::Piece { file, .. } => file.entry.path.len() as u64,
    }
}

/// Returns a bound of the bytes of a part in a page: its entry, and the digests of its content.
fn record_bytes(part: &FrameEntry) -> u64 {
    let entry = match &part.what {
        FrameContent::Whole(entry, _) | FrameContent::Head(entry, _) => entry,
        FrameContent::Piece { file, .. } => &file.entry,
    };
    let xattrs = fullbore_format::entry::xattr_bytes(&entry.xattrs) as u64;
    512 + 2 * (path_bytes(part) + xattrs) + u64::from(part.len) / 64
}

/// Returns a bound of the bytes in a root that describe finished segments and pages.
fn described_bytes(laid: &StreamOutcome) -> u64 {
    let segments = laid
        .segments
        .iter()
        .map(|segment| SEGMENT_BYTES + segment.parts.len() as u64);
    let pages = laid
        .pages
        .iter()
        .map(|page| PAGE_BYTES + JSON_BYTES * page.first.0.len() as u64);
    sizes::sum(segments.chain(pages))
}

/// Returns a bound of the bytes of entries that were not captured.
fn lost_bytes(lost: &[fullbore_format::root::NotCaptured]) -> u64 {
    let texts = lost
        .iter()
        .map(|lost| (lost.path.0.len() + lost.reason.len()) as u64);
    sizes::sum(texts.map(|bytes| 64 + JSON_BYTES * bytes))
}
