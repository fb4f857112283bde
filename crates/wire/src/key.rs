//! Keys of objects: paths of plain names, safe as file names and as keys of an object store.

use fullbore_format::error::{Error, ErrorKind, Result, quoted};

/// Bytes of a key at most.
pub const MAX_KEY_BYTES: usize = 512;

/// Bytes of one name in a key at most: eCryptfs, which takes the shortest names, takes 143, and a file that is being written has 15
/// more.
pub const MAX_NAME_BYTES: usize = 128;

/// What names of files end with that are not complete.
pub const PARTIAL_SUFFIX: &str = ".partial";

/// Refuses a key that is not a relative path of plain names.
///
/// Names are text without control characters, not empty, not `.` or `..`, and do not end in `.partial`, which files have while they
/// are being written.
///
/// # Errors
/// [`ErrorKind::Usage`].
pub fn check_key(key: &str) -> Result<()> {
    let Some(why) = fault_of(key) else {
        return Ok(());
    };
    let shown = key.chars().take(MAX_KEY_BYTES).collect::<String>();
    let message = format!(
        "cannot use {} as the key of an object",
        quoted(shown.as_bytes())
    );
    Err(Error::new(ErrorKind::Usage, message).because(why))
}

/// Refuses a prefix that is neither empty nor a key.
pub fn check_prefix(prefix: &str) -> Result<()> {
    if prefix.is_empty() {
        Ok(())
    } else {
        check_key(prefix)
    }
}

/// Is the key below the prefix?
pub fn is_below(key: &str, prefix: &str) -> bool {
    prefix.is_empty()
        || key
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with('/'))
}

/// The directory and the name of a key.
pub fn split_key(key: &str) -> (&str, &str) {
    key.rsplit_once('/').unwrap_or(("", key))
}

fn fault_of(key: &str) -> Option<String> {
    if key.len() > MAX_KEY_BYTES {
        return Some(format!(
            "it has {} bytes, and {MAX_KEY_BYTES} are allowed",
            key.len()
        ));
    }
    key.split('/').find_map(fault_of_name)
}

fn fault_of_name(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("a name in it is empty".to_owned());
    }
    if name == "." || name == ".." {
        return Some(format!("{name:?} in it is not a name"));
    }
    if name.len() > MAX_NAME_BYTES {
        return Some(format!(
            "a name in it has {} bytes, and {MAX_NAME_BYTES} are allowed",
            name.len()
        ));
    }
    if name.chars().any(char::is_control) {
        return Some("it has a control character".to_owned());
    }
    if name.ends_with(PARTIAL_SUFFIX) {
        return Some(format!(
            "files that end in {PARTIAL_SUFFIX:?} are not complete"
        ));
    }
    None
}
