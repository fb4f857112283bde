//! Repositories: finding backups, making one part of a repository, choosing a base, forgetting, pruning.
//!
//! Plain objects only: no database, no index, no reference counts. The first backup makes a repository, or `fullbore init`.
//! Readers take no locks; a backup holds a lock on its own intent alone, which shows other processes that it runs. The names of the
//! objects are in [`crate::format::layout`].

pub mod annotations;
pub mod base;
pub mod compare;
mod fragmentation;
pub mod ids;
pub mod import;
mod intent;
pub(crate) mod inventory;
mod local_place;
pub mod open;
mod page_spool;
pub mod protocol;
pub mod prune;
mod renames;
pub mod retention;
pub mod roots;
pub mod scan;
pub mod select;
pub mod verify_memory;
pub mod writer;
