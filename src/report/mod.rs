//! Reports of a run about files: damage that was found, entries that were skipped.
//!
//! The sentences are made here; `cli` prints them.

pub mod damage;
pub(crate) mod skipped;
