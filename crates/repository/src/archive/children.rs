//! The entries directly in one directory of a backup, found by searches in the pages.
//!
//! In a page the subtrees of a directory lie between its children. After a child that is a
//! directory, the next child is found by a binary search, first in the list of pages and then in
//! one page. So a directory costs the pages that hold its children, and at most one more for each
//! child that is a directory. Memory holds one page, whatever the number of children.

use super::Archive;
use fullbore_format::{
    entry::{self, EntryPath},
    error::Result,
    page::PageItem,
};

/// One entry of a directory.
#[derive(Debug, Clone)]
pub struct DirectoryChild {
    /// The first record at or below the child, by its number in the backup.
    pub number: u64,
    /// The path of the child.
    pub path: EntryPath,
    /// Its first record in its final state; `None` for a directory of which the backup has only
    /// entries below it.
    pub item: Option<PageItem>,
}

impl DirectoryChild {
    /// The last component of its path.
    pub fn name(&self) -> &[u8] {
        entry::split(&self.path).1
    }
}

/// Iterates over the children of a directory: sequence after sequence of pages, each in archive
/// order. Each name is returned once.
///
/// An unreadable page gives one error; the children in other pages follow.
pub struct Children<'a> {
    archive: &'a Archive,
    dir: EntryPath,
    sequence: usize,
    /// Place in the sequence of the next page, and the index in it; `None` before the sequence
    /// was searched.
    at: Option<(usize, usize)>,
}

impl<'a> Children<'a> {
    pub(super) fn new(archive: &'a Archive, dir: &[u8]) -> Self {
        Self {
            archive,
            dir: dir.to_vec(),
            sequence: 0,
            at: None,
        }
    }

    /// Continues behind the child with this number.
    ///
    /// # Errors
    /// As [`Archive::page`].
    pub fn after(mut self, number: u64) -> Result<Self> {
        let index = self.archive.index();
        let Some((page, record)) = index.place(number) else {
            self.sequence = index.sequences.len();
            return Ok(self);
        };
        let Some((sequence, position)) = index.sequence_of(page) else {
            return Ok(self);
        };
        self.sequence = sequence;
        self.at = Some((position, record));
        let page = self.archive.page(page)?;
        match page.records.get(record).map(|record| &record.entry.path) {
            Some(path) if self.is_below(path) => {
                let child = self.child_path(path);
                self.pass(&child);
            }
            _ => self.at = Some((position, record.saturating_add(1))),
        }
        Ok(self)
    }

    fn is_below(&self, path: &[u8]) -> bool {
        path.len() > self.dir.len() && entry::is_within(path, &self.dir)
    }

    fn child_path(&self, path: &[u8]) -> EntryPath {
        entry::join(&self.dir, entry::child_component(&self.dir, path))
    }

    fn own(&self) -> Option<&'a [usize]> {
        let sequences = &self.archive.index().sequences;
        sequences.get(self.sequence).map(Vec::as_slice)
    }

    /// Moves to the first record in the sequence for which `precedes` is false, never backwards.
    fn search(&mut self, own: &[usize], precedes: impl Fn(&[u8]) -> bool) -> Result<()> {
        let pages = &self.archive.root.pages;
        let next = own.partition_point(|index| precedes(&pages[*index].first.0));
        let position = next.saturating_sub(1);
        let start = self.at.unwrap_or_default();
        if position < start.0 {
            return Ok(());
        }
        // The page is searched only if the wanted record may be in it.
        self.at = Some((position, 0).max(start));
        let page = self.archive.page(own[position])?;
        let index = page
            .records
            .partition_point(|record| precedes(&record.entry.path));
        self.at = Some((position, index).max(start));
        Ok(())
    }

    /// Moves behind `child` and everything below it.
    fn pass(&mut self, child: &[u8]) {
        let Some(own) = self.own() else { return };
        if let Some((position, index)) = self.at {
            self.at = Some((position, index + 1));
        }
        let precedes =
            |path: &[u8]| entry::is_within(path, child) || entry::order(path, child).is_lt();
        // An unreadable page is found again by the next step, which reports it.
        let _ = self.search(own, precedes);
    }

    /// Returns the record at the present place; `None` at the end of the sequence.
    fn here(&mut self, own: &[usize]) -> Result<Option<(u64, PageItem)>> {
        if self.at.is_none() {
            let dir = self.dir.clone();
            self.search(own, |path| entry::order(path, &dir).is_le())?;
        }
        while let Some((position, index)) = self.at {
            let Some(page_number) = own.get(position) else {
                break;
            };
            let page = self.archive.page(*page_number)?;
            if let Some(item) = PageItem::new(page, index) {
                let number = self.archive.index().number(*page_number, index);
                return Ok(Some((number, item)));
            }
            self.at = Some((position + 1, 0));
        }
        Ok(None)
    }

    /// Returns the child at the present place, and moves behind it.
    fn step(&mut self, own: &[usize]) -> Result<Option<DirectoryChild>> {
        while let Some((number, item)) = self.here(own)? {
            if !self.is_below(&item.entry.path) {
                return Ok(None);
            }
            let path = self.child_path(&item.entry.path);
            let is_first = item.from == 0 && item.entry.path == path;
            self.pass(&path);
            // A damaged page of another sequence must not hide this child.
            if self.is_double(&path).unwrap_or(false) {
                continue;
            }
            let item = is_first.then(|| self.settled(item)).flatten();
            return Ok(Some(DirectoryChild { number, path, item }));
        }
        Ok(None)
    }

    /// Returns a record in its final state, or as it is if its last part cannot be read.
    fn settled(&self, item: PageItem) -> Option<PageItem> {
        let found = self.archive.settle(item.clone());
        found.unwrap_or(Some(item))
    }

    /// Returns whether an earlier sequence has the path, or entries below it.
    fn is_double(&self, path: &[u8]) -> Result<bool> {
        let earlier = &self.archive.index().sequences[..self.sequence];
        for own in earlier {
            let other = Self {
                archive: self.archive,
                dir: path.to_vec(),
                sequence: 0,
                at: None,
            };
            if other.exists_in(own)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether a sequence has the directory itself, or entries below it.
    fn exists_in(mut self, own: &[usize]) -> Result<bool> {
        let dir = self.dir.clone();
        self.search(own, |path| entry::order(path, &dir).is_lt())?;
        let found = self.here(own)?;
        Ok(found.is_some_and(|(_, item)| entry::is_within(&item.entry.path, &dir)))
    }
}

impl Iterator for Children<'_> {
    type Item = Result<DirectoryChild>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(own) = self.own() {
            match self.step(own) {
                Ok(Some(child)) => return Some(Ok(child)),
                Ok(None) => {
                    self.sequence += 1;
                    self.at = None;
                }
                Err(error) => {
                    let position = self.at.map_or(0, |(position, _)| position);
                    self.at = Some((position + 1, 0));
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
