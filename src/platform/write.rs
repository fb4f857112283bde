//! Creates files and all other objects of a restore, and makes them durable.
//!
//! Names are single components in an open directory, so no object is created outside of it, and no
//! function follows a symbolic link in place of a file. Each small function is one system call. The
//! order of the calls (content, owner, mode, attributes, times) is up to the caller.
#![allow(unsafe_code)]

use super::{
    debug,
    dir::{self, FileKind, open_dir, through_proc},
    durable::file_system,
    inodes::{creation_error, creation_error_at},
    read::signed,
    tricks,
};
use crate::format::entry::{ByteRun, Device, Time};
use rustix::{
    fs::{
        Access, AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags,
        RenameFlags, StatVfs, Timespec, Timestamps, UTIME_NOW, Uid,
    },
    io::{Errno, retry_on_intr},
};
use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

pub use super::read::drop_behind;

/// File systems in memory, where preallocation writes zeros that are overwritten later.
const IN_MEMORY: [u64; 2] = [0x0102_1994 /* tmpfs */, 0x8584_58f6 /* ramfs */];

/// File systems that may compress written data, but not data in preallocated space: btrfs, ZFS,
/// bcachefs.
const COMPRESSING: [u64; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];

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
    match open_dir(&root, rel) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !rel.is_empty() => {}
        other => return other,
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
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    match create_dir(&dir, name, mode) {
        // Another thread was faster.
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

/// Returns whether a path is blocked by an object that is not a directory: a file, or a link that
/// is not followed.
pub fn is_in_the_way(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP))
}

/// Returns whether an object cannot be opened for writing like a file: a link, a directory, a pipe,
/// a running program.
pub fn is_not_writable_file(error: &io::Error) -> bool {
    is_in_the_way(error)
        || matches!(
            error.raw_os_error(),
            Some(libc::EISDIR | libc::ENXIO | libc::ETXTBSY)
        )
}

/// Free space below which a file system counts as full, because other programs may take the last
/// blocks.
const LITTLE_BYTES: u64 = 64 << 10;

/// Returns whether the device or the whole file system failed, so that other files would fail too.
pub fn is_disk_failure(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EROFS | libc::EUCLEAN)
    ) || is_server_gone(error)
}

/// Returns whether an error means that the owner cannot be set: by this process, or on a file
/// system without owners.
pub fn is_owner_refusal(error: &io::Error) -> bool {
    let refusals = [
        libc::EPERM,
        libc::EACCES,
        libc::EINVAL,
        libc::EOVERFLOW,
        libc::EOPNOTSUPP,
        libc::ENOSYS,
    ];
    error
        .raw_os_error()
        .is_some_and(|code| refusals.contains(&code))
}

/// Returns whether the file has the maximum number of names on its file system.
pub fn is_link_limit(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMLINK)
}

/// Returns whether the error is that only the owner or root may do this (`EPERM`).
pub fn is_forbidden(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

/// Returns whether the file system of `fd` is full. Some file systems also return ENOSPC for an
/// attribute that is too long, so free space is checked.
pub fn is_full(error: &io::Error, fd: impl AsFd) -> bool {
    match error.raw_os_error() {
        Some(libc::EDQUOT) => true,
        Some(libc::ENOSPC) => free_bytes(fd).is_ok_and(|free| free < LITTLE_BYTES),
        _ => false,
    }
}

/// Returns whether the server of the file system is gone: another machine, or a process on this
/// one.
fn is_server_gone(error: &io::Error) -> bool {
    let gone = [
        libc::ENOTCONN,
        libc::ESHUTDOWN,
        libc::ESTALE,
        libc::ETIMEDOUT,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
    ];
    error
        .raw_os_error()
        .is_some_and(|code| gone.contains(&code))
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
pub fn copy(from: &File, to: &File, run: ByteRun) -> io::Result<()> {
    let mut at = run.offset;
    let end = run.offset + run.len;
    while tricks() && at < end {
        let mut read = at;
        let mut written = at;
        let len = usize::try_from(end - at).unwrap_or(usize::MAX);
        match retry_on_intr(|| {
            rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), len)
        }) {
            Ok(0) => break,
            Ok(done) => at += done as u64,
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => return Err(error.into()),
            Err(error) => {
                debug(|| {
                    format!("copy_file_range is refused ({error}), the bytes are read and written")
                });
                break;
            }
        }
    }
    let mut buffer = if at < end {
        vec![0; 1 << 20]
    } else {
        Vec::new()
    };
    while at < end {
        let piece = buffer.len().min((end - at) as usize);
        from.read_exact_at(&mut buffer[..piece], at)?;
        pwrite_all(to, &buffer[..piece], at)?;
        at += piece as u64;
    }
    Ok(())
}

/// Allocates the first `len` bytes of an empty file, and sets its length to `len`. Returns false if
/// the space was not allocated; the file can still be written.
///
/// Writing 64 GiB in pieces spends time extending the file; allocated first, the file is also
/// contiguous. File systems in memory are skipped, because they would write zeros, and compressing
/// ones, because they would not compress.
///
/// # Errors
/// As [`allocate`].
pub fn preallocate(fd: impl AsFd, len: u64) -> io::Result<bool> {
    if !tricks() || len == 0 {
        return Ok(false);
    }
    let kind = file_system(&fd)?;
    if IN_MEMORY.contains(&kind) || COMPRESSING.contains(&kind) {
        return Ok(false);
    }
    allocate(fd, len)
}

/// Returns whether the file system of `fd` compresses, so that the space for data is known only
/// after writing. On btrfs with `compress=zstd`, 126 MB of text took 127 MB if the space was
/// allocated first, and 4 MB if not.
///
/// # Errors
/// The system's.
pub fn compresses(fd: impl AsFd) -> io::Result<bool> {
    Ok(COMPRESSING.contains(&file_system(fd)?))
}

/// Allocates like [`preallocate`], but on every file system, to reserve the space.
///
/// # Errors
/// `ENOSPC`, `EDQUOT` or `EFBIG` before the first byte is written; the file is empty again.
pub fn allocate(fd: impl AsFd, len: u64) -> io::Result<bool> {
    check_space(&fd, len)?;
    match retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len)) {
        Ok(()) => Ok(true),
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
            truncate(fd, 0)?;
            Err(error.into())
        }
        Err(error) => {
            debug(|| format!("fallocate is refused ({error}), files grow as they are written"));
            Ok(false)
        }
    }
}

/// Makes a hole. Returns false if the file system does not support holes, or not in this range.
///
/// # Errors
/// The system's.
pub fn punch(fd: impl AsFd, offset: u64, len: u64) -> io::Result<bool> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match retry_on_intr(|| rustix::fs::fallocate(&fd, how, offset, len)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::PERM) => Ok(false),
        done => Ok(done.map(|()| true)?),
    }
}

/// Checks that the file system has at least `len` bytes of space.
///
/// This check comes before an allocation because ext4 detects the lack only after it has taken all
/// space, and until it has released it, every other program on that disk is out of space.
///
/// # Errors
/// `ENOSPC`, or the system's.
/// `ENOSPC`, or the system's.
pub fn check_space(fd: impl AsFd, len: u64) -> io::Result<()> {
    if len > usable_bytes(fd)? {
        Err(Errno::NOSPC.into())
    } else {
        Ok(())
    }
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

/// Gives the object `old` in `from` another name; does not follow a symbolic link.
///
/// # Errors
/// `EEXIST`, `EXDEV`, `EMLINK`, or the system's.
pub fn link_at(from: impl AsFd, old: &[u8], dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::linkat(from, old, dir, name, AtFlags::empty())?)
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
pub fn rename_at(from: impl AsFd, old: &[u8], to: impl AsFd, new: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::renameat(from, old, to, new)?)
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
    /// Clears the umask.
    #[must_use = "dropping it restores the umask"]
    pub fn clear() -> Self {
        Self(rustix::process::umask(Mode::empty()))
    }

    /// The previous umask.
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

/// Returns the bytes that an unprivileged process can still write to the file system of `fd`;
/// `u64::MAX` if unknown.
///
/// # Errors
/// The system's.
pub fn free_bytes(fd: impl AsFd) -> io::Result<u64> {
    free(fd, |fs| fs.f_bavail)
}

/// Returns the bytes that this process can still write. For root this includes the space that file
/// systems such as ext4 reserve for root.
///
/// # Errors
/// The system's.
pub fn usable_bytes(fd: impl AsFd) -> io::Result<u64> {
    if crate::platform::user().0 == 0 {
        free(fd, |fs| fs.f_bfree.max(fs.f_bavail))
    } else {
        free_bytes(fd)
    }
}

fn free(fd: impl AsFd, blocks: impl Fn(&StatVfs) -> u64) -> io::Result<u64> {
    let fs = rustix::fs::fstatvfs(fd)?;
    // Some network file systems report 0 for "unknown".
    Ok(if fs.f_blocks == 0 {
        u64::MAX
    } else {
        blocks(&fs).saturating_mul(fs.f_frsize)
    })
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

/// Allocates `len` bytes at `offset`, the end of the space allocated so far, and moves the end of the file behind them. Returns
/// false, and changes nothing, where [`preallocate`] would not allocate either.
///
/// # Errors
/// `ENOSPC`, `EDQUOT` or `EFBIG`; the file may have become longer.
pub fn extend(fd: impl AsFd, offset: u64, len: u64) -> io::Result<bool> {
    let kind = file_system(&fd)?;
    if !tricks() || IN_MEMORY.contains(&kind) || COMPRESSING.contains(&kind) {
        return Ok(false);
    }
    check_space(&fd, len)?;
    match retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), offset, len)) {
        Ok(()) => Ok(true),
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(error.into()),
        Err(_) => Ok(false),
    }
}

/// Returns whether the file system of `fd` lets several threads write directly to one allocated file at the same time: ext4 and
/// XFS do. Others were not measured.
pub fn takes_direct_writes(fd: impl AsFd) -> bool {
    file_system(fd).is_ok_and(|kind| [0xef53, 0x5846_5342].contains(&kind))
}

/// Returns whether a file system refused a direct write, or its alignment.
pub fn is_refusal_of_direct(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// Renames within a directory unless the new name exists; returns false then. A file system that cannot refuse the rename is asked
/// by a hard link; without hard links, two renames at the same moment may both succeed.
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
