//! Repositories: directories that hold backups, see [`crate::format::layout`].
//!
//! Plain files only: no database, no index, no counts. Made by the first backup, or before. Reading takes no locks, and a backup only the
//! one on its own intent, which shows others that it is alive.

pub mod annotations;
pub mod atomic_file;
pub mod base;
pub mod compare;
mod fragmentation;
pub mod ids;
pub mod import;
pub(crate) mod inventory;
pub mod objects;
pub mod open;
mod permissions;
pub mod protocol;
pub mod prune;
mod renames;
pub mod retention;
pub mod roots;
pub mod scan;
pub mod select;
pub mod verify_memory;
pub mod writer;
