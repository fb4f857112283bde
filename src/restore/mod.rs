//! Restores a backup to disk.
//!
//! The first pass over the manifest pages plans: it makes directories at once and turns everything
//! else into jobs, one frame and all pieces wanted from that frame. Workers fetch, decode, check
//! and write. A second pass, from the last record to the first, makes hard links and gives
//! directories their metadata. Memory holds a few pages and two buffers a worker, whatever the
//! number of files.

pub(crate) mod cluster;
pub(crate) mod content;
pub(crate) mod deferred_dirs;
pub mod delta;
pub(crate) mod directories;
pub mod estimate;
pub(crate) mod extraneous;
pub(crate) mod tar_stream;

pub use crate::archive::missing::MissingParts;

use crate::archive::not_there;
use crate::archive::unnamed_losses;
use crate::{
    archive::{Archive, Selection},
    error::{Error, ErrorKind, Result, quoted},
    format::{
        digest::Algorithm,
        entry::{Entry, EntryKind, EntryPath, is_within},
        page::{EntryState, PageItem},
    },
    metrics::meter::Meter,
    pipeline::{ordered::Permits, workers::WorkerLimit},
    platform::{self, dir::real_path},
    postgres::restore::{
        plan as postgres,
        plan::{ClusterPlan, Fate},
    },
    queue::Locked,
    repo::{
        open::{OpenedFrom, open_any, place},
        select::BackupFilter,
    },
    report::{
        damage::{Damage, Report},
        skipped::SkippedEntries,
    },
    sink::is_in,
    target::{
        layout::{TargetLayout, TargetMount},
        tree::{TargetOptions, TargetTree},
        writer::TargetWriter,
    },
    text::source_text,
};
use cluster::choose_backup;
use delta::{Delta, DeltaChanges};
use extraneous::ExtraneousFiles;
use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    num::NonZeroUsize,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Instant,
};

/// Hint after a restore of a cluster that the target could not take completely.
const RETRY_HINT: &str = "when that path can be written, run the same command again";
const RETRY_OVERWRITE_HINT: &str =
    "when that path can be written, run the same command again with --overwrite";

/// The backup to restore, the target, and the options of the restore.
#[derive(Debug, Clone)]
pub struct Restore {
    /// `FROM[@BACKUP]`, or `-` for a tar on standard input.
    pub from: OsString,
    /// Selects the backups of which the latest is restored.
    pub filter: BackupFilter,
    /// The target directory.
    pub to: PathBuf,
    /// Paths in the backup; empty for everything.
    pub paths: Vec<Vec<u8>>,
    /// Whether the target may hold files already.
    pub overwrite: bool,
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
    /// Restores the backup or the stream that `from` names.
    ///
    /// # Errors
    /// Every error that ends a restore; [`ErrorKind::Corrupt`] for damage without `keep_going`.
    pub fn run(&self, meter: &Meter) -> Result<Summary> {
        if let Some(archive) = choose_backup::choose_of_cluster(self, self.overwrite)? {
            return self.run_archive(archive, meter);
        }
        let opened = if self.from == "-" {
            None
        } else {
            Some(open_any(&self.from, &self.filter)?)
        };
        if let Some(OpenedFrom::Backup(archive)) = opened {
            return self.run_archive(*archive, meter);
        }
        self.filter.must_be_empty(&self.from)?;
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

    /// Plans and checks the restore, and opens the target. Also returns the files that do not belong
    /// to the backup, if they are to be removed.
    fn prepare<'a>(
        &self,
        archive: Archive,
        report: Arc<Report>,
        meter: &'a Meter,
        delta: Option<&Delta<'_>>,
    ) -> Result<(RestoreRun<'a>, ExtraneousFiles)> {
        let selection = Selection::new(&self.paths)?;
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
        (self.say_elsewhere)(&layout.mounts);
        let tree = Self {
            overwrite: self.overwrite || delta.is_some(),
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
        let damaged = run.report.files();
        if delta.is_none() && self.overwrite {
            run.report_kept_files(&damaged)?;
        }
        run.links_and_directories(&limit, &damaged)?;
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
            let replaces = changes.is_some() || self.overwrite;
            return Err(with_retry_hint(error, closing.is_kept, replaces));
        }
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
        let Self {
            overwrite,
            numeric_owner,
            ..
        } = *self;
        TargetTree::create(
            layout,
            TargetOptions {
                overwrite,
                numeric_owner,
                usual_parents: false,
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

/// Returns the paths of a selection; empty if the selection is everything.
pub(crate) fn selected_paths(selection: &Selection) -> Vec<EntryPath> {
    if selection.holds(b"") {
        Vec::new()
    } else {
        selection.paths().to_vec()
    }
}

/// Checks that every requested path exists and that some of its content was captured.
///
/// With `keep_going`, a path may also be on a damaged page: the restore reports that later and
/// restores the records on other pages.
pub(crate) fn check_paths_exist(
    archive: &Archive,
    selection: &Selection,
    keep_going: bool,
) -> Result<()> {
    for path in selection.paths() {
        let found = match archive.find(path) {
            Err(damage) if keep_going && damage.kind == ErrorKind::Corrupt => continue,
            found => found?,
        };
        if let Some(item) = found
            .first()
            .filter(|item| item.entry.kind != EntryKind::Directory)
        {
            check_captured(archive, item)?;
            // The target of a hard link may be damaged; the restore reports that later.
            if let EntryKind::HardLink(target) = &item.entry.kind
                && let Some(file) = archive
                    .find(target)
                    .ok()
                    .and_then(|parts| parts.into_iter().next())
            {
                check_captured(archive, &file)?;
            }
            continue;
        }
        if !archive.has(path)? {
            return Err(not_there(archive, path));
        }
    }
    Ok(())
}

/// Refuses a target inside the repository that the restore reads.
fn refuse_target_in_source(
    restore: &Restore,
    archive: &Archive,
    layout: &TargetLayout,
) -> Result<()> {
    let places = archive.store().places();
    let targets =
        std::iter::once(&layout.root).chain(layout.mounts.iter().map(|mount| &mount.directory));
    match { targets }.find(|target| is_in(target, &places)) {
        None => Ok(()),
        Some(target) => {
            let what = format!(
                "cannot restore to {target:?}: it is inside {:?}, which is read",
                restore.from
            );
            Err(Error::new(ErrorKind::Usage, what).hint("choose another --to"))
        }
    }
}

/// Refuses a restore that would replace the repository it reads.
fn refuse_replacing_source(
    restore: &Restore,
    archive: &Archive,
    selection: &Selection,
    layout: &TargetLayout,
) -> Result<()> {
    let real = |path: &Path| real_path(path).ok();
    let read = place(&restore.from)
        .ok()
        .and_then(|(location, _)| real(location.as_local()?));
    let (Some(read), Some(target)) = (read, real(&layout.root)) else {
        return Ok(());
    };
    let Some(own) = read
        .strip_prefix(&target)
        .ok()
        .filter(|own| *own != Path::new(""))
    else {
        return Ok(());
    };
    let own = own.as_os_str().as_bytes();
    let is_over = |item: &PageItem| {
        let is_itself = item.entry.path == own && item.entry.kind == EntryKind::Directory;
        let path = &item.entry.path;
        !is_itself && selection.holds(path) && is_within(path, own)
    };
    let here = Selection::new(&[own])?;
    match archive
        .records(&here, false)
        .filter_map(Result::ok)
        .find(is_over)
    {
        None => Ok(()),
        Some(item) => {
            let what = format!("cannot restore {} to {target:?}", quoted(&item.entry.path));
            Err(Error::new(ErrorKind::Usage, what)
                .because(format!("it would replace {read:?}, which is read"))
                .hint("choose another --to, or name only the paths that you need"))
        }
    }
}

fn check_captured(archive: &Archive, item: &PageItem) -> Result<()> {
    let why = match &item.state {
        EntryState::Unreadable(why) => why,
        EntryState::Vanished => "it vanished before it was read",
        EntryState::Noted => "sockets are not stored",
        _ => return Ok(()),
    };
    let what = format!(
        "cannot restore {} from backup {:?}",
        quoted(&item.entry.path),
        archive.root.id
    );
    Err(Error::new(ErrorKind::NotFound, what)
        .because(format!("it was not captured: {why}"))
        .hint("`fullbore find` shows which backups of a repository have it"))
}

/// The state that the workers of one restore share.
pub(crate) struct RestoreRun<'a> {
    pub(crate) archive: Archive,
    pub(crate) selection: Selection,
    /// The rules by which files of a cluster are restored, emptied or left out.
    cluster: ClusterPlan,
    pub(crate) tree: Arc<TargetTree>,
    pub(crate) report: Arc<Report>,
    pub(crate) meter: &'a Meter,
    /// Permits to decode and digest; they bound the busy threads.
    permits: Arc<Permits>,
    /// Stand-ins: if a file itself is not selected, its first selected hard link becomes the file.
    /// Maps the file to that link.
    stand_ins: Mutex<HashMap<EntryPath, EntryPath>>,
    /// Selected parts that the backup does not hold as they were.
    lacking: Mutex<MissingParts>,
    /// Files that were not captured. Hard links to these are not made, because another file may be
    /// at the same path.
    absent: Mutex<HashSet<EntryPath>>,
    /// Directories that keep the metadata they have.
    not_ours: Mutex<HashSet<EntryPath>>,
    /// Entries that the target cannot take.
    pub(crate) refused: SkippedEntries,
}

impl RestoreRun<'_> {
    /// Makes a directory, and passes every other restorable entry to `add`.
    pub(crate) fn plan_entry(
        &self,
        add: &mut dyn FnMut(PageItem) -> Result<()>,
        writer: &mut TargetWriter,
        item: PageItem,
    ) -> Result<()> {
        let item = match self.cluster.fate(&item.entry.path) {
            Fate::Restored => {
                self.lacking.locked().note(&item);
                item
            }
            Fate::Emptied if item.from == 0 => item.without_content(),
            // The record is left out, or continues a file that is emptied already.
            _ => return Ok(()),
        };
        self.meter.entries.fetch_add(1, Relaxed);
        if self.cluster.is_outside_server_directories(&item.entry.path) {
            let what = format!(
                "unexpected file in tablespace: {}",
                quoted(&item.entry.path)
            );
            return self
                .report
                .add((Error::corrupt(what), vec![item.entry.path.clone()]));
        }
        match &item.entry.kind {
            // A directory that could not be listed still holds entries of other streams.
            EntryKind::Directory if item.state != EntryState::Vanished => {
                self.make_directory(writer, &item.entry)
            }
            _ if !item.state.is_stored() => {
                if self.tree.options.overwrite {
                    self.mark_absent(&item.entry.path);
                }
                Ok(())
            }
            EntryKind::HardLink(target)
                if self.selection.takes(target) && !self.cluster.leaves_out(target) =>
            {
                Ok(())
            }
            EntryKind::HardLink(target) => self.add_stand_in(add, target, &item.entry.path),
            _ => add(item),
        }
    }

    /// Removes files that do not belong to the backup, and returns how many paths were removed
    /// completely.
    ///
    /// Paths that cannot be removed stay and are reported, as entries that cannot be made are.
    fn remove_extraneous(&self, extra: &[EntryPath]) -> Result<u64> {
        let mut removed = 0;
        for path in extra {
            removed += u64::from(
                self.refused
                    .skip_if_single(&self.tree, "removal", path, self.tree.remove_all(path))?
                    .is_some(),
            );
        }
        Ok(removed)
    }

    /// Returns the value of `done`, or `None` if the target refused the entry at `path`, which is
    /// then left out.
    pub(crate) fn unless_refused<T>(&self, path: &[u8], done: Result<T>) -> Result<Option<T>> {
        self.refused.skip_if_single(&self.tree, "entry", path, done)
    }

    /// Makes a directory. An existing directory that is only a parent of the selected paths keeps
    /// its metadata.
    fn make_directory(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<()> {
        let path = &entry.path;
        let asked_for = self.selection.holds(&entry.path);
        let Some(ours) = self.unless_refused(path, writer.directory(entry, asked_for))? else {
            return Ok(());
        };
        if !ours && !asked_for {
            self.not_ours.locked().insert(path.clone());
        }
        Ok(())
    }

    /// Makes the first selected name of a file the file itself, if the file's own name is not
    /// selected.
    fn add_stand_in(
        &self,
        add: &mut dyn FnMut(PageItem) -> Result<()>,
        target: &EntryPath,
        path: &EntryPath,
    ) -> Result<()> {
        let mut stand_ins = self.stand_ins.locked();
        if stand_ins
            .entry(target.clone())
            .or_insert_with(|| path.clone())
            != path
        {
            return Ok(());
        }
        drop(stand_ins);
        let found = self.archive.find(target);
        if !found
            .as_ref()
            .is_ok_and(|parts| directories::is_stored(parts))
        {
            self.mark_absent(target);
        }
        found?
            .iter()
            .map(|item| item.renamed(path.clone()))
            .try_for_each(|item| {
                if item.state.is_stored() {
                    add(item)
                } else {
                    self.lacking.locked().note(&item);
                    Ok(())
                }
            })
    }

    /// Prevents that hard links are made to a file that was not captured.
    fn mark_absent(&self, path: &EntryPath) {
        self.absent.locked().insert(path.clone());
    }
}
