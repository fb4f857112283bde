//! A tar stream, ours or of another program, read from front to back.
//!
//! Finds its compression, cuts it into members, and compares our own with the pages that follow them. Headers are parsed in
//! `format/pax`.

pub(crate) mod decode;
pub mod input;
pub(crate) mod magic;
pub(crate) mod members;
pub(crate) mod self_check;
