//! What is written, byte by byte: pure, no I/O. Everything that reads is fuzzed.

pub mod entry;
pub mod pax;
