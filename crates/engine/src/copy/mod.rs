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
pub(crate) mod listing;
pub(crate) mod members;
pub mod near;
pub(crate) mod plan;
pub(crate) mod removal;
pub mod rules;
pub mod service;
pub(crate) mod spool;
pub(crate) mod work;

pub use call::CopyTarget;

use apart::check_apart;
use call::{CopyCall, OpenTarget};
use fullbore_format::{
    acl,
    entry::{Entry, Xattr},
    entry_difference::{EntryDifference, difference},
    error::{Error, Result},
    page::Record,
};
use fullbore_pipeline::{
    frame::{Pool, Scanned},
    pack::pack_below,
    source::{Source, Stream},
    workers::{self, WorkerLimit},
};
use fullbore_platform as platform;
use fullbore_platform::{
    metrics::meter::Meter,
    queue::{Queue, start},
};
use fullbore_tree::unmatched::unmatched_warning;
use fullbore_tree::{
    read::Own,
    write::{deletion_limit::DeletionLimit, xattrs::has_only_xattrs},
};
use held::CopyEnds;
use plan::CopyPlan;
use rules::CopyRules;
use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};
use work::CopyWork;

/// A larger file is copied block by block.
const LARGE_FILE: u32 = 1 << 20;

const PLACE: &str = "a pattern with a / before its end must be a path below SRC, or begin with SRC";

/// Pages of the target that are asked for ahead.
const PAGES_AHEAD: usize = 2;

/// Hears of entries, from any thread.
pub trait CopyWatch: Send + Sync {
    /// An entry is new (`+`), changed (`~`), or no longer needed (`-`).
    fn entry(&self, sign: char, path: &[u8]);

    /// All entries so far are shown before this returns: what follows may remove them.
    fn flush(&self);
}

/// Options of a copy.
#[derive(Debug, Clone, Default)]
pub struct CopyOptions {
    /// The rules that leave out files, on both sides.
    pub rules: CopyRules,
    /// Whether files are deleted that only the target has.
    pub delete: bool,
    /// Whether content is compared, also of files whose size and time are equal.
    pub checksum: bool,
    /// A dry run: nothing is written.
    pub dry_run: bool,
    /// Whether owners are set and compared by number.
    pub numeric_owner: bool,
    /// Whether files are deleted that patterns and marks leave out.
    pub delete_excluded: bool,
    /// How much may be deleted.
    pub limit: DeletionLimit,
}

impl CopyOptions {
    /// The rights that such a copy needs to the target at `path`, which may be empty if the other
    /// side chooses it.
    pub fn target(&self, path: &Path) -> OpenTarget {
        use std::os::unix::ffi::OsStrExt;
        OpenTarget {
            path: path.as_os_str().as_bytes().to_vec(),
            rules: self.rules.clone(),
            numeric_owner: self.numeric_owner,
            dry_run: self.dry_run,
            checksum: self.checksum,
            delete: self.delete,
            delete_excluded: self.delete_excluded,
            limit: self.limit,
        }
    }

    fn deletion_rules(&self) -> CopyRules {
        self.rules.of_deletion(self.delete_excluded)
    }

    fn removes_whole_directories(&self) -> bool {
        self.deletion_rules().removes_whole_directories()
    }

    /// Returns whether the content of both files is compared before they count as changed.
    fn is_compared(&self, entry: &Entry, there: &Entry) -> bool {
        self.checksum && there.path == entry.path && there.size() == entry.size()
    }

    /// Compares an entry of the source with one of the target, by the owners and attributes that a
    /// copy would set.
    fn difference(&self, entry: &Entry, there: &Entry) -> EntryDifference {
        EntryDifference {
            owner: !self.is_same_owner(entry, there),
            attributes: !self.has_same_xattrs(entry, there),
            ..difference(entry, there)
        }
    }

    /// Returns whether an entry of the target has the attributes of the source, and no other that a
    /// copy would remove.
    fn has_same_xattrs(&self, entry: &Entry, there: &Entry) -> bool {
        let is_same = |wanted: &Xattr, there: &Xattr| {
            let is_same_list = || {
                acl::is_list(&wanted.0)
                    && acl::is_same_list(&wanted.1, &there.1, self.numeric_owner)
            };
            wanted.0 == there.0 && (wanted.1 == there.1 || is_same_list())
        };
        has_only_xattrs(entry, &there.xattrs, is_same)
    }

    /// Returns whether both entries have the same owner and group: by name, if both have one.
    fn is_same_owner(&self, one: &Entry, other: &Entry) -> bool {
        let (one, other) = (&one.owner, &other.owner);
        let has_names = |a: &str, b: &str| !self.numeric_owner && !a.is_empty() && !b.is_empty();
        let user = match has_names(&one.user, &other.user) {
            true => one.user == other.user,
            false => one.uid == other.uid,
        };
        let group = match has_names(&one.group, &other.group) {
            true => one.group == other.group,
            false => one.gid == other.gid,
        };
        user && group
    }
}

/// A copy.
#[derive(Debug, Clone, Default)]
pub struct TreeCopy {
    /// The directory whose content is copied.
    pub from: PathBuf,
    /// Path of the target, if this side chooses it: a directory whose content it becomes.
    pub to: Option<PathBuf>,
    /// Whether the target is on this machine.
    pub is_near: bool,
    /// The options.
    pub options: CopyOptions,
}

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
    /// Entries that could not be read or written.
    pub skipped: u64,
    /// Lines about the first of them.
    pub skipped_lines: Vec<String>,
    /// Metadata that could not be set.
    pub warnings: Vec<String>,
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
        if let Some(to) = self.to.as_deref().filter(|_| self.is_near) {
            check_apart(&self.from, to)?;
        }
        let own = Own::default();
        let source = self.options.rules.open(&self.from, own)?;
        let scan = source.scan()?;
        let path = self.to.as_deref().unwrap_or(Path::new(""));
        let opened = target.ask(CopyCall::Open(self.options.target(path)), b"")?;
        let ends = CopyEnds {
            source: &source,
            scan: Some(scan),
            target: &target,
            watch,
        };
        let (plan, differences) = self.allowed_differences(ends, opened.has_content)?;
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
            let copy = TreeWork {
                plan: &plan,
                source: &source,
                meter,
            };
            copy.run(differences)?;
            summary.deleted = plan.remove_unneeded()?;
            copy.run(Box::new(plan.take_later().into_iter().map(Ok)))?;
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
        }
        let skipped = plan.take_skipped();
        Ok(CopySummary {
            new: plan.counts.new.load(Relaxed),
            changed: plan.counts.changed.load(Relaxed),
            same: plan.counts.same.load(Relaxed),
            sent_bytes: plan.counts.sent_bytes.load(Relaxed),
            skipped: skipped.count,
            skipped_lines: skipped.lines,
            seconds: begun.elapsed().as_secs_f64(),
            ..summary
        })
    }
}

/// Lists the target in a thread of its own, some pages ahead.
fn listed_ahead(target: &Arc<dyn CopyTarget>) -> Result<Stream<Record>> {
    let pages = Arc::new(Queue::with_room(PAGES_AHEAD));
    let (target, filled) = (target.clone(), pages.clone());
    start(move || {
        loop {
            let page = target.list();
            let has_more = page.as_ref().is_ok_and(|page| page.has_more);
            if !filled.push(page.map(|page| page.records)) || !has_more {
                break;
            }
        }
        filled.close();
    })?;
    let pages = ListedPages(pages);
    let all = std::iter::from_fn(move || pages.0.pop());
    let records = all.flat_map(|page| match page {
        Ok(records) => records.into_iter().map(Ok).collect::<Vec<_>>(),
        Err(error) => vec![Err(error)],
    });
    Ok(Box::new(records))
}

/// Pages that are listed by another thread, which ends with them.
struct ListedPages(Arc<Queue<Result<Vec<Record>>>>);

impl Drop for ListedPages {
    fn drop(&mut self) {
        self.0.close();
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
