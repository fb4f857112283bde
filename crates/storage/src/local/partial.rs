//! Files that are being written: under a name of their own, locked by their writer, removed unless they get the name of an object.

use fullbore_format::layout::letters;
use fullbore_platform::{
    debug, dir, durable,
    safe_file::{self, FileAccess},
    write,
};
use fullbore_wire::key::PARTIAL_SUFFIX;
use std::{
    fs::File,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// A file that is being written. Dropped without a name of an object, it is removed.
#[derive(Debug)]
pub(super) struct PartialFile {
    dir: OwnedFd,
    /// The name that the object will have.
    name: String,
    partial: String,
    file: Arc<File>,
    is_locked: bool,
    /// Has it the name of the object, so that nothing of its own name is left?
    is_named: AtomicBool,
}

impl PartialFile {
    /// Creates a file that is to become `name` in `dir`, and locks it.
    ///
    /// # Errors
    /// `NotFound` if the directory is removed, or the file because its lock was not taken yet; or the system's.
    pub(super) fn create(dir: OwnedFd, name: &str, access: FileAccess) -> io::Result<Self> {
        let partial = format!(
            "{name}.{}{PARTIAL_SUFFIX}",
            letters(RandomState::new().build_hasher().finish(), 6)
        );
        let file = Arc::new(safe_file::create_at(&dir, &partial[..], access)?);
        let mut created = Self {
            dir,
            name: name.to_owned(),
            partial,
            file,
            is_locked: true,
            is_named: AtomicBool::new(false),
        };
        let is_removed = match write::lock_exclusive(&created.file) {
            Ok(true) => !dir::is_named(&created.file, &created.dir, &created.partial),
            // Another process has locked it first: it takes the writer for dead and removes the file.
            Ok(false) => true,
            Err(error) => {
                debug(|| format!("no lock on {:?}: {error}", created.partial));
                created.is_locked = false;
                false
            }
        };
        if is_removed {
            Err(io::ErrorKind::NotFound.into())
        } else {
            Ok(created)
        }
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Opens the same file for writes that pass by the page cache.
    pub(super) fn open_direct(&self) -> io::Result<File> {
        let direct = safe_file::open_direct_at(&self.dir, &self.partial)?;
        let is_same = dir::is_named(&direct, &self.dir, &self.partial);
        if is_same {
            Ok(direct)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// Returns whether the file system has locks, so that others see that the writer is alive.
    pub(super) fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Gives the file the name of its object, durable. Its content must be durable before. False, and the file is removed, if another
    /// file has that name and `only_if_absent`.
    ///
    /// # Errors
    /// The system's; if only the name could not be made durable, the object has it.
    pub(super) fn give_name(&self, only_if_absent: bool) -> io::Result<bool> {
        let (old, new) = (self.partial.as_bytes(), self.name.as_bytes());
        let is_named = if only_if_absent {
            write::rename_if_absent(&self.dir, old, new)?
        } else {
            write::rename_at(&self.dir, old, &self.dir, new)?;
            true
        };
        self.is_named.store(is_named, Relaxed);
        if is_named {
            durable::sync_dir(&self.dir)?;
        }
        Ok(is_named)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if *self.is_named.get_mut() {
            return;
        }
        match write::unlink_at(&self.dir, self.partial.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                debug(|| format!("could not remove {:?}: {error}", self.partial));
            }
            _ => {}
        }
    }
}

/// Removes a partial file whose writer is dead, or cannot be known to be alive.
pub(super) fn remove_if_dead(dir: impl AsFd, partial: &str) -> io::Result<()> {
    let file = match safe_file::open_write_at(&dir, partial) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::InvalidData
            ) =>
        {
            return Ok(()); // a link, as all that is no regular file, is not ours
        }
        file => file?,
    };
    let is_alive = write::lock_exclusive(&file).is_ok_and(|is_free| !is_free);
    // A writer that had not locked it yet sees that it is gone.
    if is_alive || dir::stat(&dir, partial.as_bytes()).is_err() {
        return Ok(());
    }
    match write::unlink_at(dir, partial.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
