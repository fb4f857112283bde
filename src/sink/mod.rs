//! Where bytes go.

pub mod large;
pub mod notes;
pub mod tree;
pub mod writer;
