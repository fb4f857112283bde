//! Encrypted repositories and archives, as users of the program have them.

mod archives;
mod cluster;
mod copies;
mod enrolment;
mod fingerprints;
mod full_disk;
mod host_keys;
mod kill;
mod lost_keys;
mod stock;
mod verbs;
mod verify_memory;
mod wal;
mod world;

use testkit::{runs, servers};
