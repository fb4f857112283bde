//! Reads that fail: a disk may give data when it is asked again, and data that it never gives is damage.

use fullbore_format::error::{Error, ErrorKind};
use fullbore_platform::is_media_error;
use std::io;

/// Asks a second time, because a disk may succeed then; a repair would give up data that it did not
/// get.
///
/// # Errors
/// The system's.
pub fn asked_twice<T>(mut ask: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match ask() {
        Err(error) if is_media_error(&error) => ask(),
        answer => answer,
    }
}

/// Returns the error of a read. A sector that cannot be read counts as damage, like a flipped bit: the
/// rest of the object may be intact.
pub fn failed_to_read(what: String, error: io::Error) -> Error {
    let kind = if is_media_error(&error) {
        ErrorKind::Corrupt
    } else {
        ErrorKind::of(&error)
    };
    Error {
        kind,
        ..Error::io(what, error)
    }
}
