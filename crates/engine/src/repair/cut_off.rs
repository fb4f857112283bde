//! Files of which the remaining pages describe only a part, after a page of the manifest was lost.
//!
//! Such a file counts as not captured, and so do its other names.

use super::{found_page::FoundPage, give_up::without};
use fullbore_format::{
    entry::{EntryKind, EntryPath},
    error::Result,
    page::{Record, describe_whole_file},
};
use std::collections::{BTreeMap, HashSet};

/// The reason that is recorded for a file with a part on such a page.
const CUT_OFF: &str =
    "the root was lost, and with it the page that said where the rest of the file is";

/// Removes the content of files that these pages describe only in part, and of all their other
/// names. Returns the number of files.
///
/// # Errors
/// If a page cannot be encoded.
pub(crate) fn give_up(found: &mut Vec<FoundPage>) -> Result<usize> {
    let mut files = cut_off(found.iter().flat_map(|found| &found.page.records));
    if files.is_empty() {
        return Ok(0);
    }
    let count = files.len();
    files.extend(names_of(
        &files,
        found.iter().flat_map(|found| &found.page.records),
    ));
    for found in found.iter_mut() {
        if found
            .page
            .records
            .iter()
            .any(|record| files.contains(&record.entry.path))
        {
            let page = without(std::mem::take(&mut found.page), &files, CUT_OFF, |_| {});
            // The segment still has the content.
            (found.stored, found.page, found.is_copied) = (page.encode()?, page, false);
        }
    }
    // An earlier repair may have made the same page.
    let mut seen = HashSet::new();
    found.retain(|found| !found.page.records.is_empty() && seen.insert(found.stored.clone()));
    Ok(count)
}

/// Returns the records that are other names of `files`.
pub(crate) fn names_of<'a>(
    files: &HashSet<EntryPath>,
    records: impl Iterator<Item = &'a Record>,
) -> Vec<EntryPath> {
    let is_name = |record: &&Record| matches!(&record.entry.kind, EntryKind::HardLink(target) if files.contains(target));
    records
        .filter(is_name)
        .map(|record| record.entry.path.clone())
        .collect()
}

/// Returns the files that these records do not cover completely.
pub(crate) fn cut_off<'a>(records: impl Iterator<Item = &'a Record>) -> HashSet<EntryPath> {
    let mut files: BTreeMap<&EntryPath, Vec<&Record>> = BTreeMap::new();
    for record in records.filter(|record| !describe_whole_file(&[*record])) {
        files.entry(&record.entry.path).or_default().push(record);
    }
    files.retain(|_, parts| {
        parts.sort_by_key(|part| part.from);
        !describe_whole_file(parts)
    });
    files.into_keys().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::{
        entry::Entry,
        page::{Extent, FrameAt},
    };

    fn part(path: &str, from: u64, more: bool) -> Record {
        let frame = FrameAt {
            segment: 0,
            offset: 0,
            stored_len: 5,
            plain_len: 10,
        };
        let entry = Entry {
            path: path.into(),
            kind: EntryKind::File {
                size: 30,
                map: None,
            },
            ..Entry::default()
        };
        Record {
            entry,
            from,
            more,
            extents: vec![Extent {
                frame,
                inner: 0,
                len: 10,
            }],
            ..Record::default()
        }
    }

    #[test]
    fn a_file_is_cut_off_if_one_of_its_parts_is_not_there() {
        let parts = |path: &str| {
            [
                part(path, 0, true),
                part(path, 10, true),
                part(path, 20, false),
            ]
        };
        let mut records = vec![part("too little in one part", 0, false)];
        records.extend(parts("whole").into_iter().rev());
        for (gone, path) in ["no start", "no middle", "no end"].into_iter().enumerate() {
            records.extend(
                parts(path)
                    .into_iter()
                    .enumerate()
                    .filter(|(index, _)| *index != gone)
                    .map(|(_, part)| part),
            );
        }
        let cut_off = cut_off(records.iter());
        let mut names: Vec<_> = cut_off
            .iter()
            .map(|path| String::from_utf8_lossy(path))
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["no end", "no middle", "no start", "too little in one part"]
        );
    }
}
