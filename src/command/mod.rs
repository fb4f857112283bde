//! One verb a file.

pub mod against;
pub mod backup;
mod crew;
pub mod damage;
mod extract;
mod frames;
pub mod list;
pub mod meter;
pub mod restore;
pub mod scope;
pub mod show;
mod text;
pub mod verify;
