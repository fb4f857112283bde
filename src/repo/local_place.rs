//! Local directories in which a repository is to be made, and the places that repositories occupy.

use super::open::read_repository;
use crate::{
    error::{Error, ErrorKind, Result},
    format::layout::{BACKUPS, COVERED, INTENTS, REPOSITORY, ROOMS, TOMBSTONES},
    platform,
    sink::{
        Place,
        local_file::{check_parent_exists, name},
        place_of,
    },
    storage::Objects,
};
use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

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
    refuse_other_contents(local.root())
}

/// Returns whether there is neither a repository nor the backups of one.
pub fn is_absent(objects: &dyn Objects) -> bool {
    let has = |key: &str| !matches!(objects.stat(key), Ok(None));
    match objects.as_local() {
        Some(local) => [REPOSITORY, BACKUPS]
            .iter()
            .all(|name| !local.root().join(name).exists()),
        None => !has(REPOSITORY),
    }
}

/// Refuses a directory in which no repository can be made.
///
/// # Errors
/// [`ErrorKind::Usage`] if it is a file or holds something else, [`ErrorKind::NotFound`] if its parent is missing.
pub(super) fn check_new(root: &Path) -> Result<()> {
    if root.is_file() {
        let what = format!("cannot make a repository of {}: it is a file", name(root));
        return Err(Error::new(ErrorKind::Usage, what)
            .hint("an archive has a name that ends in .tar.zst or .tar.lz4"));
    }
    check_parent_exists(root)?;
    refuse_other_contents(root)
}

/// The directory that ext2, ext3 and ext4 have in the root of a file system.
const LOST_AND_FOUND: &str = "lost+found";

/// A repository is made in an empty directory, in one where an earlier attempt was interrupted, or
/// in one where a repository appears meanwhile.
fn refuse_other_contents(root: &Path) -> Result<()> {
    let known = |name: &OsStr| {
        name == REPOSITORY || ROOMS.iter().any(|room| name == *room) || is_partial(name)
    };
    let others = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| !known(&entry.file_name()));
    let other = others.max_by_key(|entry| entry.file_name() != LOST_AND_FOUND);
    match other {
        None => Ok(()),
        Some(other) if other.file_name() == LOST_AND_FOUND => {
            let what = format!("cannot make a repository in {}: it is the root of a file system", name(root));
            let own = root.join("fullbore");
            Err(Error::new(ErrorKind::Usage, what)
                .because(format!("it holds {LOST_AND_FOUND:?}"))
                .hint(format!("give the repository a directory of its own, such as {}", name(&own))))
        }
        Some(_) => Err(Error::new(ErrorKind::Usage, format!("cannot make a repository in {}: it is not empty", name(root)))
            .hint("choose a directory that is empty, absent or a repository, or a file name such as x.tar.zst")),
    }
}

/// Returns whether a killed attempt to make a repository leaves this name.
fn is_partial(name: &OsStr) -> bool {
    let begins = [REPOSITORY, COVERED]
        .iter()
        .any(|file| name.as_bytes().starts_with(file.as_bytes()));
    begins && name.as_bytes().ends_with(b".partial")
}

/// Removes the remains of attempts to make a repository. Now that the repository exists, they are
/// of no use to any process.
pub(super) fn clear(root: &Path) {
    for entry in fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_partial(&entry.file_name()))
    {
        if let Err(error) = fs::remove_file(entry.path()) {
            platform::debug(|| format!("could not remove {}: {error}", name(&entry.path())));
        }
    }
}
