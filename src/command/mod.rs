//! One verb a file.

pub mod backup;
pub mod scope;
