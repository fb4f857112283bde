//! The state of all sources of some repositories, as a person in charge of many hosts looks at them: is the newest backup late, does
//! it grow, was it verified, is something damaged?
//!
//! Reads one listing, the roots, the memory of verifications, and for each cluster its newest drill. Reads no pages and no segments,
//! and writes nothing. What it finds are facts for programs ([`FleetReport`] is serialized as it is); a command adds only columns.

mod expected;
mod rows;
mod source;

pub use expected::{EVERY_TAG, Expectation, ExpectedBy, NEVER};
pub use rows::{BackupRow, BackupRows, RowSource};
pub use source::{FleetDrill, FleetSource, SourceState};

use crate::fleet::source::SourceFacts;
use fullbore_crypt::Access;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{ROOT, last_that_counts},
    root::{Root, is_void},
};
use fullbore_repository::{
    annotations::Annotations,
    open::{cut_off, listed_roots},
    root_index::IndexPlace,
    roots::{BackupFiles, key},
    select::BackupFilter,
    verify_memory::VerifyMemory,
};
use fullbore_storage::{Objects, SealedObjects, Storages, as_stored, keys::list_keys, whole_root};
use jiff::Timestamp;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    sync::Arc,
    time::Duration,
};

/// The repositories to look at.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// How storages are reached.
    pub storages: Storages,
    /// The repositories, as they were given.
    pub repositories: Vec<OsString>,
    /// Selects sources by host, path and tag.
    pub filter: BackupFilter,
    /// The interval that is expected of every source, whatever it says itself.
    pub every: Option<Duration>,
    /// The time at which backups have an age.
    pub now: Timestamp,
}

/// The state of all sources, those with the most trouble first.
#[derive(Debug, Default, Serialize)]
pub struct FleetReport {
    /// The time of the report, as RFC 3339.
    pub time: String,
    /// The repositories, in the order in which they were given.
    pub repositories: Vec<FleetRepository>,
    /// The sources.
    pub sources: Vec<FleetSource>,
}

/// The state of a repository.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FleetRepository {
    /// The repository, as it was given.
    pub repository: String,
    /// Backups with a root that can be read.
    pub backups: u64,
    /// Backups with a root that is lost or cannot be read, whose source is not known.
    #[serde(rename = "unreadable_ids")]
    pub unreadable: Vec<String>,
    /// Backups with a time of more than a day in the future, which do not count.
    #[serde(rename = "future_backups")]
    pub of_future: u64,
    /// Bytes of all objects of backups.
    pub stored_bytes: u64,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// Hosts that have a put key, and of which there is no backup. Known with a key that reads only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts_without_backup: Vec<String>,
    /// Why it could not be read; then it has no sources.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl FleetReport {
    /// Returns the number of sources in a state.
    pub fn count(&self, state: SourceState) -> usize {
        self.sources
            .iter()
            .filter(|source| source.state == state)
            .count()
    }

    /// Returns the number of sources that are late.
    pub fn late(&self) -> usize {
        self.sources.iter().filter(|source| source.late).count()
    }

    /// Returns 4 for damage, 1 for a source that is late, a host without a backup or a repository that cannot be read, else 0.
    pub fn exit_code(&self) -> u8 {
        let is_unreadable = self
            .repositories
            .iter()
            .any(|one| !one.unreadable.is_empty());
        let is_lost = self.repositories.iter().any(|one| one.error.is_some());
        if is_unreadable || self.count(SourceState::Damaged) > 0 {
            return 4;
        }
        let lacks_host =
            { self.repositories.iter() }.any(|one| !one.hosts_without_backup.is_empty());
        u8::from(is_lost || lacks_host || self.late() > 0)
    }
}

impl Fleet {
    /// Looks at all repositories. One that cannot be read is in the report with its error.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the filter selects nothing in repositories that could all be read.
    pub fn look(&self) -> Result<FleetReport> {
        let looks = self.repositories.iter().map(|from| {
            let name = from.to_string_lossy().into_owned();
            (name, self.look_at(from).map(Arc::new))
        });
        let report = FleetReport::of(self.now, looks.collect());
        let is_whole = report.repositories.iter().all(|one| one.error.is_none());
        if report.sources.is_empty() && is_whole && !self.filter.is_empty() {
            let message = format!("could not find a source that {} selects", self.filter);
            return Err(Error::new(ErrorKind::NotFound, message)
                .hint("--host and --path refer to the source, as `fullbore list` prints it"));
        }
        Ok(report)
    }

    fn look_at(&self, from: &OsString) -> Result<RepositoryLook> {
        let objects = self.storages.repository_at(from)?;
        let index = IndexPlace::new(self.storages.index_dir());
        let (rows, memory) = BackupRows::read(&objects, &index, None)?;
        let of = FleetQuestion {
            filter: self.filter.clone(),
            every: self.every,
            now: self.now,
        };
        Ok(of.look(&objects, &rows, &memory))
    }
}

/// A question to each repository: which sources, and what interval is expected of them.
#[derive(Debug, Clone)]
pub struct FleetQuestion {
    /// See [`Fleet::filter`].
    pub filter: BackupFilter,
    /// See [`Fleet::every`].
    pub every: Option<Duration>,
    /// See [`Fleet::now`].
    pub now: Timestamp,
}

/// The state of one repository and its sources.
#[derive(Debug, Default)]
pub struct RepositoryLook {
    repository: FleetRepository,
    sources: Vec<FleetSource>,
}

impl FleetReport {
    /// Puts together what was found in repositories, each with its name as it was given.
    pub fn of(now: Timestamp, looks: Vec<(String, Result<Arc<RepositoryLook>>)>) -> Self {
        let mut report = Self {
            time: now.to_string(),
            ..Self::default()
        };
        for (number, (name, look)) in looks.into_iter().enumerate() {
            let mut repository = FleetRepository::default();
            match look {
                Ok(look) => {
                    repository = look.repository.clone();
                    report
                        .sources
                        .extend(look.sources.iter().map(|source| FleetSource {
                            repository: name.clone(),
                            number,
                            ..source.clone()
                        }));
                }
                Err(error) => repository.error = Some(error.line()),
            }
            repository.repository = name;
            report.repositories.push(repository);
        }
        report.sources.sort_by(FleetSource::by_trouble);
        report
    }
}

impl FleetQuestion {
    /// Looks at the sources of a repository that was listed. Of each source one root is read: that of its newest backup.
    pub fn look(
        &self,
        objects: &Arc<dyn Objects>,
        listing: &BackupRows,
        memory: &VerifyMemory,
    ) -> RepositoryLook {
        let mut repository = FleetRepository {
            unreadable: listing.unreadable.clone(),
            stored_bytes: listing.stored_bytes,
            encrypted: objects.as_sealed().is_some(),
            ..FleetRepository::default()
        };
        // Of each source the host, and the put key that added its newest backup.
        let mut seen = BTreeSet::new();
        let mut rows = listing.by_source();
        let last = last_that_counts(self.now).as_second();
        rows.retain(|row| row.seconds <= last);
        repository.of_future = (listing.all().len() - rows.len()) as u64;
        repository.backups = rows.len() as u64;
        let interrupted = cut_off(&**objects, &listing.unfinished);
        let groups: Vec<&[BackupRow]> = rows.chunk_by(|a, b| a.source == b.source).collect();
        let newest = groups.iter().filter_map(|group| group.last());
        let newest: Vec<String> = newest.map(|row| row.id().to_owned()).collect();
        let mut roots = listed_roots(objects, newest).peekable();
        let mut sources = Vec::new();
        for group in groups {
            let id = group.last().map(BackupRow::id).unwrap_or_default();
            let root = roots.next_if(|(found, _)| found == id);
            let root = root.and_then(|(_, root)| root.ok());
            // It was forgotten since, or cannot be read any more.
            let root = root.map(|root| (root, group));
            let Some((root, group)) = root.or_else(|| earlier_root(&**objects, group)) else {
                continue;
            };
            let mut facts = SourceFacts::new(root, group, listing);
            facts.put_key = objects
                .as_sealed()
                .and_then(|sealed| sealed.put_key_of(&facts.newest.id));
            seen.insert(facts.newest.source.host.clone());
            seen.extend(facts.put_key.clone());
            if group.last().is_some_and(BackupRow::is_noted) {
                annotate(&**objects, &mut facts);
            }
            if !self.filter.selects(&facts.newest) {
                continue;
            }
            let own = interrupted.iter().filter(|root| facts.is_of(root));
            let own = own.filter_map(|root| interruption(root, &facts.newest));
            let own: Vec<String> = own.collect();
            facts.warnings.extend(own);
            sources.push(facts.into_source(&**objects, memory, self));
        }
        if self.filter.is_empty() {
            repository.hosts_without_backup = hosts_without_backup(objects, &seen, listing);
        }
        RepositoryLook {
            repository,
            sources,
        }
    }
}

/// Roots that are read at most to find the backups of a put key.
const MOST_ROOTS: usize = 256;

/// Returns the names of put keys that are no host and no key of a backup, with a key that reads.
///
/// Which key made a backup is known once its root was read: before a name is told, the roots of the newest backups are.
fn hosts_without_backup(
    objects: &Arc<dyn Objects>,
    seen: &BTreeSet<String>,
    listing: &BackupRows,
) -> Vec<String> {
    let ring = objects.as_sealed().and_then(SealedObjects::ring);
    let Some(ring) = ring.filter(|ring| ring.access() == Access::Read) else {
        return Vec::new();
    };
    // A list of keys that cannot be read is damage, which a verification tells.
    let files = list_keys(as_stored(&**objects), Some(ring)).unwrap_or_default();
    let put = files.into_iter().filter(|file| file.access == Access::Put);
    let names = put.map(|file| file.name);
    let mut names: Vec<String> = names.filter(|name| !seen.contains(name)).collect();
    if !names.is_empty() {
        let newest = listing.all().iter().rev().take(MOST_ROOTS);
        let newest: Vec<String> = newest.map(|row| row.id().to_owned()).collect();
        for (id, _) in listed_roots(objects, newest) {
            let key = objects
                .as_sealed()
                .and_then(|sealed| sealed.put_key_of(&id));
            names.retain(|name| Some(name) != key.as_ref());
        }
    }
    names
}

/// Returns the newest root before the last of these backups that can be read, and the backups up to it.
fn earlier_root<'a>(
    objects: &dyn Objects,
    group: &'a [BackupRow],
) -> Option<(Root, &'a [BackupRow])> {
    let (_, mut group) = group.split_last()?;
    while let Some((row, earlier)) = group.split_last() {
        let bytes = objects.get(&key(row.id(), ROOT)).ok().flatten();
        let bytes = bytes.map(|(bytes, _)| bytes);
        let bytes = bytes.filter(|bytes| !is_void(bytes));
        let root = bytes.and_then(|bytes| Root::of_backup_as_stored(row.id(), &bytes, "").ok());
        let root = root.and_then(|root| whole_root(objects, root, "").ok());
        if let Some(root) = root {
            return Some((root, group));
        }
        group = earlier;
    }
    None
}

/// Tells that a backup was interrupted, if none was completed after it.
fn interruption(root: &Root, newest: &Root) -> Option<String> {
    (root.id > newest.id).then(|| format!("backup {} was interrupted", root.id))
}

/// Later tags of the newest backup count. Damaged ones are a warning.
fn annotate(objects: &dyn Objects, facts: &mut SourceFacts) {
    match Annotations::read(objects, &facts.newest.id) {
        Ok(notes) => notes.apply(&mut facts.newest),
        Err(error) => facts.warnings.push(error.line()),
    }
}

/// Returns the bytes of all objects of a listing.
pub fn stored_bytes(files: &BTreeMap<String, BackupFiles>) -> u64 {
    let bytes = files
        .values()
        .flat_map(|files| files.names().filter_map(|name| files.bytes(name)));
    bytes.fold(0, u64::saturating_add)
}
