//! The state of all sources of some repositories, as a person in charge of many hosts looks at them: is the newest backup late, does
//! it grow, was it verified, is something damaged?
//!
//! Reads one listing, the roots, the memory of verifications, and for each cluster its newest drill. Reads no pages and no segments,
//! and writes nothing. What it finds are facts for programs ([`FleetReport`] is serialized as it is); a command adds only columns.

mod expected;
mod source;

pub use expected::{EVERY_TAG, Expectation, ExpectedBy, NEVER};
pub use source::{FleetDrill, FleetSource, SourceState};

use crate::fleet::source::SourceFacts;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{NOTES, is_of_future},
    root::Root,
    text::source_text,
};
use fullbore_platform::queue::run_both;
use fullbore_repository::{
    annotations::Annotations,
    open::{cut_off, ids_of, listed_roots, read_repository},
    roots::{BackupFiles, BackupState, backup_files},
    select::BackupFilter,
    verify_memory::VerifyMemory,
};
use fullbore_storage::{Objects, Storages};
use jiff::Timestamp;
use serde::Serialize;
use std::{collections::BTreeMap, ffi::OsString, sync::Arc, time::Duration};

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
#[derive(Debug, Default, Serialize)]
pub struct FleetRepository {
    /// The repository, as it was given.
    pub repository: String,
    /// Backups with a root that can be read.
    pub backups: u64,
    /// Backups with a root that cannot be read, whose source is not known.
    #[serde(rename = "unreadable_ids")]
    pub unreadable: Vec<String>,
    /// Backups with a time of more than a day in the future, which do not count.
    #[serde(rename = "future_backups")]
    pub of_future: u64,
    /// Bytes of all objects of backups.
    pub stored_bytes: u64,
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

    /// Returns 4 for damage, 1 for a source that is late or a repository that cannot be read, else 0.
    pub fn exit_code(&self) -> u8 {
        let is_unreadable = self
            .repositories
            .iter()
            .any(|one| !one.unreadable.is_empty());
        let is_lost = self.repositories.iter().any(|one| one.error.is_some());
        if is_unreadable || self.count(SourceState::Damaged) > 0 {
            return 4;
        }
        u8::from(is_lost || self.late() > 0)
    }
}

impl Fleet {
    /// Looks at all repositories. One that cannot be read is in the report with its error.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the filter selects nothing in repositories that could all be read.
    pub fn look(&self) -> Result<FleetReport> {
        let mut report = FleetReport {
            time: self.now.to_string(),
            ..FleetReport::default()
        };
        for from in &self.repositories {
            let name = from.to_string_lossy().into_owned();
            let looked = self.look_at(from, &name);
            let (repository, sources) = looked.unwrap_or_else(|error| {
                let error = Some(error.line());
                let repository = name.clone();
                (
                    FleetRepository {
                        repository,
                        error,
                        ..FleetRepository::default()
                    },
                    Vec::new(),
                )
            });
            report.repositories.push(repository);
            report.sources.extend(sources);
        }
        report.sources.sort_by(FleetSource::by_trouble);
        let is_whole = report.repositories.iter().all(|one| one.error.is_none());
        if report.sources.is_empty() && is_whole && !self.filter.is_empty() {
            let message = format!("could not find a source that {} selects", self.filter);
            return Err(Error::new(ErrorKind::NotFound, message)
                .hint("--host and --path refer to the source, as `fullbore list` prints it"));
        }
        Ok(report)
    }

    fn look_at(&self, from: &OsString, name: &str) -> Result<(FleetRepository, Vec<FleetSource>)> {
        let objects = self.storages.repository_at(from)?;
        read_repository(&*objects)?;
        let list_files = || backup_files(&*objects);
        let read_memory = || VerifyMemory::read(&*objects);
        let (files, memory) = run_both(objects.answers_late(), list_files, read_memory);
        let files = files?;
        let mut repository = FleetRepository {
            repository: name.to_owned(),
            stored_bytes: stored_bytes(&files),
            ..FleetRepository::default()
        };
        let found = self.sources(&objects, &files, &mut repository);
        let mut facts: Vec<SourceFacts> = found.into_values().collect();
        facts.retain_mut(|facts| {
            if files
                .get(&facts.newest.id)
                .is_some_and(|files| files.has(NOTES))
            {
                annotate(&*objects, facts);
            }
            self.filter.selects(&facts.newest)
        });
        for root in cut_off(&*objects, &files) {
            let own = facts.iter_mut().find(|facts| facts.is_of(&root));
            own.into_iter()
                .for_each(|facts| facts.note_interrupted(&root));
        }
        let sources = facts
            .into_iter()
            .map(|facts| facts.into_source(&*objects, &memory, self));
        let mut sources: Vec<FleetSource> = sources.collect();
        sources
            .iter_mut()
            .for_each(|source| source.repository = name.to_owned());
        Ok((repository, sources))
    }

    /// Returns the facts of all sources that have a backup.
    fn sources(
        &self,
        objects: &Arc<dyn Objects>,
        files: &BTreeMap<String, BackupFiles>,
        repository: &mut FleetRepository,
    ) -> BTreeMap<String, SourceFacts> {
        let mut found: BTreeMap<String, SourceFacts> = BTreeMap::new();
        for (id, root) in listed_roots(objects, ids_of(files, BackupState::Listed)) {
            if is_of_future(&id, self.now) {
                repository.of_future += 1;
                continue;
            }
            let Ok(root) = root else {
                repository.unreadable.push(id);
                continue;
            };
            repository.backups += 1;
            let put_key = objects
                .as_sealed()
                .and_then(|sealed| sealed.put_key_of(&id));
            let key = source_key(&root);
            match found.get_mut(&key) {
                Some(facts) => facts.add(root, put_key),
                None => {
                    found.insert(key, SourceFacts::new(root, put_key));
                }
            }
        }
        found
    }
}

/// The name under which backups of one source meet: a cluster is one at any path of its host.
fn source_key(root: &Root) -> String {
    match &root.postgres {
        Some(cluster) => format!("{}\0{}", root.source.host, cluster.system_identifier),
        None => format!("{}\0{}", source_text(&root.source), root.source.contents),
    }
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
