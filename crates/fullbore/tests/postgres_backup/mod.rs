//! Backups of PostgreSQL clusters, taken with the real program from real servers, restored and started.
//!
//! Versions that are not installed are not tested; `scripts/postgres-servers` brings those that Debian has not.

mod again;
mod branch;
mod broken_pages;
mod by_protocol;
mod by_sql;
mod by_sql_line;
mod by_sql_rights;
pub(crate) mod cluster;
mod delta;
mod drill;
mod export;
mod files;
mod followed;
mod instant;
mod levels;
mod load;
mod lost;
mod meanwhile;
mod offline;
mod refused;
mod slow;
pub(crate) mod standby;
mod stock;
mod tablespaces;
mod wal;

use testkit::{args, runs, servers, slow_line};
