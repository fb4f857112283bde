//! Reads a tar stream from front to back, written by fullbore or by another program.
//!
//! Detects the compression, cuts the stream into members, and compares own members with the pages
//! that follow them. Headers are parsed in `format/pax`.
//!
//! Belongs here: everything about a stream that is read once. Does not belong here: a stored backup
//! with random access (`archive`).

pub(crate) mod decode;
pub mod input;
pub(crate) mod magic;
pub(crate) mod members;
pub(crate) mod self_check;
