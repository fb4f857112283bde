//! metrics.

pub mod meter;
pub mod waits;
