//! One verb a file.

mod crew;
pub mod damage;
pub mod list;
pub mod restore;
pub mod show;
mod text;
