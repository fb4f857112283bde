//! A file of a repository that takes the place of another, or of none: durable, and all of it or nothing.

use super::{objects::random_letters, permissions};
use crate::{
    error::{Error, Result},
    platform::{is_media_error, safe_file, write},
    sink::local_file::{name, sync_dir},
};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Bytes that are read at once,
const MANY_BYTES: usize = 1 << 20;
/// and where not all of them can be read.
const SECTOR_BYTES: usize = 4096;

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
        // Two may replace the same file at the same time: the last one wins.
        partial.push(format!(".repair-{}.partial", random_letters(6)));
        let partial = PathBuf::from(partial);
        let failed = |e| Error::io(format!("could not create {}", name(&partial)), e);
        let file =
            safe_file::create(&partial, permissions::of_replacement(path)).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            partial,
            file,
        })
    }

    /// Begin with what the file holds that is there; sectors that its disk does not give are zeros.
    ///
    /// # Errors
    /// The system's, but those of bad sectors.
    pub fn keep(&self) -> Result<()> {
        let failed = |e| Error::io(format!("could not read {}", name(&self.path)), e);
        let file = match safe_file::open(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file.map_err(failed)?,
        };
        let end = file.metadata().map_err(failed)?.len();
        let (mut at, mut step, mut buffer) = (0, MANY_BYTES, vec![0; MANY_BYTES]);
        while at < end {
            match file.read_at(&mut buffer[..step], at) {
                Ok(0) => break,
                Ok(got) => {
                    self.write(&buffer[..got], at)?;
                    at += got as u64;
                    step = if at.is_multiple_of(MANY_BYTES as u64) {
                        MANY_BYTES
                    } else {
                        step
                    };
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if !is_media_error(&e) => return Err(failed(e)),
                Err(_) if step > SECTOR_BYTES => step = SECTOR_BYTES,
                Err(_) => at += SECTOR_BYTES as u64,
            }
        }
        Ok(())
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
        write::fsync(&self.file)
            .and_then(|()| fs::rename(&self.partial, &self.path))
            .map_err(|e| self.failed(e))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_kept_around_what_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for len in [0, 10, MANY_BYTES, 2 * MANY_BYTES + 5] {
            let mut bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            fs::write(&path, &bytes).unwrap();
            let file = Replacement::new(&path).unwrap();
            file.keep().unwrap();
            file.write(b"new", len as u64).unwrap();
            file.commit().unwrap();
            bytes.extend(b"new");
            assert!(fs::read(&path).unwrap() == bytes, "{len}");
        }
        let none = Replacement::new(&dir.path().join("none")).unwrap();
        none.keep().unwrap();
        none.commit().unwrap();
        assert_eq!(fs::read(dir.path().join("none")).unwrap(), b"");
    }
}
