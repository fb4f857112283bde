//! Whether media are changed while a backup is read.

use fullbore_repository::archive::Archive;

/// Returns whether a backup is in volumes of which some are not there, so that media are changed while it is read.
pub(super) fn are_media_changed(archive: &Archive) -> bool {
    let Some(facts) = archive.root.volume else {
        return false;
    };
    archive.store().places().len() < facts.number as usize
}
