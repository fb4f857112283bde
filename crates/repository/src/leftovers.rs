//! Names that a prune may delete.

use super::roots::BackupState;
use fullbore_format::{error::Result, key_kind::BackupPart, layout::PROBES};
use fullbore_storage::Objects;

/// Returns whether this file of a backup in that state may be deleted if no document mentions it. Unknown names
/// beside a root may not: a person may have put a copy there. Below a backup without a root no command shows them.
pub(super) fn is_deletable(name: &str, state: Option<BackupState>) -> bool {
    let is_listed = state == Some(BackupState::Listed);
    let is_used = is_listed || state == Some(BackupState::Partial);
    match BackupPart::of(name) {
        BackupPart::Root | BackupPart::Forgotten => false,
        // A void root becomes the document of the forgotten backup.
        BackupPart::Partial => !matches!(state, Some(BackupState::Partial | BackupState::Void)),
        // Another process may be writing annotations.
        BackupPart::Notes => !is_listed,
        BackupPart::Manifest | BackupPart::Segment => true,
        BackupPart::Contents => true,
        // As long as the root counts.
        BackupPart::Unproven => !is_listed,
        BackupPart::Foreign => !is_used,
    }
}

/// Deletes the objects by which a storage was tried, and that could not be deleted then.
///
/// # Errors
/// The storage's.
pub(super) fn remove_probes(objects: &dyn Objects) -> Result<()> {
    let listed = objects.list(PROBES)?.into_iter();
    let probes: Vec<String> = listed.map(|object| object.key).collect();
    if probes.is_empty() {
        return Ok(());
    }
    objects.delete(&probes)
}
