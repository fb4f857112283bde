//! Opens the backup that a user names.

use super::{
    annotations::Annotations, exact::pick_exactly, from_word::LATEST, scan::ROOT_DAMAGED,
    select::BackupFilter, selector::BackupSelector, volume_files::found_sets,
    volume_series::VolumeSeries,
};
use crate::archive::Archive;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_storage::{Found, Location, Objects, Storages, repository_around};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use super::{
    from_word::{is_repository, named, names_backup, place, without_backup},
    listed::{backup_ids, cut_off, ids_of, list_backups, listed_roots, no_backup},
    repository_file::read_repository,
    selector::pick,
};

pub enum OpenedFrom {
    /// A backup that fullbore wrote.
    Backup(Box<Archive>),
    /// A file that another program wrote, perhaps a tar.
    Foreign(PathBuf),
}

/// Opens `FROM[@BACKUP]` as a backup.
///
/// FROM is a repository or an archive file. BACKUP is what [`BackupSelector`] knows;
/// without BACKUP it is the latest backup that `filter` selects. A path that contains an `@` itself
/// works as long as it exists.
///
/// # Errors
/// [`ErrorKind::NotFound`], [`ErrorKind::Usage`] if several backups match or the repository has
/// several sources,
/// [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`], or an error of the system.
pub fn open(
    storages: &Storages,
    source: impl AsRef<OsStr>,
    filter: &BackupFilter,
) -> Result<Archive> {
    match open_any(storages, source.as_ref(), filter)? {
        OpenedFrom::Backup(archive) => Ok(*archive),
        OpenedFrom::Foreign(path) => {
            let message = format!("cannot read {path:?}: it is not an archive of fullbore");
            Err(Error::new(ErrorKind::Unsupported, message)
                .because(".tar.gz and .tar are plain streams, without a manifest")
                .hint("`fullbore list`, `verify` and `restore` take any tar, as a stream"))
        }
    }
}

/// As [`open`], but accepts any file.
///
/// # Errors
/// As [`open`].
pub fn open_any(storages: &Storages, source: &OsStr, filter: &BackupFilter) -> Result<OpenedFrom> {
    // Every caller jumps between root, pages and frames, which a pipe cannot do.
    if source == "-" {
        return Err(Error::new(ErrorKind::Usage, "this command needs random access and cannot read from standard input").hint(
            "put it into a file; `fullbore list`, `show`, `verify` and `restore` take a stream; \"./-\" is a file",
        ));
    }
    let (location, backup) = place(source)?;
    if let Location::Volumes(prefix) = &location {
        let set = set_in_volumes(storages, prefix, backup)?;
        let archive = Archive::open_volumes(storages, prefix, &set)?;
        filter.check(&archive.root)?;
        return Ok(OpenedFrom::Backup(Box::new(archive)));
    }
    if let Location::Tape(drive) = &location {
        let archive = Archive::open_tape(storages, drive, backup)?;
        filter.check(&archive.root)?;
        return Ok(OpenedFrom::Backup(Box::new(archive)));
    }
    let path = match location.as_local() {
        Some(path) if !is_directory(&location) => path.to_owned(),
        _ => {
            let archive = open_in(&storages.objects(&location)?, backup, filter)?;
            return Ok(OpenedFrom::Backup(Box::new(archive)));
        }
    };
    not_inside(&path)?;
    let archive = Archive::open_file(storages, &path)?;
    match (archive, backup) {
        (Some(archive), backup) => {
            check_named(&archive, backup, &location)?;
            filter.check(&archive.root)?;
            Ok(OpenedFrom::Backup(Box::new(archive)))
        }
        (None, _) => {
            filter.must_be_empty(source)?;
            Ok(OpenedFrom::Foreign(path))
        }
    }
}

/// Returns the beginning of the id of the backup in volumes that `@BACKUP` names; empty for the latest.
fn set_in_volumes(storages: &Storages, prefix: &Path, backup: Option<&str>) -> Result<String> {
    let back = match backup {
        None | Some(LATEST) => return Ok(String::new()),
        Some(backup) => match BackupSelector::parse(backup, &jiff::Zoned::now()) {
            BackupSelector::Back(back) => back,
            _ => return Ok(backup.to_owned()),
        },
    };
    let ids = backups_in_volumes(storages, prefix)?;
    ids.into_iter().rev().nth(back).ok_or_else(|| {
        let message = format!("could not find so many backups in volumes {prefix:?}");
        Error::new(ErrorKind::NotFound, message)
    })
}

/// Returns the ids of the backups in volumes with this prefix, the oldest first: those in the catalog of this host, and those of
/// which a volume is there.
///
/// # Errors
/// The system's.
pub fn backups_in_volumes(storages: &Storages, prefix: &Path) -> Result<BTreeSet<String>> {
    let mut ids = found_sets(prefix)?;
    ids.extend(
        VolumeSeries::of(storages, prefix)
            .iter()
            .flat_map(VolumeSeries::ids),
    );
    Ok(ids)
}

/// Checks that an archive has the backup that the user named, if one was named.
fn check_named(archive: &Archive, backup: Option<&str>, location: &Location) -> Result<()> {
    match backup {
        Some(id) if !archive.root.id.starts_with(id) && id != LATEST => {
            let message = format!(
                "could not find backup {id:?} in {location}: the archive holds {:?}",
                archive.root.id
            );
            Err(Error::new(ErrorKind::NotFound, message))
        }
        _ => Ok(()),
    }
}

/// Opens a backup of a repository: the named one, or the latest that `filter` selects.
///
/// # Errors
/// As [`open`].
pub fn open_in(
    objects: &Arc<dyn Objects>,
    backup: Option<&str>,
    filter: &BackupFilter,
) -> Result<Archive> {
    let repository = read_repository(&**objects)?;
    let mut archive = open_backup(objects, &pick(objects, backup, filter)?)?;
    archive.repository = repository.id;
    // Damaged annotations must not prevent a restore.
    if let Ok(notes) = Annotations::read(&**objects, &archive.root.id) {
        notes.apply(&mut archive.root);
    }
    filter.check(&archive.root)?;
    Ok(archive)
}

/// A file of a repository is no archive by itself.
fn not_inside(path: &Path) -> Result<()> {
    match repository_around(path) {
        None => Ok(()),
        Some(repository) => Err(Error::new(
            ErrorKind::Usage,
            format!("cannot read {path:?}: it is part of a repository"),
        )
        .hint(format!("name the repository, {repository:?}"))),
    }
}

/// Returns whether the location is a repository, or a directory that may be one.
fn is_directory(location: &Location) -> bool {
    matches!(location.look(), Found::Repository | Found::Directory)
}

/// Returns the repository and the id that `FROM[@BACKUP]` means for a command that changes the backup, and reads no object of it.
///
/// # Errors
/// As [`open`] and [`pick_exactly`]; [`ErrorKind::Usage`] if FROM is a file.
pub fn locate(
    storages: &Storages,
    source: &OsStr,
    filter: &BackupFilter,
) -> Result<(Arc<dyn Objects>, String)> {
    let (location, backup) = place(source)?;
    if !is_directory(&location) {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("cannot use {location}: it is not a repository"),
        ));
    }
    let objects = storages.objects(&location)?;
    read_repository(&*objects)?;
    let id = pick_exactly(&objects, backup, filter)?;
    Ok((objects, id))
}

/// Opens a backup of a repository; a damaged root gets a hint.
fn open_backup(objects: &Arc<dyn Objects>, id: &str) -> Result<Archive> {
    Archive::open_backup(objects, id).map_err(|error| match error.kind {
        ErrorKind::Corrupt => error.hint(ROOT_DAMAGED),
        _ => error,
    })
}
