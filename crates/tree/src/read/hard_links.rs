//! Files with several names: the first name carries the content, each later one is a link to it.
//!
//! An inode number identifies a file only while the file exists. A name that is outside of the
//! tree, or is removed before the walk reaches it, stays expected until the end of the walk, and
//! another file may get the number meanwhile. So a name is a link only if the inode has the same
//! creation time, or, where the file system has none, the same size and mtime.
//!
//! There can be as many such files as files at all, so each takes little memory: about 120 bytes,
//! with a name of up to 24.

use super::listing::Child;
use fullbore_format::entry::{EntryKind, join, split};
use fullbore_pipeline::frame::Scanned;
use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
};

/// The files whose names were not all seen yet, by device and inode.
#[derive(Default)]
pub(crate) struct Links {
    firsts: HashMap<u64, BTreeMap<u64, FirstName>>,
    directories: Directories,
    marks: RandomState,
}

/// The first name of a file, and the number of names to come.
///
/// One allocation holds this number, the mark of the file, the number of its directory (4, 8 and 4
/// bytes), and the name.
struct FirstName(Box<[u8]>);

const NAME_AT: usize = 16;

impl Links {
    /// Handles the next name in archive order: a further name of a known file becomes a link.
    pub(crate) fn link_if_known(&mut self, child: &mut Child) {
        if !child.scanned.entry.is_file() || child.nlink < 2 {
            return;
        }
        let inode = child.scanned.entry.inode;
        let mark = self.mark(&child.scanned);
        let firsts = self.firsts.entry(child.dev).or_default();
        let Some(first) = firsts.get_mut(&inode).filter(|first| first.mark() == mark) else {
            return self.add_first(child, mark);
        };
        let target = join(self.directories.path(first.directory()), first.name());
        child.scanned.entry.kind = EntryKind::HardLink(target);
        // All names have come: the file is forgotten, so memory holds only files whose names are
        // still to come.
        if first.count_name() == 0
            && let Some(last) = firsts.remove(&inode)
        {
            self.directories.leave(last.directory());
        }
    }

    /// Records the first name of a file.
    fn add_first(&mut self, child: &mut Child, mark: u64) {
        child.scanned.is_first = true;
        let (directory, name) = split(&child.scanned.entry.path);
        let directory = self.directories.enter(directory);
        let first = FirstName::new(child.nlink - 1, mark, directory, name);
        let firsts = self.firsts.entry(child.dev).or_default();
        if let Some(old) = firsts.insert(child.scanned.entry.inode, first) {
            self.directories.leave(old.directory());
        }
    }

    /// Hashes the creation time of a file, or its size and mtime if it has none.
    fn mark(&self, Scanned { born, entry, .. }: &Scanned) -> u64 {
        match born {
            Some(born) => self.marks.hash_one((born.seconds, born.nanos)),
            None => self
                .marks
                .hash_one((entry.size(), entry.mtime.seconds, entry.mtime.nanos)),
        }
    }
}

impl FirstName {
    fn new(left: u32, mark: u64, directory: u32, name: &[u8]) -> Self {
        Self(
            [
                &left.to_le_bytes()[..],
                &mark.to_le_bytes(),
                &directory.to_le_bytes(),
                name,
            ]
            .concat()
            .into(),
        )
    }

    fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[offset + i])
    }

    /// Counts one more name. Returns the number of names to come.
    fn count_name(&mut self) -> u32 {
        let left = u32::from_le_bytes(self.bytes(0)) - 1;
        self.0[..4].copy_from_slice(&left.to_le_bytes());
        left
    }

    fn mark(&self) -> u64 {
        u64::from_le_bytes(self.bytes(4))
    }

    fn directory(&self) -> u32 {
        u32::from_le_bytes(self.bytes(12))
    }

    fn name(&self) -> &[u8] {
        &self.0[NAME_AT..]
    }
}

/// The directories of first names, by number. Names in one directory mostly follow each other.
#[derive(Default)]
struct Directories {
    all: Vec<SharedNames>,
    free: Vec<u32>,
    last: Option<u32>,
}

/// The path of a directory, and the number of names that share it.
#[derive(Default)]
struct SharedNames {
    path: Box<[u8]>,
    names: usize,
}

impl Directories {
    fn path(&self, number: u32) -> &[u8] {
        &self.all[number as usize].path
    }

    /// Returns the number of a directory, for one more name.
    fn enter(&mut self, path: &[u8]) -> u32 {
        let number = match self.last.filter(|last| self.path(*last) == path) {
            Some(last) => last,
            None => {
                let number = self.free.pop().unwrap_or(self.all.len() as u32);
                self.all.resize_with(
                    self.all.len().max(number as usize + 1),
                    SharedNames::default,
                );
                self.all[number as usize].path = path.into();
                number
            }
        };
        self.all[number as usize].names += 1;
        self.last = Some(number);
        number
    }

    /// Releases a directory for a name that is no longer needed.
    fn leave(&mut self, number: u32) {
        let shared = &mut self.all[number as usize];
        shared.names -= 1;
        if shared.names == 0 {
            *shared = SharedNames::default();
            self.free.push(number);
            self.last = self.last.filter(|last| *last != number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::listing::ListingState;
    use fullbore_format::{
        entry::{Entry, Time},
        page::EntryState,
    };

    fn file(path: &str, born: Option<i64>, (size, mtime): (u64, i64)) -> Child {
        let time = |seconds| Time { seconds, nanos: 0 };
        let kind = EntryKind::File { size, map: None };
        let entry = Entry {
            path: path.into(),
            kind,
            mtime: time(mtime),
            inode: 7,
            ..Entry::default()
        };
        let scanned = Scanned {
            born: born.map(time),
            ..Scanned::new(entry, EntryState::Whole)
        };
        Child {
            scanned,
            dev: 1,
            nlink: 3,
            listing: ListingState::Not,
            is_only_way: false,
        }
    }

    /// Returns the link target of each name.
    fn links(names: impl IntoIterator<Item = Child>) -> Vec<Option<String>> {
        let mut links = Links::default();
        let target = |mut child: Child| {
            links.link_if_known(&mut child);
            match child.scanned.entry.kind {
                EntryKind::HardLink(to) => Some(String::from_utf8(to).unwrap()),
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
        assert_eq!(
            found,
            [None, None, Some("b".into()), Some("b".into()), None]
        );
        let found = links([
            file("a", None, (5, 1)),
            file("b", None, (5, 2)),
            file("c", None, (6, 2)),
        ]);
        assert_eq!(found, [None, None, None]);
    }

    #[test]
    fn a_file_that_is_written_to_during_the_walk_is_one_file() {
        let found = links([file("a", Some(1), (5, 1)), file("b", Some(1), (9, 4))]);
        assert_eq!(found, [None, Some("a".into())]);
        let found = links([file("a", None, (5, 1)), file("b", None, (5, 1))]);
        assert_eq!(found, [None, Some("a".into())]);
    }

    #[test]
    fn a_file_is_forgotten_when_its_last_name_was_seen() {
        let mut links = Links::default();
        let mut see = |name: String, inode: u64, target: Option<String>| {
            let mut child = file(&name, Some(1), (5, 1));
            (child.scanned.entry.inode, child.nlink) = (inode, 2);
            links.link_if_known(&mut child);
            let found = match child.scanned.entry.kind {
                EntryKind::HardLink(to) => Some(String::from_utf8(to).unwrap()),
                _ => None,
            };
            assert_eq!(found, target, "{name}");
            links.directories.all.len() - links.directories.free.len()
        };
        let first = |i: u64| {
            if i < 4 {
                format!("top {i}")
            } else {
                format!("d{}/deep/f{i}", i / 4)
            }
        };
        let held: Vec<_> = (0..40).map(|i| see(first(i), i, None)).collect();
        assert_eq!(held, (0..40).map(|i| i / 4 + 1).collect::<Vec<_>>());
        let held: Vec<_> = (0..40)
            .rev()
            .map(|i| see(format!("z/{i}"), i, Some(first(i))))
            .collect();
        assert_eq!(
            held,
            (0..40)
                .rev()
                .map(|i| (i as usize).div_ceil(4))
                .collect::<Vec<_>>()
        );
        assert_eq!(see("again".into(), 7, None), 1);
        assert!(links.firsts[&1].len() == 1 && links.directories.all.len() == 10);
    }
}
