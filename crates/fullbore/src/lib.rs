//! Backup and restore in standard streams, at the limit of the machine.
//!
//! ```text
//! scan ─▸ compare ─▸ pack ─▸ read ─▸ [digest · compress] ─▸ lay ─▸ sink ─▸ commit
//!  source   base      cut     source    stages, fused       place   put    manifest
//! ```

pub mod cli;
