//! The frames of a segment, as its seek table has them.

use crate::format::segment::FrameSpan;
use crate::{
    archive::{Archive, object::ObjectName},
    error::{Error, ErrorKind, Result},
    format::{
        page::FrameAt,
        root::FORMAT,
        segment::{
            Label, SEEK_FOOTER_BYTES, SERVICE_HEADER_BYTES, Service, ZSTD_HEADER_BYTES,
            parse_seek_table, seek_table_len, skippable_len,
        },
        sizes,
    },
    repo::inventory::SegmentPlace,
    report::damage::Report,
    stage::codec::Codec,
};

/// The frames of a segment, ascending.
pub(crate) enum SegmentFrames {
    /// All of them.
    Table(Vec<FrameSpan>),
    /// There is no table; the segment has so many bytes. Of gzip and plain tar in a repository whose side file is not there
    /// or damaged, for the manifest and the segment have all that it says; and of a segment that was not ended.
    Within(u64),
}

impl SegmentFrames {
    /// Those that begin from byte `from` on and before `to`.
    pub(crate) fn within(&self, from: u64, to: u64) -> &[FrameSpan] {
        let Self::Table(frames) = self else {
            return &[];
        };
        let at = |place: u64| frames.partition_point(|(offset, ..)| *offset < place);
        &frames[at(from)..at(to)]
    }

    /// Is there such a frame?
    pub(crate) fn check(&self, frame: &FrameAt) -> Result<()> {
        let frames = match self {
            Self::Table(frames) => frames,
            Self::Within(len) => {
                let end = frame.offset.checked_add(frame.stored_len.into());
                let fits = end.is_some_and(|end| end <= *len);
                return if fits {
                    Ok(())
                } else {
                    Err(Error::corrupt("its segment ends before it"))
                };
            }
        };
        let found = frames
            .binary_search_by_key(&frame.offset, |(offset, ..)| *offset)
            .map(|at| frames[at]);
        match found {
            Ok((_, stored, plain)) if (stored, plain) == (frame.stored_len, frame.plain_len) => {
                Ok(())
            }
            _ => Err(Error::corrupt(
                "the seek table of its segment has no such frame",
            )),
        }
    }
}

/// Check the size of a segment and read its seek table; with `data`, compare every entry with the frame itself. What does
/// no harm goes into `report`.
///
/// # Errors
/// [`Kind::Corrupt`] if its size or table is not right; [`Kind::NotFound`] if there is no such segment.
pub(crate) fn read(
    archive: &Archive,
    segment: &SegmentPlace,
    data: bool,
    report: &Report,
) -> Result<SegmentFrames> {
    let object = ObjectName::Segment(segment.id.clone());
    let name = archive.store().name(&object);
    let damaged =
        |why: &str| Error::corrupt(format!("segment {name} is damaged")).because(why.to_owned());
    let len = archive
        .store()
        .len(&object)
        .map_err(|e| missing(e, format!("segment {name}")))?;
    // An archive's root stands in its segment, so it knows the size only up to itself.
    if len < segment.bytes || (len > segment.bytes && segment.ended && !archive.is_one_file()) {
        return Err(damaged(&format!(
            "it has {len} bytes, the root says {}",
            segment.bytes
        )));
    }
    if !archive.codec.skips() {
        return beside(archive, segment, len, report);
    }
    let table = table(archive, &object, None)?.filter(|table| fits(table, segment));
    let table = match table {
        Some(table) => table,
        None if !segment.ended => return Ok(SegmentFrames::Within(len)),
        None => return Err(damaged("its seek table cannot be read")),
    };
    // It follows the first frame, or what fills the place of the header of a stream.
    let mut label = None;
    for (offset, ..) in table.iter().skip(1).take(2) {
        label = label
            .or(service(archive, &object, *offset)?
                .filter(|(service, ..)| *service == Service::Label));
    }
    if !label.is_some_and(|(_, label, _)| is_label_of(archive, segment, &label)) {
        return Err(damaged("its label is not the one it should have"));
    }
    if data {
        table.iter().try_for_each(|frame| {
            probe(archive, &object, segment.bytes, frame).unwrap_or_else(|| {
                Err(damaged(
                    "its seek table speaks of frames that are not there",
                ))
            })
        })?;
    }
    Ok(SegmentFrames::Table(table))
}

fn missing(error: Error, name: String) -> Error {
    match error.kind {
        ErrorKind::NotFound => Error::new(ErrorKind::NotFound, format!("{name} is missing")),
        _ => error,
    }
}

/// The table in the side file of a segment of `len` bytes. In a repository the manifest has all that it says, so there it does
/// no harm if it is damaged or missing.
fn beside(
    archive: &Archive,
    segment: &SegmentPlace,
    len: u64,
    report: &Report,
) -> Result<SegmentFrames> {
    let object = ObjectName::Side(segment.id.clone());
    match side(archive, segment, &object, len) {
        Ok(table) => Ok(SegmentFrames::Table(table)),
        Err(error) if archive.is_one_file() || error.kind == ErrorKind::Gone => Err(error),
        Err(error) => {
            if segment.ended && (segment.beside || error.kind != ErrorKind::NotFound) {
                report.mark_damaged_backup(&segment.id.backup);
                report.warn(missing(error, archive.store().name(&object)));
            }
            Ok(SegmentFrames::Within(len))
        }
    }
}

fn side(archive: &Archive, segment: &SegmentPlace, object: &ObjectName, len: u64) -> Result<Table> {
    let label = side_label(archive, object)?.filter(|label| is_label_of(archive, segment, label));
    let table =
        table(archive, object, Some(len))?.filter(|table| label.is_some() && fits(table, segment));
    table.ok_or_else(|| {
        Error::corrupt(format!("{} is damaged", archive.store().name(object)))
            .because("its service frames cannot be read")
    })
}

/// The service frame at `offset`: what it is, its payload if it is a label, and where it ends. `None` if there is none.
fn service(
    archive: &Archive,
    object: &ObjectName,
    offset: u64,
) -> Result<Option<(Service, Vec<u8>, u64)>> {
    let mut bytes = Vec::new();
    archive
        .store()
        .read_at(object, offset, SERVICE_HEADER_BYTES, &mut bytes)?;
    let Some((service, len)) = Service::parse(&bytes) else {
        return Ok(None);
    };
    let payload = offset + SERVICE_HEADER_BYTES as u64;
    bytes.clear();
    if service == Service::Label {
        archive
            .store()
            .read_at(object, payload, len as usize, &mut bytes)?;
    }
    Ok(Some((service, bytes, payload + len)))
}

/// The repository is not looked at: a backup that was copied to another one keeps its labels.
fn is_label_of(archive: &Archive, segment: &SegmentPlace, payload: &[u8]) -> bool {
    let is_it = |label: Label| {
        let names = label.backup == segment.id.backup && label.codec == archive.root.options.codec;
        let place = (label.stream, label.number) == (segment.id.stream, segment.id.number);
        names
            && place
            && segment
                .format
                .map_or(label.format <= FORMAT, |format| format == label.format)
    };
    Label::parse(payload).is_ok_and(is_it)
}

/// Walk the service frames of a side file up to its seek table; gives its label. `None` if one of them is no service frame.
fn side_label(archive: &Archive, object: &ObjectName) -> Result<Option<Vec<u8>>> {
    let len = archive.store().len(object)?;
    let mut bytes = Vec::new();
    archive.store().read_at(
        object,
        len.saturating_sub(SEEK_FOOTER_BYTES as u64),
        SEEK_FOOTER_BYTES,
        &mut bytes,
    )?;
    let Some(table_len) = seek_table_len(&bytes, len) else {
        return Ok(None);
    };
    let (mut at, mut label) = (0, None);
    while at < len - table_len {
        let Some((service, payload, end)) = service(archive, object, at)? else {
            return Ok(None);
        };
        if service == Service::Label {
            label = Some(payload);
        }
        at = end;
    }
    Ok(label.filter(|_| at == len - table_len))
}

/// All frames of a segment.
pub(crate) type Table = Vec<FrameSpan>;

/// Does the table speak of as many plain bytes as the root?
fn fits(table: &Table, segment: &SegmentPlace) -> bool {
    let Some(plain_bytes) = segment.plain_bytes else {
        return true;
    };
    sizes::sum(table.iter().map(|(_, _, plain)| u64::from(*plain))) == plain_bytes
}

/// The seek table at the end of `object`, of that very object, or of a segment of `segment_len` bytes beside it.
fn table(
    archive: &Archive,
    object: &ObjectName,
    segment_len: Option<u64>,
) -> Result<Option<Table>> {
    let len = archive.store().len(object)?;
    let mut bytes = Vec::new();
    let Some(footer) = len.checked_sub(SEEK_FOOTER_BYTES as u64) else {
        return Ok(None);
    };
    archive
        .store()
        .read_at(object, footer, SEEK_FOOTER_BYTES, &mut bytes)?;
    let Some(table_len) = seek_table_len(&bytes, len) else {
        return Ok(None);
    };
    archive
        .store()
        .read_at(object, len - table_len, table_len as usize, &mut bytes)?;
    let Some(sizes) = parse_seek_table(&bytes) else {
        return Ok(None);
    };
    let mut offset = 0;
    let mut place = |(stored, plain)| {
        let at = offset;
        offset += u64::from(stored);
        (at, stored, plain)
    };
    let mut table: Table = sizes.into_iter().map(&mut place).collect();
    // A place that was kept for nothing is an entry of no bytes.
    table.retain(|(_, stored, _)| *stored > 0);
    // Skippable frames are headed by their length: that of the table itself must be right too. Of the flags near its end
    // only one has a meaning, and we do not set it.
    let flags = bytes.get(bytes.len() - SEEK_FOOTER_BYTES + 4);
    let described = segment_len.unwrap_or(len - table_len);
    let whole =
        offset == described && skippable_len(&bytes) == Some(table_len) && flags == Some(&0);
    Ok(whole.then_some(table))
}

/// Does the frame at this place have this size? `None` if not.
///
/// What stands before `summed` is covered by checksums in the root; service frames behind it must be what they say.
fn probe(
    archive: &Archive,
    object: &ObjectName,
    summed: u64,
    (offset, stored, plain): &(u64, u32, u32),
) -> Option<Result<()>> {
    let mut header = Vec::new();
    if let Err(error) = archive.store().read_at(
        object,
        *offset,
        ZSTD_HEADER_BYTES.min(*stored as usize),
        &mut header,
    ) {
        return Some(Err(error));
    }
    let right = match (skippable_len(&header), archive.codec) {
        (Some(len), _) => {
            len == u64::from(*stored)
                && *plain == 0
                && (*offset < summed || Service::parse(&header).is_some())
        }
        (None, Codec::Zstd(_)) => {
            zstd_safe::get_frame_content_size(&header).ok().flatten() == Some(u64::from(*plain))
        }
        (None, Codec::Lz4) => lz4_content_size(&header) == u64::from(*plain),
        (None, _) => true,
    };
    right.then_some(Ok(()))
}

/// Content size in the header of an lz4 frame; 0 is not written.
fn lz4_content_size(header: &[u8]) -> u64 {
    let has_size = header.get(4).is_some_and(|flags| flags & 8 != 0);
    let size = header
        .get(6..14)
        .and_then(|size| size.try_into().ok())
        .map_or(0, u64::from_le_bytes);
    if has_size { size } else { 0 }
}
