//! Lists what a backup would store, without storing anything.

use super::{Backup, OpenedSubject};
use fullbore_format::{
    entry::{Entry, EntryPath},
    entry_difference::{EntryDifference, difference},
    error::Result,
};
use fullbore_pipeline::{frame::Scanned, sink::Referred};
use fullbore_repository::{
    archive::Archive,
    base::{Base, ChosenBases},
    first_look::FirstLook,
};
use std::{
    collections::{HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
};

/// How an entry of the source differs from the last backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceChange {
    /// The last backup does not have it.
    Added,
    /// It has another kind, size, time, mode or owner; or, if it is no file, another attribute.
    Changed,
    /// The source does not have it any more, or it is excluded now.
    Removed,
}

/// Receives each change.
pub type ChangeListener<'a> = &'a mut dyn FnMut(SourceChange, &EntryPath) -> Result<()>;

/// The last backup of the source, and the entries that were met.
pub(super) struct ChangeList<'a> {
    base: Option<Arc<Archive>>,
    /// Hashes of paths: 8 bytes an entry.
    met: HashSet<u64>,
    say: ChangeListener<'a>,
}

impl<'a> ChangeList<'a> {
    /// Finds the last backup. Without one, all entries are new.
    ///
    /// # Errors
    /// Those of reading the repository.
    pub(super) fn new(
        backup: &Backup,
        subject: &OpenedSubject,
        say: ChangeListener<'a>,
    ) -> Result<Self> {
        let objects = backup
            .to
            .storage()
            .filter(|_| !backup.to.is_new_repository());
        let base = match objects {
            Some(objects) => backup.with_facts(subject, |like| {
                let look = FirstLook::take(&**objects)?;
                let not = backup.not_in_all(&look);
                let chosen = ChosenBases::of(objects, &look.files, not, &backup.base, like)?;
                // Nothing is announced: this backup stores nothing.
                let referred = |_: &[String]| {
                    let sizes = objects.answers_late().then(|| Arc::new(look.sizes()));
                    Ok(Referred {
                        sizes,
                        ..Referred::default()
                    })
                };
                Base::find(objects, &backup.base, like, chosen, referred).map(|found| found.base)
            })?,
            None => None,
        };
        Ok(Self {
            base: base.and_then(|base| base.latest_archive()),
            met: HashSet::new(),
            say,
        })
    }

    /// Compares an entry of the source.
    ///
    /// # Errors
    /// Those of the pages of the last backup, and of the listener.
    pub(super) fn compare(&mut self, scanned: &Scanned) -> Result<()> {
        let entry = &scanned.entry;
        let Some(base) = &self.base else {
            return (self.say)(SourceChange::Added, &entry.path);
        };
        self.met.insert(hash(&entry.path));
        match base.find(&entry.path)?.last() {
            None => (self.say)(SourceChange::Added, &entry.path),
            Some(before) if is_same(&before.entry, entry) => Ok(()),
            Some(_) => (self.say)(SourceChange::Changed, &entry.path),
        }
    }

    /// Lists what only the last backup has.
    ///
    /// # Errors
    /// As [`ChangeList::compare`].
    pub(super) fn finish(self) -> Result<()> {
        let Some(base) = self.base else { return Ok(()) };
        for item in base.into_records() {
            let item = item?;
            if !item.more && !self.met.contains(&hash(&item.entry.path)) {
                (self.say)(SourceChange::Removed, &item.entry.path)?;
            }
        }
        Ok(())
    }
}

fn hash(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

/// The scan does not read what is known only when a file is opened: its holes and its attributes.
fn is_same(before: &Entry, now: &Entry) -> bool {
    let found = difference(before, now);
    let seen = EntryDifference {
        holes: false,
        attributes: found.attributes && !now.is_file(),
        ..found
    };
    seen.is_none()
}
