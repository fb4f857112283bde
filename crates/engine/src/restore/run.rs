//! The shared state of a restore, and the planning of one entry.

use super::{
    deferral::FileDeferral,
    directories,
    existing::NewerFiles,
    rules::{EntryFate, EntryRules},
};
use crate::report::{damage::Report, skipped::SkippedEntries};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath},
    error::{Error, Result},
    page::{EntryState, PageItem},
};
use fullbore_pipeline::ordered::Permits;
use fullbore_platform::{metrics::meter::Meter, queue::Locked};
use fullbore_repository::archive::{Archive, Selection, missing::MissingParts};
use fullbore_tree::write::{tree::TargetTree, writer::TargetWriter};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
};

/// The state that the workers of one restore share.
pub(crate) struct RestoreRun<'a> {
    pub(crate) archive: Archive,
    pub(crate) selection: Selection,
    /// The rules by which entries are restored, emptied or left out.
    pub(crate) rules: Box<dyn EntryRules>,
    pub(crate) tree: Arc<TargetTree>,
    pub(crate) report: Arc<Report>,
    pub(crate) meter: &'a Meter,
    /// Permits to decode and digest; they bound the busy threads.
    pub(super) permits: Arc<Permits>,
    /// Stand-ins: if a file itself is not selected, its first selected hard link becomes the file.
    /// Maps the file to that link.
    pub(super) stand_ins: Mutex<HashMap<EntryPath, EntryPath>>,
    /// Selected parts that the backup does not hold as they were.
    pub(super) lacking: Mutex<MissingParts>,
    /// Files that were not captured. Hard links to these are not made, because another file may be
    /// at the same path.
    pub(super) absent: Mutex<HashSet<EntryPath>>,
    /// Directories that keep the metadata they have.
    pub(super) not_ours: Mutex<HashSet<EntryPath>>,
    /// Files that are kept because they are newer than in the backup.
    pub(super) newer: NewerFiles,
    /// Entries that the target cannot take.
    pub(crate) refused: SkippedEntries,
    /// Makes placeholders of files whose content comes later.
    pub(super) deferral: Option<Arc<dyn FileDeferral>>,
}

impl RestoreRun<'_> {
    /// Makes a directory, and passes every other restorable entry to `add`.
    pub(crate) fn plan_entry(
        &self,
        add: &mut dyn FnMut(PageItem) -> Result<()>,
        writer: &mut TargetWriter,
        item: PageItem,
    ) -> Result<()> {
        let item = match self.rules.fate(&item.entry.path) {
            EntryFate::Restored => {
                self.lacking.locked().note(&item);
                item
            }
            EntryFate::Emptied if item.from == 0 => item.without_content(),
            // The record is left out, or continues a file that is emptied already.
            _ => return Ok(()),
        };
        self.meter.entries.fetch_add(1, Relaxed);
        if let Some(message) = self.rules.misplaced(&item.entry.path) {
            let path = item.entry.path.clone();
            return self.report.add((Error::corrupt(message), vec![path]));
        }
        match &item.entry.kind {
            // A directory that could not be listed still holds entries of other streams.
            EntryKind::Directory if item.state != EntryState::Vanished => {
                self.make_directory(writer, &item.entry)
            }
            _ if !item.state.is_stored() => {
                if self.tree.options.overwrite {
                    self.mark_absent(&item.entry.path);
                }
                Ok(())
            }
            EntryKind::HardLink(target)
                if self.selection.takes(target) && !self.rules.leaves_out(target) =>
            {
                Ok(())
            }
            EntryKind::HardLink(target) => self.add_stand_in(add, target, &item.entry.path),
            _ if self.newer.keeps(writer, &item)? => {
                self.mark_absent(&item.entry.path);
                Ok(())
            }
            _ => add(item),
        }
    }

    /// Removes files that do not belong to the backup, and returns how many paths were removed
    /// completely.
    ///
    /// Paths that cannot be removed stay and are reported, as entries that cannot be made are.
    pub(super) fn remove_extraneous(&self, extra: &[EntryPath]) -> Result<u64> {
        let mut removed = 0;
        for path in extra {
            removed += u64::from(
                self.refused
                    .skip_if_single(&self.tree, "removal", path, self.tree.remove_all(path))?
                    .is_some(),
            );
        }
        Ok(removed)
    }

    /// Returns the value of `done`, or `None` if the target refused the entry at `path`, which is
    /// then left out.
    pub(crate) fn unless_refused<T>(&self, path: &[u8], done: Result<T>) -> Result<Option<T>> {
        self.refused.skip_if_single(&self.tree, "entry", path, done)
    }

    /// Makes a directory. An existing directory that is only a parent of the selected paths keeps
    /// its metadata.
    pub(super) fn make_directory(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<()> {
        let path = &entry.path;
        let asked_for = self.selection.holds(&entry.path);
        let Some(ours) = self.unless_refused(path, writer.directory(entry, asked_for))? else {
            return Ok(());
        };
        if !ours && !asked_for {
            self.not_ours.locked().insert(path.clone());
        }
        Ok(())
    }

    /// Makes the first selected name of a file the file itself, if the file's own name is not
    /// selected.
    fn add_stand_in(
        &self,
        add: &mut dyn FnMut(PageItem) -> Result<()>,
        target: &EntryPath,
        path: &EntryPath,
    ) -> Result<()> {
        let mut stand_ins = self.stand_ins.locked();
        if stand_ins
            .entry(target.clone())
            .or_insert_with(|| path.clone())
            != path
        {
            return Ok(());
        }
        drop(stand_ins);
        let found = self.archive.find(target);
        if !found
            .as_ref()
            .is_ok_and(|parts| directories::is_stored(parts))
        {
            self.mark_absent(target);
        }
        found?
            .iter()
            .map(|item| item.renamed(path.clone()))
            .try_for_each(|item| {
                if item.state.is_stored() {
                    add(item)
                } else {
                    self.lacking.locked().note(&item);
                    Ok(())
                }
            })
    }

    /// Prevents that hard links are made to a file that was not captured.
    fn mark_absent(&self, path: &EntryPath) {
        self.absent.locked().insert(path.clone());
    }
}
