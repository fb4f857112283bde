//! When each source of this host was last backed up, as this host remembers it: for a reminder that asks no repository.
//!
//! One small file for each source, in the state directory. A memory that cannot be written or read is none.

use super::{kept::replace_file, remembered_file::read_document};
use fullbore_platform::debug;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Directory of the files, in the state directory.
const DIRECTORY: &str = "last-backups";

/// Sources that are remembered at most; the one that was not backed up for the longest time is forgotten for another one.
const MAX_SOURCES: usize = 256;

/// The newest backup of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastBackup {
    /// `HOST:PATH`.
    pub source: String,
    /// Names the destination.
    pub place: String,
    /// When it began, as RFC 3339.
    pub time: String,
    /// Seconds within which the next one is expected, if the source ever said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u64>,
}

/// The newest backups of this host, in the state directory of a user.
#[derive(Debug, Clone)]
pub struct LastBackups {
    dir: PathBuf,
}

impl LastBackups {
    /// Returns those in a state directory. Nothing is read.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            dir: state_dir.join(DIRECTORY),
        }
    }

    /// Remembers a backup. An interval that its source said once holds until it says another one.
    pub fn note(&self, backup: &LastBackup) {
        let file = self.file_of(&backup.source);
        let before = read_document::<LastBackup>(&file).ok().flatten();
        let before = before.and_then(|before| before.every_seconds);
        let noted = LastBackup {
            every_seconds: backup.every_seconds.or(before),
            ..backup.clone()
        };
        if let Err(error) = write(&file, &noted).and_then(|()| self.remove_oldest()) {
            debug(|| format!("could not remember the backup of {}: {error}", noted.source));
        }
    }

    /// Returns all that are remembered, by source.
    pub fn all(&self) -> Vec<LastBackup> {
        let files = self.files().unwrap_or_default();
        let backups =
            { files.iter() }.filter_map(|file| read_document::<LastBackup>(file).ok().flatten());
        let mut backups: Vec<_> = backups.collect();
        backups.sort_by(|one, other| one.source.cmp(&other.source));
        backups
    }

    /// Forgets a source. Returns whether it was remembered.
    ///
    /// # Errors
    /// The system's.
    pub fn forget(&self, source: &str) -> io::Result<bool> {
        match fs::remove_file(self.file_of(source)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn file_of(&self, source: &str) -> PathBuf {
        let digest = blake3::hash(source.as_bytes()).to_hex();
        self.dir.join(format!("{}.json", &digest[..32]))
    }

    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.dir)?.map(|entry| entry.map(|entry| entry.path()));
        let mut files = entries.collect::<io::Result<Vec<_>>>()?;
        files.retain(|file| file.extension().is_some_and(|end| end == "json"));
        Ok(files)
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let mut files = self.files()?;
        if files.len() <= MAX_SOURCES {
            return Ok(());
        }
        let written = |file: &PathBuf| fs::metadata(file).and_then(|about| about.modified());
        files.sort_by_cached_key(|file| written(file).unwrap_or(SystemTime::UNIX_EPOCH));
        let over = files.len() - MAX_SOURCES;
        files[..over].iter().try_for_each(fs::remove_file)
    }
}

fn write(path: &Path, backup: &LastBackup) -> io::Result<()> {
    let bytes = serde_json::to_vec(backup).map_err(io::Error::other)?;
    replace_file(path, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(source: &str, time: &str, every_seconds: Option<u64>) -> LastBackup {
        LastBackup {
            source: source.to_owned(),
            place: "\"/mnt/disk\"".to_owned(),
            time: time.to_owned(),
            every_seconds,
        }
    }

    #[test]
    fn a_source_has_its_newest_backup_and_the_interval_that_it_said() {
        let dir = tempfile::tempdir().unwrap();
        let memory = LastBackups::new(dir.path());
        assert_eq!(memory.all(), []);
        memory.note(&backup("b:/x", "2026-11-01T00:00:00Z", Some(86_400)));
        memory.note(&backup("a:/y", "2026-11-02T00:00:00Z", None));
        memory.note(&backup("b:/x", "2026-11-03T00:00:00Z", None));
        let newest = backup("b:/x", "2026-11-03T00:00:00Z", Some(86_400));
        let other = backup("a:/y", "2026-11-02T00:00:00Z", None);
        assert_eq!(memory.all(), [other.clone(), newest]);
        assert!(memory.forget("b:/x").unwrap() && !memory.forget("b:/x").unwrap());
        fs::write(memory.file_of("c:/damaged"), "{").unwrap();
        assert_eq!(memory.all(), [other]);
    }

    #[test]
    fn the_memory_has_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let memory = LastBackups::new(dir.path());
        for number in 0..MAX_SOURCES + 3 {
            memory.note(&backup(
                &format!("a:/{number}"),
                "2026-11-02T00:00:00Z",
                None,
            ));
        }
        assert_eq!(memory.all().len(), MAX_SOURCES);
    }
}
