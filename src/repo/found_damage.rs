//! Places in earlier backups that a verification found damaged: the next backup does not refer to them.

use super::verify_memory::VerifyMemory;
use crate::{
    archive::object::Sealing,
    format::{
        layout::COVERED,
        page::{FrameAt, SegmentId},
        root::PART_BYTES,
    },
    sink::Referred,
    storage::Objects,
};
use std::collections::HashMap;

/// Bytes of segments around damage, by segment.
#[derive(Debug, Default)]
pub(super) struct DamagedPlaces(HashMap<SegmentId, Vec<(u64, u64)>>);

impl DamagedPlaces {
    /// Reads the memory of verifications, if there is one.
    pub(super) fn read(objects: &dyn Objects, referred: &Referred) -> VerifyMemory {
        let may_be_there = |sizes: &std::collections::BTreeMap<_, _>| sizes.contains_key(COVERED);
        if referred.sizes.as_ref().is_none_or(may_be_there) {
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
            let span = |index: u64| {
                let from = index.saturating_mul(PART_BYTES);
                sealing.plain_range((from, from.saturating_add(PART_BYTES)), bytes)
            };
            Some((segment.clone(), parts.into_iter().map(span).collect()))
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
            .any(|(from, to)| frame.offset < *to && end > *from)
    }
}
