//! Leases on intents in a local directory: the lock of the kernel on the file of the intent. It ends with its holder, however that
//! ends.
//!
//! A new intent and a new content are written and locked under another name and then renamed, so nobody ever sees an intent that its
//! holder has not locked. Whoever waited for the lock of a file that was replaced finds that the name is another file's.

use super::{access, directory::LocalObjects};
use crate::{Lease, Leased, Objects, Take};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{debug, dir, safe_file, write};
use fullbore_wire::key::split_key;
use std::{
    fs::File,
    io::{self},
    sync::Arc,
};

/// Takes a lease as [`Objects::lease`] does; errors are the system's.
pub(super) fn take(
    objects: &LocalObjects,
    key: &str,
    body: &[u8],
    take: Take,
) -> io::Result<Leased> {
    loop {
        if take != Take::New {
            let taken = take_from_dead(objects, key)?;
            if take == Take::Dead || !matches!(taken, Leased::Absent) {
                return Ok(taken);
            }
        }
        let made = make(objects, key, body, take)?;
        // For a holder of either kind: it appeared between the two.
        if take == Take::New || !matches!(made, Leased::Held) {
            return Ok(made);
        }
    }
}

fn make(objects: &LocalObjects, key: &str, body: &[u8], take: Take) -> io::Result<Leased> {
    let partial = objects.begin_partial(key, access::of_file(objects.root()))?;
    // A new backup goes on without a lock; but where an intent may be another's, it could not be told from it later.
    if !partial.is_locked() && take == Take::DeadOrNew {
        return Ok(Leased::Unknown);
    }
    write::pwrite_all(partial.file(), body, 0)?;
    write::fsync(partial.file())?;
    if !partial.give_name(true)? {
        return Ok(Leased::Held);
    }
    Ok(ours(objects, key, partial.file().clone()))
}

fn take_from_dead(objects: &LocalObjects, key: &str) -> io::Result<Leased> {
    let opened = objects
        .find(key)
        .and_then(|(dir, name)| Ok((open_to_lock(objects, key)?, dir, name)));
    let (file, dir, name) = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Leased::Absent),
        opened => opened?,
    };
    Ok(match write::lock_exclusive(&file) {
        Ok(true) if dir::is_named(&file, dir, name) => ours(objects, key, Arc::new(file)),
        // Its holder has removed or replaced it, and another may have come by now.
        Ok(_) => Leased::Held,
        Err(error) => {
            debug(|| format!("no lock on {}: {error}", objects.describe(key)));
            Leased::Unknown
        }
    })
}

/// Opens an intent for writing, too: NFS gives exclusive locks on nothing else (flock(2)). Where that is not allowed, for reading.
fn open_to_lock(objects: &LocalObjects, key: &str) -> io::Result<File> {
    let (dir, name) = objects.find(key)?;
    match safe_file::open_write_at(&dir, name) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            safe_file::open_at(&dir, name)
        }
        opened => opened,
    }
}

fn ours(objects: &LocalObjects, key: &str, file: Arc<File>) -> Leased {
    Leased::Ours(Box::new(LocalLease {
        objects: objects.clone(),
        key: key.to_owned(),
        file,
    }))
}

#[derive(Debug)]
struct LocalLease {
    objects: LocalObjects,
    key: String,
    /// Locked as long as it is open.
    file: Arc<File>,
}

impl LocalLease {
    /// Puts a new file that is locked in the place of the old one, whose lock ends only then.
    fn replace(&mut self, body: &[u8]) -> io::Result<()> {
        let partial = self
            .objects
            .begin_partial(&self.key, access::of_file(self.objects.root()))?;
        write::pwrite_all(partial.file(), body, 0)?;
        write::fsync(partial.file())?;
        let named = partial.give_name(false);
        self.objects.open_files.forget(&self.key);
        if self
            .objects
            .find(&self.key)
            .is_ok_and(|(dir, name)| dir::is_named(partial.file(), dir, name))
        {
            self.file = partial.file().clone();
        }
        named.map(drop)
    }
}

impl Lease for LocalLease {
    fn update(&mut self, body: &[u8]) -> Result<()> {
        if !self.is_ours() {
            let message = format!(
                "cannot write {}: it was removed by another process",
                self.objects.describe(&self.key)
            );
            return Err(Error::new(ErrorKind::Gone, message).hint("run the same command again"));
        }
        self.replace(body)
            .map_err(|error| self.objects.failed("write", &self.key, error))
    }

    fn is_ours(&self) -> bool {
        let (dir, name) = split_key(&self.key);
        self.objects
            .open_dir(dir)
            .is_ok_and(|dir| dir::is_named(&self.file, dir, name))
    }
}
