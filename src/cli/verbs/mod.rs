//! The commands, one a file: arguments, and `run`, which gives the exit code.

pub(super) mod backup;
mod backup_source;
pub(super) mod bench;
pub(super) mod completions;
pub(super) mod copy_backup;
pub(super) mod diff;
pub(super) mod export;
mod far;
pub(super) mod find;
pub(super) mod forget;
pub(super) mod init;
pub(super) mod key;
pub(super) mod list;
pub(super) mod man;
pub(super) mod pin;
pub(super) mod prune;
pub(super) mod repair;
pub(super) mod restore;
mod restore_cluster;
mod restore_plan;
mod restore_report;
pub(super) mod serve;
pub(super) mod show;
pub(super) mod tag;
pub(super) mod verify;
mod verify_report;
