//! One verb a file.

mod crew;
pub mod damage;
pub mod restore;
