//! Storages of objects: all members of the one interface, the wire to another host, and backups and prunes beside each other.

#[macro_use]
extern crate testkit;

mod object_stores;
mod simulation;
mod storage;
mod wire;
