//! The engines of fullbore: what its verbs do, without their command line.
//!
//! Belongs here: the order of the steps of a backup, a restore, a restore drill, a copy, a verification and a repair. Does not belong here: how a
//! command says it, and what a room below does alone.

pub mod backup;
pub mod backup_copy;
pub mod copy;
pub mod drill;
pub mod export;
pub mod fan_out;
pub mod fleet;
pub mod instant;
pub mod mount;
pub mod plan;
pub mod repair;
pub mod report;
pub mod restore;
pub mod sink;
pub mod stored_backup;
pub mod tape;
pub mod tar;
pub mod verify;
pub mod volumes;
pub mod wal;
