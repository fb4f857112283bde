//! All directories of a repository that are a backup, or should be one.

use crate::{
    error::{Error, Kind, Result},
    format::layout::{self, FORGOTTEN, INTENTS, MANIFEST, PARTIAL, TOMBSTONES},
    repo::open::{directories, read_repository},
    source::archive::Archive,
};
use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
};

/// What a directory below `backups/` turned out to be.
pub enum Found {
    /// A backup.
    Backup(Box<Archive>),
    /// A backup whose root is damaged.
    Damaged(Error),
    /// It has no root, and nothing says that it was forgotten or has not ended, or that others need all of it.
    NoRoot,
    /// Of a backup under way, that died or was forgotten; what others need of it.
    Leftover,
}

/// All of them, oldest first.
///
/// # Errors
/// As [`read_repository`]; [`Kind::Unsupported`] for a backup that a newer program wrote; the system's.
pub fn open_all(repository: &Path) -> Result<Vec<(String, Found)>> {
    let id = read_repository(repository)?.id;
    let mut all = Vec::new();
    for name in directories(repository)? {
        all.push((name.clone(), open_one(repository, &name, &id)?));
    }
    let mentioned = mentioned(&all);
    for (name, found) in &mut all {
        if matches!(found, Found::NoRoot) && is_needed_whole(&dir(repository, name), name, &mentioned)? {
            *found = Found::Leftover;
        }
    }
    Ok(all)
}

fn open_one(repository: &Path, name: &str, id: &str) -> Result<Found> {
    let dir = dir(repository, name);
    let leftover = [dir.join(FORGOTTEN), dir.join(PARTIAL), repository.join(INTENTS).join(format!("{name}.json"))];
    match Archive::open_backup(repository, name) {
        Ok(mut archive) => {
            archive.repository = id.to_owned();
            Ok(Found::Backup(Box::new(archive)))
        }
        Err(error) if error.kind == Kind::Corrupt => Ok(Found::Damaged(error)),
        Err(error) if error.kind == Kind::NotFound => match leftover.iter().any(|path| path.exists()) {
            true => Ok(Found::Leftover),
            // A backup that ends meanwhile has a root before its intent goes.
            false if dir.join(layout::ROOT).exists() => open_one(repository, name, id),
            false => Ok(Found::NoRoot),
        },
        Err(error) => Err(error),
    }
}

fn dir(repository: &Path, name: &str) -> PathBuf {
    repository.join(layout::BACKUPS).join(name)
}

/// Objects of other backups that some root mentions: backup and name, without what follows the number of a segment.
fn mentioned(all: &[(String, Found)]) -> HashSet<(String, String)> {
    let mut found = HashSet::new();
    for (_, backup) in all {
        let Found::Backup(archive) = backup else { continue };
        for live in archive.root.liveness.iter().filter(|live| !live.backup.is_empty()) {
            found.insert((live.backup.clone(), layout::segment(live.stream, live.number, "")));
            found.insert((live.backup.clone(), MANIFEST.to_owned()));
        }
        let pages = archive.root.pages.iter().filter(|page| !page.backup.is_empty());
        found.extend(pages.map(|page| (page.backup.clone(), MANIFEST.to_owned())));
    }
    found
}

/// Is there nothing in a directory but what others mention, or what is about to be removed? Pruning and copying leave that.
fn is_needed_whole(dir: &Path, name: &str, mentioned: &HashSet<(String, String)>) -> Result<bool> {
    let failed = |e| Error::io(format!("could not list {dir:?}"), e);
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true), // pruned meanwhile
        other => other.map_err(failed)?,
    };
    for entry in entries {
        let file = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        let object = if file == MANIFEST { file.clone() } else { segment_of(&file) };
        let tombstone = dir.join("../..").join(TOMBSTONES).join(name).join(&file);
        if is_object(&file) && !mentioned.contains(&(name.to_owned(), object)) && !tombstone.exists() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Is it a manifest, a segment or a side file, by its name?
fn is_object(file: &str) -> bool {
    file == MANIFEST || (file.starts_with('s') && file.contains(".tar"))
}

/// `s01-000001.` of `s01-000001.tar.gz.manifest`.
fn segment_of(file: &str) -> String {
    file.split_once('.').map_or_else(String::new, |(start, _)| format!("{start}."))
}
