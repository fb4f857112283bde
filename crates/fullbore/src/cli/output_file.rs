//! A file that a run writes at its end beside its work: the metrics, and the report.
//!
//! Root may write it into a directory of another user, such as that of a collector. So the directory
//! is opened once, every later step goes by that descriptor, and no link in place of the file is
//! followed. The file appears complete under its name, or not at all.

use fullbore_platform::{
    guarded_path::{GuardedPath, is_trusted},
    safe_file,
    write::{chmod_fd, rename_at, unlink_at},
};
use std::{
    ffi::OsString,
    fs::File,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::Path,
};

/// Names that are tried for the file before it is complete.
const MAX_TRIES: usize = 16;

/// Where the file will be.
#[derive(Debug)]
pub(super) struct OutputFile {
    dir: OwnedFd,
    name: OsString,
    /// A pipe or a device in place of the file, which is written to as it is.
    device: Option<File>,
}

/// The file that was at this path before the run.
#[derive(Debug)]
pub(super) struct EarlierFile {
    /// The first bytes, or all of them.
    pub(super) bytes: Vec<u8>,
    /// Does it belong to root or to this user?
    pub(super) is_trusted: bool,
}

impl OutputFile {
    /// Opens the directory of `path`.
    ///
    /// # Errors
    /// `PermissionDenied` if a link leads there that another user could have made; `InvalidInput`
    /// for a path without a name; or the system's.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let name = path.file_name();
        let name = name.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it has no name"))?;
        let dir = GuardedPath::reach_dir(path.parent().unwrap_or(Path::new("")))?;
        Ok(Self {
            dir,
            name: name.to_owned(),
            device: None,
        })
    }

    /// As [`OutputFile::new`], and checks that a file can be made there. A pipe or a device may be in place of the file.
    ///
    /// # Errors
    /// As [`OutputFile::new`], and the system's.
    pub(super) fn new_or_device(path: &Path) -> io::Result<Self> {
        let mut output = Self::new(path)?;
        let device = safe_file::open_device_at(&output.dir, &output.name);
        output.device = device.map_err(in_the_way)?;
        if output.device.is_none() {
            output.can_be_made()?;
        }
        Ok(output)
    }

    fn can_be_made(&self) -> io::Result<()> {
        let (_, name) = self.create_beside()?;
        unlink_at(&self.dir, name.as_bytes())
    }

    /// Reads at most `most` bytes of the file that is there; `None` without one, and for a device.
    ///
    /// # Errors
    /// `AlreadyExists` for a link or a directory; or the system's.
    pub(super) fn earlier(&self, most: u64) -> io::Result<Option<EarlierFile>> {
        if self.device.is_some() {
            return Ok(None);
        }
        let file = match safe_file::open_at(&self.dir, &self.name) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(in_the_way)?,
        };
        let owner = file.metadata()?.uid();
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(Some(EarlierFile {
            bytes,
            is_trusted: is_trusted(owner),
        }))
    }

    /// Writes the file under another name and gives it its own. Without `mode` the umask decides.
    ///
    /// # Errors
    /// The system's; the earlier file stays then.
    pub(super) fn replace(&self, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
        if let Some(mut device) = self.device.as_ref() {
            return device.write_all(bytes);
        }
        let (mut file, beside) = self.create_beside()?;
        let written = file
            .write_all(bytes)
            .and_then(|()| mode.map_or(Ok(()), |mode| chmod_fd(&file, mode)))
            .and_then(|()| {
                let (old, new) = (beside.as_bytes(), self.name.as_bytes());
                rename_at(&self.dir, old, &self.dir, new)
            });
        if written.is_err() {
            let _ = unlink_at(&self.dir, beside.as_bytes()); // the first error is reported
        }
        written
    }

    /// Creates a file with a new name that begins with that of the file.
    fn create_beside(&self) -> io::Result<(File, OsString)> {
        let mut tries = 0;
        loop {
            let mut name = self.name.clone();
            name.push(format!(".{:08x}", random() as u32));
            match safe_file::create_by_umask(&self.dir, &name) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && tries < MAX_TRIES => {
                    tries += 1;
                }
                made => return Ok((made?, name)),
            }
        }
    }
}

/// Whatever is not a regular file is no damage of a file: it has the name that the file should get.
fn in_the_way(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::InvalidData => io::Error::new(ErrorKind::AlreadyExists, error),
        _ => error,
    }
}

/// A number that another process cannot guess.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    #[test]
    fn a_link_in_place_of_the_file_is_neither_read_nor_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let [victim, link] = ["victim", "x.prom"].map(|name| dir.path().join(name));
        fs::write(&victim, "root's own").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&victim, &link).unwrap();
        let output = OutputFile::new(&link).unwrap();
        assert_eq!(
            output.earlier(99).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        assert!(OutputFile::new_or_device(&link).is_err());
        output.replace(b"new", Some(0o644)).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"root's own");
        assert_eq!(fs::metadata(&victim).unwrap().mode() & 0o777, 0o600);
        assert!(link.symlink_metadata().unwrap().is_file());
        assert_eq!(fs::metadata(&link).unwrap().mode() & 0o777, 0o644);
    }

    #[test]
    fn a_directory_that_is_exchanged_later_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let [first, other] = ["first", "other"].map(|name| dir.path().join(name));
        fs::create_dir(&first).unwrap();
        fs::create_dir(&other).unwrap();
        let output = OutputFile::new_or_device(&first.join("page")).unwrap();
        fs::rename(&first, dir.path().join("moved")).unwrap();
        symlink(&other, &first).unwrap();
        output.replace(b"page", None).unwrap();
        assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
        let moved = dir.path().join("moved");
        assert_eq!(fs::read(moved.join("page")).unwrap(), b"page");
        assert_eq!(fs::read_dir(moved).unwrap().count(), 1);
    }
}
