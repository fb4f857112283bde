//! The place of a new file: the directory that it needs, and its path in messages.

use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use std::{
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

/// Where disks are mounted, each in a directory of its own.
const MOUNT_POINTS: [&str; 3] = ["/mnt", "/media", "/run/media"];
/// The same, in a directory for each user.
const MOUNT_POINTS_OF_USERS: [&str; 2] = ["/media", "/run/media"];

pub fn quoted_path(path: &Path) -> String {
    quoted(path.as_os_str().as_bytes())
}

/// Refuses a path whose directory is missing. The directory is not created, because it may be a
/// typing error or an unmounted disk.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the directory of `path` is missing.
pub fn check_parent_exists(path: &Path) -> Result<()> {
    let parent = dir_of(path);
    match fs::metadata(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = format!(
                "could not create {}: the directory {} does not exist",
                quoted_path(path),
                quoted_path(parent)
            );
            Err(Error::new(ErrorKind::NotFound, message)
                .hint("create it first, or check that its disk is mounted"))
        }
        _ => Ok(()), // other errors show when the file is created
    }
}

/// Refuses a directory in which a disk is usually mounted, and is not: what is written there would fill the disk of the system.
///
/// # Errors
/// [`ErrorKind::NotFound`].
pub fn check_disk_is_mounted(root: &Path) -> Result<()> {
    let Ok(whole) = std::path::absolute(root) else {
        return Ok(()); // of no name
    };
    let up = |levels| whole.ancestors().nth(levels).unwrap_or(Path::new("/"));
    let is_place_of_disks = MOUNT_POINTS.iter().any(|dir| up(1) == Path::new(dir))
        || MOUNT_POINTS_OF_USERS
            .iter()
            .any(|dir| up(2) == Path::new(dir));
    let device = |path: &Path| path.metadata().map(|found| found.dev()).ok();
    let system = device(Path::new("/"));
    let is_of_system =
        device(up(1)) == system && device(&whole).is_none_or(|own| Some(own) == system);
    if !is_place_of_disks || !is_of_system {
        return Ok(());
    }
    let message = format!(
        "could not make a repository in {}: no disk is mounted there",
        quoted_path(root)
    );
    Err(Error::new(ErrorKind::NotFound, message).hint(
        "mount the disk, or plug it in; `fullbore init` makes a repository there all the same",
    ))
}

/// Returns the directory of `path`.
pub fn dir_of(path: &Path) -> &Path {
    path.parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}
