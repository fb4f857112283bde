//! Paths that are needed at the end of a copy: in memory up to a limit, beyond it in a temporary
//! file without a name.

use fullbore_format::error::{Error, Result};
use fullbore_platform::write::{anonymous_file, pwrite_all};
use std::{fs::File, io, os::unix::fs::FileExt};

/// Most bytes in memory, and of a batch.
const BATCH_BYTES: usize = 1 << 20;

/// Paths, each closed by a NUL, in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct PathSpool {
    memory: Vec<u8>,
    file: Option<File>,
    /// Length of each batch in the file.
    batches: Vec<usize>,
    file_bytes: u64,
}

impl PathSpool {
    /// Adds paths that belong together.
    ///
    /// # Errors
    /// The system's, about the temporary file.
    pub(super) fn add(&mut self, paths: &[&[u8]]) -> Result<()> {
        for path in paths {
            self.memory.extend_from_slice(path);
            self.memory.push(0);
        }
        if self.memory.len() < BATCH_BYTES {
            return Ok(());
        }
        self.move_to_file().map_err(|error| {
            let hint = "TMPDIR names another directory for temporary files";
            Error::io("could not write paths to a temporary file", error).hint(hint)
        })
    }

    fn move_to_file(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(anonymous_file(&std::env::temp_dir())?),
        };
        pwrite_all(&*file, &self.memory, self.file_bytes)?;
        self.batches.push(self.memory.len());
        self.file_bytes += self.memory.len() as u64;
        self.memory.clear();
        Ok(())
    }

    /// Calls `take` with all paths, in batches.
    ///
    /// # Errors
    /// Those of `take`; the system's, about the temporary file.
    pub(super) fn each_batch(&self, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut offset = 0;
        for len in &self.batches {
            take(&self.batch(offset, *len)?)?;
            offset += *len as u64;
        }
        if self.memory.is_empty() {
            Ok(())
        } else {
            take(&self.memory)
        }
    }

    /// As [`Self::each_batch`], from the last path to the first.
    ///
    /// # Errors
    /// As [`Self::each_batch`].
    pub(super) fn each_batch_backwards(
        &self,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut end = self.file_bytes;
        if !self.memory.is_empty() {
            take(&reversed(&self.memory))?;
        }
        for len in self.batches.iter().rev() {
            end -= *len as u64;
            take(&reversed(&self.batch(end, *len)?))?;
        }
        Ok(())
    }

    fn batch(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut batch = vec![0; len];
        if let Some(file) = &self.file {
            let read = file.read_exact_at(&mut batch, offset);
            read.map_err(|e| Error::io("could not read a temporary file", e))?;
        }
        Ok(batch)
    }
}

/// Returns the paths of a batch in the opposite order.
fn reversed(batch: &[u8]) -> Vec<u8> {
    let paths = batch.split_inclusive(|c| *c == 0).rev();
    paths.collect::<Vec<_>>().concat()
}
