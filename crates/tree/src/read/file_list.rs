//! The objects that a list names, in archive order, each after the directories above it.
//!
//! The rules of a walk also apply to a list: an object that a walk would not reach is skipped, even
//! if the list names it. A missing name in a list is an error, whereas a name that vanishes during
//! a walk is not.

use super::{
    TreeInner,
    hard_links::Links,
    listing::{Child, is_directory},
};
use fullbore_format::{
    entry::{EntryKind, EntryPath, is_within},
    error::{Result, quoted},
    page::EntryState,
};
use fullbore_pipeline::frame::Scanned;
use std::{iter::once, sync::Arc};

/// Delivers the top and the objects of an ascending list.
///
/// # Errors
/// [`ErrorKind::Usage`](fullbore_format::error::ErrorKind::Usage) if the backup is written to the top.
pub(super) fn listed(
    inner: Arc<TreeInner>,
    list: Vec<EntryPath>,
) -> Result<impl Iterator<Item = Result<Scanned>> + Send> {
    inner.check_tops()?;
    let top = inner.look(b"");
    let dev = top.dev;
    let links = Links::default();
    let mut listed = ListPosition {
        inner,
        links,
        dev,
        last: EntryPath::new(),
        closed_dir: None,
    };
    let below = list.into_iter().flat_map(move |path| listed.objects(path));
    Ok(once(top.scanned).chain(below).map(|mut scanned| {
        if scanned.state == EntryState::Vanished {
            scanned.state = EntryState::Unreadable("no file or directory has this name".to_owned());
        }
        Ok(scanned)
    }))
}

struct ListPosition {
    inner: Arc<TreeInner>,
    links: Links,
    /// Device of the top.
    dev: u64,
    last: EntryPath,
    /// A directory that a walk would not enter. Names below it are skipped.
    closed_dir: Option<EntryPath>,
}

impl ListPosition {
    /// Returns the object of a name, after the directories above it that were not delivered yet.
    /// Empty if a walk would skip the name.
    fn objects(&mut self, path: EntryPath) -> Vec<Scanned> {
        if self
            .closed_dir
            .as_ref()
            .is_some_and(|dir| is_within(&path, dir))
        {
            return Vec::new();
        }
        let mut object = self.inner.look(&path);
        // The same questions in the same order as in a walk, so that a list of all names gives the
        // same backup.
        let is_own = object.scanned.entry.is_file() && self.inner.is_own(&object);
        if is_own || self.inner.leaves_out(&path, is_directory(&object.scanned)) {
            return Vec::new();
        }
        let mut objects = self.above(&path);
        if let Some(dir) = objects
            .iter()
            .find(|dir| self.inner.is_never_entered(dir, self.dev))
        {
            self.closed_dir = Some(dir.scanned.entry.path.clone());
            return Vec::new();
        }
        self.closed_dir = self
            .inner
            .is_never_entered(&object, self.dev)
            .then(|| path.clone());
        // A name below a link cannot be opened: say so, because "not found" would send the user
        // looking.
        if !object.scanned.state.is_stored()
            && let Some(reason) = self.link_above(&path)
        {
            object.scanned.state = EntryState::Unreadable(reason);
        }
        self.links.link_if_known(&mut object);
        objects.push(object);
        self.last = path;
        objects.into_iter().map(|object| object.scanned).collect()
    }

    /// Returns why a name cannot be found, if a symbolic link is above it.
    fn link_above(&self, path: &[u8]) -> Option<String> {
        let slashes = path
            .iter()
            .enumerate()
            .filter(|(_, c)| **c == b'/')
            .map(|(slash, _)| &path[..slash]);
        let mut above = slashes.map(|dir| self.inner.look(dir).scanned.entry);
        above.find_map(|entry| match entry.kind {
            EntryKind::Symlink(target) => {
                let link = quoted(&entry.path);
                let target = quoted(&target);
                Some(format!("{link} is a symbolic link to {target}, and links are not followed: use the path of the file itself"))
            }
            _ => None,
        })
    }

    /// Returns the existing directories above a name that were not delivered yet.
    fn above(&self, path: &[u8]) -> Vec<Child> {
        let slashes = path
            .iter()
            .enumerate()
            .filter(|(_, c)| **c == b'/')
            .map(|(slash, _)| &path[..slash]);
        let new = slashes.filter(|dir| !is_within(&self.last, dir));
        new.map(|dir| self.inner.look(dir))
            .filter(|dir| dir.scanned.state != EntryState::Vanished)
            .collect()
    }
}
