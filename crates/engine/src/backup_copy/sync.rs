//! Copies the backups that a repository lacks from another one.
//!
//! The backups are copied one after the other, oldest first, each with everything that it refers
//! to. A backup is listed in the destination when all of it is durable there. So a run that was cut
//! off leaves whole backups, and the next run goes on with the objects of the one that was under
//! way.
//!
//! A backup that needs damaged objects is not copied; the others are.

use super::{
    copied::CopiedBackup,
    session::CopySession,
    wal::{self, WalCopies},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout,
    root::{Root, Segment},
    sizes,
    text::counted,
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::{
    annotations::Annotations,
    archive::Archive,
    open::{backup_ids, list_backups},
    roots,
    select::BackupFilter,
    shard::Shard,
    wal::CopiedWal,
    writer::{is_absent, must_be_possible},
};
use fullbore_storage::Objects;
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    num::NonZeroUsize,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

/// Two repositories, and the backups that both should have.
#[derive(Debug, Clone)]
pub struct RepositorySync {
    /// The repository to read.
    pub from: Arc<dyn Objects>,
    /// The repository to complete.
    pub to: Arc<dyn Objects>,
    /// Selects the backups.
    pub filter: BackupFilter,
    /// The share of the sources to copy; `None` for all.
    pub shard: Option<Shard>,
    /// Whether the destination must exist already.
    pub no_create: bool,
    /// Number of objects copied at the same time.
    pub workers: NonZeroUsize,
}

/// The selected backups, and which of them the destination lacks.
#[derive(Debug, Default)]
pub struct SyncPlan {
    /// The roots of all selected backups, without segments and pages, oldest first.
    pub selected: Vec<Root>,
    /// The backups to copy, oldest first.
    pub missing: Vec<MissingBackup>,
    /// Number of selected backups that the destination has.
    pub there: usize,
    /// Backups with a root that cannot be read.
    pub damaged: Vec<(String, Error)>,
}

/// A backup that the destination lacks.
#[derive(Debug, Clone)]
pub struct MissingBackup {
    /// Its ID.
    pub id: String,
    /// Stored bytes of the objects that are copied for it, and not for an earlier one.
    pub bytes: u64,
}

/// The outcome of a synchronization.
#[derive(Debug, Default)]
pub struct SyncOutcome {
    /// The copied backups, in the order of their copies.
    pub copied: Vec<CopiedBackup>,
    /// Backups that are damaged, and were not copied.
    pub damaged: Vec<(String, Error)>,
    /// Backups that were forgotten in the source repository during the run.
    pub forgotten: Vec<String>,
    /// The WAL that was copied, in all.
    pub wal: CopiedWal,
    /// Number of copied objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Wall-clock time in seconds.
    pub seconds: f64,
    /// Notes that could not be copied.
    pub warnings: Vec<String>,
}

impl RepositorySync {
    /// Compares the two repositories. Nothing is written.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if a repository is missing, or no backup is selected; errors of the
    /// storages.
    pub fn plan(&self) -> Result<SyncPlan> {
        if self.from.describe("") == self.to.describe("") {
            let message = format!("cannot copy {} to itself", self.from.describe(""));
            return Err(Error::new(ErrorKind::Usage, message));
        }
        must_be_possible(&*self.to, self.no_create)?;
        let (ids, sizes) = self.destination_contents()?;
        let mut needs = NeededBytes {
            there: sizes,
            counted: HashSet::new(),
        };
        let mut plan = SyncPlan::default();
        for (id, root) in list_backups(&self.from)? {
            let mut root = match root {
                Ok(root) => root,
                Err(error) if error.kind == ErrorKind::Corrupt => {
                    // Its source is not known: one of the shares tells of it.
                    if self.shard.is_none_or(Shard::is_first) {
                        plan.damaged.push((id, error));
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            if !self.is_selected(&mut root) {
                continue;
            }
            if ids.contains(&id) {
                plan.there += 1;
            } else {
                let bytes = needs.add(&root)?;
                plan.missing.push(MissingBackup { id, bytes });
            }
            // The roots of many backups are in memory at the same time.
            (root.segments, root.liveness, root.pages) = Default::default();
            root.not_captured.clear();
            plan.selected.push(root);
        }
        // An empty answer must not look like a complete copy.
        let is_empty = plan.selected.is_empty() && plan.damaged.is_empty();
        if is_empty && self.shard.is_none() {
            return Err(self.filter.none_selected(&self.from)?);
        }
        Ok(plan)
    }

    fn is_selected(&self, root: &mut Root) -> bool {
        self.shard.is_none_or(|shard| shard.has_backup(root))
            && self.filter.selects_in(&self.from, root)
    }

    /// Returns the listed backups of the destination, and the bytes of all objects of backups.
    fn destination_contents(&self) -> Result<(HashSet<String>, HashMap<String, u64>)> {
        if is_absent(&*self.to) {
            return Ok(Default::default());
        }
        let ids = backup_ids(&*self.to)?.into_iter().collect();
        let listed = self.to.list(layout::BACKUPS)?.into_iter();
        let sizes = listed.map(|object| (object.key, object.bytes));
        Ok((ids, sizes.collect()))
    }

    /// Copies the backups of the plan, and the WAL of their clusters.
    ///
    /// # Errors
    /// Errors of the storages that concern all backups. The backups that were copied before are
    /// listed.
    pub fn run(&self, plan: SyncPlan, meter: &Meter) -> Result<SyncOutcome> {
        let start = Instant::now();
        let bytes = plan.missing.iter().map(|missing| missing.bytes);
        meter.total_bytes.store(sizes::sum(bytes), Relaxed);
        let session = CopySession::begin(self.from.clone(), &self.to, self.workers)?;
        let mut wal = WalCopies::default();
        plan.selected.iter().for_each(|root| wal.add(root));
        let mut run = SyncRun {
            sync: self,
            session: session.keeping_rest().with_wal(wal),
            meter,
            outcome: SyncOutcome {
                damaged: plan.damaged,
                ..SyncOutcome::default()
            },
        };
        let count = plan.missing.len();
        for (number, missing) in plan.missing.iter().enumerate() {
            run.copy(&missing.id).map_err(|error| {
                let left = counted((count - number) as u64, "backup");
                error
                    .detail(format!(
                        "{} were copied; {left} are missing",
                        run.outcome.copied.len()
                    ))
                    .hint("run the same command again: it goes on from there")
            })?;
        }
        run.copy_rest_of_wal()?;
        let mut outcome = run.outcome;
        outcome.bytes = meter.bytes.load(Relaxed);
        outcome.seconds = start.elapsed().as_secs_f64();
        Ok(outcome)
    }
}

impl SyncPlan {
    /// Drops the backups that are not among `kept`. Returns how many that are.
    pub fn keep_only(&mut self, kept: &BTreeSet<String>) -> usize {
        let before = self.missing.len();
        self.missing.retain(|missing| kept.contains(&missing.id));
        self.selected.retain(|root| kept.contains(&root.id));
        before - self.missing.len()
    }

    /// Returns the root of a selected backup.
    pub fn root(&self, id: &str) -> Option<&Root> {
        let place = self.selected.iter().position(|root| root.id == id)?;
        self.selected.get(place)
    }
}

/// A synchronization under way.
struct SyncRun<'a> {
    sync: &'a RepositorySync,
    session: CopySession,
    meter: &'a Meter,
    outcome: SyncOutcome,
}

impl SyncRun<'_> {
    /// Copies one backup, unless it is damaged.
    fn copy(&mut self, id: &str) -> Result<()> {
        let copied = self
            .open(id)
            .and_then(|archive| self.session.copy(&archive, self.meter));
        match copied {
            Ok(mut copied) => {
                wal::add(&mut self.outcome.wal, &copied.wal);
                self.outcome.objects += copied.objects;
                let warnings = copied.warnings.drain(..);
                self.outcome
                    .warnings
                    .extend(warnings.map(|warning| format!("backup {id}: {warning}")));
                self.outcome.copied.push(copied);
                Ok(())
            }
            Err(error) if error.kind == ErrorKind::Corrupt => {
                self.outcome.damaged.push((id.to_owned(), error));
                Ok(())
            }
            Err(error) if error.kind == ErrorKind::NotFound && self.is_forgotten(id) => {
                self.outcome.forgotten.push(id.to_owned());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn open(&self, id: &str) -> Result<Archive> {
        let mut archive = Archive::open_backup(&self.sync.from, id)?;
        // Damaged annotations must not prevent a copy.
        if let Ok(notes) = Annotations::read(&*self.sync.from, id) {
            notes.apply(&mut archive.root);
        }
        Ok(archive)
    }

    /// Returns whether a backup is not listed in the source repository any more.
    fn is_forgotten(&self, id: &str) -> bool {
        let root = roots::key(id, layout::ROOT);
        matches!(self.sync.from.stat(&root), Ok(None))
    }

    fn copy_rest_of_wal(&mut self) -> Result<()> {
        match self.session.copy_rest_of_wal() {
            Ok((copied, warnings)) => {
                wal::add(&mut self.outcome.wal, &copied);
                self.outcome.warnings.extend(warnings);
                Ok(())
            }
            Err(error) if error.kind == ErrorKind::Corrupt => {
                self.outcome.damaged.push(("WAL".to_owned(), error));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Counts the bytes that the destination lacks, each object once.
struct NeededBytes {
    /// Objects of the destination with their bytes.
    there: HashMap<String, u64>,
    /// Objects that an earlier backup brings.
    counted: HashSet<String>,
}

impl NeededBytes {
    /// Returns the bytes of segments and pages that are copied for this backup.
    fn add(&mut self, root: &Root) -> Result<u64> {
        let suffix = Codec::named(&root.options.codec)?.suffix();
        let mut bytes = 0;
        for Segment {
            stream,
            number,
            bytes: len,
            ..
        } in &root.segments
        {
            let name = layout::segment(*stream, *number, suffix);
            sizes::add(&mut bytes, self.add_object(&root.id, &name, *len));
        }
        for live in &root.liveness {
            let id = live.id();
            let name = layout::segment(id.stream, id.number, suffix);
            let backup = if id.backup.is_empty() {
                &root.id
            } else {
                &id.backup
            };
            sizes::add(&mut bytes, self.add_object(backup, &name, live.of_bytes));
        }
        let own_pages = root.pages.iter().filter(|page| page.backup.is_empty());
        let pages = sizes::sum(own_pages.map(|page| page.bytes));
        sizes::add(
            &mut bytes,
            self.add_object(&root.id, layout::MANIFEST, pages),
        );
        Ok(bytes)
    }

    /// Returns the bytes of an object, or 0 if it is not copied for this backup.
    fn add_object(&mut self, backup: &str, name: &str, bytes: u64) -> u64 {
        let key = roots::key(backup, name);
        if self.there.contains_key(&key) || !self.counted.insert(key) {
            return 0;
        }
        bytes
    }
}
