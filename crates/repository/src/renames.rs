//! Finds files that have another path than before, by their inodes.
//!
//! The index is built from all pages of the base, when the first file without a record at its path
//! appears. If the base has more than a million files, the index contains the largest, so that its
//! size is bounded.

use crate::archive::Archive;
use fullbore_format::{
    entry::Entry,
    page::{ManifestPage, PageItem},
};
use fullbore_platform as platform;
use std::sync::Arc;

/// Files in the index, at most; 16 bytes each.
const MAX_FILES: usize = 1 << 20;
/// Pages that are read for the first file with a new path; a larger base is read only after
/// [`PATIENCE`] files.
const FEW_PAGES: usize = 16;
/// Number of files with new paths that justifies an index of many pages.
const PATIENCE: usize = 1000;
/// Number of renamed files that justifies reading one more page; a single file of [`LARGE_BYTES`]
/// does, too.
const FILES_OF_A_PAGE: usize = 16;
const LARGE_BYTES: u64 = 128 << 10;

/// Pages of the base that stay in memory.
const KEPT_PAGES: usize = 4;

/// The index of the files of a base by inode.
#[derive(Debug, Default)]
pub(super) struct RenameIndex {
    asked: usize,
    found: usize,
    read: usize,
    index: Option<Vec<RenamedRecord>>,
    /// The pages that were used last, the latest first: files below a renamed directory follow each
    /// other.
    pages: Vec<(u32, Arc<ManifestPage>)>,
}

/// A file: its inode, and the page and index of its record.
type RenamedRecord = (u64, u32, u32);

impl RenameIndex {
    /// Returns all parts of the record of the file of `archive` that has the inode of `entry`.
    /// Their pages are not kept.
    pub(super) fn find(&mut self, archive: &Archive, entry: &Entry) -> Option<Vec<PageItem>> {
        self.asked += 1;
        // The index reads all pages of the base. In a large base it is made only when many files
        // ask.
        if entry.inode == 0 || (archive.root.pages.len() > FEW_PAGES && self.asked < PATIENCE) {
            return None;
        }
        let index = self.index.get_or_insert_with(|| index(archive));
        let position = index
            .binary_search_by_key(&entry.inode, |(inode, ..)| *inode)
            .ok()?;
        let (_, page, record) = index[position];
        let item = PageItem::new(self.page(archive, page, entry.size())?, record as usize)?;
        self.found += 1;
        if item.more {
            archive.find(&item.entry.path).ok()
        } else {
            Some(vec![item.as_only_part()])
        }
    }

    /// Returns a page, if it is worth reading for a file of `size` bytes.
    fn page(&mut self, archive: &Archive, number: u32, size: u64) -> Option<Arc<ManifestPage>> {
        if let Some(index) = self.pages.iter().position(|(kept, _)| *kept == number) {
            self.pages[..=index].rotate_right(1);
            return self.pages.first().map(|(_, page)| page.clone());
        }
        if size < LARGE_BYTES && self.read > FEW_PAGES + self.found / FILES_OF_A_PAGE {
            return None;
        }
        self.read += 1;
        let page = archive.page(number as usize).ok()?;
        self.pages.truncate(KEPT_PAGES - 1);
        self.pages.insert(0, (number, page.clone()));
        Some(page)
    }
}

fn index(archive: &Archive) -> Vec<RenamedRecord> {
    let (mut places, mut least) = (Vec::new(), 0);
    for number in 0..archive.root.pages.len() {
        let page = match archive.page(number) {
            Ok(page) => page,
            Err(error) => {
                platform::debug(|| error.line());
                continue;
            }
        };
        for (position, record) in page.records.iter().enumerate() {
            let size = record.entry.size();
            if record.entry.is_file()
                && record.from == 0
                && record.entry.inode != 0
                && size >= least
            {
                places.push((size, (record.entry.inode, number as u32, position as u32)));
            }
        }
        if places.len() > 2 * MAX_FILES {
            least = shorten(&mut places);
        }
    }
    if places.len() > MAX_FILES {
        shorten(&mut places);
    }
    let mut places: Vec<RenamedRecord> = places.into_iter().map(|(_, place)| place).collect();
    places.sort_unstable();
    // Files with the same inode number are on several devices, so the number does not identify one
    // of them.
    let mut unique: Vec<RenamedRecord> = Vec::with_capacity(places.len());
    unique.extend(
        (0..places.len())
            .filter(|position| is_alone(*position, &places))
            .map(|position| places[position]),
    );
    unique
}

fn is_alone(position: usize, places: &[(u64, u32, u32)]) -> bool {
    let inode = places[position].0;
    (position == 0 || places[position - 1].0 != inode)
        && places.get(position + 1).is_none_or(|next| next.0 != inode)
}

/// Keeps the largest files, and returns the size of the smallest of them.
fn shorten(places: &mut Vec<(u64, RenamedRecord)>) -> u64 {
    places.select_nth_unstable_by(MAX_FILES, |a, b| b.0.cmp(&a.0));
    places.truncate(MAX_FILES);
    places.iter().map(|(size, _)| *size).min().unwrap_or(0)
}
