//! Files with several names: the first name of one carries its content, each later one is a link to it.
//!
//! An inode is known by its number only as long as it exists. A name that lies outside of the tree, or goes away before it was
//! seen, is waited for to the end of the walk, and meanwhile the number may be given to another file. So a name is one more
//! of the same file only if the inode was made at the same time; where the file system does not tell, if size and mtime are
//! the same.

use super::listing::Child;
use crate::format::entry::{Kind, Path, Time};
use std::collections::HashMap;

/// The files of which not all names were seen, by device and inode: one path for each.
#[derive(Default)]
pub(super) struct Links(HashMap<(u64, u64), First>);

/// The first name of a file, and how many are still to come.
struct First {
    path: Path,
    left: u32,
    born: Option<Time>,
    size: u64,
    mtime: Time,
}

impl Links {
    /// A name, in archive order: if it is one more of a file that came before, it becomes a link.
    pub(super) fn see(&mut self, child: &mut Child) {
        if !child.scanned.entry.is_file() || child.nlink < 2 {
            return;
        }
        let key = (child.dev, child.scanned.entry.inode);
        let now = First::of(child);
        match self.0.get_mut(&key).filter(|first| first.is_same(&now)) {
            Some(first) => {
                child.scanned.entry.kind = Kind::HardLink(first.path.clone());
                first.left -= 1;
                if first.left == 0 {
                    self.0.remove(&key);
                }
            }
            None => _ = self.0.insert(key, now),
        }
    }
}

impl First {
    fn of(child: &Child) -> Self {
        let (scanned, left) = (&child.scanned, child.nlink - 1);
        let entry = &scanned.entry;
        Self { path: entry.path.clone(), left, born: scanned.born, size: entry.size(), mtime: entry.mtime }
    }

    fn is_same(&self, now: &Self) -> bool {
        match (self.born, now.born) {
            (Some(first), Some(now)) => first == now,
            _ => self.size == now.size && self.mtime == now.mtime,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::{entry::Entry, page::State},
        frame::Scanned,
        source::listing::Ahead,
    };

    fn file(path: &str, born: Option<i64>, (size, mtime): (u64, i64)) -> Child {
        let time = |seconds| Time { seconds, nanos: 0 };
        let kind = Kind::File { size, map: None };
        let entry = Entry { path: path.into(), kind, mtime: time(mtime), inode: 7, ..Entry::default() };
        let scanned = Scanned { born: born.map(time), ..Scanned::new(entry, State::Whole) };
        Child { scanned, dev: 1, nlink: 3, listing: Ahead::Not }
    }

    /// What each of the names is a link to.
    fn links(names: impl IntoIterator<Item = Child>) -> Vec<Option<String>> {
        let mut links = Links::default();
        let target = |mut child: Child| {
            links.see(&mut child);
            match child.scanned.entry.kind {
                Kind::HardLink(to) => Some(String::from_utf8(to).unwrap()),
                _ => None,
            }
        };
        names.into_iter().map(target).collect()
    }

    #[test]
    fn a_file_that_has_the_inode_of_a_removed_one_is_no_link_to_it() {
        let found = links([
            file("a", Some(1), (5, 1)),
            file("b", Some(2), (5, 1)),
            file("c", Some(2), (5, 1)),
            file("d", Some(2), (5, 1)),
            file("e", Some(2), (5, 1)),
        ]);
        assert_eq!(found, [None, None, Some("b".into()), Some("b".into()), None]);
        let found = links([file("a", None, (5, 1)), file("b", None, (5, 2)), file("c", None, (6, 2))]);
        assert_eq!(found, [None, None, None]);
    }

    #[test]
    fn a_file_that_is_written_to_during_the_walk_is_one_file() {
        let found = links([file("a", Some(1), (5, 1)), file("b", Some(1), (9, 4))]);
        assert_eq!(found, [None, Some("a".into())]);
        let found = links([file("a", None, (5, 1)), file("b", None, (5, 1))]);
        assert_eq!(found, [None, Some("a".into())]);
    }
}
