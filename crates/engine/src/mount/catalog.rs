//! The backups that are shown: all of a repository, or one.

use super::{
    backup_tree::BackupTree,
    inode::FIRST,
    top_tree::{BackupLabels, TopNumbers, TopTree},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::Locked;
use fullbore_repository::{
    annotations::Annotations,
    archive::{Archive, PageCache, byte_cache::ByteCache},
    open::{backup_ids, listed_roots},
};
use fullbore_storage::Objects;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Time after which a repository is listed again.
const LISTING_AGE: Duration = Duration::from_secs(10);
/// Time after which the roots of backups are read again, for their tags.
const LABELS_AGE: Duration = Duration::from_secs(60);

/// The backups of a mount.
pub(super) enum Catalog {
    /// One backup, whose tree is the root of the mount.
    One(Arc<BackupTree>),
    Many(Box<BackupCatalog>),
}

impl Catalog {
    /// Returns the backup with this number, from 1.
    ///
    /// # Errors
    /// As [`Archive::open_backup`].
    pub(super) fn tree(&self, number: u64) -> Result<Arc<BackupTree>> {
        match self {
            Self::One(tree) if number == 1 => Ok(tree.clone()),
            Self::One(_) => Err(no_such_backup()),
            Self::Many(catalog) => catalog.tree(number),
        }
    }

    /// Returns the catalog of all backups; `None` if one is shown.
    pub(super) fn many(&self) -> Option<&BackupCatalog> {
        match self {
            Self::One(_) => None,
            Self::Many(catalog) => Some(catalog),
        }
    }
}

fn no_such_backup() -> Error {
    Error::new(
        ErrorKind::NotFound,
        "could not find a backup of this number",
    )
}

/// All backups of a repository. Only those in use are open.
pub(super) struct BackupCatalog {
    objects: Arc<dyn Objects>,
    pages: Arc<PageCache>,
    trees: ByteCache<u64, BackupTree>,
    state: Mutex<CatalogState>,
}

#[derive(Default)]
struct CatalogState {
    tree: Arc<TopTree>,
    listed: Option<Instant>,
    ids: Vec<String>,
    /// Ids of all backups that were ever listed: the index plus 1 is the number of a backup.
    known: Vec<String>,
    numbers: TopNumbers,
    labels: HashMap<String, BackupLabels>,
    labelled: Option<Instant>,
}

impl BackupCatalog {
    /// Lists the backups of a repository.
    ///
    /// # Errors
    /// Errors of the storage.
    pub(super) fn new(
        objects: Arc<dyn Objects>,
        pages: Arc<PageCache>,
        tree_bytes: usize,
    ) -> Result<Self> {
        let catalog = Self {
            objects,
            pages,
            trees: ByteCache::new(tree_bytes),
            state: Mutex::default(),
        };
        catalog.top(false)?;
        Ok(catalog)
    }

    /// Refuses to show encrypted backups that no key opens.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`].
    pub(super) fn check_readable(&self) -> Result<()> {
        let latest = self.state.locked().ids.last().cloned();
        match latest {
            Some(id) => {
                let archive = Archive::open_backup(&self.objects, &id)?;
                archive.store().check_readable()
            }
            None => Ok(()),
        }
    }

    /// Returns the directories above the backups. With `has_labels`, hosts and tags are in them.
    ///
    /// # Errors
    /// Errors of the storage.
    pub(super) fn top(&self, has_labels: bool) -> Result<Arc<TopTree>> {
        let is_new = |time: Option<Instant>, age| time.is_some_and(|time| time.elapsed() < age);
        let mut state = self.state.locked();
        let is_listed = is_new(state.listed, LISTING_AGE);
        if is_listed && (!has_labels || is_new(state.labelled, LABELS_AGE)) {
            return Ok(state.tree.clone());
        }
        if !is_listed {
            state.ids = backup_ids(&*self.objects)?;
            state.listed = Some(Instant::now());
        }
        if has_labels {
            state.labels = self.labels(&state.ids);
            state.labelled = Some(Instant::now());
        }
        Ok(state.rebuild())
    }

    /// Returns hosts and tags. A root that cannot be read has none.
    fn labels(&self, ids: &[String]) -> HashMap<String, BackupLabels> {
        let roots = listed_roots(&self.objects, ids.to_vec());
        let labels = roots.filter_map(|(id, root)| {
            let mut root = root.ok()?;
            if let Ok(notes) = Annotations::read(&*self.objects, &id) {
                notes.apply(&mut root);
            }
            let host = root.source.host.clone();
            let tags = root.tags.clone();
            Some((id, BackupLabels { host, tags }))
        });
        labels.collect()
    }

    /// Returns the number of a backup, from 1.
    pub(super) fn number(&self, id: &str) -> u64 {
        let mut state = self.state.locked();
        let known = state.known.iter().position(|known| known == id);
        let index = known.unwrap_or_else(|| {
            state.known.push(id.to_owned());
            state.known.len() - 1
        });
        index as u64 + FIRST
    }

    fn tree(&self, number: u64) -> Result<Arc<BackupTree>> {
        let index = (number - FIRST) as usize;
        let id = self.state.locked().known.get(index).cloned();
        let id = id.ok_or_else(no_such_backup)?;
        self.trees.get(&number, || {
            let archive = Archive::open_backup(&self.objects, &id)?;
            let tree = BackupTree::new(archive.with_pages(self.pages.clone()));
            let bytes = tree.memory_bytes();
            Ok((tree, bytes))
        })
    }
}

impl CatalogState {
    fn rebuild(&mut self) -> Arc<TopTree> {
        let tree = TopTree::new(&self.ids, &self.labels, &mut self.numbers);
        self.tree = Arc::new(tree);
        self.tree.clone()
    }
}
