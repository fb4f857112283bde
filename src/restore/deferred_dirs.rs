//! Directories that get their metadata at the end.
//!
//! What a stream says of a directory is wanted when all that is in it has been written. It is kept as a header of tar, beyond a
//! few of them in a file without a name in the target: in memory is only where each stands.

use crate::{
    error::{Error, ErrorKind, Result},
    format::{
        entry::Entry,
        pax::{PaxReader, TarItem, write_header},
    },
    platform::write::pwrite_all,
    target::tree::TargetTree,
};
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fs::File,
    hash::{BuildHasher, RandomState},
    os::unix::fs::FileExt,
};

/// Bytes of headers in memory.
const IN_MEMORY: usize = 4 << 20;

/// Directories, each by its path.
#[derive(Default)]
pub(crate) struct DeferredDirs {
    /// By the hash of the path, or the next number that nothing had; `None` if it was taken out again.
    places: BTreeMap<u64, Option<HeaderAt>>,
    hasher: RandomState,
    /// The first headers.
    file: Option<File>,
    filed: u64,
    /// Those behind them.
    rest: Vec<u8>,
}

/// Where a header stands among all of them.
#[derive(Clone, Copy)]
struct HeaderAt {
    offset: u64,
    len: u32,
    /// Directories above it.
    depth: u32,
}

impl DeferredDirs {
    /// Is there a directory of this path?
    pub(crate) fn has(&self, path: &[u8]) -> Result<bool> {
        Ok(self.find(path)?.1.is_some())
    }

    /// Add a directory, in place of one of the same path.
    ///
    /// # Errors
    /// As [`write_header`], or those of the file.
    pub(crate) fn insert(&mut self, directory: &Entry, target: &TargetTree) -> Result<()> {
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
            self.unburden(target);
        }
        Ok(())
    }

    /// Take out the directory of this path, if there is one.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn remove(&mut self, path: &[u8]) -> Result<()> {
        let (key, there) = self.find(path)?;
        there.map(|_| self.places.insert(key, None));
        Ok(())
    }

    /// All of them, each before those that it is in.
    pub(crate) fn deepest_first(mut self) -> impl Iterator<Item = Result<Entry>> {
        let mut places: Vec<HeaderAt> = std::mem::take(&mut self.places)
            .into_values()
            .flatten()
            .collect();
        places.sort_unstable_by_key(|place| (Reverse(place.depth), place.offset));
        places.into_iter().map(move |place| self.read(place))
    }

    /// Where a directory of this path stands in the map, or would; and if it is there, its header.
    fn find(&self, path: &[u8]) -> Result<(u64, Option<HeaderAt>)> {
        let mut key = self.hasher.hash_one(path);
        while let Some(there) = self.places.get(&key) {
            match there {
                Some(place) if self.read(*place)?.path == path => return Ok((key, Some(*place))),
                _ => key = key.wrapping_add(1),
            }
        }
        Ok((key, None))
    }

    /// Move the headers to the file. If there can be none they stay.
    fn unburden(&mut self, target: &TargetTree) {
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

    fn read(&self, place: HeaderAt) -> Result<Entry> {
        let mut filed = Vec::new();
        let header = match (place.offset.checked_sub(self.filed), &self.file) {
            (Some(at), _) => &self.rest[at as usize..][..place.len as usize],
            (None, Some(file)) => {
                filed.resize(place.len as usize, 0);
                let read = file.read_exact_at(&mut filed, place.offset);
                read.map_err(|e| Error::io("could not read back what is known of a directory", e))?;
                &filed
            }
            (None, None) => return Err(lost()),
        };
        match PaxReader::new().next(&mut &*header)? {
            Some(TarItem::Member(member)) => Ok(member.entry),
            _ => Err(lost()),
        }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Bug, "what was known of a directory is lost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::entry::{EntryKind, Owner, Time},
        target::{layout::TargetLayout, tree::TargetOptions},
    };
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
            let options = TargetOptions { overwrite: false, numeric_owner: true, usual_parents: true };
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
