//! WAL in a repository: names, keys, and the object that holds a run of segments.
//!
//! ```text
//! wal/<system>/<timeline>/<log>/<first segment>-<count>-<digest>.tar.zst   a run of consecutive segments
//! wal/<system>/<timeline>/tail/<segment>-<from>-<to>-<digest>.tar.zst      a piece of a segment that is not finished
//! wal/<system>/gaps/<first segment>-<last segment>.json                    segments whose loss was accepted
//! wal/<system>/history/<timeline>-<digest>.history                         the history of a timeline
//! wal/<system>/history/<segment>.<offset>-<digest>.backup                  the label of a base backup
//! ```
//! All numbers are hexadecimal, as PostgreSQL writes them. The digest is over the content before it was
//! compressed: the same content has the same key, whoever stores it, and other content has another one.

mod key;
mod name;
mod piece;
mod run;
mod segment_frame;

pub use key::{
    WalDigest, WalDigester, WalKey, WalRun, history_dir, log_dir, system_dir, timeline_dir,
};
pub use name::{SegmentName, WalFileName, check_segment_bytes, check_system_name};
pub use piece::{WalPiece, longest_chain, piece_object, tail_dir};
pub use run::{MAX_MEMBERS, MAX_RUN_BYTES, TAIL_BYTES, WalRunIndex, run_object};
pub use segment_frame::{PackedSegment, SegmentFrame, SegmentPacker, WalMember, pack_segment};
