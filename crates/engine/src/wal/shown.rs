//! All that a repository knows of one segment: who stored it, in which objects, and which records it has.

use super::system::StoredBy;
use fullbore_format::{
    error::{Error, Result},
    wal::SegmentName,
};
use fullbore_postgres::{
    lsn::Lsn,
    wal_archive::{RecordsSummary, SegmentRecords, first_difference},
};
use fullbore_repository::wal::{StoredRun, WalArchive, list_systems};
use fullbore_storage::Objects;
use std::sync::Arc;

/// A segment as one object has it.
#[derive(Debug)]
pub struct ArchivedSegment {
    /// The system, and behind a dot the name of a copy.
    pub system: String,
    /// The key of the object.
    pub key: String,
    /// Bytes of the object.
    pub object_bytes: u64,
    /// The first and the last segment in it.
    pub run: (SegmentName, SegmentName),
    /// Whether it is the part of a segment in which a timeline ended.
    pub is_partial: bool,
    /// What the object says of the segment, or why it cannot be read.
    pub facts: Result<StoredFacts>,
}

/// A segment as the index and the content of an object say.
#[derive(Debug)]
pub struct StoredFacts {
    /// Who stored it.
    pub by: StoredBy,
    /// Bytes of the segment.
    pub segment_bytes: u64,
    /// Bytes that it takes in the object.
    pub stored_bytes: u64,
    /// BLAKE3 of its content.
    pub digest: [u8; 32],
    /// Its records; `None` if they cannot be read.
    pub records: Option<RecordsSummary>,
    /// How its records compare with those of the first object.
    pub comparison: SegmentComparison,
}

/// How the content of a segment compares with that of the first object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentComparison {
    /// It is the first.
    First,
    /// The bytes are the same.
    Same,
    /// Bytes behind the records differ; a recovery with either is the same.
    SameRecords,
    /// A record differs, the first at this location.
    Differs(Lsn),
}

/// Returns the objects of a repository that hold a segment.
///
/// # Errors
/// The storage's.
pub fn stored_segments(
    objects: &Arc<dyn Objects>,
    segment: SegmentName,
) -> Result<Vec<ArchivedSegment>> {
    let mut found = Vec::new();
    for (system, listing) in list_systems(&**objects)? {
        let archive = WalArchive::new(objects.clone(), &system);
        let mut first: Option<([u8; 32], Vec<u8>)> = None;
        for stored in listing
            .runs
            .iter()
            .filter(|stored| stored.run.covers(segment))
        {
            found.push(ArchivedSegment {
                system: system.clone(),
                key: stored.run.to_string(),
                object_bytes: stored.bytes,
                run: (stored.run.first, stored.run.last()),
                is_partial: stored.run.is_partial,
                facts: facts_of(&archive, stored, segment, &mut first),
            });
        }
    }
    Ok(found)
}

fn facts_of(
    archive: &WalArchive,
    stored: &StoredRun,
    segment: SegmentName,
    first: &mut Option<([u8; 32], Vec<u8>)>,
) -> Result<StoredFacts> {
    let index = archive.index(stored)?;
    let content = archive.segment_of(stored, segment)?;
    let position = stored.run.segments().position(|name| name == segment);
    let member = position.and_then(|position| index.members.get(position));
    let member = member.ok_or_else(|| {
        let key = stored.run.to_string();
        Error::corrupt(format!("{} lacks {segment}", archive.describe(&key)))
    })?;
    let comparison = match first {
        None => SegmentComparison::First,
        Some((digest, _)) if *digest == member.digest => SegmentComparison::Same,
        Some((_, other)) => match first_difference(other, &content) {
            None => SegmentComparison::SameRecords,
            Some(position) => SegmentComparison::Differs(position),
        },
    };
    let records = SegmentRecords::new(&content).map(SegmentRecords::summary);
    first.get_or_insert((member.digest, content));
    Ok(StoredFacts {
        by: StoredBy::of(&index),
        segment_bytes: index.segment_bytes,
        stored_bytes: member.stored_bytes,
        digest: member.digest,
        records,
        comparison,
    })
}
