//! All directories of a repository that are backups, or should be.

use super::{
    protocol::{intent_key, intents},
    repository_file::read_repository,
    roots::{BackupFiles, BackupState, backup_files, files_of},
};
use crate::archive::Archive;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::Repository,
};
use fullbore_platform::queue::run_each;
use fullbore_storage::{Objects, at_once};
use std::{collections::BTreeMap, sync::Arc};

/// The state of a directory below `backups/`.
pub enum FoundDirectory {
    Backup(Box<Archive>),
    /// A backup whose root is damaged.
    Damaged(Error),
    /// The directory has segments or a manifest but no root, and no document of a forgotten or
    /// unfinished backup.
    NoRoot,
    /// The backup is running, died or was forgotten; other backups may need its objects.
    Leftover,
}

/// Opens all directories, oldest first.
///
/// # Errors
/// As [`read_repository`]; [`ErrorKind::Unsupported`] for a backup that a newer program wrote; errors of
/// the storage.
pub fn open_all(objects: &Arc<dyn Objects>) -> Result<Vec<(String, FoundDirectory)>> {
    let Repository { id, .. } = read_repository(&**objects)?;
    let files = backup_files(&**objects)?;
    let names: Vec<String> = files.keys().cloned().collect();
    open_these(objects, &files, &names, &id)
}

/// Opens some directories of a listing, in this order; `repository` is the id of the repository. Many are opened at once if the
/// storage is slow to answer.
///
/// # Errors
/// As [`open_all`].
pub fn open_these(
    objects: &Arc<dyn Objects>,
    files: &BTreeMap<String, BackupFiles>,
    names: &[String],
    repository: &str,
) -> Result<Vec<(String, FoundDirectory)>> {
    let unlisted = BackupFiles::default();
    let open = |name: &String| {
        let files = files.get(name).unwrap_or(&unlisted);
        open_one(objects, name, files, repository)
    };
    let mut all = Vec::new();
    for some in names.chunks(at_once(&**objects)) {
        for (name, found) in some.iter().zip(run_each(some, open)) {
            all.push((name.clone(), found?));
        }
    }
    Ok(all)
}

/// Returns the ids of backups whose root is lost, oldest first. If each backup has a document, no
/// object is opened.
///
/// # Errors
/// As [`open_all`].
pub fn lost_roots(objects: &Arc<dyn Objects>) -> Result<Vec<String>> {
    lost_roots_of(objects, backup_files(&**objects)?)
}

/// As [`lost_roots`], of a listing.
///
/// # Errors
/// As [`open_all`].
pub fn lost_roots_of(
    objects: &Arc<dyn Objects>,
    mut lacking: BTreeMap<String, BackupFiles>,
) -> Result<Vec<String>> {
    lacking.retain(|_, files| files.state().is_none() && files.has_objects());
    if lacking.is_empty() {
        return Ok(Vec::new());
    }
    let announced = intents(&**objects)?;
    lacking.retain(|id, _| !announced.contains(id));
    let mut lost = Vec::new();
    for (id, files) in lacking {
        if matches!(open_one(objects, &id, &files, "")?, FoundDirectory::NoRoot) {
            lost.push(id);
        }
    }
    Ok(lost)
}

fn open_one(
    objects: &Arc<dyn Objects>,
    name: &str,
    files: &BackupFiles,
    repository: &str,
) -> Result<FoundDirectory> {
    if matches!(
        files.state(),
        Some(BackupState::Partial | BackupState::Forgotten | BackupState::Void)
    ) {
        return Ok(FoundDirectory::Leftover);
    }
    match Archive::open_backup(objects, name) {
        Ok(mut archive) => {
            archive.repository = repository.to_owned();
            Ok(FoundDirectory::Backup(Box::new(archive)))
        }
        Err(error) if error.kind == ErrorKind::Corrupt => Ok(FoundDirectory::Damaged(error)),
        Err(error) if error.kind == ErrorKind::NotFound => {
            without_root(objects, name, files, repository)
        }
        Err(error) => Err(error),
    }
}

/// A backup that ends meanwhile has a root before its intent is removed; an object that disappeared
/// with its document is no loss.
fn without_root(
    objects: &Arc<dyn Objects>,
    name: &str,
    earlier: &BackupFiles,
    repository: &str,
) -> Result<FoundDirectory> {
    if objects.stat(&intent_key(name))?.is_some() {
        return Ok(FoundDirectory::Leftover);
    }
    let files = files_of(&**objects, name)?;
    if files != *earlier {
        return open_one(objects, name, &files, repository);
    }
    if files.state().is_none() && files.has_objects() {
        Ok(FoundDirectory::NoRoot)
    } else {
        Ok(FoundDirectory::Leftover)
    }
}

/// Returns the error of a backup whose root is lost.
pub(super) fn lost_root(message: &str) -> Error {
    Error::corrupt(message)
        .hint("`fullbore repair` rebuilds it, or tells you what else to do; @BACKUP selects another backup")
}

/// The hint for a backup whose root is damaged.
pub(super) const ROOT_DAMAGED: &str = "`fullbore repair` rebuilds it, or tells you what else to do; `fullbore list` shows other backups for @BACKUP";
