//! Files whose content a restore leaves for later.
//!
//! A restore asks a [`FileDeferral`] for each file with content. For a file that it defers, the restore makes a
//! placeholder with the size, the metadata and the links of the file, and reserves its space. Somebody else fills it.

use fullbore_format::{error::Result, page::PageItem};
use fullbore_tree::write::writer::TargetWriter;

/// Decides which files are made as placeholders, and makes them.
pub(crate) trait FileDeferral: Send + Sync {
    /// Returns whether the content of this file comes later. The same for all records of one file.
    fn defers(&self, item: &PageItem) -> bool;

    /// Makes the placeholder of a file, from its first record.
    ///
    /// # Errors
    /// The system's, with the path.
    fn make(&self, writer: &mut TargetWriter, item: &PageItem) -> Result<()>;
}
