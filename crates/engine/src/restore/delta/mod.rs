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
    cluster::choose_backup,
    entry_patterns::{lacks_caches, left_out_by_backup},
    extraneous::{ExtraneousFiles, find_extraneous},
    plan::RestorePlan,
    request::{DeltaChanges, ExtraDeletion, Restore, RestoreInto},
    run::RestoreRun,
};
use batch::DeltaBatch;
use fullbore_format::{
    entry::{self, EntryPath, xattr_bytes},
    error::{Error, ErrorKind, Result},
    page::PageItem,
    sizes,
};
use fullbore_pipeline::workers::WorkerLimit;
use fullbore_platform::{dir::Stat, queue::Locked};
use fullbore_repository::{
    archive::Archive,
    open::{OpenedFrom, open_any},
};
use fullbore_tree::{patterns::Patterns, write::writer::TargetWriter};
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
pub(crate) struct Delta {
    pub(crate) same: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) written: AtomicU64,
    /// Device and inode of unchanged files with several names: two files of the backup must not
    /// become one.
    linked: Mutex<HashSet<(u64, u64)>>,
}

/// Files that a restore would remove.
#[derive(Debug, Default)]
pub struct PlannedRemoval {
    /// Their paths, each with everything below it, in archive order.
    pub paths: Vec<EntryPath>,
    /// The error that would end the restore because they are too many.
    pub refusal: Option<Error>,
}

impl Restore {
    /// Returns the files that the restore would remove, and changes nothing. There are none unless
    /// it deletes.
    ///
    /// # Errors
    /// Those of [`Restore::run`] before its first write.
    pub fn planned_removal(&self) -> Result<PlannedRemoval> {
        let RestoreInto::Delta {
            delete: Some(deletion),
        } = self.into
        else {
            return Ok(PlannedRemoval::default());
        };
        let plan = RestorePlan::new(self, self.open_for_delta()?)?;
        let found = find_deletions(&plan, deletion)?;
        Ok(PlannedRemoval {
            refusal: self.check_deletions(deletion, &found).err(),
            paths: found.paths,
        })
    }

    /// Opens the backup. A tar of another program is refused, because it has no digests.
    pub(super) fn open_for_delta(&self) -> Result<Archive> {
        if let Some(archive) = choose_backup::choose_of_cluster(self, true)? {
            return Ok(archive);
        }
        match open_any(&self.storages, &self.from, &self.filter)? {
            OpenedFrom::Backup(archive) => Ok(*archive),
            OpenedFrom::Foreign(path) => {
                let message =
                    format!("cannot restore {path:?} with --delta: it is not a fullbore archive");
                Err(Error::new(ErrorKind::Unsupported, message)
                    .because("a tar of another program has no digests to compare the target with")
                    .hint("use --overwrite=all, which writes all files"))
            }
        }
    }

    /// Returns the files to remove that do not belong to the backup, after their list was said.
    ///
    /// # Errors
    /// Those of [`find_extraneous`]; [`ErrorKind::Corrupt`] if the backup cannot name all of its
    /// files; [`ErrorKind::Usage`] if they are more than the limit.
    pub(super) fn list_deletions(&self, plan: &RestorePlan) -> Result<ExtraneousFiles> {
        let RestoreInto::Delta {
            delete: Some(deletion),
        } = self.into
        else {
            return Ok(ExtraneousFiles::default());
        };
        let found = find_deletions(plan, deletion)?;
        self.check_deletions(deletion, &found)?;
        (self.say_removed)(&found.paths)?;
        Ok(found)
    }

    fn check_deletions(&self, deletion: ExtraDeletion, found: &ExtraneousFiles) -> Result<()> {
        let target = format!("{:?}", self.to);
        deletion.limit.check(found.planned, &target)
    }
}

fn find_deletions(plan: &RestorePlan, deletion: ExtraDeletion) -> Result<ExtraneousFiles> {
    if let Some(why) = plan.unnamed {
        let message = "--delete is not possible: the backup's file list is damaged";
        let hint = "leave out --delete, or restore to another directory";
        return Err(Error::new(ErrorKind::Corrupt, message)
            .because(why)
            .hint(hint));
    }
    let never = match deletion.excluded {
        true => Patterns::default(),
        false => left_out_by_backup(&plan.archive)?,
    };
    let keeps_caches = !deletion.excluded && lacks_caches(&plan.archive);
    let mut found = find_extraneous(plan, &never, keeps_caches)?;
    found.paths.sort_by(|a, b| entry::order(a, b));
    Ok(found)
}

impl Delta {
    pub(crate) fn new() -> Self {
        let [same, changed, written] = Default::default();
        Self {
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
