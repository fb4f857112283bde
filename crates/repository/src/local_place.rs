//! Local directories in which a repository is to be made, and the places that repositories occupy.

use super::repository_file::read_repository;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{BACKUPS, INTENTS, REPOSITORY, TOMBSTONES},
};
use fullbore_pipeline::sink::{Place, place_of};
use fullbore_platform::place::{check_disk_is_mounted, check_parent_exists, quoted_path};
use fullbore_storage::{Objects, refuse_other_contents};
use std::path::Path;

/// Returns the repository at `root` and the directories in it, as far as they exist.
pub fn places(root: &Path) -> Vec<Place> {
    let parts = [
        root.to_owned(),
        root.join(BACKUPS),
        root.join(INTENTS),
        root.join(TOMBSTONES),
    ];
    parts.iter().filter_map(|path| place_of(path)).collect()
}

/// Refuses a place where a repository must not be made, or where one can only be by mistake. With
/// `no_create` the repository must exist.
///
/// A missing parent directory is a typing error, or a disk that is not mounted: only the last
/// directory of a path is created.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the repository, or its parent directory, does not exist; as
/// [`read_repository`].
pub fn must_be_possible(objects: &dyn Objects, no_create: bool) -> Result<()> {
    if !no_create && objects.as_local().is_none() {
        return Ok(());
    }
    if matches!(objects.stat(REPOSITORY), Ok(Some(_))) {
        return Ok(());
    }
    if no_create {
        return Err(match read_repository(objects) {
            Err(error) if error.kind == ErrorKind::NotFound && error.source.is_none() => {
                Error::new(
                    ErrorKind::NotFound,
                    format!("could not find a repository at {}", objects.describe("")),
                )
                .because("--no-create does not create one")
                .hint(match objects.as_local() {
                    Some(_) => "is its disk mounted? `fullbore init` makes an empty repository",
                    None => "correct its address; `fullbore init` makes an empty repository",
                })
            }
            Err(error) => error,
            Ok(_) => return Ok(()), // it has appeared meanwhile
        });
    }
    let Some(local) = objects.as_local() else {
        return Ok(());
    };
    check_parent_exists(local.root())?;
    check_disk_is_mounted(local.root())?;
    refuse_other_contents(local.root())
}

/// Returns whether there is neither a repository nor the backups of one.
pub fn is_absent(objects: &dyn Objects) -> bool {
    match objects.as_local() {
        Some(local) => [REPOSITORY, BACKUPS]
            .iter()
            .all(|name| !local.root().join(name).exists()),
        None => !may_have(objects, REPOSITORY),
    }
}

fn may_have(objects: &dyn Objects, key: &str) -> bool {
    !matches!(objects.stat(key), Ok(None))
}

/// Refuses a directory in which no repository can be made.
///
/// # Errors
/// [`ErrorKind::Usage`] if it is a file or holds something else, [`ErrorKind::NotFound`] if its parent is missing.
pub(super) fn check_new(root: &Path) -> Result<()> {
    if root.is_file() {
        let message = format!(
            "cannot make a repository of {}: it is a file",
            quoted_path(root)
        );
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("an archive has a name that ends in .tar.zst or .tar.lz4"));
    }
    check_parent_exists(root)?;
    refuse_other_contents(root)
}
