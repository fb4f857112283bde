//! One verb a file.

pub mod against;
mod crew;
pub mod damage;
mod extract;
mod frames;
pub mod list;
pub mod meter;
pub mod restore;
pub mod show;
mod text;
pub mod verify;
