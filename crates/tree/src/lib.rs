//! Trees of files: reading them in the order of an archive, and writing them.
//!
//! Belongs here: entries of a file system, near or on another host, and streams of bytes that stand for one file. Does not belong
//! here: what changed since the last backup, and how frames are cut.

pub mod command_output;
pub mod far;
pub mod file_rules;
pub mod incomplete;
pub mod patterns;
pub mod read;
pub mod stdin;
pub mod unmatched;
pub mod write;
