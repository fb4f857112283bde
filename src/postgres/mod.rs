//! Everything that is known of PostgreSQL. No other part of the program knows any of it.
//!
//! Rules that comments cite by number are those of `doc/postgres.md`.

pub mod archive;
pub mod check;
pub mod cluster;
pub mod conninfo;
pub mod control;
pub mod copied;
pub mod inventory;
pub mod late;
pub mod layout;
pub mod lsn;
pub mod manifest;
pub mod offline;
mod opening;
pub mod pages;
mod proof;
pub mod relation;
pub mod request;
pub mod restore;
pub mod session;
pub mod summary;
pub mod timeline;
pub mod tls;
mod wal;
pub mod witness;
