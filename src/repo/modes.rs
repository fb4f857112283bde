//! Who may read what is stored in a repository: its owner, and those of its group and others who may read the file that makes
//! it a repository.
//!
//! So a repository is private until somebody opens it (`chmod -R g+rX REPOSITORY`), and stays open then.

use crate::format::layout::REPOSITORY;
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

/// The mode of a new file in `repository`.
pub(super) fn of_file(repository: &Path) -> u32 {
    0o600 | readers(repository)
}

/// The mode of a new directory in `repository`: who may read it may enter it.
pub(super) fn of_dir(repository: &Path) -> u32 {
    let readers = readers(repository);
    0o700 | readers | readers >> 2
}

/// The mode of a file that replaces that at `path`, or is new there.
pub(super) fn of_replacement(path: &Path) -> u32 {
    let there = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
    let repository = path.ancestors().find(|dir| dir.join(REPOSITORY).is_file());
    match (there, repository) {
        (Some(there), _) => there.permissions().mode() & 0o777,
        (None, Some(repository)) => of_file(repository),
        (None, None) => 0o600,
    }
}

fn readers(repository: &Path) -> u32 {
    fs::symlink_metadata(repository.join(REPOSITORY)).map_or(0, |facts| facts.mode() & 0o044)
}
