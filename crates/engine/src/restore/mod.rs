//! Restores a backup to disk.
//!
//! The first pass over the manifest pages plans: it makes directories at once and turns everything
//! else into jobs, one frame and all pieces wanted from that frame. Workers fetch, decode, check
//! and write. A second pass, from the last record to the first, makes hard links and gives
//! directories their metadata. Memory holds a few pages and two buffers a worker, whatever the
//! number of files.
//!
//! Belongs here: which entries are restored, in which order, and which existing files are replaced
//! or deleted. Does not belong here: writing to the tree (`target`), and reading the backup
//! (`archive`).

pub(crate) mod checks;
pub(crate) mod cluster;
pub(crate) mod content;
pub mod delta;
pub(crate) mod directories;
mod entry_patterns;
pub mod estimate;
pub(crate) mod existing;
pub(crate) mod extraneous;
pub mod preview;
pub(crate) mod run;
pub(crate) mod tar_stream;

pub use fullbore_repository::archive::missing::MissingParts;

use crate::report::{
    damage::{Damage, Report},
    skipped::SkippedEntries,
};
use checks::{check_paths_exist, refuse_replacing_source, refuse_target_in_source, selected_paths};
use cluster::choose_backup;
use delta::{Delta, DeltaChanges};
pub use entry_patterns::EntryPatterns;
use existing::NewerFiles;
pub use existing::Overwrite;
use extraneous::ExtraneousFiles;
use fullbore_format::{
    digest::Algorithm,
    entry::EntryPath,
    error::{Error, Result},
    root::Root,
    text::source_text,
};
use fullbore_pipeline::{ordered::Permits, workers::WorkerLimit};
use fullbore_platform as platform;
use fullbore_platform::{metrics::meter::Meter, queue::Locked};
use fullbore_postgres::restore::plan as postgres;
use fullbore_repository::archive::unnamed_losses;
use fullbore_repository::{
    archive::Archive,
    open::{OpenedFrom, open_any},
    select::BackupFilter,
};
use fullbore_storage::Storages;
use fullbore_tree::write::{
    layout::{TargetLayout, TargetMount},
    tree::{TargetOptions, TargetTree},
};
use run::RestoreRun;
use std::{
    ffi::OsString,
    num::NonZeroUsize,
    path::PathBuf,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Instant,
};

/// Hint after a restore of a cluster that the target could not take completely.
const RETRY_HINT: &str = "when that path can be written, run the same command again";
const RETRY_OVERWRITE_HINT: &str =
    "when that path can be written, run the same command again with --overwrite=all";

/// The backup to restore, the target, and the options of the restore.
#[derive(Debug, Clone)]
pub struct Restore {
    /// How storages are reached.
    pub storages: Storages,
    /// `FROM[@BACKUP]`, or `-` for a tar on standard input.
    pub from: OsString,
    /// Selects the backups of which the latest is restored.
    pub filter: BackupFilter,
    /// The target directory.
    pub to: PathBuf,
    /// Paths in the backup; empty for everything.
    pub paths: Vec<Vec<u8>>,
    /// Patterns that choose among them.
    pub patterns: EntryPatterns,
    /// Whether the target may hold files already, and which of them are replaced.
    pub overwrite: Overwrite,
    /// Whether the restore continues after damage and restores every undamaged file.
    pub keep_going: bool,
    /// Whether owners are restored by number instead of by name.
    pub numeric_owner: bool,
    /// Options that only the restore of a PostgreSQL cluster has.
    pub postgres: postgres::ClusterOptions,
    /// Number of threads that decode and digest at once.
    pub workers: NonZeroUsize,
    /// Memory limit of all buffers together, in bytes.
    pub memory: u64,
    /// The words of a command that fetches WAL: the program, then the options with which it reaches this repository.
    pub fetch_words: Vec<OsString>,
    /// Called before the first write, with the directories outside of the target that the restore
    /// writes to.
    pub say_elsewhere: fn(&[TargetMount]),
}

/// The outcome of a restore.
#[derive(Debug, Default)]
pub struct Summary {
    /// ID of the backup; empty for a foreign tar.
    pub id: String,
    /// Source of the backup; empty for a stream without metadata.
    pub source: String,
    /// Start time of the backup, as RFC 3339.
    pub time: String,
    /// The requested paths, in their order; empty if everything was requested.
    pub paths: Vec<EntryPath>,
    /// The requested databases; empty for a whole cluster and for other backups.
    pub databases: Vec<String>,
    /// Number of entries that were restored or tried.
    pub entries: u64,
    /// Whether the manifest has digests to check files against.
    pub digested: bool,
    /// Notes on parts that could not be restored and are no failure, one line for each reason.
    pub notes: Vec<String>,
    /// Steps for the user to take now, one line each.
    pub next: Vec<String>,
    /// Number of steps, from the start of `next`, that must precede the start of the server.
    pub needed: usize,
    /// Damage that cost files; only with `keep_going`.
    pub damage: Vec<Damage>,
    /// Parts that the backup itself does not hold as they were.
    pub lacking: MissingParts,
    /// Counts of a restore into existing files.
    pub changes: Option<DeltaChanges>,
    /// Wall-clock time in seconds.
    pub seconds: f64,
}

impl Summary {
    /// Returns 4 if something is damaged, 3 if the backup does not hold everything as it was, else
    /// 0.
    pub fn exit_code(&self) -> u8 {
        match (self.damage.is_empty(), self.lacking.is_empty()) {
            (false, _) => 4,
            (true, false) => 3,
            (true, true) => 0,
        }
    }
}

impl Restore {
    /// Returns the root of the backup that is restored, into an existing tree or not.
    ///
    /// # Errors
    /// Those of choosing and opening it.
    pub fn chosen_root(&self, in_place: bool) -> Result<Root> {
        Ok(choose_backup::open_chosen(self, in_place)?.root)
    }

    /// Restores the backup or the stream that `from` names.
    ///
    /// # Errors
    /// Every error that ends a restore; [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) for damage without `keep_going`.
    pub fn run(&self, meter: &Meter) -> Result<Summary> {
        if let Some(archive) = choose_backup::choose_of_cluster(self, self.overwrite.is_allowed())?
        {
            return self.run_archive(archive, meter);
        }
        let opened = if self.from == "-" {
            None
        } else {
            Some(open_any(&self.storages, &self.from, &self.filter)?)
        };
        if let Some(OpenedFrom::Backup(archive)) = opened {
            return self.run_archive(*archive, meter);
        }
        self.filter.must_be_empty(&self.from)?;
        self.patterns.must_be_empty()?;
        cluster::check_not_postgres(self)?;
        match opened {
            Some(OpenedFrom::Foreign(path)) => {
                crate::restore::tar_stream::from_file(self, &path, meter)
            }
            _ => crate::restore::tar_stream::from_stdin(self, meter),
        }
    }

    /// Restores from an open backup.
    ///
    /// # Errors
    /// As [`Restore::run`].
    pub fn run_archive(&self, archive: Archive, meter: &Meter) -> Result<Summary> {
        self.run_in(archive, meter, None)
    }

    /// Restores the backup; with `delta`, updates the files that the target already has.
    pub(crate) fn run_in(
        &self,
        archive: Archive,
        meter: &Meter,
        delta: Option<&Delta<'_>>,
    ) -> Result<Summary> {
        let start = Instant::now();
        archive.store().check_readable()?;
        let report = Arc::new(Report::new(self.keep_going));
        let noted = report.clone();
        let archive = archive.warn_with(move |damage| noted.warn(damage));
        let (run, extra) = self.prepare(archive, report, meter, delta)?;
        let removed = run.remove_extraneous(&extra.paths)?;
        self.write(&run, delta)?;
        let changes = delta.map(|delta| delta.changes(removed));
        let summary = self.finish(run, extra.kept, changes)?;
        Ok(Summary {
            seconds: start.elapsed().as_secs_f64(),
            ..summary
        })
    }

    /// Plans and checks the restore, and opens the target. Also returns the files that do not
    /// belong to the backup, if they are to be removed.
    fn prepare<'a>(
        &self,
        archive: Archive,
        report: Arc<Report>,
        meter: &'a Meter,
        delta: Option<&Delta<'_>>,
    ) -> Result<(RestoreRun<'a>, ExtraneousFiles)> {
        let selection = self.selection(&archive)?;
        check_paths_exist(&archive, &selection, self.keep_going)?;
        platform::raise_open_files_limit();
        let cluster = cluster::plan(self, &archive, &selection)?;
        let layout = cluster::layout(self, &archive, &selection, &cluster);
        refuse_target_in_source(self, &archive, &layout)?;
        refuse_replacing_source(self, &archive, &selection, &layout)?;
        let unnamed = unnamed_losses::loss_affects(&archive, &selection)?;
        let extra = match delta {
            None => ExtraneousFiles::default(),
            Some(delta) => {
                delta.list_deletions(&archive, &selection, &cluster, &layout, unnamed)?
            }
        };
        cluster::refusals::refuse_leftovers(self, &archive, &selection, &cluster, &layout)?;
        let overwrite = match delta {
            Some(_) => Overwrite::All,
            None => self.overwrite_in(&archive, &selection, &layout)?,
        };
        (self.say_elsewhere)(&layout.mounts);
        let tree = Self {
            overwrite,
            ..self.clone()
        }
        .create_tree(&layout)?;
        let permits = Permits::new(self.workers.min(self.workers_that_fit(&archive)));
        let run = RestoreRun {
            archive,
            selection,
            cluster,
            tree,
            report,
            meter,
            permits,
            stand_ins: Mutex::default(),
            lacking: Mutex::new(MissingParts::new(unnamed)),
            absent: Mutex::default(),
            not_ours: Mutex::default(),
            newer: NewerFiles::of(overwrite),
            refused: SkippedEntries::default(),
        };
        Ok((run, extra))
    }

    /// Writes everything except the last file of a cluster, and makes it durable.
    fn write(&self, run: &RestoreRun<'_>, delta: Option<&Delta<'_>>) -> Result<()> {
        let fit = self.workers_that_fit(&run.archive);
        let limit = WorkerLimit::climbing(self.workers.min(fit), fit.get(), run.meter);
        match delta {
            None => run.content(&limit)?,
            Some(delta) => delta.content(run, &limit)?,
        }
        cluster::write_files(&run.cluster, &run.archive, &run.tree, &run.report)?;
        cluster::write_archived_wal(self, &run.cluster, &run.archive, &run.tree)?;
        let damaged = run.report.files();
        if delta.is_none() && self.overwrite.is_allowed() {
            run.report_kept_files(&damaged)?;
        }
        run.links_and_directories(&limit, &damaged)?;
        if let Some(info) = &run.archive.root.postgres {
            cluster::new_forks::remove_forks(&self.to, &run.cluster, info, &run.tree)?;
        }
        run.tree.sync()
    }

    /// Completes a cluster with its last file, and sums up the restore. `kept` are notes on files
    /// that were not removed; `changes` are the counts of a restore into existing files.
    ///
    /// # Errors
    /// The entries that the target refused, unless damage is reported instead.
    fn finish(
        &self,
        run: RestoreRun<'_>,
        kept: Vec<String>,
        changes: Option<DeltaChanges>,
    ) -> Result<Summary> {
        let lacking = run.lacking.opened();
        let damage = run.report.damage();
        // A server must not start on an incomplete cluster, so its last file is left out.
        let is_complete = run.refused.is_empty() && lacking.is_captured();
        let closing = cluster::finish(self, &run.cluster, &run.archive, &run.tree, is_complete)?;
        let mut notes = lacking.lines();
        if damage.is_empty()
            && let Some(error) = run.refused.into_error("backup", &run.tree)
        {
            notes.extend(kept);
            notes.extend(closing.notes);
            let error = notes.into_iter().fold(error, Error::detail);
            let replaces = changes.is_some() || self.overwrite.is_allowed();
            return Err(with_retry_hint(error, closing.is_kept, replaces));
        }
        notes.extend(run.newer.line());
        notes.extend(run.report.warnings());
        notes.extend(kept);
        notes.extend(run.tree.notes.lines());
        notes.extend(closing.notes);
        // The steps for starting a server are left out if the cluster is incomplete.
        let (next, needed) = if damage.is_empty() && lacking.is_captured() {
            (closing.next, closing.needed)
        } else {
            Default::default()
        };
        let root = run.archive.root;
        Ok(Summary {
            source: source_text(&root.source),
            id: root.id,
            time: root.time,
            paths: selected_paths(&run.selection),
            databases: self.postgres.databases.clone(),
            entries: run.meter.entries.load(Relaxed),
            notes,
            next,
            needed,
            damage,
            lacking,
            digested: root.options.digest != Algorithm::None,
            changes,
            seconds: 0.0,
        })
    }

    /// Opens or creates the target tree.
    pub(crate) fn create_tree(&self, layout: &TargetLayout) -> Result<Arc<TargetTree>> {
        TargetTree::create(
            layout,
            TargetOptions {
                overwrite: self.overwrite.is_allowed(),
                numeric_owner: self.numeric_owner,
                usual_parents: false,
                whole_files: false,
            },
        )
    }

    /// Returns the number of workers that the memory limit allows.
    ///
    /// A worker holds a frame twice, stored and decoded, and a stretch of a file.
    fn workers_that_fit(&self, archive: &Archive) -> NonZeroUsize {
        let each = archive
            .root
            .options
            .frame_bytes
            .max(1 << 16)
            .saturating_mul(3);
        NonZeroUsize::new((self.memory / each) as usize).unwrap_or(NonZeroUsize::MIN)
    }
}

/// Adds a hint to run the command again, if a cluster still lacks its last file (`is_kept`).
fn with_retry_hint(error: Error, is_kept: bool, replaces: bool) -> Error {
    if !is_kept || error.hint.is_some() {
        return error;
    }
    error.hint(if replaces {
        RETRY_HINT
    } else {
        RETRY_OVERWRITE_HINT
    })
}
