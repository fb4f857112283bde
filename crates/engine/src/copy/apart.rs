//! Refuses to copy a directory into itself, by whatever names it is reached.
//!
//! Three identities are compared: real paths; device and inode of all directories above; and the
//! paths within a file system, which are the same through all bind mounts of it.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::path_in_file_system;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Checks that neither directory contains the other.
///
/// # Errors
/// [`ErrorKind::Usage`] if one does, or if both are the same.
pub(super) fn check_apart(from: &Path, to: &Path) -> Result<()> {
    let (source, target) = (real(from), real(to));
    let is_apart = are_apart(&source, &target)
        && !has_above(&source, &target)
        && !has_above(&target, &source)
        && are_apart_in_file_system(&source, &target);
    if is_apart {
        return Ok(());
    }
    let message = format!("cannot copy {source:?} to {target:?}");
    let why = "they are the same directory, or one contains the other";
    Err(Error::new(ErrorKind::Usage, message).because(why))
}

fn are_apart(one: &Path, other: &Path) -> bool {
    !one.starts_with(other) && !other.starts_with(one)
}

/// Returns whether `path` or a directory above it is the directory `above`.
fn has_above(path: &Path, above: &Path) -> bool {
    let place = |dir: &Path| fs::metadata(dir).ok().map(|stat| (stat.dev(), stat.ino()));
    let wanted = place(above);
    wanted.is_some() && path.ancestors().any(|dir| place(dir) == wanted)
}

/// As [`are_apart`], whatever mounts lead to the directories. True where no table of mounts is.
fn are_apart_in_file_system(from: &Path, to: &Path) -> bool {
    match (path_in_file_system(from), path_in_file_system(to)) {
        (Ok(from), Ok(to)) => from.0 != to.0 || are_apart(&from.1, &to.1),
        _ => true,
    }
}

/// Returns the real path of what is there of a path, with the rest of it.
fn real(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for above in absolute.ancestors() {
        if let Ok(found) = above.canonicalize() {
            let rest = absolute.strip_prefix(above).unwrap_or(Path::new(""));
            return found.join(rest);
        }
    }
    absolute
}
