//! New checksums for segments in which only bytes between frames are damaged.
//!
//! A page with only damaged copies is removed from the root; the bytes of its copy stay in the
//! segment, because a segment never changes. If every frame in the segment still decodes, only such
//! bytes are damaged, and the checksums of the segment's parts are computed again from the present
//! bytes. Otherwise every later check would report damage that harms no file.

use super::{found_page::sum, frame_index::FrameIndex};
use fullbore_format::{
    error::Result,
    page::{FrameAt, SegmentId},
    root::{PageAt, Root, Segment},
};
use fullbore_repository::archive::{Archive, frame_reader::FrameReader, object::ObjectName};
use std::collections::BTreeSet;

/// The present sizes and checksums of segments.
#[derive(Default)]
pub(crate) struct RemadeSums(Vec<SegmentSums>);

struct SegmentSums {
    id: SegmentId,
    bytes: u64,
    parts: String,
    has_table: bool,
}

impl RemadeSums {
    /// Computes the sums of the segments of `archive` that had the last copy of a lost page.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn of(archive: &Archive) -> Result<Self> {
        let mut sums = Self::default();
        for id in segments_with_lost_pages(archive) {
            let Ok(index) = FrameIndex::read(archive.store(), archive.codec, &id) else {
                continue;
            };
            if !decodes(archive, &id, &index) {
                continue;
            }
            let (bytes, parts) = sum(archive.store(), &ObjectName::Segment(id.clone()))?;
            sums.0.push(SegmentSums {
                id,
                bytes,
                parts,
                has_table: index.has_table,
            });
        }
        Ok(sums)
    }

    /// Writes the sums into a root. A segment without a seek table is treated like that of a dead
    /// backup: records refer to it, but the root does not describe it.
    pub(crate) fn correct(&self, root: &mut Root) {
        for sums in &self.0 {
            let of_this = |segment: &Segment| {
                (segment.stream, segment.number) == (sums.id.stream, sums.id.number)
            };
            if sums.has_table {
                let own = root.segments.iter_mut().filter(|own| of_this(own));
                own.for_each(|own| own.parts.clone_from(&sums.parts));
            } else {
                root.segments.retain(|own| !of_this(own));
                let live = root.liveness.iter_mut().filter(|live| live.id() == sums.id);
                live.for_each(|live| live.of_bytes = sums.bytes);
            }
        }
    }
}

/// Returns the backup's own segments with a copy of a page of which every copy is damaged.
fn segments_with_lost_pages(archive: &Archive) -> BTreeSet<SegmentId> {
    let own = archive.root.pages.iter();
    let own = own.filter(|page| page.backup.is_empty() && page.segment > 0);
    own.filter(|page| !has_intact_copy(archive, page))
        .map(|page| SegmentId {
            backup: String::new(),
            stream: page.stream,
            number: page.segment,
        })
        .collect()
}

fn has_intact_copy(archive: &Archive, page: &PageAt) -> bool {
    let copies = archive.copies(page);
    copies
        .iter()
        .any(|copy| archive.read_copy(page, copy).is_ok())
}

/// Returns whether every frame with data decodes.
fn decodes(archive: &Archive, id: &SegmentId, index: &FrameIndex) -> bool {
    let mut frames = FrameReader::default();
    index.data.iter().all(|(offset, stored_len, plain_len)| {
        let frame = FrameAt {
            segment: 0,
            offset: *offset,
            stored_len: *stored_len,
            plain_len: *plain_len,
        };
        frames.read(archive, id, &frame).is_ok()
    })
}
