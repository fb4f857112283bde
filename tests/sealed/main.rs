//! Encrypted repositories and archives, as users of the program have them.

#![allow(missing_docs, unreachable_pub, dead_code)]

#[macro_use]
#[path = "../runs/mod.rs"]
mod runs;

#[path = "../common/postgres.rs"]
mod servers;

mod archives;
mod cluster;
mod copies;
mod fingerprints;
mod host_keys;
mod kill;
mod lost_keys;
mod stock;
mod verbs;
mod wal;
mod world;
