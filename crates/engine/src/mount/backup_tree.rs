//! One backup as a tree: paths, attributes and directories, by the places of entries.
//!
//! An entry that a restore would not make is not shown: a file that could not be read, a socket, a
//! hard link to an entry that is not there. Names and lengths were checked when the page was
//! decoded, see [`fullbore_format::page`].

use super::{inode::EntryPlace, link_counts::LinkCounts};
use fullbore_format::{
    entry::{self, Entry, EntryKind, EntryPath},
    error::{Error, Result},
    page::PageItem,
};
use fullbore_repository::archive::{
    Archive,
    children::{Children, DirectoryChild},
    frame_cache::FrameCache,
    stored_file::StoredFile,
};
use std::sync::Arc;

/// Longest name that a file system has.
const MAX_NAME_BYTES: usize = 255;

/// A backup that is shown.
pub(super) struct BackupTree {
    archive: Arc<Archive>,
    links: LinkCounts,
}

/// An entry that is shown.
#[derive(Debug, Clone)]
pub(super) struct ShownEntry {
    pub(super) place: EntryPlace,
    /// Its record: of the first name, if the file has several names; `None` for a directory
    /// without a record.
    pub(super) item: Option<PageItem>,
}

/// A name in a directory, and the entry that it has.
pub(super) struct ShownChild {
    /// The number of the child, behind which a listing goes on.
    pub(super) number: u64,
    pub(super) name: Vec<u8>,
    pub(super) entry: ShownEntry,
}

impl ShownEntry {
    pub(super) fn entry(&self) -> Option<&Entry> {
        self.item.as_deref().map(|record| &record.entry)
    }
}

impl BackupTree {
    pub(super) fn new(archive: Archive) -> Self {
        Self {
            archive: Arc::new(archive),
            links: LinkCounts::default(),
        }
    }

    pub(super) fn archive(&self) -> &Arc<Archive> {
        &self.archive
    }

    /// Returns roughly the bytes that it takes: the list of its pages.
    pub(super) fn memory_bytes(&self) -> usize {
        let root = &self.archive.root;
        let pages = root.pages.iter().map(|page| 300 + page.first.0.len());
        4096 + pages.sum::<usize>() + 200 * (root.segments.len() + root.liveness.len())
    }

    /// Returns the path of an entry; `None` if there is no such entry.
    fn path(&self, place: EntryPlace) -> Result<Option<EntryPath>> {
        let (record, depth) = match place {
            EntryPlace::Root => return Ok(Some(EntryPath::new())),
            EntryPlace::Record(record) => (record, None),
            EntryPlace::Implied { record, depth } => (record, Some(usize::from(depth))),
        };
        let Some(item) = self.archive.record(record)? else {
            return Ok(None);
        };
        let path = &item.entry.path;
        Ok(Some(match depth {
            None => path.clone(),
            Some(depth) => first_components(path, depth).to_vec(),
        }))
    }

    /// Returns an entry by its place.
    ///
    /// # Errors
    /// As [`Archive::page`].
    pub(super) fn entry(&self, place: EntryPlace) -> Result<Option<ShownEntry>> {
        match place {
            EntryPlace::Root => {
                let found = self.archive.look_up(b"")?;
                let item = found.map(|(_, item)| item);
                Ok(Some(ShownEntry { place, item }))
            }
            EntryPlace::Record(record) => match self.archive.record(record)? {
                Some(item) => self.shown(record, item),
                None => Ok(None),
            },
            EntryPlace::Implied { .. } => Ok(Some(ShownEntry { place, item: None })),
        }
    }

    /// Returns the entry `name` of a directory.
    ///
    /// # Errors
    /// As [`Archive::page`].
    pub(super) fn look_up(&self, dir: EntryPlace, name: &[u8]) -> Result<Option<ShownEntry>> {
        let Some(dir) = self.path(dir)? else {
            return Ok(None);
        };
        let path = entry::join(&dir, name);
        if name.len() > MAX_NAME_BYTES || !entry::is_safe(&path) {
            return Ok(None);
        }
        if let Some((number, item)) = self.archive.look_up(&path)? {
            return self.shown(number, item);
        }
        match self.archive.children(&path).next() {
            Some(below) => Ok(implied(below?.number, &path)),
            None => Ok(None),
        }
    }

    /// Returns the entry of a record, under the first name of a file with several names.
    fn shown(&self, number: u64, item: PageItem) -> Result<Option<ShownEntry>> {
        if let EntryKind::HardLink(target) = &item.entry.kind {
            let found = self.archive.look_up(target)?;
            let found = found.filter(|(_, item)| has_several_names(&item.entry.kind));
            return Ok(found.and_then(|(number, item)| stored(number, item)));
        }
        Ok(stored(number, item))
    }

    /// Returns the names in a directory, behind the child with the number `after`.
    ///
    /// # Errors
    /// As [`Archive::page`].
    pub(super) fn children(
        &self,
        dir: EntryPlace,
        after: Option<u64>,
    ) -> Result<ShownChildren<'_>> {
        let Some(path) = self.path(dir)? else {
            return Err(Error::corrupt("a directory of the backup is not there"));
        };
        let children = self.archive.children(&path);
        let children = match after {
            Some(number) => children.after(number)?,
            None => children,
        };
        Ok(ShownChildren {
            tree: self,
            children,
        })
    }

    /// Returns the count of names of a file.
    pub(super) fn names_of(&self, entry: &Entry) -> u32 {
        self.links.of(&self.archive, &entry.path)
    }

    /// Opens the file with this record.
    ///
    /// # Errors
    /// As [`StoredFile::new`].
    pub(super) fn open(&self, item: &PageItem, frames: &Arc<FrameCache>) -> Result<StoredFile> {
        let is_whole = item.from == 0 && !item.more;
        let parts = if is_whole {
            vec![item.clone()]
        } else {
            self.archive.find(&item.entry.path)?
        };
        // In pages of their own: the file does not keep whole pages of the manifest in memory.
        let own = |part: &PageItem| part.renamed(part.entry.path.clone());
        let parts = parts.iter().map(own).collect();
        StoredFile::new(self.archive.clone(), frames.clone(), parts)
    }
}

/// The children of a directory that are shown.
pub(super) struct ShownChildren<'a> {
    tree: &'a BackupTree,
    children: Children<'a>,
}

impl ShownChildren<'_> {
    fn shown(&self, child: DirectoryChild) -> Result<Option<ShownChild>> {
        let name = child.name().to_vec();
        let entry = match child.item {
            Some(item) => self.tree.shown(child.number, item)?,
            None => implied(child.number, &child.path),
        };
        let entry = entry.filter(|_| name.len() <= MAX_NAME_BYTES);
        Ok(entry.map(|entry| ShownChild {
            number: child.number,
            name,
            entry,
        }))
    }
}

impl Iterator for ShownChildren<'_> {
    type Item = Result<ShownChild>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let child = self.children.next()?;
            match child.and_then(|child| self.shown(child)) {
                Ok(Some(child)) => return Some(Ok(child)),
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Returns the entry of a record that is not another name of one, if a restore would make it.
fn stored(number: u64, item: PageItem) -> Option<ShownEntry> {
    let is_made = match item.entry.kind {
        EntryKind::Directory => true,
        EntryKind::Socket | EntryKind::HardLink(_) => false,
        _ => item.state.is_stored(),
    };
    let place = EntryPlace::record(number).filter(|_| is_made)?;
    let item = Some(item);
    Some(ShownEntry { place, item })
}

fn implied(number: u64, path: &[u8]) -> Option<ShownEntry> {
    let depth = path.split(|byte| *byte == b'/').count();
    let place = EntryPlace::implied(number, depth)?;
    Some(ShownEntry { place, item: None })
}

fn has_several_names(kind: &EntryKind) -> bool {
    !matches!(kind, EntryKind::Directory | EntryKind::HardLink(_))
}

/// Returns the first components of a path.
fn first_components(path: &[u8], count: usize) -> &[u8] {
    let mut slashes = (0..path.len()).filter(|index| path[*index] == b'/');
    let end = slashes.nth(count.saturating_sub(1)).unwrap_or(path.len());
    &path[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_counted_from_the_top() {
        assert_eq!(first_components(b"a/bc/d", 1), b"a");
        assert_eq!(first_components(b"a/bc/d", 2), b"a/bc");
        assert_eq!(first_components(b"a/bc/d", 9), b"a/bc/d");
    }
}
