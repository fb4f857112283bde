//! `FROM[@BACKUP]`, a word of the command line: a repository or an archive file, and the backup in it.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::is_backup_id,
};
use fullbore_storage::{
    Found, Location,
    foreign_words::{foreign_hint, looks_foreign},
};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// The word for the latest backup of a source.
pub const LATEST: &str = "latest";

/// Returns whether FROM is a repository without `@BACKUP`.
pub fn is_repository(source: &OsStr) -> bool {
    Location::parse(source).is_ok_and(|location| location.is_repository()) && !names_backup(source)
}

/// Returns whether a URL ends in `@BACKUP`. Every command reads it so, and none makes a repository there; a `/` at the end
/// of the URL makes the `@` a part of the name.
pub fn names_backup(source: &OsStr) -> bool {
    let is_url = Location::parse(source).is_ok_and(|location| location.as_local().is_none());
    is_url && parts_of_url(source).is_some()
}

/// Returns the location of FROM, and the backup named in it.
///
/// # Errors
/// [`ErrorKind::NotFound`].
pub fn place(source: &OsStr) -> Result<(Location, Option<&str>)> {
    let whole = Location::parse(source)?;
    if whole.as_local().is_none() {
        return match parts_of_url(source) {
            Some((url, backup)) => Ok((Location::parse(url)?, Some(backup))),
            None => Ok((whole, None)),
        };
    }
    // A path that exists as it is written wins: `@` is a legal character in names.
    if whole.look() != Found::Nothing {
        return Ok((whole, None));
    }
    let split = parts(source).map(|(path, backup)| (Location::Local(path.to_owned()), backup));
    match split {
        Some((location, backup)) if location.look() != Found::Nothing => {
            Ok((location, Some(backup)))
        }
        split => {
            let hint = not_found_hint(&whole);
            let location = split.map_or(whole, |(location, _)| location);
            Err(Error::new(ErrorKind::NotFound, format!("could not find {location}")).hint(hint))
        }
    }
}

fn not_found_hint(location: &Location) -> String {
    match location.as_local() {
        Some(path) if looks_foreign(path) || path.to_string_lossy().contains("::") => {
            foreign_hint(path)
        }
        Some(path) if is_name_of_backup(path) => {
            let word = path.display();
            format!("a backup is chosen with @: write REPO@{word}, or @{word} behind -r REPO")
        }
        _ => "is its disk mounted? REPO is a repository directory or an archive file; @BACKUP picks a backup of a repository"
            .to_owned(),
    }
}

fn is_name_of_backup(path: &Path) -> bool {
    path.to_str()
        .is_some_and(|word| word.starts_with("latest") || is_backup_id(word))
}

/// Returns FROM without its `@BACKUP`.
pub fn without_backup(source: &OsStr) -> &OsStr {
    match (place(source), parts(source)) {
        (Ok((_, Some(_))), Some((path, _))) => path.as_os_str(),
        _ => source,
    }
}

/// Returns the URL and the backup in `URL@BACKUP`. An `@` before the last slash belongs to the
/// host.
fn parts_of_url(source: &OsStr) -> Option<(&OsStr, &str)> {
    let (url, backup) = parts(source)?;
    (!backup.contains('/')).then_some((url.as_os_str(), backup))
}

/// Returns the path and the backup in `PATH@BACKUP`. A path may have any bytes, an id is text.
pub(super) fn parts(source: &OsStr) -> Option<(&Path, &str)> {
    let bytes = source.as_bytes();
    let position = bytes.iter().rposition(|byte| *byte == b'@')?;
    let backup = std::str::from_utf8(&bytes[position + 1..]).ok()?;
    Some((Path::new(OsStr::from_bytes(&bytes[..position])), backup))
}

/// Returns `REPOSITORY@BACKUP`.
pub fn named(repository: impl AsRef<OsStr>, backup: impl AsRef<OsStr>) -> OsString {
    [repository.as_ref(), OsStr::new("@"), backup.as_ref()]
        .into_iter()
        .collect()
}
