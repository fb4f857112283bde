//! The files of a series of volumes: their names, and those that are there.

use fullbore_crypt::{KIND_BYTES, is_sealed};
use fullbore_format::error::{Error, Result};
use fullbore_platform::{
    place::{dir_of, quoted_path},
    safe_file,
};
use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Ending of a volume, after its number.
const ENDING: &str = ".tar.zst";
/// Ending of a volume that is encrypted, after [`ENDING`].
const SEALED_ENDING: &str = ".age";
/// Digits of the number of a volume, at least.
const DIGITS: usize = 3;

/// The files `PREFIX-001.tar.zst` and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFiles {
    prefix: PathBuf,
}

impl VolumeFiles {
    /// The volumes with this prefix, a path.
    pub fn new(prefix: &Path) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    /// The directory that the volumes are in.
    pub fn dir(&self) -> &Path {
        dir_of(&self.prefix)
    }

    /// Returns the path of volume `number`.
    pub fn path(&self, number: u32, is_sealed: bool) -> PathBuf {
        let mut path = self.prefix.clone().into_os_string();
        path.push(format!("-{number:0DIGITS$}{ENDING}"));
        if is_sealed {
            path.push(SEALED_ENDING);
        }
        path.into()
    }

    /// Returns the name of volume `number` without its directory, as it stands on a medium.
    pub fn label(&self, number: u32, is_sealed: bool) -> String {
        let path = self.path(number, is_sealed);
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    /// Returns the volumes that are there, by number. Of a clear and an encrypted one with the same
    /// number, the clear one.
    ///
    /// # Errors
    /// The system's; a directory that does not exist has no volumes.
    pub fn found(&self) -> Result<BTreeMap<u32, PathBuf>> {
        let mut found = BTreeMap::new();
        let failed =
            |error| Error::io(format!("could not read {}", quoted_path(self.dir())), error);
        let entries = match fs::read_dir(self.dir()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if let Some(number) = self.number_of(entry.file_name().as_bytes()) {
                let path = self.dir().join(entry.file_name());
                let known = found.entry(number).or_insert_with(|| path.clone());
                if known.as_os_str().len() > path.as_os_str().len() {
                    *known = path;
                }
            }
        }
        Ok(found)
    }

    /// Returns the number of the volume with this file name; `None` if it is no volume of this series.
    fn number_of(&self, name: &[u8]) -> Option<u32> {
        let name = name.strip_suffix(SEALED_ENDING.as_bytes()).unwrap_or(name);
        let stem = name.strip_suffix(ENDING.as_bytes())?;
        let digits = stem
            .strip_prefix(self.prefix.file_name()?.as_bytes())?
            .strip_prefix(b"-")?;
        let text = std::str::from_utf8(digits)
            .ok()
            .filter(|text| text.len() >= DIGITS)?;
        let number = text.parse().ok().filter(|number| *number > 0)?;
        (text == format!("{number:0DIGITS$}")).then_some(number)
    }

    /// Returns whether a volume that is there is encrypted.
    pub fn is_any_sealed(&self) -> bool {
        let found = self.found().unwrap_or_default();
        found.into_values().next().is_some_and(|path| {
            let mut head = Vec::new();
            let read = safe_file::open(&path)
                .and_then(|file| file.take(KIND_BYTES as u64).read_to_end(&mut head));
            read.is_ok() && is_sealed(&head)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_found_by_their_names_alone() {
        let dir = tempfile::tempdir().unwrap();
        let files = VolumeFiles::new(&dir.path().join("a"));
        for name in [
            "a-001.tar.zst",
            "a-002.tar.zst.age",
            "a-1000.tar.zst",
            "a-000.tar.zst",
            "a-3.tar.zst",
            "a-0004.tar.zst",
            "b-005.tar.zst",
            "a-006.tar.lz4",
            ".a-007.tar.zst.x.partial",
            "a-+08.tar.zst",
        ] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let found = files.found().unwrap();
        let numbers: Vec<_> = found.keys().copied().collect();
        assert_eq!(numbers, [1, 2, 1000]);
        assert_eq!(found[&1], files.path(1, false));
        assert_eq!(found[&2], files.path(2, true));
        assert_eq!(files.label(1000, true), "a-1000.tar.zst.age");
    }
}
