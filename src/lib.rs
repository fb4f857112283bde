//! Backup and restore in standard streams, at the limit of the machine.
//!
//! ```text
//! scan ─▸ compare ─▸ pack ─▸ read ─▸ [digest · compress] ─▸ lay ─▸ sink ─▸ commit
//!  source   base      cut     source    stages, fused       place   put    manifest
//! ```

pub mod archive;
pub mod backup;
pub mod cli;
pub mod command;
pub mod copy;
pub mod crypt;
pub mod error;
pub mod format;
pub mod frame;
pub mod known;
pub mod metrics;
pub mod pipeline;
pub mod plan;
pub mod platform;
pub mod postgres;
pub mod queue;
pub mod repair;
pub mod repo;
pub mod report;
pub mod restore;
pub mod sink;
pub mod source;
pub mod stage;
pub mod storage;
pub mod tar;
pub mod target;
pub mod text;
pub mod verify;
pub mod wal;
