//! Encrypted repositories and archives, as users of the program have them.

mod archives;
mod cluster;
mod copies;
mod fingerprints;
mod host_keys;
mod kill;
mod lost_keys;
mod stock;
mod verbs;
mod world;

use testkit::{runs, servers};
