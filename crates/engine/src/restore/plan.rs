//! A restore as a value: everything is chosen and checked, and nothing is written yet.

use super::{
    checks::{refuse_replacing_source, refuse_target_in_source},
    cluster,
    request::Restore,
    rules::{EntryFate, EntryRules},
};
use fullbore_format::{entry, error::Result, sizes};
use fullbore_repository::archive::{Archive, Selection, unnamed_losses};
use fullbore_tree::write::layout::TargetLayout;

/// The plan of a restore.
pub(crate) struct RestorePlan {
    pub(crate) archive: Archive,
    pub(crate) selection: Selection,
    /// Which entries are restored, and how.
    pub(crate) rules: Box<dyn EntryRules>,
    /// The places of all files, with the bytes for each place.
    pub(crate) layout: TargetLayout,
    /// The reason why the backup may lack files that it cannot name.
    pub(crate) unnamed: Option<&'static str>,
}

impl RestorePlan {
    /// Plans the restore of an open backup.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](fullbore_format::error::ErrorKind::NotFound) for a path that the backup does not have; those of the rules.
    pub(crate) fn new(restore: &Restore, archive: Archive) -> Result<Self> {
        let selection = restore.selection(&archive)?;
        restore.check_paths(&archive, &selection)?;
        let rules = cluster::rules(restore, &archive, &selection)?;
        let layout = layout(restore, &archive, &selection, &*rules);
        let unnamed = unnamed_losses::loss_affects(&archive, &selection)?;
        Ok(Self {
            archive,
            selection,
            rules,
            layout,
            unnamed,
        })
    }

    /// Refuses a target in the repository that is read, and one that has it.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](fullbore_format::error::ErrorKind::Usage).
    pub(crate) fn check_source(&self, restore: &Restore) -> Result<()> {
        refuse_target_in_source(restore, &self.archive, &self.layout)?;
        refuse_replacing_source(restore, &self.archive, &self.selection, &self.layout)
    }
}

/// Returns the places of all files, with the bytes for each place.
fn layout(
    restore: &Restore,
    archive: &Archive,
    selection: &Selection,
    rules: &dyn EntryRules,
) -> TargetLayout {
    let mut layout = TargetLayout::plain(&restore.to);
    rules.arrange(&mut layout);
    if !selection.paths().is_empty() {
        return layout;
    }
    if layout.mounts.is_empty() && rules.restores_all() {
        let totals = &archive.root.totals;
        // `bytes` includes holes; the sum includes headers and the bytes kept in other backups.
        // Each is at least the bytes to be written.
        layout.bytes = totals
            .bytes
            .min(totals.plain_bytes.saturating_add(totals.kept_bytes));
        return layout;
    }
    // Unreadable pages are reported by the restore itself.
    let items = archive.records(selection, false).flatten();
    for item in items.filter(|item| item.from == 0) {
        let path = &item.entry.path;
        if rules.fate(path) != EntryFate::Restored {
            continue;
        }
        let mut mounts = layout.mounts.iter_mut();
        let mount = mounts.find(|mount| entry::is_within(path, &mount.at));
        let bytes = mount.map_or(&mut layout.bytes, |mount| &mut mount.bytes);
        sizes::add(bytes, item.entry.data_len());
    }
    layout
}
