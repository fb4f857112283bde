//! Copies a tree to a tree: on this machine, to another host, or from one.
//!
//! The side that reads decides everything: it merges its scan with the entries of the target
//! (`compare.rs`), reads what differs (`work.rs`) and has the target take it ([`CopyTarget`]). The
//! target is this process (`near.rs`), or another one that answers the same questions (`far.rs`).
//!
//! Files are copied first, in any order; then what only the target has is named and removed; then
//! come hard links; last, directories get their metadata, and everything is made durable. A copy that
//! was interrupted is repeated: complete files are the same then, and large ones are continued.

pub(crate) mod apart;
pub(crate) mod attributes;
pub(crate) mod budget;
pub mod call;
pub(crate) mod compare;
pub mod far;
pub(crate) mod held;
pub(crate) mod kept;
pub(crate) mod large;
pub(crate) mod listed_ahead;
pub(crate) mod listing;
pub(crate) mod members;
pub mod near;
pub(crate) mod options;
pub(crate) mod plan;
pub(crate) mod removal;
pub mod rules;
pub mod service;
pub(crate) mod sources;
pub(crate) mod spool;
pub(crate) mod work;

pub use call::CopyTarget;
pub use options::{CopyOptions, CopyWatch, TreeCopy};
pub use sources::CopySource;

use apart::check_apart;
use call::CopyCall;
use fullbore_format::error::{Error, Result};
use fullbore_pipeline::{
    frame::{Pool, Scanned},
    pack::pack_below,
    source::{Source, Stream},
    workers::{self, WorkerLimit},
};
use fullbore_platform as platform;
use fullbore_platform::metrics::meter::Meter;
use fullbore_tree::{
    read::{Own, SourceTree},
    unmatched::{idle_names, unmatched_warning},
};
use held::CopyEnds;
use options::LARGE_FILE;
use plan::CopyPlan;
use std::{
    ffi::OsStr,
    num::NonZeroUsize,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};
use work::CopyWork;

const PLACE: &str = "a pattern with a / before its end must be a path below SRC, or begin with SRC";

/// The numbers of a finished copy.
#[derive(Debug, Clone, Default)]
pub struct CopySummary {
    /// Entries that the target lacked.
    pub new: u64,
    /// Entries that differed.
    pub changed: u64,
    /// Entries that were as they should be.
    pub same: u64,
    /// Paths that were removed, each with everything below it.
    pub deleted: u64,
    /// Bytes of content that the target got.
    pub sent_bytes: u64,
    /// Sockets, which are not copied.
    pub sockets: u64,
    /// Entries that could not be read or written.
    pub skipped: u64,
    /// Lines about the first of them.
    pub skipped_lines: Vec<String>,
    /// Metadata that could not be set.
    pub warnings: Vec<String>,
    /// A line about names among the patterns that matched nothing.
    pub idle_names: Option<String>,
    /// Seconds it took.
    pub seconds: f64,
}

impl TreeCopy {
    /// Runs the copy. The scan of the source has begun before the target is opened.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](fullbore_format::error::ErrorKind::Usage) if one directory is within the other; those of the source's root and of
    /// the target. An entry that cannot be read or written is in the summary.
    pub fn run(
        &self,
        target: Arc<dyn CopyTarget>,
        watch: Arc<dyn CopyWatch>,
        meter: &Meter,
    ) -> Result<CopySummary> {
        let begun = Instant::now();
        meter.begin();
        let path = self.to.as_deref().unwrap_or(Path::new(""));
        let open = |copy: &Self| {
            let wanted = copy.options.target(path, copy.may_be_file);
            target.ask(CopyCall::Open(wanted), b"")
        };
        let own = self.check_apart()?;
        let mut copy = self.clone();
        let (source, scan, opened);
        if self.may_be_file {
            // The target decides by which name the file is written.
            opened = open(self)?;
            copy.rename(opened.opened.name.as_deref().map(Vec::as_slice));
            source = copy.open_source(own)?;
            scan = source.scan()?;
        } else {
            source = self.open_source(own)?;
            scan = source.scan()?;
            opened = open(self)?;
        }
        copy.options.owners = opened.opened.owners;
        let ends = CopyEnds {
            source: &source,
            scan: Some(scan),
            target: &target,
            watch,
        };
        let summary = copy.run_between(ends, opened.has_content, meter)?;
        Ok(CopySummary {
            seconds: begun.elapsed().as_secs_f64(),
            ..summary
        })
    }

    /// Checks that source and target are apart. Returns what the scan must not enter.
    fn check_apart(&self) -> Result<Own> {
        let own = Own::default();
        let Some(target) = self.to.as_deref().filter(|_| self.is_near) else {
            return Ok(own);
        };
        for source in &self.from {
            let at = match self.may_be_file && !target.is_dir() {
                true => target.to_owned(),
                false => target.join(OsStr::from_bytes(&source.at)),
            };
            check_apart(&source.path, &at, &self.options.rules)?;
        }
        // A target below the source is left out by a rule, and by whatever other name it has.
        if let Ok(stat) = target.metadata() {
            let _ = own.set(vec![(stat.dev(), stat.ino())]);
        }
        Ok(own)
    }

    fn open_source(&self, own: Own) -> Result<SourceTree> {
        let rules = &self.options.rules;
        let opened = rules.open_tops(sources::tops(&self.from, rules)?, own)?;
        // A pattern may have left out a source as a whole.
        for source in self.from.iter().filter(|source| !source.at.is_empty()) {
            opened.excludes().matches(&source.at, source.path.is_dir());
        }
        Ok(opened)
    }

    /// Gives the only source another name in the target.
    fn rename(&mut self, name: Option<&[u8]>) {
        let Some(name) = name else { return };
        self.options.rules = self.options.rules.renamed(name);
        let sources = self.from.iter_mut();
        sources.for_each(|source| source.at = name.to_vec());
    }

    fn run_between(
        &self,
        ends: CopyEnds<'_>,
        has_content: bool,
        meter: &Meter,
    ) -> Result<CopySummary> {
        let source = ends.source;
        let (plan, differences) = self.allowed_differences(ends, has_content)?;
        let mut summary = CopySummary::default();
        if self.options.dry_run {
            for scanned in differences {
                scanned?;
            }
            summary.deleted = plan.remove_unneeded()?;
            let refusal = self.check_deletions(&plan).err();
            let warn = |error: Error| format!("without --dry-run: {}", error.line());
            summary.warnings = refusal.map(warn).into_iter().collect();
        } else {
            let work = TreeWork {
                plan: &plan,
                source,
                meter,
            };
            work.run(differences)?;
            summary.deleted = plan.remove_unneeded()?;
            work.run(Box::new(plan.take_later().into_iter().map(Ok)))?;
            plan.make_links()?;
            summary.warnings = plan.ask(CopyCall::Finish, b"")?.warnings;
        }
        summary
            .warnings
            .extend(self.options.rules.patterns()?.warnings());
        // With deletions, a pattern may be for objects that only the target has.
        if !self.options.delete {
            let unmatched = unmatched_warning(std::iter::once(source.excludes()), PLACE);
            summary.warnings.extend(unmatched);
            summary.idle_names = idle_names(std::iter::once(source.excludes()));
        }
        let skipped = plan.take_skipped();
        Ok(CopySummary {
            new: plan.counts.new.load(Relaxed),
            changed: plan.counts.changed.load(Relaxed),
            same: plan.counts.same.load(Relaxed),
            sockets: plan.counts.sockets.load(Relaxed),
            sent_bytes: plan.counts.sent_bytes.load(Relaxed),
            skipped: skipped.count,
            skipped_lines: skipped.lines,
            ..summary
        })
    }
}

/// The part of a copy that has workers.
struct TreeWork<'a> {
    plan: &'a CopyPlan,
    source: &'a dyn Source,
    meter: &'a Meter,
}

impl TreeWork<'_> {
    fn run(&self, entries: Stream<Scanned>) -> Result<()> {
        let depth = self.plan.target.depth(platform::cores().get());
        let depth = NonZeroUsize::new(depth).unwrap_or(NonZeroUsize::MIN);
        let frame_bytes = self.plan.target.frame_bytes();
        let pool = Pool::new(frame_bytes as usize * 3 / 2, depth.get());
        let work = CopyWork::new(self.plan, self.source, self.meter, pool);
        workers::work(
            &WorkerLimit::from(depth),
            || (),
            |(), slice| work.copy(slice),
            |send| {
                for slice in pack_below(entries, frame_bytes, LARGE_FILE) {
                    let slice = slice?;
                    work.prepare(&slice);
                    send(slice)?;
                }
                Ok(())
            },
        )
    }
}
