//! A directory that holds backups.

pub mod open;
