//! Plans the restore of a cluster: which files are restored where and when, settings, recovery.
//!
//! Everything here is computed from the backup; `restore/cluster` reads and writes the files.

pub mod advice;
pub mod conf;
pub mod plan;
pub mod recovery;
pub mod recovery_target;
mod settings;
pub mod tablespaces;
