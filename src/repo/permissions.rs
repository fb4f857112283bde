//! Whose is what is stored in a repository, and who may read it: the owner of the file that makes it a repository, and those of
//! its group and others who may read that file.
//!
//! So a repository is private until somebody opens it (`chmod -R g+rX REPOSITORY`), and stays open then; and what root adds to
//! that of another user is that user's.

use crate::{format::layout::REPOSITORY, platform::safe_file::Access};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

/// Of a new file in `repository`.
pub(super) fn of_file(repository: &Path) -> Access {
    let (readers, owner) = facts(repository);
    Access {
        mode: 0o600 | readers,
        owner,
    }
}

/// Of a new directory in `repository`: who may read it may enter it.
pub(super) fn of_dir(repository: &Path) -> Access {
    let (readers, owner) = facts(repository);
    Access {
        mode: 0o700 | readers | readers >> 2,
        owner,
    }
}

/// Of a file that replaces that at `path`, or is new there.
pub(super) fn of_replacement(path: &Path) -> Access {
    let there = fs::symlink_metadata(path)
        .ok()
        .filter(fs::Metadata::is_file);
    let repository = path.ancestors().find(|dir| dir.join(REPOSITORY).is_file());
    match (there, repository) {
        (Some(there), _) => Access {
            mode: there.permissions().mode() & 0o777,
            owner: Some((there.uid(), there.gid())),
        },
        (None, Some(repository)) => of_file(repository),
        (None, None) => 0o600.into(),
    }
}

/// What others may do with it, and whose it is.
fn facts(repository: &Path) -> (u32, Option<(u32, u32)>) {
    let facts = fs::symlink_metadata(repository.join(REPOSITORY)).ok();
    facts.map_or((0, None), |facts| {
        (facts.mode() & 0o044, Some((facts.uid(), facts.gid())))
    })
}
