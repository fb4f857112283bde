//! Local files, written without filling the page cache; and the archive that is one file.
//!
//! An archive stands under its final name only once it is durable. Until then it is called `.NAME.ID.partial`, where a long
//! NAME is shortened; what a killed run left under such a name is removed by the next backup to the same place, if nobody
//! holds its lock.

use super::{Abilities, Destination, Place, Placed, Role, Sink, commit_flag, place_of};
use crate::{
    error::{Error, Result, quoted},
    format::layout::is_backup_id,
    platform::{
        Tricks,
        safe_file::{self, Access},
        user, write,
    },
    queue::Locked,
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::Mutex,
};

/// Bytes after which the system is told to start writing: a few milliseconds of a fast drive.
const BEHIND_BYTES: u64 = 8 << 20;

/// A file that is being written.
pub struct Output {
    file: File,
    path: PathBuf,
    tricks: Tricks,
    end: u64,
    told: u64,
}

impl Output {
    /// Create `path`, which must not exist, with this access.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: &Path, access: impl Into<Access>, tricks: Tricks) -> Result<Self> {
        let file = safe_file::create(path, access)
            .map_err(|e| Error::io(format!("could not create {}", name(path)), e))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            tricks,
            end: 0,
            told: 0,
        })
    }

    /// Write `data` at `offset`.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, data: &[u8], offset: u64) -> Result<()> {
        write::pwrite_all(&self.file, data, offset).map_err(|e| self.failed("write", e))?;
        self.end = self.end.max(offset + data.len() as u64);
        if self.tricks == Tricks::Auto && self.end - self.told >= BEHIND_BYTES {
            self.behind();
        }
        Ok(())
    }

    /// Have the last range written, and the one before it, by now on the device, leave the cache.
    fn behind(&mut self) {
        write::write_behind(&self.file, self.told, self.end - self.told);
        if let Some(before) = self.told.checked_sub(BEHIND_BYTES) {
            write::drop_behind(&self.file, before, BEHIND_BYTES);
        }
        self.told = self.end;
    }

    /// Make it durable.
    ///
    /// # Errors
    /// The system's.
    pub fn sync(&self) -> Result<()> {
        write::fsync(&self.file).map_err(|e| self.failed("sync", e))
    }

    /// Take its lock: it is ours as long as it is open.
    fn lock(&self) {
        if let Err(error) = write::lock_exclusive(&self.file) {
            crate::platform::debug(|| format!("no lock on {}: {error}", name(&self.path)));
        }
    }

    fn failed(&self, verb: &str, error: io::Error) -> Error {
        Error::io(format!("could not {verb} {}", name(&self.path)), error)
            .detail("nothing was committed")
    }
}

/// A path in quotes.
pub fn name(path: &Path) -> String {
    quoted(path.as_os_str().as_bytes())
}

/// Make the names in a directory durable.
///
/// # Errors
/// The system's.
pub fn sync_dir(path: &Path) -> Result<()> {
    safe_file::sync_dir(path).map_err(|e| Error::io(format!("could not sync {}", name(path)), e))
}

/// Archives that this process has begun; those that are complete have other names.
static PARTIALS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Remove what this process, which is about to end, has written of archives.
pub fn remove_partials() {
    let partials = PARTIALS.locked();
    partials
        .iter()
        .for_each(|partial| _ = fs::remove_file(partial)); // what stays, the next backup removes
}

/// An archive or a plain stream that is one file.
pub struct OneFile {
    path: PathBuf,
    partial: PathBuf,
    tricks: Tricks,
}

impl OneFile {
    /// Prepare to write `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: &Path, id: &str, tricks: Tricks) -> Result<Self> {
        check_name(path)?;
        remove_leftovers(path);
        let partial = hidden(path, id);
        PARTIALS.locked().push(partial.clone());
        Ok(Self {
            path: path.to_owned(),
            partial,
            tricks,
        })
    }
}

/// The mode of an archive: that of the one it replaces, if this user wrote it; else nobody else may read it.
fn mode_of(path: &Path) -> u32 {
    let there = fs::symlink_metadata(path)
        .ok()
        .filter(|there| there.is_file() && there.uid() == user().0);
    there.map_or(0o600, |there| there.mode() & 0o777)
}

/// Fail now if the file system does not take the final name, not when the backup is complete.
fn check_name(path: &Path) -> Result<()> {
    let too_long = fs::symlink_metadata(path)
        .err()
        .filter(|error| error.kind() == io::ErrorKind::InvalidFilename);
    too_long.map_or(Ok(()), |error| {
        let what = format!("cannot create {}", name(path));
        Err(Error::io(what, error).hint("choose a shorter name"))
    })
}

/// A longer name is shortened in its hidden names. So no hidden name has more than 122 bytes; eCryptfs, which takes the shortest
/// names of all file systems in use, takes 143.
const LONG_NAME_BYTES: usize = 80;
/// Bytes of a longer name that its hidden names begin with; `~` and 16 digits of its digest follow.
const KEPT_NAME_BYTES: usize = 60;

/// The beginning of all hidden names of this archive, and of no other archive.
fn hidden_start(path: &Path) -> Vec<u8> {
    let name = path.file_name().unwrap_or_default().as_bytes();
    if name.len() <= LONG_NAME_BYTES {
        return [b".", name, b"."].concat();
    }
    let text = String::from_utf8_lossy(name);
    // Some file systems refuse half a character.
    let kept = (0..=KEPT_NAME_BYTES)
        .rfind(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    let digest = &blake3::hash(name).to_hex()[..16];
    format!(".{}~{digest}.", &text[..kept]).into_bytes()
}

fn hidden(path: &Path, id: &str) -> PathBuf {
    let mut hidden = OsString::from_vec(hidden_start(path));
    hidden.push(id);
    hidden.push(".partial");
    path.with_file_name(hidden)
}

fn dir_of(path: &Path) -> &Path {
    path.parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Partial files of this archive whose writer is gone: nobody holds their lock.
fn remove_leftovers(path: &Path) {
    let start = hidden_start(path);
    let is_ours = |name: &OsStr| {
        let middle = name
            .as_bytes()
            .strip_prefix(&start[..])
            .and_then(|rest| rest.strip_suffix(b".partial"));
        middle.is_some_and(|id| std::str::from_utf8(id).is_ok_and(is_backup_id))
    };
    let entries = fs::read_dir(dir_of(path)).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_ours(&entry.file_name())) {
        let lock = safe_file::open(&entry.path())
            .and_then(|file| Ok((write::lock_exclusive(&file)?, file)));
        if let Ok((true, _held)) = lock
            && let Err(error) = fs::remove_file(entry.path())
        {
            crate::platform::debug(|| format!("could not remove {}: {error}", name(&entry.path())));
        }
    }
}

impl Destination for OneFile {
    fn abilities(&self) -> Abilities {
        Abilities {
            objects: false,
            amends: true,
            repository: String::new(),
        }
    }

    fn stream(&mut self, _number: u32) -> Result<Box<dyn Sink>> {
        let output = Output::create(&self.partial, mode_of(&self.path), self.tricks)?;
        output.lock();
        Ok(Box::new(FileSink { output }))
    }

    /// What is there under those names now will be replaced.
    fn places(&self) -> Vec<Place> {
        [&self.path, &self.partial]
            .into_iter()
            .filter_map(|path| place_of(path))
            .collect()
    }

    fn commit(self: Box<Self>, _root: &[u8]) -> Result<()> {
        let done = self.give_name();
        if done.is_err() && self.partial.exists() {
            self.abort(false);
        }
        done
    }

    fn abort(self: Box<Self>, _keep: bool) {
        if let Err(error) = fs::remove_file(&self.partial) {
            crate::platform::debug(|| format!("could not remove {}: {error}", name(&self.partial)));
        }
    }
}

impl OneFile {
    fn give_name(&self) -> Result<()> {
        // Who removes what was begun waits until the list is right.
        let mut begun = PARTIALS.locked();
        fs::rename(&self.partial, &self.path)
            .map_err(|e| Error::io(format!("could not rename {}", name(&self.partial)), e))?;
        commit_flag::set(true);
        begun.retain(|path| *path != self.partial);
        drop(begun);
        let now = || {
            format!(
                "{} is the new archive, but may not be durable",
                name(&self.path)
            )
        };
        sync_dir(dir_of(&self.path)).map_err(|error| error.detail(now()))
    }
}

struct FileSink {
    output: Output,
}

impl Sink for FileSink {
    fn put(&mut self, placed: Placed) -> Result<()> {
        match placed.role {
            Role::Stream | Role::Amend => self.output.write(&placed.data, placed.offset),
            Role::Page => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.output.sync()
    }
}
