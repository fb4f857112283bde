//! `fullbore tag`: sets, removes or prints the tags of a backup.

use crate::cli::{
    options::EXIT_CODES,
    output::told,
    report,
    select::SelectArgs,
    values::{distinct_tags, tag},
};
use clap::Args;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text,
};
use fullbore_repository::{
    annotations::Annotations,
    open::{locate, open_in},
};
use fullbore_storage::Storages;
use serde_json::json;
use std::{collections::BTreeMap, ffi::OsString, io::Write};

/// `fullbore tag`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::cli) struct TagArgs {
    /// A repository, with @BACKUP for one of its backups
    ///
    /// BACKUP is an id, latest, or a day on which exactly one backup began.
    #[arg(value_name = "REPO[@BACKUP]")]
    from: OsString,
    /// Tags to set, KEY or KEY=VALUE [default: print the tags]
    #[arg(value_name = "TAG", value_parser = tag)]
    tags: Vec<(String, String)>,
    /// Remove this tag (repeatable)
    #[arg(long, value_name = "KEY")]
    remove: Vec<String>,
    #[command(flatten)]
    select: SelectArgs,
    #[arg(from_global)]
    json: bool,
}

pub(in crate::cli) fn run(args: TagArgs, storages: &Storages) -> Result<u8> {
    told(|out| args.print(storages, out).map(|()| 0))
}

impl TagArgs {
    /// Changes the tags, and prints the new ones.
    ///
    /// # Errors
    /// Those of opening the backup; [`ErrorKind::NotFound`] if a tag to remove does not exist;
    /// [`ErrorKind::Usage`] if a tag is to be both set and removed; errors of the system.
    fn print(self, storages: &Storages, out: &mut dyn Write) -> Result<()> {
        let set = distinct_tags(self.tags)?;
        check_distinct(&set, &self.remove)?;
        let filter = self.select.filter(&self.from, true)?;
        let (objects, id) = locate(storages, &self.from, &filter)?;
        let notes = Annotations::read(&*objects, &id)?;
        let mut tags = open_in(&objects, Some(&id), &filter)?.root.tags;
        for key in &self.remove {
            if tags.remove(key).is_none() {
                let message = format!("backup {id:?} has no tag {key:?}");
                return Err(Error::new(ErrorKind::NotFound, message));
            }
        }
        let is_changed = !(set.is_empty() && self.remove.is_empty());
        tags.extend(set);
        if is_changed {
            let notes = Annotations {
                tags: Some(tags.clone()),
                ..notes
            };
            notes.write(&*objects, &id)?;
        }
        if self.json {
            return text::json(out, &json!({ "type": "result", "id": id, "tags": tags }));
        }
        tags.iter().try_for_each(|(key, value)| {
            text::line(out, &format!("{id}  {}", report::tag(key, value)))
        })
    }
}

fn check_distinct(set: &BTreeMap<String, String>, remove: &[String]) -> Result<()> {
    match remove.iter().find(|key| set.contains_key(*key)) {
        Some(key) => {
            let message = format!("cannot both set and remove tag {key:?}");
            Err(Error::new(ErrorKind::Usage, message))
        }
        None => Ok(()),
    }
}
