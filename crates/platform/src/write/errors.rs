//! Errors of writing: which of them concern one object, and which end the run.

use super::free_bytes;
use crate::dir::is_in_the_way;
use std::{io, os::fd::AsFd};

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

/// Returns whether a file system refused a direct write, or its alignment.
pub fn is_refusal_of_direct(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}
