//! What could not be restored and is no failure: one line for each reason, with a count and the first path. Names of
//! attributes are part of reasons, and come from the backup: of more reasons than people read there is one line.

use crate::{
    error::quoted,
    format::entry::{self, EntryPath},
    queue::Locked,
};
use std::{collections::BTreeMap, sync::Mutex};

/// Reasons that have a line of their own.
const REASONS: usize = 200;

/// Counts by reason. Shared by all writers.
#[derive(Debug, Default)]
pub struct TargetWarnings(Mutex<BTreeMap<String, (u64, EntryPath)>>);

impl TargetWarnings {
    /// Note that `what` (`owner`, `xattr "user.a"`) of `path` was not restored, and why.
    pub fn add(&self, what: &str, why: &str, path: &[u8]) {
        self.count(format!("{what} not restored ({why})"), path);
    }

    /// Note that `name`, by which the target was tried, stands there, and why.
    pub(crate) fn left(&self, why: &str, name: &[u8]) {
        self.count(format!("trial file not removed ({why})"), name);
    }

    fn count(&self, mut reason: String, path: &[u8]) {
        let mut notes = self.0.locked();
        if notes.len() >= REASONS && !notes.contains_key(&reason) {
            reason = "other things not restored (for too many reasons to list)".to_owned();
        }
        let (count, first) = notes.entry(reason).or_insert((0, path.to_vec()));
        *count += 1;
        // Workers are not in order: the same restore prints the same line.
        if entry::order(path, first).is_lt() {
            *first = path.to_vec();
        }
    }

    /// One line for each reason: `owner not restored (operation not permitted): 12 entries, the first is "a/b"`.
    pub fn lines(&self) -> Vec<String> {
        let notes = self.0.locked();
        let line = |(what, (count, first)): (&String, &(u64, EntryPath))| match count {
            1 => format!("{what}: {}", quoted(first)),
            _ => format!("{what}: {count} entries, the first is {}", quoted(first)),
        };
        notes.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_reasons_there_is_one_line() {
        let notes = TargetWarnings::default();
        (0..1000).for_each(|number| notes.add(&format!("attribute {number}"), "no", b"f"));
        notes.add("attribute 0", "no", b"e");
        let lines = notes.lines();
        assert_eq!(lines.len(), REASONS + 1);
        assert_eq!(
            lines[0],
            "attribute 0 not restored (no): 2 entries, the first is \"e\""
        );
        assert!(lines[REASONS].contains("800 entries"), "{}", lines[REASONS]);
    }
}
