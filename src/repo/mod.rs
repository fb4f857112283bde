//! Repositories: directories that hold backups, see [`crate::format::layout`].
//!
//! Plain files only: no database, no index, no counts. Made on first use. Reading takes no locks, and a backup only the
//! one on its own intent, which shows others that it is alive.

pub mod base;
pub mod compare;
pub mod covered;
mod moved;
pub mod open;
pub mod replace;
pub mod store;
pub mod whole;
