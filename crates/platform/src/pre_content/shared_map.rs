//! Memory that several processes share: a mapped file, which outlives each of them.

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap},
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64},
};

/// A file that is mapped for reading and writing by several processes. Every access is atomic.
#[derive(Debug)]
pub struct SharedMap {
    file: File,
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory is only reached through atomics.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps the first `len` bytes of a file, and makes the file as long.
    ///
    /// The memory must not be reached after another process made the file shorter: its owner never does.
    ///
    /// # Errors
    /// The system's.
    pub fn new(file: File, len: usize) -> io::Result<Self> {
        ftruncate(&file, len as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place.
        let start = unsafe {
            let any = ptr::null_mut();
            mmap(any, len, protection, MapFlags::SHARED, &file, 0)?
        };
        Ok(Self {
            file,
            start: start.cast(),
            len,
        })
    }

    /// Maps memory without a name in a file system. `name` is shown in `/proc/PID/fd`.
    ///
    /// # Errors
    /// The system's.
    pub fn in_memory(name: &str, len: usize) -> io::Result<Self> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC)?;
        Self::new(file.into(), len)
    }

    /// Maps a descriptor of such memory.
    ///
    /// # Errors
    /// The system's, or `EINVAL` if it is shorter than `len`.
    pub fn of_fd(fd: OwnedFd, len: usize) -> io::Result<Self> {
        let file = File::from(fd);
        if file.metadata()?.len() < len as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Self::new(file, len)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns one byte.
    ///
    /// # Panics
    /// Beyond the end.
    pub fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.len);
        // SAFETY: the byte is in the mapping, and bytes are always aligned.
        unsafe { AtomicU8::from_ptr(self.start.add(offset)) }
    }

    /// Returns a number of 4 bytes.
    ///
    /// # Panics
    /// Beyond the end, or if `offset` is no multiple of 4.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= self.len && offset.is_multiple_of(4));
        // SAFETY: in the mapping, which starts at a page, and aligned.
        unsafe { AtomicU32::from_ptr(self.start.add(offset).cast()) }
    }

    /// Returns a number of 8 bytes.
    ///
    /// # Panics
    /// Beyond the end, or if `offset` is no multiple of 8.
    pub fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: in the mapping, which starts at a page, and aligned.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) }
    }

    /// Lets the kernel fill `len` bytes, which one process at a time uses, and copies them.
    ///
    /// # Errors
    /// That of `fill`.
    ///
    /// # Panics
    /// Beyond the end.
    pub fn fill(
        &self,
        offset: usize,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Vec<u8>> {
        assert!(offset + len <= self.len);
        // SAFETY: in the mapping. Only the process that answers events uses this range, from one thread.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), len) };
        bytes.fill(0);
        let filled = fill(bytes)?;
        Ok(bytes[..filled.min(len)].to_vec())
    }

    /// Copies bytes.
    ///
    /// # Panics
    /// Beyond the end.
    pub fn copy(&self, offset: usize, len: usize) -> Vec<u8> {
        let byte = |place| self.byte(place).load(std::sync::atomic::Ordering::Acquire);
        (offset..offset + len).map(byte).collect()
    }

    /// Makes everything durable that was stored so far.
    ///
    /// # Errors
    /// The system's.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is the mapping.
        unsafe { msync(self.start.cast(), self.len, MsyncFlags::SYNC)? };
        rustix::fs::fdatasync(&self.file)?;
        Ok(())
    }
}

impl AsFd for SharedMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and no reference to it outlives `self`.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
