//! What a run reports about files: damage that was found, entries that were skipped.
//!
//! The sentences are made here; `cli` prints them.

pub mod damage;
pub(crate) mod skipped;
