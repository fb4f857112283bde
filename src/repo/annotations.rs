//! What is noted of a backup after it was made: other tags, and whether it is pinned.
//!
//! A root never changes, as it carries its own seal and others may be reading it. Notes are a small sealed object beside
//! it, replaced as a whole: of two who write at the same time, the later one wins.

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
    /// Is the backup never to be forgotten?
    #[serde(default)]
    pub pinned: bool,
}

impl Annotations {
    /// The notes on backup `id`; without any, nothing is noted.
    ///
    /// # Errors
    /// [`Kind::Corrupt`], [`Kind::Unsupported`] or the system's.
    pub fn read(objects: &dyn Objects, id: &str) -> Result<Self> {
        let key = key(id, NOTES);
        let Some((bytes, _)) = objects.get(&key)? else {
            return Ok(Self::default());
        };
        let damaged = |error: Error| {
            error.hint("`fullbore tag`, `pin` or `unpin` writes it anew if it is removed")
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

    /// Replace the notes on a backup.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if it is not listed, or was forgotten meanwhile; or the system's.
    pub fn write(&self, objects: &dyn Objects, id: &str) -> Result<()> {
        let is_listed = || objects.stat(&key(id, ROOT)).map(|bytes| bytes.is_some());
        let notes = Self {
            format: FORMAT,
            ..self.clone()
        };
        if is_listed()? {
            objects.put(&key(id, NOTES), &seal(&notes)?, &PutIf::Always)?;
        }
        match is_listed()? {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::NotFound,
                format!("could not find backup {id:?} in {}", objects.describe("")),
            )),
        }
    }

    /// Put what is noted in place of what the root says.
    pub fn apply(&self, root: &mut Root) {
        if let Some(tags) = &self.tags {
            root.tags.clone_from(tags);
        }
    }
}
