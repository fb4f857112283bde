//! Files and directories whose names somebody else may have given away: those of a repository, and those beside an archive.
//!
//! Who may write to a repository is not always who reads or prunes it. Nothing here follows a link in place of a file, waits
//! for the other end of a named pipe or reads a device, and what is new is never written through what stands there.

use super::{
    dir::{FileKind, Stat, real_path, stat_fd, through_proc},
    write::{chmod_fd, chown_fd},
};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    path::Arg,
};
use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

const NEVER: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Open a file for reading. The directories of `path` may be links.
///
/// # Errors
/// `InvalidData` if what stands there is no regular file, a link to one too; or the system's.
pub fn open(path: &Path) -> io::Result<File> {
    open_as(path, OFlags::RDONLY | NEVER)
}

/// As [`open`], for writing too.
///
/// # Errors
/// As [`open`].
pub fn open_write(path: &Path) -> io::Result<File> {
    open_as(path, OFlags::RDWR | NEVER)
}

/// Where `path` leads to, if it is a link.
pub fn led_to(path: &Path) -> Option<PathBuf> {
    real_path(path).ok().filter(|_| path.is_symlink())
}

/// What a link leads to that leads to nothing: a disk may not be mounted.
pub fn led_astray(path: &Path) -> Option<PathBuf> {
    path.read_link()
        .ok()
        .filter(|_| path.try_exists().is_ok_and(|there| !there))
}

fn open_as(path: &Path, flags: OFlags) -> io::Result<File> {
    match openat(CWD, path, flags, Mode::empty()) {
        // Somebody holds a lease (a Samba oplock); what is surely a regular file can be waited for.
        Err(Errno::AGAIN) => {
            let file = openat(
                CWD,
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

/// Whose a file or directory is that is made, and what others may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Its mode.
    pub mode: u32,
    /// User and group, as far as this process may give things away; `None`: those of the process.
    pub owner: Option<(u32, u32)>,
}

impl From<u32> for Access {
    fn from(mode: u32) -> Self {
        Self { mode, owner: None }
    }
}

/// Open the file `name` in `dir` for writing, and make it with this access if it is not there.
///
/// # Errors
/// As [`open`].
pub fn open_or_create(dir: impl AsFd, name: &str, access: Access) -> io::Result<File> {
    let open = || match create_at(&dir, name, access) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            regular(openat(&dir, name, OFlags::WRONLY | NEVER, Mode::empty()))
        }
        made => made,
    };
    // Between the two calls somebody may have removed it.
    match open() {
        Err(error) if error.kind() == ErrorKind::NotFound => open(),
        opened => opened,
    }
}

/// Make a file for reading and writing, which must not exist. It is its owner's alone, or has the wider `access`, whatever
/// the umask says.
///
/// # Errors
/// `EEXIST`, or the system's.
pub fn create(path: &Path, access: impl Into<Access>) -> io::Result<File> {
    create_at(CWD, path, access)
}

/// As [`create`], in a directory.
///
/// # Errors
/// As [`create`].
pub fn create_at(dir: impl AsFd, name: impl Arg, access: impl Into<Access>) -> io::Result<File> {
    let access = access.into();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | NEVER;
    let file = openat(dir, name, flags, Mode::from_raw_mode(access.mode & 0o700))?;
    widen(&file, access);
    Ok(file.into())
}

/// Make a directory, as [`create`] does a file.
///
/// # Errors
/// `EEXIST`, or the system's.
pub fn create_dir(path: &Path, access: impl Into<Access>) -> io::Result<()> {
    let access = access.into();
    rustix::fs::mkdir(path, Mode::from_raw_mode(access.mode & 0o700))?;
    if access.mode & 0o077 != 0 || access.owner.is_some() {
        widen(open_dir(path)?, access);
    }
    Ok(())
}

/// Make a directory, if it is not there, and those above it; their names are durable then.
///
/// # Errors
/// The system's.
pub fn create_dirs(path: &Path, access: impl Into<Access>) -> io::Result<()> {
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

/// Make the name of a file or directory durable, if the directory it is in may be opened.
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

/// What a directory passes on (its group) stays. Where the file system has no modes, there is nothing to widen.
fn widen(made: impl AsFd, Access { mode, owner }: Access) {
    if let Some((user, group)) = owner
        && let Ok(stat) = stat_fd(&made)
        && (stat.uid, stat.gid) != (user, group)
    {
        // Only root gives a file to somebody else, and anybody one to a group that he is in.
        let given = chown_fd(&made, user, group).or_else(|_| chown_fd(&made, stat.uid, group));
        given.unwrap_or_else(|error| {
            crate::platform::debug(|| format!("not given to {user}:{group}: {error}"))
        });
    }
    if mode & 0o077 == 0 {
        return;
    }
    let passed_on = |stat: Stat| stat.mode & 0o7000;
    if let Err(error) = stat_fd(&made).and_then(|stat| chmod_fd(&made, mode | passed_on(stat))) {
        crate::platform::debug(|| format!("no mode {mode:o}: {error}"));
    }
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
    crate::platform::write::fsync(openat(CWD, path, flags, Mode::empty())?)
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
    io::Error::new(ErrorKind::InvalidData, "it is no regular file")
}
