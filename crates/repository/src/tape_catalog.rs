//! The local catalog of tapes: the root and the manifest of each backup on tapes.
//!
//! With it, entries are listed and a restore is planned without a tape, and one file is read with one
//! locate. It may be lost: tapes describe themselves.

use crate::volume_catalog::{CatalogedBackup, VolumeCatalog};
use fullbore_format::{
    error::{Error, Result},
    layout::is_backup_id,
    root::Root,
};
use fullbore_platform::place::quoted_path;
use fullbore_storage::Storages;
use std::{
    fs,
    io::{ErrorKind, Write},
    path::PathBuf,
};

/// The catalogs of all backups on tapes that this user has made or scanned.
#[derive(Debug, Clone)]
pub struct TapeCatalog {
    /// `None` keeps no catalogs.
    dir: Option<PathBuf>,
}

impl TapeCatalog {
    /// The catalogs in the directory that the user chose, or in the state directory.
    pub fn of(storages: &Storages) -> Self {
        let dir = storages.catalog_dir().map(|dir| dir.join("tapes"));
        Self { dir }
    }

    /// Stores backup `id`. `copy` writes its manifest.
    ///
    /// # Errors
    /// As [`VolumeCatalog::store`].
    pub fn store(
        &self,
        id: &str,
        root: &[u8],
        copy: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        match self.dir.as_ref().filter(|_| is_backup_id(id)) {
            Some(dir) => VolumeCatalog::at(dir.join(id)).store(root, copy),
            None => Ok(()),
        }
    }

    /// Returns the backup; `None` if it is not in the catalog, or the catalog is damaged.
    pub(crate) fn read(&self, id: &str) -> Option<CatalogedBackup> {
        let dir = self.dir.as_ref().filter(|_| is_backup_id(id))?;
        let found = VolumeCatalog::at(dir.join(id)).read()?;
        (found.root.id == id).then_some(found)
    }

    /// Returns the roots of all backups, the newest first.
    ///
    /// # Errors
    /// The system's.
    pub fn roots(&self) -> Result<Vec<Root>> {
        let Some(dir) = &self.dir else {
            return Ok(Vec::new());
        };
        let failed = |error| Error::io(format!("could not read {}", quoted_path(dir)), error);
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut ids = Vec::new();
        for entry in entries {
            ids.extend(entry.map_err(failed)?.file_name().into_string());
        }
        ids.sort_unstable();
        let found = ids.iter().rev().filter_map(|id| self.read(id));
        Ok(found.map(|found| found.root).collect())
    }
}
