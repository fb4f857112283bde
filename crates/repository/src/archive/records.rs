//! The records of a stored backup, one after the other.
//!
//! The state of a file that continues over pages is in its last part: only that part shows whether
//! the whole file could be read, and how long a stream is.

use super::{Archive, Selection};
use fullbore_format::{
    entry::{self, EntryPath},
    error::Result,
    page::{ManifestPage, PageItem},
    root::PageAt,
};
use std::{cmp::Ordering, ops::Deref, sync::Arc};

/// See [`Archive::records`].
pub struct Records<A: Deref<Target = Archive>> {
    archive: A,
    selection: Selection,
    cursors: Vec<RecordCursor>,
    backwards: bool,
}

/// The read position in one stream.
struct RecordCursor {
    /// Pages that have not been opened yet; the next one is last.
    pages: Vec<usize>,
    now: Option<OpenPage>,
    /// The next record, until its turn among the streams.
    ready: Option<PageItem>,
    /// The last part of the latest file that continues over pages; `None` in it if that part cannot
    /// be read.
    last: Option<(EntryPath, Option<PageItem>)>,
}

/// A page, by its number in the root, and the number of its records that have been returned.
struct OpenPage {
    number: usize,
    page: Arc<ManifestPage>,
    passed: usize,
}

impl<A: Deref<Target = Archive>> Records<A> {
    pub(crate) fn new(
        archive: A,
        selection: &Selection,
        backwards: bool,
        wants: impl Fn(&PageAt) -> bool,
    ) -> Self {
        let cursors = archive
            .pages(selection)
            .into_iter()
            .map(|mut pages| {
                pages.retain(|page| wants(&archive.root.pages[*page]));
                if !backwards {
                    pages.reverse();
                }
                RecordCursor {
                    pages,
                    now: None,
                    ready: None,
                    last: None,
                }
            })
            .collect();
        Self {
            archive,
            selection: selection.clone(),
            cursors,
            backwards,
        }
    }

    /// Moves the cursor to its next wanted record; at the end of the stream there is none.
    fn settle(&mut self, at: usize) -> Result<()> {
        let (archive, cursor) = (&*self.archive, &mut self.cursors[at]);
        while cursor.ready.is_none() {
            let next = cursor
                .now
                .as_mut()
                .and_then(|open| Some((open.number, open.next(self.backwards)?)));
            let Some((number, item)) = next else {
                cursor.now = None;
                let Some(number) = cursor.pages.pop() else {
                    break;
                };
                cursor.now = Some(OpenPage {
                    number,
                    page: archive.page(number)?,
                    passed: 0,
                });
                continue;
            };
            if self.selection.takes(&item.entry.path) {
                cursor.ready = settled_at(archive, number, item, &mut cursor.last);
            }
        }
        Ok(())
    }

    fn before(&self, a: &PageItem, b: &PageItem) -> bool {
        let order = entry::order(&a.entry.path, &b.entry.path);
        if self.backwards {
            order == Ordering::Greater
        } else {
            order == Ordering::Less
        }
    }
}

impl<A: Deref<Target = Archive>> Drop for Records<A> {
    /// A caller that reads many backups does not keep pages of each.
    fn drop(&mut self) {
        self.archive.let_go();
    }
}

impl OpenPage {
    fn next(&mut self, backwards: bool) -> Option<PageItem> {
        let count = self.page.records.len();
        let place = if backwards {
            count.checked_sub(1 + self.passed)?
        } else {
            self.passed
        };
        self.passed += 1;
        PageItem::new(self.page.clone(), place)
    }
}

impl<A: Deref<Target = Archive>> Iterator for Records<A> {
    type Item = Result<PageItem>;

    fn next(&mut self) -> Option<Result<PageItem>> {
        for cursor in 0..self.cursors.len() {
            if let Err(error) = self.settle(cursor) {
                return Some(Err(error));
            }
        }
        let cursor = (0..self.cursors.len())
            .filter(|cursor| self.cursors[*cursor].ready.is_some())
            .reduce(
                |a, b| match (&self.cursors[a].ready, &self.cursors[b].ready) {
                    (Some(item), Some(other)) if self.before(other, item) => b,
                    _ => a,
                },
            )?;
        self.cursors[cursor].ready.take().map(Ok)
    }
}

/// Returns the record of page `number` in the final state of its file; `None` if the record is
/// empty then. `last` is kept from part to part.
fn settled_at(
    archive: &Archive,
    number: usize,
    item: PageItem,
    known: &mut Option<(EntryPath, Option<PageItem>)>,
) -> Option<PageItem> {
    if item.from == 0 && !item.more {
        return Some(item);
    }
    let path = &item.entry.path;
    if !item.more {
        *known = Some((path.clone(), Some(item.clone())));
    } else if known
        .as_ref()
        .is_none_or(|(known_path, _)| known_path != path)
    {
        *known = Some((path.clone(), last_part(archive, number, path)));
    }
    match known {
        Some((_, Some(last))) => settled(item, last),
        _ => Some(item), // at the end of an interrupted backup, or before a damaged page, which is reported later
    }
}

/// Returns the last part of the file whose part is the last record of page `number`.
fn last_part(archive: &Archive, number: usize, path: &[u8]) -> Option<PageItem> {
    let pages = &archive.root.pages;
    let sequence = |page: &PageAt| (page.stream, page.late);
    let parts = (number + 1..pages.len())
        .filter(|index| sequence(&pages[*index]) == sequence(&pages[number]))
        .take_while(|index| pages[*index].first.0 == path);
    let last = PageItem::new(archive.page(parts.last()?).ok()?, 0)?;
    (last.entry.path == path && !last.more).then_some(last)
}

/// Returns a part of a file in the state of its last part. A file that is not stored after all has
/// one record without content.
pub(crate) fn settled(part: PageItem, last: &PageItem) -> Option<PageItem> {
    match last.state.is_stored() {
        true if part.entry == last.entry && part.state == last.state => Some(part),
        true => Some(part.with_metadata_of(last)),
        false => (part.from == 0).then(|| last.as_only_part()),
    }
}
