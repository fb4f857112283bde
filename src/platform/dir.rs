//! Directories, and opening what is in them, without ever leaving the root.
//!
//! A path below a root is opened in one call that refuses symbolic links and `..` (`openat2`, Linux 5.6), or component
//! by component where that call is missing: either way nothing that somebody moves or links while we walk can lead
//! outside. Paths may have any length and any bytes but NUL. Nothing here reads content or changes anything.

use super::{
    Tricks, debug,
    durable::{NATIVE, OVERLAY, file_system},
};
use crate::format::entry::{Device, Time};
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

/// Bytes of a directory read by one call: at 64 KiB a directory of 1,000 names costs two calls, one of them the last.
const DIRECTORY_BUFFER: usize = 64 << 10;

/// A longer path is opened in pieces: `PATH_MAX` is 4,096 with the NUL.
const PIECE: usize = 4095;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A socket.
    Socket,
    /// The file system does not say in its directories, ask [`stat`]; or a kind this program does not know.
    Unknown,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirName {
    /// Any bytes but `/` and NUL; never `.` or `..`.
    pub bytes: Vec<u8>,
    /// As the directory has it: often right, sometimes [`FileKind::Unknown`].
    pub kind: FileKind,
    /// As the directory has it: for a mount point that of the directory below the mount.
    pub inode: u64,
}

/// What the system knows of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, setuid, setgid and sticky: at most `0o7777`.
    pub mode: u32,
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
    /// Logical bytes.
    pub size: u64,
    /// Units of 512 bytes that are allocated.
    pub blocks512: u64,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// When the inode was made, where the file system tells.
    pub born: Option<Time>,
    /// Inode number.
    pub inode: u64,
    /// The device it is on.
    pub dev: u64,
    /// The device it is, if it is one.
    pub rdev: Device,
    /// How many names it has.
    pub nlink: u32,
    /// Is something mounted here? Before Linux 5.8 only the device can tell.
    pub is_mount: bool,
    /// Of a directory: can names only be added to it, and none be removed or replaced (`chattr +a`)?
    pub is_append_only: bool,
}

impl Stat {
    /// Has it fewer blocks than bytes? Then [`crate::platform::read::data_map`] is worth its calls; else there is no hole.
    pub fn looks_sparse(&self) -> bool {
        self.kind == FileKind::File && self.blocks512.saturating_mul(512) < self.size
    }

    /// Is it another file system than that of the directory it stands in, which is on device `around`? Or the same one,
    /// mounted here once more.
    ///
    /// Only directories tell by their device: overlay file systems give files those of the layers they come from.
    pub fn is_apart(&self, around: u64) -> bool {
        self.is_mount || (self.kind == FileKind::Directory && self.dev != around)
    }
}

/// Open the directory that a source or a target starts at; symbolic links in `path` are followed, for a user wrote it.
///
/// A directory that may be entered but not listed is opened for passing through only.
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

/// Open the directory `rel` below `root` for reading; the empty path is `root` itself. One call, unless `rel` is long.
///
/// # Errors
/// `ELOOP` or `ENOTDIR` if any component is a symbolic link, `EXDEV` for a path that leaves the root, or the system's.
pub fn open_dir(root: impl AsFd, rel: &[u8], tricks: Tricks) -> io::Result<OwnedFd> {
    open_noatime(
        root.as_fd(),
        rel,
        OFlags::RDONLY | OFlags::DIRECTORY,
        tricks,
    )
}

/// The directory in which `fsck` puts what it finds, at the root of ext2 to ext4 and some others.
pub const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Is this open directory the root of its file system, or of something that is mounted there?
pub fn is_mount_root(dir: impl AsFd) -> bool {
    let Ok(here) = stat_fd(&dir) else {
        return false;
    };
    // Before Linux 5.8 the directory above tells: it is on another device, or it is the same one as of `/`.
    here.is_mount
        || stat(dir, b"..").is_ok_and(|above| above.dev != here.dev || above.inode == here.inode)
}

/// Can names only be added to the directory `path`, and none be removed or replaced? Not if that is not known.
pub fn is_append_only(path: &Path) -> bool {
    open_root(path)
        .and_then(stat_fd)
        .is_ok_and(|stat| stat.is_append_only)
}

/// Does `name` in `dir` belong to the file system, and to no tree?
pub fn is_lost_and_found(dir: impl AsFd, name: &[u8]) -> bool {
    name == LOST_AND_FOUND && is_mount_root(dir)
}

/// Open the directory that `dir` is in, wherever that is by now.
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

/// Is that what [`open_dir`] says where there is no directory?
pub fn is_no_directory(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || crate::platform::write::is_in_the_way(error)
}

/// Open the file `rel` below `root` for reading: exactly one call in the normal case.
///
/// The time of last access is left alone where we may (our own files, or with privileges; else a second call is made).
/// Never waits for the other end of a named pipe: the pipe is opened, and it is the caller who looks at [`stat_fd`].
///
/// # Errors
/// As [`open_dir`]; `ENXIO` for a socket.
pub fn open_read(root: impl AsFd, rel: &[u8], tricks: Tricks) -> io::Result<OwnedFd> {
    match open_at_once(root.as_fd(), rel, tricks) {
        Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => {
            wait_for_lease(root, rel, tricks)
        }
        other => other,
    }
}

/// The same without a wait for anybody: [`io::ErrorKind::WouldBlock`] where somebody holds a lease.
///
/// # Errors
/// As [`open_read`].
pub fn open_at_once(root: impl AsFd, rel: &[u8], tricks: Tricks) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    open_noatime(root.as_fd(), rel, flags, tricks)
}

/// Somebody holds a lease (a Samba oplock); the kernel has asked for it back. Open again and wait for that, through the
/// descriptor of what is surely a regular file.
fn wait_for_lease(root: impl AsFd, rel: &[u8], tricks: Tricks) -> io::Result<OwnedFd> {
    let file = beneath(root.as_fd(), rel, OFlags::PATH, tricks)?;
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

/// The path by which the system reaches an open descriptor again.
///
/// # Errors
/// If `/proc` is not mounted, where the system would say that the object is not there. Asked once per process.
pub(super) fn through_proc(fd: impl AsFd) -> io::Result<String> {
    use std::os::fd::AsRawFd;
    static THERE: OnceLock<bool> = OnceLock::new();
    if !*THERE.get_or_init(|| access("/proc/self/fd", Access::EXISTS).is_ok()) {
        let why = "it is reached through /proc, which is not mounted (`mount -t proc proc /proc`)";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// Does the file system that `fd` is on give a file one number as long as it is there? What is not known, as FUSE, may not; FAT makes
/// them up whenever it reads a directory.
pub fn keeps_inodes(fd: impl AsFd) -> bool {
    file_system(fd).is_ok_and(|known| NATIVE.contains(&known) || known == OVERLAY)
}

/// Where an open directory is, as the system says it now; empty if it does not.
pub fn path_of(dir: impl AsFd) -> PathBuf {
    through_proc(dir)
        .and_then(std::fs::read_link)
        .unwrap_or_default()
}

/// As [`Path::canonicalize`]. For a path with `..` the C library of today asks by a call that older container runtimes forbid
/// (`faccessat2`); then the system is asked where what it opens is.
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

fn open_noatime(
    root: BorrowedFd<'_>,
    rel: &[u8],
    flags: OFlags,
    tricks: Tricks,
) -> io::Result<OwnedFd> {
    match beneath(root, rel, flags | OFlags::NOATIME, tricks) {
        // Only the owner of a file may open it like this (open(2)).
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            beneath(root, rel, flags, tricks)
        }
        other => other,
    }
}

/// Open without following a symbolic link anywhere, the last component included.
fn beneath(root: BorrowedFd<'_>, rel: &[u8], flags: OFlags, tricks: Tricks) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let whole = tricks == Tricks::Auto && openat2_works();
    let (piece, step): (usize, Step) = if whole {
        (PIECE, open_piece)
    } else {
        (0, open_component)
    };
    descend(root, rel, flags, piece, step)
}

/// How one piece of a path is opened.
type Step = fn(BorrowedFd<'_>, &[u8], OFlags) -> rustix::io::Result<OwnedFd>;

/// Open `rel` in pieces of at most `piece` bytes, or one component if that is longer, holding two directories at most.
fn descend(
    root: BorrowedFd<'_>,
    rel: &[u8],
    flags: OFlags,
    piece: usize,
    step: Step,
) -> io::Result<OwnedFd> {
    let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (mut held, mut rest): (Option<OwnedFd>, &[u8]) = (None, rel);
    loop {
        let at = held.as_ref().map_or(root, AsFd::as_fd);
        let (first, tail) = cut(rest, piece);
        match tail {
            None => {
                return Ok(step(
                    at,
                    if first.is_empty() { b"." } else { first },
                    flags,
                )?);
            }
            Some(tail) => (held, rest) = (Some(step(at, first, through)?), tail),
        }
    }
}

/// Split a path at the last `/` that leaves at most `piece` bytes before it, else at the first; `None` if all fits.
fn cut(path: &[u8], piece: usize) -> (&[u8], Option<&[u8]>) {
    if path.len() <= piece {
        return (path, None);
    }
    let is_slash = |c: &u8| *c == b'/';
    let near = path[..=piece]
        .iter()
        .rposition(is_slash)
        .or_else(|| path.iter().position(is_slash));
    near.map_or((path, None), |at| (&path[..at], Some(&path[at + 1..])))
}

fn open_piece(at: BorrowedFd<'_>, piece: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(at, piece, flags, Mode::empty(), resolve)
}

fn open_component(at: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    if name.is_empty() || name == b".." || name.contains(&b'/') {
        return Err(Errno::XDEV);
    }
    openat(at, name, flags, Mode::empty())
}

/// Is `openat2` there? Older kernels have not got it (`ENOSYS`), older container runtimes forbid it (`EPERM`).
///
/// Asked once per process, so that a later `EPERM` can only be about the file.
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

/// All names in `dir`, in the order the file system has them, which is the fastest to open them in on flash.
///
/// `buffer` is room for 64 KiB that the caller keeps between calls; what it holds before is lost, afterwards it is
/// empty. A name that is created or removed meanwhile may or may not be listed.
///
/// # Errors
/// The system's; `EBADF` if `dir` was opened for passing through only.
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

/// What is asked of the system.
const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// What the system knows of `name` in `dir`, one call; a symbolic link is not followed and nothing is mounted for it.
///
/// # Errors
/// The system's.
pub fn stat(dir: impl AsFd, name: &[u8]) -> io::Result<Stat> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    look(dir.as_fd(), name, flags)
}

/// What the system knows of an open descriptor, one call.
///
/// # Errors
/// The system's.
pub fn stat_fd(fd: impl AsFd) -> io::Result<Stat> {
    look(fd.as_fd(), b"", AtFlags::EMPTY_PATH)
}

fn look(dir: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> io::Result<Stat> {
    match statx(dir, name, flags, WANTED) {
        // Kernels before 4.11 have not got it, and older container runtimes forbid it. If it is the object that is forbidden,
        // the other call says so too.
        Err(Errno::NOSYS | Errno::PERM) => Ok(plain(&statat(dir, name, flags)?)),
        other => Ok(compact(&other?)),
    }
}

/// Where the symbolic link `name` in `dir` points, any length.
///
/// # Errors
/// `EINVAL` if it is not a symbolic link, or the system's.
pub fn read_link(dir: impl AsFd, name: &[u8]) -> io::Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(dir, name, Vec::with_capacity(256))?.into_bytes())
}

fn compact(statx: &Statx) -> Stat {
    let time = |time: rustix::fs::StatxTimestamp| Time {
        seconds: time.tv_sec,
        nanos: time.tv_nsec,
    };
    Stat {
        kind: kind_of(FileType::from_raw_mode(statx.stx_mode.into())),
        mode: u32::from(statx.stx_mode) & 0o7777,
        uid: statx.stx_uid,
        gid: statx.stx_gid,
        size: statx.stx_size,
        blocks512: statx.stx_blocks,
        mtime: time(statx.stx_mtime),
        ctime: time(statx.stx_ctime),
        born: StatxFlags::from_bits_retain(statx.stx_mask)
            .contains(StatxFlags::BTIME)
            .then(|| time(statx.stx_btime)),
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

/// What is known without `statx`.
fn plain(stat: &rustix::fs::Stat) -> Stat {
    let (major, minor) = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
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
        rdev: Device { major, minor },
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
