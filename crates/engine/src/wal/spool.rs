//! The spool: files that a server gave away while the repository was away, in a directory of its host.
//!
//! Each cluster has a directory in it that looks like `pg_wal`. A file gets its name there when it is durable. The process that
//! pushes ahead stores the files when the repository is back, and removes them. While the spool has files, later ones go
//! into it too: so the order stays, and no push waits for a storage that is known to be away. A file that the repository
//! refuses stays below `refused`, with the reason beside it.

use super::server_files::WalDirectory;
use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    text::size::bytes,
    wal::WalFileName,
};
use fullbore_platform::{debug, durable, guarded_path::own_dir, safe_file};
use std::{
    fs::{self, DirEntry},
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Ending of a file that is not durable yet.
const UNFINISHED: &str = ".unfinished";
/// Directory of files that the repository refuses.
const REFUSED: &str = "refused";
/// Ending of the reason of a refused file.
const REASON: &str = ".reason";

/// A directory that takes files while the repository is away.
#[derive(Debug, Clone)]
pub struct WalSpool {
    /// The directory; of several clusters, if they share it.
    pub dir: PathBuf,
    /// Bytes of all files in it at most. More are an error of the push: no file is ever dropped.
    pub max_bytes: u64,
}

/// What of a cluster is in a spool only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpoolState {
    /// Files that wait for the repository.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that the repository refused.
    pub refused: u64,
    /// Why it refused one of them.
    pub reason: Option<String>,
}

/// The files of one cluster in a spool.
#[derive(Debug, Clone)]
pub(super) struct ClusterSpool {
    spool: WalSpool,
    dir: PathBuf,
}

impl WalSpool {
    /// The files of the cluster that archives under this name.
    pub(super) fn of_cluster(&self, name: &str) -> ClusterSpool {
        ClusterSpool {
            spool: self.clone(),
            dir: self.dir.join(name),
        }
    }
}

impl ClusterSpool {
    /// The files as those of a server.
    pub(super) fn wal(&self) -> WalDirectory {
        WalDirectory::of_files(&self.dir)
    }

    pub(super) fn has_files(&self) -> bool {
        !self.names().is_empty()
    }

    /// Returns the files that wait: histories first, as they say what the segments behind them continue.
    ///
    /// A directory of another user has none: that user could have any WAL archived. Whoever adds to it gets the error.
    pub(super) fn names(&self) -> Vec<WalFileName> {
        if !self.dir.exists() || own_dir(&self.dir).is_err() {
            return Vec::new();
        }
        let parsed = |entry: &DirEntry| WalFileName::parse(entry.file_name().to_str()?);
        let mut names: Vec<_> = entries(&self.dir).iter().filter_map(parsed).collect();
        names.sort_by_key(|name| (!matches!(name, WalFileName::History(_)), name.to_string()));
        names
    }

    /// Takes a file: when this returns, it is durable.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] if it is more than the spool may have; [`ErrorKind::Exists`] if a file of this name with other
    /// content waits; the system's.
    pub(super) fn add(&self, name: WalFileName, content: &[u8]) -> Result<()> {
        let path = self.dir.join(name.to_string());
        match safe_file::read(&path, content.len() as u64) {
            // The server repeats a command if it crashed before it noted the success.
            Ok(waiting) if waiting == content => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => {
                let message =
                    format!("cannot take {name} into the spool: it has other content of this name");
                return Err(Error::new(ErrorKind::Exists, message));
            }
        }
        let used = used_bytes(&self.spool.dir);
        if used + content.len() as u64 > self.spool.max_bytes {
            let message = format!(
                "cannot take {name} into the spool {}",
                shown(&self.spool.dir)
            );
            let why = format!(
                "it has {}, and may have {}",
                bytes(used),
                bytes(self.spool.max_bytes)
            );
            return Err(Error::new(ErrorKind::Full, message).because(why));
        }
        let failed = |error| Error::io(format!("could not write {}", shown(&path)), error);
        self.write(&path, content).map_err(failed)
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        own_dir(&self.dir)?;
        // A spool that was just made must not be lost with the first file in it.
        safe_file::sync_above(&self.dir)?;
        safe_file::sync_above(&self.spool.dir)?;
        let unfinished = self.dir.join(format!("{}{UNFINISHED}", std::process::id()));
        remove_if_there(&unfinished)?;
        let written = || {
            let mut file = safe_file::create(&unfinished, 0o600)?;
            file.write_all(content)?;
            durable::sync_and_close(&file)?;
            fs::rename(&unfinished, path)?;
            safe_file::sync_dir(&self.dir)
        };
        written().inspect_err(|_| drop(fs::remove_file(&unfinished)))
    }

    /// Removes a file that the repository has.
    pub(super) fn remove(&self, name: &str) {
        if let Err(error) = fs::remove_file(self.dir.join(name)) {
            debug(|| format!("{name} stays in the spool and is stored again: {error}"));
        }
    }

    /// Puts a file aside that the repository refuses: those behind it go on, and it stays.
    pub(super) fn refuse(&self, name: &str, error: &Error) {
        let refused = self.dir.join(REFUSED);
        let aside = || {
            own_dir(&refused)?;
            fs::write(refused.join(format!("{name}{REASON}")), error.line())?;
            fs::rename(self.dir.join(name), refused.join(name))
        };
        if let Err(error) = aside() {
            debug(|| format!("{name} could not be put aside: {error}"));
        }
    }

    /// Returns what is in the spool only.
    pub(super) fn state(&self) -> SpoolState {
        let names = self.names();
        let size = |name: &WalFileName| {
            fs::metadata(self.dir.join(name.to_string())).map_or(0, |meta| meta.len())
        };
        let is_reason =
            |entry: &DirEntry| entry.file_name().as_bytes().ends_with(REASON.as_bytes());
        let reasons: Vec<_> = entries(&self.dir.join(REFUSED))
            .into_iter()
            .filter(is_reason)
            .collect();
        SpoolState {
            files: names.len() as u64,
            bytes: names.iter().map(size).sum(),
            refused: reasons.len() as u64,
            reason: reasons
                .first()
                .and_then(|entry| fs::read_to_string(entry.path()).ok()),
        }
    }
}

fn shown(path: &Path) -> String {
    quoted(path.as_os_str().as_bytes())
}

fn entries(dir: &Path) -> Vec<DirEntry> {
    fs::read_dir(dir).into_iter().flatten().flatten().collect()
}

/// Bytes of all files below a directory of directories of directories.
fn used_bytes(dir: &Path) -> u64 {
    entries(dir).into_iter().map(entry_bytes).sum()
}

fn entry_bytes(entry: DirEntry) -> u64 {
    match entry.metadata() {
        Ok(meta) if meta.is_dir() => used_bytes(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0, // stored and removed meanwhile
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
