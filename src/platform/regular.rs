//! Files and directories whose names somebody else may have given away: those of a repository, and those beside an archive.
//!
//! Who may write to a repository is not always who reads or prunes it. Nothing here follows a link in place of a file, waits
//! for the other end of a named pipe or reads a device, and what is new is never written through what stands there.

use super::{
    Tricks,
    walk::{open_read, open_root},
};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
};
use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

const NEVER: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Open a file for reading. The directories of `path` may be links.
///
/// # Errors
/// `InvalidData` if what stands there is no regular file, a link to one too; or the system's.
pub fn open(path: &Path) -> io::Result<File> {
    let (dir, name) = parted(path)?;
    regular(open_read(open_root(dir)?, name, Tricks::Never))
}

/// As [`open`], for writing too.
///
/// # Errors
/// As [`open`].
pub fn open_write(path: &Path) -> io::Result<File> {
    regular(openat(CWD, path, OFlags::RDWR | NEVER, Mode::empty()).map_err(io::Error::from))
}

/// As [`open`], but a link is followed: for a file beside one that a person named.
///
/// # Errors
/// As [`open`].
pub fn open_linked(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | NEVER.difference(OFlags::NOFOLLOW);
    regular(openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from))
}

/// Open the file `name` in `dir` for writing, and make it if it is not there.
///
/// # Errors
/// As [`open`].
pub fn open_or_create(dir: impl AsFd, name: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | NEVER;
    regular(openat(dir, name, flags, Mode::from_raw_mode(0o666)).map_err(io::Error::from))
}

/// All of a file, if that is at most `most` bytes.
///
/// # Errors
/// As [`open`]; `InvalidData` if it is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, mut bytes) = (open(path)?, Vec::new());
    if file.metadata()?.len() > most {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is too large"));
    }
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Open the directory at `path`, which itself is no link, to change what is in it.
///
/// # Errors
/// `ENOTDIR` if it is a link or no directory; or the system's.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Make the names in a directory durable; `path` may be a link.
///
/// # Errors
/// The system's.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    super::write::fsync(openat(CWD, path, flags, Mode::empty())?)
}

/// The directory of a file, and its name in that.
fn parted(path: &Path) -> io::Result<(&Path, &[u8])> {
    let name = path.file_name().ok_or(Errno::ISDIR)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((dir, name.as_bytes()))
}

fn regular(opened: io::Result<OwnedFd>) -> io::Result<File> {
    let none = || io::Error::new(ErrorKind::InvalidData, "it is no regular file");
    let is_none = |error: &io::Error| {
        let code = error.raw_os_error().map(Errno::from_raw_os_error);
        matches!(code, Some(Errno::LOOP | Errno::NXIO | Errno::ISDIR))
    };
    let file = opened.map(File::from).map_err(|error| if is_none(&error) { none() } else { error })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(none()) }
}
