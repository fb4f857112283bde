//! What could not be restored and is no failure: one line for each reason, with a count and the first path.

use crate::{
    error::quoted,
    format::entry::{self, Path},
};
use std::{collections::BTreeMap, sync::Mutex};

/// Counts by reason. Shared by all writers.
#[derive(Debug, Default)]
pub struct Notes(Mutex<BTreeMap<String, (u64, Path)>>);

impl Notes {
    /// Note that `what` (`owner`, `xattr "user.a"`) of `path` was not restored, and why.
    pub fn add(&self, what: &str, why: &str, path: &[u8]) {
        let mut notes = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let (count, first) = notes.entry(format!("{what} not restored ({why})")).or_insert((0, path.to_vec()));
        *count += 1;
        // Workers are not in order: the same restore prints the same line.
        if entry::order(path, first).is_lt() {
            *first = path.to_vec();
        }
    }

    /// One line for each reason: `owner not restored (operation not permitted): 12 entries, the first is "a/b"`.
    pub fn lines(&self) -> Vec<String> {
        let notes = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let line = |(what, (count, first)): (&String, &(u64, Path))| match count {
            1 => format!("{what}: {}", quoted(first)),
            _ => format!("{what}: {count} entries, the first is {}", quoted(first)),
        };
        notes.iter().map(line).collect()
    }
}
