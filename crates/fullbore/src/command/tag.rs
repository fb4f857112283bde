//! Annotates a backup: tags, and a pin that protects it from `forget`.

use super::show::tag;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text,
};
use fullbore_repository::{
    annotations::Annotations,
    open::{locate, open_in},
    select::BackupFilter,
};
use fullbore_storage::Storages;
use serde_json::json;
use std::{ffi::OsString, io::Write};

/// The backup and the changes to its tags.
#[derive(Debug, Clone, Default)]
pub struct TagCommand {
    /// How storages are reached.
    pub storages: Storages,
    /// `REPO[@BACKUP]`.
    pub from: OsString,
    /// Selects the source if the latest backup could be of several.
    pub filter: BackupFilter,
    /// Tags to set.
    pub set: Vec<(String, String)>,
    /// Keys of tags to remove.
    pub remove: Vec<String>,
    /// Whether to print JSON.
    pub json: bool,
}

/// The backup to pin or unpin.
#[derive(Debug, Clone, Default)]
pub struct Pin {
    /// How storages are reached.
    pub storages: Storages,
    /// `REPO[@BACKUP]`.
    pub from: OsString,
    /// Selects the source if the latest backup could be of several.
    pub filter: BackupFilter,
    /// Whether the backup is pinned or unpinned.
    pub pinned: bool,
    /// Whether to print JSON.
    pub json: bool,
}

impl TagCommand {
    /// Changes the tags, and prints the new ones.
    ///
    /// # Errors
    /// Those of opening the backup; [`ErrorKind::NotFound`] if a tag to remove does not exist;
    /// [`ErrorKind::Usage`] if a tag is to be both set and removed; errors of the system.
    pub fn run(&self, out: &mut dyn Write) -> Result<()> {
        if let Some((key, _)) = self.set.iter().find(|(key, _)| self.remove.contains(key)) {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("cannot both set and remove tag {key:?}"),
            ));
        }
        let (objects, id) = locate(&self.storages, &self.from, &self.filter)?;
        let notes = Annotations::read(&*objects, &id)?;
        let mut tags = open_in(&objects, Some(&id), &self.filter)?.root.tags;
        for key in &self.remove {
            if tags.remove(key).is_none() {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("backup {id:?} has no tag {key:?}"),
                ));
            }
        }
        tags.extend(self.set.iter().cloned());
        if !(self.set.is_empty() && self.remove.is_empty()) {
            Annotations {
                tags: Some(tags.clone()),
                ..notes
            }
            .write(&*objects, &id)?;
        }
        if self.json {
            return text::json(out, &json!({ "id": id, "tags": tags }));
        }
        tags.iter()
            .try_for_each(|(key, value)| text::line(out, &format!("{id}  {}", tag(key, value))))
    }
}

impl Pin {
    /// Pins or unpins the backup.
    ///
    /// # Errors
    /// Those of finding the backup; errors of the system.
    pub fn run(&self, out: &mut dyn Write) -> Result<()> {
        let (objects, id) = locate(&self.storages, &self.from, &self.filter)?;
        let notes = Annotations::read(&*objects, &id)?;
        Annotations {
            pinned: self.pinned,
            ..notes
        }
        .write(&*objects, &id)?;
        if self.json {
            return text::json(out, &json!({ "id": id, "pinned": self.pinned }));
        }
        let fate = if self.pinned {
            "pinned: it is never forgotten"
        } else {
            "no longer pinned"
        };
        text::line(out, &format!("{id}  {fate}"))
    }
}
