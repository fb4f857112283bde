//! What a backup lost with its root, as it shared it with others by whole pages, or with a page of its manifest.
//!
//! No page that is left speaks of it, and nobody knows the names: the root that is written anew says so, with an entry that has
//! the empty path or that of the first that is lost. An export of the backup goes on saying it, and whoever restores a part that
//! may be concerned hears of it. A file that goes on in such a page is not captured any more.

use super::{give_up::without, root::Found};
use crate::{
    archive::{Archive, Selection},
    error::{Kind as ErrorKind, Result},
    format::{
        entry::{Kind, Path as EntryPath},
        page::{Record, are_all},
        root::{MAX_NOT_CAPTURED, Name, NotCaptured, Root},
    },
};
use std::collections::{BTreeMap, HashSet};

/// What the root says.
const REASON: &str = "the root was lost: what this backup shared with others by whole pages is not in it any more";
/// What it says of a segment.
const OF_A_SEGMENT: &str = "the root was lost, and a segment with it or a part of one: nobody knows what that held, it is not in this backup any more";
/// What the root says of a page, with the count of its entries before it.
const OF_A_PAGE: &str = "entries from here on were lost with a page of the manifest";
/// What is said of that.
const WITH_A_PAGE: &str =
    "entries that nobody can name were lost with a page of the manifest: they are not in this backup any more";
/// What is said of a file of which a part was on such a page.
const CUT_OFF: &str = "the root was lost, and with it the page that said where the rest of the file is";

/// Say it in the root.
pub(crate) fn mark(root: &mut Root) {
    note(root, NotCaptured { path: Name::default(), reason: REASON.to_owned() }, 1);
}

/// Say in the root that a segment is lost, or a part of one, of which nothing tells what it held.
pub(crate) fn mark_segment(root: &mut Root) {
    note(root, NotCaptured { path: Name::default(), reason: OF_A_SEGMENT.to_owned() }, 1);
}

/// Say in the root that so many entries are lost, of which this would be the first.
pub(crate) fn mark_page(root: &mut Root, first: &[u8], entries: u64) {
    note(root, NotCaptured { path: Name(first.to_vec()), reason: format!("{entries} {OF_A_PAGE}") }, entries);
}

/// Say in the root of an export what that of the backup says.
pub(crate) fn go_on(root: &mut Root, of: &Root) {
    for lost in of.not_captured.iter().filter(|lost| unnamed(lost).is_some()) {
        let entries = lost.reason.split(' ').next().and_then(|count| count.parse().ok());
        note(root, lost.clone(), entries.unwrap_or(1));
    }
}

/// Before all that has a name: that list may be cut.
fn note(root: &mut Root, lost: NotCaptured, entries: u64) {
    root.totals.unreadable = root.totals.unreadable.saturating_add(entries);
    root.not_captured.insert(0, lost);
    root.not_captured.truncate(MAX_NOT_CAPTURED);
}

/// Does it speak of something without a name?
fn unnamed(lost: &NotCaptured) -> Option<&'static str> {
    match &lost.reason {
        reason if lost.path.0.is_empty() && reason == REASON => Some(REASON),
        reason if lost.path.0.is_empty() && reason == OF_A_SEGMENT => Some(OF_A_SEGMENT),
        reason if reason.ends_with(OF_A_PAGE) => Some(WITH_A_PAGE),
        _ => None,
    }
}

/// Why there may be less of what is selected than there was, if that is so. A single file is there, or it is not.
///
/// # Errors
/// [`ErrorKind::Gone`], or the system's.
pub(crate) fn concerns(archive: &Archive, selection: &Selection) -> Result<Option<&'static str>> {
    let Some(why) = archive.root.not_captured.iter().find_map(unnamed) else { return Ok(None) };
    for path in selection.paths() {
        // On a page that is lost it may be anything.
        let found =
            archive.find(path).or_else(|e| if e.kind == ErrorKind::Corrupt { Ok(Vec::new()) } else { Err(e) })?;
        if found.first().is_none_or(|item| matches!(item.entry.kind, Kind::Directory | Kind::HardLink(_))) {
            return Ok(Some(why));
        }
    }
    Ok(selection.paths().is_empty().then_some(why))
}

/// Take the content from files of which these pages say a part only, and all their other names; gives how many files there were.
///
/// # Errors
/// If a page cannot be encoded.
pub(crate) fn give_up(found: &mut Vec<Found>) -> Result<usize> {
    let mut files = cut_off(found.iter().flat_map(|found| &found.page.records));
    if files.is_empty() {
        return Ok(0);
    }
    let count = files.len();
    files.extend(names_of(&files, found.iter().flat_map(|found| &found.page.records)));
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
    Ok(count)
}

/// Those of these records that are other names of `files`.
pub(crate) fn names_of<'a>(files: &HashSet<EntryPath>, records: impl Iterator<Item = &'a Record>) -> Vec<EntryPath> {
    let is_name = |record: &&Record| matches!(&record.entry.kind, Kind::HardLink(target) if files.contains(target));
    records.filter(is_name).map(|record| record.entry.path.clone()).collect()
}

/// The files of which these records do not say where all is.
pub(crate) fn cut_off<'a>(records: impl Iterator<Item = &'a Record>) -> HashSet<EntryPath> {
    let mut files: BTreeMap<&EntryPath, Vec<&Record>> = BTreeMap::new();
    for record in records.filter(|record| !are_all(&[*record])) {
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
        let mut records = vec![part("too little in one part", 0, false)];
        records.extend(parts("whole").into_iter().rev());
        for (gone, path) in ["no start", "no middle", "no end"].into_iter().enumerate() {
            records.extend(parts(path).into_iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, part)| part));
        }
        let cut_off = cut_off(records.iter());
        let mut names: Vec<_> = cut_off.iter().map(|path| String::from_utf8_lossy(path)).collect();
        names.sort();
        assert_eq!(names, ["no end", "no middle", "no start", "too little in one part"]);
    }
}
