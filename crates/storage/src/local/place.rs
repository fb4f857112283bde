//! The directory in which a repository is made.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{COVERED, REPOSITORY, ROOMS},
};
use fullbore_platform as platform;
use fullbore_platform::place::quoted_path;
use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

/// The directory that ext2, ext3 and ext4 have in the root of a file system.
const LOST_AND_FOUND: &str = "lost+found";

/// Refuses a directory in which no repository is made: one that is not empty. What an interrupted attempt left does not count, and
/// neither does a repository that appears meanwhile.
///
/// # Errors
/// [`ErrorKind::Usage`] with the name of the first other content.
pub fn refuse_other_contents(root: &Path) -> Result<()> {
    let others = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| !is_known_name(&entry.file_name()));
    // Any other name makes a better message than lost+found.
    let other = others.max_by_key(|entry| entry.file_name() != LOST_AND_FOUND);
    match other {
        None => Ok(()),
        Some(other) if other.file_name() == LOST_AND_FOUND => {
            let text = format!("cannot make a repository in {}: it is the root of a file system", quoted_path(root));
            let own = root.join("fullbore");
            Err(Error::new(ErrorKind::Usage, text)
                .because(format!("it holds {LOST_AND_FOUND:?}"))
                .hint(format!("give the repository a directory of its own, such as {}", quoted_path(&own))))
        }
        Some(_) => Err(Error::new(ErrorKind::Usage, format!("cannot make a repository in {}: it is not empty", quoted_path(root)))
            .hint("choose a directory that is empty, absent or a repository, or a file name such as x.tar.zst")),
    }
}

fn is_known_name(name: &OsStr) -> bool {
    name == REPOSITORY || ROOMS.iter().any(|room| name == *room) || is_partial(name)
}

/// Returns whether a killed attempt to make a repository leaves this name.
fn is_partial(name: &OsStr) -> bool {
    let begins = [REPOSITORY, COVERED]
        .iter()
        .any(|file| name.as_bytes().starts_with(file.as_bytes()));
    begins && name.as_bytes().ends_with(b".partial")
}

/// Removes the remains of attempts to make a repository. Now that the repository exists, they are
/// of no use to any process.
pub fn clear_remains(root: &Path) {
    for entry in fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_partial(&entry.file_name()))
    {
        if let Err(error) = fs::remove_file(entry.path()) {
            platform::debug(|| format!("could not remove {}: {error}", quoted_path(&entry.path())));
        }
    }
}
