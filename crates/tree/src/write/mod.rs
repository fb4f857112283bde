//! The directory tree that a restore writes: creation, replacement, metadata, durability.
//!
//! Every path is resolved beneath the target without following links. This room knows nothing of
//! backups: `restore` decides where the data of an entry comes from.
//!
//! Belongs here: every change to the file system by a restore. Does not belong here: which entries
//! are restored, and in which order (`restore`).

pub mod access;
pub mod case_folding;
pub mod deferred_dirs;
pub mod deletion_limit;
pub(crate) mod directories;
pub(crate) mod existing;
pub mod final_file;
pub mod in_place;
pub mod layout;
pub(crate) mod link;
pub(crate) mod link_copies;
pub(crate) mod metadata;
pub(crate) mod modes;
pub mod parallel_file;
pub mod partial;
pub(crate) mod placeholder;
pub(crate) mod probe;
pub(crate) mod remove;
pub(crate) mod replace;
pub(crate) mod sync;
pub mod tree;
pub mod warnings;
pub mod writer;
pub mod xattrs;
