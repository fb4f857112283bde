//! Reads a tar stream from front to back, written by fullbore or by another program.
//!
//! Detects the compression, cuts the stream into members, and compares own members with the pages
//! that follow them. Headers are parsed in `format/pax`.

pub(crate) mod decode;
pub mod input;
pub(crate) mod magic;
pub(crate) mod members;
pub(crate) mod self_check;
