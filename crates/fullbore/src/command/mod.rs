//! The verbs of the command line, one thin file each: from arguments to an engine, from its outcome
//! to a report.
//!
//! The engines of backup, restore, verify and repair have rooms of their own.

pub mod bench;
pub mod cat;
pub mod copy;
pub mod diff;
mod diff_entry;
pub mod export;
pub mod find;
mod find_pattern;
pub mod forget;
pub mod key;
pub mod list;
pub mod newest;
pub mod prune;
pub mod serve;
pub mod show;
pub mod stats;
pub mod tag;
pub mod unforget;
pub mod wal;
pub mod wal_show;
