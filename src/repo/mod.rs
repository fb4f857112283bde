//! Repositories: directories that hold backups, see [`crate::format::layout`].
//!
//! Plain files only: no database, no index, no counts. Made on first use. Reading takes no locks, and a backup only the
//! one on its own intent, which shows others that it is alive.

pub mod base;
pub mod compare;
pub mod copy;
pub mod covered;
pub mod documents;
pub mod ids;
mod modes;
mod moved;
pub mod notes;
pub mod objects;
pub mod open;
pub mod protocol;
pub mod prune;
pub mod replace;
pub mod retention;
pub mod store;
pub mod whole;
mod worn;
