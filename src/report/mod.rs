//! report.

pub mod damage;
pub(crate) mod skipped;
