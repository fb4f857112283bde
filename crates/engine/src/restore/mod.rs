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
mod content_records;
pub(crate) mod deferral;
pub mod delta;
pub(crate) mod directories;
mod entry_patterns;
pub mod estimate;
pub(crate) mod existing;
pub(crate) mod extraneous;
pub(crate) mod plan;
pub mod preview;
mod request;
pub(crate) mod rules;
pub(crate) mod run;
pub(crate) mod tar_stream;

use crate::report::{damage::Report, skipped::SkippedEntries};
use checks::selected_paths;
use cluster::choose_backup;
use deferral::FileDeferral;
use delta::Delta;
use existing::{NewerFiles, ReplacedFiles};
use extraneous::refuse_leftovers;
use fullbore_format::{
    digest::Algorithm,
    error::{Error, Result},
    root::Root,
    text::source_text,
};
use fullbore_pipeline::{ordered::Permits, workers::WorkerLimit};
use fullbore_platform as platform;
use fullbore_platform::{metrics::meter::Meter, queue::Locked};
use fullbore_repository::{
    archive::{Archive, missing::MissingParts},
    open::{OpenedFrom, open_any},
};
use fullbore_tree::write::tree::{TargetOptions, TargetTree};
use plan::RestorePlan;
pub use request::{
    ChosenEntries, DeltaChanges, EntryPatterns, ExtraDeletion, Restore, RestoreInto, Summary,
};
use rules::WrittenParts;
use run::RestoreRun;
use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Instant,
};

/// Hint after a restore of a cluster that the target could not take completely.
const RETRY_HINT: &str = "when that path can be written, run the same command again";
const RETRY_OVERWRITE_HINT: &str =
    "when that path can be written, run the same command again with --overwrite=all";

impl Restore {
    /// Returns the root of the backup that is restored.
    ///
    /// # Errors
    /// Those of choosing and opening it.
    pub fn chosen_root(&self) -> Result<Root> {
        let is_in_place = self.into.is_in_place();
        Ok(choose_backup::open_chosen(self, is_in_place)?.root)
    }

    /// Restores the backup or the stream that `from` names.
    ///
    /// # Errors
    /// Every error that ends a restore; [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) for damage without `keep_going`.
    pub fn run(&self, meter: &Meter) -> Result<Summary> {
        if matches!(self.into, RestoreInto::Delta { .. }) {
            return self.run_archive(self.open_for_delta()?, meter);
        }
        if let Some(archive) = choose_backup::choose_of_cluster(self, self.into.is_in_place())? {
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
        self.run_deferring(archive, meter, None)
    }

    /// As [`Restore::run_archive`], but makes placeholders of the files that `deferral` defers. Then nothing is
    /// made durable here.
    ///
    /// # Errors
    /// As [`Restore::run`].
    pub(crate) fn run_deferring(
        &self,
        archive: Archive,
        meter: &Meter,
        deferral: Option<Arc<dyn FileDeferral>>,
    ) -> Result<Summary> {
        let start = Instant::now();
        archive.store().check_readable()?;
        let report = Arc::new(Report::new(self.keep_going));
        let noted = report.clone();
        let archive = archive.warn_with(move |damage| noted.warn(damage));
        let plan = RestorePlan::new(self, archive)?;
        plan.check_source(self)?;
        if plan.selection.is_everything() {
            report.missing_end(&plan.archive.root)?;
        }
        // Before the target is opened: whatever refuses the restore leaves the target unchanged.
        let extra = self.list_deletions(&plan)?;
        refuse_leftovers(&plan)?;
        let run = self.begin(plan, report, meter, deferral)?;
        let removed = run.remove_extraneous(&extra.paths)?;
        let delta = match self.into {
            RestoreInto::Delta { .. } => Some(Delta::new()),
            RestoreInto::Empty | RestoreInto::Overwrite { .. } => None,
        };
        self.write(&run, delta.as_ref())?;
        let changes = delta.map(|delta| delta.changes(removed));
        let summary = self.finish(run, extra.kept, changes)?;
        Ok(Summary {
            seconds: start.elapsed().as_secs_f64(),
            ..summary
        })
    }

    /// Opens the target for what was planned.
    fn begin<'a>(
        &self,
        plan: RestorePlan,
        report: Arc<Report>,
        meter: &'a Meter,
        deferral: Option<Arc<dyn FileDeferral>>,
    ) -> Result<RestoreRun<'a>> {
        platform::raise_open_files_limit();
        let replaced = self.replaced_files(&plan)?;
        (self.say_elsewhere)(&plan.layout.mounts);
        let options = TargetOptions {
            overwrite: replaced != ReplacedFiles::Nothing,
            numeric_owner: self.numeric_owner,
            usual_parents: false,
            // A placeholder must be marked before it has a name.
            whole_files: deferral.is_some(),
        };
        let tree = TargetTree::create(&plan.layout, options)?;
        let permits = Permits::new(self.workers.min(self.workers_that_fit(&plan.archive)));
        Ok(RestoreRun {
            archive: plan.archive,
            selection: plan.selection,
            rules: plan.rules,
            tree,
            report,
            meter,
            permits,
            stand_ins: Mutex::default(),
            lacking: Mutex::new(MissingParts::new(plan.unnamed)),
            absent: Mutex::default(),
            not_ours: Mutex::default(),
            newer: NewerFiles::of(replaced),
            refused: SkippedEntries::default(),
            deferral,
        })
    }

    /// Writes everything except the file that is placed last, and makes it durable.
    fn write(&self, run: &RestoreRun<'_>, delta: Option<&Delta>) -> Result<()> {
        let fit = self.workers_that_fit(&run.archive);
        let limit = WorkerLimit::climbing(self.workers.min(fit), fit.get(), run.meter);
        match delta {
            None => run.content(&limit)?,
            Some(delta) => delta.content(run, &limit)?,
        }
        run.rules.write_files(&written_parts(run))?;
        let damaged = run.report.files();
        if self.into.overwrites() {
            run.report_kept_files(&damaged)?;
        }
        run.links_and_directories(&limit, &damaged)?;
        run.rules.remove_files(&run.tree)?;
        match run.deferral {
            // On a busy disk a sync takes seconds, and the tree is not complete.
            Some(_) => Ok(()),
            None => run.tree.sync(),
        }
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
        let damage = run.report.damage();
        // A server must not start on an incomplete cluster, so its last file is left out.
        let is_complete = run.refused.is_empty() && run.lacking.locked().is_captured();
        let closing = run.rules.finish(&run.tree, is_complete)?;
        let lacking = run.lacking.opened();
        let mut notes = lacking.lines();
        if damage.is_empty()
            && let Some(error) = run.refused.into_error("backup", &run.tree)
        {
            notes.extend(kept);
            notes.extend(closing.notes);
            let error = notes.into_iter().fold(error, Error::detail);
            let replaces = self.into.is_in_place();
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
            source_info: Some(root.source.clone()),
            id: root.id,
            time: root.time,
            paths: selected_paths(&run.selection),
            databases: self.postgres.databases.clone(),
            entries: run.meter.entries.load(Relaxed),
            notes,
            newer_files: run.newer.count(),
            next,
            needed,
            damage,
            lacking,
            digested: root.options.digest != Algorithm::None,
            changes,
            seconds: 0.0,
        })
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

fn written_parts<'a>(run: &'a RestoreRun<'_>) -> WrittenParts<'a> {
    WrittenParts {
        archive: &run.archive,
        tree: &run.tree,
        report: &run.report,
    }
}
