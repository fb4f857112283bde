//! Archived WAL, as PostgreSQL sees it: segments that may be stored, the tree of timelines, gaps.
//!
//! Pure but for the reading of one file; where WAL is stored is `repo::wal`'s.

mod records;
mod segment_header;
mod tree;

pub use records::{RecordsEnd, RecordsSummary, SegmentRecords, WalRecord, first_difference};
pub use segment_header::{
    SegmentFacts, check_pages, check_segment, check_segment_begin, read_segment_facts,
};
pub use tree::{HeldWal, MAX_HISTORY_BYTES, TimelineTree, WalGap};
