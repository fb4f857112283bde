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
mod frames;
pub mod list;
pub mod restore;
pub mod scope;
pub mod show;
pub mod text;
pub mod verify;
