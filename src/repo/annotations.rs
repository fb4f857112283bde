//! Annotations of a backup that are made after the backup: other tags, and a pin.
//!
//! A root never changes, because it carries its own seal and other processes may be reading it.
//! Annotations are a small sealed object beside the root, and are replaced as a whole: if two
//! processes write at the same time, the later write wins.

use super::roots::key;
use crate::{
    error::{Error, ErrorKind, Result},
    format::{
        layout::{NOTES, ROOT},
        root::{FORMAT, Root},
        seal::{open_sealed, seal},
    },
    storage::{Objects, PutIf},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Tags and the pin of a backup, as given after it was made; stored as `notes.json`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Annotations {
    /// Version of the format.
    pub format: u32,
    /// Tags in place of those of the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
    /// Whether the backup must never be forgotten.
    #[serde(default)]
    pub pinned: bool,
}

impl Annotations {
    /// Returns the annotations of backup `id`, which are empty if there is no such object.
    ///
    /// # Errors
    /// [`Kind::Corrupt`], [`Kind::Unsupported`] or the system's.
    pub fn read(objects: &dyn Objects, id: &str) -> Result<Self> {
        let key = key(id, NOTES);
        let Some((bytes, _)) = objects.get(&key)? else {
            return Ok(Self::default());
        };
        let damaged = |error: Error| {
            error.hint("remove it; then `fullbore tag`, `pin` or `unpin` writes a new one")
        };
        let notes: Self = open_sealed(&bytes, &format!("{key:?}")).map_err(damaged)?;
        if notes.format > FORMAT {
            let what = format!(
                "cannot read {key:?}: it has format {}, this program knows {FORMAT}",
                notes.format
            );
            return Err(Error::new(ErrorKind::Unsupported, what).hint("use a newer fullbore"));
        }
        Ok(notes)
    }

    /// Replaces the annotations of a backup.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if the backup is not listed, or was forgotten meanwhile; or an error of the system.
    pub fn write(&self, objects: &dyn Objects, id: &str) -> Result<()> {
        let is_listed = || objects.stat(&key(id, ROOT)).map(|bytes| bytes.is_some());
        let notes = Self {
            format: FORMAT,
            ..self.clone()
        };
        if is_listed()? {
            notes.store(objects, &key(id, NOTES))?;
        }
        match is_listed()? {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::NotFound,
                format!("could not find backup {id:?} in {}", objects.describe("")),
            )),
        }
    }

    /// Annotations that say nothing are deleted, so that a backup can be unpinned, and then forgotten, on a full disk.
    fn store(&self, objects: &dyn Objects, key: &str) -> Result<()> {
        if self.tags.is_none() && !self.pinned {
            return objects.delete(&[key.to_owned()]);
        }
        objects.put(key, &seal(self)?, &PutIf::Always).map(drop)
    }

    /// Replaces the tags of the root with those of the annotations.
    pub fn apply(&self, root: &mut Root) {
        if let Some(tags) = &self.tags {
            root.tags.clone_from(tags);
        }
    }
}
