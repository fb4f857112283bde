//! The archive of a server's WAL: pushed, fetched, kept, and used by a recovery, with real servers where they matter.
//!
//! Versions that are not installed are not tested; `scripts/postgres-servers` brings those that Debian has not.

#![allow(missing_docs)]

#[path = "../postgres_backup/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "../runs/mod.rs"]
mod runs;
#[path = "../common/postgres.rs"]
mod servers;

mod fetch;
mod kept;
mod made;
mod push;
mod recovery;
