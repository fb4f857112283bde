//! Put a backup back on disk.
//!
//! One pass over the pages plans: directories are made at once, everything else becomes jobs, each one frame and all that
//! is wanted of it. Workers fetch, decode, check and write. A second pass, backwards, makes hard links and gives
//! directories their metadata. Memory holds a few pages and two buffers a worker, whatever the number of files.

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
        root::Root,
    },
    metrics::meter::Meter,
    pipeline::{ordered::Permits, workers::WorkerLimit},
    platform::{self, Tricks, dir::real_path},
    postgres::restore::{
        plan as postgres,
        plan::{ClusterPlan, Fate},
    },
    queue::Locked,
    repo::open::{OpenedFrom, must_be_told, open_any, place},
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

/// What to do about a cluster that the target did not take all of.
const AGAIN: &str = "when that can be written, run the same command again";
const AGAIN_OVER: &str = "when that can be written, run the same command again with --overwrite";

/// What to restore, and how.
#[derive(Debug, Clone)]
pub struct Restore {
    /// `FROM[@BACKUP]`, or `-` for a tar on standard input.
    pub from: OsString,
    /// The target directory.
    pub to: PathBuf,
    /// Paths in the backup; none means everything.
    pub paths: Vec<Vec<u8>>,
    /// May the target hold something already?
    pub overwrite: bool,
    /// Restore what is whole even if something is damaged?
    pub keep_going: bool,
    /// Owners by number.
    pub numeric_owner: bool,
    /// What only the restore of a PostgreSQL cluster has.
    pub postgres: postgres::ClusterOptions,
    /// Threads that decode and digest at once.
    pub workers: NonZeroUsize,
    /// Bytes of all buffers together.
    pub memory: u64,
    /// May the system's special calls be used?
    pub tricks: Tricks,
    /// Is told of what is restored to places outside of the target, before anything is written.
    pub say_elsewhere: fn(&[TargetMount]),
}

/// What became of it.
#[derive(Debug, Default)]
pub struct Summary {
    /// The backup; empty for a foreign tar.
    pub id: String,
    /// What that is of, and when it was begun; of streams too, if they say so.
    pub source: String,
    /// As RFC 3339.
    pub time: String,
    /// Entries that were restored, or tried.
    pub entries: u64,
    /// Had its files digests to compare with?
    pub digested: bool,
    /// What could not be restored and is no failure, one line for each reason.
    pub notes: Vec<String>,
    /// What is to be done now, one line for each step.
    pub next: Vec<String>,
    /// How many of these, the first, it takes before a server starts.
    pub needed: usize,
    /// Damage that did harm; only with `keep_going`.
    pub damage: Vec<Damage>,
    /// What the backup itself does not hold as it was.
    pub lacking: MissingParts,
    /// What a restore into what was there found there.
    pub changes: Option<DeltaChanges>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

impl Summary {
    /// 4 if something is damaged; 3 if the backup does not hold everything as it was; 0.
    pub fn exit_code(&self) -> u8 {
        match (self.damage.is_empty(), self.lacking.is_empty()) {
            (false, _) => 4,
            (true, false) => 3,
            (true, true) => 0,
        }
    }
}

impl Restore {
    /// Do it.
    ///
    /// # Errors
    /// Whatever ends a restore; [`ErrorKind::Corrupt`] for damage without `keep_going`.
    pub fn run(&self, meter: &Meter) -> Result<Summary> {
        if self.overwrite {
            must_be_told(&self.from)?;
        }
        let opened = if self.from == "-" {
            None
        } else {
            Some(open_any(&self.from)?)
        };
        if let Some(OpenedFrom::Backup(archive)) = opened {
            return self.run_archive(choose_backup::early_enough(self, *archive)?, meter);
        }
        cluster::not_asked(self)?;
        match opened {
            Some(OpenedFrom::Foreign(path)) => {
                crate::restore::tar_stream::from_file(self, &path, meter)
            }
            _ => crate::restore::tar_stream::from_stdin(self, meter),
        }
    }

    /// Restore from a backup that is open.
    ///
    /// # Errors
    /// As [`Restore::run`].
    pub fn run_archive(&self, archive: Archive, meter: &Meter) -> Result<Summary> {
        self.run_in(archive, meter, None)
    }

    /// Restore; into what is there if `delta` says how.
    pub(crate) fn run_in(
        &self,
        archive: Archive,
        meter: &Meter,
        delta: Option<&Delta<'_>>,
    ) -> Result<Summary> {
        let start = Instant::now();
        let report = Arc::new(Report::new(self.keep_going));
        let noted = report.clone();
        let archive = archive.warn_with(move |damage| noted.warn(damage));
        let selection = Selection::new(&self.paths)?;
        must_be_there(&archive, &selection, self.keep_going)?;
        platform::raise_open_files_limit();
        let cluster = cluster::plan(self, &archive, &selection)?;
        let layout = cluster::layout(self, &archive, &selection, &cluster);
        refuse_inside(self, &archive, &layout)?;
        refuse_over(self, &archive, &selection, &layout)?;
        let unnamed = unnamed_losses::loss_affects(&archive, &selection)?;
        let extra = match delta {
            None => ExtraneousFiles::default(),
            Some(delta) => delta.announce(&archive, &selection, &cluster, &layout, unnamed)?,
        };
        cluster::refuse_rest(self, &archive, &selection, &cluster, &layout)?;
        (self.say_elsewhere)(&layout.mounts);
        let tree = Self {
            overwrite: self.overwrite || delta.is_some(),
            ..self.clone()
        }
        .tree(&layout)?;
        let lacking = Mutex::new(MissingParts::new(unnamed));
        let fit = self.workers_that_fit(&archive);
        let workers = self.workers.min(fit);
        let hands = WorkerLimit::climbing(workers, fit.get(), meter);
        let permits = Permits::new(workers);
        let (stand_ins, absent, not_ours, refused) = Default::default();
        let run = RestoreRun {
            archive,
            selection,
            cluster,
            tree,
            report,
            meter,
            permits,
            stand_ins,
            lacking,
            absent,
            not_ours,
            refused,
        };
        let removed = run.remove(&extra.paths)?;
        match delta {
            None => run.content(&hands)?,
            Some(delta) => delta.content(&run, &hands)?,
        }
        cluster::write_files(&run.cluster, &run.archive, &run.tree, &run.report)?;
        let damaged = run.report.files();
        if delta.is_none() && self.overwrite {
            run.say_what_is_left(&damaged)?;
        }
        run.links_and_directories(&hands, &damaged)?;
        run.tree.sync()?;
        let lacking = run.lacking.opened();
        let damage = run.report.damage();
        // A cluster of which something is missing, or may be, must not look complete.
        let is_whole = run.refused.is_empty() && lacking.is_captured();
        let last = cluster::finish(self, &run.cluster, &run.archive, &run.tree, is_whole)?;
        if damage.is_empty()
            && let Some(error) = run.refused.into_error("backup")
        {
            let told = lacking
                .lines()
                .into_iter()
                .chain(extra.kept)
                .chain(last.notes);
            let error = told.fold(error, Error::detail);
            let hint = if delta.is_some() || self.overwrite {
                AGAIN
            } else {
                AGAIN_OVER
            };
            return Err(if last.is_kept && error.hint.is_none() {
                error.hint(hint)
            } else {
                error
            });
        }
        let said = run
            .report
            .warnings()
            .into_iter()
            .chain(extra.kept)
            .chain(run.tree.notes.lines())
            .chain(last.notes);
        let notes = lacking.lines().into_iter().chain(said).collect();
        let entries = meter.entries.load(Relaxed);
        let digested = run.archive.root.options.digest != Algorithm::None;
        let Root {
            id, source, time, ..
        } = run.archive.root;
        let source = source_text(&source);
        // Nobody is told to start what is not whole.
        let (next, needed) = if damage.is_empty() && lacking.is_captured() {
            (last.next, last.needed)
        } else {
            Default::default()
        };
        let changes = delta.map(|delta| delta.changes(removed));
        let seconds = start.elapsed().as_secs_f64();
        Ok(Summary {
            id,
            source,
            time,
            entries,
            notes,
            next,
            needed,
            damage,
            lacking,
            digested,
            changes,
            seconds,
        })
    }

    /// The target.
    pub(crate) fn tree(&self, layout: &TargetLayout) -> Result<Arc<TargetTree>> {
        let Self {
            overwrite,
            numeric_owner,
            tricks,
            ..
        } = *self;
        TargetTree::create(
            layout,
            TargetOptions {
                overwrite,
                numeric_owner,
                tricks,
                usual_parents: false,
            },
        )
    }

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

/// Every path that was asked for exists, and something of it was captured. With `keep_going` one may also be on a page that is lost:
/// that is told when it is restored, and what is on other pages is given.
pub(crate) fn must_be_there(
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
            must_be_stored(archive, item)?;
            // What another name leads to may be damaged; that is told when it is restored.
            if let EntryKind::HardLink(target) = &item.entry.kind
                && let Some(file) = archive
                    .find(target)
                    .ok()
                    .and_then(|parts| parts.into_iter().next())
            {
                must_be_stored(archive, &file)?;
            }
            continue;
        }
        if !archive.has(path)? {
            return Err(not_there(archive, path));
        }
    }
    Ok(())
}

/// What is restored must not become part of the repository that it is read from.
fn refuse_inside(restore: &Restore, archive: &Archive, layout: &TargetLayout) -> Result<()> {
    let places = archive.store().places();
    let targets =
        std::iter::once(&layout.root).chain(layout.mounts.iter().map(|mount| &mount.directory));
    match { targets }.find(|target| is_in(target, &places)) {
        None => Ok(()),
        Some(target) => {
            let what = format!(
                "cannot restore to {target:?}: it is in {:?}, which is read",
                restore.from
            );
            Err(Error::new(ErrorKind::Usage, what).hint("choose another --to"))
        }
    }
}

/// Nor may something of the backup take the place of what is read.
fn refuse_over(
    restore: &Restore,
    archive: &Archive,
    selection: &Selection,
    layout: &TargetLayout,
) -> Result<()> {
    let real = |path: &Path| real_path(path).ok();
    let read = place(&restore.from).ok().and_then(|(path, _)| real(&path));
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
                .because(format!(
                    "it would take the place of {read:?}, which is read"
                ))
                .hint("choose another --to, or name the paths that are wanted"))
        }
    }
}

fn must_be_stored(archive: &Archive, item: &PageItem) -> Result<()> {
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
        .hint("`fullbore find` shows which backups of a repository hold it"))
}

/// A restore under way.
pub(crate) struct RestoreRun<'a> {
    pub(crate) archive: Archive,
    pub(crate) selection: Selection,
    /// What is done differently for a cluster.
    cluster: ClusterPlan,
    pub(crate) tree: Arc<TargetTree>,
    pub(crate) report: Arc<Report>,
    pub(crate) meter: &'a Meter,
    /// To decode and digest.
    permits: Arc<Permits>,
    /// For files of which only other names are restored: which of them stands in for it.
    stand_ins: Mutex<HashMap<EntryPath, EntryPath>>,
    /// What was wanted and is not there as it was.
    lacking: Mutex<MissingParts>,
    /// What was not captured, where something else may stand in its place, or another of its names was to stand in for it.
    absent: Mutex<HashSet<EntryPath>>,
    /// Directories that keep the metadata they have.
    not_ours: Mutex<HashSet<EntryPath>>,
    /// What the target cannot take.
    pub(crate) refused: SkippedEntries,
}

impl RestoreRun<'_> {
    /// Make a directory, and `add` everything else that is restored from frames or the manifest.
    pub(crate) fn plan_one(
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
            Fate::Emptied if item.from == 0 => item.hollow(),
            // Left out, or more of a file that is already empty.
            _ => return Ok(()),
        };
        self.meter.entries.fetch_add(1, Relaxed);
        if self.cluster.strays(&item.entry.path) {
            let what = format!(
                "{} is nothing that a tablespace has",
                quoted(&item.entry.path)
            );
            return self
                .report
                .add((Error::corrupt(what), vec![item.entry.path.clone()]));
        }
        match &item.entry.kind {
            // One that could not be listed still holds what other streams have below it.
            EntryKind::Directory if item.state != EntryState::Vanished => {
                self.directory(writer, &item.entry)
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
            EntryKind::HardLink(target) => self.stand_in(add, target, &item.entry.path),
            _ => add(item),
        }
    }

    /// Remove what does not belong. Of how many was nothing left? What cannot be removed stays, and is told like what cannot be
    /// made.
    fn remove(&self, extra: &[EntryPath]) -> Result<u64> {
        let mut removed = 0;
        for path in extra {
            removed += u64::from(
                self.refused
                    .unless(&self.tree, "removal", path, self.tree.remove_all(path))?
                    .is_some(),
            );
        }
        Ok(removed)
    }

    /// What was done, or `None`: what is at `path` is left out.
    pub(crate) fn unless_refused<T>(&self, path: &[u8], done: Result<T>) -> Result<Option<T>> {
        self.refused.unless(&self.tree, "entry", path, done)
    }

    /// A directory that was there is not ours to change if it is only above what was asked for.
    fn directory(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<()> {
        let (path, asked_for) = (&entry.path, self.selection.holds(&entry.path));
        let Some(ours) = self.unless_refused(path, writer.directory(entry, asked_for))? else {
            return Ok(());
        };
        if !ours && !asked_for {
            self.not_ours.locked().insert(path.clone());
        }
        Ok(())
    }

    /// The first selected name of a file whose own name is not restored becomes the file.
    fn stand_in(
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
            .try_for_each(|item| match item.state.is_stored() {
                true => add(item),
                false => {
                    self.lacking.locked().note(&item);
                    Ok(())
                }
            })
    }

    /// No name of it is given to what stands in its place.
    fn mark_absent(&self, path: &EntryPath) {
        self.absent.locked().insert(path.clone());
    }
}
