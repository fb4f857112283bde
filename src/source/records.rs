//! The records of a stored backup, one after the other.
//!
//! What a file is that goes on over pages, its last part says: only at its end it is known whether all of it could be read, and
//! of a stream, how long it is.

use super::archive::{Archive, Selection};
use crate::{
    error::Result,
    format::{
        entry,
        page::{Item, Page},
        root::PageAt,
    },
};
use std::{cmp::Ordering, ops::Deref, sync::Arc};

/// See [`Archive::records`].
pub struct Records<A: Deref<Target = Archive>> {
    archive: A,
    selection: Selection,
    cursors: Vec<Cursor>,
    backwards: bool,
}

/// How far one stream was read.
struct Cursor {
    /// Pages not opened yet; the next one is the last.
    pages: Vec<usize>,
    now: Option<Open>,
    /// The last part of the file that was met last, if it goes on over pages.
    last: Option<Item>,
}

/// A page, by its number in the root, and how many of its records have passed.
struct Open {
    number: usize,
    page: Arc<Page>,
    passed: usize,
}

impl<A: Deref<Target = Archive>> Records<A> {
    pub(super) fn new(archive: A, selection: &Selection, backwards: bool, wants: impl Fn(&PageAt) -> bool) -> Self {
        let cursor = |mut pages: Vec<usize>| {
            pages.retain(|at| wants(&archive.root.pages[*at]));
            if !backwards {
                pages.reverse();
            }
            Cursor { pages, now: None, last: None }
        };
        let cursors = archive.pages(selection).into_iter().map(cursor).collect();
        Self { archive, selection: selection.clone(), cursors, backwards }
    }

    /// Bring the cursor to its next wanted record; `None` at the end of the stream.
    fn settle(&mut self, at: usize) -> Result<Option<Item>> {
        let (archive, cursor) = (&*self.archive, &mut self.cursors[at]);
        loop {
            while let Some(open) = &mut cursor.now {
                let Some(item) = open.item(self.backwards) else { break };
                if self.selection.takes(&item.entry.path)
                    && let Some(item) = settled_at(archive, open.number, item, &mut cursor.last)
                {
                    return Ok(Some(item));
                }
                open.passed += 1;
            }
            cursor.now = None;
            let Some(number) = cursor.pages.pop() else { return Ok(None) };
            cursor.now = Some(Open { number, page: archive.page(number)?, passed: 0 });
        }
    }

    fn before(&self, a: &Item, b: &Item) -> bool {
        let order = entry::order(&a.entry.path, &b.entry.path);
        if self.backwards { order == Ordering::Greater } else { order == Ordering::Less }
    }
}

impl<A: Deref<Target = Archive>> Drop for Records<A> {
    /// Who goes through many backups, one after the other, does not keep pages of each.
    fn drop(&mut self) {
        self.archive.let_go();
    }
}

impl Open {
    fn item(&self, backwards: bool) -> Option<Item> {
        let count = self.page.records.len();
        let place = if backwards { count.checked_sub(1 + self.passed)? } else { self.passed };
        Item::new(self.page.clone(), place)
    }
}

impl<A: Deref<Target = Archive>> Iterator for Records<A> {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Result<Item>> {
        let mut best: Option<(usize, Item)> = None;
        for at in 0..self.cursors.len() {
            let item = match self.settle(at) {
                Ok(Some(item)) => item,
                Ok(None) => continue,
                Err(error) => return Some(Err(error)),
            };
            if best.as_ref().is_none_or(|(_, least)| self.before(&item, least)) {
                best = Some((at, item));
            }
        }
        let (at, item) = best?;
        if let Some(open) = &mut self.cursors[at].now {
            open.passed += 1;
        }
        Some(Ok(item))
    }
}

/// The record of page `number` as its file turned out; `None` if it has nothing to say. `last` is kept from part to part.
fn settled_at(archive: &Archive, number: usize, item: Item, last: &mut Option<Item>) -> Option<Item> {
    if item.from == 0 && !item.more {
        return Some(item);
    }
    if !item.more {
        *last = Some(item.clone());
    } else if last.as_ref().is_none_or(|last| last.entry.path != item.entry.path) {
        *last = last_part(archive, number, &item.entry.path);
    }
    match last {
        Some(last) => settled(item, last),
        None => Some(item), // where the backup ends that was cut off, or at a page that is damaged, as will be said
    }
}

/// The last part of the file of which a part is the last record of page `number`.
fn last_part(archive: &Archive, number: usize, path: &[u8]) -> Option<Item> {
    let pages = &archive.root.pages;
    let sequence = |page: &PageAt| (page.stream, page.late);
    let follows = |at: &usize| sequence(&pages[*at]) == sequence(&pages[number]);
    let parts = (number + 1..pages.len()).filter(follows).take_while(|at| pages[*at].first.0 == path);
    let last = Item::new(archive.page(parts.last()?).ok()?, 0)?;
    (last.entry.path == path && !last.more).then_some(last)
}

/// A part of a file, given its last part. Of one that is not stored after all, there is one record without content.
pub(super) fn settled(part: Item, last: &Item) -> Option<Item> {
    match last.state.is_stored() {
        true if part.entry == last.entry && part.state == last.state => Some(part),
        true => Some(part.like(last)),
        false => (part.from == 0).then(|| last.alone()),
    }
}
