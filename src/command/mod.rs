//! One verb a file.

pub mod against;
pub mod backup;
pub mod bench;
mod cluster;
pub mod copy;
mod crew;
pub mod damage;
pub mod diff;
mod difference;
pub mod export;
mod extract;
pub mod find;
pub mod forecast;
pub mod forget;
mod frames;
pub mod list;
pub mod prune;
pub mod restore;
pub mod scope;
pub mod show;
pub mod tag;
pub mod text;
pub mod verify;
