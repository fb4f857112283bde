//! Directories, and opening files below a root without ever leaving the root.
//!
//! A path below a root is opened in one call that refuses symbolic links and `..` (`openat2`, Linux
//! 5.6), or component by component if that call is missing. Either way, renames and links that
//! others create during a walk cannot lead outside. Paths may have any length and any bytes but
//! NUL. This file neither reads content nor changes anything.

use super::{
    debug,
    file_system::{NATIVE, OVERLAY, file_system},
    tricks,
};
use fullbore_format::entry::{Device, Time};
use rustix::{
    fs::{
        Access, AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, Statx, StatxAttributes,
        StatxFlags, access, openat, openat2, statat, statx,
    },
    io::Errno,
};
use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Bytes of a directory that one call reads. At 64 KiB a directory of 1,000 names costs two calls,
/// including the last, empty one.
const DIRECTORY_BUFFER: usize = 64 << 10;

/// Longest path that is opened in one call: `PATH_MAX` is 4,096 with the NUL.
const PIECE: usize = 4095;

/// Kind of a file system object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    CharDevice,
    BlockDevice,
    Socket,
    /// The file system does not store kinds in its directories (ask [`stat`]), or fullbore does not
    /// know the kind.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirName {
    /// Any bytes but `/` and NUL; never `.` or `..`.
    pub bytes: Vec<u8>,
    /// Kind in the directory: often right, sometimes [`FileKind::Unknown`].
    pub kind: FileKind,
    /// Inode number in the directory. For a mount point it is that of the directory below the
    /// mount.
    pub inode: u64,
}

/// Metadata of an object, from `statx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub kind: FileKind,
    /// Permission bits, setuid, setgid and sticky: at most `0o7777`.
    pub mode: u32,
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
    /// Logical bytes.
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks512: u64,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation time of the inode, if the file system has it.
    pub born: Option<Time>,
    pub inode: u64,
    /// Device of the file system that holds the object.
    pub dev: u64,
    /// Number of the device that the object represents, if it is a device.
    pub rdev: Device,
    /// Number of names (hard links).
    pub nlink: u32,
    /// Whether something is mounted here. Always false before Linux 5.8; compare devices there.
    pub is_mount: bool,
    /// For a directory: whether names can be added but not removed or replaced (`chattr +a`).
    pub is_append_only: bool,
}

impl Stat {
    /// Returns whether the file has fewer blocks than bytes. Otherwise it has no hole, and
    /// [`crate::read::data_map`] is not worth its calls.
    pub fn looks_sparse(&self) -> bool {
        self.kind == FileKind::File && self.blocks512.saturating_mul(512) < self.size
    }

    /// Returns whether the object is on another file system than its directory, which is on device
    /// `around`, or is a mount of the same file system.
    ///
    /// Only directories are compared by device: overlay file systems give files the devices of
    /// their layers.
    pub fn is_mount_boundary(&self, around: u64) -> bool {
        self.is_mount || (self.kind == FileKind::Directory && self.dev != around)
    }
}

/// Opens the directory where a source or a target starts. Follows symbolic links in `path`, because
/// the user wrote it.
///
/// A directory that may be entered but not listed is opened for path lookup only (`O_PATH`).
///
/// # Errors
/// The system's; `ENOTDIR` if it is not a directory.
pub fn open_root(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(CWD, path, flags | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => Ok(openat(CWD, path, flags | OFlags::PATH, Mode::empty())?),
        other => Ok(other?),
    }
}

/// Opens the directory `rel` below `root` for reading; the empty path is `root` itself. Takes one
/// call, unless `rel` is long.
///
/// # Errors
/// `ELOOP` or `ENOTDIR` if any component is a symbolic link, `EXDEV` for a path that leaves the root, or the system's.
pub fn open_dir(root: impl AsFd, rel: &[u8]) -> io::Result<OwnedFd> {
    open_noatime(root.as_fd(), rel, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// The directory in which `fsck` puts recovered files, at the root of ext2 to ext4 and some others.
pub const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Returns whether this open directory is the root of a file system or of a mount.
pub fn is_mount_root(dir: impl AsFd) -> bool {
    let Ok(mounted) = stat_fd(&dir) else {
        return false;
    };
    // Before Linux 5.8, compare with the parent: it is on another device, or is the same directory
    // for `/`.
    mounted.is_mount
        || stat(dir, b"..")
            .is_ok_and(|above| above.dev != mounted.dev || above.inode == mounted.inode)
}

/// Returns whether names can be added to the directory `path` but not removed or replaced. False if
/// unknown.
pub fn is_append_only(path: &Path) -> bool {
    open_root(path)
        .and_then(stat_fd)
        .is_ok_and(|stat| stat.is_append_only)
}

/// Returns whether `name` in `dir` is the file system's own `lost+found`, and not part of a tree.
pub fn is_lost_and_found(dir: impl AsFd, name: &[u8]) -> bool {
    name == LOST_AND_FOUND && is_mount_root(dir)
}

/// Opens the current parent directory of `dir`.
///
/// # Errors
/// The system's.
pub fn open_above(dir: impl AsFd) -> io::Result<OwnedFd> {
    Ok(openat(
        dir,
        c"..",
        OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY,
        Mode::empty(),
    )?)
}

/// Returns whether a path is blocked by an object that is not a directory: a file, or a link that
/// is not followed.
pub fn is_in_the_way(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP))
}

/// Returns whether [`open_dir`] failed because there is no directory.
pub fn is_missing_directory(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || is_in_the_way(error)
}

/// Opens the file `rel` below `root` for reading: exactly one call in the normal case.
///
/// Keeps the time of last access where permitted (own files, or with privileges; otherwise a second
/// call is made). Never waits for the other end of a named pipe: the pipe is opened, and the caller
/// must check the kind with [`stat_fd`].
///
/// # Errors
/// As [`open_dir`]; `ENXIO` for a socket.
pub fn open_read(root: impl AsFd, rel: &[u8]) -> io::Result<OwnedFd> {
    match open_at_once(root.as_fd(), rel) {
        Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => {
            wait_for_lease(root, rel)
        }
        other => other,
    }
}

/// As [`open_read`], but never waits for another process.
///
/// # Errors
/// As [`open_read`]; [`io::ErrorKind::WouldBlock`] if another process holds a lease on the file.
pub fn open_at_once(root: impl AsFd, rel: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    open_noatime(root.as_fd(), rel, flags)
}

/// Flags with which a file is opened as [`open_at_once`] first tries it.
pub(super) fn at_once_flags() -> (OFlags, ResolveFlags) {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOATIME;
    (flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, BENEATH)
}

/// Returns whether one call opens a path beneath a directory.
pub(super) fn opens_beneath() -> bool {
    tricks() && openat2_works()
}

/// Opens a file on which another process holds a lease (a Samba oplock) that the kernel has asked
/// for back. Waits for the lease through a descriptor that is certain to be a regular file.
fn wait_for_lease(root: impl AsFd, rel: &[u8]) -> io::Result<OwnedFd> {
    let file = beneath(root.as_fd(), rel, OFlags::PATH)?;
    if stat_fd(&file)?.kind != FileKind::File {
        return Err(Errno::AGAIN.into());
    }
    Ok(openat(
        CWD,
        through_proc(&file)?,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Returns the path under `/proc` by which an open descriptor can be opened again.
///
/// # Errors
/// `Unsupported` if `/proc` is not mounted, where the system's own error would be that the object
/// does not exist. Checked once per process.
pub(super) fn through_proc(fd: impl AsFd) -> io::Result<String> {
    use std::os::fd::AsRawFd;
    static THERE: OnceLock<bool> = OnceLock::new();
    if !*THERE.get_or_init(|| access("/proc/self/fd", Access::EXISTS).is_ok()) {
        let reason =
            "it is reached through /proc, which is not mounted (`mount -t proc proc /proc`)";
        return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    Ok(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// Returns whether the file system of `fd` gives a file the same inode number for its lifetime. FAT
/// invents numbers whenever it reads a directory; unknown file systems, such as FUSE, may do the
/// same.
pub fn has_stable_inodes(fd: impl AsFd) -> bool {
    file_system(fd).is_ok_and(|known| NATIVE.contains(&known) || known == OVERLAY)
}

/// Returns the current path of an open directory; empty if the system does not know it.
pub fn path_of(dir: impl AsFd) -> PathBuf {
    through_proc(dir)
        .and_then(std::fs::read_link)
        .unwrap_or_default()
}

/// Resolves a path like [`Path::canonicalize`].
///
/// For a path with `..`, current C libraries use a call that older container runtimes forbid
/// (`faccessat2`). Then this function opens the path and asks the system for the path of the open
/// descriptor.
///
/// # Errors
/// The system's.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            let found = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            std::fs::read_link(through_proc(&found)?)
        }
        found => found,
    }
}

fn open_noatime(root: BorrowedFd<'_>, rel: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    match beneath(root, rel, flags | OFlags::NOATIME) {
        // Only the owner of a file may open it with O_NOATIME (open(2)).
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            beneath(root, rel, flags)
        }
        other => other,
    }
}

/// Opens a path without following any symbolic link, not even in the last component.
fn beneath(root: BorrowedFd<'_>, rel: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (piece, step): (usize, Step) = if opens_beneath() {
        (PIECE, open_piece)
    } else {
        (0, open_component)
    };
    descend(root, rel, flags, piece, step)
}

/// Opens one piece of a path.
type Step = fn(BorrowedFd<'_>, &[u8], OFlags) -> rustix::io::Result<OwnedFd>;

/// Opens `rel` in pieces of at most `piece` bytes, or in single components if they are longer.
/// Holds at most two directories open.
fn descend(
    root: BorrowedFd<'_>,
    rel: &[u8],
    flags: OFlags,
    piece: usize,
    step: Step,
) -> io::Result<OwnedFd> {
    let step_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut held: Option<OwnedFd> = None;
    let mut rest = rel;
    loop {
        let dir = held.as_ref().map_or(root, AsFd::as_fd);
        let (first, tail) = cut(rest, piece);
        let Some(tail) = tail else {
            let last: &[u8] = if first.is_empty() { b"." } else { first };
            return Ok(step(dir, last, flags)?);
        };
        held = Some(step(dir, first, step_flags)?);
        rest = tail;
    }
}

/// Splits a path at the last `/` with at most `piece` bytes before it, else at the first `/`;
/// returns `None` as second part if the whole path fits.
fn cut(path: &[u8], piece: usize) -> (&[u8], Option<&[u8]>) {
    if path.len() <= piece {
        return (path, None);
    }
    let window = path[..=piece]
        .iter()
        .rposition(is_slash)
        .or_else(|| path.iter().position(is_slash));
    window.map_or((path, None), |slash| {
        (&path[..slash], Some(&path[slash + 1..]))
    })
}

fn is_slash(c: &u8) -> bool {
    *c == b'/'
}

/// No path leaves its directory, not even by a symbolic link.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

fn open_piece(dir: BorrowedFd<'_>, piece: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat2(dir, piece, flags, Mode::empty(), BENEATH)
}

fn open_component(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    if name.is_empty() || name == b".." || name.contains(&b'/') {
        return Err(Errno::XDEV);
    }
    openat(dir, name, flags, Mode::empty())
}

/// Returns whether `openat2` works. Older kernels do not have it (`ENOSYS`), older container
/// runtimes forbid it (`EPERM`).
///
/// Checked once per process, so that a later `EPERM` can only concern the file.
fn openat2_works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let result = openat2(
            CWD,
            c"/",
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::empty(),
        );
        if let Err(error) = &result {
            debug(|| {
                format!("openat2 is refused ({error}), paths are opened component by component")
            });
        }
        result.is_ok()
    })
}

/// Returns all names in `dir`, in the order of the file system, which is the fastest order to open
/// them on flash.
///
/// `buffer` is space for 64 KiB that the caller keeps between calls. Its content is lost, and it is
/// empty afterwards. A name that is created or removed meanwhile may or may not be listed.
///
/// # Errors
/// The system's; `EBADF` if `dir` was opened for path lookup only.
pub fn read_dir(dir: impl AsFd, buffer: &mut Vec<u8>) -> io::Result<Vec<DirName>> {
    buffer.clear();
    buffer.reserve(DIRECTORY_BUFFER);
    let mut names = Vec::new();
    let mut raw = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name != c"." && name != c".." {
            names.push(DirName {
                bytes: name.to_bytes().to_vec(),
                kind: kind_of(entry.file_type()),
                inode: entry.ino(),
            });
        }
    }
    Ok(names)
}

/// The fields that `statx` returns.
const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Returns the metadata of `name` in `dir`, in one call. Does not follow a symbolic link or trigger
/// an automount.
///
/// # Errors
/// The system's.
pub fn stat(dir: impl AsFd, name: &[u8]) -> io::Result<Stat> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    look(dir.as_fd(), name, flags)
}

/// Returns the metadata of an open descriptor, in one call.
///
/// # Errors
/// The system's.
pub fn stat_fd(fd: impl AsFd) -> io::Result<Stat> {
    look(fd.as_fd(), b"", AtFlags::EMPTY_PATH)
}

/// Returns whether an open file still has this name in a directory. Another file may have the name, or none.
pub fn is_named(file: impl AsFd, dir: impl AsFd, name: &str) -> bool {
    let Ok(of_file) = stat_fd(file) else {
        return false;
    };
    stat(dir, name.as_bytes())
        .is_ok_and(|named| (named.dev, named.inode) == (of_file.dev, of_file.inode))
}

fn look(dir: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> io::Result<Stat> {
    match statx(dir, name, flags, WANTED) {
        // Kernels before 4.11 do not have statx, and older container runtimes forbid it. If the
        // object itself is forbidden, the other call fails too.
        Err(Errno::NOSYS | Errno::PERM) => Ok(stat_of_fstatat(&statat(dir, name, flags)?)),
        other => Ok(stat_of_statx(&other?)),
    }
}

/// Returns the target of the symbolic link `name` in `dir`, of any length.
///
/// # Errors
/// `EINVAL` if it is not a symbolic link, or the system's.
pub fn read_link(dir: impl AsFd, name: &[u8]) -> io::Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(dir, name, Vec::with_capacity(256))?.into_bytes())
}

fn stat_of_statx(statx: &Statx) -> Stat {
    Stat {
        kind: kind_of(FileType::from_raw_mode(statx.stx_mode.into())),
        mode: u32::from(statx.stx_mode) & 0o7777,
        uid: statx.stx_uid,
        gid: statx.stx_gid,
        size: statx.stx_size,
        blocks512: statx.stx_blocks,
        mtime: time_of_statx(statx.stx_mtime),
        ctime: time_of_statx(statx.stx_ctime),
        born: StatxFlags::from_bits_retain(statx.stx_mask)
            .contains(StatxFlags::BTIME)
            .then(|| time_of_statx(statx.stx_btime)),
        inode: statx.stx_ino,
        dev: rustix::fs::makedev(statx.stx_dev_major, statx.stx_dev_minor),
        rdev: Device {
            major: statx.stx_rdev_major,
            minor: statx.stx_rdev_minor,
        },
        nlink: statx.stx_nlink,
        is_mount: statx.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        is_append_only: statx.stx_attributes.contains(StatxAttributes::APPEND),
    }
}

fn time_of_statx(time: rustix::fs::StatxTimestamp) -> Time {
    Time {
        seconds: time.tv_sec,
        nanos: time.tv_nsec,
    }
}

/// Converts the result of `fstatat`, for systems without `statx`.
fn stat_of_fstatat(stat: &rustix::fs::Stat) -> Stat {
    Stat {
        kind: kind_of(FileType::from_raw_mode(stat.st_mode)),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: stat.st_size as u64,
        blocks512: stat.st_blocks as u64,
        mtime: Time {
            seconds: stat.st_mtime,
            nanos: stat.st_mtime_nsec as u32,
        },
        ctime: Time {
            seconds: stat.st_ctime,
            nanos: stat.st_ctime_nsec as u32,
        },
        born: None,
        inode: stat.st_ino,
        dev: stat.st_dev,
        rdev: Device {
            major: rustix::fs::major(stat.st_rdev),
            minor: rustix::fs::minor(stat.st_rdev),
        },
        nlink: stat.st_nlink as u32,
        is_mount: false,
        is_append_only: false,
    }
}

fn kind_of(kind: FileType) -> FileKind {
    match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Socket => FileKind::Socket,
        FileType::Unknown => FileKind::Unknown,
    }
}
