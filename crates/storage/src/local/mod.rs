//! The objects of a repository in a local directory: one file each.
//!
//! Only that directory and the one of all backups may be links: nothing is read, written or listed through another one. A file is
//! written under a name that ends in `.partial`, made durable and renamed, so an object is there whole or not at all; the lock on
//! that file says whether its writer is alive.

mod access;
mod directory;
mod lease;
mod listing;
mod open_files;
mod partial;
pub(crate) mod place;
mod read_error;
mod storing;
mod upload;

pub use directory::LocalObjects;
pub use read_error::{asked_twice, failed_to_read};
pub use storing::Storing;

use super::{
    Leased, ListedObject, Objects, Put, PutIf, SealedObjects, StorageAbilities, Take, Upload,
    Version,
};
use directory::{read_all, version_of};
use fullbore_format::{
    error::{Error, Result, quoted},
    key_kind::{KeyKind, max_document_bytes},
};
use fullbore_platform::{
    dir::{self, FileKind, Stat},
    exact_read::read_exactly,
    safe_file,
};
use fullbore_wire::key::{PARTIAL_SUFFIX, check_key, check_prefix, split_key};
use std::{
    io,
    os::unix::ffi::OsStrExt,
    time::{SystemTime, UNIX_EPOCH},
};

/// More bytes than this are not allocated before it is known that a file has them.
const TRUSTED_BYTES: usize = 1 << 20;

/// Seconds after its last change in which a file may be changed again without a sign: the clocks of some file systems tick slowly.
const QUIET_SECONDS: i64 = 3;

/// Names the content of a file in a listing: an object is replaced by another file, and a change of a file changes its ctime. `None` if the
/// file was changed just now.
fn listed_version(stat: &Stat, now: SystemTime) -> Option<Version> {
    let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let changed = stat.ctime.seconds;
    let is_quiet = changed.checked_add(QUIET_SECONDS)? < i64::try_from(now).ok()?;
    is_quiet.then(|| Version::new(format!("{}-{changed}.{}", stat.inode, stat.ctime.nanos)))
}

impl Objects for LocalObjects {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        check_prefix(prefix)?;
        let mut listed = Vec::new();
        let begun = SystemTime::now();
        let visited = self.visit_files(prefix, &mut |_, key, stat| {
            if check_key(&key).is_ok() {
                let is_document = KeyKind::of(&key).is_cached();
                listed.push(ListedObject {
                    key,
                    bytes: stat.size,
                    version: is_document.then(|| listed_version(stat, begun)).flatten(),
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
        let message = || {
            format!(
                "could not read {len} bytes at byte {offset} of {}",
                self.describe(key)
            )
        };
        let too_early = || Error::corrupt(message()).because("it ends too early");
        let end = offset
            .checked_add(len as u64)
            .filter(|end| *end <= i64::MAX as u64)
            .ok_or_else(too_early)?;
        // What damage claims is not allocated. For short reads the length of the file is not asked for: that is one call a frame.
        if len == 0 || len > TRUSTED_BYTES {
            let there = file
                .metadata()
                .map_err(|error| Error::io(message(), error))?
                .len();
            if end > there {
                return Err(too_early());
            }
        }
        asked_twice(|| read_exactly(&file, offset, len, out)).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => too_early(),
            _ => failed_to_read(message(), error),
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
