//! One verb a file.

pub mod bench;
pub mod copy;
pub mod diff;
mod diff_entry;
pub mod export;
pub mod find;
pub mod forget;
pub mod list;
pub mod prune;
pub mod show;
pub mod tag;
