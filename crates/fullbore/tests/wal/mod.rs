//! The archive of a server's WAL: pushed, fetched, kept, and used by a recovery, with real servers where they matter.
//!
//! Versions that are not installed are not tested; `scripts/postgres-servers` brings those that Debian has not.

mod conflicts;
mod copied;
mod failover;
mod faults;
mod fetch;
mod kept;
mod made;
mod model;
mod pages;
mod push;
mod receive;
mod receive_hostile;
mod recovery;
mod server_check;
mod spool;
mod targets;

use crate::postgres_backup::cluster;
use testkit::{args, runs, servers};
