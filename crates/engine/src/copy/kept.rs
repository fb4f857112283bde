//! Objects of the target that a copy never deletes, though the source does not deliver them.

use super::{options::CopyOptions, rules::LeftOutPatterns};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, is_within},
    error::Result,
    page::{EntryState, Record},
};
use fullbore_pipeline::frame::{ContentScope, Scanned};

/// Decides whether an object of the target is kept. Asked in archive order.
pub(super) struct KeptPaths {
    patterns: LeftOutPatterns,
    /// Whether the contents of marked directories are deleted.
    deletes_marked: bool,
    /// The last directory that belongs to the file system of the target.
    of_file_system: Option<EntryPath>,
}

impl KeptPaths {
    /// # Errors
    /// [`ErrorKind::Usage`](fullbore_format::error::ErrorKind::Usage) for patterns that cannot be read.
    pub(super) fn new(options: &CopyOptions) -> Result<Self> {
        Ok(Self {
            patterns: options.deletion_rules().patterns()?,
            deletes_marked: options.delete_excluded,
            of_file_system: None,
        })
    }

    /// Returns whether the source does not tell what is in this directory.
    pub(super) fn is_unknown(&self, directory: &Scanned) -> bool {
        match directory.content {
            ContentScope::Delivered => false,
            ContentScope::Marked => !self.deletes_marked,
            ContentScope::Beyond => true,
        }
    }

    /// Returns whether an object that the source does not deliver is kept: a pattern leaves it out
    /// as a file or as a directory, or it belongs to the file system.
    pub(super) fn keeps(&mut self, record: &Record) -> bool {
        let path = &record.entry.path;
        if is_of_file_system(&record.entry, &record.state) {
            self.of_file_system = Some(path.clone());
        }
        let is_below = |kept: &EntryPath| is_within(path, kept);
        self.of_file_system.as_ref().is_some_and(is_below) || self.patterns.may_leave_out(path)
    }
}

/// Returns whether the side that writes says that a directory belongs to its file system, such as
/// `lost+found`: it does so by the state of an entry that is only noted.
fn is_of_file_system(entry: &Entry, state: &EntryState) -> bool {
    entry.kind == EntryKind::Directory && *state == EntryState::Noted
}
