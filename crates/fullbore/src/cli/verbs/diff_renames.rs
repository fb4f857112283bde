//! Directories that have another name in the later backup, with the same content.
//!
//! A directory of one backup alone is compared by a digest of all that is in it: relative paths,
//! kinds, sizes and digests of content. Memory holds a digest for each such directory.

use super::diff_entry::{Parts, last};
use fullbore_format::{
    digest::{Digest, digests},
    entry::{Entry, EntryKind, EntryPath, is_within},
};
use std::collections::HashMap;

/// A directory that was renamed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RenamedDirectory {
    pub(super) before: EntryPath,
    pub(super) after: EntryPath,
    /// Files in it, and their bytes.
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// Finds directories that only one of two backups has, whole. Takes entries in archive order.
#[derive(Default)]
pub(super) struct WholeDirectories {
    open: Option<OpenDirectory>,
    found: Vec<(EntryPath, FoundContent)>,
}

/// The content of a directory.
struct FoundContent {
    digest: Vec<u8>,
    files: u64,
    bytes: u64,
}

struct OpenDirectory {
    path: EntryPath,
    /// Of the entries so far, each with the digest before it.
    digest: Vec<u8>,
    files: u64,
    bytes: u64,
    /// Whether all content is known by its digest.
    is_known: bool,
}

impl WholeDirectories {
    /// Takes an entry that the other backup lacks.
    pub(super) fn take(&mut self, parts: &Parts) {
        let item = last(parts);
        let entry = &item.entry;
        let is_below = |open: &OpenDirectory| is_within(&entry.path, &open.path);
        if !self.open.as_ref().is_some_and(is_below) {
            self.close();
            let is_directory = entry.kind == EntryKind::Directory && !entry.path.is_empty();
            self.open = is_directory.then(|| OpenDirectory::new(&entry.path));
        } else if let Some(open) = &mut self.open {
            let is_known = !entry.is_file() || (item.state.is_stored() && item.digest.is_some());
            open.is_known &= is_known;
            open.add(entry, item.digest);
        }
    }

    fn close(&mut self) {
        let Some(open) = self
            .open
            .take()
            .filter(|open| open.is_known && open.files > 0)
        else {
            return;
        };
        let content = FoundContent {
            digest: open.digest,
            files: open.files,
            bytes: open.bytes,
        };
        self.found.push((open.path, content));
    }

    /// Returns the directories that `after` has under another name.
    pub(super) fn renamed(mut self, mut after: Self) -> Vec<RenamedDirectory> {
        self.close();
        after.close();
        let before = self.found.into_iter().rev();
        let mut before: HashMap<Vec<u8>, EntryPath> = before
            .map(|(path, content)| (content.digest, path))
            .collect();
        let mut renamed = Vec::new();
        for (path, content) in after.found {
            if let Some(earlier) = before.remove(&content.digest) {
                renamed.push(RenamedDirectory {
                    before: earlier,
                    after: path,
                    files: content.files,
                    bytes: content.bytes,
                });
            }
        }
        renamed
    }
}

impl OpenDirectory {
    fn new(path: &[u8]) -> Self {
        Self {
            path: path.to_vec(),
            digest: Vec::new(),
            files: 0,
            bytes: 0,
            is_known: true,
        }
    }

    fn add(&mut self, entry: &Entry, digest: Option<Digest>) {
        let below = |path: &[u8]| path[self.path.len()..].to_vec();
        let name = below(&entry.path);
        let kind = match &entry.kind {
            EntryKind::HardLink(first) if is_within(first, &self.path) => {
                format!("link {:?}", below(first))
            }
            kind => format!("{kind:?}"),
        };
        let text = format!("{name:?} {kind} {digest:?}\n");
        let all = [&self.digest[..], text.as_bytes()].concat();
        if let [Digest::Blake3(sum)] = digests(&[&all])[..] {
            self.digest = sum.to_vec();
        }
        if entry.is_file() {
            self.files += 1;
            self.bytes = self.bytes.saturating_add(entry.data_len());
        }
    }
}
