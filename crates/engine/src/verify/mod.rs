//! Checks backups: their structure, or every byte.
//!
//! The structure is each root, every copy of every page, and the size and seek table of every
//! segment. Each extent must lie in a frame of the seek table, the extents of a file must cover the
//! whole file, and the root must list every segment that its pages refer to. With `data`, all
//! stored bytes are compared with their checksums, all frames decoded and all files digested.
//! Objects that several backups share are checked once; damage is reported with the files of each
//! backup that are lost. The structure of a repository is checked in portions.
//!
//! Belongs here: finding damage, and naming the losses. Does not belong here: any change to a
//! repository (`repair`).

pub mod compare_tree;
pub(crate) mod data;
pub mod losses;
mod media;
mod part_runs;
mod portions;
mod record;
pub mod sample;
pub(crate) mod seek_tables;
pub(crate) mod stored_content;
mod stored_objects;
pub mod stream;
pub(crate) mod structure;
pub(crate) mod tree_roots;

use crate::report::damage::{Damage, Report, damage_lines};
use data::{ContentCheck, StoredPart};
use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    layout::{FORGOTTEN, NOTES},
    page::SegmentId,
    sizes,
};
use fullbore_platform::{metrics::meter::Meter, queue::Locked};
use fullbore_repository::{
    annotations::Annotations,
    archive::Archive,
    inventory::{Inventory, bad_words},
    open::{backup_ids, is_repository, place},
    select::BackupFilter,
    shard::Shard,
    verify_memory::{CheckedShare, VerifyRecord},
};
use fullbore_storage::{
    Objects, Storages,
    sealed::{KeyFiles, check_key_files},
};
use losses::{DamageSet, EntryLoss, blame};
use media::are_media_changed;
use portions::CheckedObjects;
use seek_tables::SegmentFrames;
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ffi::OsString,
    num::NonZeroUsize,
    path::PathBuf,
    sync::{Mutex, atomic::Ordering::Relaxed},
    time::{Instant, SystemTime},
};
use stream::{InspectedInput, look};

/// The options of a check.
#[derive(Debug, Clone)]
pub struct Verify {
    /// How storages are reached.
    pub storages: Storages,
    /// `FROM[@BACKUP]`, or `-` for standard input; for a repository without `@BACKUP`, all its
    /// backups.
    pub from: OsString,
    /// Selects the backups to check.
    pub filter: BackupFilter,
    /// Whether to check every byte.
    pub data: bool,
    /// A tree on disk to compare with; for a repository, with its latest backup.
    pub against: Option<PathBuf>,
    /// The share of the data to check; `None` for all.
    pub shard: Option<Shard>,
    /// Threads that read, decode and digest at first; more while they only wait.
    pub workers: NonZeroUsize,
}

/// The result of a check.
#[derive(Debug, Default)]
pub struct VerifyVerdict {
    /// The backup; empty if there are several, or if there is no backup.
    pub id: String,
    /// Number of backups that were checked.
    pub backups: usize,
    /// Number of backups that exist, including those with an unreadable root.
    pub of: usize,
    /// Backups with damage, harmful or not, oldest first.
    pub damaged: Vec<String>,
    /// Whether every byte was checked.
    pub data: bool,
    /// The share of the data that was checked; `None` for all.
    pub shard: Option<Shard>,
    /// Whether no key was given that opens pages and segments, so that only roots, lengths and stored bytes were checked.
    pub is_locked: bool,
    /// Whether the input was a tar without a manifest to compare with.
    pub is_bare: bool,
    /// For a stream: whether foreign data follows the end of the tar.
    pub is_trailed: bool,
    /// Number of checked entries; an entry that several backups share counts once.
    pub entries: u64,
    /// Number of entries that were not captured, and so cannot be checked.
    pub not_captured: u64,
    /// Pages that had wrong checksums in the server's files, as their backups recorded.
    pub bad_pages: u64,
    /// All damage.
    pub damage: Vec<Damage>,
    /// The losses that the damage causes, by backup.
    pub lost: Vec<EntryLoss>,
    /// Harmless damage: another copy is intact.
    pub warnings: Vec<String>,
    /// Are the key files those of two generations, so that they were not compared with the list of members?
    pub is_rotating: bool,
    /// The differences of the tree on disk, in path order.
    pub differences: Vec<crate::verify::compare_tree::Difference>,
    /// The part of the data that was ever checked before, for all backups of a repository.
    pub checked: Option<CheckedShare>,
    /// The outcome to be remembered, of backups in a repository: of a check of all data, or damage in the structure.
    pub record: Option<VerifyRecord>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

impl VerifyVerdict {
    /// Returns 4 for damage, even if it is still harmless; 1 for differences; else 0.
    pub fn exit_code(&self) -> u8 {
        match (
            self.damage.is_empty() && self.warnings.is_empty(),
            self.differences.is_empty(),
        ) {
            (false, _) => 4,
            (true, false) => 1,
            (true, true) => 0,
        }
    }

    /// Prints losses, damage and differences, one a line or paragraph; damaged frames whose files
    /// are named only if `is_verbose`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut dyn std::io::Write, is_verbose: bool) -> Result<()> {
        let mut line = |text: &str| fullbore_format::text::line(out, text);
        for loss in &self.lost {
            let all = loss.all.then(|| "everything".to_owned());
            let files = loss.files.iter().map(|path| quoted(path));
            let lost = all
                .into_iter()
                .chain(loss.unnamed.iter().cloned())
                .chain(files);
            lost.into_iter()
                .try_for_each(|name| line(&format!("lost: {}: {name}", loss.backup)))?;
        }
        damage_lines(&self.damage, is_verbose)
            .iter()
            .try_for_each(|text| line(text))?;
        self.warnings
            .iter()
            .try_for_each(|warning| line(&format!("harmless: {warning}")))?;
        if self.is_rotating {
            line(
                "key files were not compared: a rotation of the key is under way or was interrupted; `fullbore key rotate` completes it",
            )?;
        }
        self.differences
            .iter()
            .try_for_each(|difference| line(&difference.to_string()))
    }
}

impl Verify {
    /// Runs the check.
    ///
    /// # Errors
    /// Errors that make the check impossible: FROM does not exist, or the root of the only backup
    /// is damaged. All other damage is in the verdict.
    pub fn run(&self, meter: &Meter) -> Result<VerifyVerdict> {
        if self.against.is_none() && is_repository(&self.from) {
            return self.run_all(&self.storages.repository_at(&self.from)?, meter);
        }
        match look(&self.storages, &self.from, &self.filter)? {
            InspectedInput::Backup(archive) => self.run_archive(*archive, meter),
            InspectedInput::Stream(_) if self.against.is_some() => Err(Error::new(
                ErrorKind::Usage,
                "cannot compare a stream, or a tar of another program, with a tree",
            )
            .hint("put it into a file that fullbore wrote, or restore it")),
            InspectedInput::Stream(input) => stream::verify(input, meter),
        }
    }

    /// Checks an open backup.
    ///
    /// # Errors
    /// As [`Verify::run`].
    pub fn run_archive(&self, archive: Archive, meter: &Meter) -> Result<VerifyVerdict> {
        let (start, begun) = (Instant::now(), SystemTime::now());
        if self.against.is_some() {
            archive.store().check_readable()?;
        }
        let repository = place(&self.from)
            .ok()
            .and_then(|(location, _)| self.storages.objects(&location).ok());
        let check = RunningCheck::new(vec![archive], repository.as_deref(), self.data, meter)
            .with_shard(self.shard);
        let lost = check.run(self.workers)?;
        let archive = &check.stock.archives[0];
        let differences = match &self.against {
            Some(dir) => crate::verify::compare_tree::compare(archive, dir, self.workers, meter)?,
            None => Vec::new(),
        };
        let mut verdict = check.verdict(lost, start);
        verdict.differences = differences;
        verdict.record = check.record(begun, &verdict);
        Ok(verdict)
    }
}

/// Repeats `look` until no checked backup was forgotten meanwhile.
pub(crate) fn until_final<T>(mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    loop {
        match look() {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(error) if error.kind == ErrorKind::Gone => {}
            Err(error) => return Err(error),
        }
    }
}

/// A check in progress.
pub(crate) struct RunningCheck<'a> {
    pub(crate) stock: Inventory,
    pub(crate) bad: DamageSet,
    pub(crate) report: Report,
    /// Objects that need not be read again.
    known: Mutex<CheckedObjects>,
    /// Whether `known` gets what this check found sound.
    is_known_kept: bool,
    pub(crate) meter: &'a Meter,
    data: bool,
    shard: Option<Shard>,
    /// The segments that the pages of each backup refer to.
    used: Mutex<Vec<HashSet<SegmentId>>>,
    /// Parts of segments around damage, once all data was checked.
    damaged_parts: Mutex<Vec<StoredPart>>,
}

/// The frames of the segments, and the segments that are missing. Only decoding can show which
/// frames of a damaged segment are intact.
#[derive(Default)]
pub(crate) struct SegmentTables {
    pub(crate) frames: HashMap<SegmentId, SegmentFrames>,
    missing: HashSet<SegmentId>,
}

impl<'a> RunningCheck<'a> {
    pub(crate) fn new(
        archives: Vec<Archive>,
        repository: Option<&dyn Objects>,
        data: bool,
        meter: &'a Meter,
    ) -> Self {
        let stock = Inventory::new(archives, repository);
        let used = Mutex::new(vec![HashSet::new(); stock.archives.len()]);
        Self {
            stock,
            bad: DamageSet::default(),
            report: Report::new(true),
            known: Mutex::default(),
            is_known_kept: false,
            meter,
            data,
            shard: None,
            used,
            damaged_parts: Mutex::default(),
        }
    }

    /// Checks only a share of the data.
    pub(crate) fn with_shard(self, shard: Option<Shard>) -> Self {
        Self { shard, ..self }
    }

    /// Checks the annotations of the backups, and the documents of forgotten ones that they refer to. `may_have` says whether a backup may
    /// have an object of this name.
    fn notes(&self, repository: &dyn Objects, may_have: impl Fn(&str, &str) -> bool) -> Result<()> {
        let lost =
            "tags that were added later are lost, and it is unknown whether the backup is pinned";
        let may_be_forgotten = |id: &str| may_have(id, FORGOTTEN);
        for (_, error, root) in bad_words(&self.stock.archives, repository, may_be_forgotten) {
            self.report.mark_damaged_backup(&root.id);
            self.report.note(format!(
                "{}; other backups need objects of that backup, which the document does not describe",
                error.line()
            ));
        }
        let ids = self.stock.archives.iter().map(|archive| &archive.root.id);
        for id in ids.filter(|id| may_have(id, NOTES)) {
            match Annotations::read(repository, id) {
                Err(error) => self.report.add((error.detail(lost), Vec::new()))?,
                Ok(notes) => {
                    let line = notes.keyless_line().map(|line| {
                        format!("backup {id:?} has notes that were set without a key: {line}")
                    });
                    line.into_iter().for_each(|line| self.report.note(line));
                }
            }
        }
        Ok(())
    }

    /// Returns whether the verdict is good, or all checked backups still exist. Objects of a backup
    /// that was forgotten meanwhile may have been pruned.
    pub(crate) fn is_final(
        &self,
        verdict: &VerifyVerdict,
        repository: &dyn Objects,
    ) -> Result<bool> {
        if verdict.exit_code() == 0 {
            return Ok(true);
        }
        let listed = backup_ids(repository)?;
        Ok(self
            .stock
            .archives
            .iter()
            .all(|archive| listed.contains(&archive.root.id)))
    }

    /// Does not read again what an earlier check found sound, and keeps what this one finds.
    fn with_known(self, known: CheckedObjects) -> Self {
        Self {
            known: Mutex::new(known),
            is_known_kept: true,
            ..self
        }
    }

    fn run(&self, workers: NonZeroUsize) -> Result<Vec<EntryLoss>> {
        // Volumes of a drive for one medium are read one after the other.
        let workers = match self.stock.archives.iter().any(are_media_changed) {
            true => NonZeroUsize::MIN,
            false => workers,
        };
        let tables = self.structure(workers)?;
        if self.is_known_kept {
            self.known.locked().frames = tables.frames;
        }
        let Self {
            stock,
            bad,
            report,
            meter,
            ..
        } = self;
        let content = ContentCheck {
            stock,
            bad,
            report,
            meter,
            shard: self.shard,
        };
        match (self.data, self.is_locked()) {
            (true, false) => content.check(workers)?,
            (true, true) => content.check_stored(workers)?,
            (false, _) => {}
        }
        *self.damaged_parts.locked() = self.bad.parts_around(&self.stock);
        if self.is_locked() {
            // Which files are lost, pages say.
            return Ok(Vec::new());
        }
        Ok(blame(&self.stock, &self.bad, &self.report))
    }

    /// Returns the backups that were checked, and those without a root, in order.
    fn ids(&self, lost: &[EntryLoss]) -> Vec<String> {
        let archives = self.stock.archives.iter();
        let without_root = lost.iter().filter(|loss| loss.all).map(|loss| &loss.backup);
        let ids = archives.map(|archive| &archive.root.id).chain(without_root);
        let mut ids: Vec<String> = ids.cloned().collect();
        ids.sort_unstable();
        ids
    }

    fn damaged(&self, lost: &[EntryLoss]) -> DamagedBackups {
        let stored_by = self.report.damaged_backups();
        let archives = self.stock.archives.iter();
        let referring = archives.flat_map(|archive| {
            let others = archive.root.referenced_backups().into_iter();
            let id = &archive.root.id;
            let damaged = others.filter(|other| stored_by.contains(*other));
            damaged.map(move |other| (id.clone(), other.to_owned()))
        });
        DamagedBackups {
            referring: referring.collect(),
            with_loss: lost.iter().map(|loss| loss.backup.clone()).collect(),
            stored_by,
        }
    }

    pub(crate) fn verdict(&self, lost: Vec<EntryLoss>, start: Instant) -> VerifyVerdict {
        let (ids, damaged) = (self.ids(&lost), self.damaged(&lost));
        self.verdict_on(&ids, &damaged, lost, start)
    }

    fn verdict_on(
        &self,
        ids: &[String],
        damaged: &DamagedBackups,
        lost: Vec<EntryLoss>,
        start: Instant,
    ) -> VerifyVerdict {
        let totals = || {
            self.stock
                .archives
                .iter()
                .map(|archive| &archive.root.totals)
        };
        let id = match ids {
            [only] => only.clone(),
            _ => String::new(),
        };
        VerifyVerdict {
            id,
            of: ids.len(),
            damaged: damaged.among(ids),
            backups: self.stock.archives.len(),
            data: self.data,
            shard: self.shard,
            entries: self.meter.entries.load(Relaxed),
            is_locked: self.is_locked(),
            not_captured: sizes::sum(totals().map(|totals| totals.unreadable)),
            bad_pages: sizes::sum(totals().map(|totals| totals.bad_pages)),
            damage: self.report.damage(),
            lost,
            warnings: self.report.warnings(),
            seconds: start.elapsed().as_secs_f64(),
            ..VerifyVerdict::default()
        }
    }

    pub(crate) fn no_root(&self, backup: String, error: Error) -> Result<EntryLoss> {
        let detail = format!(
            "all of backup {backup:?} is lost with it until `fullbore repair` has rebuilt it"
        );
        self.report.add((error.detail(detail), Vec::new()))?;
        Ok(EntryLoss {
            backup,
            all: true,
            ..EntryLoss::default()
        })
    }
}

/// Backups with damage or losses.
#[derive(Debug, Default)]
struct DamagedBackups {
    /// Those that stored a damaged object.
    stored_by: BTreeSet<String>,
    with_loss: BTreeSet<String>,
    /// Backups that refer to one that stored a damaged object, each with that one.
    referring: Vec<(String, String)>,
}

impl DamagedBackups {
    fn add(&mut self, more: Self) {
        self.stored_by.extend(more.stored_by);
        self.with_loss.extend(more.with_loss);
        self.referring.extend(more.referring);
    }

    /// Returns which of these backups are damaged; `ids` and the result are in order.
    ///
    /// Damage to the document of a forgotten backup is counted for the backups that refer to it.
    fn among(&self, ids: &[String]) -> Vec<String> {
        let is_here = |id: &String| ids.binary_search(id).is_ok();
        let own = self.stored_by.iter().chain(&self.with_loss);
        let own = own.filter(|id| is_here(id));
        let referring = self.referring.iter();
        let referring = referring
            .filter(|(id, other)| is_here(id) && !is_here(other))
            .map(|(id, _)| id);
        let damaged: BTreeSet<&String> = own.chain(referring).collect();
        damaged.into_iter().cloned().collect()
    }
}

/// Checks the key files of an encrypted repository against the list of members. Returns the damage, and whether they were not compared
/// because the key is being rotated.
fn key_files(repository: &dyn Objects) -> Result<(Vec<Damage>, bool)> {
    let changed = match check_key_files(repository)? {
        KeyFiles::Changed(changed) => changed,
        KeyFiles::Rotating => return Ok((Vec::new(), true)),
    };
    let report = Report::new(true);
    for (file, why) in changed {
        let error = Error::corrupt(format!("{file:?} is damaged"))
            .because(why)
            .hint("whoever has this key cannot use the repository: remove it, and add it again");
        report.add((error, Vec::new()))?;
    }
    Ok((report.damage(), false))
}
