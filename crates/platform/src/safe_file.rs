//! Safe access to files whose names other users may control: those of a repository, and those next
//! to an archive.
//!
//! A user who may write to a repository is not always the one who reads or prunes it. No function
//! here follows a link in place of a file, waits for the other end of a named pipe or reads a
//! device. A new file is never written through an existing name.

use super::{
    dir::{FileKind, Stat, real_path, stat, stat_fd, through_proc},
    inodes::{creation_error, creation_error_at},
    write::{chmod_fd, chown_fd},
};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    path::Arg,
};
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, ErrorKind, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

const NEVER: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Opens a file for reading. The directories in `path` may be links.
///
/// # Errors
/// `InvalidData` if `path` is not a regular file, for example a link to one; or the system's.
pub fn open(path: &Path) -> io::Result<File> {
    open_as(CWD, path, OFlags::RDONLY | NEVER)
}

/// As [`open`], of the file `name` in `dir`.
///
/// # Errors
/// As [`open`].
pub fn open_at(dir: impl AsFd, name: impl AsRef<Path>) -> io::Result<File> {
    open_as(dir, name.as_ref(), OFlags::RDONLY | NEVER)
}

/// As [`open_at`], for writing too.
///
/// # Errors
/// As [`open`].
pub fn open_write_at(dir: impl AsFd, name: &str) -> io::Result<File> {
    open_as(dir, Path::new(name), OFlags::RDWR | NEVER)
}

/// Open the file `name` in `dir` for writes that pass by the page cache: address, offset and length
/// of each are multiples of the block size of its device.
///
/// # Errors
/// `EINVAL` where the file system has none; or as [`open`].
pub fn open_direct_at(dir: impl AsFd, name: &str) -> io::Result<File> {
    open_as(
        dir,
        Path::new(name),
        OFlags::WRONLY | OFlags::DIRECT | NEVER,
    )
}

/// Opens a file like [`open`], for reading and writing.
///
/// # Errors
/// As [`open`].
pub fn open_write(path: &Path) -> io::Result<File> {
    open_as(CWD, path, OFlags::RDWR | NEVER)
}

/// Returns the path that `path` leads to, if it is a link.
pub fn symlink_target(path: &Path) -> Option<PathBuf> {
    real_path(path).ok().filter(|_| path.is_symlink())
}

/// Returns the target of a symbolic link whose target does not exist, for example because a disk is
/// not mounted.
pub fn dangling_symlink_target(path: &Path) -> Option<PathBuf> {
    path.read_link()
        .ok()
        .filter(|_| path.try_exists().is_ok_and(|exists| !exists))
}

fn open_as(dir: impl AsFd, path: &Path, flags: OFlags) -> io::Result<File> {
    match openat(&dir, path, flags, Mode::empty()) {
        // Another process holds a lease (a Samba oplock). Waiting is safe once the file is known to
        // be regular.
        Err(Errno::AGAIN) => {
            let file = openat(
                &dir,
                path,
                flags.intersection(OFlags::NOFOLLOW) | OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            if stat_fd(&file)?.kind != FileKind::File {
                return Err(none());
            }
            Ok(openat(
                CWD,
                through_proc(&file)?,
                flags.difference(NEVER) | OFlags::CLOEXEC,
                Mode::empty(),
            )?
            .into())
        }
        opened => regular(opened),
    }
}

/// Mode and owner of a new file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileAccess {
    /// Permission bits.
    pub mode: u32,
    /// User and group, as far as this process may change them; `None` keeps those of the process.
    pub owner: Option<(u32, u32)>,
}

impl From<u32> for FileAccess {
    fn from(mode: u32) -> Self {
        Self { mode, owner: None }
    }
}

/// Opens the file `name` in `dir` for writing. Creates it with this access if it does not exist.
///
/// # Errors
/// As [`open`].
pub fn open_or_create(dir: impl AsFd, name: &str, access: FileAccess) -> io::Result<File> {
    let open = || match create_at(&dir, name, access) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            regular(openat(&dir, name, OFlags::WRONLY | NEVER, Mode::empty()))
        }
        made => made,
    };
    // Another process may have removed it between the two calls.
    match open() {
        Err(error) if error.kind() == ErrorKind::NotFound => open(),
        opened => opened,
    }
}

/// Creates a file for reading and writing; the file must not exist. Its access is owner-only or the
/// wider `access`, regardless of the umask.
///
/// # Errors
/// `EEXIST`, or the system's.
pub fn create(path: &Path, access: impl Into<FileAccess>) -> io::Result<File> {
    create_at(CWD, path, access).map_err(|error| creation_error_at(error, path))
}

/// Creates a file in a directory, like [`create`].
///
/// # Errors
/// As [`create`].
pub fn create_at(
    dir: impl AsFd,
    name: impl Arg,
    access: impl Into<FileAccess>,
) -> io::Result<File> {
    let access = access.into();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | NEVER;
    let file = openat(&dir, name, flags, Mode::from_raw_mode(access.mode & 0o700));
    let file = file.map_err(|error| creation_error(error, dir))?;
    widen(&file, access);
    Ok(file.into())
}

/// Creates a file for writing in a directory; the file must not exist, and the umask applies.
///
/// # Errors
/// As [`create`].
pub fn create_by_umask(dir: impl AsFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | NEVER;
    let file = openat(&dir, name, flags, Mode::from_raw_mode(0o666));
    Ok(file.map_err(|error| creation_error(error, dir))?.into())
}

/// Opens a pipe or a device for writing; `None` if nothing or a regular file has this name.
///
/// # Errors
/// `InvalidData` for a link or a directory; `ENXIO` for a pipe without a reader; or the system's.
pub fn open_device_at(dir: impl AsFd, name: &OsStr) -> io::Result<Option<File>> {
    let found = match stat(&dir, name.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    match found.kind {
        FileKind::File => return Ok(None),
        FileKind::Symlink | FileKind::Directory => return Err(none()),
        _ => {}
    }
    let file = openat(&dir, name, OFlags::WRONLY | NEVER, Mode::empty())?;
    // A pipe whose reader is slow must not fail.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags.difference(OFlags::NONBLOCK))?;
    Ok(Some(file.into()))
}

/// Creates a directory, like [`create`] does a file.
///
/// # Errors
/// `EEXIST`, or the system's.
pub fn create_dir(path: &Path, access: impl Into<FileAccess>) -> io::Result<()> {
    create_dir_at(CWD, path, access)
}

/// As [`create_dir`], in a directory.
///
/// # Errors
/// As [`create_dir`].
pub fn create_dir_at(dir: impl AsFd, name: &Path, access: impl Into<FileAccess>) -> io::Result<()> {
    let access = access.into();
    let made = rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(access.mode & 0o700));
    made.map_err(|error| creation_error_at(error.into(), name))?;
    if access.mode & 0o077 != 0 || access.owner.is_some() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        widen(openat(dir, name, flags, Mode::empty())?, access);
    }
    Ok(())
}

/// Creates a directory and its parents, if missing, and makes their names durable.
///
/// # Errors
/// The system's.
pub fn create_dirs(path: &Path, access: impl Into<FileAccess>) -> io::Result<()> {
    let access = access.into();
    let made = match (create_dir(path, access), path.parent()) {
        (Err(error), Some(above))
            if error.kind() == ErrorKind::NotFound && !path.as_os_str().is_empty() =>
        {
            create_dirs(above, access).and_then(|()| create_dir(path, access))
        }
        (made, _) => made,
    };
    match made {
        Err(_) if path.is_dir() => Ok(()),
        made => made.and_then(|()| sync_above(path)),
    }
}

/// Makes the name of a file or directory durable, if its parent directory may be opened.
///
/// # Errors
/// The system's.
pub fn sync_above(path: &Path) -> io::Result<()> {
    let Some(above) = path.parent() else {
        return Ok(());
    };
    match sync_dir(if above.as_os_str().is_empty() {
        Path::new(".")
    } else {
        above
    }) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// Applies owner and mode to a new object. Keeps the bits that a directory passes on (its group).
/// An error is ignored, because some file systems have no modes.
fn widen(made: impl AsFd, FileAccess { mode, owner }: FileAccess) {
    if let Some((user, group)) = owner
        && let Ok(stat) = stat_fd(&made)
        && (stat.uid, stat.gid) != (user, group)
    {
        // Only root may give a file away, but every user may give it to one of their own groups.
        let given = chown_fd(&made, user, group).or_else(|_| chown_fd(&made, stat.uid, group));
        given.unwrap_or_else(|error| {
            crate::debug(|| format!("not given to {user}:{group}: {error}"))
        });
    }
    if mode & 0o077 == 0 {
        return;
    }
    let passed_on = |stat: Stat| stat.mode & 0o7000;
    if let Err(error) = stat_fd(&made).and_then(|stat| chmod_fd(&made, mode | passed_on(stat))) {
        crate::debug(|| format!("no mode {mode:o}: {error}"));
    }
}

/// Reads a whole file of at most `most` bytes.
///
/// # Errors
/// As [`open`]; `InvalidData` if the file is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    if file.metadata()?.len() > most {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is too large"));
    }
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens the directory at `path`, which must not be a link itself, to change its content.
///
/// # Errors
/// `ENOTDIR` if it is a link or not a directory; or the system's.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Makes the names in a directory durable; `path` may be a link.
///
/// # Errors
/// The system's.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    crate::durable::sync_dir(openat(CWD, path, flags, Mode::empty())?)
}

fn regular(opened: Result<OwnedFd, Errno>) -> io::Result<File> {
    let file = match opened {
        Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => return Err(none()),
        opened => File::from(opened?),
    };
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(none())
    }
}

fn none() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "it is not a regular file")
}
