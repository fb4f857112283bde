//! Note something of a backup: tags, and that it is never to be forgotten.

use super::show::tag;
use crate::{
    error::{Error, ErrorKind, Result},
    repo::{
        annotations::Annotations,
        open::{locate, named, open},
        select::BackupFilter,
    },
    text,
};
use serde_json::json;
use std::{ffi::OsString, io::Write};

/// Which tags to change.
#[derive(Debug, Clone, Default)]
pub struct TagCommand {
    /// `REPO[@BACKUP]`.
    pub from: OsString,
    /// Lists the sources where the latest backup may be of several.
    pub filter: BackupFilter,
    /// Tags to set.
    pub set: Vec<(String, String)>,
    /// Keys of tags to take away.
    pub remove: Vec<String>,
    /// Print JSON.
    pub json: bool,
}

/// Whether a backup may be forgotten.
#[derive(Debug, Clone, Default)]
pub struct Pin {
    /// `REPO[@BACKUP]`.
    pub from: OsString,
    /// Lists the sources where the latest backup may be of several.
    pub filter: BackupFilter,
    /// Never, or as the rules say?
    pub pinned: bool,
    /// Print JSON.
    pub json: bool,
}

impl TagCommand {
    /// Change them, and print those that there are now.
    ///
    /// # Errors
    /// Those of opening the backup; [`Kind::NotFound`] if a tag to take away is not there, [`Kind::Usage`] if it is to be set
    /// too; or the system's.
    pub fn run(&self, out: &mut dyn Write) -> Result<()> {
        if let Some((key, _)) = self.set.iter().find(|(key, _)| self.remove.contains(key)) {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("cannot set and take away tag {key:?}"),
            ));
        }
        let (repository, id) = locate(&self.from, &self.filter)?;
        let notes = Annotations::read(&repository, &id)?;
        let mut tags = open(named(&repository, &id), &self.filter)?.root.tags;
        for key in &self.remove {
            if tags.remove(key).is_none() {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("could not find tag {key:?} of backup {id:?}"),
                ));
            }
        }
        tags.extend(self.set.iter().cloned());
        if !(self.set.is_empty() && self.remove.is_empty()) {
            Annotations {
                tags: Some(tags.clone()),
                ..notes
            }
            .write(&repository, &id)?;
        }
        if self.json {
            return text::json(out, &json!({ "id": id, "tags": tags }));
        }
        tags.iter()
            .try_for_each(|(key, value)| text::line(out, &format!("{id}  {}", tag(key, value))))
    }
}

impl Pin {
    /// Note it.
    ///
    /// # Errors
    /// Those of finding the backup, or the system's.
    pub fn run(&self, out: &mut dyn Write) -> Result<()> {
        let (repository, id) = locate(&self.from, &self.filter)?;
        let notes = Annotations::read(&repository, &id)?;
        Annotations {
            pinned: self.pinned,
            ..notes
        }
        .write(&repository, &id)?;
        if self.json {
            return text::json(out, &json!({ "id": id, "pinned": self.pinned }));
        }
        let fate = if self.pinned {
            "pinned: it is never forgotten"
        } else {
            "not pinned any more"
        };
        text::line(out, &format!("{id}  {fate}"))
    }
}
