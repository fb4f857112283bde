//! Looks for the content of lost files in other backups of the repository.

use crate::verify::losses::EntryLoss;
use fullbore_format::{digest::Digest, entry::EntryPath, error::quoted, page::PageItem};
use fullbore_repository::{
    archive::{Archive, Selection},
    inventory::files,
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Size and digest: files that have both alike have the same content.
type ContentKey = (u64, [u8; 32]);

/// Lost files of which another backup has the content, each with that backup and its path there. Memory grows with the lost files.
#[derive(Debug, Default)]
pub(crate) struct SameContent(HashMap<ContentKey, (String, EntryPath)>);

impl SameContent {
    /// Looks through all `archives` for the content of the files that these `losses` name.
    pub(crate) fn find(archives: &[Archive], losses: &[EntryLoss]) -> Self {
        let mut wanted = HashSet::new();
        let lost = Losses::new(losses);
        for archive in archives {
            lost.each(archive, true, |key, _| _ = wanted.insert(key));
        }
        let mut found = HashMap::new();
        if wanted.is_empty() {
            return Self::default();
        }
        for archive in archives {
            lost.each(archive, false, |key, path| {
                if wanted.contains(&key) {
                    found.insert(key, (archive.root.id.clone(), path.clone()));
                }
            });
        }
        Self(found)
    }

    /// Returns where the content of each of these files of a backup is, in words.
    pub(crate) fn lines(
        &self,
        archive: &Archive,
        paths: &[EntryPath],
    ) -> BTreeMap<EntryPath, String> {
        let wanted: HashSet<&EntryPath> = paths.iter().collect();
        let mut lines = BTreeMap::new();
        if self.0.is_empty() {
            return lines;
        }
        for parts in files(archive.records(&Selection::default(), false)) {
            let path = &parts[0].entry.path;
            if wanted.contains(path)
                && let Some((backup, there)) = key_of(&parts).and_then(|key| self.0.get(&key))
            {
                let line = format!(
                    "backup {backup:?} has the same content, as {}",
                    quoted(there)
                );
                lines.insert(path.clone(), line);
            }
        }
        lines
    }
}

/// The lost files of each backup.
struct Losses<'a>(HashMap<&'a str, HashSet<&'a EntryPath>>);

impl<'a> Losses<'a> {
    fn new(losses: &'a [EntryLoss]) -> Self {
        let of = |loss: &'a EntryLoss| (&*loss.backup, loss.files.iter().collect());
        Self(losses.iter().map(of).collect())
    }

    /// Calls `take` for each file with a digest, of those that are lost or of all others.
    fn each(
        &self,
        archive: &Archive,
        are_lost: bool,
        mut take: impl FnMut(ContentKey, &EntryPath),
    ) {
        let lost = self.0.get(&*archive.root.id);
        if are_lost && lost.is_none() {
            return;
        }
        for parts in files(archive.records(&Selection::default(), false)) {
            let path = &parts[0].entry.path;
            let is_lost = lost.is_some_and(|lost| lost.contains(path));
            if is_lost == are_lost
                && let Some(key) = key_of(&parts)
            {
                take(key, path);
            }
        }
    }
}

/// Returns the key of a file's content; `None` if its digest is unknown.
fn key_of(parts: &[PageItem]) -> Option<ContentKey> {
    let last = parts.last().filter(|last| last.state.is_stored())?;
    match last.digest? {
        Digest::Blake3(digest) => Some((last.entry.size(), digest)),
        // Another content can have the same checksum.
        Digest::Crc32c(_) => None,
    }
}
