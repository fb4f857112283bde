//! Who owns and may read the files of a repository: those who own and may read the file that makes it a repository.
//!
//! So a repository is private until it is opened with `chmod -R g+rX REPOSITORY`, and stays open then; and what root adds to the
//! repository of another user is that user's.

use crate::{
    format::layout::REPOSITORY,
    platform::{
        dir::{FileKind, Stat},
        safe_file::Access,
    },
};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

/// Of a new file.
pub(super) fn of_file(root: &Path) -> Access {
    let (readers, owner) = of_repository(root);
    Access {
        mode: 0o600 | readers,
        owner,
    }
}

/// Of a new directory: who may read it may enter it.
pub(super) fn of_directory(root: &Path) -> Access {
    let (readers, owner) = of_repository(root);
    Access {
        mode: 0o700 | readers | readers >> 2,
        owner,
    }
}

/// Of a file that takes the place of another, if one is there.
pub(super) fn of_replacement(root: &Path, there: Option<&Stat>) -> Access {
    match there {
        Some(there) if there.kind == FileKind::File => Access {
            mode: there.mode & 0o777,
            owner: Some((there.uid, there.gid)),
        },
        _ => of_file(root),
    }
}

/// The modes that let group and others read, and the owner.
fn of_repository(root: &Path) -> (u32, Option<(u32, u32)>) {
    let Ok(facts) = fs::symlink_metadata(root.join(REPOSITORY)) else {
        return (0, None);
    };
    (
        facts.permissions().mode() & 0o044,
        Some((facts.uid(), facts.gid())),
    )
}
