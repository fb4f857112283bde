//! A file by which the target is tried: made, looked at and removed at once.

use super::warnings::TargetWarnings;
use crate::{
    error::reason,
    platform::{dir, write},
};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// A name that nothing has, for what is made in a directory of the target.
pub(crate) fn name_aside() -> Vec<u8> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        ".fullbore-p{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Relaxed)
    )
    .into_bytes()
}

/// What `look` sees of a new file in `dir`, empty and with mode 0600. `None` if none can be made: the restore will say why.
pub(crate) fn trial<T>(
    dir: impl AsFd,
    notes: &TargetWarnings,
    look: impl FnOnce(&OwnedFd) -> T,
) -> Option<T> {
    match write::create_nameless(&dir, 0o600) {
        Ok(file) => Some(look(&file)),
        Err(_) => trial_of_names(dir, notes, |file, _| look(file)),
    }
}

/// As [`trial`]; the file has a name, one with letters, which `look` gets too. One that cannot be removed is noted.
pub(crate) fn trial_of_names<T>(
    dir: impl AsFd,
    notes: &TargetWarnings,
    look: impl FnOnce(&OwnedFd, &[u8]) -> T,
) -> Option<T> {
    let name = name_aside();
    let before = dir::stat_fd(&dir);
    let file = write::create_file(&dir, &name, 0o600).ok()?;
    let found = look(&file, &name);
    let removed = write::unlink_at(&dir, &name).or_else(|_| write::unlink_at(&dir, &name));
    removed.unwrap_or_else(|error| notes.left(&reason(&error), &name));
    // A directory that is only above what is restored keeps its time. If that fails it is in nobody's way.
    let _ = before.and_then(|before| write::set_times_fd(&dir, before.mtime));
    Some(found)
}
