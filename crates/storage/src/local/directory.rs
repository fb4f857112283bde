//! The files and directories of a repository in a local directory, by the keys of their objects.

use super::{
    access,
    open_files::OpenFiles,
    partial::PartialFile,
    read_error::{asked_twice, failed_to_read},
    storing::Storing,
};
use crate::{Objects, Version};
use fullbore_format::{
    error::{Error, Result},
    key_kind::max_document_bytes,
    layout::BACKUPS,
};
use fullbore_platform::{
    debug,
    dir::{self, FileKind},
    durable,
    queue::Locked,
    safe_file::{self, FileAccess},
    write,
};
use fullbore_wire::key::{check_key, split_key};
use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// How often a directory is made again that others remove while nothing is in it yet.
const ATTEMPTS: u32 = 100;

/// How often the lock of an object that another process replaces is tried, a millisecond apart.
const LOCK_ATTEMPTS: u32 = 10_000;

/// The objects of a repository in a local directory. Clones share what they keep open.
#[derive(Debug, Clone)]
pub struct LocalObjects {
    pub(super) root: PathBuf,
    pub(super) storing: Storing,
    pub(super) open_files: Arc<OpenFiles>,
    /// Held while the version of an object is compared and the object replaced.
    replacing: Arc<Mutex<()>>,
    /// Was the root there? Then it is not made again: its disk is gone, or it was removed.
    was_root_there: Arc<AtomicBool>,
}

impl LocalObjects {
    /// Returns the objects below the directory `root`, which is made by the first put if it is absent.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            storing: Storing::default(),
            open_files: Arc::default(),
            replacing: Arc::default(),
            was_root_there: Arc::default(),
        }
    }

    /// Stores the pieces of uploads in this way.
    #[must_use]
    pub fn with_storing(self, storing: Storing) -> Self {
        Self { storing, ..self }
    }

    /// Returns the directory that the objects are in.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Opens a directory of objects without following a link below the root; the directory of all backups may be one.
    pub(super) fn open_dir(&self, dir: &str) -> io::Result<OwnedFd> {
        let (start, rest) = match dir.strip_prefix(BACKUPS) {
            Some("") => (self.root.join(BACKUPS), ""),
            Some(rest) if rest.starts_with('/') => (self.root.join(BACKUPS), &rest[1..]),
            _ => (self.root.clone(), dir),
        };
        let start = dir::open_root(&start)?;
        if rest.is_empty() {
            Ok(start)
        } else {
            dir::open_dir(start, rest.as_bytes())
        }
    }

    /// Opens the directory of a key, and makes those that are absent; their names are durable.
    fn open_or_make_dir(&self, dir: &str) -> io::Result<OwnedFd> {
        for _ in 0..ATTEMPTS {
            match self.open_dir(dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.make_dirs(dir)?,
                opened => return opened,
            }
        }
        self.open_dir(dir)
    }

    fn make_dirs(&self, dir: &str) -> io::Result<()> {
        if !self.root.is_dir() {
            if self.was_root_there.load(Relaxed) {
                self.root.metadata()?;
            }
            safe_file::create_dirs(&self.root, 0o700)?;
        }
        self.was_root_there.store(true, Relaxed);
        let ends = dir
            .match_indices('/')
            .map(|(offset, _)| offset)
            .chain([dir.len()]);
        for end in ends.filter(|end| *end > 0) {
            let (above, name) = split_key(&dir[..end]);
            let above = match self.open_dir(above) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()), // removed meanwhile: try again
                opened => opened?,
            };
            match safe_file::create_dir_at(
                &above,
                Path::new(name),
                access::of_directory(&self.root),
            ) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    made?;
                    durable::sync_dir(&above)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the directory and the name of an object, for what does not make it.
    pub(super) fn find<'a>(&self, key: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let (dir, name) = split_key(key);
        Ok((self.open_dir(dir)?, name))
    }

    /// Begins a file that is to become the object.
    pub(super) fn begin_partial(&self, key: &str, access: FileAccess) -> io::Result<PartialFile> {
        let (dir, name) = split_key(key);
        for _ in 0..ATTEMPTS {
            let made = self
                .open_or_make_dir(dir)
                .and_then(|dir| PartialFile::create(dir, name, access));
            match made {
                // Another process removed the directory while it was empty, or took the file for that of a dead writer.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                made => return made,
            }
        }
        self.open_or_make_dir(dir)
            .and_then(|dir| PartialFile::create(dir, name, access))
    }

    pub(super) fn failed(&self, verb: &str, key: &str, error: io::Error) -> Error {
        Error::io(format!("could not {verb} {}", self.describe(key)), error)
    }

    /// Returns the error of a read, by which a disk that does not give an object has damaged it.
    pub(super) fn failed_to_get(&self, verb: &str, key: &str, error: io::Error) -> Error {
        failed_to_read(format!("could not {verb} {}", self.describe(key)), error)
    }

    /// Refuses a directory of all backups that is a link of one user into a directory of another. A link of root, of this user or of
    /// the owner of the directory is followed.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`](fullbore_format::error::ErrorKind::Permission).
    pub fn check_backups_link(&self) -> Result<()> {
        access::check_link_owner(&self.root.join(BACKUPS))
    }

    /// Writes an object under a partial name and gives it its key. False if it should be absent and is not.
    pub(super) fn place(&self, key: &str, bytes: &[u8], only_if_absent: bool) -> io::Result<bool> {
        let partial = self.begin_partial(key, access::of_file(&self.root))?;
        write::pwrite_all(partial.file(), bytes, 0)?;
        write::fsync(partial.file())?;
        let is_placed = partial.give_name(only_if_absent)?;
        if is_placed {
            self.open_files.forget(key);
        }
        Ok(is_placed)
    }

    /// Replaces an object that has this version. False if it has another, or is absent.
    ///
    /// The lock is on the file that is replaced, so whoever waited for it finds another file of that name and looks again.
    pub(super) fn replace_version(
        &self,
        key: &str,
        bytes: &[u8],
        version: &Version,
    ) -> io::Result<bool> {
        let _alone = self.replacing.locked();
        for _ in 0..LOCK_ATTEMPTS {
            let opened = self
                .find(key)
                .and_then(|(dir, name)| Ok((safe_file::open_write_at(&dir, name)?, dir, name)));
            let (file, dir, name) = match opened {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                opened => opened?,
            };
            match write::lock_exclusive(&file) {
                Ok(true) if !dir::is_named(&file, &dir, name) => continue,
                Ok(true) => {}
                Ok(false) => {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                // Without locks two hosts that replace one object at the same moment may both succeed.
                Err(error) => debug(|| format!("no lock on {}: {error}", self.describe(key))),
            }
            if version_of(&read_all(file.try_clone()?, max_document_bytes(key))?) != *version {
                return Ok(false);
            }
            return self.place(key, bytes, false);
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "another process holds its lock",
        ))
    }

    pub(super) fn delete_one(&self, key: &str) -> Result<()> {
        check_key(key)?;
        self.open_files.forget(key);
        let deleted = self
            .find(key)
            .and_then(|(dir, name)| write::unlink_at(dir, name.as_bytes()));
        match deleted {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.failed("delete", key, error))
            }
            _ => Ok(()),
        }
    }

    /// Removes the directory of an object that was deleted, and those above, as long as they are empty; not those of the first level.
    pub(super) fn remove_empty_dirs(&self, key: &str) {
        let mut dir = split_key(key).0;
        while let Some((above, name)) = dir.rsplit_once('/') {
            let removed = self
                .open_dir(above)
                .and_then(|above| write::remove_dir_at(above, name.as_bytes()));
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return, // it is not empty
                _ => dir = above,
            }
        }
    }

    /// Returns whether the key is that of a file, so that no object can be below it.
    pub(super) fn is_object(&self, key: &str) -> bool {
        let stat = self
            .find(key)
            .and_then(|(dir, name)| dir::stat(dir, name.as_bytes()));
        stat.is_ok_and(|stat| stat.kind == FileKind::File)
    }

    pub(super) fn opened(&self, key: &str) -> Result<Arc<File>> {
        let open = || {
            asked_twice(|| {
                let (dir, name) = self.find(key)?;
                safe_file::open_at(dir, name)
            })
        };
        self.open_files
            .get_or_open(key, open)
            .map_err(|error| self.failed_to_get("open", key, error))
    }
}

/// Returns the version of an object. It is made from its content: no two contents have one, and a content that comes back is as good as one
/// that stayed.
pub(super) fn version_of(bytes: &[u8]) -> Version {
    Version::new(&blake3::hash(bytes).to_hex()[..32])
}

/// Reads all bytes of a small object.
pub(super) fn read_all(file: File, max_bytes: u64) -> io::Result<Vec<u8>> {
    if file.metadata()?.len() > max_bytes {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it is too large",
        ));
    }
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}
