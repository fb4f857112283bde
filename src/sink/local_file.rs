//! Local files, written without filling the page cache; and the archive that is one file.
//!
//! An archive stands under its final name only once it is durable. Until then it is called `.NAME.ID.partial`, where a long
//! NAME is shortened; what a killed run left under such a name is removed by the next backup to the same place, if nobody
//! holds its lock.

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
    told: u64,
}

impl Output {
    /// Create `path`, which must not exist, with this access.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: &Path, access: impl Into<Access>) -> Result<Self> {
        let file = safe_file::create(path, access)
            .map_err(|e| Error::io(format!("could not create {}", name(path)), e))?;
        Ok(Self {
            file,
            path: path.to_owned(),
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
        if platform::tricks() && self.end - self.told >= BEHIND_BYTES {
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

/// An archive that is one file; a second one beside it where the codec has no frames to pass over.
pub struct OneFile {
    path: PathBuf,
    partial: PathBuf,
    side: Arc<Mutex<Option<Output>>>,
    side_path: Option<PathBuf>,
}

impl OneFile {
    /// Prepare to write `path`. `beside`: does it need a side file?
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: &Path, id: &str, beside: bool) -> Result<Self> {
        let side_path = beside.then(|| side_of(path));
        parent_must_be_there(path)?;
        check_names(path, side_path.as_deref())?;
        if is_append_only(dir_of(path)) {
            let what = format!("cannot create {}", name(path));
            return Err(Error::new(ErrorKind::Permission, what)
                .because("its directory is append-only, so that nothing in it gets its final name")
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

/// The mode of an archive: that of the one it replaces, if this user wrote it; else nobody else may read it.
fn mode_of(path: &Path) -> u32 {
    let there = fs::symlink_metadata(path)
        .ok()
        .filter(|there| there.is_file() && there.uid() == user().0);
    there.map_or(0o600, |there| there.mode() & 0o777)
}

/// The name of the file beside an archive.
pub fn side_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(SIDE_SUFFIX);
    name.into()
}

/// Refuses to make what has no directory to be in. Missing directories are not made: they are a typo, or a disk is not mounted.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the directory of `path` is not there.
pub fn parent_must_be_there(path: &Path) -> Result<()> {
    let parent = dir_of(path);
    match fs::metadata(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let what = format!(
                "could not create {}: the directory {} is not there",
                name(path),
                name(parent)
            );
            Err(Error::new(ErrorKind::NotFound, what)
                .hint("make it first, or is its disk not mounted?"))
        }
        _ => Ok(()), // other faults show when it is made
    }
}

/// Fail now if the file system does not take a final name, not when the backup is complete.
fn check_names(path: &Path, side: Option<&Path>) -> Result<()> {
    let is_too_long = |path: &Path| fs::symlink_metadata(path).err().filter(is_long_name);
    let refused = |path: &Path, error| Error::io(format!("cannot create {}", name(path)), error);
    if let Some(error) = is_too_long(path) {
        return Err(refused(path, error).hint("choose a shorter name"));
    }
    match side.and_then(|side| Some((side, is_too_long(side)?))) {
        Some((side, error)) => Err(refused(side, error).hint(format!(
            "choose a name that is at least {} bytes shorter, or .tar.zst or .tar.lz4, which have no file beside them",
            SIDE_SUFFIX.len()
        ))),
        None => Ok(()),
    }
}

/// Does the error say that the file system takes no name of this length? Then there is no such file.
fn is_long_name(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidFilename
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

/// The hidden name of the file beside the archive `path`.
fn hidden_side(path: &Path, id: &str) -> PathBuf {
    hidden(path, &format!("{}.{id}", &SIDE_SUFFIX[1..]))
}

fn dir_of(path: &Path) -> &Path {
    path.parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Was the run that wrote `path` killed when it had given the archive its name, and its side file not yet?
pub fn is_half_named(path: &Path) -> bool {
    let start = [&hidden_start(path), &SIDE_SUFFIX.as_bytes()[1..], b"."].concat();
    let mut entries = fs::read_dir(dir_of(path)).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().as_bytes().starts_with(&start)) && !side_of(path).exists()
}

/// Partial files of this archive whose writer is gone: nobody holds their lock. A side file that was put aside goes only when
/// there is one in its place.
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

    /// What is there under those names now will be replaced.
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
        let done = self.give_names();
        // Once it has its name, its side file is all that makes an archive of it.
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
    /// The old side file goes first: an archive without one is read as a stream, one with a wrong one not at all.
    fn give_names(&self) -> Result<()> {
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
            _ => {} // or a run that was killed has put it aside
        }
        // Who removes what was begun waits: of two files that get their names none may be left alone.
        let mut begun = PARTIALS.locked();
        rename(&self.partial, &self.path).inspect_err(|_| {
            let _ = fs::rename(&aside, &old); // the first error is the one to tell
        })?;
        let side = self.side_partial();
        if let (Some(from), Some(to)) = (&side, &self.side_path) {
            rename(from, to).map_err(|error| self.without_side(error, to))?;
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

    /// What an error means that came when the archive had its name, and its side file not yet.
    fn without_side(&self, error: Error, side: &Path) -> Error {
        let now = format!(
            "{} is the new archive already, without the manifest beside it",
            name(&self.path)
        );
        let hint = format!(
            "run the same command again, or give that file the name {} yourself",
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
