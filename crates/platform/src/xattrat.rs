//! The same operations as through `/proc`, without `/proc`: attributes and mode of objects that
//! cannot be opened.
//!
//! Neither rustix nor libc has these calls, which all exist since Linux 6.13. Their numbers are the
//! same on every architecture but MIPS, where these numbers are unused.
#![allow(unsafe_code)]

use super::read::last_error;
use rustix::{
    fs::CWD,
    io::{self, Errno},
    path::Arg,
};
use std::{
    os::fd::{AsRawFd, BorrowedFd},
    sync::OnceLock,
};

const FCHMODAT2: libc::c_long = 452; // since Linux 6.6
const SETXATTRAT: libc::c_long = 463;
const GETXATTRAT: libc::c_long = 464;
const LISTXATTRAT: libc::c_long = 465;
const REMOVEXATTRAT: libc::c_long = 466;

/// `struct xattr_args` of `linux/xattr.h`: address and size of a value.
#[repr(C, align(8))]
struct Value {
    address: u64,
    size: u32,
    flags: u32,
}

/// Returns whether these calls work. Checked once per process.
pub(super) fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| !matches!(list(CWD, b"/", &mut []), Err(Errno::NOSYS | Errno::PERM)))
}

/// Lists the attributes of `name` in `dir`, like `llistxattr`.
pub(super) fn list(dir: BorrowedFd<'_>, name: &[u8], room: &mut [u8]) -> io::Result<usize> {
    let name = name.into_c_str()?;
    let dir = dir.as_raw_fd();
    let name = name.as_ptr();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `name` ends with NUL, and at most `room` is written.
    done(unsafe { libc::syscall(LISTXATTRAT, dir, name, flags, room.as_mut_ptr(), room.len()) })
}

/// Reads an attribute, like `lgetxattr`.
pub(super) fn get(
    dir: BorrowedFd<'_>,
    name: &[u8],
    attribute: &[u8],
    room: &mut [u8],
) -> io::Result<usize> {
    let mut value = Value {
        address: room.as_mut_ptr() as u64,
        size: room.len() as u32,
        flags: 0,
    };
    let name = name.into_c_str()?;
    let attribute = attribute.into_c_str()?;
    let dir = dir.as_raw_fd();
    let name = name.as_ptr();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: both names end with NUL, and at most `room` is written, which `value` describes.
    done(unsafe {
        libc::syscall(
            GETXATTRAT,
            dir,
            name,
            flags,
            attribute.as_ptr(),
            &raw mut value,
            size_of::<Value>(),
        )
    })
}

/// Sets an attribute, like `lsetxattr`.
pub(super) fn set(
    dir: BorrowedFd<'_>,
    name: &[u8],
    attribute: &[u8],
    value: &[u8],
) -> io::Result<()> {
    let value = Value {
        address: value.as_ptr() as u64,
        size: value.len() as u32,
        flags: 0,
    };
    let name = name.into_c_str()?;
    let attribute = attribute.into_c_str()?;
    let dir = dir.as_raw_fd();
    let name = name.as_ptr();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: both names end with NUL, and only the bytes that `value` describes are read.
    let set = unsafe {
        libc::syscall(
            SETXATTRAT,
            dir,
            name,
            flags,
            attribute.as_ptr(),
            &raw const value,
            size_of::<Value>(),
        )
    };
    done(set).map(drop)
}

/// Removes an attribute, like `lremovexattr`.
pub(super) fn remove(dir: BorrowedFd<'_>, name: &[u8], attribute: &[u8]) -> io::Result<()> {
    let name = name.into_c_str()?;
    let attribute = attribute.into_c_str()?;
    let dir = dir.as_raw_fd();
    let name = name.as_ptr();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: both names end with NUL.
    done(unsafe { libc::syscall(REMOVEXATTRAT, dir, name, flags, attribute.as_ptr()) }).map(drop)
}

/// Sets the mode of the object of an `O_PATH` descriptor, like `chmod`.
pub(super) fn chmod(object: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    // SAFETY: the empty name ends with NUL.
    done(unsafe {
        libc::syscall(
            FCHMODAT2,
            object.as_raw_fd(),
            c"".as_ptr(),
            mode,
            libc::AT_EMPTY_PATH,
        )
    })
    .map(drop)
}

fn done(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| last_error())
}
