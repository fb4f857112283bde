//! The directories above the backups: `ids`, `latest`, `by-time`, `by-day`, `by-tag`, `hosts`.
//!
//! A tree is made from one listing of the repository and does not change. The numbers of its
//! entries are those of their paths, which keep them from tree to tree.

use super::inode::FIRST;
use fullbore_format::layout::is_backup_id;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Longest name that a file system has.
const MAX_NAME_BYTES: usize = 255;

/// One entry of a directory above the backups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TopEntry {
    Directory,
    /// A symbolic link.
    Link(String),
    /// The tree of the backup of this id.
    Backup(String),
}

/// Host and tags of a backup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BackupLabels {
    pub(super) host: String,
    /// KEY and VALUE.
    pub(super) tags: BTreeMap<String, String>,
}

/// Numbers of paths, kept as long as the mount.
#[derive(Debug, Default)]
pub(super) struct TopNumbers {
    numbers: HashMap<String, u64>,
}

impl TopNumbers {
    fn of(&mut self, path: &str) -> u64 {
        let next = FIRST + self.numbers.len() as u64;
        *self.numbers.entry(path.to_owned()).or_insert(next)
    }
}

/// The entries above the backups, by number and by path.
#[derive(Debug, Default)]
pub(super) struct TopTree {
    entries: BTreeMap<u64, (String, TopEntry)>,
    numbers: BTreeMap<String, u64>,
}

impl TopTree {
    /// Makes the tree of these backups, oldest first. Labels are known only where they were asked
    /// for.
    pub(super) fn new(
        ids: &[String],
        labels: &HashMap<String, BackupLabels>,
        numbers: &mut TopNumbers,
    ) -> Self {
        let mut made = TopTreeBuilder::default();
        for name in ["", "ids", "by-time", "by-day", "by-tag", "hosts"] {
            made.directory(name);
        }
        for id in ids.iter().filter(|id| is_backup_id(id)) {
            made.backup(id, labels.get(id));
        }
        let mut tree = Self::default();
        for (path, entry) in made.entries {
            let number = numbers.of(&path);
            tree.numbers.insert(path.clone(), number);
            tree.entries.insert(number, (path, entry));
        }
        tree
    }

    /// Returns path and entry of a number.
    pub(super) fn entry(&self, number: u64) -> Option<&(String, TopEntry)> {
        self.entries.get(&number)
    }

    /// Returns the number of a name in a directory.
    pub(super) fn look_up(&self, dir: &str, name: &str) -> Option<u64> {
        self.numbers.get(&joined(dir, name)).copied()
    }

    /// Returns names and numbers in a directory.
    pub(super) fn children(&self, dir: &str) -> Vec<(String, u64)> {
        let prefix = joined(dir, "");
        let below = self.numbers.range(prefix.clone()..);
        below
            .take_while(|(path, _)| path.starts_with(&prefix))
            .filter_map(|(path, number)| Some((path.strip_prefix(&prefix)?, number)))
            .filter(|(name, _)| !name.is_empty() && !name.contains('/'))
            .map(|(name, number)| (name.to_owned(), *number))
            .collect()
    }
}

fn joined(dir: &str, name: &str) -> String {
    if dir.is_empty() {
        name.to_owned()
    } else {
        format!("{dir}/{name}")
    }
}

#[derive(Default)]
struct TopTreeBuilder {
    entries: BTreeMap<String, TopEntry>,
    used: BTreeSet<String>,
}

impl TopTreeBuilder {
    fn directory(&mut self, path: &str) {
        self.entries.insert(path.to_owned(), TopEntry::Directory);
    }

    fn link(&mut self, path: String, id: &str) {
        let ups = "../".repeat(path.matches('/').count());
        self.entries
            .insert(path, TopEntry::Link(format!("{ups}ids/{id}")));
    }

    /// Adds a directory with links to backups.
    fn group(&mut self, dir: &str, id: &str) {
        self.directory(dir);
        self.link(format!("{dir}/{id}"), id);
        self.link(format!("{dir}/latest"), id);
    }

    fn backup(&mut self, id: &str, labels: Option<&BackupLabels>) {
        let entry = TopEntry::Backup(id.to_owned());
        self.entries.insert(format!("ids/{id}"), entry);
        self.link("latest".to_owned(), id);
        let (day, time) = day_and_time(id);
        self.group(&format!("by-day/{day}"), id);
        let mut name = format!("by-time/{day}T{time}Z");
        if !self.used.insert(name.clone()) {
            // Two backups began in the same second.
            name = format!("{name}-{}", id.rsplit('-').next().unwrap_or_default());
        }
        self.link(name, id);
        let Some(labels) = labels else { return };
        if is_name(&labels.host) {
            self.group(&format!("hosts/{}", labels.host), id);
        }
        for (key, value) in &labels.tags {
            let tag = if value.is_empty() {
                key.clone()
            } else {
                format!("{key}={value}")
            };
            if is_name(&tag) {
                self.group(&format!("by-tag/{tag}"), id);
            }
        }
    }
}

/// Returns whether a text from a repository can be the name of a directory.
fn is_name(text: &str) -> bool {
    let is_special = text.is_empty() || text == "." || text == "..";
    !is_special && text.len() <= MAX_NAME_BYTES && !text.contains(['/', '\0'])
}

/// Returns `2026-11-22` and `05-45-01` of the id `20261122T054501Z-k3f9qa`.
fn day_and_time(id: &str) -> (String, String) {
    let digits = |range: std::ops::Range<usize>| id.get(range).unwrap_or_default();
    let day = [digits(0..4), digits(4..6), digits(6..8)].join("-");
    let time = [digits(9..11), digits(11..13), digits(13..15)].join("-");
    (day, time)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_ID: &str = "20261121T054501Z-k3f9qz";
    const LAST_ID: &str = "20261122T054501Z-k3f9qa";

    fn tree(labels: BackupLabels, numbers: &mut TopNumbers) -> TopTree {
        let labels = HashMap::from([(LAST_ID.to_owned(), labels)]);
        TopTree::new(&[FIRST_ID.into(), LAST_ID.into()], &labels, numbers)
    }

    fn names(tree: &TopTree, dir: &str) -> String {
        let names = tree.children(dir).into_iter().map(|(name, _)| name);
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn backups_are_found_by_id_time_day_host_and_tag() {
        let labels = BackupLabels {
            host: "db1".into(),
            tags: [("nightly".into(), String::new()), ("v".into(), "1".into())].into(),
        };
        let tree = tree(labels, &mut TopNumbers::default());
        assert_eq!(names(&tree, ""), "by-day by-tag by-time hosts ids latest");
        assert_eq!(names(&tree, "by-day"), "2026-11-21 2026-11-22");
        let day = format!("{LAST_ID} latest");
        assert_eq!(names(&tree, "by-day/2026-11-22"), day);
        let times = "2026-11-21T05-45-01Z 2026-11-22T05-45-01Z";
        assert_eq!(names(&tree, "by-time"), times);
        assert_eq!(names(&tree, "hosts"), "db1");
        assert_eq!(names(&tree, "by-tag"), "nightly v=1");
        let target = |path: &str| {
            let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
            let number = tree.look_up(dir, name).unwrap();
            tree.entry(number).unwrap().1.clone()
        };
        assert_eq!(target("latest"), TopEntry::Link(format!("ids/{LAST_ID}")));
        let link = TopEntry::Link(format!("../../ids/{LAST_ID}"));
        assert_eq!(target("by-tag/v=1/latest"), link);
        let backup = TopEntry::Backup(FIRST_ID.into());
        assert_eq!(target(&format!("ids/{FIRST_ID}")), backup);
    }

    #[test]
    fn names_that_leave_their_directory_are_not_shown() {
        let tags = ["..", "a/b", ".", "nul\0", &"x".repeat(300)];
        let labels = BackupLabels {
            host: "../..".into(),
            tags: tags.map(|tag| (tag.into(), String::new())).into(),
        };
        let tree = tree(labels, &mut TopNumbers::default());
        assert_eq!(
            (names(&tree, "hosts"), names(&tree, "by-tag")),
            (String::new(), String::new())
        );
    }

    #[test]
    fn an_entry_keeps_its_number() {
        let mut numbers = TopNumbers::default();
        let first = tree(BackupLabels::default(), &mut numbers);
        let fewer = TopTree::new(&[LAST_ID.into()], &HashMap::new(), &mut numbers);
        assert_eq!(first.look_up("ids", LAST_ID), fewer.look_up("ids", LAST_ID));
        assert_eq!(first.look_up("", ""), Some(FIRST));
        assert_eq!(fewer.look_up("ids", FIRST_ID), None);
    }
}
