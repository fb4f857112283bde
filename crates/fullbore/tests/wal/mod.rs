//! The archive of a server's WAL: pushed, fetched, kept, and used by a recovery, with real servers where they matter.
//!
//! Versions that are not installed are not tested; `scripts/postgres-servers` brings those that Debian has not.

mod fetch;
mod kept;
mod made;
mod push;
mod receive;
mod receive_hostile;
mod recovery;

use crate::postgres_backup::cluster;
use testkit::{args, runs, servers};
