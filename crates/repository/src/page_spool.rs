//! The pages of a backup under way, until they are stored as its manifest.
//!
//! The manifest is one object, stored at the end of the backup. Until then its pages are in memory
//! up to a limit, and beyond the limit in a temporary file without a name: a backup of a million
//! entries has 34 MB of pages.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::write;
use fullbore_storage::Upload;
use std::{fs::File, io, os::unix::fs::FileExt};

/// Most bytes of pages in memory, and bytes that are copied at once.
const MEMORY_BYTES: usize = 1 << 20;

/// Pages in the order in which they were added.
#[derive(Debug, Default)]
pub struct PageSpool {
    /// The bytes that follow those in the file.
    memory: Vec<u8>,
    file: Option<File>,
    file_bytes: u64,
}

impl PageSpool {
    /// Adds a page. Returns the number of bytes before it.
    ///
    /// # Errors
    /// The system's, about the temporary file.
    pub fn add(&mut self, page: &[u8]) -> Result<u64> {
        let offset = self.bytes();
        if self.memory.len() + page.len() > MEMORY_BYTES {
            self.move_to_file(page).map_err(|error| {
                let hint = "TMPDIR names another directory for temporary files";
                Error::io("could not write pages to a temporary file", error).hint(hint)
            })?;
        } else {
            self.memory.extend_from_slice(page);
        }
        Ok(offset)
    }

    /// Returns `bytes` of the pages from `offset` on, all of one page.
    ///
    /// # Errors
    /// The system's, about the temporary file; [`ErrorKind::Bug`] for bytes that were not added.
    pub fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut page = vec![0; bytes];
        // Pages are moved to the file as a whole.
        if let Some(start) = offset.checked_sub(self.file_bytes) {
            let kept = self
                .memory
                .get(start as usize..)
                .and_then(|rest| rest.get(..bytes));
            let missing = || Error::new(ErrorKind::Bug, "a page was asked for that was not added");
            page.copy_from_slice(kept.ok_or_else(missing)?);
        } else if let Some(file) = &self.file {
            file.read_exact_at(&mut page, offset)
                .map_err(|error| Error::io("could not read pages in a temporary file", error))?;
        }
        Ok(page)
    }

    fn move_to_file(&mut self, page: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(write::anonymous_file(&std::env::temp_dir())?),
        };
        for bytes in [&self.memory[..], page] {
            write::pwrite_all(&*file, bytes, self.file_bytes)?;
            self.file_bytes += bytes.len() as u64;
        }
        self.memory.clear();
        Ok(())
    }

    /// Returns the number of bytes that were added.
    pub(super) fn bytes(&self) -> u64 {
        self.file_bytes + self.memory.len() as u64
    }

    /// Returns whether nothing was added.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Appends all pages to an upload.
    ///
    /// # Errors
    /// The system's, about the temporary file; errors of the storage.
    pub(super) fn copy_to(&self, upload: &mut dyn Upload) -> Result<()> {
        self.copy_with(|bytes| upload.append(bytes))
    }

    /// Gives all pages to `take`, in order.
    ///
    /// # Errors
    /// The system's, about the temporary file; those of `take`.
    pub fn copy_with(&self, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut buffer = Vec::new();
        let mut offset = 0;
        while let Some(file) = self.file.as_ref().filter(|_| offset < self.file_bytes) {
            buffer.resize(MEMORY_BYTES.min((self.file_bytes - offset) as usize), 0);
            file.read_exact_at(&mut buffer, offset)
                .map_err(|error| Error::io("could not read pages in a temporary file", error))?;
            take(&buffer)?;
            offset += buffer.len() as u64;
        }
        take(&self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_storage::{MemoryObjects, Objects};

    #[test]
    fn pages_are_stored_in_order_from_memory_and_from_the_file() {
        for pages in [0, 1, 3, 40, 200] {
            let objects = MemoryObjects::new();
            let mut spool = PageSpool::default();
            let mut expected = Vec::new();
            for number in 0..pages {
                let page = vec![number as u8; 17_000 + number * 511];
                assert_eq!(spool.add(&page).unwrap(), expected.len() as u64);
                assert!(spool.memory.len() <= MEMORY_BYTES);
                assert!(spool.read(expected.len() as u64, page.len()).unwrap() == page);
                expected.extend(page);
            }
            let mut upload = objects.create("manifest").unwrap();
            spool.copy_to(&mut *upload).unwrap();
            upload.finish().unwrap();
            let mut stored = Vec::new();
            objects
                .read_at("manifest", 0, expected.len(), &mut stored)
                .unwrap();
            assert!(stored == expected, "{pages}");
            assert_eq!(
                objects.stat("manifest").unwrap(),
                Some(expected.len() as u64)
            );
        }
    }
}
