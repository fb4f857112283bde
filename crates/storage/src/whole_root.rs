//! Reads a root together with the lists that it may share with an earlier backup.

use super::Objects;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{BACKUPS, FORGOTTEN, MANIFEST, ROOT},
    root::{Lists, ListsAt, ListsName, Root, is_void},
    seal::MAX_BYTES,
};
use fullbore_platform::queue::Locked;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

/// Lists that stay in memory: backups of one source follow each other, with those of a few others between them.
const MOST_KEPT: usize = 8;

/// Lists that were read, for a caller that reads many roots: many share one page of lists.
#[derive(Debug, Default)]
pub struct KeptLists(Mutex<VecDeque<KeptPage>>);

/// A page of lists that was read, or that a thread is reading.
#[derive(Debug, Clone)]
struct KeptPage {
    name: ListsName,
    lists: Arc<Mutex<Option<Arc<Lists>>>>,
}

impl KeptLists {
    /// As [`whole_root`].
    ///
    /// # Errors
    /// As there.
    pub fn whole_root(&self, objects: &dyn Objects, root: Root, name: &str) -> Result<Root> {
        if !root.is_short() {
            return Ok(root);
        }
        let page = self.page(&root);
        let mut known = page.lists.locked();
        let lists = match &*known {
            Some(lists) => lists.clone(),
            None => known.insert(Arc::new(read(objects, &root, name)?)).clone(),
        };
        drop(known);
        root.with_lists(Lists::clone(&lists), name)
    }

    fn page(&self, root: &Root) -> KeptPage {
        let name = root.lists_name();
        let mut kept = self.0.locked();
        if let Some(page) = kept.iter().find(|page| page.name == name) {
            return page.clone();
        }
        kept.truncate(MOST_KEPT - 1);
        let lists = Arc::default();
        kept.push_front(KeptPage { name, lists });
        kept[0].clone()
    }
}

/// Completes the root of a backup, if it is [short](Root::is_short). Messages call it `name`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the lists are lost or were changed; errors of the storage.
pub fn whole_root(objects: &dyn Objects, root: Root, name: &str) -> Result<Root> {
    match root.is_short() {
        true => root.clone().with_lists(read(objects, &root, name)?, name),
        false => Ok(root),
    }
}

/// Reads the page of lists that a root names.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it is damaged or missing; errors of the storage.
pub fn read_lists(objects: &dyn Objects, of: &str, at: &ListsAt) -> Result<Lists> {
    let key = format!("{BACKUPS}/{of}/{MANIFEST}");
    let damaged = |why: String| {
        let name = objects.describe(&key);
        Error::corrupt(format!("{name} is damaged")).because(why)
    };
    if at.bytes > MAX_BYTES {
        return Err(damaged("a page of lists is too large".to_owned()));
    }
    let mut stored = Vec::new();
    match objects.read_at(&key, at.offset, at.bytes as usize, &mut stored) {
        Err(error) if error.kind.is_loss() => return Err(damaged(error.line())),
        read => read?,
    }
    at.lists(&stored).map_err(|error| damaged(error.line()))
}

/// Reads the lists of a short root: from the page that it names, or from their second copy, the document of the backup that wrote the page.
/// Without a key there is only the latter.
fn read(objects: &dyn Objects, root: &Root, name: &str) -> Result<Lists> {
    let mut lost = root.without_lists(name);
    if let Some(at) = &root.lists_at {
        match read_lists(objects, &root.lists_of, at) {
            Err(error) if error.kind == ErrorKind::Corrupt => lost = lost.detail(error.line()),
            read => return read,
        }
    }
    match kept_root(objects, &root.lists_of) {
        Ok(Some(other)) if Lists::of(&other).clear_digest() == root.lists_digest => {
            Ok(Lists::of(&other))
        }
        Ok(_) => Err(lost),
        Err(error) if error.kind == ErrorKind::Corrupt => Err(lost.detail(error.line())),
        Err(error) => Err(error),
    }
}

/// Returns the root of a backup that is listed or forgotten, as it is stored.
fn kept_root(objects: &dyn Objects, id: &str) -> Result<Option<Root>> {
    // A backup that is forgotten has its new document before it loses the old one, and so has one that is listed again.
    for name in [ROOT, FORGOTTEN, ROOT] {
        let key = format!("{BACKUPS}/{id}/{name}");
        if let Some((bytes, _)) = objects.get(&key)?
            && !is_void(&bytes)
        {
            return Root::of_backup_as_stored(id, &bytes, &format!("{key:?}")).map(Some);
        }
    }
    Ok(None)
}
