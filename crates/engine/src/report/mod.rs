//! Reports of a run about files: damage that was found, entries that were skipped.
//!
//! The sentences are made here; `cli` prints them.
//!
//! Belongs here: facts about damaged and skipped files, and their texts. Does not belong here:
//! finding the damage (`verify`, `archive`).

pub mod damage;
pub(crate) mod skipped;
