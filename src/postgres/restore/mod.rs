//! What a restore must know of a cluster: which files go where and when, its settings, its recovery.
//!
//! Everything here is computed from the backup; reading and writing files is in `restore/cluster`.

pub mod advice;
pub mod conf;
pub mod plan;
pub mod recovery;
pub mod recovery_target;
pub mod tablespaces;
