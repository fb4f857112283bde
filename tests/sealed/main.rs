//! Encrypted repositories and archives, as users of the program have them.

#![allow(missing_docs, unreachable_pub)]

#[macro_use]
#[path = "../runs/mod.rs"]
mod runs;

mod archives;
mod copies;
mod host_keys;
mod kill;
mod stock;
mod verbs;
mod world;
