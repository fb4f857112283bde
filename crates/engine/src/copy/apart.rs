//! Refuses to copy a directory into itself, by whatever names it is reached.
//!
//! Three identities are compared: real paths; device and inode of all directories above; and the
//! paths within a file system, which are the same through all bind mounts of it.

use super::rules::CopyRules;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::path_in_file_system;
use std::{
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

/// Checks that neither directory contains the other. The target may be below the source if these
/// rules leave it out there.
///
/// # Errors
/// [`ErrorKind::Usage`] if one contains the other, or if both are the same; those of a pattern.
pub(super) fn check_apart(from: &Path, to: &Path, rules: &CopyRules) -> Result<()> {
    let (source, target) = (real(from), real(to));
    let is_apart = are_apart(&source, &target)
        && !has_above(&source, &target)
        && !has_above(&target, &source)
        && are_apart_in_file_system(&source, &target);
    if is_apart || is_left_out(&source, &target, rules)? {
        return Ok(());
    }
    let message = format!("cannot copy {source:?} to {target:?}");
    let why = "they are the same directory, or one contains the other";
    let error = Error::new(ErrorKind::Usage, message).because(why);
    match target.strip_prefix(&source) {
        Ok(below) if !below.as_os_str().is_empty() => Err(error.hint(format!(
            "leave out the target: --exclude {:?}, or -x if it is on another file system",
            Path::new("/").join(below)
        ))),
        _ => Err(error),
    }
}

/// Returns whether the rules leave out a target that is below the source: it is on another file
/// system, or a pattern leaves it out.
fn is_left_out(source: &Path, target: &Path, rules: &CopyRules) -> Result<bool> {
    let Ok(below) = target.strip_prefix(source) else {
        return Ok(false);
    };
    if has_above(source, target) {
        return Ok(false);
    }
    let is_beyond = rules.files.one_file_system
        && device(source) != device(target)
        && are_apart_in_file_system(source, target);
    let below = below.as_os_str().as_bytes();
    Ok(is_beyond || rules.patterns()?.leave_out(below, true))
}

/// Returns the device of what is there of a path.
fn device(path: &Path) -> Option<u64> {
    let mut found = path.ancestors().filter_map(|dir| fs::metadata(dir).ok());
    found.next().map(|stat| stat.dev())
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
            return match rest.as_os_str().is_empty() {
                true => found,
                false => found.join(rest),
            };
        }
    }
    absolute
}
