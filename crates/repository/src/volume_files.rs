//! The files of a series of volumes: their names, and those that are there.

use fullbore_format::{
    error::{Error, Result},
    layout::is_backup_id,
};
use fullbore_platform::place::{dir_of, quoted_path};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs,
    io::ErrorKind,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Ending of a volume, after its number.
const ENDING: &str = ".tar.zst";
/// Ending of a volume that is encrypted, after [`ENDING`].
const SEALED_ENDING: &str = ".age";
/// Digits of the number of a volume, at least.
const DIGITS: usize = 3;

/// The files `PREFIX-BACKUP-001.tar.zst` and so on, of one backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFiles {
    prefix: PathBuf,
}

/// Returns the backups of which volumes are there, under this prefix.
///
/// # Errors
/// The system's; a directory that does not exist has no volumes.
pub fn found_sets(prefix: &Path) -> Result<BTreeSet<String>> {
    let dir = dir_of(prefix);
    let stem = prefix.file_name().unwrap_or_default();
    let set_of = |name: &OsStr| {
        let rest = name.as_bytes().strip_prefix(stem.as_bytes())?;
        let rest = std::str::from_utf8(rest.strip_prefix(b"-")?).ok()?;
        let end = rest.rfind('-')?;
        let set = &rest[..end];
        let is_volume = || VolumeFiles::new(prefix, set).number_of(name.as_bytes());
        (is_backup_id(set) && is_volume().is_some()).then(|| set.to_owned())
    };
    let names = names_in(dir)?;
    Ok(names.iter().filter_map(|name| set_of(name)).collect())
}

/// Returns the names in the directory; none if it does not exist.
fn names_in(dir: &Path) -> Result<Vec<OsString>> {
    let failed = |error| Error::io(format!("could not read {}", quoted_path(dir)), error);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    entries
        .map(|entry| Ok(entry.map_err(failed)?.file_name()))
        .collect()
}

impl VolumeFiles {
    /// The volumes of backup `set` with this prefix, a path.
    pub fn new(prefix: &Path, set: &str) -> Self {
        let mut whole = prefix.as_os_str().to_owned();
        whole.push(format!("-{set}"));
        Self {
            prefix: whole.into(),
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
        for name in names_in(self.dir())? {
            if let Some(number) = self.number_of(name.as_bytes()) {
                let path = self.dir().join(name);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: &str = "20261121T054501Z-k3f9qz";

    #[test]
    fn volumes_are_found_by_their_names_alone() {
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().join("a");
        let files = VolumeFiles::new(&prefix, SET);
        for name in [
            "a-SET-001.tar.zst",
            "a-SET-002.tar.zst.age",
            "a-SET-1000.tar.zst",
            "a-SET-000.tar.zst",
            "a-SET-3.tar.zst",
            "a-SET-0004.tar.zst",
            "b-SET-005.tar.zst",
            "a-SET-006.tar.lz4",
            ".a-SET-007.tar.zst.x.partial",
            "a-SET-+08.tar.zst",
            "a-009.tar.zst",
            "a-20261121T054502Z-k3f9qz-010.tar.zst",
            "a-b-SET-011.tar.zst",
        ] {
            fs::write(dir.path().join(name.replace("SET", SET)), "").unwrap();
        }
        let found = files.found().unwrap();
        let numbers: Vec<_> = found.keys().copied().collect();
        assert_eq!(numbers, [1, 2, 1000]);
        assert_eq!(found[&1], files.path(1, false));
        assert_eq!(found[&2], files.path(2, true));
        assert_eq!(files.label(1000, true), format!("a-{SET}-1000.tar.zst.age"));
        let sets: Vec<_> = found_sets(&prefix).unwrap().into_iter().collect();
        assert_eq!(sets, [SET, "20261121T054502Z-k3f9qz"]);
    }
}
