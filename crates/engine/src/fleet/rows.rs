//! The backups of a repository in a few bytes each, and its sources: all that a list of very many backups needs in memory.
//!
//! Roots do not change, so a later list reads only those that the earlier one does not have. The first one takes what the index of this
//! host knows. Everything else about a backup is in its root, which whoever shows it reads again.
//!
//! Memory: 64 bytes for each backup and about 500 for each source; while a repository is listed also its list of objects.

use super::expected::ToldInterval;
use fullbore_format::{
    error::Result,
    layout::{NOTES, backup_time},
    root::{Root, SourceInfo},
    text::source_text,
};
use fullbore_platform::queue::run_both;
use fullbore_repository::{
    open::{ids_of, read_repository},
    root_index::IndexPlace,
    root_reader::DocumentReader,
    roots::{BackupFiles, BackupState, RootFacts, backup_files},
    scan::lost_roots_of,
    verify_memory::VerifyMemory,
};
use fullbore_storage::Objects;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    str,
    sync::Arc,
};

/// Bytes of an id.
const ID_BYTES: usize = 23;
/// Errors of unreadable roots that are kept in words.
const MOST_ERRORS: usize = 100;
/// Everything was captured.
const COMPLETE: u8 = 1;
/// Somebody noted something after the backup: tags, or a pin.
const NOTED: u8 = 2;

/// A backup.
#[derive(Debug, Clone, Copy)]
pub struct BackupRow {
    id: [u8; ID_BYTES],
    flags: u8,
    /// The number of its source.
    pub source: u32,
    /// When it began, in seconds since 1970: its id says so. A server that takes backups has checked that time; what else a root says of time
    /// is its host's word.
    pub seconds: i64,
    /// Content.
    pub bytes: u64,
    pub stored_bytes: u64,
    /// The distance to the next backup that this one was told, by the tag of its root.
    pub(super) every: ToldInterval,
}

impl BackupRow {
    /// The id.
    pub fn id(&self) -> &str {
        str::from_utf8(&self.id).unwrap_or_default()
    }

    /// Whether everything was captured.
    pub fn is_complete(&self) -> bool {
        self.flags & COMPLETE != 0
    }

    /// Whether it has tags or a pin of a later time.
    pub fn is_noted(&self) -> bool {
        self.flags & NOTED != 0
    }
}

/// A source that has backups, or had some.
#[derive(Debug, Clone)]
pub struct RowSource {
    /// Names the source in addresses.
    pub key: String,
    /// As its newest backup has it.
    pub info: SourceInfo,
    /// The system identifier of a cluster.
    pub system: Option<String>,
    /// The number of its backups that are listed.
    pub count: usize,
}

impl RowSource {
    /// As `fullbore list` prints it.
    pub fn name(&self) -> String {
        source_text(&self.info)
    }
}

/// The backups of a repository.
#[derive(Debug, Clone, Default)]
pub struct BackupRows {
    /// The oldest first.
    rows: Vec<BackupRow>,
    sources: Vec<RowSource>,
    number_of: HashMap<[u8; 16], u32>,
    losses: BTreeMap<String, u64>,
    /// Backups that a check without a key found damaged, and no check with a key since.
    unproven: BTreeSet<String>,
    /// Listed backups whose root cannot be read, and those whose root is lost.
    pub unreadable: Vec<String>,
    /// Of the first of these, why.
    pub errors: Vec<(String, String)>,
    /// Bytes of all objects of backups.
    pub stored_bytes: u64,
    /// The files of interrupted backups.
    pub(super) unfinished: BTreeMap<String, BackupFiles>,
}

impl BackupRows {
    /// Lists a repository. What `earlier` has is not read again.
    ///
    /// # Errors
    /// Those of the storage. A root that cannot be read is no error.
    pub fn read(
        objects: &Arc<dyn Objects>,
        index: &IndexPlace,
        earlier: Option<&Self>,
    ) -> Result<(Self, VerifyMemory)> {
        read_repository(&**objects)?;
        let list_files = || backup_files(&**objects);
        let read_memory = || VerifyMemory::read(&**objects);
        let (files, memory) = run_both(objects.answers_late(), list_files, read_memory);
        let files = files?;
        let mut listing = Self {
            stored_bytes: super::stored_bytes(&files),
            ..Self::default()
        };
        match earlier {
            Some(earlier) => listing.take_known(earlier, &files),
            None => listing.rows.reserve(files.len()),
        }
        listing.read_others(&**objects, index, &files)?;
        listing.count();
        listing.losses = listing.losses_in(&memory);
        let rows = listing.rows.iter().map(BackupRow::id);
        let unproven = rows.filter(|id| memory.is_damaged_unproven(id));
        listing.unproven = unproven.map(str::to_owned).collect();
        listing.unfinished = ids_of(&files, BackupState::Partial)
            .into_iter()
            .filter_map(|id| Some((id.clone(), files.get(&id)?.clone())))
            .collect();
        for id in lost_roots_of(objects, files)? {
            listing.add_unreadable(
                id,
                "its root is lost; `fullbore repair` rebuilds it".to_owned(),
            );
        }
        Ok((listing, memory))
    }

    /// Takes the rows of backups that are still listed.
    fn take_known(&mut self, earlier: &Self, files: &BTreeMap<String, BackupFiles>) {
        self.sources.clone_from(&earlier.sources);
        self.number_of.clone_from(&earlier.number_of);
        for row in &earlier.rows {
            let own = files.get(row.id());
            if let Some(own) = own.filter(|own| own.state() == Some(BackupState::Listed)) {
                let flags = (row.flags & !NOTED) | noted(own);
                self.rows.push(BackupRow { flags, ..*row });
            }
        }
    }

    /// Reads the roots of backups that have no row.
    fn read_others(
        &mut self,
        objects: &dyn Objects,
        index: &IndexPlace,
        files: &BTreeMap<String, BackupFiles>,
    ) -> Result<()> {
        if self.rows.is_empty() {
            let mut reader = DocumentReader::new(objects, index);
            return reader.visit_listed(files, &mut |id, facts| {
                self.add_root(id, files, facts);
                Ok(())
            });
        }
        let is_other = |id: &str, files: &BackupFiles| {
            files.state() == Some(BackupState::Listed) && self.row(id).is_none()
        };
        let others = files.iter().filter(|(id, files)| is_other(id, files));
        let others: BTreeMap<String, BackupFiles> = others
            .map(|(id, files)| (id.clone(), files.clone()))
            .collect();
        let mut reader = DocumentReader::without_index(objects);
        reader.visit_listed(&others, &mut |id, facts| {
            self.add_root(id, &others, facts);
            Ok(())
        })?;
        self.rows.sort_by_key(|row| row.id);
        Ok(())
    }

    fn add_root(
        &mut self,
        id: &str,
        files: &BTreeMap<String, BackupFiles>,
        facts: Result<&RootFacts>,
    ) {
        let found = facts.and_then(|facts| Ok((facts.mark(), facts.root()?)));
        match (found, id.as_bytes().first_chunk()) {
            (Ok((mark, root)), Some(bytes)) => {
                let complete = if root.totals.is_complete() {
                    COMPLETE
                } else {
                    0
                };
                let noted = files.get(id).map_or(0, noted);
                let row = BackupRow {
                    id: *bytes,
                    flags: complete | noted,
                    seconds: backup_time(id).map_or(i64::MAX, |time| time.as_second()),
                    bytes: root.totals.bytes,
                    stored_bytes: root.totals.stored_bytes,
                    every: ToldInterval::of(&root.tags),
                    source: self.source(mark, root),
                };
                self.rows.push(row);
            }
            (Ok(_), None) => {} // no id of a backup
            (Err(error), _) => self.add_unreadable(id.to_owned(), error.line()),
        }
    }

    fn add_unreadable(&mut self, id: String, error: String) {
        if self.errors.len() < MOST_ERRORS {
            self.errors.push((id.clone(), error));
        }
        self.unreadable.push(id);
    }

    /// Returns the number of a source, which stays the same. Roots come in the order of time, so the last one names its paths.
    fn source(&mut self, mark: [u8; 16], root: Root) -> u32 {
        let system = root.postgres.map(|cluster| cluster.system_identifier);
        if let Some(number) = self.number_of.get(&mark) {
            let known = &mut self.sources[*number as usize];
            (known.info, known.system) = (root.source, system);
            return *number;
        }
        let number = self.sources.len() as u32;
        self.sources.push(RowSource {
            key: mark.iter().map(|byte| format!("{byte:02x}")).collect(),
            info: root.source,
            system,
            count: 0,
        });
        self.number_of.insert(mark, number);
        number
    }

    fn count(&mut self) {
        self.sources.iter_mut().for_each(|source| source.count = 0);
        for row in &self.rows {
            self.sources[row.source as usize].count += 1;
        }
    }

    fn losses_in(&self, memory: &VerifyMemory) -> BTreeMap<String, u64> {
        let rows = self.rows.iter();
        rows.filter_map(|row| Some((row.id().to_owned(), memory.loss(row.id())?)))
            .collect()
    }

    /// All backups, the oldest first.
    pub fn all(&self) -> &[BackupRow] {
        &self.rows
    }

    /// Returns a backup by its whole id.
    pub fn row(&self, id: &str) -> Option<&BackupRow> {
        let found = self.rows.binary_search_by(|row| row.id().cmp(id));
        found.ok().map(|at| &self.rows[at])
    }

    /// The files that a backup lost, as the last verification of data found.
    pub fn loss(&self, id: &str) -> Option<u64> {
        self.losses.get(id).copied()
    }

    /// Returns whether a check without a key found this backup damaged, and no check with a key has looked at all of it since.
    pub fn is_damaged_unproven(&self, id: &str) -> bool {
        self.unproven.contains(id)
    }

    /// Damaged backups, and the files that each lost.
    pub fn losses(&self) -> &BTreeMap<String, u64> {
        &self.losses
    }

    /// The source of a backup.
    pub fn source_of(&self, row: &BackupRow) -> &RowSource {
        &self.sources[row.source as usize]
    }

    /// The sources that have backups.
    pub fn sources(&self) -> impl Iterator<Item = &RowSource> {
        self.sources.iter().filter(|source| source.count > 0)
    }

    /// Returns the number of a source that has backups, by its key.
    pub fn source_number(&self, key: &str) -> Option<u32> {
        let mut sources = (0..).zip(&self.sources);
        let found = sources.find(|(_, source)| source.key == key && source.count > 0)?;
        Some(found.0)
    }

    /// The source of this number.
    pub fn source_at(&self, number: u32) -> Option<&RowSource> {
        self.sources.get(number as usize)
    }

    /// The backups of a source, the oldest first.
    pub fn of_source(&self, number: u32) -> impl DoubleEndedIterator<Item = &BackupRow> + Clone {
        let rows = self.rows.iter();
        rows.filter(move |row| row.source == number)
    }

    /// The rows of each source together, the oldest first.
    pub(super) fn by_source(&self) -> Vec<BackupRow> {
        let mut rows = self.rows.clone();
        rows.sort_by_key(|row| row.source);
        rows
    }
}

fn noted(files: &BackupFiles) -> u8 {
    if files.has(NOTES) { NOTED } else { 0 }
}
