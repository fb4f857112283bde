//! Local files, written without filling the page cache; and the archive that is one file.
//!
//! An archive gets its final name only when it is durable. Until then it is called
//! `.NAME.ID.partial`, where a long NAME is shortened. The next backup to the same path removes
//! such files of killed runs, unless their lock is held.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::is_backup_id,
};
use fullbore_pipeline::sink::{
    Abilities, Destination, Place, Placed, Sink, StoredSegment, commit_flag, place_of,
};
use fullbore_platform as platform;
use fullbore_platform::{
    dir::is_append_only,
    place::{check_parent_exists, dir_of, quoted_path},
    queue::Locked,
    safe_file::{self, FileAccess},
    user, write,
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
    end: u64,
    write_end: u64,
}

impl Output {
    /// Creates `path`, which must not exist, with this access.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(path: &Path, access: impl Into<FileAccess>) -> Result<Self> {
        let file = safe_file::create(path, access)
            .map_err(|e| Error::io(format!("could not create {}", quoted_path(path)), e))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            end: 0,
            write_end: 0,
        })
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&mut self, data: &[u8], offset: u64) -> Result<()> {
        write::pwrite_all(&self.file, data, offset).map_err(|e| self.failed("write", e))?;
        self.end = self.end.max(offset + data.len() as u64);
        if platform::tricks() && self.end - self.write_end >= BEHIND_BYTES {
            self.write_behind();
        }
        Ok(())
    }

    /// Starts writing the last range, and drops the range before it, which is on the device by now,
    /// from the cache.
    fn write_behind(&mut self) {
        write::write_behind(&self.file, self.write_end, self.end - self.write_end);
        if let Some(before) = self.write_end.checked_sub(BEHIND_BYTES) {
            write::drop_behind(&self.file, before, BEHIND_BYTES);
        }
        self.write_end = self.end;
    }

    /// Takes space for the first `bytes` of the file; false if the file system does not have it.
    ///
    /// # Errors
    /// The system's.
    pub fn reserve(&self, bytes: u64) -> Result<bool> {
        write::try_reserve(&self.file, self.end, bytes)
            .map_err(|e| self.failed("reserve space for", e))
    }

    /// Gives back the space that was reserved and not written.
    ///
    /// # Errors
    /// The system's.
    pub fn release_reserve(&self) -> Result<()> {
        self.file
            .set_len(self.end)
            .map_err(|e| self.failed("end", e))
    }

    /// Makes the file durable.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&self) -> Result<()> {
        write::fsync(&self.file).map_err(|e| self.failed("sync", e))
    }

    /// Locks the file as long as it is open.
    fn lock(&self) {
        if let Err(error) = write::lock_exclusive(&self.file) {
            fullbore_platform::debug(|| format!("no lock on {}: {error}", quoted_path(&self.path)));
        }
    }

    fn failed(&self, verb: &str, error: io::Error) -> Error {
        Error::io(
            format!("could not {verb} {}", quoted_path(&self.path)),
            error,
        )
        .detail("nothing was committed")
    }
}

/// Makes the names in a directory durable.
///
/// # Errors
/// The system's error.
pub fn sync_dir(path: &Path) -> Result<()> {
    safe_file::sync_dir(path)
        .map_err(|e| Error::io(format!("could not sync {}", quoted_path(path)), e))
}

/// Archives that this process has begun. Complete archives have other names.
static PARTIALS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes the incomplete archives of this process before the process ends.
pub fn remove_partials() {
    let partials = PARTIALS.locked();
    partials
        .iter()
        .for_each(|partial| _ = fs::remove_file(partial)); // what stays, the next backup removes
}

/// An archive or a plain stream in one file.
pub struct OneFile {
    path: PathBuf,
    partial: PathBuf,
}

impl OneFile {
    /// Prepares to write `path`.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(path: &Path, id: &str) -> Result<Self> {
        check_parent_exists(path)?;
        check_name(path)?;
        if is_append_only(dir_of(path)) {
            let message = format!("cannot create {}", quoted_path(path));
            return Err(Error::new(ErrorKind::Permission, message)
                .because(
                    "its directory is append-only, so the file cannot be renamed to its final name",
                )
                .hint("choose another directory, or `chattr -a` this one"));
        }
        remove_leftovers(path);
        let partial = hidden(path, id);
        PARTIALS.locked().push(partial.clone());
        Ok(Self {
            path: path.to_owned(),
            partial,
        })
    }

    /// Creates the file under its hidden name, locked.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(&self) -> Result<Output> {
        let output = Output::create(&self.partial, mode_of(&self.path))?;
        output.lock();
        Ok(output)
    }
}

/// Returns the mode of an archive: the mode of the file that it replaces, if this user owns that
/// file; otherwise only the owner may read it.
fn mode_of(path: &Path) -> u32 {
    let there = fs::symlink_metadata(path)
        .ok()
        .filter(|there| there.is_file() && there.uid() == user().0);
    there.map_or(0o600, |there| there.mode() & 0o777)
}

/// Fails early if the file system does not accept the final name, instead of after the backup.
fn check_name(path: &Path) -> Result<()> {
    let too_long = fs::symlink_metadata(path)
        .err()
        .filter(|error| error.kind() == io::ErrorKind::InvalidFilename);
    too_long.map_or(Ok(()), |error| {
        let message = format!("cannot create {}", quoted_path(path));
        Err(Error::io(message, error).hint("choose a shorter name"))
    })
}

/// Longer names are shortened in hidden names. So a hidden name has at most 122 bytes; eCryptfs,
/// the file system in use with the shortest names, accepts 143.
const LONG_NAME_BYTES: usize = 80;
/// Bytes that are kept of a longer name; `~` and 16 digits of its digest follow.
const KEPT_NAME_BYTES: usize = 60;

/// Returns the prefix of all hidden names of this archive, which no other archive has.
fn hidden_start(path: &Path) -> Vec<u8> {
    let name = path.file_name().unwrap_or_default().as_bytes();
    if name.len() <= LONG_NAME_BYTES {
        return [b".", name, b"."].concat();
    }
    let text = String::from_utf8_lossy(name);
    // Some file systems refuse an incomplete character.
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

/// Removes partial files of this archive that are not locked, so their writer is gone.
fn remove_leftovers(path: &Path) {
    let start = hidden_start(path);
    let entries = fs::read_dir(dir_of(path)).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_partial(&entry.file_name(), &start)) {
        let lock = safe_file::open(&entry.path())
            .and_then(|file| Ok((write::lock_exclusive(&file)?, file)));
        if let Ok((true, _held)) = lock
            && let Err(error) = fs::remove_file(entry.path())
        {
            fullbore_platform::debug(|| {
                format!("could not remove {}: {error}", quoted_path(&entry.path()))
            });
        }
    }
}

/// Returns whether this is the name of a partial file that begins so.
fn is_partial(name: &OsStr, start: &[u8]) -> bool {
    let id = name
        .as_bytes()
        .strip_prefix(start)
        .and_then(|rest| rest.strip_suffix(b".partial"));
    id.is_some_and(|id| std::str::from_utf8(id).is_ok_and(is_backup_id))
}

impl Destination for OneFile {
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn stream(&mut self, _number: u32) -> Result<Box<dyn Sink>> {
        let output = self.begin()?;
        Ok(Box::new(FileSink { output }))
    }

    /// The files that exist under these names now will be replaced.
    fn places(&self) -> Vec<Place> {
        [&self.path, &self.partial]
            .into_iter()
            .filter_map(|path| place_of(path))
            .collect()
    }

    fn commit(self: Box<Self>, _root: &[u8]) -> Result<()> {
        self.publish(true)
    }

    fn abort(self: Box<Self>, _keep: bool) {
        self.remove();
    }
}

impl OneFile {
    /// Gives the file its final name. With `is_commit`, the backup is complete then.
    ///
    /// # Errors
    /// The system's; the file is removed then, unless it has the name.
    pub fn publish(self, is_commit: bool) -> Result<()> {
        let done = self.rename_to_final(is_commit);
        if done.is_ok() || !self.partial.exists() {
            return done;
        }
        let partial = self.partial.clone();
        self.remove();
        done.map_err(|error| {
            if partial.exists() {
                error.detail(format!("{} could not be removed", quoted_path(&partial)))
            } else {
                error
            }
        })
    }

    /// Removes the file, which has no final name.
    pub fn remove(self) {
        if let Err(error) = fs::remove_file(&self.partial) {
            fullbore_platform::debug(|| {
                format!("could not remove {}: {error}", quoted_path(&self.partial))
            });
        }
    }

    /// Renames the partial file to its final name.
    fn rename_to_final(&self, is_commit: bool) -> Result<()> {
        // The lock delays the removal of partial files until the list is right.
        let mut begun = PARTIALS.locked();
        fs::rename(&self.partial, &self.path).map_err(|e| {
            Error::io(
                format!("could not rename {}", quoted_path(&self.partial)),
                e,
            )
        })?;
        commit_flag::set(is_commit);
        begun.retain(|path| *path != self.partial);
        drop(begun);
        let now = || {
            format!(
                "{} is the new archive, but may not be durable",
                quoted_path(&self.path)
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
        self.output.write(&placed.data, placed.offset)
    }

    fn finish(self: Box<Self>) -> Result<Vec<StoredSegment>> {
        self.output.sync()?;
        Ok(Vec::new())
    }
}
