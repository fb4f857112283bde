//! Where a session is in the backup, and the paths that its words mean.

use super::words::TypedWord;
use fullbore_format::{
    entry::{EntryKind, EntryPath, join, split},
    error::{Error, ErrorKind, Result},
};
use fullbore_repository::archive::{
    Archive, children::DirectoryChild, not_there, source_paths::selection_in,
};
use fullbore_tree::patterns::Patterns;
use std::{path::Path, sync::Arc};

/// The most paths that one word with wildcards may mean.
const MOST_MATCHES: usize = 100_000;

/// The backup and the current directory in it.
#[derive(Clone)]
pub(super) struct BackupPlace {
    pub(super) archive: Arc<Archive>,
    /// Empty for the root of the backup.
    pub(super) directory: EntryPath,
}

impl BackupPlace {
    /// Returns the path that a word means, without wildcards. It need not exist.
    ///
    /// `/x` is below the root of the backup, or `/x` as it was on the host.
    pub(super) fn path(&self, text: &[u8]) -> Result<EntryPath> {
        let mut path = match text.first() {
            Some(b'/') => EntryPath::new(),
            _ => self.directory.clone(),
        };
        for part in text.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => path = split(&path).0.to_vec(),
                name => path = join(&path, name),
            }
        }
        if text.starts_with(b"/") && !self.archive.has(&path)? {
            let absolute = [b"/", &path[..]].concat();
            let found = selection_in(&self.archive, &[absolute])?;
            path = found.paths().first().cloned().unwrap_or(path);
        }
        Ok(path)
    }

    /// Returns the paths that a word means. Each exists.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none.
    pub(super) fn paths(&self, word: &TypedWord) -> Result<Vec<EntryPath>> {
        if !word.has_wildcard {
            let path = self.path(&word.text)?;
            if !path.is_empty() && !self.archive.has(&path)? {
                return Err(not_there(&self.archive, &path));
            }
            return Ok(vec![path]);
        }
        self.matches(word)
    }

    fn matches(&self, word: &TypedWord) -> Result<Vec<EntryPath>> {
        let start = match word.pattern.first() {
            Some(b'/') => EntryPath::new(),
            _ => self.directory.clone(),
        };
        let mut found = vec![start];
        for part in word.pattern.split(|byte| *byte == b'/') {
            found = match part {
                b"" | b"." => found,
                b".." => found.iter().map(|path| split(path).0.to_vec()).collect(),
                part => self.matching_children(&found, part)?,
            };
        }
        if found.is_empty() {
            let name = String::from_utf8_lossy(&word.text).into_owned();
            let message = format!("could not find a path that matches {name:?}");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        Ok(found)
    }

    fn matching_children(&self, above: &[EntryPath], part: &[u8]) -> Result<Vec<EntryPath>> {
        let line = [b"/", part].concat();
        let patterns = Patterns::read(&[line], &[] as &[&Path], &[])?;
        let mut found = Vec::new();
        for directory in above {
            for child in self.archive.children(directory) {
                let child = child?;
                // As in a shell: a name with a dot at its begin is meant by a dot only.
                let is_hidden = child.name().starts_with(b".") && !part.starts_with(b".");
                if !is_hidden && patterns.matches(child.name(), true) {
                    found.push(child.path);
                }
            }
            if found.len() > MOST_MATCHES {
                let message = format!("cannot take more than {MOST_MATCHES} paths at once");
                return Err(Error::new(ErrorKind::Usage, message).hint("name their directory"));
            }
        }
        Ok(found)
    }

    /// Returns whether a path is a directory of the backup.
    pub(super) fn is_directory(&self, path: &[u8]) -> Result<bool> {
        if path.is_empty() {
            return Ok(true);
        }
        match self.archive.look_up(path)? {
            Some((_, item)) => Ok(item.entry.kind == EntryKind::Directory),
            None => self.archive.has(path),
        }
    }
}

/// Returns whether a child is a directory.
pub(super) fn is_directory(child: &DirectoryChild) -> bool {
    let item = child.item.as_ref();
    item.is_none_or(|item| item.entry.kind == EntryKind::Directory)
}
