//! restore.

pub mod advice;
pub mod conf;
pub mod plan;
pub mod recovery;
pub mod recovery_target;
pub mod tablespaces;
