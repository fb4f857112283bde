//! Directories that get their metadata at the end of a restore from a stream, or of a copy.
//!
//! The metadata of a directory is needed only after everything in the directory is written. It is
//! kept as a tar header: a few MiB of headers in memory, the rest in an unnamed file in the target.
//! The index in memory holds an offset a directory.

use crate::write::tree::TargetTree;
use fullbore_format::{
    entry::Entry,
    error::{Error, ErrorKind, Result},
    pax::{PaxReader, TarItem, write_header},
};
use fullbore_platform::write::pwrite_all;
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fs::File,
    hash::{BuildHasher, RandomState},
    os::unix::fs::FileExt,
};

/// Maximum size of the headers in memory, in bytes.
const IN_MEMORY: usize = 4 << 20;

/// The directories, by path.
#[derive(Default)]
pub struct DeferredDirs {
    /// Headers by the hash of the path, or by the next free number; `None` for a removed directory.
    places: BTreeMap<u64, Option<HeaderAt>>,
    hasher: RandomState,
    /// The file that holds the first headers.
    file: Option<File>,
    filed: u64,
    /// The headers after those in the file.
    rest: Vec<u8>,
}

/// Position of a header among all headers.
#[derive(Clone, Copy)]
struct HeaderAt {
    offset: u64,
    len: u32,
    /// Number of directories above it.
    depth: u32,
}

impl DeferredDirs {
    /// Returns whether a directory of this path is known.
    pub fn has(&self, path: &[u8]) -> Result<bool> {
        Ok(self.find(path)?.1.is_some())
    }

    /// Adds a directory; replaces one of the same path.
    ///
    /// # Errors
    /// Those of [`write_header`], or of the file.
    pub fn insert(&mut self, directory: &Entry, target: &TargetTree) -> Result<()> {
        let key = self.find(&directory.path)?.0;
        let start = self.rest.len();
        write_header(directory, &mut self.rest)?;
        let depth = directory
            .path
            .split(|c| *c == b'/')
            .filter(|name| !name.is_empty())
            .count() as u32;
        let place = HeaderAt {
            offset: self.filed + start as u64,
            len: (self.rest.len() - start) as u32,
            depth,
        };
        self.places.insert(key, Some(place));
        if self.rest.len() > IN_MEMORY {
            self.spill(target);
        }
        Ok(())
    }

    /// Removes the directory of this path, if known.
    ///
    /// # Errors
    /// Those of the file.
    pub fn remove(&mut self, path: &[u8]) -> Result<()> {
        let (key, place) = self.find(path)?;
        place.map(|_| self.places.insert(key, None));
        Ok(())
    }

    /// Returns all directories, each before its parents.
    pub fn deepest_first(mut self) -> impl Iterator<Item = Result<Entry>> {
        let mut places: Vec<HeaderAt> = std::mem::take(&mut self.places)
            .into_values()
            .flatten()
            .collect();
        places.sort_unstable_by_key(|place| (Reverse(place.depth), place.offset));
        places.into_iter().map(move |place| self.read_header(place))
    }

    /// Returns the key of this path, used or free, and the position of its header if the directory
    /// is known.
    fn find(&self, path: &[u8]) -> Result<(u64, Option<HeaderAt>)> {
        let mut key = self.hasher.hash_one(path);
        while let Some(header) = self.places.get(&key) {
            match header {
                Some(place) if self.read_header(*place)?.path == path => {
                    return Ok((key, Some(*place)));
                }
                _ => key = key.wrapping_add(1),
            }
        }
        Ok((key, None))
    }

    /// Moves the headers to the file. They stay in memory if there can be no file.
    fn spill(&mut self, target: &TargetTree) {
        if self.file.is_none() {
            self.file = target.nameless();
        }
        if let Some(file) = &self.file
            && pwrite_all(file, &self.rest, self.filed).is_ok()
        {
            self.filed += self.rest.len() as u64;
            self.rest.clear();
        }
    }

    fn read_header(&self, place: HeaderAt) -> Result<Entry> {
        let mut filed = Vec::new();
        // Headers are filed in order: what lies before `filed` is in the file, the rest still in
        // memory.
        let header = match (place.offset.checked_sub(self.filed), &self.file) {
            (Some(at), _) => &self.rest[at as usize..][..place.len as usize],
            (None, Some(file)) => {
                filed.resize(place.len as usize, 0);
                let read = file.read_exact_at(&mut filed, place.offset);
                read.map_err(|e| Error::io("could not read back the metadata of a directory", e))?;
                &filed
            }
            (None, None) => return Err(missing_header()),
        };
        match PaxReader::new().next(&mut &*header)? {
            Some(TarItem::Member(member)) => Ok(member.entry),
            _ => Err(missing_header()),
        }
    }
}

fn missing_header() -> Error {
    Error::new(
        ErrorKind::Bug,
        "the stored metadata of a directory is missing",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::{layout::TargetLayout, tree::TargetOptions};
    use fullbore_format::entry::{EntryKind, Owner, Time};
    use proptest::{collection::vec, prelude::*};
    use std::collections::HashMap;

    fn directory(path: &str, mode: u32, value: usize) -> Entry {
        let owner = Owner {
            uid: mode,
            gid: 7,
            user: "someone".into(),
            group: "all".into(),
        };
        let mtime = Time {
            seconds: -1,
            nanos: mode,
        };
        let xattrs = vec![(b"user.x".to_vec(), vec![b'v'; value])];
        Entry {
            path: path.into(),
            kind: EntryKind::Directory,
            mode,
            owner,
            mtime,
            xattrs,
            ..Entry::default()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn the_last_of_each_path_is_given_back_after_what_is_in_it(
            done in vec(("([ab](/[ab]){0,3})?", 0o1u32..0o7777, any::<bool>(), 0usize..60_000), 1..300),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let options = TargetOptions { overwrite: false, numeric_owner: true, usual_parents: true, whole_files: false };
            let target = TargetTree::create(&TargetLayout::plain(dir.path()), options).unwrap();
            let (mut later, mut expected) = (DeferredDirs::default(), HashMap::new());
            for (path, mode, stays, value) in done {
                let entry = directory(&path, mode, value);
                prop_assert_eq!(later.has(&entry.path).unwrap(), expected.contains_key(&entry.path));
                if stays {
                    later.insert(&entry, &target).unwrap();
                    expected.insert(entry.path.clone(), entry);
                } else {
                    later.remove(&entry.path).unwrap();
                    expected.remove(&entry.path);
                }
                prop_assert!(later.rest.len() <= IN_MEMORY);
            }
            let all: Vec<Entry> = later.deepest_first().map(|entry| entry.unwrap()).collect();
            prop_assert_eq!(all.len(), expected.len());
            let depth = |entry: &Entry| entry.path.split(|c| *c == b'/').filter(|name| !name.is_empty()).count();
            prop_assert!(all.is_sorted_by_key(|entry| Reverse(depth(entry))));
            prop_assert!(all.iter().all(|entry| expected[&entry.path] == *entry));
        }
    }
}
