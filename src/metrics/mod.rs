//! What a run counts while it runs: bytes, time of each part, what it waited for, and the limit that follows from that.
//!
//! Printing is in `cli`.

pub mod meter;
pub mod waits;
