//! Local files, written without filling the page cache; and the archive that is one file.
//!
//! An archive gets its final name only when it is durable. Until then it is called
//! `.NAME.ID.partial`, where a long NAME is shortened. The next backup to the same path removes
//! such files of killed runs, unless their lock is held.

use super::{Abilities, Destination, Place, Placed, Role, Sink, commit_flag, place_of};
use crate::{
    error::{Error, ErrorKind, Result, quoted},
    format::layout::{SIDE_SUFFIX, is_backup_id},
    platform::{
        self,
        dir::is_append_only,
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
    sync::{Arc, Mutex},
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
    pub fn create(path: &Path, access: impl Into<Access>) -> Result<Self> {
        let file = safe_file::create(path, access)
            .map_err(|e| Error::io(format!("could not create {}", name(path)), e))?;
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
            crate::platform::debug(|| format!("no lock on {}: {error}", name(&self.path)));
        }
    }

    fn failed(&self, verb: &str, error: io::Error) -> Error {
        Error::io(format!("could not {verb} {}", name(&self.path)), error)
            .detail("nothing was committed")
    }
}

/// Quotes a path for messages.
pub fn name(path: &Path) -> String {
    quoted(path.as_os_str().as_bytes())
}

/// Makes the names in a directory durable.
///
/// # Errors
/// The system's error.
pub fn sync_dir(path: &Path) -> Result<()> {
    safe_file::sync_dir(path).map_err(|e| Error::io(format!("could not sync {}", name(path)), e))
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

/// An archive in one file. A codec without skippable frames needs a side file beside it.
pub struct OneFile {
    path: PathBuf,
    partial: PathBuf,
    side: Arc<Mutex<Option<Output>>>,
    side_path: Option<PathBuf>,
}

impl OneFile {
    /// Prepares to write `path`. `beside`: whether a side file is needed.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(path: &Path, id: &str, beside: bool) -> Result<Self> {
        let side_path = beside.then(|| side_of(path));
        check_parent_exists(path)?;
        check_names(path, side_path.as_deref())?;
        if is_append_only(dir_of(path)) {
            let what = format!("cannot create {}", name(path));
            return Err(Error::new(ErrorKind::Permission, what)
                .because(
                    "its directory is append-only, so the file cannot be renamed to its final name",
                )
                .hint("choose another directory, or `chattr -a` this one"));
        }
        remove_leftovers(path);
        let partial = hidden(path, id);
        let side_partial = side_path.as_deref().map(|_| hidden_side(path, id));
        let began = side_partial.iter().chain([&partial]).cloned();
        PARTIALS.locked().extend(began);
        let side = side_path.as_deref().zip(side_partial.as_deref());
        let side = side
            .map(|(side, partial)| Output::create(partial, mode_of(side)))
            .transpose()?;
        side.iter().for_each(Output::lock);
        Ok(Self {
            path: path.to_owned(),
            partial,
            side: Arc::new(Mutex::new(side)),
            side_path,
        })
    }

    fn side_partial(&self) -> Option<PathBuf> {
        self.side
            .lock()
            .ok()?
            .as_ref()
            .map(|side| side.path.clone())
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

/// Returns the path of the side file of an archive.
pub fn side_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(SIDE_SUFFIX);
    name.into()
}

/// Refuses a path whose directory is missing. The directory is not created, because it may be a
/// typing error or an unmounted disk.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the directory of `path` is missing.
pub fn check_parent_exists(path: &Path) -> Result<()> {
    let parent = dir_of(path);
    match fs::metadata(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let what = format!(
                "could not create {}: the directory {} does not exist",
                name(path),
                name(parent)
            );
            Err(Error::new(ErrorKind::NotFound, what)
                .hint("create it first, or check that its disk is mounted"))
        }
        _ => Ok(()), // other errors show when the file is created
    }
}

/// Fails early if the file system does not accept a final name, instead of after the backup.
fn check_names(path: &Path, side: Option<&Path>) -> Result<()> {
    let is_too_long = |path: &Path| fs::symlink_metadata(path).err().filter(is_long_name);
    let refused = |path: &Path, error| Error::io(format!("cannot create {}", name(path)), error);
    if let Some(error) = is_too_long(path) {
        return Err(refused(path, error).hint("choose a shorter name"));
    }
    match side.and_then(|side| Some((side, is_too_long(side)?))) {
        Some((side, error)) => Err(refused(side, error).hint(format!(
            "choose a name that is at least {} bytes shorter, or .tar.zst or .tar.lz4, which need no side file",
            SIDE_SUFFIX.len()
        ))),
        None => Ok(()),
    }
}

/// Returns whether the file system does not accept a name of this length. Such a file cannot exist.
fn is_long_name(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidFilename
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

/// Returns the hidden name of the side file of the archive `path`.
fn hidden_side(path: &Path, id: &str) -> PathBuf {
    hidden(path, &format!("{}.{id}", &SIDE_SUFFIX[1..]))
}

fn dir_of(path: &Path) -> &Path {
    path.parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Returns whether an earlier run was killed after the archive got its name and before its side
/// file did.
pub fn is_half_named(path: &Path) -> bool {
    let start = [&hidden_start(path), &SIDE_SUFFIX.as_bytes()[1..], b"."].concat();
    let mut entries = fs::read_dir(dir_of(path)).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().as_bytes().starts_with(&start)) && !side_of(path).exists()
}

/// Removes partial files of this archive that are not locked, so their writer is gone. A replaced
/// side file is removed only if there is a new one.
fn remove_leftovers(path: &Path) {
    let start = hidden_start(path);
    let is_id = |middle: &[u8]| std::str::from_utf8(middle).is_ok_and(is_backup_id);
    let is_ours = |name: &OsStr| {
        let middle = name
            .as_bytes()
            .strip_prefix(&start[..])
            .and_then(|rest| rest.strip_suffix(b".partial"));
        let Some(middle) = middle else { return false };
        let beside = middle
            .strip_prefix(&SIDE_SUFFIX.as_bytes()[1..])
            .and_then(|rest| rest.strip_prefix(b"."));
        is_id(middle)
            || beside.is_some_and(|of| is_id(of) || (of == b"replaced" && side_of(path).exists()))
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
        let output = Output::create(&self.partial, mode_of(&self.path))?;
        output.lock();
        Ok(Box::new(FileSink {
            output,
            side: self.side.clone(),
        }))
    }

    /// The files that exist under these names now will be replaced.
    fn places(&self) -> Vec<Place> {
        let paths = [
            Some(self.path.clone()),
            Some(self.partial.clone()),
            self.side_path.clone(),
            self.side_partial(),
        ];
        paths
            .into_iter()
            .flatten()
            .filter_map(|path| place_of(&path))
            .collect()
    }

    fn commit(self: Box<Self>, _root: &[u8]) -> Result<()> {
        let done = self.rename_to_final();
        // Once the archive has its name, it needs its side file.
        if done.is_ok() || !self.partial.exists() {
            return done;
        }
        let begun = [Some(self.partial.clone()), self.side_partial()];
        self.abort(false);
        let left = begun.into_iter().flatten().filter(|path| path.exists());
        done.map_err(|error| {
            left.fold(error, |error, path| {
                error.detail(format!("{} could not be removed", name(&path)))
            })
        })
    }

    fn abort(self: Box<Self>, _keep: bool) {
        for path in [Some(self.partial.clone()), self.side_partial()]
            .into_iter()
            .flatten()
        {
            if let Err(error) = fs::remove_file(&path) {
                crate::platform::debug(|| format!("could not remove {}: {error}", name(&path)));
            }
        }
    }
}

impl OneFile {
    /// Renames the files. The old side file is moved first: an archive without a side file is read
    /// as a stream, but an archive with a wrong one cannot be read.
    fn rename_to_final(&self) -> Result<()> {
        let rename = |from: &Path, to: &Path| {
            fs::rename(from, to)
                .map_err(|e| Error::io(format!("could not rename {}", name(from)), e))
        };
        let old = side_of(&self.path);
        let aside = hidden_side(&self.path, "replaced");
        match fs::rename(&old, &aside) {
            Err(e) if e.kind() != io::ErrorKind::NotFound && !is_long_name(&e) => {
                return Err(Error::io(format!("could not replace {}", name(&old)), e));
            }
            _ => {} // or a killed run has moved it already
        }
        // The lock delays the removal of partial files: two files get their names together or not
        // at all.
        let mut begun = PARTIALS.locked();
        rename(&self.partial, &self.path).inspect_err(|_| {
            let _ = fs::rename(&aside, &old); // the caller reports the first error
        })?;
        let side = self.side_partial();
        if let (Some(from), Some(to)) = (&side, &self.side_path) {
            rename(from, to).map_err(|error| self.missing_side_file(error, to))?;
        }
        commit_flag::set(true);
        begun.retain(|path| *path != self.partial && Some(path) != side.as_ref());
        drop(begun);
        if let Err(error) = fs::remove_file(&aside)
            && error.kind() != io::ErrorKind::NotFound
        {
            crate::platform::debug(|| format!("could not remove {}: {error}", name(&aside)));
        }
        let now = || {
            format!(
                "{} is the new archive, but may not be durable",
                name(&self.path)
            )
        };
        sync_dir(dir_of(&self.path)).map_err(|error| error.detail(now()))
    }

    /// Adds details to an error that left the archive under its final name without its side file.
    fn missing_side_file(&self, error: Error, side: &Path) -> Error {
        let now = format!(
            "{} is the new archive, but its side file with the manifest is missing",
            name(&self.path)
        );
        let hint = format!(
            "run the same command again, or rename the file to {} yourself",
            name(side)
        );
        error.detail(now).hint(hint)
    }
}

struct FileSink {
    output: Output,
    side: Arc<Mutex<Option<Output>>>,
}

impl FileSink {
    fn side<T>(&self, act: impl FnOnce(&mut Output) -> Result<T>) -> Result<()> {
        match self.side.lock() {
            Ok(mut side) => side.as_mut().map_or(Ok(()), |side| act(side).map(drop)),
            Err(_) => Ok(()),
        }
    }
}

impl Sink for FileSink {
    fn put(&mut self, placed: Placed) -> Result<()> {
        match placed.role {
            Role::Stream | Role::Amend => self.output.write(&placed.data, placed.offset),
            Role::Side => self.side(|side| side.write(&placed.data, placed.offset)),
            Role::Page => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.side(|side| side.sync())?;
        self.output.sync()
    }
}
