//! A repository whose backups are shown, and the archives of it that are open.

use crate::catalog::{Catalog, SharedBackup};
use fullbore_engine::fleet::{BackupRow, BackupRows, RepositoryLook};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::is_backup_id,
    text,
};
use fullbore_platform::queue::Locked;
use fullbore_repository::{
    archive::{Archive, PageCache, frame_cache::FrameCache},
    open::named,
    root_index::IndexPlace,
};
use fullbore_storage::Objects;
use std::{
    ffi::OsString,
    sync::{Arc, Mutex},
};

/// Backups of a repository whose roots are in memory.
const MAX_OPEN: usize = 4;

/// A repository to show.
pub struct ShownRepository {
    /// Its location, as it was given.
    pub location: OsString,
    /// Options with which a command reaches it.
    pub options: Vec<OsString>,
    pub objects: Arc<dyn Objects>,
    /// Where the index of its roots is.
    pub index: IndexPlace,
}

/// A repository that is shown.
pub(crate) struct Place {
    pub(crate) shown: ShownRepository,
    catalog: Catalog,
    open: Mutex<Vec<Arc<Archive>>>,
    pages: Arc<PageCache>,
    pub(crate) frames: Arc<FrameCache>,
}

impl Place {
    pub(crate) fn new(
        shown: ShownRepository,
        pages: Arc<PageCache>,
        frames: Arc<FrameCache>,
    ) -> Self {
        Self {
            catalog: Catalog::new(shown.objects.clone(), shown.index.clone()),
            shown,
            open: Mutex::default(),
            pages,
            frames,
        }
    }

    /// The location as text.
    pub(crate) fn name(&self) -> String {
        text::name(self.shown.location.as_encoded_bytes())
    }

    /// The location, as `fullbore fleet` names it.
    pub(crate) fn given_name(&self) -> String {
        self.shown.location.to_string_lossy().into_owned()
    }

    /// Returns whether it has backups of clusters, as far as is known without another look.
    pub(crate) fn has_clusters(&self) -> bool {
        let listing = self.listing();
        listing.is_ok_and(|listing| listing.sources().any(|source| source.system.is_some()))
    }

    /// A backup, as a command takes it.
    pub(crate) fn backup_word(&self, id: &str) -> OsString {
        named(&self.shown.location, id)
    }

    /// Returns the backups, as they were at most 10 seconds ago.
    ///
    /// # Errors
    /// Those of the storage.
    pub(crate) fn listing(&self) -> Result<Arc<BackupRows>> {
        self.catalog.listing()
    }

    /// Returns the state of the sources, as it was at most 10 seconds ago.
    ///
    /// # Errors
    /// Those of the storage.
    pub(crate) fn look(&self) -> Result<Arc<RepositoryLook>> {
        self.catalog.look()
    }

    /// Returns what pages show of some backups, in this order, without those that are gone.
    pub(crate) fn summaries<'a>(
        &self,
        listing: &BackupRows,
        rows: impl Iterator<Item = &'a BackupRow>,
    ) -> Vec<SharedBackup> {
        let rows: Vec<BackupRow> = rows.copied().collect();
        self.catalog.summaries(listing, &rows)
    }

    /// Opens a backup by its whole id.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the backup is not listed; as [`Archive::open_backup`].
    pub(crate) fn archive(&self, id: &str) -> Result<Arc<Archive>> {
        let is_listed = is_backup_id(id) && self.listing()?.row(id).is_some();
        if !is_listed {
            return Err(Error::new(ErrorKind::NotFound, "there is no such backup"));
        }
        let mut open = self.open.locked();
        if let Some(at) = open.iter().position(|archive| archive.root.id == id) {
            let archive = open.remove(at);
            open.push(archive.clone());
            return Ok(archive);
        }
        drop(open);
        let archive = Archive::open_backup(&self.shown.objects, id)?;
        archive.store().check_readable()?;
        let archive = Arc::new(archive.with_pages(self.pages.clone()));
        let mut open = self.open.locked();
        if open.len() >= MAX_OPEN {
            open.remove(0);
        }
        open.push(archive.clone());
        Ok(archive)
    }
}
