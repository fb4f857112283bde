//! Metadata and objects that could not be restored, although the restore did not fail.
//!
//! There is one line for each reason, with a count and the first path. Reasons contain attribute
//! names from the backup, so the number of lines is limited, and one line counts the rest.

use fullbore_format::{
    entry::{self, EntryPath},
    error::{quoted, reason},
};
use fullbore_platform::queue::Locked;
use std::{collections::BTreeMap, io, path::Path as SystemPath, sync::Mutex};

/// Number of reasons with a line of their own.
const MAX_REASONS: usize = 200;

/// Counts by reason. Shared by all writers.
#[derive(Debug, Default)]
pub struct TargetWarnings {
    counts: Mutex<BTreeMap<String, (u64, EntryPath)>>,
    /// Directories, by device and inode number, that still hold a temporary file of this restore,
    /// each with a warning.
    leftovers: Mutex<BTreeMap<(u64, u64), String>>,
    is_copy: bool,
}

impl TargetWarnings {
    /// Warnings of a copy, or else of a restore.
    pub(crate) fn of(is_copy: bool) -> Self {
        Self {
            is_copy,
            ..Self::default()
        }
    }

    /// Notes that `subject` (`owner`, `xattr "user.a"`) of `path` was not restored, and why.
    pub fn add(&self, subject: &str, reason: &str, path: &[u8]) {
        self.count(format!("{subject} not {} ({reason})", self.done()), path);
    }

    /// Notes that `path` became a name of a second file, because the first file takes no more
    /// names.
    pub(crate) fn add_copied_name(&self, path: &[u8]) {
        let reason = "too many hard links for the target file system: a copy of the file has the further names";
        self.count(reason.to_owned(), path);
    }

    /// Notes that a temporary file of this restore could not be removed from `dir`. Each directory
    /// gets one line.
    pub(crate) fn add_leftover(&self, dir: (u64, u64), file: &SystemPath, error: &io::Error) {
        self.leftovers.locked().entry(dir).or_insert_with(|| {
            format!(
                "could not remove {file:?}, a temporary file of this {}: {}",
                if self.is_copy { "copy" } else { "restore" },
                reason(error)
            )
        });
    }

    /// Returns whether a temporary file of this restore is left in `dir`.
    pub(crate) fn has_leftover(&self, dir: (u64, u64)) -> bool {
        self.leftovers.locked().contains_key(&dir)
    }

    /// Returns a line for each temporary file that could not be removed.
    pub fn leftover_lines(&self) -> Vec<String> {
        self.leftovers.locked().values().cloned().collect()
    }

    /// The word for a success.
    fn done(&self) -> &'static str {
        if self.is_copy { "copied" } else { "restored" }
    }

    fn count(&self, mut reason: String, path: &[u8]) {
        let mut notes = self.counts.locked();
        if notes.len() >= MAX_REASONS && !notes.contains_key(&reason) {
            reason = format!("other items not {} (too many reasons to list)", self.done());
        }
        let (count, first) = notes.entry(reason).or_insert((0, path.to_vec()));
        *count += 1;
        // Workers finish in any order. The path that sorts first makes the line the same for each
        // run.
        if entry::order(path, first).is_lt() {
            *first = path.to_vec();
        }
    }

    /// Returns one line for each reason: `owner not restored (operation not permitted): 12 entries,
    /// the first is "a/b"`.
    pub fn lines(&self) -> Vec<String> {
        let notes = self.counts.locked();
        notes
            .iter()
            .map(|(subject, (count, first))| match count {
                1 => format!("{subject}: {}", named(first)),
                _ => format!("{subject}: {count} entries, the first is {}", named(first)),
            })
            .chain(self.leftover_lines())
            .collect()
    }
}

/// The name of an entry; `"."` is the root.
fn named(path: &[u8]) -> String {
    quoted(if path.is_empty() { b"." } else { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_reasons_share_one_line() {
        let notes = TargetWarnings::default();
        (0..1000).for_each(|number| notes.add(&format!("attribute {number}"), "no", b"f"));
        notes.add("attribute 0", "no", b"e");
        let lines = notes.lines();
        assert_eq!(lines.len(), MAX_REASONS + 1);
        assert_eq!(
            lines[0],
            "attribute 0 not restored (no): 2 entries, the first is \"e\""
        );
        assert!(
            lines[MAX_REASONS].contains("800 entries"),
            "{}",
            lines[MAX_REASONS]
        );
    }
}
