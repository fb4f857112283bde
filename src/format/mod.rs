//! What is written, byte by byte: pure, no I/O. Everything that reads is fuzzed.

mod blake3_lanes;
pub mod chunk;
pub mod digest;
pub mod entry;
pub mod layout;
pub mod name;
pub mod page;
pub mod pax;
pub mod root;
pub mod seal;
pub mod segment;
pub mod sizes;
