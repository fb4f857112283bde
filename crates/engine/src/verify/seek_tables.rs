//! The frames of a segment, from its seek table.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    page::FrameAt,
    root::FORMAT,
    segment::{FrameSpan, Label, Service, ZSTD_HEADER_BYTES, skippable_len},
    segment_reader::lz4_content_bytes,
    sizes,
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_repository::{
    archive::{
        Archive,
        object::{ObjectName, segment_reader},
    },
    inventory::SegmentPlace,
};

/// The frames of a segment, ascending.
pub(crate) enum SegmentFrames {
    /// All of them.
    FrameTable(Vec<FrameSpan>),
    /// There is no table, because the segment was not completed; it has this many bytes.
    Within(u64),
}

impl SegmentFrames {
    /// Returns the frames that begin from byte `from` on and before `to`.
    pub(crate) fn within(&self, from: u64, to: u64) -> &[FrameSpan] {
        let Self::FrameTable(frames) = self else {
            return &[];
        };
        let index = |place: u64| frames.partition_point(|(offset, ..)| *offset < place);
        &frames[index(from)..index(to)]
    }

    /// Checks that such a frame exists.
    pub(crate) fn check(&self, frame: &FrameAt) -> Result<()> {
        let frames = match self {
            Self::FrameTable(frames) => frames,
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
            .map(|index| frames[index]);
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

/// Returns the length of a segment, which must be the one in the root.
///
/// # Errors
/// As [`read`].
pub(super) fn check_length(archive: &Archive, segment: &SegmentPlace) -> Result<u64> {
    let object = ObjectName::Segment(segment.id.clone());
    let name = archive.store().name(&object);
    let len = archive
        .store()
        .len(&object)
        .map_err(|e| missing(e, format!("segment {name}")))?;
    // The root of an archive is in its segment, so it only records the size up to the root.
    if len < segment.bytes
        || (len > segment.bytes && segment.ended && !archive.store().has_root(&object))
    {
        return Err(
            Error::corrupt(format!("segment {name} is damaged")).because(format!(
                "it has {len} bytes, but {} in the root",
                segment.bytes
            )),
        );
    }
    Ok(len)
}

/// Check the size of a segment and read its seek table; with `data`, compare every entry with the frame itself.
///
/// # Errors
/// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if its size or table is not right; [`ErrorKind::NotFound`](fullbore_format::error::ErrorKind::NotFound) if there is no such segment.
pub(crate) fn read(archive: &Archive, segment: &SegmentPlace, data: bool) -> Result<SegmentFrames> {
    let object = ObjectName::Segment(segment.id.clone());
    let name = archive.store().name(&object);
    let damaged =
        |why: &str| Error::corrupt(format!("segment {name} is damaged")).because(why.to_owned());
    let len = check_length(archive, segment)?;
    let frames = segment_reader(archive.store(), &object, len);
    let table = frames.frames()?.filter(|table| fits(table, segment));
    let table = match table {
        Some(table) => table,
        None if !segment.ended => return Ok(SegmentFrames::Within(len)),
        None => return Err(damaged("its seek table cannot be read")),
    };
    // The label follows the first frame, or the filler in place of the header of a stream.
    let mut label = None;
    for (offset, ..) in table.iter().skip(1).take(2) {
        label = label.or(frames.service(*offset, |service| service == Service::Label)?);
    }
    if !label.is_some_and(|(_, label)| is_label_of(archive, segment, &label)) {
        return Err(damaged("its label belongs to another segment"));
    }
    if data {
        table.iter().try_for_each(|frame| {
            probe(archive, &object, segment.bytes, frame)
                .unwrap_or_else(|| Err(damaged("its seek table lists frames that are missing")))
        })?;
    }
    Ok(SegmentFrames::FrameTable(table))
}

fn missing(error: Error, name: String) -> Error {
    match error.kind {
        ErrorKind::NotFound => Error::new(ErrorKind::NotFound, format!("{name} is missing")),
        _ => error,
    }
}

/// The repository in the label is not compared: a backup that was copied to another repository
/// keeps its labels.
fn is_label_of(archive: &Archive, segment: &SegmentPlace, payload: &[u8]) -> bool {
    let is_it = |label: Label| {
        let names = label.backup == segment.id.backup && label.codec == archive.root.options.codec;
        let place = (label.stream, label.number) == (segment.id.stream, segment.id.number);
        names && place && label.format == FORMAT
    };
    Label::parse(payload).is_ok_and(is_it)
}

/// Returns whether the table has as many plain bytes as the root.
fn fits(table: &[FrameSpan], segment: &SegmentPlace) -> bool {
    let Some(plain_bytes) = segment.plain_bytes else {
        return true;
    };
    sizes::sum(table.iter().map(|(_, _, plain)| u64::from(*plain))) == plain_bytes
}

/// Returns whether the frame at this place has this size; `None` if not.
///
/// Bytes before `summed` are covered by checksums in the root; later service frames must have their
/// expected type.
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
        (None, Codec::Lz4) => lz4_content_bytes(&header).unwrap_or(0) == u64::from(*plain),
        (None, _) => {
            zstd_safe::get_frame_content_size(&header).ok().flatten() == Some(u64::from(*plain))
        }
    };
    right.then_some(Ok(()))
}
