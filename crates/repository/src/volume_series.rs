//! The local catalog of the backups in volumes under one prefix.
//!
//! An incremental backup finds its base there, since the volumes of the base are on a shelf. A
//! backup leaves the catalog when a later one has taken its place: later backups do not build on it
//! any more.

use crate::{
    level::level_of,
    volume_catalog::{CatalogedBackup, VolumeCatalog},
};
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
    path::{Path, PathBuf},
};

/// Digits of the digest of a prefix in the name of its directory.
const NAME_DIGITS: usize = 16;
/// The newest backups stay, also those that have been replaced.
const KEPT_BACKUPS: usize = 10;

/// The backups with one prefix.
#[derive(Debug, Clone)]
pub struct VolumeSeries {
    dir: PathBuf,
}

impl VolumeSeries {
    /// The catalog for the volumes with this prefix; `None` if this user keeps none.
    pub fn of(storages: &Storages, prefix: &Path) -> Option<Self> {
        let whole = std::path::absolute(prefix).unwrap_or_else(|_| prefix.to_owned());
        let digest = blake3::hash(whole.as_os_str().as_encoded_bytes()).to_hex();
        let dir = storages.catalog_dir()?.join(&digest[..NAME_DIGITS]);
        Some(Self { dir })
    }

    /// Stores a backup that is complete, and drops those that it replaces. `copy` writes its manifest.
    ///
    /// # Errors
    /// The system's.
    pub fn store(
        &self,
        id: &str,
        root: &[u8],
        copy: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        self.backup(id).store(root, copy)?;
        self.drop_replaced()
    }

    fn backup(&self, id: &str) -> VolumeCatalog {
        VolumeCatalog::at(self.dir.join(id))
    }

    /// Returns a backup; `None` if it is not there, or damaged.
    pub(crate) fn read(&self, id: &str) -> Option<CatalogedBackup> {
        let found = self.backup(id).read()?;
        (found.root.id == id).then_some(found)
    }

    /// Returns the ids of the backups, the oldest first.
    pub fn ids(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut ids: Vec<_> = names.filter(|name| is_backup_id(name)).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the newest backup whose id begins with `id`.
    pub(crate) fn newest(&self, id: &str) -> Option<CatalogedBackup> {
        let ids = self.ids().into_iter().rev();
        let mut alike = ids.filter(|known| known.starts_with(id));
        alike.find_map(|id| self.read(&id))
    }

    /// Returns the roots of all backups, the newest first.
    pub fn roots(&self) -> Vec<Root> {
        let ids = self.ids().into_iter().rev();
        ids.filter_map(|id| Some(self.read(&id)?.root)).collect()
    }

    fn drop_replaced(&self) -> Result<()> {
        let roots = self.roots();
        for (index, root) in roots.iter().enumerate().skip(KEPT_BACKUPS) {
            if !is_replaced(root, &roots[..index]) {
                continue;
            }
            let dir = self.dir.join(&root.id);
            match fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let message = format!("could not remove {}", quoted_path(&dir));
                    return Err(Error::io(message, error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns whether no later backup builds on this one, by backups that are newer.
fn is_replaced(root: &Root, newer: &[Root]) -> bool {
    let Some(level) = level_of(root) else {
        return true;
    };
    let is_alike = |other: &&Root| other.source == root.source;
    let mut alike = newer.iter().filter(is_alike);
    alike.any(|other| level_of(other).is_some_and(|other| other <= level))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::LEVEL_TAG;
    use fullbore_format::root::SourceInfo;

    fn backup(host: &str, level: Option<u8>) -> Root {
        let level = level.map(|level| (LEVEL_TAG.to_owned(), level.to_string()));
        Root {
            source: SourceInfo {
                host: host.to_owned(),
                ..SourceInfo::default()
            },
            tags: level.into_iter().collect(),
            ..Root::default()
        }
    }

    #[test]
    fn a_backup_is_replaced_by_one_of_its_source_and_of_its_level_or_a_lower_one() {
        let newer = [
            backup("a", Some(3)),
            backup("a", None),
            backup("b", Some(0)),
        ];
        let is_replaced = |host, level| super::is_replaced(&backup(host, level), &newer);
        assert!(is_replaced("a", Some(3)) && is_replaced("a", Some(9)));
        assert!(is_replaced("b", Some(0)) && is_replaced("c", None));
        assert!(!is_replaced("a", Some(2)) && !is_replaced("c", Some(9)));
    }
}
