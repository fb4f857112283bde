//! The objects of a repository in a local directory: one file each.
//!
//! Only that directory and the one of all backups may be links: nothing is read, written or listed through another one. A file is
//! written under a name that ends in `.partial`, made durable and renamed, so an object is there whole or not at all; the lock on
//! that file says whether its writer is alive.

mod access;
mod lease;
mod listing;
mod open_files;
mod partial;
pub(crate) mod place;
mod storing;
mod upload;

pub use storing::Storing;

use super::{
    Leased, ListedObject, Objects, Put, PutIf, SealedObjects, StorageAbilities, Take, Upload,
    Version,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    layout::{BACKUPS, max_document_bytes},
};
use fullbore_platform::{
    debug,
    dir::{self, FileKind},
    durable,
    exact_read::read_exactly,
    is_media_error,
    queue::Locked,
    safe_file::{self, FileAccess},
    write,
};
use fullbore_wire::key::{PARTIAL_SUFFIX, check_key, check_prefix, split_key};
use open_files::OpenFiles;
use partial::PartialFile;
use std::{
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
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

/// More bytes than this are not allocated before it is known that a file has them.
const TRUSTED_BYTES: usize = 1 << 20;

/// The objects of a repository in a local directory. Clones share what they keep open.
#[derive(Debug, Clone)]
pub struct LocalObjects {
    root: PathBuf,
    storing: Storing,
    open_files: Arc<OpenFiles>,
    /// Held while the version of an object is compared and the object replaced.
    replacing: Arc<Mutex<()>>,
    /// Was the root there? Then it is not made again: its disk is gone, or it was removed.
    was_root_there: Arc<AtomicBool>,
}

impl LocalObjects {
    /// The objects below the directory `root`, which is made by the first put if it is absent.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            storing: Storing::default(),
            open_files: Arc::default(),
            replacing: Arc::default(),
            was_root_there: Arc::default(),
        }
    }

    /// The same, with uploads that store their pieces so.
    #[must_use]
    pub fn with_storing(self, storing: Storing) -> Self {
        Self { storing, ..self }
    }

    /// The directory that the objects are in.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Opens a directory of objects without following a link below the root; the directory of all backups may be one.
    fn open_dir(&self, dir: &str) -> io::Result<OwnedFd> {
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
        let ends = dir.match_indices('/').map(|(at, _)| at).chain([dir.len()]);
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

    /// The directory and the name of an object, for what does not make it.
    fn find<'a>(&self, key: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let (dir, name) = split_key(key);
        Ok((self.open_dir(dir)?, name))
    }

    /// Begins a file that is to become the object.
    fn begin_partial(&self, key: &str, access: FileAccess) -> io::Result<PartialFile> {
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

    fn failed(&self, verb: &str, key: &str, error: io::Error) -> Error {
        Error::io(format!("could not {verb} {}", self.describe(key)), error)
    }

    /// The error of a read, by which a disk that does not give an object has damaged it.
    fn failed_to_get(&self, verb: &str, key: &str, error: io::Error) -> Error {
        failed_to_read(format!("could not {verb} {}", self.describe(key)), error)
    }

    /// Refuses a directory of all backups that is a link of one user into a directory of another. A link of root, of this user or of
    /// the owner of the directory is followed.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`].
    pub fn check_backups_link(&self) -> Result<()> {
        access::check_link_owner(&self.root.join(BACKUPS))
    }

    /// Writes an object under a partial name and gives it its key. False if it should be absent and is not.
    fn place(&self, key: &str, bytes: &[u8], only_if_absent: bool) -> io::Result<bool> {
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
    fn replace_version(&self, key: &str, bytes: &[u8], version: &Version) -> io::Result<bool> {
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
                Ok(true) if !is_named(&file, &dir, name) => continue,
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

    fn delete_one(&self, key: &str) -> Result<()> {
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
    fn remove_empty_dirs(&self, key: &str) {
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

    /// Is there something below the prefix that is not a directory, so that no object can be below it?
    fn is_object(&self, key: &str) -> bool {
        let stat = self
            .find(key)
            .and_then(|(dir, name)| dir::stat(dir, name.as_bytes()));
        stat.is_ok_and(|stat| stat.kind == FileKind::File)
    }

    fn opened(&self, key: &str) -> Result<Arc<File>> {
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

impl Objects for LocalObjects {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        check_prefix(prefix)?;
        let mut listed = Vec::new();
        let visited = self.visit_files(prefix, &mut |_, key, bytes| {
            if check_key(&key).is_ok() {
                listed.push(ListedObject {
                    key,
                    bytes,
                    version: None,
                });
            }
            Ok(())
        });
        if let Err(error) = visited
            && (error.kind() != io::ErrorKind::NotADirectory || !self.is_object(prefix))
        {
            return Err(self.failed_to_get("list", prefix, error));
        }
        listed.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(listed)
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        check_key(key)?;
        let file = self.opened(key)?;
        let what = || {
            format!(
                "could not read {len} bytes at byte {offset} of {}",
                self.describe(key)
            )
        };
        let too_early = || Error::corrupt(what()).because("it ends too early");
        let end = offset
            .checked_add(len as u64)
            .filter(|end| *end <= i64::MAX as u64)
            .ok_or_else(too_early)?;
        // What damage claims is not allocated. For short reads the length of the file is not asked for: that is one call a frame.
        if len == 0 || len > TRUSTED_BYTES {
            let there = file
                .metadata()
                .map_err(|error| Error::io(what(), error))?
                .len();
            if end > there {
                return Err(too_early());
            }
        }
        asked_twice(|| read_exactly(&file, offset, len, out)).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => too_early(),
            _ => failed_to_read(what(), error),
        })
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        check_key(key)?;
        let read = asked_twice(|| {
            let (dir, name) = self.find(key)?;
            read_all(safe_file::open_at(dir, name)?, max_document_bytes(key))
        });
        let bytes = match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| self.failed_to_get("read", key, error))?,
        };
        let version = version_of(&bytes);
        Ok(Some((bytes, version)))
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        check_key(key)?;
        let stat = self
            .find(key)
            .and_then(|(dir, name)| dir::stat(dir, name.as_bytes()));
        match stat {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed_to_get("read", key, error)),
            Ok(stat) if stat.kind == FileKind::File => Ok(Some(stat.size)),
            Ok(stat) if stat.kind == FileKind::Directory => Ok(None),
            Ok(_) => Err(
                Error::corrupt(format!("cannot read {}", self.describe(key)))
                    .because("it is no regular file"),
            ),
        }
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        check_key(key)?;
        let put = match condition {
            PutIf::Always => self.place(key, bytes, false),
            PutIf::Absent => self.place(key, bytes, true),
            PutIf::Version(version) => self.replace_version(key, bytes, version),
        };
        let is_done = put.map_err(|error| self.failed("write", key, error))?;
        Ok(if is_done {
            Put::Done(version_of(bytes))
        } else {
            Put::Refused
        })
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        check_key(key)?;
        let (dir, name) = split_key(key);
        // What replaces an object may be read by whoever could read that one.
        let there = self
            .open_dir(dir)
            .and_then(|dir| dir::stat(dir, name.as_bytes()))
            .ok();
        let access = access::of_replacement(&self.root, there.as_ref());
        let partial = self
            .begin_partial(key, access)
            .map_err(|error| self.failed("create", key, error))?;
        Ok(Box::new(upload::LocalUpload::new(
            self.clone(),
            key,
            partial,
        )))
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let mut first_error = Ok(());
        for key in keys {
            if let Err(error) = self.delete_one(key) {
                first_error = first_error.and(Err(error));
            }
        }
        for key in keys.iter().filter(|key| check_key(key).is_ok()) {
            self.remove_empty_dirs(key);
        }
        first_error
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        check_prefix(prefix)?;
        let mut partials = Vec::new();
        let removed = self.visit_files(prefix, &mut |dir, key, _| {
            if key.ends_with(PARTIAL_SUFFIX) {
                partial::remove_if_dead(dir, split_key(&key).1)?;
                partials.push(key);
            }
            Ok(())
        });
        // Unfinished files may have been all that was in a directory, or a writer died before its first one.
        self.remove_empty_dirs_in(prefix);
        partials.push(format!("{prefix}/none"));
        for key in partials {
            self.remove_empty_dirs(&key);
        }
        removed.map_err(|error| self.failed("remove unfinished files below", prefix, error))
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        check_prefix(prefix)?;
        self.sync_names(prefix)
            .map_err(|error| self.failed("sync", prefix, error))
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        check_key(key)?;
        lease::take(self, key, body, take)
            .map_err(|error| self.failed("take the lease on", key, error))
    }

    fn abilities(&self) -> StorageAbilities {
        StorageAbilities {
            has_locks: true,
            amends: true,
        }
    }

    fn answers_late(&self) -> bool {
        false
    }

    fn describe(&self, key: &str) -> String {
        if key.is_empty() {
            quoted(self.root.as_os_str().as_bytes())
        } else {
            quoted(self.root.join(key).as_os_str().as_bytes())
        }
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        Some(self)
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        None
    }
}

/// Asks a second time, because a disk may succeed then; a repair would give up data that it did not
/// get.
///
/// # Errors
/// The system's.
pub fn asked_twice<T>(mut ask: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match ask() {
        Err(error) if is_media_error(&error) => ask(),
        answer => answer,
    }
}

/// Returns the error of a read. A sector that cannot be read counts as damage, like a flipped bit: the
/// rest of the object may be intact.
pub fn failed_to_read(what: String, error: io::Error) -> Error {
    let kind = if is_media_error(&error) {
        ErrorKind::Corrupt
    } else {
        ErrorKind::of(&error)
    };
    Error {
        kind,
        ..Error::io(what, error)
    }
}

/// The version of an object is made from its content: no two contents have one, and a content that comes back is as good as one
/// that stayed.
fn version_of(bytes: &[u8]) -> Version {
    Version::new(&blake3::hash(bytes).to_hex()[..32])
}

/// All bytes of a small object.
fn read_all(file: File, max_bytes: u64) -> io::Result<Vec<u8>> {
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

/// Does the file still have this name? Another may have it, or none, once its holder has let go.
fn is_named(file: &File, dir: impl AsFd, name: &str) -> bool {
    let Ok(of_file) = dir::stat_fd(file) else {
        return false;
    };
    dir::stat(dir, name.as_bytes())
        .is_ok_and(|named| (named.dev, named.inode) == (of_file.dev, of_file.inode))
}
