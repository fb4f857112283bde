//! All directories of a repository that are a backup, or should be one.

use super::{
    objects::{LocalObjects, Objects},
    open::{directories, may_be_there, read_repository},
    roots::{self, has_objects},
};
use crate::{
    archive::Archive,
    error::{Error, ErrorKind, Result},
    format::layout::{self, FORGOTTEN, INTENTS, PARTIAL, Repository},
};
use std::path::Path;

/// What a directory below `backups/` turned out to be.
pub enum FoundDirectory {
    /// A backup.
    Backup(Box<Archive>),
    /// A backup whose root is damaged.
    Damaged(Error),
    /// It has segments or a manifest and no root, and nothing says that it was forgotten or has not ended.
    NoRoot,
    /// Of a backup under way, that died or was forgotten; what others need of it.
    Leftover,
}

/// All of them, oldest first.
///
/// # Errors
/// As [`read_repository`]; [`Kind::Unsupported`] for a backup that a newer program wrote; the system's.
pub fn open_all(repository: &Path) -> Result<Vec<(String, FoundDirectory)>> {
    let Repository { id, .. } = read_repository(repository)?;
    let objects = LocalObjects::new(repository);
    let mut all = Vec::new();
    for name in directories(repository)? {
        let mut found = open_one(repository, &name, &id)?;
        // What went meanwhile, with its document, was no loss.
        if matches!(found, FoundDirectory::NoRoot)
            && !has_objects(&objects.list(&roots::dir(&name))?)
        {
            found = FoundDirectory::Leftover;
        }
        all.push((name, found));
    }
    Ok(all)
}

/// The ids of backups whose root is lost, oldest first. Where each has one, or a word that it needs none, nothing is opened.
///
/// # Errors
/// As [`open_all`].
pub fn lost_roots(repository: &Path) -> Result<Vec<String>> {
    let lacks = |name: &String| {
        let dir = repository.join(layout::BACKUPS).join(name);
        let intent = repository.join(INTENTS).join(format!("{name}.json"));
        let documents = [
            dir.join(layout::ROOT),
            dir.join(PARTIAL),
            dir.join(FORGOTTEN),
            intent,
        ];
        let has_objects = || {
            let names = LocalObjects::new(repository).list(&roots::dir(name));
            names.is_ok_and(|names| roots::has_objects(&names))
        };
        !documents.iter().any(|path| may_be_there(path)) && has_objects()
    };
    if !directories(repository)?.iter().any(lacks) {
        return Ok(Vec::new());
    }
    let all = open_all(repository)?.into_iter();
    Ok(all
        .filter(|(_, found)| matches!(found, FoundDirectory::NoRoot))
        .map(|(id, _)| id)
        .collect())
}

fn open_one(repository: &Path, name: &str, id: &str) -> Result<FoundDirectory> {
    let dir = repository.join(layout::BACKUPS).join(name);
    // In this order: a partial root may be renamed to a forgotten one.
    let leftover = [
        dir.join(PARTIAL),
        dir.join(FORGOTTEN),
        repository.join(INTENTS).join(format!("{name}.json")),
    ];
    match Archive::open_backup(repository, name) {
        Ok(mut archive) => {
            archive.repository = id.to_owned();
            Ok(FoundDirectory::Backup(Box::new(archive)))
        }
        Err(error) if error.kind == ErrorKind::Corrupt => Ok(FoundDirectory::Damaged(error)),
        Err(error) if error.kind == ErrorKind::NotFound => {
            match leftover.iter().any(|path| path.exists()) {
                true => Ok(FoundDirectory::Leftover),
                // A backup that ends meanwhile has a root before its intent goes.
                false if dir.join(layout::ROOT).exists() => open_one(repository, name, id),
                false => Ok(FoundDirectory::NoRoot),
            }
        }
        Err(error) => Err(error),
    }
}
