//! Restore into a tree that is there: only what differs is written.
//!
//! Records are taken in batches. Of each batch, all workers read the files of the target and compare them with the digests
//! of the manifest, block by block where it has them; then they fetch the frames of what differs, each once in a batch, and
//! write it in place. A file is not replaced as a whole, so that one that is cut off may be old in part. What does not belong
//! to the backup is removed only if that was asked for, and announced before anything is changed.

pub(crate) mod batch;

use super::{
    Restore, RestoreRun, Summary,
    cluster::{self, choose_backup},
    extraneous::{ExtraneousFiles, extra},
    must_be_there,
};
use crate::archive::unnamed_losses;
use crate::repo::open::{OpenedFrom, open_any};
use crate::sink::local_file::side_of;
use crate::{
    archive::{Archive, Selection},
    error::{Error, ErrorKind, Result},
    format::{
        entry::{self, EntryPath, xattr_bytes},
        page::PageItem,
        sizes,
    },
    metrics::meter::Meter,
    pipeline::workers::WorkerLimit,
    platform::dir::Stat,
    postgres::restore::plan::{ClusterPlan, PG_CONTROL},
    queue::Locked,
    target::{layout::TargetLayout, writer::TargetWriter},
};
use batch::DeltaBatch;
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Records of a batch: those of about a page.
const BATCH_ITEMS: usize = 8192;
/// Bytes of files that one batch compares, but for one large file.
const BATCH_BYTES: u64 = 1 << 30;
/// Attributes are held until a batch is done: their bytes count for so many of a file.
const HELD: u64 = 128;

/// How to restore into what is there.
pub struct Delta<'a> {
    restore: &'a Restore,
    /// Is what does not belong to the backup removed?
    delete: bool,
    /// Is told what will be removed.
    say: &'a (dyn Fn(&[EntryPath]) -> Result<()> + Sync),
    pub(crate) same: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) written: AtomicU64,
    /// Device and inode of files with other names that stay: two files of the backup must not become one.
    linked: Mutex<HashSet<(u64, u64)>>,
}

/// What was found there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeltaChanges {
    /// Files and the like that were as they are in the backup.
    pub same: u64,
    /// Those that were not, or not there.
    pub changed: u64,
    /// Things that did not belong and were removed, each with all below it.
    pub removed: u64,
    /// Bytes of content that were written.
    pub written_bytes: u64,
}

impl<'a> Delta<'a> {
    /// Do `restore`, which overwrites; what does not belong is removed if `delete`, after `say` was told of it.
    pub fn new(
        restore: &'a Restore,
        delete: bool,
        say: &'a (dyn Fn(&[EntryPath]) -> Result<()> + Sync),
    ) -> Self {
        let [same, changed, written] = Default::default();
        Self {
            restore,
            delete,
            say,
            same,
            changed,
            written,
            linked: Mutex::default(),
        }
    }

    /// Was no other file of the backup found to be this one?
    pub(crate) fn is_first(&self, there: &Stat) -> bool {
        self.linked.locked().insert((there.dev, there.inode))
    }

    /// Do it.
    ///
    /// # Errors
    /// As [`Restore::run`]; [`ErrorKind::Usage`] for a cluster as a whole without `delete`.
    pub fn run(&self, meter: &Meter) -> Result<Summary> {
        let archive = self.opened()?;
        let selection = Selection::new(&self.restore.paths)?;
        if archive.root.postgres.is_some() && selection.holds(PG_CONTROL) && !self.delete {
            let what = "cannot restore a cluster into one that is there and leave what is newer than the backup";
            let why = "the server would take it for its own";
            return Err(Error::new(ErrorKind::Usage, what)
                .because(why)
                .hint("say --delete as well"));
        }
        // With --overwrite a cluster that is there is refused, because of what would stay; here that is removed.
        Restore {
            overwrite: false,
            ..self.restore.clone()
        }
        .run_in(archive, meter, Some(self))
    }

    /// The backup; of a tar of another program there is nothing to compare with.
    fn opened(&self) -> Result<Archive> {
        if let Some(archive) = choose_backup::of_cluster(self.restore, true)? {
            return Ok(archive);
        }
        match open_any(&self.restore.from, &self.restore.filter)? {
            OpenedFrom::Backup(archive) => Ok(*archive),
            OpenedFrom::Foreign(path) => {
                let what = format!(
                    "cannot restore {path:?} with --delta: it is no archive that this program wrote"
                );
                let side = side_of(&path);
                Err(Error::new(ErrorKind::Unsupported, what)
                    .because("a tar of another program has no digests with which the target could be compared")
                    .detail(format!("if it is one of ours, of .tar.gz or .tar, {side:?} belongs to it, and is missing"))
                    .hint("use --overwrite, which writes all of it"))
            }
        }
    }

    /// Only say what does not belong, and would be removed.
    ///
    /// # Errors
    /// As [`Delta::run`], before it writes anything.
    pub fn foresee(&self) -> Result<()> {
        let archive = self.opened()?;
        let selection = Selection::new(&self.restore.paths)?;
        must_be_there(&archive, &selection, self.restore.keep_going)?;
        let plan = cluster::plan(self.restore, &archive, &selection)?;
        let layout = cluster::layout(self.restore, &archive, &selection, &plan);
        let unnamed = unnamed_losses::loss_affects(&archive, &selection)?;
        self.announce(&archive, &selection, &plan, &layout, unnamed)
            .map(drop)
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

    /// What does not belong; what of it is to be removed was said. `unnamed` is why there may be less in the backup than there
    /// was, and nobody can name it.
    ///
    /// # Errors
    /// As [`extra`]; [`ErrorKind::Corrupt`] if something is `unnamed`.
    pub(crate) fn announce(
        &self,
        archive: &Archive,
        selection: &Selection,
        plan: &ClusterPlan,
        layout: &TargetLayout,
        unnamed: Option<&str>,
    ) -> Result<ExtraneousFiles> {
        if !self.delete {
            return Ok(ExtraneousFiles::default());
        }
        if let Some(why) = unnamed {
            let what = "cannot remove what does not belong to the backup: nobody knows what does";
            let hint = "leave out --delete, or restore to another place";
            return Err(Error::new(ErrorKind::Corrupt, what).because(why).hint(hint));
        }
        let mut found = extra(archive, selection, plan, layout, self.restore.tricks)?;
        found.paths.sort_by(|a, b| entry::order(a, b));
        (self.say)(&found.paths)?;
        Ok(found)
    }

    /// Everything but hard links and the metadata of directories.
    pub(crate) fn content(&self, run: &RestoreRun<'_>, hands: &WorkerLimit<'_>) -> Result<()> {
        run.meter
            .total_bytes
            .store(run.archive.root.totals.bytes, Relaxed);
        let mut writer = TargetWriter::new(&run.tree);
        let mut batch = Batch::default();
        let mut going_on = HashMap::new();
        for item in run.archive.records(&run.selection, false) {
            let add = &mut |item: PageItem| {
                batch.add(item);
                Ok(())
            };
            let planned = item.and_then(|item| run.plan_one(add, &mut writer, item));
            run.report.tolerate(planned)?;
            if batch.items.len() >= BATCH_ITEMS || batch.bytes >= BATCH_BYTES {
                DeltaBatch::new(self, run, hands)
                    .batch(std::mem::take(&mut batch), &mut going_on)?;
            }
        }
        DeltaBatch::new(self, run, hands).batch(batch, &mut going_on)?;
        // The page with the rest of them is damaged, as was reported.
        let work = DeltaBatch::new(self, run, hands);
        going_on
            .into_iter()
            .try_for_each(|(path, target)| work.give_up(&path, target.patch.is_touched()))
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
