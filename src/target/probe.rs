//! Files that are made in a directory of the target for a moment: by which the target is tried, or that are about to take the place
//! of something.

use super::warnings::TargetWarnings;
use crate::platform::{dir, write};
use std::{
    ffi::OsStr,
    fmt, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
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

/// Would a file that is made in `dir` stay there for ever? Names can only be added to it, or a file of this restore stayed already.
pub(crate) fn keeps_names(dir: impl AsFd, notes: &TargetWarnings) -> bool {
    dir::stat_fd(dir)
        .is_ok_and(|stat| stat.is_append_only || notes.is_left_in((stat.dev, stat.inode)))
}

/// Nothing can be removed from a directory.
#[derive(Debug)]
struct NamesStay;

impl fmt::Display for NamesStay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing can be removed from its directory (`lsattr -d` shows whether that is append-only)")
    }
}

impl std::error::Error for NamesStay {}

/// Nothing is replaced where [`keeps_names`]: what should take its place would stay beside it.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`].
pub(crate) fn can_replace(dir: impl AsFd, notes: &TargetWarnings) -> io::Result<()> {
    match keeps_names(dir, notes) {
        true => Err(io::Error::new(io::ErrorKind::PermissionDenied, NamesStay)),
        false => Ok(()),
    }
}

/// Remove `name`, which this restore has made in `dir`. If it stays, that is noted.
pub(crate) fn remove_own(dir: impl AsFd, name: &[u8], notes: &TargetWarnings) {
    let Err(error) = write::unlink_at(&dir, name).or_else(|_| write::unlink_at(&dir, name)) else {
        return;
    };
    if error.kind() == io::ErrorKind::NotFound {
        return;
    }
    if let Ok(stat) = dir::stat_fd(&dir) {
        notes.left(
            (stat.dev, stat.inode),
            &dir::path_of(&dir).join(OsStr::from_bytes(name)),
            &error,
        );
    }
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

/// As [`trial`]; the file has a name, one with letters, which `look` gets too. `None` also where it would stay; one that cannot be
/// removed all the same is noted.
pub(crate) fn trial_of_names<T>(
    dir: impl AsFd,
    notes: &TargetWarnings,
    look: impl FnOnce(&OwnedFd, &[u8]) -> T,
) -> Option<T> {
    if keeps_names(&dir, notes) {
        return None;
    }
    let name = name_aside();
    let before = dir::stat_fd(&dir);
    let file = write::create_file(&dir, &name, 0o600).ok()?;
    let found = look(&file, &name);
    remove_own(&dir, &name, notes);
    // A directory that is only above what is restored keeps its time. If that fails it is in nobody's way.
    let _ = before.and_then(|before| write::set_times_fd(&dir, before.mtime));
    Some(found)
}
