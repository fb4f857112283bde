//! One verb a file.

pub mod against;
pub mod backup;
pub mod bench;
pub mod blame;
mod cluster;
mod content;
mod crew;
pub mod damage;
pub mod delta;
mod extra;
mod extract;
mod facts;
mod forgo;
mod frames;
pub mod list;
mod patching;
mod rebuild;
mod recount;
pub mod repair;
pub mod restore;
pub mod sample;
pub mod scope;
pub mod show;
mod stock;
pub mod text;
pub mod verify;
mod virtually;
