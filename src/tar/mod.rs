//! tar.

pub(crate) mod decode;
pub mod input;
pub(crate) mod magic;
pub(crate) mod members;
pub(crate) mod self_check;
