//! Places in earlier backups that a verification found damaged: the next backup does not refer to them.

use super::verify_memory::VerifyMemory;
use crate::archive::object::Sealing;
use fullbore_format::{
    entry::ByteRun,
    layout::{self, COVERED},
    page::{Extent, FrameAt, PageItem, SegmentId},
    root::PART_BYTES,
};
use fullbore_pipeline::{known::BaseEntry, sink::Referred};
use fullbore_storage::Objects;
use std::collections::HashMap;

/// Bytes of segments around damage, by segment.
#[derive(Debug, Default)]
pub(super) struct DamagedPlaces(HashMap<SegmentId, Vec<(u64, u64)>>);

impl DamagedPlaces {
    /// Reads the memory of verifications, if there is one.
    pub(super) fn read(objects: &dyn Objects, referred: &Referred) -> VerifyMemory {
        if referred
            .sizes
            .as_ref()
            .is_none_or(|sizes| sizes.contains_key(COVERED))
        {
            VerifyMemory::read(objects)
        } else {
            VerifyMemory::default()
        }
    }

    /// The damaged parts of these segments, of which `bytes` gives the length.
    pub(super) fn of(
        memory: &VerifyMemory,
        sealing: Sealing,
        bytes: impl Fn(&SegmentId) -> Option<u64>,
    ) -> Self {
        let damaged = memory.damaged_parts().filter_map(|(segment, parts)| {
            let bytes = bytes(segment)?;
            let end = sealing.stored_bytes(bytes);
            Some((
                segment.clone(),
                parts
                    .into_iter()
                    .map(|index| {
                        let start = index.saturating_mul(PART_BYTES).min(end);
                        sealing
                            .plain_range((start, end.min(start.saturating_add(PART_BYTES))), bytes)
                    })
                    .collect(),
            ))
        });
        Self(damaged.collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a frame has bytes of a damaged part.
    pub(super) fn touch(&self, segment: &SegmentId, frame: &FrameAt) -> bool {
        let end = frame.offset.saturating_add(frame.stored_len.into());
        let parts = self.0.get(segment).into_iter().flatten();
        parts
            .into_iter()
            .any(|(start, stop)| frame.offset < *stop && end > *start)
    }
}

/// Returns the extents of a record, with the segments that they are in.
pub(super) fn extents_of(item: &PageItem) -> impl Iterator<Item = (&SegmentId, &Extent)> {
    let extents = item.extents.iter();
    extents.map(|extent| (item.segment(&extent.frame), extent))
}

/// Returns the runs of a file's data in frames of which this is so.
pub(super) fn runs_in<'a>(
    known: &'a BaseEntry,
    is_so: impl Fn(&SegmentId, &FrameAt) -> bool + 'a,
) -> impl Iterator<Item = ByteRun> + 'a {
    let mut position = 0;
    let extents = known.parts.iter().flat_map(extents_of);
    extents.filter_map(move |(segment, extent)| {
        let offset = position;
        let len = u64::from(extent.len);
        position += len;
        is_so(segment, &extent.frame).then_some(ByteRun { offset, len })
    })
}

/// Returns the warning for a segment in which a verification found damage.
pub(super) fn damage_line(segment: &SegmentId) -> String {
    let name = layout::segment(segment.stream, segment.number, "tar");
    let name = name.trim_end_matches(".tar");
    format!(
        "`fullbore verify` found damage in segment {name:?} of backup {:?}",
        segment.backup
    )
}
