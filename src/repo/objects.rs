//! Files that a backup or a copy writes into a repository in a directory: all or nothing, and durable.

use super::permissions;
use crate::{
    error::{Error, Result},
    format::layout::letters,
    platform::{
        self, dir,
        safe_file::{self, Access},
        write,
    },
    sink::{
        commit_flag,
        local_file::{name, sync_dir},
    },
};
use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, ErrorKind, Write},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
};

/// Is it still the file of that name?
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let facts = |facts: fs::Metadata| (facts.dev(), facts.ino());
    file.metadata().map(facts).ok().is_some_and(|it| {
        fs::symlink_metadata(path)
            .map(facts)
            .is_ok_and(|at| at == it)
    })
}

/// Write an object, durable, all or nothing, if its directory is there.
///
/// # Errors
/// The system's; nothing is left then.
pub(super) fn write_new(repository: &Path, key: &str, bytes: &[u8]) -> Result<()> {
    write_by(repository, key, bytes, rename)
}

/// Write the root that makes a backup of this process a listed one.
///
/// # Errors
/// As [`write_new`]; but if only the directory could not be synced, it is there.
pub(super) fn write_root(repository: &Path, key: &str, bytes: &[u8]) -> Result<()> {
    write_by(repository, key, bytes, |dir, from, to| {
        rename(dir, from, to).map(|()| commit_flag::set(true))
    })
}

/// What is said of a commit that failed, after it was taken back if that could be: is its root there still?
pub(super) fn is_left(root: &Path, what: &str, error: Error) -> Error {
    let is_listed = root.exists();
    commit_flag::set(is_listed);
    if is_listed {
        error.detail(format!("the {what} is listed, but may not be durable"))
    } else {
        error
    }
}

fn write_by(repository: &Path, key: &str, bytes: &[u8], finally: Finally) -> Result<()> {
    let access = permissions::of_file(repository);
    let path = repository.join(key);
    let name_in_dir = key.rsplit('/').next().unwrap_or(key);
    let placed = path
        .parent()
        .map_or_else(|| dir::open_root(repository), safe_file::open_dir)
        .and_then(|dir| place(&dir, name_in_dir, (bytes, access), finally));
    placed.map_err(|e| Error::io(format!("could not write {}", name(&path)), e))?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Write the file `name` in `dir`, these bytes with that access; `finally` gives it that name in place of another.
///
/// # Errors
/// The system's; nothing is left then.
pub(super) fn place(
    dir: &OwnedFd,
    name: &str,
    (bytes, access): (&[u8], Access),
    finally: Finally,
) -> io::Result<()> {
    let partial = format!("{name}.{}.partial", random_letters(6));
    let written = safe_file::create_at(dir, &partial[..], access).and_then(|mut file| {
        file.write_all(bytes)?;
        write::fsync(&file)
    });
    let placed = written.and_then(|()| finally(dir, &partial, name));
    // A link leaves the other name; and an error must leave nothing.
    if let Err(error) = write::unlink_at(dir, partial.as_bytes())
        && error.kind() != ErrorKind::NotFound
    {
        platform::debug(|| format!("could not remove {partial:?}: {error}"));
    }
    placed
}

/// Gives a file in a directory another name.
pub(super) type Finally = fn(&OwnedFd, &str, &str) -> io::Result<()>;

fn rename(dir: &OwnedFd, from: &str, to: &str) -> io::Result<()> {
    write::rename_at(dir, from.as_bytes(), dir, to.as_bytes())
}

pub(super) fn random_letters(count: usize) -> String {
    letters(RandomState::new().build_hasher().finish(), count)
}
