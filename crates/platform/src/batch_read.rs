//! Reading many small files into the page cache with one call.
//!
//! The read of a small file that is not in the page cache is one request to the disk, and the
//! reader waits for it. Reads that one call requests reach the block layer together, which merges
//! requests for neighbours on the disk. The call is `madvise(MADV_WILLNEED)` over a range of
//! addresses to which all files are mapped, one behind the other. It waits for no disk, holds no
//! open files and copies nothing.
//!
//! No data is read through the mappings, so a file that shrinks meanwhile does no harm.
#![allow(unsafe_code)]

use rustix::param::page_size;
use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    ptr,
};

/// Files to read together, mapped to one range of addresses.
#[derive(Debug)]
pub struct FileBatch {
    start: *mut libc::c_void,
    room: usize,
    used: usize,
    /// Index in the range of the last page of each file.
    last_pages: Vec<usize>,
}

impl FileBatch {
    /// Returns the bytes of the address range that a file of `len` bytes takes.
    pub fn room_of(len: u64) -> usize {
        (len as usize).next_multiple_of(page_size())
    }

    /// Creates a batch with room for `room` bytes, the sum of [`FileBatch::room_of`] of its files.
    /// Takes addresses, but no memory.
    ///
    /// # Errors
    /// The system's.
    pub fn with_room(room: usize) -> io::Result<Self> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, at an address that the system chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), room, libc::PROT_NONE, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            start,
            room,
            used: 0,
            last_pages: Vec::new(),
        })
    }

    /// Adds the first `len` bytes of a regular file, which may be closed afterwards.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::OutOfMemory`] if there is no room.
    pub fn add(&mut self, file: impl AsFd, len: u64) -> io::Result<()> {
        let bytes = Self::room_of(len);
        if bytes == 0 || bytes > self.room - self.used {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let kind = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: the range lies within the mapping that is ours, and nothing refers to what it
        // replaces there.
        let mapped = unsafe {
            let address = self.start.byte_add(self.used);
            libc::mmap(address, bytes, libc::PROT_NONE, kind, fd, 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.used += bytes;
        self.last_pages.push(self.used / page_size() - 1);
        Ok(())
    }

    /// Returns for each file, in the order of [`Self::add`], whether its last page is in the page
    /// cache. The system says so of every file that this process neither owns nor may write to.
    ///
    /// # Errors
    /// The system's.
    pub fn cached_ends(&self) -> io::Result<Vec<bool>> {
        let mut pages = vec![0; self.used / page_size()];
        // SAFETY: the range is ours, and `pages` has a byte for each page of it.
        let told = unsafe { libc::mincore(self.start, self.used, pages.as_mut_ptr()) };
        if told != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(self
            .last_pages
            .iter()
            .map(|page| pages[*page] & 1 == 1)
            .collect())
    }

    /// Requests all files from the disk. Does not wait until they are read.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self) -> io::Result<()> {
        // SAFETY: the range is ours; the advice changes no memory.
        let advised = unsafe { libc::madvise(self.start, self.used, libc::MADV_WILLNEED) };
        if advised == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl Drop for FileBatch {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it.
        unsafe { libc::munmap(self.start, self.room) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::drop_behind;
    use std::{
        fs::File,
        thread::sleep,
        time::{Duration, Instant},
    };

    fn batch(files: &[(File, u64)]) -> FileBatch {
        let room = files.iter().map(|(_, len)| FileBatch::room_of(*len)).sum();
        let mut batch = FileBatch::with_room(room).unwrap();
        for (file, len) in files {
            batch.add(file, *len).unwrap();
        }
        batch
    }

    #[test]
    fn files_of_a_batch_come_into_the_page_cache() {
        // Not in /tmp, which may be in memory.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let lens = [1, 4096, 4097, 100_000];
        let files = lens.map(|len| {
            let path = dir.path().join(len.to_string());
            std::fs::write(&path, vec![7; len as usize]).unwrap();
            let file = File::open(path).unwrap();
            file.sync_all().unwrap();
            (file, len)
        });
        let batch = batch(&files);
        assert_eq!(batch.cached_ends().unwrap(), [true; 4]);
        for (file, len) in [&files[1], &files[3]] {
            drop_behind(file, 0, *len);
        }
        assert_eq!(batch.cached_ends().unwrap(), [true, false, true, false]);
        batch.read().unwrap();
        let begun = Instant::now();
        while batch.cached_ends().unwrap().contains(&false) {
            assert!(begun.elapsed() < Duration::from_secs(60), "never read");
            sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_batch_takes_no_more_than_it_has_room_for_and_a_file_that_shrank_does_no_harm() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(9000).unwrap();
        let mut batch = FileBatch::with_room(FileBatch::room_of(9000)).unwrap();
        batch.add(&file, 9000).unwrap();
        assert!(batch.add(&file, 1).is_err() && batch.add(&file, 0).is_err());
        file.set_len(0).unwrap();
        batch.read().unwrap();
        assert_eq!(batch.cached_ends().unwrap(), [false]);
    }
}
