//! Arguments of any bytes: patterns and names of files, checked while they are read.

use std::{ffi::OsString, os::unix::ffi::OsStrExt};

/// A line of `.gitignore` that does something.
///
/// # Errors
/// What it should be.
pub fn pattern(text: OsString) -> Result<OsString, String> {
    let bytes = text.as_bytes();
    let is_empty = bytes
        .iter()
        .all(|byte| *byte == b'!' || byte.is_ascii_whitespace());
    match () {
        () if bytes.contains(&b'\n') => Err("a pattern of one line".to_owned()),
        () if is_empty => Err("a pattern, and not an empty one".to_owned()),
        () if bytes.starts_with(b"#") => {
            Err("a pattern; one for names that begin with # is written \\#".to_owned())
        }
        () => Ok(text),
    }
}

/// The name of a file, without its directory.
///
/// # Errors
/// What it should be.
pub fn name(text: OsString) -> Result<OsString, String> {
    match text.as_bytes() {
        b"" | b"." | b".." => Err("the name of a file".to_owned()),
        bytes if bytes.contains(&b'/') => Err("the name of a file, not a path".to_owned()),
        _ => Ok(text),
    }
}
