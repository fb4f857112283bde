//! Put a backup back on disk.
//!
//! One pass over the pages plans: directories are made at once, everything else becomes jobs, each one frame and all that
//! is wanted of it. Workers fetch, decode, check and write. A second pass, backwards, makes hard links and gives
//! directories their metadata. Memory holds a few pages and two buffers a worker, whatever the number of files.

use super::{
    cluster, crew,
    damage::{Damage, Report, frame_damage},
    delta::{Changes, Delta},
};
use crate::pipeline::meter::{Meter, lap};
use crate::{
    error::{Error, Kind as ErrorKind, Result, quoted},
    format::{
        digest::{Digest, Piece},
        entry::{Kind, Path as EntryPath},
        page::{Item, State},
    },
    platform::{self, Tricks},
    postgres::restore::{self as postgres, Fate, Plan},
    repo::open::{Opened, open_any},
    sink::{
        large::Large,
        places::Layout,
        tree::{Options, Tree},
        writer::Writer,
    },
    source::{
        archive::{Archive, Selection},
        jobs::{self, End, Of, Planner, Shared, Wanted, check_whole},
    },
    stage::codec::Decompressor,
};
use std::{
    collections::HashMap,
    num::NonZeroUsize,
    path::PathBuf,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Instant,
};

type Job = jobs::Job<Large>;

/// What to restore, and how.
#[derive(Debug, Clone)]
pub struct Restore {
    /// `FROM[@BACKUP]`, or `-` for a tar on standard input.
    pub from: String,
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
    pub postgres: postgres::Options,
    /// Threads that fetch, decode and write.
    pub workers: NonZeroUsize,
    /// Bytes of all buffers together.
    pub memory: u64,
    /// May the system's special calls be used?
    pub tricks: Tricks,
}

/// What became of it.
#[derive(Debug, Default)]
pub struct Summary {
    /// The backup; empty for a foreign tar.
    pub id: String,
    /// Entries that were restored, or tried.
    pub entries: u64,
    /// What could not be restored and is no failure, one line for each reason.
    pub notes: Vec<String>,
    /// What is to be done now, one line for each step.
    pub next: Vec<String>,
    /// Damage that did harm; only with `keep_going`.
    pub damage: Vec<Damage>,
    /// What a restore into what was there found there.
    pub changes: Option<Changes>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

impl Summary {
    /// 0, or 4 if something is damaged.
    pub fn exit_code(&self) -> u8 {
        if self.damage.is_empty() { 0 } else { 4 }
    }
}

impl Restore {
    /// Do it.
    ///
    /// # Errors
    /// Whatever ends a restore; [`ErrorKind::Corrupt`] for damage without `keep_going`.
    pub fn run(&self, meter: &Meter) -> Result<Summary> {
        let opened = if self.from == "-" { None } else { Some(open_any(&self.from)?) };
        if let Some(Opened::Backup(archive)) = opened {
            return self.run_archive(*archive, meter);
        }
        cluster::not_asked(self)?;
        match opened {
            Some(Opened::Foreign(path)) => super::extract::from_file(self, &path, meter),
            _ => super::extract::from_stdin(self, meter),
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
    pub(super) fn run_in(&self, archive: Archive, meter: &Meter, delta: Option<&Delta<'_>>) -> Result<Summary> {
        let start = Instant::now();
        let report = Arc::new(Report::new(self.keep_going));
        let noted = report.clone();
        let archive = archive.warn_with(move |damage| noted.warn(damage));
        let selection = Selection::new(&self.paths)?;
        must_be_there(&archive, &selection)?;
        platform::raise_open_files_limit();
        let cluster = cluster::plan(self, &archive, &selection)?;
        let layout = cluster::layout(self, &archive, &selection, &cluster);
        let extra = delta.map_or(Ok(Vec::new()), |delta| delta.announce(&archive, &selection, &cluster, &layout))?;
        let tree = Self { overwrite: self.overwrite || delta.is_some(), ..self.clone() }.tree(&layout)?;
        extra.iter().try_for_each(|path| tree.remove_all(path))?;
        let run = Run { archive, selection, cluster, tree, report, meter, stand_ins: Mutex::default() };
        let workers = self.workers_that_fit(&run.archive);
        meter.share(workers.get());
        match delta {
            None => run.content(workers)?,
            Some(delta) => delta.content(&run, workers)?,
        }
        cluster::write_files(&run.cluster, &run.archive, &run.tree, &run.report)?;
        run.links_and_directories()?;
        run.tree.sync()?;
        let last = cluster::finish(self, &run.cluster, &run.archive, &run.tree)?;
        let notes = run.report.warnings().into_iter().chain(run.tree.notes.lines()).chain(last.notes).collect();
        let entries = meter.entries.load(Relaxed);
        let (id, damage) = (run.archive.root.id, run.report.damage());
        // Nobody is told to start what is not whole.
        let next = if damage.is_empty() { last.next } else { Vec::new() };
        let changes = delta.map(|delta| delta.changes(extra.len() as u64));
        Ok(Summary { id, entries, notes, next, damage, changes, seconds: start.elapsed().as_secs_f64() })
    }

    /// The target.
    pub(super) fn tree(&self, layout: &Layout) -> Result<Arc<Tree>> {
        let Self { overwrite, numeric_owner, tricks, .. } = *self;
        Tree::create(layout, Options { overwrite, numeric_owner, tricks })
    }

    /// A worker holds a frame twice, stored and decoded.
    fn workers_that_fit(&self, archive: &Archive) -> NonZeroUsize {
        let each = 2 * archive.root.options.frame_bytes.max(1 << 16);
        let fit = NonZeroUsize::new((self.memory / each) as usize).unwrap_or(NonZeroUsize::MIN);
        self.workers.min(fit)
    }
}

/// Every path that was asked for exists.
pub(super) fn must_be_there(archive: &Archive, selection: &Selection) -> Result<()> {
    for path in selection.paths() {
        if !archive.has(path)? {
            let what = format!("could not find {} in backup {:?}", quoted(path), archive.root.id);
            return Err(Error::new(ErrorKind::NotFound, what)
                .hint("`fullbore list FROM@BACKUP` shows what there is; paths begin at the root of the backup"));
        }
    }
    Ok(())
}

/// A restore under way.
pub(super) struct Run<'a> {
    pub(super) archive: Archive,
    pub(super) selection: Selection,
    /// What is done differently for a cluster.
    cluster: Plan,
    pub(super) tree: Arc<Tree>,
    pub(super) report: Arc<Report>,
    pub(super) meter: &'a Meter,
    /// For files of which only other names were selected: which of them stands in for it.
    stand_ins: Mutex<HashMap<EntryPath, EntryPath>>,
}

/// What one worker has.
struct Hand {
    writer: Writer,
    decompressor: Decompressor,
    stored: Vec<u8>,
    plain: Vec<u8>,
}

impl Run<'_> {
    /// First pass: everything but hard links and the metadata of directories.
    fn content(&self, workers: NonZeroUsize) -> Result<()> {
        if self.selection.paths().is_empty() && self.cluster.is_of_everything() {
            self.meter.total_bytes.store(self.archive.root.totals.bytes, Relaxed);
        }
        let make = || Hand {
            writer: Writer::new(&self.tree),
            decompressor: self.archive.codec.decompressor(),
            stored: Vec::new(),
            plain: Vec::new(),
        };
        crew::work(workers, make, |hand, job| self.job(hand, job), |send| self.plan(send))
    }

    fn plan(&self, send: &mut dyn FnMut(Job) -> Result<()>) -> Result<()> {
        let mut planner = Planner::new(send);
        let mut writer = Writer::new(&self.tree);
        for item in self.archive.records(&self.selection, false) {
            let planned = item.and_then(|item| self.plan_one(&mut |item| planner.add(item), &mut writer, item));
            self.report.survive(planned)?;
        }
        self.report.survive(planner.finish())
    }

    /// Make a directory, and `add` everything else that is restored from frames or the manifest.
    pub(super) fn plan_one(
        &self,
        add: &mut dyn FnMut(Item) -> Result<()>,
        writer: &mut Writer,
        item: Item,
    ) -> Result<()> {
        let item = match self.cluster.fate(&item.entry.path) {
            Fate::Restored => item,
            Fate::Emptied if item.from == 0 => item.hollow(),
            // Left out, or more of a file that is already empty.
            _ => return Ok(()),
        };
        self.meter.entries.fetch_add(1, Relaxed);
        match &item.entry.kind {
            // One that could not be listed still holds what other streams have below it.
            Kind::Directory if item.state != State::Vanished => writer.directory(&item.entry.path),
            _ if !item.state.is_stored() => Ok(()),
            Kind::HardLink(target) if self.selection.takes(target) => Ok(()),
            Kind::HardLink(target) => self.stand_in(add, target, &item.entry.path),
            _ => add(item),
        }
    }

    /// The first selected name of a file whose own name was not selected becomes the file.
    fn stand_in(&self, add: &mut dyn FnMut(Item) -> Result<()>, target: &EntryPath, path: &EntryPath) -> Result<()> {
        let mut stand_ins = self.stand_ins.lock().unwrap_or_else(|e| e.into_inner());
        if stand_ins.entry(target.clone()).or_insert_with(|| path.clone()) != path {
            return Ok(());
        }
        drop(stand_ins);
        for item in self.archive.find(target)?.iter().filter(|item| item.state.is_stored()) {
            add(item.renamed(path.clone()))?;
        }
        Ok(())
    }

    /// One frame and all that is wanted of it.
    fn job(&self, hand: &mut Hand, job: Job) -> Result<()> {
        let mut clock = Instant::now();
        if let Err(error) = self.decode(hand, &job, &mut clock) {
            return self.spoil(hand, job, error);
        }
        let plain = std::mem::take(&mut hand.plain);
        let checked: Vec<Checked> = job.pieces.iter().map(|piece| self.check(piece, &plain)).collect();
        lap(&self.meter.workers.busy, &mut clock);
        let mut pieces = job.pieces.iter().zip(checked);
        let written = pieces.try_for_each(|(piece, checked)| self.write(&mut hand.writer, piece, &plain, checked));
        let written = written.and_then(|()| job.bare.iter().try_for_each(|item| bare(&mut hand.writer, item)));
        let empty = job.bare.iter().filter(|item| item.entry.is_file()).count();
        self.meter.files.fetch_add(empty as u64, Relaxed);
        lap(&self.meter.sink.busy, &mut clock);
        hand.plain = plain;
        written
    }

    fn decode(&self, hand: &mut Hand, job: &Job, clock: &mut Instant) -> Result<()> {
        let Some((segment, frame)) = &job.frame else { return Ok(()) };
        let fetched = self.archive.fetch(segment, frame, &mut hand.stored);
        self.meter.stored_bytes.fetch_add(u64::from(frame.stored_len), Relaxed);
        lap(&self.meter.source.busy, clock);
        fetched?;
        hand.decompressor.decompress(&hand.stored, frame.plain_len as usize, &mut hand.plain)
    }

    fn check(&self, wanted: &Wanted<Large>, plain: &[u8]) -> Checked {
        let content = wanted.content(plain);
        match &wanted.of {
            Of::Whole(item) => Checked::Whole(check_whole(item, content)),
            Of::Part(shared, offset) => Checked::Part(shared.hash(self.archive.root.options.digest, *offset, content)),
        }
    }

    fn write(&self, writer: &mut Writer, wanted: &Wanted<Large>, plain: &[u8], checked: Checked) -> Result<()> {
        let content = wanted.content(plain);
        match (&wanted.of, checked) {
            (Of::Whole(item), Checked::Whole(End::Damaged(why))) => self.report.file(item, &why),
            (Of::Whole(item), _) => {
                self.count(content, true);
                writer.file(&item.entry, content)
            }
            (Of::Part(shared, offset), checked) => {
                let Checked::Part(hashed) = checked else { return Ok(()) };
                if !shared.is_damaged() {
                    shared.handle.write(writer, &shared.item.entry, *offset, content)?;
                }
                self.count(content, false);
                self.end(writer, shared, shared.done(*offset, wanted.len.into(), hashed))
            }
        }
    }

    fn count(&self, content: &[u8], file: bool) {
        self.meter.bytes.fetch_add(content.len() as u64, Relaxed);
        self.meter.files.fetch_add(u64::from(file), Relaxed);
    }

    /// What to do with a large file after a piece of it.
    fn end(&self, writer: &mut Writer, shared: &Shared<Large>, end: End) -> Result<()> {
        let end = match end {
            End::Unknown(Digest::Blake3(wanted)) => {
                let found = self.tree.hash(&shared.item.entry)?;
                let why = || format!("its digest is {found}, the manifest says {}", Digest::Blake3(wanted));
                if found == wanted { End::Right } else { End::Damaged(why()) }
            }
            other => other,
        };
        match end {
            End::NotYet => Ok(()),
            End::Right | End::Unknown(_) => {
                self.meter.files.fetch_add(1, Relaxed);
                shared.handle.finish(writer, &shared.item.entry)
            }
            End::Damaged(why) => {
                shared.handle.discard();
                // A damaged frame has been reported with all its files.
                if shared.is_damaged() { Ok(()) } else { self.report.file(&shared.item, &why) }
            }
        }
    }

    /// The frame of a job is damaged: so are all files that want it.
    fn spoil(&self, hand: &mut Hand, job: Job, error: Error) -> Result<()> {
        let Some(frame) = &job.frame else { return Err(error) };
        let files = job.pieces.iter().map(|piece| piece.item().entry.path.clone()).collect();
        self.report.add(frame_damage(&self.archive, frame, error, files))?;
        for piece in &job.pieces {
            if let Of::Part(shared, offset) = &piece.of {
                shared.spoil();
                self.end(&mut hand.writer, shared, shared.done(*offset, piece.len.into(), Piece::None))?;
            }
        }
        Ok(())
    }

    /// Second pass, deepest first.
    fn links_and_directories(&self) -> Result<()> {
        let mut writer = Writer::new(&self.tree);
        for item in self.archive.records(&self.selection, true) {
            // A page that cannot be read was reported by the first pass.
            let Ok(item) = item else { continue };
            match &item.entry.kind {
                Kind::Directory if item.state != State::Vanished => writer.finish_directory(&item.entry)?,
                Kind::HardLink(target) if item.state.is_stored() => self.link(&mut writer, target, &item.entry.path)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn link(&self, writer: &mut Writer, target: &EntryPath, path: &EntryPath) -> Result<()> {
        let stand_in = self.stand_ins.lock().unwrap_or_else(|e| e.into_inner()).get(target).cloned();
        if stand_in.as_ref() == Some(path) {
            return Ok(());
        }
        match writer.link(stand_in.as_ref().unwrap_or(target), path) {
            Err(e) if e.kind == ErrorKind::NotFound => {
                self.tree.notes.add("hard link", "what it is a name of is not there", path);
                Ok(())
            }
            other => other,
        }
    }
}

/// What is known of a piece before it is written.
enum Checked {
    Whole(End),
    Part(Piece),
}

fn bare(writer: &mut Writer, item: &Item) -> Result<()> {
    match item.entry.kind {
        Kind::File { .. } => writer.file(&item.entry, &[]),
        _ => writer.other(&item.entry),
    }
}
