//! The entries of the tree that a copy writes, as they are before it.

use super::{attributes::AttributeReader, call::OpenTarget};
use fullbore_format::{
    entry::{Entry, EntryKind, split},
    error::{Error, Result},
    page::{EntryState, Record},
};
use fullbore_pipeline::{
    frame::{ContentScope, Scanned},
    source::{Source, Stream},
};
use fullbore_platform::dir::{LOST_AND_FOUND, is_mount_root, open_dir, open_root};
use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
};

/// Bytes of the texts of an entry at most; attributes beyond it are left out.
const MAX_TEXT: usize = 512 << 10;

/// Files whose metadata is remembered between list and comparison, at most: about 20 MB.
const MAX_LISTED: usize = 1 << 20;

/// Hashes of listed files with their metadata: if the source has the same, a comparison of contents
/// need not look at the metadata again.
#[derive(Default)]
pub(super) struct ListedFiles {
    hasher: RandomState,
    files: HashSet<u64>,
}

impl ListedFiles {
    /// Notes a file as it is in the tree.
    pub(super) fn note(&mut self, entry: &Entry) {
        if entry.is_file() && self.files.len() < MAX_LISTED {
            let owner = (entry.owner.uid, entry.owner.gid);
            self.files.insert(self.hash(entry, owner));
        }
    }

    /// Returns whether a file was listed with this metadata and this owner, and forgets it.
    pub(super) fn take(&mut self, entry: &Entry, owner: (u32, u32)) -> bool {
        let hash = self.hash(entry, owner);
        self.files.remove(&hash)
    }

    fn hash(&self, entry: &Entry, owner: (u32, u32)) -> u64 {
        let time = (entry.mtime.seconds, entry.mtime.nanos);
        self.hasher
            .hash_one((&entry.path, entry.size(), entry.mode, time, owner))
    }
}

/// The entries of a tree that are not listed yet.
pub(super) struct TreeListing {
    scan: Stream<Scanned>,
    root: OwnedFd,
    /// `None` if the content of all files is compared: their attributes are compared then, too.
    pub(super) attributes: Option<AttributeReader>,
}

impl TreeListing {
    /// # Errors
    /// The system's.
    pub(super) fn open(path: &Path, wanted: &OpenTarget) -> Result<Self> {
        let root = open_root(path);
        let rules = wanted.deletion_rules();
        let source = match rules.only() {
            Some(names) => rules.open_names(path, &names)?,
            None => rules.open(path, Arc::default())?,
        };
        Ok(Self {
            scan: source.scan()?,
            root: root.map_err(|e| Error::io(format!("could not open {path:?}"), e))?,
            attributes: match wanted.checksum {
                true => None,
                false => Some(AttributeReader::open(path)?),
            },
        })
    }

    /// Returns whether this is the `lost+found` of a file system, which is no part of the tree.
    fn is_of_file_system(&self, entry: &Entry) -> bool {
        let (parent, name) = split(&entry.path);
        name == LOST_AND_FOUND
            && entry.kind == EntryKind::Directory
            && open_dir(&self.root, parent).is_ok_and(is_mount_root)
    }
}

impl Iterator for TreeListing {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Scanned {
                mut entry,
                mut state,
                content,
                ..
            } = match self.scan.next()? {
                Ok(scanned) => scanned,
                Err(error) => return Some(Err(error)),
            };
            if state == EntryState::Vanished {
                continue;
            }
            // What is in a marked directory is not listed: it stays as it is.
            if content == ContentScope::Marked || self.is_of_file_system(&entry) {
                state = EntryState::Noted;
            }
            if let Some(attributes) = self.attributes.as_mut().filter(|_| entry.is_file()) {
                // An error makes the entry differ: then it is written again, which reports it.
                entry.xattrs = attributes.read(&entry.path).unwrap_or_default();
            }
            if let EntryKind::File { map, .. } = &mut entry.kind {
                *map = None;
            }
            if entry.text_bytes() > MAX_TEXT {
                entry.xattrs.clear();
            }
            return Some(Ok(Record::without_content(entry, state)));
        }
    }
}
