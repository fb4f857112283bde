//! Counters of a run: bytes, time of each part, waits, and the limit that follows from them.
//!
//! Printing is in `cli`.

pub mod meter;
pub mod waits;
