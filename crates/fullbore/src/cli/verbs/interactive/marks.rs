//! The entries that are marked for extraction. Marks are rules, so a directory with a million files is one rule.

use fullbore_engine::restore::ChosenEntries;
use fullbore_format::entry::{EntryKind, EntryPath, is_within, split};
use fullbore_repository::archive::Archive;
use std::{collections::BTreeMap, sync::Arc};

/// Paths that were added or deleted, each with everything below it. The longest path decides.
#[derive(Debug, Clone, Default)]
pub(super) struct MarkRules(BTreeMap<EntryPath, bool>);

impl MarkRules {
    /// Adds or deletes a path, with everything below it. Rules below it are forgotten.
    pub(super) fn set(&mut self, path: &[u8], wanted: bool) {
        self.0.retain(|other, _| !is_within(other, path));
        if self.is_marked(path) != wanted {
            self.0.insert(path.to_vec(), wanted);
        }
    }

    /// Returns whether an entry is extracted.
    pub(super) fn is_marked(&self, path: &[u8]) -> bool {
        let mut above = path;
        loop {
            if let Some(wanted) = self.0.get(above) {
                return *wanted;
            }
            if above.is_empty() {
                return false;
            }
            above = split(above).0;
        }
    }

    /// Returns whether anything below a path was added.
    pub(super) fn has_marked_below(&self, path: &[u8]) -> bool {
        let mut first = path.to_vec();
        if !path.is_empty() {
            first.push(b'/');
        }
        let below = self.0.range(first.clone()..);
        let mut below = below.take_while(|(other, _)| other.starts_with(&first));
        below.any(|(_, wanted)| *wanted)
    }

    /// Returns whether nothing is marked.
    pub(super) fn is_empty(&self) -> bool {
        !self.0.values().any(|wanted| *wanted)
    }

    /// The rules in the order of their paths.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&EntryPath, bool)> {
        self.0.iter().map(|(path, wanted)| (path, *wanted))
    }

    /// The entries that a restore takes.
    pub(super) fn chosen(&self) -> ChosenEntries {
        let rules = self.clone();
        let has_deleted = self.0.values().any(|wanted| !wanted);
        let is_left_out =
            move |path: &[u8]| !rules.is_marked(path) && !rules.has_marked_below(path);
        ChosenEntries {
            paths: self.tops(),
            left_out: has_deleted.then(|| Arc::new(is_left_out) as _),
        }
    }

    /// As [`MarkRules::chosen`], directories only.
    pub(super) fn chosen_directories(&self, archive: Arc<Archive>) -> ChosenEntries {
        let rules = self.clone();
        let is_left_out = move |path: &[u8]| {
            let is_wanted = rules.is_marked(path) || rules.has_marked_below(path);
            !is_wanted || !is_directory(&archive, path)
        };
        ChosenEntries {
            paths: self.tops(),
            left_out: Some(Arc::new(is_left_out)),
        }
    }

    /// The added paths that are not below another one.
    fn tops(&self) -> Vec<EntryPath> {
        let added = self.rules().filter(|(_, wanted)| *wanted);
        added.map(|(path, _)| path.clone()).collect()
    }
}

/// An entry that cannot be looked up counts as a directory: the restore reports the damage.
fn is_directory(archive: &Archive, path: &[u8]) -> bool {
    match archive.look_up(path) {
        Ok(Some((_, item))) => item.entry.kind == EntryKind::Directory,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_path_decides() {
        let mut marks = MarkRules::default();
        marks.set(b"a", true);
        marks.set(b"a/b", false);
        marks.set(b"a/b/c", true);
        let all = [
            &b"a"[..],
            b"a/x",
            b"a/b",
            b"a/b/x",
            b"a/b/c",
            b"a/b/c/d",
            b"ab",
            b"",
        ];
        let marked: Vec<_> = all
            .into_iter()
            .filter(|path| marks.is_marked(path))
            .collect();
        assert_eq!(marked, [&b"a"[..], b"a/x", b"a/b/c", b"a/b/c/d"]);
        assert!(marks.has_marked_below(b"a/b") && !marks.has_marked_below(b"a/b/c"));
        assert!(marks.has_marked_below(b"") && !marks.has_marked_below(b"a/"));
    }

    #[test]
    fn a_rule_that_says_what_holds_already_is_not_kept() {
        let mut marks = MarkRules::default();
        marks.set(b"a/b", true);
        marks.set(b"a/c", false);
        marks.set(b"a", true);
        assert_eq!(marks.rules().count(), 1);
        marks.set(b"", false);
        assert!(marks.is_empty() && marks.rules().count() == 0);
    }

    #[test]
    fn everything_but_one_directory_is_two_rules() {
        let mut marks = MarkRules::default();
        marks.set(b"", true);
        marks.set(b"cache", false);
        let chosen = marks.chosen();
        assert_eq!(chosen.paths, [b""]);
        let left_out = chosen.left_out.unwrap();
        assert!(left_out(b"cache") && left_out(b"cache/x") && !left_out(b"home"));
    }
}
