//! One verb a file.

pub mod against;
pub mod backup;
pub mod bench;
mod cluster;
mod crew;
pub mod damage;
mod extract;
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
