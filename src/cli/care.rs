//! Arguments of what cares for backups that are there: restoring in place.

use crate::{
    command::delta::Changes,
    error::{Result, quoted},
    format::{entry::Path, root::Name},
};
use clap::Args;
use serde_json::json;

use super::size::{bytes, count, counted};

/// How to restore into a tree that is there.
#[derive(Debug, Args)]
pub(super) struct DeltaArgs {
    /// Restore into what is there: compare its content, and write in place only what differs. A file that this is cut off at may be old in part
    #[arg(long, conflicts_with = "overwrite")]
    pub(super) delta: bool,
    /// Remove what does not belong to the backup (below the PATHs); it is listed first
    #[arg(long, requires = "delta")]
    pub(super) delete: bool,
}

/// Say what will be removed.
///
/// # Errors
/// Of standard output.
pub(super) fn say_removed(paths: &[Path], json: bool, quiet: bool) -> Result<()> {
    super::printed(|out| {
        for path in paths.iter().filter(|_| !quiet || json) {
            let text = match json {
                true => json!({"type": "delete", "path": Name(path.clone())}).to_string(),
                false => format!("delete: {}", quoted(path)),
            };
            writeln!(out, "{text}").map_err(|e| crate::error::Error::io("could not write to standard output", e))?;
        }
        Ok(0)
    })
    .map(drop)
}

/// What a restore into what was there found there.
pub(super) fn changes(changes: &Changes) -> String {
    let Changes { same, changed, removed, written_bytes } = changes;
    let removed = if *removed > 0 { format!(", {} removed", count(*removed)) } else { String::new() };
    let files = counted(*changed, "file");
    format!("{files} changed, {} the same{removed}; {} written", count(*same), bytes(*written_bytes))
}

/// The same as JSON.
pub(super) fn changes_json(changes: &Changes) -> serde_json::Value {
    json!({"same": changes.same, "changed": changes.changed, "removed": changes.removed,
        "written_bytes": changes.written_bytes})
}
