//! Names of files that stay right when a file is renamed, and wrong when its inode is used again.

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

/// Bytes of a handle at most: `MAX_HANDLE_SZ`.
const MAX_BYTES: usize = 128;

/// A handle of a file: the type of the handle, then its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileHandle {
    /// Type, by the file system.
    pub kind: i32,
    /// Bytes: on ext4 the inode and its generation.
    pub bytes: Vec<u8>,
}

/// `struct file_handle` with room for the largest.
#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    data: [u8; MAX_BYTES],
}

impl FileHandle {
    /// Returns the handle of an open file.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on a file system without handles, or the system's.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        let mut raw = RawHandle {
            bytes: MAX_BYTES as u32,
            kind: 0,
            data: [0; MAX_BYTES],
        };
        let mut mount = 0;
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: `raw` has the room that it names, and the empty path ends in NUL.
        let done = unsafe {
            let handle = (&raw mut raw).cast();
            libc::name_to_handle_at(
                fd,
                c"".as_ptr(),
                handle,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        let bytes = raw.data.get(..raw.bytes as usize).unwrap_or_default();
        Ok(Self {
            kind: raw.kind,
            bytes: bytes.to_vec(),
        })
    }

    /// Opens the file for reading and writing. `beside` is any open file of its file system.
    ///
    /// # Errors
    /// `ESTALE` if the file is gone; the system's.
    pub fn open(&self, beside: impl AsFd) -> io::Result<OwnedFd> {
        let mut raw = RawHandle {
            bytes: self.bytes.len() as u32,
            kind: self.kind,
            data: [0; MAX_BYTES],
        };
        let room = raw.data.get_mut(..self.bytes.len());
        room.ok_or(io::ErrorKind::InvalidInput)?
            .copy_from_slice(&self.bytes);
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOATIME;
        // SAFETY: `raw` has as many bytes as it names.
        let fd = unsafe {
            libc::open_by_handle_at(beside.as_fd().as_raw_fd(), (&raw mut raw).cast(), flags)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

const _: () = assert!(mem::offset_of!(RawHandle, data) == 8);
