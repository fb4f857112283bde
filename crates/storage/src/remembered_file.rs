//! The file in which a host remembers the repositories of one location.

use super::Location;
use fullbore_format::error::{Error, Result};
use fullbore_platform as platform;
use fullbore_platform::debug;
use serde::de::DeserializeOwned;
use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Bytes of a file at most.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// Returns the name of a location in the memory: the same for all spellings that lead to the same place surely.
pub(super) fn name_of(location: &Location, endpoint: Option<&str>) -> String {
    match location {
        Location::Local(path) => {
            let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            whole
                .components()
                .collect::<PathBuf>()
                .display()
                .to_string()
        }
        Location::Cloud { .. } => {
            let place = endpoint.map(|endpoint| format!(" at {endpoint}"));
            format!("{}{}", location.text(), place.unwrap_or_default())
        }
        _ => location.text(),
    }
}

/// Returns the file system that a path is on, or would be on.
pub(super) fn file_system_of(path: &Path) -> Option<String> {
    let whole = std::path::absolute(path).ok()?;
    let mut above = whole.ancestors();
    above.find_map(|dir| platform::file_system_id(dir).ok())
}

/// Reads the document in a file; `None` if the file cannot be read.
///
/// # Errors
/// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if it is damaged.
pub(super) fn read_document<T: DeserializeOwned>(file: &Path) -> Result<Option<T>> {
    let mut bytes = Vec::new();
    let read =
        fs::File::open(file).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes));
    if let Err(error) = read {
        if error.kind() != io::ErrorKind::NotFound {
            debug(|| format!("could not read {file:?}: {error}"));
        }
        return Ok(None);
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        let message = format!("cannot read {file:?}, what this host remembers of a repository");
        Error::corrupt(message)
            .because(error)
            .hint("remove the file if it is to be forgotten; the next command takes the repository as it is")
    })
}
