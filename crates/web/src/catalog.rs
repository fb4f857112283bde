//! The backups of a repository, as they are listed: about 700 bytes of memory for each, and as much again while a repository is listed.
//!
//! Roots do not change, so each is read once. The repository is listed again when the list is older than ten seconds and
//! somebody asks; notes (tags and pins) are read again after a minute. While one request lists, the others get the list
//! that is there: a storage that hangs holds one connection.

use fullbore_format::{
    error::Result,
    layout::NOTES,
    root::{Root, SourceInfo},
    text::source_text,
};
use fullbore_platform::queue::Locked;
use fullbore_repository::{
    annotations::Annotations,
    open::{ids_of, listed_roots, read_repository},
    roots::{BackupFiles, BackupState, backup_files},
    scan::lost_roots_of,
    verify_memory::VerifyMemory,
};
use fullbore_storage::Objects;
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use std::{
    collections::{BTreeMap, HashMap},
    ops::Deref,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Time after which a repository is listed again.
const LISTING_AGE: Duration = Duration::from_secs(10);
/// Time after which notes are read again.
const NOTES_AGE: Duration = Duration::from_secs(60);

/// What pages show of a backup without opening it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct BackupSummary {
    pub(crate) id: String,
    /// When it began and ended, as RFC 3339.
    pub(crate) time: String,
    #[serde(rename = "end_time")]
    pub(crate) finished: String,
    #[serde(skip)]
    pub(crate) begun: Timestamp,
    #[serde(skip)]
    pub(crate) source: usize,
    pub(crate) entries: u64,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) unreadable: u64,
    pub(crate) bad_pages: u64,
    /// Whether everything was captured.
    pub(crate) complete: bool,
    pub(crate) bases: usize,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) pinned: bool,
    /// Files that it lost, as the last verification of data found.
    pub(crate) lost_files: Option<u64>,
    /// The system identifier of a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system: Option<String>,
    pub(crate) seconds: f64,
    /// What the run waited for.
    pub(crate) limit: String,
}

/// A summary that pages and the listing share.
#[derive(Debug, Clone)]
pub(crate) struct SharedBackup(Arc<BackupSummary>);

impl Deref for SharedBackup {
    type Target = BackupSummary;

    fn deref(&self) -> &BackupSummary {
        &self.0
    }
}

impl Serialize for SharedBackup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A backup that cannot be read.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DamagedBackup {
    pub(crate) id: String,
    pub(crate) error: String,
}

/// A host and its paths, with the places of its backups, oldest first.
#[derive(Debug, Clone)]
pub(crate) struct SourceBackups {
    /// Names the source in addresses.
    pub(crate) key: String,
    /// As `fullbore list` prints it.
    pub(crate) name: String,
    pub(crate) info: SourceInfo,
    pub(crate) backups: Vec<usize>,
}

/// The backups of a repository.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The oldest first.
    pub(crate) backups: Vec<SharedBackup>,
    pub(crate) damaged: Vec<DamagedBackup>,
    pub(crate) sources: Vec<SourceBackups>,
    by_id: HashMap<String, usize>,
}

impl Listing {
    /// Returns a backup by its whole id.
    pub(crate) fn backup(&self, id: &str) -> Option<&SharedBackup> {
        self.by_id.get(id).map(|at| &self.backups[*at])
    }

    /// Returns a source by its key.
    pub(crate) fn source(&self, key: &str) -> Option<&SourceBackups> {
        self.sources.iter().find(|source| source.key == key)
    }

    /// Adds a backup. Its summary is shared with the list before, unless somebody noted something.
    fn add(&mut self, known: &SharedBackup, notes: Option<&KnownNotes>, lost_files: Option<u64>) {
        let at = self.backups.len();
        let shared = match (notes, lost_files) {
            (None, None) => known.clone(),
            (notes, lost_files) => {
                let mut summary = BackupSummary::clone(known);
                summary.lost_files = lost_files;
                summary.pinned = notes.is_some_and(|notes| notes.pinned);
                if let Some(tags) = notes.and_then(|notes| notes.tags.as_ref()) {
                    summary.tags.clone_from(tags);
                }
                SharedBackup(Arc::new(summary))
            }
        };
        self.by_id.insert(shared.id.clone(), at);
        self.sources[shared.source].backups.push(at);
        self.backups.push(shared);
    }
}

#[derive(Default, Clone)]
struct KnownNotes {
    bytes: u64,
    tags: Option<BTreeMap<String, String>>,
    pinned: bool,
}

/// The list, and when it was made.
type MadeListing = Option<(Instant, Arc<Listing>)>;

/// What is kept between two lists.
#[derive(Default)]
struct CatalogState {
    noted: Option<Instant>,
    roots: HashMap<String, SharedBackup>,
    /// All sources that were ever listed, without their backups.
    sources: Vec<SourceBackups>,
    source_of: HashMap<String, usize>,
    notes: HashMap<String, KnownNotes>,
}

/// Lists a repository when somebody asks.
pub(crate) struct Catalog {
    objects: Arc<dyn Objects>,
    made: Mutex<MadeListing>,
    /// Held while the repository is listed.
    state: Mutex<CatalogState>,
}

impl Catalog {
    pub(crate) fn new(objects: Arc<dyn Objects>) -> Self {
        Self {
            objects,
            made: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Returns the backups, as they were at most [`LISTING_AGE`] ago, or longer while another thread lists them.
    ///
    /// # Errors
    /// Those of the storage.
    pub(crate) fn listing(&self) -> Result<Arc<Listing>> {
        let made = self.made.locked().clone();
        if let Some(listing) = fresh(&made) {
            return Ok(listing);
        }
        let mut state = match (self.state.try_lock(), made) {
            (Ok(state), _) => state,
            (Err(_), Some((_, listing))) => return Ok(listing),
            (Err(_), None) => self.state.locked(),
        };
        // Another thread may have listed meanwhile.
        if let Some(listing) = fresh(&self.made.locked()) {
            return Ok(listing);
        }
        let listing = Arc::new(self.list(&mut state)?);
        *self.made.locked() = Some((Instant::now(), listing.clone()));
        Ok(listing)
    }

    fn list(&self, state: &mut CatalogState) -> Result<Listing> {
        read_repository(&*self.objects)?;
        let files = backup_files(&*self.objects)?;
        let ids = ids_of(&files, BackupState::Listed);
        let mut listing = Listing::default();
        state.roots.retain(|id, _| files.contains_key(id));
        let unknown = ids.iter().filter(|id| !state.roots.contains_key(*id));
        let unknown: Vec<_> = unknown.cloned().collect();
        for (id, root) in listed_roots(&self.objects, unknown) {
            match root {
                Ok(root) => {
                    let summary = state.summary(root);
                    state.roots.insert(id, summary);
                }
                Err(error) => listing.damaged.push(DamagedBackup {
                    id,
                    error: error.line(),
                }),
            }
        }
        self.read_notes(state, &files);
        let memory = VerifyMemory::read(&*self.objects);
        listing.sources.clone_from(&state.sources);
        for id in &ids {
            if let Some(known) = state.roots.get(id) {
                listing.add(known, state.notes.get(id), memory.loss(id));
            }
        }
        for id in lost_roots_of(&self.objects, files)? {
            listing.damaged.push(DamagedBackup {
                id,
                error: "its root is lost; `fullbore repair` rebuilds it".to_owned(),
            });
        }
        Ok(listing)
    }

    /// Reads notes that are new or old. Damaged notes count as none, as in a restore.
    fn read_notes(&self, state: &mut CatalogState, files: &BTreeMap<String, BackupFiles>) {
        let is_old = state.noted.is_none_or(|time| time.elapsed() > NOTES_AGE);
        if is_old {
            state.notes.clear();
            state.noted = Some(Instant::now());
        }
        for (id, files) in files {
            let Some(bytes) = files.bytes(NOTES) else {
                state.notes.remove(id);
                continue;
            };
            if state
                .notes
                .get(id)
                .is_some_and(|notes| notes.bytes == bytes)
            {
                continue;
            }
            let read = Annotations::read(&*self.objects, id).ok();
            let notes = KnownNotes {
                bytes,
                tags: read.as_ref().and_then(|notes| notes.tags.clone()),
                pinned: read.is_some_and(|notes| notes.pinned),
            };
            state.notes.insert(id.clone(), notes);
        }
    }
}

fn fresh(made: &MadeListing) -> Option<Arc<Listing>> {
    let (time, listing) = made.as_ref()?;
    (time.elapsed() < LISTING_AGE).then(|| listing.clone())
}

impl CatalogState {
    /// Returns the place of a source, which stays the same.
    fn source(&mut self, info: &SourceInfo) -> usize {
        let name = source_text(info);
        if let Some(at) = self.source_of.get(&name) {
            return *at;
        }
        let at = self.sources.len();
        self.sources.push(SourceBackups {
            key: blake3::hash(name.as_bytes()).to_hex()[..16].to_owned(),
            name: name.clone(),
            info: info.clone(),
            backups: Vec::new(),
        });
        self.source_of.insert(name, at);
        at
    }

    /// Keeps what pages show of a root.
    fn summary(&mut self, root: Root) -> SharedBackup {
        let totals = &root.totals;
        SharedBackup(Arc::new(BackupSummary {
            begun: root.time.parse().unwrap_or_default(),
            source: self.source(&root.source),
            entries: totals.entries,
            files: totals.files,
            bytes: totals.bytes,
            stored_bytes: totals.stored_bytes,
            kept_bytes: totals.kept_bytes,
            unreadable: totals.unreadable,
            bad_pages: totals.bad_pages,
            complete: totals.is_complete(),
            bases: root.bases.len(),
            tags: root.tags,
            pinned: false,
            lost_files: None,
            system: root.postgres.map(|cluster| cluster.system_identifier),
            seconds: root.run.seconds,
            limit: root.run.limit,
            id: root.id,
            time: root.time,
            finished: root.finished,
        }))
    }
}
