//! A file of a repository that takes the place of another, or of none: durable, and all of it or nothing.

use crate::{
    error::{Error, Result},
    platform::write,
    sink::file::{name, sync_dir},
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

/// A file under a name of its own, until it is complete. Dropped before, it is removed.
pub struct Replacement {
    path: PathBuf,
    partial: PathBuf,
    file: File,
}

impl Replacement {
    /// For the file at `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(path: &Path) -> Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".repair.partial");
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).map_err(|e| Error::io(format!("could not create {}", name(&partial)), e))?;
        Ok(Self { path: path.to_owned(), partial, file })
    }

    /// Write at `offset`; what is never written is zeros.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        write::pwrite_all(&self.file, bytes, offset).map_err(|e| self.failed(e))
    }

    /// Put it in place.
    ///
    /// # Errors
    /// The system's; then what was there is there still.
    pub fn commit(self) -> Result<()> {
        write::fsync(&self.file).and_then(|()| fs::rename(&self.partial, &self.path)).map_err(|e| self.failed(e))?;
        self.path.parent().map_or(Ok(()), sync_dir)
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::io(format!("could not write {}", name(&self.path)), error)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After a commit there is none; what cannot be removed is never read.
        let _ = fs::remove_file(&self.partial);
    }
}

/// Replace the file at `path` by these bytes.
///
/// # Errors
/// As [`Replacement::commit`].
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = Replacement::new(path)?;
    file.write(bytes, 0)?;
    file.commit()
}
