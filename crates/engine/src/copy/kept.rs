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
    /// The last directory of the target that is not looked into.
    unlisted: Option<EntryPath>,
}

impl KeptPaths {
    /// # Errors
    /// [`ErrorKind::Usage`](fullbore_format::error::ErrorKind::Usage) for patterns that cannot be read.
    pub(super) fn new(options: &CopyOptions) -> Result<Self> {
        Ok(Self {
            patterns: options.deletion_rules().patterns()?,
            deletes_marked: options.delete_excluded,
            unlisted: None,
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
    /// as a file or as a directory, it is marked, or it belongs to the file system.
    pub(super) fn keeps(&mut self, record: &Record) -> bool {
        let path = &record.entry.path;
        if is_unlisted(&record.entry, &record.state) {
            self.unlisted = Some(path.clone());
        }
        let is_below = |kept: &EntryPath| is_within(path, kept);
        self.unlisted.as_ref().is_some_and(is_below) || self.patterns.may_leave_out(path)
    }
}

/// Returns whether the side that writes says that a directory is not to be looked into: it is marked, or belongs to its file system, such as
/// `lost+found`. It does so by the state of an entry that is only noted.
fn is_unlisted(entry: &Entry, state: &EntryState) -> bool {
    entry.kind == EntryKind::Directory && *state == EntryState::Noted
}
