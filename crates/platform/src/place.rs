//! The place of a new file: the directory that it needs, and its path in messages.

use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use std::{fs, io, os::unix::ffi::OsStrExt, path::Path};

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

/// Returns the directory of `path`.
pub fn dir_of(path: &Path) -> &Path {
    path.parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}
