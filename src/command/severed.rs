//! What a backup shared with others by whole pages, and lost with its root.
//!
//! No page that is left speaks of it: the root that is rebuilt says so with an entry that has the empty path, an export of the
//! backup goes on saying it, and whoever restores a part that may be concerned hears of it. A file that goes on in such a
//! page is not captured any more.

use super::{forgo::without, rebuild::Found};
use crate::{
    error::Result,
    format::{
        entry::{Kind, Path as EntryPath},
        page::{Record, are_all},
        root::{MAX_NOT_CAPTURED, Name, NotCaptured, Root},
    },
    source::archive::{Archive, Selection},
};
use std::collections::{BTreeMap, HashSet};

/// What the root says.
const REASON: &str = "the root was lost: what this backup shared with others by whole pages is not in it any more";
/// What is said of a file of which a part was on such a page.
const CUT_OFF: &str = "the root was lost, and with it the page that said where the rest of the file is";

/// Say it in the root.
pub(super) fn mark(root: &mut Root) {
    root.totals.unreadable += 1;
    root.not_captured.insert(0, NotCaptured { path: Name::default(), reason: REASON.to_owned() });
    root.not_captured.truncate(MAX_NOT_CAPTURED);
}

/// Does the root say it?
pub(super) fn is_marked(root: &Root) -> bool {
    root.not_captured.iter().any(|lost| lost.path.0.is_empty() && lost.reason == REASON)
}

/// Why there may be less of what is selected than there was, if that is so. A single file is there, or it is not.
///
/// # Errors
/// Damage to a page.
pub(super) fn concerns(archive: &Archive, selection: &Selection) -> Result<Option<&'static str>> {
    if !is_marked(&archive.root) {
        return Ok(None);
    }
    for path in selection.paths() {
        let found = archive.find(path)?;
        if found.first().is_none_or(|item| matches!(item.entry.kind, Kind::Directory | Kind::HardLink(_))) {
            return Ok(Some(REASON));
        }
    }
    Ok(selection.paths().is_empty().then_some(REASON))
}

/// Take the content from files of which these pages say a part only; gives how many there were.
///
/// # Errors
/// If a page cannot be encoded.
pub(super) fn give_up(found: &mut Vec<Found>) -> Result<usize> {
    let files = cut_off(found.iter().flat_map(|found| &found.page.records));
    if files.is_empty() {
        return Ok(0);
    }
    for found in found.iter_mut() {
        if found.page.records.iter().any(|record| files.contains(&record.entry.path)) {
            let page = without(std::mem::take(&mut found.page), &files, CUT_OFF, |_| {});
            // What is in the segment says more than is true.
            (found.stored, found.page, found.is_copied) = (page.encode()?, page, false);
        }
    }
    // An earlier repair may have come to the same.
    let mut seen = HashSet::new();
    found.retain(|found| !found.page.records.is_empty() && seen.insert(found.stored.clone()));
    Ok(files.len())
}

/// The files of which these records do not say where all is.
pub(super) fn cut_off<'a>(records: impl Iterator<Item = &'a Record>) -> HashSet<EntryPath> {
    let mut files: BTreeMap<&EntryPath, Vec<&Record>> = BTreeMap::new();
    for record in records.filter(|record| record.more || record.from > 0) {
        files.entry(&record.entry.path).or_default().push(record);
    }
    files.retain(|_, parts| {
        parts.sort_by_key(|part| part.from);
        !are_all(parts)
    });
    files.into_keys().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{
        entry::Entry,
        page::{Extent, FrameAt},
    };

    fn part(path: &str, from: u64, more: bool) -> Record {
        let frame = FrameAt { segment: 0, offset: 0, stored_len: 5, plain_len: 10 };
        let entry = Entry { path: path.into(), kind: Kind::File { size: 30, map: None }, ..Entry::default() };
        Record { entry, from, more, extents: vec![Extent { frame, inner: 0, len: 10 }], ..Record::default() }
    }

    #[test]
    fn a_file_is_cut_off_if_one_of_its_parts_is_not_there() {
        let parts = |path: &str| [part(path, 0, true), part(path, 10, true), part(path, 20, false)];
        let mut records = vec![part("one part", 0, false)];
        records.extend(parts("whole").into_iter().rev());
        for (gone, path) in ["no start", "no middle", "no end"].into_iter().enumerate() {
            records.extend(parts(path).into_iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, part)| part));
        }
        let cut_off = cut_off(records.iter());
        let mut names: Vec<_> = cut_off.iter().map(|path| String::from_utf8_lossy(path)).collect();
        names.sort();
        assert_eq!(names, ["no end", "no middle", "no start"]);
    }
}
