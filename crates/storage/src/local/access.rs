//! Who owns and may read the files of a repository: those who own and may read the file that makes it a repository.
//!
//! So a repository is private until it is opened with `chmod -R g+rX REPOSITORY`, and stays open then; and what root adds to the
//! repository of another user is that user's.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::REPOSITORY,
};
use fullbore_platform as platform;
use fullbore_platform::{
    dir::{FileKind, Stat},
    safe_file::FileAccess,
};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

/// Returns the access to a new file.
pub(super) fn of_file(root: &Path) -> FileAccess {
    let (readers, owner) = of_repository(root);
    FileAccess {
        mode: 0o600 | readers,
        owner,
    }
}

/// Returns the modes of a new directory: who may read it may enter it.
pub(super) fn of_directory(root: &Path) -> FileAccess {
    let (readers, owner) = of_repository(root);
    FileAccess {
        mode: 0o700 | readers | readers >> 2,
        owner,
    }
}

/// Returns the access to a file that takes the place of another, if one is there.
pub(super) fn of_replacement(root: &Path, there: Option<&Stat>) -> FileAccess {
    match there {
        Some(there) if there.kind == FileKind::File => FileAccess {
            mode: there.mode & 0o777,
            owner: Some((there.uid, there.gid)),
        },
        _ => of_file(root),
    }
}

/// Returns the modes that let group and others read, and the owner.
fn of_repository(root: &Path) -> (u32, Option<(u32, u32)>) {
    let Ok(facts) = fs::symlink_metadata(root.join(REPOSITORY)) else {
        return (0, None);
    };
    (
        facts.permissions().mode() & 0o044,
        Some((facts.uid(), facts.gid())),
    )
}

/// Refuses a link that is neither of root nor of this user nor of the owner of the directory it leads to.
pub(super) fn check_link_owner(backups: &Path) -> Result<()> {
    let Ok(link) = backups.symlink_metadata() else {
        return Ok(());
    };
    let Ok(target) = backups.metadata() else {
        return Ok(());
    };
    if !link.is_symlink() || [0, platform::user().0, target.uid()].contains(&link.uid()) {
        return Ok(());
    }
    let message = format!(
        "cannot use {backups:?}: it is a link of user {} into a directory of user {}",
        link.uid(),
        target.uid()
    );
    Err(Error::new(ErrorKind::Permission, message)
        .hint("chown -h the link, if it is to be followed"))
}
