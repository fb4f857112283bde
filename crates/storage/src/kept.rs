//! Copies of the roots and manifests that this host has stored, for a host that adds backups and cannot read them.
//!
//! Such a host has no key for what it stored itself. To compare its next backup with the last one, it keeps the lists of its own backups in a
//! directory of its own: names, times, sizes and digests of its files, no content. Anyone who reads that directory could read the
//! files themselves before.
//!
//! A copy is used only if it is of the very root that the repository has: all that is clear of it must be the same, and a key proves
//! that. Without a copy the backup is unknown to this host, and the next one is a full one. Nothing else depends on the copies, and
//! errors of their files are no errors.

use super::{
    Leased, ListedObject, LocalObjects, Objects, Put, PutIf, SealedObjects, StorageAbilities,
    StoredObject, Take, Upload, Version,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    key_kind::{BackupPart, KeyKind},
    layout::BACKUPS,
};
use fullbore_platform::{debug, exact_read::read_exactly, guarded_path::own_dir};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Sealed objects of a host that adds backups, with copies of what it stored.
#[derive(Debug, Clone)]
pub struct KeptBackups {
    inner: SealedObjects,
    /// The directory of the copies; `None` if this user has no place for one.
    dir: Option<PathBuf>,
}

/// What is kept of a backup.
#[derive(Debug, Clone, Copy)]
struct KeptFile<'a> {
    backup: &'a str,
    name: &'a str,
    part: BackupPart,
}

impl<'a> KeptFile<'a> {
    /// Returns the copy of the object of this key; `None` for an object of which no copy is kept.
    fn of_key(key: &'a str) -> Option<Self> {
        let (backup, part) = KeyKind::of(key).is_kept()?;
        let (_, name) = key.rsplit_once('/')?;
        Some(Self { backup, name, part })
    }

    fn path(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}.{}", self.backup, self.name))
    }
}

impl KeptBackups {
    /// Keeps copies below `dir`, which is made when there is one to keep; without a directory none.
    pub fn new(inner: SealedObjects, dir: Option<&Path>) -> Self {
        if dir.is_none() {
            debug(|| {
                "there is no directory for the state: every backup will be a full one".to_owned()
            });
        }
        // The same repository under another path, or at another address, has the same copies.
        let name = inner.ring().map(|ring| ring.pseudonym(b"repository"));
        let dir = dir.zip(name).map(|(dir, name)| dir.join(name));
        Self { inner, dir }
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        let file = KeptFile::of_key(key)?;
        Some(file.path(self.dir.as_deref()?))
    }

    /// Returns the whole root whose head is `head`, if there is a copy.
    fn whole_root(&self, key: &str, head: &[u8]) -> Option<Vec<u8>> {
        let file = KeptFile::of_key(key).filter(|file| file.part == BackupPart::Root)?;
        let whole = fs::read(file.path(self.dir.as_deref()?)).ok()?;
        if self.inner.is_head_of(key, head, &whole) {
            return Some(whole);
        }
        debug(|| format!("the copy of {} is of another root", self.describe(key)));
        None
    }

    fn keep(&self, key: &str, bytes: &[u8]) {
        let Some(path) = self.path(key) else { return };
        let kept = replace_file(&path, bytes);
        if let Err(error) = kept.and_then(|()| self.remove_old()) {
            debug(|| format!("could not keep a copy of {}: {error}", self.describe(key)));
        }
    }

    /// Removes copies of what the repository has not any more.
    fn remove_old(&self) -> io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let listed = self.inner.list(BACKUPS).map_err(io::Error::other)?;
        let there: BTreeSet<PathBuf> = listed
            .iter()
            .filter_map(|object| Some(KeptFile::of_key(&object.key)?.path(dir)))
            .collect();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if !there.contains(&path) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn forget(&self, key: &str) {
        if let Some(path) = self.path(key) {
            let _ = fs::remove_file(path); // of no use any more, and of no harm
        }
    }
}

/// Writes a file that only this user reads, as a whole or not at all.
pub(super) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (mut file, written) = new_file(path)?;
    file.write_all(bytes)?;
    fs::rename(written, path)
}

/// Creates a file beside `path`, which only this user reads. One that a killed process left is replaced.
fn new_file(path: &Path) -> io::Result<(File, PathBuf)> {
    let dir = path.parent().unwrap_or(Path::new("."));
    own_dir(dir)?;
    let mut written = path.as_os_str().to_owned();
    written.push(".partial");
    let written = PathBuf::from(written);
    match fs::remove_file(&written) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&written)?;
    Ok((file, written))
}

impl Objects for KeptBackups {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        self.inner.list(prefix)
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let kept = KeptFile::of_key(key).filter(|file| file.part == BackupPart::Manifest);
        let file = kept.and_then(|file| File::open(file.path(self.dir.as_deref()?)).ok());
        let Some(file) = file else {
            return self.inner.read_at(key, offset, len, out);
        };
        // Pages are checked against the digests in the root by whoever reads them.
        let end = offset.saturating_add(len as u64);
        let message = || format!("could not read the copy of {}", self.describe(key));
        if file.metadata().map_err(|e| Error::io(message(), e))?.len() < end {
            return Err(Error::new(ErrorKind::Corrupt, message()).because("it ends too early"));
        }
        read_exactly(&file, offset, len, out).map_err(|error| Error::io(message(), error))
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        let Some((bytes, version)) = self.inner.get(key)? else {
            return Ok(None);
        };
        let whole = self.whole_root(key, &bytes);
        Ok(Some((whole.unwrap_or(bytes), version)))
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        self.inner.stat(key)
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        let put = self.inner.put(key, bytes, condition)?;
        let is_root = KeptFile::of_key(key).is_some_and(|file| file.part == BackupPart::Root);
        if is_root && matches!(put, Put::Done(_)) {
            self.keep(key, bytes);
        }
        Ok(put)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        let inner = self.inner.create(key)?;
        let Some(path) = self.path(key) else {
            return Ok(inner);
        };
        let copy = new_file(&path)
            .inspect_err(|error| debug(|| format!("could not keep a copy of {key}: {error}")));
        Ok(Box::new(KeptUpload {
            inner,
            copy: copy.ok().map(|(file, written)| (file, written, path)),
        }))
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let deleted = self.inner.delete(keys);
        keys.iter().for_each(|key| self.forget(key));
        deleted
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        self.inner.abort_uploads(prefix)
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        self.inner.settle(prefix)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        self.inner.lease(key, body, take)
    }

    fn abilities(&self) -> StorageAbilities {
        self.inner.abilities()
    }

    fn answers_late(&self) -> bool {
        self.inner.answers_late()
    }

    fn describe(&self, key: &str) -> String {
        self.inner.describe(key)
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        self.inner.as_local()
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        Some(&self.inner)
    }
}

/// An upload whose plain bytes go into a local file as well: its handle, its name until it is complete, and its final name.
#[derive(Debug)]
struct KeptUpload {
    inner: Box<dyn Upload>,
    copy: Option<(File, PathBuf, PathBuf)>,
}

impl Upload for KeptUpload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.append(bytes)?;
        if let Some((file, ..)) = &mut self.copy
            && let Err(error) = file.write_all(bytes)
        {
            debug(|| format!("could not keep a copy of a manifest: {error}"));
            self.give_up();
        }
        Ok(())
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.give_up();
        self.inner.amend(offset, bytes)
    }

    fn finish(mut self: Box<Self>) -> Result<StoredObject> {
        let stored = self.inner.finish()?;
        if let Some((_, written, path)) = self.copy.take()
            && let Err(error) = fs::rename(&written, &path)
        {
            debug(|| format!("could not keep a copy of a manifest: {error}"));
        }
        Ok(stored)
    }

    fn abort(mut self: Box<Self>) {
        self.give_up();
        self.inner.abort();
    }
}

impl KeptUpload {
    fn give_up(&mut self) {
        if let Some((_, written, _)) = self.copy.take() {
            let _ = fs::remove_file(written); // the next copy replaces it
        }
    }
}
