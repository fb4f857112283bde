//! The recipients of a repository that this user has seen, in the state directory: a new one is shown before it gets the next key.

use super::{kept::replace_file, key_file::KeyFile};
use fullbore_crypt::KeyRing;
use fullbore_platform::debug;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

fn path_of(state_dir: Option<&Path>, ring: &KeyRing) -> Option<PathBuf> {
    let name = format!("recipients-{}", ring.pseudonym(b"repository"));
    Some(state_dir?.join(name))
}

fn line_of(file: &KeyFile) -> String {
    format!(
        "{} {}",
        file.key(),
        file.recipient.as_deref().unwrap_or("unknown")
    )
}

/// Returns those of `files` that this user has not seen; all, if none were ever shown.
pub fn new_recipients<'a>(
    state_dir: Option<&Path>,
    ring: &KeyRing,
    files: &'a [KeyFile],
) -> Vec<&'a KeyFile> {
    let text = path_of(state_dir, ring).and_then(|path| fs::read_to_string(path).ok());
    let text = text.unwrap_or_default();
    let seen: BTreeSet<&str> = text.lines().collect();
    files
        .iter()
        .filter(|file| !seen.contains(&line_of(file)[..]))
        .collect()
}

/// Notes that these key files were shown to this user. An error is no error: they are shown again.
pub fn remember_recipients(state_dir: Option<&Path>, ring: &KeyRing, files: &[KeyFile]) {
    let Some(path) = path_of(state_dir, ring) else {
        return;
    };
    let text: String = files.iter().map(|file| line_of(file) + "\n").collect();
    let written = replace_file(&path, text.as_bytes());
    let said = |error: &io::Error| debug(|| format!("could not write {path:?}: {error}"));
    let _ = written.inspect_err(said); // told above
}
