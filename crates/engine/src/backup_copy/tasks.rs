//! The objects that a copy of a backup needs, and the checksums of their pieces.

use super::seals::CopyWay;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{self, MANIFEST},
    page::SegmentId,
    root::{PART_BYTES, PageAt, Root, Segment},
};
use fullbore_repository::{
    archive::{Archive, object::ObjectName},
    inventory::KnownFrames,
};
use std::collections::{BTreeSet, HashMap};

/// An object that the backup needs.
pub(super) struct CopyTask {
    pub(super) object: ObjectName,
    pub(super) backup: String,
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Bytes that the destination must have at least, as they are read there.
    pub(super) needed_bytes: u64,
    /// Is it copied as it is stored, encrypted? Then there is no checksum of a page.
    pub(super) is_opaque: bool,
    /// Offset, length and checksum of its pieces, in ascending order.
    pub(super) sums: Vec<(u64, u64, PartSum)>,
}

impl CopyTask {
    /// Returns the minimum length of the copy: the whole object, but of a manifest only the pages
    /// that this backup needs.
    pub(super) fn min_bytes(&self) -> u64 {
        if self.name != MANIFEST {
            return self.bytes;
        }
        self.needed_pieces()
            .map(|(offset, len, _)| offset.saturating_add(*len))
            .max()
            .unwrap_or(0)
    }

    /// Returns the backup and the name of the object.
    pub(super) fn key(&self) -> (String, String) {
        (self.backup.clone(), self.name.clone())
    }

    /// Returns backup, offset and digest of each page that this backup needs.
    pub(super) fn page_keys(&self) -> impl Iterator<Item = (String, u64, String)> {
        self.sums.iter().filter_map(|(offset, _, sum)| match sum {
            PartSum::Blake3(digest) => Some((self.backup.clone(), *offset, digest.clone())),
            _ => None,
        })
    }

    /// Returns the pieces that this backup has checksums for.
    pub(super) fn needed_pieces(&self) -> impl Iterator<Item = &(u64, u64, PartSum)> {
        self.sums
            .iter()
            .filter(|(.., sum)| !matches!(sum, PartSum::Unknown))
    }
}

pub(super) enum PartSum {
    Unknown,
    Crc64(String),
    Blake3(String),
}

/// Returns all objects that a backup refers to, except its root: segments of each backup and
/// manifests.
pub(super) fn copy_tasks(
    archive: &Archive,
    known: &[&(KnownFrames, Vec<u8>)],
    way: CopyWay,
) -> Result<Vec<CopyTask>> {
    let own = archive.root.segments.iter().map(own_id);
    let referred = archive.root.liveness.iter().map(|live| live.id());
    let segments: BTreeSet<_> = own
        .chain(referred)
        .map(|id| (id.backup, id.stream, id.number))
        .collect();
    let facts = segment_facts(archive, known);
    let mut tasks = Vec::new();
    for (backup, stream, number) in segments {
        let id = SegmentId {
            backup,
            stream,
            number,
        };
        tasks.push(segment_task(archive, &id, facts.get(&id))?);
    }
    let others = archive.root.referenced_backups();
    for backup in others.into_iter().chain([""]) {
        tasks.extend(manifest_task(archive, backup)?);
    }
    let sealing = archive.store().sealing();
    tasks.iter_mut().for_each(|task| way.fit(task, sealing));
    Ok(tasks)
}

fn own_id(segment: &Segment) -> SegmentId {
    SegmentId {
        backup: String::new(),
        stream: segment.stream,
        number: segment.number,
    }
}

/// Returns the descriptions of all referred segments, and whether each segment was certainly ended.
fn segment_facts<'a>(
    archive: &'a Archive,
    known: &'a [&'a (KnownFrames, Vec<u8>)],
) -> HashMap<SegmentId, (&'a Segment, bool)> {
    let own = archive
        .root
        .segments
        .iter()
        .map(|own| (own_id(own), (own, true)));
    let others = known.iter().flat_map(|found| {
        let known = &found.0;
        let id = |segment| SegmentId {
            backup: known.root.id.clone(),
            ..own_id(segment)
        };
        known
            .root
            .segments
            .iter()
            .map(move |segment| (id(segment), (segment, known.is_ended(segment))))
    });
    own.chain(others).collect()
}

/// Returns an object and its length. The length is unverified here, and may be far too long to be
/// cut into pieces.
fn new_task(archive: &Archive, object: ObjectName, backup: &str, name: String) -> Result<CopyTask> {
    let bytes = archive
        .store()
        .len(&object)
        .map_err(|error| match error.kind {
            ErrorKind::NotFound => {
                Error::corrupt(format!("{} is missing", archive.store().name(&object)))
            }
            _ => error,
        })?;
    let backup = if backup.is_empty() {
        &archive.root.id
    } else {
        backup
    }
    .to_owned();
    Ok(CopyTask {
        object,
        backup,
        name,
        bytes,
        needed_bytes: 0,
        is_opaque: false,
        sums: Vec::new(),
    })
}

/// Returns all bytes of a segment. A segment that was not certainly ended may be longer than its
/// description.
fn segment_task(
    archive: &Archive,
    id: &SegmentId,
    known: Option<&(&Segment, bool)>,
) -> Result<CopyTask> {
    let name = layout::segment(id.stream, id.number, archive.codec.suffix());
    let mut task = new_task(archive, ObjectName::Segment(id.clone()), &id.backup, name)?;
    let live = archive
        .root
        .liveness
        .iter()
        .find(|live| live.id() == *id)
        .map_or(0, |live| live.of_bytes);
    let (bytes, parts, ended) = known.map_or((live, "", false), |(known, ended)| {
        (known.bytes, &known.parts, *ended)
    });
    if task.bytes < bytes || (ended && task.bytes > bytes) {
        let name = archive.store().name(&task.object);
        let why = format!("it has {} bytes, the root says {bytes}", task.bytes);
        return Err(Error::corrupt(format!("segment {name} is damaged")).because(why));
    }
    let part = |(digits, number): (&[u8], u64)| {
        let start = number * PART_BYTES;
        let sum = PartSum::Crc64(String::from_utf8_lossy(digits).into_owned());
        (start, PART_BYTES.min(bytes.saturating_sub(start)), sum)
    };
    task.sums = with_gaps(
        parts.as_bytes().chunks(16).zip(0..).map(part).collect(),
        task.bytes,
    );
    Ok(task)
}

/// Returns the pages of a backup. A missing manifest is ignored if this backup needs none of its
/// pages.
fn manifest_task(archive: &Archive, backup: &str) -> Result<Option<CopyTask>> {
    let object = ObjectName::Manifest(backup.to_owned());
    let has_lists = lists_piece(&archive.root, backup).is_some();
    let mut pages = archive
        .root
        .pages
        .iter()
        .filter(|page| page.backup == backup)
        .peekable();
    if pages.peek().is_none()
        && !has_lists
        && archive
            .store()
            .len(&object)
            .is_err_and(|error| error.kind == ErrorKind::NotFound)
    {
        return Ok(None);
    }
    let mut task = new_task(archive, object, backup, MANIFEST.to_owned())?;
    let mut sums: Vec<_> = pages.filter_map(page_piece).collect();
    sums.extend(lists_piece(&archive.root, backup));
    sums.sort_by_key(|(offset, ..)| *offset);
    if sums
        .iter()
        .any(|(offset, len, _)| offset.saturating_add(*len) > task.bytes)
    {
        let name = archive.store().name(&task.object);
        return Err(Error::corrupt(format!("{name} is damaged"))
            .because("it ends before a page that the root refers to"));
    }
    task.sums = with_gaps(sums, task.bytes);
    Ok(Some(task))
}

/// Returns the piece of a manifest that is a page.
fn page_piece(page: &PageAt) -> Option<(u64, u64, PartSum)> {
    let sum = PartSum::Blake3(page.digest.clone());
    Some((page.manifest_offset?, page.bytes, sum))
}

/// Returns the piece of the manifest of `backup` that is the page of lists of this root.
fn lists_piece(root: &Root, backup: &str) -> Option<(u64, u64, PartSum)> {
    let backup = if backup.is_empty() { &root.id } else { backup };
    let at = root.lists_at.as_ref().filter(|_| root.lists_of == backup)?;
    Some((at.offset, at.bytes, PartSum::Blake3(at.digest.clone())))
}

/// Returns the pieces, with the gaps between them in pieces of at most 8 MiB.
pub(super) fn with_gaps(pieces: Vec<(u64, u64, PartSum)>, bytes: u64) -> Vec<(u64, u64, PartSum)> {
    let mut all = Vec::new();
    let mut end = 0;
    for (offset, len, sum) in pieces.into_iter().filter(|(_, len, _)| *len > 0) {
        // A piece that overlaps the one before it has been copied and checked with that one.
        if offset < end {
            continue;
        }
        all.extend(gap_pieces(end, offset));
        all.push((offset, len, sum));
        end = offset + len;
    }
    all.extend(gap_pieces(end, bytes));
    all
}

/// Returns the pieces between two offsets.
fn gap_pieces(begin: u64, end: u64) -> impl Iterator<Item = (u64, u64, PartSum)> {
    let starts = (begin..end).step_by(PART_BYTES as usize);
    starts.map(move |start| (start, PART_BYTES.min(end - start), PartSum::Unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_one_piece() {
        let sum = || PartSum::Crc64(String::new());
        let pieces = vec![
            (3, 4, sum()),
            (3, 4, sum()),
            (7, 0, sum()),
            (10, PART_BYTES, sum()),
        ];
        let bytes = 3 * PART_BYTES;
        let (mut position, all) = (0, with_gaps(pieces, bytes));
        for (offset, len, _) in &all {
            assert_eq!(*offset, position);
            position += len;
        }
        assert_eq!((position, all.len()), (bytes, 6));
    }
}
