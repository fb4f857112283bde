//! The rules by which a kind of backup is restored.
//!
//! The machinery of a restore asks only these: which entries are restored and how, where they are
//! placed, and which files come beside them. A tree has no rules of its own. Those of a PostgreSQL
//! cluster are in `cluster`.

use crate::report::damage::Report;
use fullbore_format::error::{Error, Result};
use fullbore_repository::archive::Archive;
use fullbore_tree::write::{layout::TargetLayout, tree::TargetTree};
use std::sync::Arc;

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

/// What rules need to write files of their own.
pub(crate) struct WrittenParts<'a> {
    pub(crate) archive: &'a Archive,
    pub(crate) tree: &'a Arc<TargetTree>,
    pub(crate) report: &'a Report,
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

    /// Returns whether other files of the target may be used with those of the backup, so that the
    /// target is searched for them.
    fn refuses_leftovers(&self) -> bool;

    /// Returns the error of a file in the target that the backup does not have; `None` if it may
    /// stay.
    fn leftover_error(&self, path: &[u8]) -> Option<Error>;

    /// Writes files that the backup does not have, after its content.
    ///
    /// # Errors
    /// Those of the storage and the system.
    fn write_files(&self, parts: &WrittenParts<'_>) -> Result<()>;

    /// Removes restored files that must not be there, after all links and directories.
    ///
    /// # Errors
    /// The system's.
    fn remove_files(&self, tree: &Arc<TargetTree>) -> Result<()>;

    /// Puts the last file in place, if the restore `is_complete`. All other files are durable by then.
    ///
    /// # Errors
    /// The system's, with the path.
    fn finish(&self, tree: &TargetTree, is_complete: bool) -> Result<ClosingNotes>;
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

    fn refuses_leftovers(&self) -> bool {
        false
    }

    fn leftover_error(&self, _: &[u8]) -> Option<Error> {
        None
    }

    fn write_files(&self, _: &WrittenParts<'_>) -> Result<()> {
        Ok(())
    }

    fn remove_files(&self, _: &Arc<TargetTree>) -> Result<()> {
        Ok(())
    }

    fn finish(&self, _: &TargetTree, _: bool) -> Result<ClosingNotes> {
        Ok(ClosingNotes::default())
    }
}
