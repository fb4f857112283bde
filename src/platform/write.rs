//! Creating files and everything else a restore creates, and making it durable.
//!
//! Names are single components in an open directory, so nothing is written outside of it, and no function follows a
//! symbolic link that stands where a file is expected. What is small here is one call; the order of calls (content,
//! owner, mode, attributes, times) is the caller's.
#![allow(unsafe_code)]

use super::{
    debug,
    dir::{self, FileKind, open_dir, through_proc},
    durable::file_system,
    inodes::{of_making, of_making_path},
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

/// File systems in memory: preallocating there writes zeros that are then written over.
const IN_MEMORY: [u64; 2] = [0x0102_1994 /* tmpfs */, 0x8584_58f6 /* ramfs */];

/// File systems that may compress what is written, but nothing that was allocated before: btrfs, ZFS, bcachefs.
const COMPRESSING: [u64; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];

/// Create the directory `name` in `dir`.
///
/// # Errors
/// `EEXIST`, or the system's.
pub fn create_dir(dir: impl AsFd, name: &[u8], mode: u32) -> io::Result<()> {
    rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(mode))
        .map_err(|error| of_making(error, dir))
}

/// Open the directory `rel` below `root`, creating it and its parents with this mode where they are missing.
///
/// # Errors
/// As [`open_dir`]: a component that is a symbolic link, even to a directory, is refused.
pub fn create_dir_beneath(root: impl AsFd, rel: &[u8], mode: u32) -> io::Result<OwnedFd> {
    match open_dir(&root, rel) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !rel.is_empty() => {}
        other => return other,
    }
    // A loop and not a recursion: an archive may name a million parents.
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

/// Create the file `name` in `dir` and open it for reading and writing; it must not exist. The umask applies, see [`Umask`].
///
/// # Errors
/// `EEXIST` for anything that stands there, a symbolic link that leads nowhere too; or the system's.
pub fn create_file(dir: impl AsFd, name: &[u8], mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(mode))
        .map_err(|error| of_making(error, dir))
}

/// As [`create_file`], but without a name: it is gone when it is closed, unless it gets one by [`give_name`].
///
/// # Errors
/// `EOPNOTSUPP` and others where the file system has no such files; that `/proc` is not mounted; or the system's.
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

/// Give a file of [`create_nameless`] this name in `dir`, which nothing has.
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

/// Open the file `name` in `dir`, which is there, for reading and writing. Never waits for the other end of a named pipe. One that
/// somebody holds a lease on is opened once that is given back.
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

/// Write all of `data` at `offset`.
///
/// # Errors
/// The system's; `WriteZero` if it takes nothing more.
pub fn pwrite_all(fd: impl AsFd, mut data: &[u8], mut offset: u64) -> io::Result<()> {
    while !data.is_empty() {
        let done = some(retry_on_intr(|| rustix::io::pwrite(&fd, data, offset))?)?;
        (data, offset) = (&data[done..], offset + done as u64);
    }
    Ok(())
}

/// Is something that is no directory in the way of a path: a file, or a link that is not followed?
pub fn is_in_the_way(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP))
}

/// Is it something that cannot be opened for writing as a file can: a link, a directory, a pipe, a program that runs?
pub fn is_no_open_file(error: &io::Error) -> bool {
    is_in_the_way(error)
        || matches!(
            error.raw_os_error(),
            Some(libc::EISDIR | libc::ENXIO | libc::ETXTBSY)
        )
}

/// A file system with less is full: nobody can tell who takes the last block.
const LITTLE_BYTES: u64 = 64 << 10;

/// Did the device fail, or the file system as a whole, so that no other file can be expected to do better?
pub fn is_failure_of_the_disk(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EROFS | libc::EUCLEAN)
    ) || is_out_of_reach(error)
}

/// Is it what the system, or a file system that knows no owners or not these, says of an owner that it does not set?
pub fn is_refusal_of_owner(error: &io::Error) -> bool {
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

/// Has the file as many names as its file system allows?
pub fn is_limit_of_links(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMLINK)
}

/// Is it what is said to who does something to what is another's?
pub fn is_forbidden(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

/// Is there no room on the file system of `fd`? Some say so as well of an attribute that is too long for them.
pub fn is_full(error: &io::Error, fd: impl AsFd) -> bool {
    match error.raw_os_error() {
        Some(libc::EDQUOT) => true,
        Some(libc::ENOSPC) => free_bytes(fd).is_ok_and(|free| free < LITTLE_BYTES),
        _ => false,
    }
}

/// Is who serves the file system not there any more: another machine, or a process on this one?
fn is_out_of_reach(error: &io::Error) -> bool {
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

fn some(written: usize) -> io::Result<usize> {
    if written == 0 {
        Err(io::ErrorKind::WriteZero.into())
    } else {
        Ok(written)
    }
}

/// Copy a run of one file to the same place of another. The system does it (`copy_file_range`), where it can: btrfs and XFS
/// then share the blocks. Else the bytes are read and written.
///
/// # Errors
/// `UnexpectedEof` if the file ends before the run does, or the system's.
pub fn copy(from: &File, to: &File, run: ByteRun) -> io::Result<()> {
    let (mut at, end) = (run.offset, run.offset + run.len);
    while tricks() && at < end {
        let (mut read, mut written) = (at, at);
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

/// Allocate the first `len` bytes of an empty file, which is then `len` long; false if the system would not, which is
/// no harm. Not in memory, where that writes zeros, and not where nothing would be compressed then.
///
/// Writing 64 GiB in pieces spends time extending the file; allocated first, it is contiguous too.
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

/// Is it known only after writing how much room something takes on the file system of `fd`? 126 MB of text took 127 MB of btrfs with
/// `compress=zstd` where that was allocated first, and 4 MB where it was not.
///
/// # Errors
/// The system's.
pub fn compresses(fd: impl AsFd) -> io::Result<bool> {
    Ok(COMPRESSING.contains(&file_system(fd)?))
}

/// As [`preallocate`], wherever it is: nothing else takes that room any more.
///
/// # Errors
/// `ENOSPC`, `EDQUOT` or `EFBIG`: known before the first byte is written, and the file is empty again.
pub fn allocate(fd: impl AsFd, len: u64) -> io::Result<bool> {
    has_room(&fd, len)?;
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

/// Allocate `len` bytes at `offset`, the end of what was allocated before; the file ends behind them then. False, and nothing
/// is changed, where [`preallocate`] would not either.
///
/// # Errors
/// `ENOSPC`, `EDQUOT` or `EFBIG`; the file may have become longer.
pub fn extend(fd: impl AsFd, offset: u64, len: u64) -> io::Result<bool> {
    let kind = file_system(&fd)?;
    if !tricks() || IN_MEMORY.contains(&kind) || COMPRESSING.contains(&kind) {
        return Ok(false);
    }
    has_room(&fd, len)?;
    match retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), offset, len)) {
        Ok(()) => Ok(true),
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(error.into()),
        Err(_) => Ok(false),
    }
}

/// Does the file system of `fd` take direct writes of several threads to one file at once, where that is allocated? Known of ext4
/// and XFS; of others it was not measured.
pub fn takes_direct_writes(fd: impl AsFd) -> bool {
    file_system(fd).is_ok_and(|kind| [0xef53, 0x5846_5342].contains(&kind))
}

/// Is it what a file system says to a direct write that it does not do, or not with this alignment?
pub fn is_refusal_of_direct(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// Make a hole; false where the file system has none, or not there.
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

/// Nothing, or an error if the file system has less room than this.
///
/// Asked first because ext4 finds out only by taking all there is, and every other program on that disk is out of room
/// until it has given it back.
///
/// # Errors
/// `ENOSPC`, or the system's.
pub fn has_room(fd: impl AsFd, len: u64) -> io::Result<()> {
    if len > free_to_us(fd)? {
        Err(Errno::NOSPC.into())
    } else {
        Ok(())
    }
}

/// Have the system start writing a range to the device, and do not wait for it. A refusal is nothing to us.
///
/// Followed one range later by [`drop_behind`] it keeps the page cache small: 158 s instead of 455 s for 400 GiB from
/// four writers (Freund, 2020).
pub fn write_behind(fd: impl AsFd, offset: u64, len: u64) {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: no memory is passed.
    unsafe { libc::sync_file_range(fd, signed(offset), signed(len), libc::SYNC_FILE_RANGE_WRITE) };
}

/// Make a file, or the names in a directory, durable.
///
/// # Errors
/// The system's. After one, nothing is known of what was written before: calling again proves nothing.
pub fn fsync(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fsync(fd)?)
}

/// Set the time of the last change of the content; that of the last access is now.
///
/// # Errors
/// The system's.
pub fn set_times_fd(fd: impl AsFd, mtime: Time) -> io::Result<()> {
    Ok(rustix::fs::futimens(fd, &only(mtime))?)
}

/// The other is now, as what is written was looked at: FUSE 2 sets neither if it is told of one.
pub(super) fn only(mtime: Time) -> Timestamps {
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

/// Set owner and group. Clears setuid and setgid, so before [`chmod_fd`].
///
/// # Errors
/// `EPERM` without privileges, or the system's.
pub fn chown_fd(fd: impl AsFd, uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = owner(uid, gid)?;
    Ok(rustix::fs::fchown(fd, uid, gid)?)
}

/// The largest number means "leave it" to the system, and nobody can own a file by it.
pub(super) fn owner(uid: u32, gid: u32) -> io::Result<(Option<Uid>, Option<Gid>)> {
    if uid == u32::MAX || gid == u32::MAX {
        return Err(Errno::INVAL.into());
    }
    Ok((Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))))
}

/// Set the permission bits, at most `0o7777`.
///
/// # Errors
/// The system's.
pub fn chmod_fd(fd: impl AsFd, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))?)
}

/// Create the symbolic link `name` in `dir` to `target`.
///
/// # Errors
/// `EEXIST`, or the system's.
pub fn symlink_at(target: &[u8], dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    rustix::fs::symlinkat(target, &dir, name).map_err(|error| of_making(error, dir))
}

/// Give the object `old` in `from` another name; a symbolic link is linked itself.
///
/// # Errors
/// `EEXIST`, `EXDEV`, `EMLINK`, or the system's.
pub fn link_at(from: impl AsFd, old: &[u8], dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::linkat(from, old, dir, name, AtFlags::empty())?)
}

/// Create a named pipe or a device; `device` matters only for the latter.
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
        .map_err(|error| of_making(error, dir))
}

/// Remove `name` in `dir`, which is not a directory.
///
/// # Errors
/// `EISDIR`, `ENOENT`, or the system's.
pub fn unlink_at(dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
}

/// Remove the empty directory `name` in `dir`.
///
/// # Errors
/// `ENOTEMPTY`, `ENOTDIR`, `ENOENT`, or the system's.
pub fn remove_dir_at(dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

/// Rename, replacing what has the new name.
///
/// # Errors
/// The system's.
pub fn rename_at(from: impl AsFd, old: &[u8], to: impl AsFd, new: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::renameat(from, old, to, new)?)
}

/// Rename within a directory, unless something has the new name: false then. Where the file system cannot refuse by itself, a
/// hard link does; where it has none of those either, two that rename at the same moment may both succeed.
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

/// Make a file `len` bytes long; what is new is a hole.
///
/// # Errors
/// The system's.
pub fn truncate(fd: impl AsFd, len: u64) -> io::Result<()> {
    Ok(rustix::fs::ftruncate(fd, len)?)
}

/// While this lives, files get exactly the mode they are created with, which saves a `chmod` a file.
///
/// The mask belongs to the process: one at a time, taken before threads start and dropped after they ended.
#[derive(Debug)]
pub struct Umask(Mode);

impl Umask {
    /// Set the mask to nothing.
    #[must_use = "the mask is set back when this is dropped"]
    pub fn clear() -> Self {
        Self(rustix::process::umask(Mode::empty()))
    }

    /// The bits that new files did not get before.
    pub fn before(&self) -> u32 {
        self.0.as_raw_mode()
    }
}

impl Drop for Umask {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

/// Take the lock of a file or directory without waiting; false if another process holds it. Ends with the descriptor.
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

/// Bytes that anybody could still write to the file system of `fd`; as many as there can be where it does not say.
///
/// # Errors
/// The system's.
pub fn free_bytes(fd: impl AsFd) -> io::Result<u64> {
    free(fd, |fs| fs.f_bavail)
}

/// The same for this process, with what file systems as ext4 keep for root if it is root's.
///
/// # Errors
/// The system's.
pub fn free_to_us(fd: impl AsFd) -> io::Result<u64> {
    if crate::platform::user().0 == 0 {
        free(fd, |fs| fs.f_bfree.max(fs.f_bavail))
    } else {
        free_bytes(fd)
    }
}

fn free(fd: impl AsFd, blocks: impl Fn(&StatVfs) -> u64) -> io::Result<u64> {
    let fs = rustix::fs::fstatvfs(fd)?;
    // Some network file systems say 0 for "unknown".
    Ok(if fs.f_blocks == 0 {
        u64::MAX
    } else {
        blocks(&fs).saturating_mul(fs.f_frsize)
    })
}

/// Was standard output closed when the program began? Then it is `/dev/null`, opened for both as no shell opens it.
pub fn is_stdout_closed() -> bool {
    const NULL: Device = Device { major: 1, minor: 3 };
    let out = std::io::stdout();
    let is_null =
        dir::stat_fd(&out).is_ok_and(|stat| stat.kind == FileKind::CharDevice && stat.rdev == NULL);
    is_null && rustix::fs::fcntl_getfl(&out).is_ok_and(|flags| flags.contains(OFlags::RDWR))
}

/// May this process make names in the directory `path`?
///
/// # Errors
/// `EACCES`, `EROFS` or the system's if not.
pub fn may_write(path: &Path) -> io::Result<()> {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    match rustix::fs::accessat(CWD, path, wanted, AtFlags::EACCESS) {
        // Of the directory, or of the call, which older container runtimes forbid: then the older one knows.
        Err(Errno::PERM) => Ok(rustix::fs::accessat(CWD, path, wanted, AtFlags::empty())?),
        other => Ok(other?),
    }
}

/// A file for reading and writing in `dir` that has no name and is gone when it is closed.
///
/// # Errors
/// The system's.
pub fn anonymous_file(dir: &Path) -> io::Result<File> {
    match nameless(CWD, dir, 0o600) {
        Ok(file) => Ok(file.into()),
        // Where the file system has none: overlayfs of old kernels, NFS, FUSE.
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
            let file = file.map_err(|error| of_making_path(error, &path))?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(error) => Err(error),
    }
}
