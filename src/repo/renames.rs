//! Finds files that have another path than before, by their inodes.
//!
//! The index is made when the first such file may be there, from all pages of the base; of more than a million files it
//! has the largest, so that its size does not depend on how many there are.

use crate::{
    archive::Archive,
    format::{
        entry::Entry,
        page::{ManifestPage, PageItem},
    },
    platform,
};
use std::sync::Arc;

/// Files in the index, at most; 16 bytes each.
const MAX_FILES: usize = 1 << 20;
/// Pages that are read for the first file with a new path; more of them only after [`PATIENCE`] files.
const FEW_PAGES: usize = 16;
/// So many files with new paths pay for an index of many pages.
const PATIENCE: usize = 1000;
/// So many files that are found pay for reading one more page; and so does a file of [`LARGE_BYTES`].
const FILES_OF_A_PAGE: usize = 16;
const LARGE_BYTES: u64 = 128 << 10;

/// Pages of the base that are kept.
const KEPT_PAGES: usize = 4;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Moved {
    asked: usize,
    found: usize,
    read: usize,
    index: Option<Vec<Place>>,
    /// The pages used last, the latest first: files below a directory that was renamed follow each other.
    pages: Vec<(u32, Arc<ManifestPage>)>,
}

/// A file: its inode, and where its record is.
type Place = (u64, u32, u32);

impl Moved {
    /// The record of the file of `archive` that has the inode of `entry`, in all its parts. Their pages are not kept.
    pub(super) fn find(&mut self, archive: &Archive, entry: &Entry) -> Option<Vec<PageItem>> {
        self.asked += 1;
        if entry.inode == 0 || (archive.root.pages.len() > FEW_PAGES && self.asked < PATIENCE) {
            return None;
        }
        let index = self.index.get_or_insert_with(|| index(archive));
        let at = index
            .binary_search_by_key(&entry.inode, |(inode, ..)| *inode)
            .ok()?;
        let (_, page, record) = index[at];
        let item = PageItem::new(self.page(archive, page, entry.size())?, record as usize)?;
        self.found += 1;
        if item.more {
            archive.find(&item.entry.path).ok()
        } else {
            Some(vec![item.as_only_part()])
        }
    }

    /// A page, if it is worth reading for a file of `size` bytes.
    fn page(&mut self, archive: &Archive, number: u32, size: u64) -> Option<Arc<ManifestPage>> {
        if let Some(at) = self.pages.iter().position(|(kept, _)| *kept == number) {
            self.pages[..=at].rotate_right(1);
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

fn index(archive: &Archive) -> Vec<Place> {
    let (mut places, mut least) = (Vec::new(), 0);
    for number in 0..archive.root.pages.len() {
        let page = match archive.page(number) {
            Ok(page) => page,
            Err(error) => {
                platform::debug(|| error.line());
                continue;
            }
        };
        for (at, record) in page.records.iter().enumerate() {
            let size = record.entry.size();
            if record.entry.is_file()
                && record.from == 0
                && record.entry.inode != 0
                && size >= least
            {
                places.push((size, (record.entry.inode, number as u32, at as u32)));
            }
        }
        if places.len() > 2 * MAX_FILES {
            least = shorten(&mut places);
        }
    }
    if places.len() > MAX_FILES {
        shorten(&mut places);
    }
    let mut places: Vec<Place> = places.into_iter().map(|(_, place)| place).collect();
    places.sort_unstable();
    // Several files of one number are on several devices: which is meant is not known.
    let mut unique: Vec<Place> = Vec::with_capacity(places.len());
    let alone = |at: usize| {
        let inode = places[at].0;
        (at == 0 || places[at - 1].0 != inode)
            && places.get(at + 1).is_none_or(|next| next.0 != inode)
    };
    unique.extend(
        (0..places.len())
            .filter(|at| alone(*at))
            .map(|at| places[at]),
    );
    unique
}

/// Keep the largest files; gives the size of the smallest of them.
fn shorten(places: &mut Vec<(u64, Place)>) -> u64 {
    places.select_nth_unstable_by(MAX_FILES, |a, b| b.0.cmp(&a.0));
    places.truncate(MAX_FILES);
    places.iter().map(|(size, _)| *size).min().unwrap_or(0)
}
