//! What the life of a repository is written over: objects with names, and locks on intents.
//!
//! Steps that must be safe beside each other, see [`crate::repo::protocol`] and [`crate::repo::prune`], do nothing to a repository
//! but through this trait; so a test can run the very same steps in any order, and end them at any.

use super::permissions;
use crate::{
    error::{Error, Result},
    format::{
        layout::{BACKUPS, letters},
        seal::MAX_BYTES,
    },
    platform::{
        self,
        dir::{self, open_root},
        safe_file::{self, Access},
        write,
    },
    sink::local_file::{name, sync_dir},
};
use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, ErrorKind, Write},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

/// The objects of one repository. A key is a path below it, such as `backups/20261121T054501Z-k3f9qz/root.json`.
///
/// Errors are the system's; what is not there is no error.
pub trait Objects {
    /// Holds the lock of an intent until it is dropped.
    type Lock;

    /// The names in a directory, in no order; none if it is not there.
    fn list(&self, dir: &str) -> Result<Vec<String>>;

    /// The bytes of an object.
    fn read(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// How many bytes an object has; `None` if it is not there.
    fn size(&self, key: &str) -> Result<Option<u64>>;

    /// Store an object, or replace it: all or nothing, and durable.
    fn put(&self, key: &str, bytes: &[u8]) -> Result<()>;

    /// Store an empty object; durable after [`Objects::sync`] of its directory.
    fn mark(&self, key: &str) -> Result<()>;

    /// Make durable which names are in a directory.
    fn sync(&self, dir: &str) -> Result<()>;

    /// Rename within a directory, at once and durable; false if `from` is not there.
    fn rename(&self, from: &str, to: &str) -> Result<bool>;

    /// Remove an object. After a crash of the system it may be there again.
    fn remove(&self, key: &str) -> Result<()>;

    /// Remove a directory, unless something is in it.
    fn remove_dir(&self, dir: &str) -> Result<()>;

    /// Take the lock of an intent that nobody holds.
    fn seize(&self, key: &str) -> Result<Seized<Self::Lock>>;

    /// The same, but an intent that is not there is made, so that nobody else begins anything of its name until it is removed.
    fn claim(&self, key: &str) -> Result<Seized<Self::Lock>>;
}

/// What came of an attempt to take the lock of an intent.
#[derive(Debug)]
pub enum Seized<L> {
    /// Nobody held it, and now we do.
    Free(L),
    /// It is not there, and we hold nothing: the next moment another may begin under that name.
    Absent,
    /// Somebody holds it.
    Held,
    /// There is no telling: the place has no locks.
    Unknown,
}

/// The objects of a repository in a directory.
///
/// Only that directory and the one of all backups may be links: through no other one is anything changed, and no object is
/// read through one.
#[derive(Debug, Clone)]
pub struct LocalObjects(PathBuf);

/// How often a directory is made again that others remove, as nothing is in it yet.
const ATTEMPTS: u32 = 100;

impl LocalObjects {
    /// Those of the repository at `root`.
    pub fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    fn path(&self, key: &str) -> PathBuf {
        self.0.join(key)
    }

    /// The directory that an object is to be changed in, and its name there.
    fn home<'a>(&self, key: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let (dir, name) = key.rsplit_once('/').unwrap_or(("", key));
        let dir = match dir.strip_prefix(BACKUPS) {
            Some("") => open_root(&self.path(dir)),
            Some(_) => safe_file::open_dir(&self.path(dir)),
            None => dir::open_dir(open_root(&self.0)?, dir.as_bytes()),
        };
        Ok((dir?, name))
    }

    /// Do something to an object in its directory, which is made if it is not there.
    fn with_parent(
        &self,
        key: &str,
        work: impl Fn(&OwnedFd, &str) -> io::Result<()>,
    ) -> Result<()> {
        let path = self.path(key);
        let work = || self.home(key).and_then(|(dir, name)| work(&dir, name));
        let mut done = work();
        for _ in 0..ATTEMPTS {
            match (&done, path.parent()) {
                (Err(e), Some(parent)) if e.kind() == ErrorKind::NotFound => {
                    done = safe_file::create_dirs(parent, permissions::of_dir(&self.0))
                        .and_then(|()| work());
                }
                _ => break,
            }
        }
        done.map_err(|e| Error::io(format!("could not write {}", name(&path)), e))
    }
}

/// The result of a call, or nothing if what it speaks of is not there.
fn if_there<T>(result: io::Result<T>, verb: &str, path: &Path) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(format!("could not {verb} {}", name(path)), e)),
    }
}

impl Objects for LocalObjects {
    type Lock = Option<File>;

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let path = self.path(dir);
        let Some(entries) = if_there(fs::read_dir(&path), "list", &path)? else {
            return Ok(Vec::new());
        };
        let names: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.file_name())).collect();
        let names = if_there(names, "list", &path)?.unwrap_or_default();
        // What is no text is none of ours.
        Ok(names
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .collect())
    }

    fn read(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(key);
        if_there(safe_file::read(&path, MAX_BYTES), "read", &path)
    }

    fn size(&self, key: &str) -> Result<Option<u64>> {
        let path = self.path(key);
        Ok(if_there(fs::symlink_metadata(&path), "read", &path)?.map(|facts| facts.len()))
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<()> {
        let access = permissions::of_file(&self.0);
        self.with_parent(key, |dir, name| place(dir, name, (bytes, access), rename))?;
        self.path(key).parent().map_or(Ok(()), sync_dir)
    }

    fn mark(&self, key: &str) -> Result<()> {
        let access = permissions::of_file(&self.0);
        self.with_parent(key, |dir, name| {
            match safe_file::create_at(dir, name, access) {
                // It is marked.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                made => made.map(drop),
            }
        })
    }

    fn sync(&self, dir: &str) -> Result<()> {
        let path = self.path(dir);
        if_there(safe_file::sync_dir(&path), "sync", &path).map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> Result<bool> {
        let path = self.path(to);
        let new = to.rsplit_once('/').map_or(to, |(_, name)| name);
        let renamed = self
            .home(from)
            .and_then(|(dir, old)| rename(&dir, old, new));
        let renamed = if_there(renamed, "write", &path)?.is_some();
        path.parent().filter(|_| renamed).map_or(Ok(()), sync_dir)?;
        Ok(renamed)
    }

    fn remove(&self, key: &str) -> Result<()> {
        let path = self.path(key);
        let removed = self
            .home(key)
            .and_then(|(dir, name)| write::unlink_at(dir, name.as_bytes()));
        if_there(removed, "remove", &path).map(drop)
    }

    fn remove_dir(&self, dir: &str) -> Result<()> {
        let path = self.path(dir);
        match self
            .home(dir)
            .and_then(|(above, name)| write::remove_dir_at(above, name.as_bytes()))
        {
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            other => if_there(other, "remove", &path).map(drop),
        }
    }

    fn seize(&self, key: &str) -> Result<Seized<Option<File>>> {
        let path = self.path(key);
        let Some(file) = if_there(open_to_lock(&path), "open", &path)? else {
            return Ok(Seized::Absent);
        };
        Ok(match locked(file, &path) {
            // Whoever held it has removed it, and another may have come by now.
            Seized::Free(Some(file)) if !is_at(&file, &path) => Seized::Held,
            other => other,
        })
    }

    fn claim(&self, key: &str) -> Result<Seized<Option<File>>> {
        let path = self.path(key);
        let failed = |e| Error::io(format!("could not write {}", name(&path)), e);
        let (parent, name) = (
            path.parent().unwrap_or(&self.0),
            key.rsplit('/').next().unwrap_or(key),
        );
        // A copy of a repository may have lost what was empty.
        safe_file::create_dirs(parent, permissions::of_dir(&self.0)).map_err(failed)?;
        let was_there = path.exists();
        let dir = safe_file::open_dir(parent).map_err(failed)?;
        let file =
            safe_file::open_or_create(dir, name, permissions::of_file(&self.0)).map_err(failed)?;
        Ok(match locked(file, &path) {
            // Whoever held it has removed it.
            Seized::Free(Some(file)) if !is_at(&file, &path) => Seized::Held,
            Seized::Unknown if !was_there => {
                self.remove(key)?; // nobody could tell that it is ours
                Seized::Unknown
            }
            claimed => claimed,
        })
    }
}

/// Take the lock of an intent that is open.
fn locked(file: File, path: &Path) -> Seized<Option<File>> {
    match write::lock_exclusive(&file) {
        Ok(true) => Seized::Free(Some(file)),
        Ok(false) => Seized::Held,
        Err(error) => {
            platform::debug(|| format!("no lock on {}: {error}", name(path)));
            Seized::Unknown
        }
    }
}

/// Is it still the file of that name?
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let facts = |facts: fs::Metadata| (facts.dev(), facts.ino());
    file.metadata().map(facts).ok().is_some_and(|it| {
        fs::symlink_metadata(path)
            .map(facts)
            .is_ok_and(|at| at == it)
    })
}

/// For writing, too: NFS gives exclusive locks on nothing else (flock(2)). Where that is not allowed, for reading.
fn open_to_lock(path: &Path) -> io::Result<File> {
    match safe_file::open_write(path) {
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            safe_file::open(path)
        }
        other => other,
    }
}

/// Write the file `name` in `dir`, these bytes with that access; `finally` gives it that name in place of another.
///
/// # Errors
/// The system's; nothing is left then.
pub(super) fn place(
    dir: &OwnedFd,
    name: &str,
    (bytes, access): (&[u8], Access),
    finally: Finally,
) -> io::Result<()> {
    let partial = format!("{name}.{}.partial", random_letters(6));
    let written = safe_file::create_at(dir, &partial[..], access).and_then(|mut file| {
        file.write_all(bytes)?;
        write::fsync(&file)
    });
    let placed = written.and_then(|()| finally(dir, &partial, name));
    // A link leaves the other name; and an error must leave nothing.
    if let Err(error) = write::unlink_at(dir, partial.as_bytes())
        && error.kind() != ErrorKind::NotFound
    {
        platform::debug(|| format!("could not remove {partial:?}: {error}"));
    }
    placed
}

/// Gives a file in a directory another name.
pub(super) type Finally = fn(&OwnedFd, &str, &str) -> io::Result<()>;

fn rename(dir: &OwnedFd, from: &str, to: &str) -> io::Result<()> {
    write::rename_at(dir, from.as_bytes(), dir, to.as_bytes())
}

pub(super) fn random_letters(count: usize) -> String {
    letters(RandomState::new().build_hasher().finish(), count)
}
