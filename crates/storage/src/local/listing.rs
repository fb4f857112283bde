//! Walks through the directories of a repository, which other processes change meanwhile.
//!
//! A directory that another process removes is empty, whenever that happens: before it is opened, between its opening and its
//! reading, or before one of its names is looked at.

use super::directory::LocalObjects;
use fullbore_format::layout::BACKUPS;
use fullbore_platform::{
    dir::{self, DirName, FileKind, LOST_AND_FOUND, Stat},
    durable, write,
};
use fullbore_wire::key::{MAX_KEY_BYTES, split_key};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Is called with the directory, key and state of a file.
pub(super) type VisitFile<'a> = &'a mut dyn FnMut(&OwnedFd, String, &Stat) -> io::Result<()>;

impl LocalObjects {
    /// Calls `visit` with the directory, key and state of each regular file, and each link, below `prefix`, in no order.
    ///
    /// A partial file is visited by the key that it would have.
    pub(super) fn visit_files(&self, prefix: &str, visit: VisitFile<'_>) -> io::Result<()> {
        let mut dirs = vec![prefix.to_owned()];
        let mut buffer = Vec::new();
        while let Some(prefix) = dirs.pop() {
            let Some(dir) = unless_gone(self.open_dir(&prefix))? else {
                continue;
            };
            for entry in names_in(&dir, &mut buffer)? {
                if prefix.is_empty() && entry.bytes == LOST_AND_FOUND {
                    continue;
                }
                visit_name(&dir, &prefix, &entry, &mut dirs, visit)?;
            }
        }
        Ok(())
    }

    /// Removes the empty directories in this one, which a delete that was killed has left.
    pub(super) fn remove_empty_dirs_in(&self, prefix: &str) {
        let Ok(dir) = self.open_dir(prefix) else {
            return;
        };
        for entry in dir::read_dir(&dir, &mut Vec::new()).into_iter().flatten() {
            let _ = write::remove_dir_at(&dir, &entry.bytes); // it is no directory, or not empty
        }
    }

    /// Makes the names below a prefix durable, and its own.
    ///
    /// The name of a directory is durable by the one above. Of a directory that was removed, the first one above it that is there is
    /// synced.
    pub(super) fn sync_names(&self, prefix: &str) -> io::Result<()> {
        let mut dir = prefix;
        loop {
            let is_synced = unless_gone(self.open_dir(dir).and_then(durable::sync_dir))?.is_some();
            if dir.is_empty() || is_synced && dir.len() < prefix.len() {
                break;
            }
            dir = split_key(dir).0;
        }
        let mut synced = prefix.to_owned();
        self.visit_files(prefix, &mut |dir, key, _| {
            let parent = split_key(&key).0;
            if parent != synced {
                durable::sync_dir(dir.as_fd())?;
                synced = parent.to_owned();
            }
            Ok(())
        })
    }
}

/// Visits a file, or adds a directory to those that are still to be listed.
fn visit_name(
    dir: &OwnedFd,
    prefix: &str,
    entry: &DirName,
    dirs: &mut Vec<String>,
    visit: VisitFile<'_>,
) -> io::Result<()> {
    let Ok(name) = std::str::from_utf8(&entry.bytes) else {
        return Ok(());
    };
    let Some(stat) = unless_gone(dir::stat(dir, &entry.bytes))? else {
        return Ok(());
    };
    let key = if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}/{name}")
    };
    let is_backups_link = key == BACKUPS && stat.kind == FileKind::Symlink;
    let is_dir = stat.kind == FileKind::Directory || is_backups_link;
    // No key is longer, so a tree that is deeper has no end of interest.
    if is_dir && key.len() < MAX_KEY_BYTES {
        dirs.push(key);
    } else if matches!(stat.kind, FileKind::File | FileKind::Symlink) {
        // A link in place of an object is listed, so that it is found to be damage when it is read.
        visit(dir, key, &stat)?;
    }
    Ok(())
}

fn names_in(dir: &OwnedFd, buffer: &mut Vec<u8>) -> io::Result<Vec<DirName>> {
    Ok(unless_gone(dir::read_dir(dir, buffer))?.unwrap_or_default())
}

/// Returns the result; `None` for what another process removed meanwhile, also on another host: NFS calls it stale.
fn unless_gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if is_gone(&error) => Ok(None),
        found => found.map(Some),
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_directory_that_is_removed_after_it_was_opened_has_no_names() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("gone")).unwrap();
        let opened = dir::open_root(&dir.path().join("gone")).unwrap();
        fs::remove_dir(dir.path().join("gone")).unwrap();
        assert!(dir::read_dir(&opened, &mut Vec::new()).is_err());
        assert_eq!(names_in(&opened, &mut Vec::new()).unwrap(), []);
    }

    #[test]
    fn a_directory_that_is_removed_while_its_files_are_visited_ends_no_listing() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a/1", "a/2", "b/1", "b/2"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let objects = LocalObjects::new(dir.path());
        let mut visited = 0;
        let remove_all = &mut |_: &OwnedFd, _, _: &fullbore_platform::dir::Stat| {
            visited += 1;
            let _ = fs::remove_dir_all(dir.path().join("a"));
            fs::remove_dir_all(dir.path().join("b"))
        };
        objects.visit_files("", remove_all).unwrap();
        assert_eq!(visited, 1);
    }
}
