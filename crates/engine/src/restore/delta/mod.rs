//! Updates an existing tree from a backup: only differing content is written.
//!
//! Records are taken in batches. For each batch, all workers read the files of the target and
//! compare them with the digests of the manifest, block by block where the manifest has block
//! digests. They then fetch the frames of the differing blocks, each once a batch, and write in
//! place. A file is not replaced as a whole, so an interrupted restore may leave a mix of old and
//! new content. Files that do not belong to the backup are removed only on request, and listed
//! before the first change.

pub(crate) mod batch;

use super::{
    Overwrite, Restore, RestoreRun, Summary, check_paths_exist,
    cluster::{self, choose_backup},
    entry_patterns::left_out_by_backup,
    extraneous::{ExtraneousFiles, find_extraneous},
};
use batch::DeltaBatch;
use fullbore_format::{
    entry::{self, EntryPath, xattr_bytes},
    error::{Error, ErrorKind, Result},
    page::PageItem,
    sizes,
};
use fullbore_pipeline::workers::WorkerLimit;
use fullbore_platform::{dir::Stat, metrics::meter::Meter, queue::Locked};
use fullbore_postgres::restore::plan::{ClusterPlan, PG_CONTROL};
use fullbore_repository::archive::unnamed_losses;
use fullbore_repository::archive::{Archive, Selection};
use fullbore_repository::open::{OpenedFrom, open_any};
use fullbore_tree::{
    patterns::Patterns,
    write::{deletion_limit::DeletionLimit, layout::TargetLayout, writer::TargetWriter},
};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Records of a batch: about a page.
const BATCH_ITEMS: usize = 8192;
/// Bytes of files that one batch compares; a larger file is a batch of its own.
const BATCH_BYTES: u64 = 1 << 30;
/// Weight of extended attributes: they are held until the batch is done, so that a byte counts as
/// this many bytes of a file.
const HELD: u64 = 128;

/// A restore into existing files.
pub struct Delta<'a> {
    restore: &'a Restore,
    /// Which files are removed that do not belong to the backup.
    deletion: Option<ExtraDeletion>,
    /// Receives the list of paths to remove, before the first change.
    say: &'a (dyn Fn(&[EntryPath]) -> Result<()> + Sync),
    pub(crate) same: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) written: AtomicU64,
    /// Device and inode of unchanged files with several names: two files of the backup must not
    /// become one.
    linked: Mutex<HashSet<(u64, u64)>>,
}

/// How files are removed that do not belong to the backup.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExtraDeletion {
    /// Whether files are removed that the backup left out on its host.
    pub excluded: bool,
    /// How much may be removed.
    pub limit: DeletionLimit,
}

/// Counts of a restore into existing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeltaChanges {
    /// Files, links and special files that already were as in the backup.
    pub same: u64,
    /// Files, links and special files that differed or were missing.
    pub changed: u64,
    /// Removed paths that did not belong to the backup, each counted once with everything below it.
    pub removed: u64,
    /// Bytes of content that were written.
    pub written_bytes: u64,
}

impl<'a> Delta<'a> {
    /// Prepares `restore`, which overwrites. With `deletion`, files that do not belong are removed,
    /// after `say` has received their list.
    pub fn new(
        restore: &'a Restore,
        deletion: Option<ExtraDeletion>,
        say: &'a (dyn Fn(&[EntryPath]) -> Result<()> + Sync),
    ) -> Self {
        let [same, changed, written] = Default::default();
        Self {
            restore,
            deletion,
            say,
            same,
            changed,
            written,
            linked: Mutex::default(),
        }
    }

    /// Claims an existing file; returns false if another file of the backup has claimed it already.
    pub(crate) fn claim_inode(&self, there: &Stat) -> bool {
        self.linked.locked().insert((there.dev, there.inode))
    }

    /// Runs the restore.
    ///
    /// # Errors
    /// Those of [`Restore::run`]; [`ErrorKind::Usage`] for a whole cluster without `delete`.
    pub fn run(&self, meter: &Meter) -> Result<Summary> {
        let archive = self.open_archive()?;
        let selection = self.restore.selection(&archive)?;
        if archive.root.postgres.is_some() && selection.holds(PG_CONTROL) && self.deletion.is_none()
        {
            let what = "cannot restore a cluster into an existing one and keep files newer than the backup";
            let why = "the server would use these files as its own";
            return Err(Error::new(ErrorKind::Usage, what)
                .because(why)
                .hint("add --delete"));
        }
        // With --overwrite, an existing cluster is refused because its other files would stay; here
        // these are removed.
        Restore {
            overwrite: Overwrite::Never,
            ..self.restore.clone()
        }
        .run_in(archive, meter, Some(self))
    }

    /// Opens the backup. A tar of another program is refused, because it has no digests.
    fn open_archive(&self) -> Result<Archive> {
        if let Some(archive) = choose_backup::choose_of_cluster(self.restore, true)? {
            return Ok(archive);
        }
        let restore = self.restore;
        match open_any(&restore.storages, &restore.from, &restore.filter)? {
            OpenedFrom::Backup(archive) => Ok(*archive),
            OpenedFrom::Foreign(path) => {
                let what =
                    format!("cannot restore {path:?} with --delta: it is not a fullbore archive");
                Err(Error::new(ErrorKind::Unsupported, what)
                    .because("a tar of another program has no digests to compare the target with")
                    .hint("use --overwrite=all, which writes all files"))
            }
        }
    }

    /// Lists the paths that the restore would remove, and changes nothing. Returns the error that
    /// would end the restore because they are too many.
    ///
    /// # Errors
    /// Those of [`Delta::run`] before its first write.
    pub fn plan_deletions(&self) -> Result<Option<Error>> {
        let archive = self.open_archive()?;
        let selection = self.restore.selection(&archive)?;
        check_paths_exist(&archive, &selection, self.restore.keep_going)?;
        let plan = cluster::plan(self.restore, &archive, &selection)?;
        let layout = cluster::layout(self.restore, &archive, &selection, &plan);
        let unnamed = unnamed_losses::loss_affects(&archive, &selection)?;
        let found = self.find_deletions(&archive, &selection, &plan, &layout, unnamed)?;
        (self.say)(&found.paths)?;
        Ok(self.check_deletions(&found).err())
    }

    pub(crate) fn changes(&self, removed: u64) -> DeltaChanges {
        let [same, changed, written_bytes] =
            [&self.same, &self.changed, &self.written].map(|count| count.load(Relaxed));
        DeltaChanges {
            same,
            changed,
            removed,
            written_bytes,
        }
    }

    /// Returns the files that do not belong to the backup, after their list was passed to `say`.
    ///
    /// `unnamed` is the reason why the backup may lack files that it cannot name.
    ///
    /// # Errors
    /// Those of [`find_extraneous`]; [`ErrorKind::Corrupt`] if `unnamed` is set;
    /// [`ErrorKind::Usage`] if they are more than the limit.
    pub(crate) fn list_deletions(
        &self,
        archive: &Archive,
        selection: &Selection,
        plan: &ClusterPlan,
        layout: &TargetLayout,
        unnamed: Option<&str>,
    ) -> Result<ExtraneousFiles> {
        let found = self.find_deletions(archive, selection, plan, layout, unnamed)?;
        self.check_deletions(&found)?;
        if self.deletion.is_some() {
            (self.say)(&found.paths)?;
        }
        Ok(found)
    }

    fn find_deletions(
        &self,
        archive: &Archive,
        selection: &Selection,
        plan: &ClusterPlan,
        layout: &TargetLayout,
        unnamed: Option<&str>,
    ) -> Result<ExtraneousFiles> {
        let Some(deletion) = &self.deletion else {
            return Ok(ExtraneousFiles::default());
        };
        if let Some(why) = unnamed {
            let what = "--delete is not possible: the backup's file list is damaged";
            let hint = "leave out --delete, or restore to another directory";
            return Err(Error::new(ErrorKind::Corrupt, what).because(why).hint(hint));
        }
        let never = match deletion.excluded {
            true => Patterns::default(),
            false => left_out_by_backup(archive)?,
        };
        let mut found = find_extraneous(archive, selection, plan, layout, &never)?;
        found.paths.sort_by(|a, b| entry::order(a, b));
        Ok(found)
    }

    fn check_deletions(&self, found: &ExtraneousFiles) -> Result<()> {
        let target = format!("{:?}", self.restore.to);
        let limit = self.deletion.map_or_else(Default::default, |all| all.limit);
        limit.check(found.planned, &target)
    }

    /// Restores everything except hard links and the metadata of directories.
    pub(crate) fn content(&self, run: &RestoreRun<'_>, limit: &WorkerLimit<'_>) -> Result<()> {
        run.meter
            .total_bytes
            .store(run.archive.root.totals.bytes, Relaxed);
        let mut writer = TargetWriter::new(&run.tree);
        let mut batch = Batch::default();
        let mut open_targets = HashMap::new();
        for item in run.archive.records(&run.selection, false) {
            let add = &mut |item: PageItem| {
                batch.add(item);
                Ok(())
            };
            let planned = item.and_then(|item| run.plan_entry(add, &mut writer, item));
            run.report.tolerate(planned)?;
            if batch.items.len() >= BATCH_ITEMS || batch.bytes >= BATCH_BYTES {
                DeltaBatch::new(self, run, limit)
                    .run(std::mem::take(&mut batch), &mut open_targets)?;
            }
        }
        DeltaBatch::new(self, run, limit).run(batch, &mut open_targets)?;
        // The page with the rest of these files is damaged, as already reported.
        let work = DeltaBatch::new(self, run, limit);
        open_targets
            .into_iter()
            .try_for_each(|(path, target)| work.give_up(&path, target.patch.old_content_lost()))
    }
}

/// Records that are compared together.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) items: Vec<PageItem>,
    bytes: u64,
}

impl Batch {
    fn add(&mut self, item: PageItem) {
        sizes::add(&mut self.bytes, item.described_bytes());
        sizes::add(
            &mut self.bytes,
            xattr_bytes(&item.entry.xattrs) as u64 * HELD,
        );
        self.items.push(item);
    }
}
