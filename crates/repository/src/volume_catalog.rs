//! The local catalog of volumes: the root and the manifest of the newest backup for each prefix.
//!
//! With it, entries are listed and a restore is planned without any volume, and the entries of a
//! lost last volume have names. It may be lost: the volumes describe themselves.

use fullbore_format::{
    error::{Error, Result},
    root::Root,
    seal::MAX_BYTES,
};
use fullbore_platform::{place::quoted_path, safe_file, write};
use fullbore_storage::Storages;
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Mode of the files, which name everything in the backup, and of their directories.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
/// Digits of the digest of a prefix in the name of its directory.
const NAME_DIGITS: usize = 16;

/// The place of a catalog for one prefix.
#[derive(Debug, Clone)]
pub struct VolumeCatalog {
    dir: PathBuf,
}

/// A backup in the catalog.
pub(crate) struct CatalogedBackup {
    pub(crate) root: Root,
    pub(crate) manifest: File,
}

impl CatalogedBackup {
    /// Returns whether it describes more volumes than another root of the same backup.
    pub(crate) fn is_newer(&self, other: &Root) -> bool {
        let number = |root: &Root| root.volume.map_or(0, |facts| facts.number);
        number(&self.root) > number(other)
    }
}

impl VolumeCatalog {
    /// The catalog for the volumes with this prefix; `None` if this user keeps none.
    pub fn of(storages: &Storages, prefix: &Path) -> Option<Self> {
        let whole = std::path::absolute(prefix).unwrap_or_else(|_| prefix.to_owned());
        let digest = blake3::hash(whole.as_os_str().as_encoded_bytes()).to_hex();
        let dir = storages.catalog_dir()?.join(&digest[..NAME_DIGITS]);
        Some(Self { dir })
    }

    /// The catalog in this directory.
    pub(crate) fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Stores a backup in place of an earlier one of this prefix. `copy` writes its manifest.
    ///
    /// # Errors
    /// The system's; then the catalog has the earlier backup, or none.
    pub fn store(
        &self,
        root: &[u8],
        copy: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        let failed = |error| {
            let message = format!("could not store a catalog in {}", quoted_path(&self.dir));
            Error::io(message, error)
        };
        safe_file::create_dirs(&self.dir, DIR_MODE).map_err(failed)?;
        // A root and a manifest of two backups never meet: without a root there is no catalog.
        remove(&self.dir.join(ROOT)).map_err(failed)?;
        remove(&self.dir.join(MANIFEST)).map_err(failed)?;
        let mut manifest =
            safe_file::create(&self.dir.join(MANIFEST), FILE_MODE).map_err(failed)?;
        copy(&mut manifest)?;
        write::fsync(&manifest).map_err(failed)?;
        let partial = self.dir.join("root.partial");
        remove(&partial).map_err(failed)?;
        let mut file = safe_file::create(&partial, FILE_MODE).map_err(failed)?;
        file.write_all(root).map_err(failed)?;
        write::fsync(&file).map_err(failed)?;
        fs::rename(&partial, self.dir.join(ROOT)).map_err(failed)?;
        safe_file::sync_dir(&self.dir).map_err(failed)
    }

    /// Returns the backup in the catalog. A damaged catalog has none.
    pub(crate) fn read(&self) -> Option<CatalogedBackup> {
        let path = self.dir.join(ROOT);
        let bytes = safe_file::read(&path, MAX_BYTES).ok()?;
        let root = Root::open(&bytes, &format!("{path:?}"));
        let root = root
            .inspect_err(|error| fullbore_platform::debug(|| error.line()))
            .ok()?;
        let manifest = safe_file::open(&self.dir.join(MANIFEST)).ok()?;
        root.volume?;
        Some(CatalogedBackup { root, manifest })
    }
}

const ROOT: &str = "root.json";
const MANIFEST: &str = "manifest";

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}
