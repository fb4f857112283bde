//! A look at a repository before a backup to it begins: which objects there are, and the file that makes it a repository.
//!
//! Of a store or of another host it takes one round trip, and it serves the id of the new backup, the removal of what dead backups left,
//! and the choice of the base. It may be out of date when it is used: a base that is chosen by it is looked for again once it is
//! announced.

use super::{
    large_listing::LargeListing,
    protocol::{intents, listed_intents},
    roots::{BackupFiles, backup_files, key, listed_backups},
};
use fullbore_format::{
    error::Result,
    layout::{REPOSITORY, is_of_future},
};
use fullbore_platform::queue::run_both;
use fullbore_storage::Objects;
use jiff::Timestamp;
use std::collections::BTreeMap;

/// What a repository had at one moment. It may not exist yet.
#[derive(Debug, Default)]
pub struct FirstLook {
    /// The backups that have an object, by their ids.
    pub files: BTreeMap<String, BackupFiles>,
    /// The ids of all intents, ascending.
    pub(super) intents: Vec<String>,
    /// The content of the file that makes it a repository; `None` if it was not found, or not asked for.
    pub(super) repository: Option<Vec<u8>>,
    /// Those that took a store several requests.
    pub(super) large: Option<LargeListing>,
}

impl FirstLook {
    /// Looks at a repository.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn take(objects: &dyn Objects) -> Result<Self> {
        if !objects.answers_late() {
            return Ok(Self {
                files: backup_files(objects)?,
                intents: intents(objects)?,
                repository: None,
                large: None,
            });
        }
        // An error of this one comes again, with the words of its use.
        let repository = || objects.get(REPOSITORY).ok().flatten();
        let (repository, listed) = run_both(true, repository, || objects.list(""));
        let listed = listed?;
        Ok(Self {
            files: listed_backups(objects, &listed)?,
            intents: listed_intents(&listed),
            large: LargeListing::of(listed),
            repository: repository.map(|(bytes, _)| bytes),
        })
    }

    /// The bytes of the objects of all backups, by their keys.
    pub fn sizes(&self) -> BTreeMap<String, u64> {
        self.files
            .iter()
            .flat_map(|(id, files)| {
                files
                    .names()
                    .map(|name| (key(id, name), files.bytes(name).unwrap_or_default()))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Whether no backup is under way, and none has left its intent.
    pub fn has_no_intents(&self) -> bool {
        self.intents.is_empty()
    }

    /// The newest id of a backup or an intent that counts at `now`, see [`is_of_future`].
    pub(super) fn newest_id(&self, now: Timestamp) -> Option<&str> {
        let counts = |id: &&String| !is_of_future(id, now);
        let backup = self.files.keys().rev().find(counts);
        let intent = self.intents.iter().filter(counts).max();
        backup.max(intent).map(String::as_str)
    }
}
