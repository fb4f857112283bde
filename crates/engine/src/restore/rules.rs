//! The rules by which a kind of backup is restored.
//!
//! The machinery of a restore asks only these: which entries are restored and how, where they are
//! placed, and which files come beside them. A tree has no rules of its own. Those of a PostgreSQL
//! cluster are in `cluster`.

use super::{plan::RestorePlan, run::RestoreRun};
use fullbore_format::error::Result;
use fullbore_tree::write::layout::TargetLayout;

/// How an entry is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryFate {
    /// As it is in the backup.
    Restored,
    /// As a file of the same size without content.
    Emptied,
    LeftOut,
}

/// Notes and steps for the operator, shown at the end.
#[derive(Debug, Default)]
pub(crate) struct ClosingNotes {
    pub(crate) notes: Vec<String>,
    pub(crate) next: Vec<String>,
    /// Number of the first steps that are needed before the restored program starts.
    pub(crate) needed: usize,
    /// Whether the last file keeps its temporary name.
    pub(crate) is_kept: bool,
}

/// The rules of a restore. Each is asked from any thread.
pub(crate) trait EntryRules: Send + Sync {
    /// Returns how the entry at a path is restored.
    fn fate(&self, path: &[u8]) -> EntryFate;

    /// Returns why the entry at a path cannot be part of such a backup; `None` if it can.
    fn misplaced(&self, path: &[u8]) -> Option<String>;

    /// Returns whether every file is restored with its content.
    fn restores_all(&self) -> bool;

    /// Returns whether a program uses the restored files as one. Then a file of another moment
    /// among them does harm, so that damaged files are removed and newer ones are replaced.
    fn are_used_as_one(&self) -> bool;

    /// Adds the directories outside of the target, and the file that is placed last.
    fn arrange(&self, layout: &mut TargetLayout);

    /// Refuses a target whose other files would be used with those of the backup.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`](fullbore_format::error::ErrorKind::Exists) for such a target; the system's.
    fn refuse_leftovers(&self, plan: &RestorePlan) -> Result<()>;

    /// Writes files that the backup does not have, after its content.
    ///
    /// # Errors
    /// Those of the storage and the system.
    fn write_files(&self, run: &RestoreRun<'_>) -> Result<()>;

    /// Removes restored files that must not be there, after all links and directories.
    ///
    /// # Errors
    /// The system's.
    fn remove_files(&self, run: &RestoreRun<'_>) -> Result<()>;

    /// Puts the last file in place, if the restore `is_complete`. All other files are durable by then.
    ///
    /// # Errors
    /// The system's, with the path.
    fn finish(&self, run: &RestoreRun<'_>, is_complete: bool) -> Result<ClosingNotes>;
}

impl dyn EntryRules {
    /// Returns whether the entry at a path is not restored. Another file may be written there, so
    /// the entry's other names are not links to it.
    pub(crate) fn leaves_out(&self, path: &[u8]) -> bool {
        self.fate(path) == EntryFate::LeftOut
    }
}

/// The rules of a tree: all entries are restored as they are.
pub(crate) struct PlainRules;

impl EntryRules for PlainRules {
    fn fate(&self, _: &[u8]) -> EntryFate {
        EntryFate::Restored
    }

    fn misplaced(&self, _: &[u8]) -> Option<String> {
        None
    }

    fn restores_all(&self) -> bool {
        true
    }

    fn are_used_as_one(&self) -> bool {
        false
    }

    fn arrange(&self, _: &mut TargetLayout) {}

    fn refuse_leftovers(&self, _: &RestorePlan) -> Result<()> {
        Ok(())
    }

    fn write_files(&self, _: &RestoreRun<'_>) -> Result<()> {
        Ok(())
    }

    fn remove_files(&self, _: &RestoreRun<'_>) -> Result<()> {
        Ok(())
    }

    fn finish(&self, _: &RestoreRun<'_>, _: bool) -> Result<ClosingNotes> {
        Ok(ClosingNotes::default())
    }
}
