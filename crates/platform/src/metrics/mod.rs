//! Counters of a run: bytes, time of each part, waits, and the limit that follows from them.
//!
//! Printing is in `cli`.
//!
//! Belongs here: counting and the verdict about the limit. Does not belong here: decisions that use
//! the counts (`pipeline`).

pub mod cpu;
pub mod hardware;
pub mod meter;
pub mod waits;
