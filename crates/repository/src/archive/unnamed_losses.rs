//! Losses that a backup cannot name: entries that went with its root, with a segment or with a page
//! of its manifest.
//!
//! No remaining page lists these entries, so their names are unknown. The repaired root records the
//! loss as an entry with the empty path, or with the path of the first lost entry. An export copies
//! the record, and a restore of a part that may be affected prints it.

use super::{Archive, Selection};
use fullbore_format::{
    entry::EntryKind,
    error::{ErrorKind, Result},
    root::{EntryName, MAX_NOT_CAPTURED, NotCaptured, Root},
};

/// Recorded in a root that was rebuilt: pages it shared with others are lost.
const REASON: &str =
    "the root was lost: entries that this backup shared with others by whole pages are missing";
/// Recorded for a lost segment, or a lost part of one.
const OF_A_SEGMENT: &str =
    "the root was lost, and a segment or a part of one: the entries in it are unknown and missing";
/// Recorded for a lost page, with the count of its entries before it.
const OF_A_PAGE: &str = "entries from here on were lost with a page of the manifest";
/// Printed for a lost page.
const WITH_A_PAGE: &str =
    "entries with unknown names were lost with a page of the manifest: they are missing";

/// Records in the root that pages shared with other backups are lost.
pub fn record_root_loss(root: &mut Root) {
    note(
        root,
        NotCaptured {
            path: EntryName::default(),
            reason: REASON.to_owned(),
        },
        1,
    );
}

/// Records in the root that a segment or a part of one is lost. Its entries are unknown.
pub fn record_segment_loss(root: &mut Root) {
    note(
        root,
        NotCaptured {
            path: EntryName::default(),
            reason: OF_A_SEGMENT.to_owned(),
        },
        1,
    );
}

/// Records in the root that this many entries are lost, of which this would be the first.
pub fn record_page_loss(root: &mut Root, first: &[u8], entries: u64) {
    note(
        root,
        NotCaptured {
            path: EntryName(first.to_vec()),
            reason: format!("{entries} {OF_A_PAGE}"),
        },
        entries,
    );
}

/// Copies the losses of a backup to the root of its export.
pub fn copy_losses(root: &mut Root, source: &Root) {
    for lost in source
        .not_captured
        .iter()
        .filter(|lost| unnamed(lost).is_some())
    {
        let entries = lost
            .reason
            .split(' ')
            .next()
            .and_then(|count| count.parse().ok());
        note(root, lost.clone(), entries.unwrap_or(1));
    }
}

/// Inserts the loss before all named entries: the end of that list may be dropped.
fn note(root: &mut Root, lost: NotCaptured, entries: u64) {
    root.totals.unreadable = root.totals.unreadable.saturating_add(entries);
    root.not_captured.insert(0, lost);
    root.not_captured.truncate(MAX_NOT_CAPTURED);
}

/// Returns the reason if the entry stands for losses without a name.
fn unnamed(lost: &NotCaptured) -> Option<&'static str> {
    match &lost.reason {
        reason if lost.path.0.is_empty() && reason == REASON => Some(REASON),
        reason if lost.path.0.is_empty() && reason == OF_A_SEGMENT => Some(OF_A_SEGMENT),
        reason if reason.ends_with(OF_A_PAGE) => Some(WITH_A_PAGE),
        _ => None,
    }
}

/// Returns why the selection may be incomplete, if it may be. A single file is there, or it is not.
///
/// # Errors
/// [`ErrorKind::Gone`], or an error of the system.
pub fn loss_affects(archive: &Archive, selection: &Selection) -> Result<Option<&'static str>> {
    let Some(reason) = archive.root.not_captured.iter().find_map(unnamed) else {
        return Ok(None);
    };
    for path in selection.paths() {
        // A lost page may have had any entry.
        let found = archive.find(path).or_else(|e| {
            if e.kind == ErrorKind::Corrupt {
                Ok(Vec::new())
            } else {
                Err(e)
            }
        })?;
        if found.first().is_none_or(|item| {
            matches!(
                item.entry.kind,
                EntryKind::Directory | EntryKind::HardLink(_)
            )
        }) {
            return Ok(Some(reason));
        }
    }
    Ok(selection.paths().is_empty().then_some(reason))
}
