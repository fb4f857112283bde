//! The WAL of a system in a repository: stored, listed and read.
//!
//! A segment that is not finished is stored in pieces; they are deleted when a run has it.
//!
//! An object is put once, under a key that has the digest of its content, and never replaced. A listing of keys says which
//! segments there are; which of them belong together is `postgres::wal_archive`'s.

mod covered;
mod packed;
mod retention;
mod stored;
mod tail;

pub use packed::CopiedWal;
pub use retention::{PrunedWal, WalNeeds, WalRetention, prune_wal};
pub use stored::{StoredRun, WalArchive, WalListing, has_wal_of, list_systems};
pub use tail::{AcceptedGap, SegmentTail, StoredPiece};
