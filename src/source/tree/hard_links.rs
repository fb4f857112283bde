//! Files with several names: the first name of one carries its content, each later one is a link to it.
//!
//! An inode is known by its number only as long as it exists. A name that lies outside of the tree, or goes away before it was
//! seen, is waited for to the end of the walk, and meanwhile the number may be given to another file. So a name is one more
//! of the same file only if the inode was made at the same time; where the file system does not tell, if size and mtime are
//! the same.
//!
//! There may be as many of them as there are files, so each takes little room: about 120 bytes, with a name of up to 24.

use super::listing::Child;
use crate::{
    format::entry::{EntryKind, join, split},
    frame::Scanned,
};
use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
};

/// The files of which not all names were seen, by device and inode.
#[derive(Default)]
pub(crate) struct Links {
    firsts: HashMap<u64, BTreeMap<u64, FirstName>>,
    directories: Directories,
    marks: RandomState,
}

/// The first name of a file, and how many are still to come. One piece of memory holds how many, the mark of the file and the
/// number of its directory, at 4, 8 and 4 bytes, and its name.
struct FirstName(Box<[u8]>);

const NAME_AT: usize = 16;

impl Links {
    /// A name, in archive order: if it is one more of a file that came before, it becomes a link.
    pub(crate) fn see(&mut self, child: &mut Child) {
        if !child.scanned.entry.is_file() || child.nlink < 2 {
            return;
        }
        let (inode, mark) = (child.scanned.entry.inode, self.mark(&child.scanned));
        let firsts = self.firsts.entry(child.dev).or_default();
        let left = match firsts.get_mut(&inode).filter(|first| first.mark() == mark) {
            Some(first) => {
                child.scanned.entry.kind = EntryKind::HardLink(join(
                    self.directories.path(first.directory()),
                    first.name(),
                ));
                first.pass()
            }
            None => {
                child.scanned.is_first = true;
                let (directory, name) = split(&child.scanned.entry.path);
                let first = FirstName::new(
                    child.nlink - 1,
                    mark,
                    self.directories.enter(directory),
                    name,
                );
                let old = firsts.insert(inode, first);
                old.iter()
                    .for_each(|old| self.directories.leave(old.directory()));
                return;
            }
        };
        if left == 0 {
            let last = firsts.remove(&inode);
            last.iter()
                .for_each(|first| self.directories.leave(first.directory()));
        }
    }

    /// Stands for when a file was made; where that is not told, for its size and mtime.
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

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    /// One more name was seen; gives how many are left.
    fn pass(&mut self) -> u32 {
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

/// The directories of first names, by numbers: names in one directory mostly follow each other.
#[derive(Default)]
struct Directories {
    all: Vec<SharedNames>,
    free: Vec<u32>,
    last: Option<u32>,
}

/// The path of a directory, and how many names share it.
#[derive(Default)]
struct SharedNames {
    path: Box<[u8]>,
    names: usize,
}

impl Directories {
    fn path(&self, number: u32) -> &[u8] {
        &self.all[number as usize].path
    }

    /// The number of a directory, for one more name.
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

    /// A name is not needed any more.
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
    use crate::{
        format::{
            entry::{Entry, Time},
            page::EntryState,
        },
        source::tree::listing::Ahead,
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
            listing: Ahead::Not,
            is_only_way: false,
        }
    }

    /// What each of the names is a link to.
    fn links(names: impl IntoIterator<Item = Child>) -> Vec<Option<String>> {
        let mut links = Links::default();
        let target = |mut child: Child| {
            links.see(&mut child);
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
    fn names_are_forgotten_when_the_last_of_them_was_seen() {
        let mut links = Links::default();
        let mut see = |name: String, inode: u64, target: Option<String>| {
            let mut child = file(&name, Some(1), (5, 1));
            (child.scanned.entry.inode, child.nlink) = (inode, 2);
            links.see(&mut child);
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
