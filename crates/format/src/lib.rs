//! The format, byte by byte: tar headers, pages, roots, service frames.
//!
//! Everything here is pure and does no I/O. Input is never trusted; every reader is fuzzed.
//!
//! Belongs here: every stored byte and its limits. Does not belong here: where the bytes are stored
//! (`storage`), and when objects may be removed (`repository`).

#![warn(missing_docs)]

pub mod acl;
pub mod author;
mod blake3_lanes;
pub mod cbor;
pub mod chunk;
pub mod content_list;
pub mod digest;
pub mod entry;
pub mod entry_difference;
pub mod error;
pub mod intent;
pub mod json;
pub mod key_kind;
pub mod layout;
pub mod members;
pub mod name;
pub mod page;
pub mod pax;
pub mod root;
pub mod root_parts;
pub mod seal;
pub mod segment;
pub mod segment_reader;
pub mod sizes;
pub mod text;
pub mod wal;
