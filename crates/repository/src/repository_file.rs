//! The file that makes a directory a repository.

use super::{
    from_word::{LATEST, is_repository, parts},
    roots,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{self, Repository, is_backup_id},
    root::FORMAT,
    seal::open_sealed,
};
use fullbore_platform::write::is_in_the_way;
use fullbore_storage::Objects;
use std::ffi::OsString;

/// Reads the file that makes a directory a repository.
///
/// # Errors
/// [`ErrorKind::NotFound`] if it does not exist, [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`] if it is newer
/// than this program.
pub fn read_repository(objects: &dyn Objects) -> Result<Repository> {
    let bytes = match objects.get(layout::REPOSITORY) {
        Ok(Some((bytes, _))) => bytes,
        Ok(None) => return Err(no_repository(objects)),
        Err(error) if error.system().is_some_and(is_in_the_way) => {
            return Err(no_repository(objects));
        }
        Err(error) => return Err(error),
    };
    let repository = parse_repository(&bytes, &objects.describe(layout::REPOSITORY))?;
    if repository.format > FORMAT {
        let message = format!(
            "cannot read {}: it has format {}, this program knows up to {FORMAT}",
            objects.describe(""),
            repository.format
        );
        return Err(Error::new(ErrorKind::Unsupported, message).hint("use a newer fullbore"));
    }
    // Only after the format is known to be ours: the check speaks of directories of a repository.
    if let Some(local) = objects.as_local() {
        local.check_backups_link()?;
    }
    Ok(repository)
}

/// The hint for a damaged repository file.
const REPAIRED: &str = "`fullbore repair` rebuilds it from the backups";

/// Parses the file `name` that makes a directory a repository.
pub(super) fn parse_repository(bytes: &[u8], name: &str) -> Result<Repository> {
    open_sealed(bytes, name).map_err(|error| match error.kind {
        ErrorKind::Corrupt => error.hint(REPAIRED),
        _ => error,
    })
}

/// Returns the error of a place without the repository file.
pub(super) fn no_repository(objects: &dyn Objects) -> Error {
    let name = objects.describe("");
    if roots::ids(objects).is_ok_and(|backups| !backups.is_empty()) {
        let message = format!(
            "cannot read {name}: its file {:?} is missing",
            layout::REPOSITORY
        );
        return Error::new(ErrorKind::NotFound, message)
            .because("there are backups in it")
            .hint(REPAIRED);
    }
    let none = Error::new(
        ErrorKind::NotFound,
        format!("cannot read {name}: it is not a repository"),
    );
    let place = match objects.as_local() {
        Some(local) => local.root().as_os_str().to_owned(),
        None => OsString::from(name.trim_matches('"')),
    };
    // In a bucket `@` is common in names: only what looks like a backup is taken for one.
    let is_cloud = objects.as_local().is_none();
    let named = parts(&place).filter(|(_, id)| !is_cloud || is_backup_id(id) || *id == LATEST);
    none.hint(
        match named.filter(|(repository, _)| is_repository(repository.as_os_str())) {
            Some((repository, id)) => {
                format!("this takes a repository, {repository:?}, and {id:?} by itself")
            }
            None if is_bare(objects) => "is its disk mounted? there is nothing here".to_owned(),
            None => format!(
                "a repository has a file {:?}; a directory of files is not a backup",
                layout::REPOSITORY
            ),
        },
    )
}

/// Returns whether there is no local directory, or an empty one: the place where a disk is mounted is one.
fn is_bare(objects: &dyn Objects) -> bool {
    let Some(local) = objects.as_local() else {
        return false;
    };
    local
        .root()
        .read_dir()
        .map_or(true, |mut names| names.next().is_none())
}
