//! Short-lived files in a directory of the target: test files, and new files that are about to
//! replace others.

use super::warnings::TargetWarnings;
use fullbore_platform::{dir, write};
use std::{
    ffi::OsStr,
    fmt, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// Returns a new, unused name for a temporary object in a directory of the target.
pub(crate) fn temporary_name() -> Vec<u8> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        ".fullbore-p{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Relaxed)
    )
    .into_bytes()
}

/// Returns whether a file in `dir` could not be removed: the directory is append-only, or an
/// earlier file of this restore is left there.
pub(crate) fn cannot_remove_from(dir: impl AsFd, notes: &TargetWarnings) -> bool {
    dir::stat_fd(dir)
        .is_ok_and(|stat| stat.is_append_only || notes.has_leftover((stat.dev, stat.inode)))
}

/// The error for a directory from which files cannot be removed.
#[derive(Debug)]
struct CannotRemove;

impl fmt::Display for CannotRemove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("files cannot be removed from its directory (`lsattr -d` shows whether it is append-only)")
    }
}

impl std::error::Error for CannotRemove {}

/// Refuses a replacement in a directory where [`cannot_remove_from`] holds: the new file would stay
/// beside the old one.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`].
pub(crate) fn check_can_replace(dir: impl AsFd, notes: &TargetWarnings) -> io::Result<()> {
    if cannot_remove_from(dir, notes) {
        let kind = io::ErrorKind::PermissionDenied;
        return Err(io::Error::new(kind, CannotRemove));
    }
    Ok(())
}

/// Removes the temporary object `name` from `dir`. A failure becomes a warning.
pub(crate) fn remove_temporary(dir: impl AsFd, name: &[u8], notes: &TargetWarnings) {
    let Err(error) = write::unlink_at(&dir, name).or_else(|_| write::unlink_at(&dir, name)) else {
        return;
    };
    if error.kind() == io::ErrorKind::NotFound {
        return;
    }
    if let Ok(stat) = dir::stat_fd(&dir) {
        notes.add_leftover(
            (stat.dev, stat.inode),
            &dir::path_of(&dir).join(OsStr::from_bytes(name)),
            &error,
        );
    }
}

/// Calls `look` with a new empty file in `dir`, of mode 0600. Returns `None` if the file cannot be
/// created: the restore itself then fails with the reason.
pub(crate) fn with_test_file<T>(
    dir: impl AsFd,
    notes: &TargetWarnings,
    look: impl FnOnce(&OwnedFd) -> T,
) -> Option<T> {
    match write::create_nameless(&dir, 0o600) {
        Ok(file) => Some(look(&file)),
        Err(_) => with_named_test_file(dir, notes, |file, _| look(file)),
    }
}

/// As [`with_test_file`], with a file that has a name with letters; `look` gets the name too.
/// Returns `None` also where the file could not be removed. A warning names a file that is left.
pub(crate) fn with_named_test_file<T>(
    dir: impl AsFd,
    notes: &TargetWarnings,
    look: impl FnOnce(&OwnedFd, &[u8]) -> T,
) -> Option<T> {
    if cannot_remove_from(&dir, notes) {
        return None;
    }
    let name = temporary_name();
    let dir_stat = dir::stat_fd(&dir);
    let file = write::create_file(&dir, &name, 0o600).ok()?;
    let found = look(&file, &name);
    remove_temporary(&dir, &name, notes);
    // A directory above the restored paths keeps its time. A failure does no harm.
    let _ = dir_stat.and_then(|dir_stat| write::set_times_fd(&dir, dir_stat.mtime));
    Some(found)
}
