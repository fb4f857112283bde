//! Creates files and all other objects of a restore, and makes them durable.
//!
//! Names are single components in an open directory, so no object is created outside of it, and no
//! function follows a symbolic link in place of a file. Each small function is one system call. The
//! order of the calls (content, owner, mode, attributes, times) is up to the caller.
#![allow(unsafe_code)]

mod errors;
mod space;

use super::{
    debug,
    dir::{self, FileKind, open_dir, through_proc},
    file_system::file_system,
    inodes::{creation_error, creation_error_at},
    read::signed,
    tricks,
};
use fullbore_format::entry::{ByteRun, Device, Time, split};
use rustix::{
    fs::{
        Access, AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Timespec,
        Timestamps, UTIME_NOW, Uid,
    },
    io::{Errno, retry_on_intr},
};
use std::{
    fs::File,
    io::{self, IoSlice},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

pub use super::{dir::is_in_the_way, read::drop_behind};
pub use errors::{
    is_disk_failure, is_forbidden, is_full, is_link_limit, is_not_writable_file, is_owner_refusal,
    is_refusal_of_direct,
};
pub use space::{
    allocate, check_space, compresses, extend, free_bytes, preallocate, punch, reserve,
    try_reserve, usable_bytes,
};

/// Buffers that a system call takes: `IOV_MAX`.
const MOST_BUFFERS: usize = 1024;

/// Creates the directory `name` in `dir`.
///
/// # Errors
/// `EEXIST`, or the system's.
pub fn create_dir(dir: impl AsFd, name: &[u8], mode: u32) -> io::Result<()> {
    rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(mode))
        .map_err(|error| creation_error(error, dir))
}

/// Opens the directory `rel` below `root`. Creates missing parents and the directory itself with
/// this mode.
///
/// # Errors
/// As [`open_dir`]: a component that is a symbolic link, even to a directory, is refused.
pub fn create_dir_beneath(root: impl AsFd, rel: &[u8], mode: u32) -> io::Result<OwnedFd> {
    let (parent, name) = split(rel);
    if name.is_empty() {
        return open_dir(root, rel);
    }
    // Mostly only the last directory is missing.
    match open_dir(&root, parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        above => return create_and_open(above?, name, mode),
    }
    // A loop instead of recursion, because an archive may name a million parents.
    let mut names = rel.split(|c| *c == b'/');
    let mut held = open_or_create(root, names.next().unwrap_or_default(), mode)?;
    for name in names {
        held = open_or_create(held, name, mode)?;
    }
    Ok(held)
}

fn open_or_create(dir: impl AsFd, name: &[u8], mode: u32) -> io::Result<OwnedFd> {
    match open_dir(&dir, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => create_and_open(dir, name, mode),
        other => other,
    }
}

fn create_and_open(dir: impl AsFd, name: &[u8], mode: u32) -> io::Result<OwnedFd> {
    match create_dir(&dir, name, mode) {
        // It was there, or another thread was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    open_dir(dir, name)
}

/// Creates the file `name` in `dir` and opens it for reading and writing; it must not exist. The
/// umask applies, see [`Umask`].
///
/// # Errors
/// `EEXIST` if the name exists, even as a dangling symbolic link; or the system's.
pub fn create_file(dir: impl AsFd, name: &[u8], mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(mode))
        .map_err(|error| creation_error(error, dir))
}

/// Creates a file without a name. It is deleted on close, unless [`give_name`] gives it a name.
///
/// # Errors
/// `EOPNOTSUPP` and others if the file system has no such files; `Unsupported` if `/proc` is not
/// mounted; or the system's.
pub fn create_nameless(dir: impl AsFd, mode: u32) -> io::Result<OwnedFd> {
    let fd = nameless(dir, Path::new("."), mode)?;
    through_proc(&fd)?;
    Ok(fd)
}

fn nameless(dir: impl AsFd, path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(
        dir,
        path,
        flags,
        Mode::from_raw_mode(mode),
    )?)
}

/// Gives a file of [`create_nameless`] the unused name `name` in `dir`.
///
/// # Errors
/// `EEXIST`, or the system's.
pub fn give_name(fd: impl AsFd, dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::linkat(
        CWD,
        through_proc(fd)?,
        dir,
        name,
        AtFlags::SYMLINK_FOLLOW,
    )?)
}

/// Opens the existing file `name` in `dir` for reading and writing. Never waits for the other end
/// of a named pipe. If another process holds a lease on a regular file, waits until the lease is
/// returned.
///
/// # Errors
/// `ELOOP` for a symbolic link, `EISDIR` for a directory, `EACCES`, or the system's.
pub fn open_write(dir: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::openat(&dir, name, flags | OFlags::NONBLOCK, Mode::empty()) {
        Err(Errno::AGAIN) if dir::stat(&dir, name)?.kind == FileKind::File => {
            Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
        }
        opened => Ok(opened?),
    }
}

/// Writes all of `data` at `offset`.
///
/// # Errors
/// The system's; `WriteZero` if the system takes no more bytes.
pub fn pwrite_all(fd: impl AsFd, mut data: &[u8], mut offset: u64) -> io::Result<()> {
    while !data.is_empty() {
        let done = nonzero(retry_on_intr(|| rustix::io::pwrite(&fd, data, offset))?)?;
        data = &data[done..];
        offset += done as u64;
    }
    Ok(())
}

/// Writes buffers that follow each other at `offset`, by one system call mostly.
///
/// # Errors
/// As [`pwrite_all`].
pub fn pwrite_all_of(fd: impl AsFd, buffers: &[&[u8]], mut offset: u64) -> io::Result<()> {
    let mut slices: Vec<_> = buffers.iter().map(|data| IoSlice::new(data)).collect();
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let some = &rest[..rest.len().min(MOST_BUFFERS)];
        let done = nonzero(retry_on_intr(|| rustix::io::pwritev(&fd, some, offset))?)?;
        IoSlice::advance_slices(&mut rest, done);
        offset += done as u64;
    }
    Ok(())
}

fn nonzero(written: usize) -> io::Result<usize> {
    if written == 0 {
        Err(io::ErrorKind::WriteZero.into())
    } else {
        Ok(written)
    }
}

/// Copies a run of one file to the same place of another. Uses `copy_file_range` if possible, with
/// which btrfs and XFS share the blocks. Otherwise reads and writes the bytes.
///
/// # Errors
/// `UnexpectedEof` if the file ends before the run, or the system's.
pub fn copy(source: &File, target: &File, run: ByteRun) -> io::Result<()> {
    let mut offset = run.offset;
    let end = run.offset + run.len;
    while tricks() && offset < end {
        let mut read = offset;
        let mut written = offset;
        let len = usize::try_from(end - offset).unwrap_or(usize::MAX);
        match retry_on_intr(|| {
            rustix::fs::copy_file_range(source, Some(&mut read), target, Some(&mut written), len)
        }) {
            // 0 is the end of the file, or a file system that does not copy: reading tells which of
            // the two.
            Ok(0) => break,
            Ok(done) => offset += done as u64,
            // These are facts about the disk, which reading and writing would meet again.
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => return Err(error.into()),
            Err(error) => {
                debug(|| {
                    format!("copy_file_range is refused ({error}), the bytes are read and written")
                });
                break;
            }
        }
    }
    let mut buffer = if offset < end {
        vec![0; 1 << 20]
    } else {
        Vec::new()
    };
    while offset < end {
        let piece = buffer.len().min((end - offset) as usize);
        source.read_exact_at(&mut buffer[..piece], offset)?;
        pwrite_all(target, &buffer[..piece], offset)?;
        offset += piece as u64;
    }
    Ok(())
}

/// Starts writing a range to the device without waiting for it. A refusal is ignored.
///
/// Followed one range later by [`drop_behind`], it keeps the page cache small: 158 s instead of 455
/// s for 400 GiB from four writers (Freund, 2020).
pub fn write_behind(fd: impl AsFd, offset: u64, len: u64) {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: passes no memory.
    unsafe { libc::sync_file_range(fd, signed(offset), signed(len), libc::SYNC_FILE_RANGE_WRITE) };
}

/// Makes a file, or the names in a directory, durable.
///
/// # Errors
/// The system's. After an error, the state of earlier writes is unknown; a second call that
/// succeeds proves nothing.
pub fn fsync(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fsync(fd)?)
}

/// Sets the modification time; the access time becomes the current time.
///
/// # Errors
/// The system's.
pub fn set_times_fd(fd: impl AsFd, mtime: Time) -> io::Result<()> {
    Ok(rustix::fs::futimens(fd, &content_time(mtime))?)
}

/// Returns the two timestamps. The access time is now, because FUSE 2 sets neither time if it gets
/// only one.
pub(super) fn content_time(mtime: Time) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        },
        last_modification: Timespec {
            tv_sec: mtime.seconds,
            tv_nsec: mtime.nanos.into(),
        },
    }
}

/// Sets owner and group. This clears setuid and setgid, so call it before [`chmod_fd`].
///
/// # Errors
/// `EPERM` without privileges, or the system's.
pub fn chown_fd(fd: impl AsFd, uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = owner_ids(uid, gid)?;
    Ok(rustix::fs::fchown(fd, uid, gid)?)
}

/// Converts owner numbers. Refuses the largest number, which means "do not change" to the system
/// and cannot own a file.
pub(super) fn owner_ids(uid: u32, gid: u32) -> io::Result<(Option<Uid>, Option<Gid>)> {
    if uid == u32::MAX || gid == u32::MAX {
        return Err(Errno::INVAL.into());
    }
    Ok((Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))))
}

/// Sets the permission bits, at most `0o7777`.
///
/// # Errors
/// The system's.
pub fn chmod_fd(fd: impl AsFd, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))?)
}

/// Creates the symbolic link `name` in `dir` to `target`.
///
/// # Errors
/// `EEXIST`, or the system's.
pub fn symlink_at(target: &[u8], dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    rustix::fs::symlinkat(target, &dir, name).map_err(|error| creation_error(error, dir))
}

/// Gives the object `old` in `old_dir` another name; does not follow a symbolic link.
///
/// # Errors
/// `EEXIST`, `EXDEV`, `EMLINK`, or the system's.
pub fn link_at(old_dir: impl AsFd, old: &[u8], dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::linkat(
        old_dir,
        old,
        dir,
        name,
        AtFlags::empty(),
    )?)
}

/// Creates a named pipe or a device; `device` is used only for a device.
///
/// # Errors
/// `EPERM` for a device without privileges, `EINVAL` for another kind, `EEXIST`, or the system's.
pub fn mknod_at(
    dir: impl AsFd,
    name: &[u8],
    kind: FileKind,
    mode: u32,
    device: Device,
) -> io::Result<()> {
    let kind = match kind {
        FileKind::Fifo => FileType::Fifo,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        _ => return Err(Errno::INVAL.into()),
    };
    let number = rustix::fs::makedev(device.major, device.minor);
    rustix::fs::mknodat(&dir, name, kind, Mode::from_raw_mode(mode), number)
        .map_err(|error| creation_error(error, dir))
}

/// Removes `name` in `dir`, which must not be a directory.
///
/// # Errors
/// `EISDIR`, `ENOENT`, or the system's.
pub fn unlink_at(dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
}

/// Removes the empty directory `name` in `dir`.
///
/// # Errors
/// `ENOTEMPTY`, `ENOTDIR`, `ENOENT`, or the system's.
pub fn remove_dir_at(dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

/// Renames an object, replacing the object with the new name.
///
/// # Errors
/// The system's.
pub fn rename_at(old_dir: impl AsFd, old: &[u8], new_dir: impl AsFd, new: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::renameat(old_dir, old, new_dir, new)?)
}

/// Sets the length of a file to `len` bytes; added bytes are a hole.
///
/// # Errors
/// The system's.
pub fn truncate(fd: impl AsFd, len: u64) -> io::Result<()> {
    Ok(rustix::fs::ftruncate(fd, len)?)
}

/// Clears the umask while it exists, so that files get exactly the mode they are created with. This
/// saves a `chmod` a file.
///
/// The umask belongs to the process: use one at a time, created before threads start and dropped
/// after they end.
#[derive(Debug)]
pub struct Umask(Mode);

impl Umask {
    #[must_use = "dropping it restores the umask"]
    pub fn clear() -> Self {
        Self(rustix::process::umask(Mode::empty()))
    }

    pub fn previous(&self) -> u32 {
        self.0.as_raw_mode()
    }
}

impl Drop for Umask {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

/// Takes the lock of a file or directory without waiting; returns false if another process holds
/// it. Closing the descriptor releases the lock.
///
/// # Errors
/// `ENOLCK`, `ENOTSUP` or `EBADF` where the file system has no locks, or the system's.
pub fn lock_exclusive(fd: impl AsFd) -> io::Result<bool> {
    match retry_on_intr(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether standard output was closed when the program started. The runtime then opens
/// `/dev/null` for reading and writing, which no shell does.
pub fn is_stdout_closed() -> bool {
    const NULL: Device = Device { major: 1, minor: 3 };
    let out = std::io::stdout();
    let is_null =
        dir::stat_fd(&out).is_ok_and(|stat| stat.kind == FileKind::CharDevice && stat.rdev == NULL);
    is_null && rustix::fs::fcntl_getfl(&out).is_ok_and(|flags| flags.contains(OFlags::RDWR))
}

/// Checks that this process may create names in the directory `path`.
///
/// # Errors
/// `EACCES`, `EROFS` or the system's if not.
pub fn may_write(path: &Path) -> io::Result<()> {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    match rustix::fs::accessat(CWD, path, wanted, AtFlags::EACCESS) {
        // EPERM concerns the directory, or the call itself, which older container runtimes forbid.
        // The older call tells which.
        Err(Errno::PERM) => Ok(rustix::fs::accessat(CWD, path, wanted, AtFlags::empty())?),
        other => Ok(other?),
    }
}

/// Creates a file in `dir` for reading and writing that has no name and is deleted on close.
///
/// # Errors
/// The system's.
pub fn anonymous_file(dir: &Path) -> io::Result<File> {
    match nameless(CWD, dir, 0o600) {
        Ok(file) => Ok(file.into()),
        // Some file systems have no nameless files: overlayfs of old kernels, NFS, FUSE.
        Err(error)
            if matches!(
                Errno::from_io_error(&error),
                Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL)
            ) =>
        {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_nanos();
            let path = dir.join(format!(".fullbore-{}-{now}", std::process::id()));
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path);
            let file = file.map_err(|error| creation_error_at(error, &path))?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(error) => Err(error),
    }
}

/// Returns whether the file system of `fd` lets several threads write directly to one allocated
/// file at the same time: ext4 and XFS do. Others were not measured.
pub fn takes_direct_writes(fd: impl AsFd) -> bool {
    file_system(fd).is_ok_and(|kind| [0xef53, 0x5846_5342].contains(&kind))
}

/// Renames within a directory unless the new name exists; returns false then. A file system that
/// cannot refuse the rename is asked by a hard link; without hard links, two renames at the same
/// moment may both succeed.
///
/// # Errors
/// The system's; then nothing was renamed.
pub fn rename_if_absent(dir: impl AsFd, old: &[u8], new: &[u8]) -> io::Result<bool> {
    match rustix::fs::renameat_with(&dir, old, &dir, new, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(true),
        Err(Errno::EXIST) => return Ok(false),
        // NFS, many servers of FUSE; and container runtimes that do not know the call.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    match rustix::fs::linkat(&dir, old, &dir, new, AtFlags::empty()) {
        Ok(()) => {
            unlink_at(dir, old)?;
            Ok(true)
        }
        Err(Errno::EXIST) => Ok(false),
        Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP | Errno::MLINK) => {
            let is_absent =
                dir::stat(&dir, new).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            if is_absent {
                rename_at(&dir, old, &dir, new)?;
            }
            Ok(is_absent)
        }
        Err(error) => Err(error.into()),
    }
}
