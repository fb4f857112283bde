//! Copies a tree to a tree: on this machine, to another host, or from one.
//!
//! The side that reads decides everything: it merges its scan with the entries of the target
//! (`compare.rs`), reads what differs (`work.rs`) and has the target take it ([`CopyTarget`]). The
//! target is this process (`near.rs`), or another one that answers the same questions (`far.rs`).
//!
//! Files are copied first, in any order; then what only the target has is named and removed; then
//! come hard links; last, directories get their metadata, and everything is made durable. A copy that
//! was interrupted is repeated: complete files are the same then, and large ones are continued.

pub(crate) mod attributes;
pub mod call;
pub(crate) mod compare;
pub mod far;
pub(crate) mod large;
pub(crate) mod listing;
pub(crate) mod members;
pub mod near;
pub(crate) mod plan;
pub mod rules;
pub(crate) mod spool;
pub(crate) mod work;

pub use call::CopyTarget;

use crate::{
    error::{Error, ErrorKind, Result},
    format::{
        acl,
        entry::{Entry, Xattr},
        page::Record,
    },
    frame::{Pool, Scanned},
    metrics::meter::Meter,
    pipeline::{
        pack::pack_below,
        workers::{self, WorkerLimit},
    },
    platform,
    queue::{Queue, start},
    source::tree::Own,
    source::{Source, Stream},
    target::metadata::has_only_xattrs,
};
use attributes::AttributeReader;
use call::{CopyCall, OpenTarget};
use compare::{Differences, in_order};
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
    /// What is left out on both sides.
    pub rules: CopyRules,
    /// Whether files are deleted that only the target has.
    pub delete: bool,
    /// Whether content is compared, also of files whose size and time are equal.
    pub checksum: bool,
    /// A dry run: nothing is written.
    pub dry_run: bool,
    /// Whether owners are set and compared by number.
    pub numeric_owner: bool,
}

impl CopyOptions {
    /// Returns whether a directory that only the target has can be removed with all of its content:
    /// nothing in it can be left out.
    fn removes_whole_directories(&self) -> bool {
        !self.rules.may_leave_out() && !self.rules.one_file_system
    }

    /// Returns whether the content of both files is compared before they count as changed.
    fn is_compared(&self, entry: &Entry, there: &Entry) -> bool {
        self.checksum && there.path == entry.path && there.size() == entry.size()
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
    /// [`ErrorKind::Usage`] if one directory is within the other; those of the source's root and of
    /// the target. An entry that cannot be read or written is in the summary.
    pub fn run(
        &self,
        target: Arc<dyn CopyTarget>,
        watch: Arc<dyn CopyWatch>,
        meter: &Meter,
    ) -> Result<CopySummary> {
        let begun = Instant::now();
        meter.begin();
        self.check_apart()?;
        let own = Own::default();
        let source = self.options.rules.open(&self.from, own)?;
        let scan = source.scan()?;
        let opened = target.ask(CopyCall::Open(self.open_target()), b"")?;
        let plan = CopyPlan::new(self.options.clone(), target.clone(), watch);
        let entries = match opened.has_content {
            true => listed_ahead(&target)?,
            false => Box::new(std::iter::empty()),
        };
        let attributes = AttributeReader::open(&self.from)?;
        let differences = Differences::new(scan, in_order(entries), plan.clone(), attributes);
        let mut summary = CopySummary::default();
        if self.options.dry_run {
            for scanned in differences {
                scanned?;
            }
            summary.deleted = plan.remove_unneeded()?;
        } else {
            let copy = TreeWork {
                plan: &plan,
                source: &source,
                meter,
            };
            copy.run(Box::new(differences))?;
            summary.deleted = plan.remove_unneeded()?;
            copy.run(Box::new(plan.take_later().into_iter().map(Ok)))?;
            plan.make_links()?;
            summary.warnings = plan.ask(CopyCall::Finish, b"")?.warnings;
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

    fn open_target(&self) -> OpenTarget {
        use std::os::unix::ffi::OsStrExt;
        let path = self.to.as_deref().unwrap_or(Path::new(""));
        OpenTarget {
            path: path.as_os_str().as_bytes().to_vec(),
            rules: self.options.rules.clone(),
            numeric_owner: self.options.numeric_owner,
            dry_run: self.options.dry_run,
            checksum: self.options.checksum,
        }
    }

    /// Refuses a source within the target, or a target within the source.
    fn check_apart(&self) -> Result<()> {
        let Some(to) = self.to.as_deref().filter(|_| self.is_near) else {
            return Ok(());
        };
        let (from, to) = (real(&self.from), real(to));
        if !from.starts_with(&to) && !to.starts_with(&from) {
            return Ok(());
        }
        let what = format!("cannot copy {from:?} to {to:?}");
        let why = "they are the same directory, or one contains the other";
        Err(Error::new(ErrorKind::Usage, what).because(why))
    }
}

/// Returns the real path of what is there of a path, with the rest of it.
fn real(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for above in absolute.ancestors() {
        if let Ok(found) = above.canonicalize() {
            let rest = absolute.strip_prefix(above).unwrap_or(Path::new(""));
            return found.join(rest);
        }
    }
    absolute
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
