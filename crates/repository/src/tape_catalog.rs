//! The local catalog of tapes: the root and the manifest of each backup on tapes.
//!
//! With it, entries are listed and a restore is planned without a tape, and one file is read with one
//! locate. It may be lost: tapes describe themselves.

use crate::volume_catalog::{CatalogedBackup, VolumeCatalog};
use fullbore_format::{
    error::{Error, Result},
    layout::is_backup_id,
    root::{Root, TapeExtent},
};
use fullbore_platform::place::quoted_path;
use fullbore_storage::Storages;
use std::{
    collections::{BTreeMap, BTreeSet},
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
        let found = self.ids()?;
        let found = found.iter().rev().filter_map(|id| self.read(id));
        Ok(found.map(|found| found.root).collect())
    }

    /// Returns the roots of the backups on which a new one can build, the newest first: no later one was written over them.
    ///
    /// # Errors
    /// The system's.
    pub fn lasting_roots(&self) -> Result<Vec<Root>> {
        let mut begins = BTreeMap::new();
        let mut roots = self.roots()?;
        roots.retain(|root| {
            let extents = own_extents(root).chain(earlier_extents(root));
            let lasts = extents.clone().all(|extent| {
                let begin = begins.get(&extent.tape);
                begin.is_none_or(|begin| extent.block < *begin)
            });
            for extent in own_extents(root) {
                let begin = begins.entry(extent.tape.clone()).or_insert(extent.block);
                *begin = extent.block.min(*begin);
            }
            lasts
        });
        Ok(roots)
    }

    /// Returns the id of the newest backup.
    pub fn newest_id(&self) -> Option<String> {
        self.ids().ok()?.pop()
    }

    /// Returns the ids of all backups, the oldest first.
    fn ids(&self) -> Result<Vec<String>> {
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
        ids.retain(|id| is_backup_id(id));
        ids.sort_unstable();
        Ok(ids)
    }
}

/// Returns the places of the segments of a backup on tapes.
fn own_extents(root: &Root) -> impl Iterator<Item = &TapeExtent> + Clone {
    let places = root.segments.iter();
    let places = places.filter_map(|segment| segment.tape.as_ref());
    places.flat_map(|place| &place.extents)
}

/// Returns the places of the segments of earlier backups that a backup refers to.
fn earlier_extents(root: &Root) -> impl Iterator<Item = &TapeExtent> + Clone {
    let places = root.earlier_places.iter();
    places.flat_map(|place| &place.tape.extents)
}

/// Returns the names of the tapes that a restore of a backup needs, those of its bases as well.
pub fn needed_tapes(root: &Root) -> BTreeSet<String> {
    let extents = own_extents(root).chain(earlier_extents(root));
    extents.map(|extent| extent.tape.clone()).collect()
}
