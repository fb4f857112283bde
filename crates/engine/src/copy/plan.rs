//! What a copy found and did, shared by the merge and all workers.

use super::{
    call::{CopyAnswer, CopyCall, CopyTarget, headers},
    held::HeldChanges,
    options::{CopyOptions, CopyWatch},
    spool::PathSpool,
};
use fullbore_format::{
    entry::{Entry, EntryPath, split},
    error::{Result, quoted},
    page::EntryState,
};
use fullbore_pipeline::{frame::Scanned, known::BaseEntry};
use fullbore_platform::queue::Locked;
use fullbore_tree::write::{deletion_limit::PlannedDeletions, partial::is_partial};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

/// Lines about skipped entries that are kept; the others are counted.
const MAX_LINES: usize = 100;

/// Objects of another kind that are remembered: some 10 MB.
const MAX_OTHER_KINDS: usize = 65_536;

/// The state of a copy.
pub(super) struct CopyPlan {
    pub(super) options: CopyOptions,
    pub(super) target: Arc<dyn CopyTarget>,
    pub(super) watch: Arc<dyn CopyWatch>,
    pub(super) counts: CopyCounters,
    links: Mutex<PathSpool>,
    new_links: Mutex<PathSpool>,
    /// Objects that a file takes the place of, up to a number.
    other_kinds: Mutex<HashSet<EntryPath>>,
    unneeded: Mutex<PathSpool>,
    /// First names of files with several names that the target gets anew, or may get.
    replaced: Mutex<HashMap<EntryPath, Replaced>>,
    /// Entries that are made after unneeded ones are removed.
    later: Mutex<Vec<Scanned>>,
    /// Directories whose files are being compared, by path.
    awaited: Mutex<HashMap<EntryPath, AwaitedDirectory>>,
    skipped: Mutex<SkippedLines>,
    /// Changes that wait until deletions are allowed; `None` if none have to wait.
    held: Mutex<Option<HeldChanges>>,
    is_unlisted: AtomicBool,
    has_leftovers: AtomicBool,
}

/// Whether the target gets a file anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replaced {
    Surely,
    /// If its content differs.
    Perhaps,
}

/// A directory that gets its metadata again if one of its files is replaced.
#[derive(Debug)]
struct AwaitedDirectory {
    entry: Entry,
    /// Files that are not compared yet.
    files: u64,
}

/// Counters of a copy.
#[derive(Debug, Default)]
pub(super) struct CopyCounters {
    pub(super) same: AtomicU64,
    pub(super) new: AtomicU64,
    pub(super) changed: AtomicU64,
    pub(super) unneeded: AtomicU64,
    /// Entries that only the target has, each with those below it.
    pub(super) extra: AtomicU64,
    /// Entries of the target, without its root.
    pub(super) there: AtomicU64,
    /// Entries of the source, without its root.
    pub(super) source: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) sockets: AtomicU64,
}

impl CopyCounters {
    /// Counts an entry of the target, but not its root.
    pub(super) fn count_there(&self, path: &[u8]) {
        self.there.fetch_add(u64::from(!path.is_empty()), Relaxed);
    }

    /// Counts an entry of the source, but not its root.
    pub(super) fn count_source(&self, path: &[u8]) {
        self.source.fetch_add(u64::from(!path.is_empty()), Relaxed);
    }
}

/// Lines about entries that could not be copied.
#[derive(Debug, Default)]
pub(super) struct SkippedLines {
    pub(super) lines: Vec<String>,
    pub(super) count: u64,
}

impl CopyPlan {
    pub(super) fn new(
        options: CopyOptions,
        target: Arc<dyn CopyTarget>,
        watch: Arc<dyn CopyWatch>,
        held: Option<HeldChanges>,
    ) -> Arc<Self> {
        Arc::new(Self {
            options,
            target,
            watch,
            counts: CopyCounters::default(),
            links: Mutex::default(),
            new_links: Mutex::default(),
            other_kinds: Mutex::default(),
            unneeded: Mutex::default(),
            replaced: Mutex::default(),
            later: Mutex::default(),
            awaited: Mutex::default(),
            skipped: Mutex::default(),
            held: Mutex::new(held),
            is_unlisted: AtomicBool::new(false),
            has_leftovers: AtomicBool::new(false),
        })
    }

    pub(super) fn note_same(&self) {
        self.counts.same.fetch_add(1, Relaxed);
    }

    /// Counts and tells a new or changed entry.
    pub(super) fn say_change(&self, is_new: bool, path: &[u8]) {
        let counter = if is_new {
            &self.counts.new
        } else {
            &self.counts.changed
        };
        counter.fetch_add(1, Relaxed);
        let sign = if is_new { '+' } else { '~' };
        match &mut *self.held.locked() {
            // The copy goes on if its output cannot be kept.
            Some(held) => drop(held.told.add(&[&[&[sign as u8], path].concat()])),
            None => self.watch.entry(sign, path),
        }
    }

    /// Notes that the target has an object of another kind where it gets this one.
    pub(super) fn note_other_kind(&self, path: &[u8]) {
        let mut others = self.other_kinds.locked();
        if others.len() < MAX_OTHER_KINDS {
            others.insert(path.to_vec());
        }
    }

    /// Takes back the count of an entry that did not come to the target. `known` is the file that
    /// the target had.
    pub(super) fn take_back(&self, path: &[u8], known: Option<&BaseEntry>) {
        let is_same = |known: &BaseEntry| known.last().entry.path == path;
        let is_changed = known.is_some_and(is_same) || self.other_kinds.locked().contains(path);
        self.take_back_some(!is_changed, 1);
    }

    fn take_back_some(&self, is_new: bool, entries: u64) {
        let counter = match is_new {
            true => &self.counts.new,
            false => &self.counts.changed,
        };
        let less = |count: u64| Some(count.saturating_sub(entries));
        let _ = counter.fetch_update(Relaxed, Relaxed, less);
    }

    /// Lets the changes go on that waited.
    pub(super) fn release(&self) -> Result<()> {
        let held = self.held.locked().take();
        held.map_or(Ok(()), |held| held.release(self))
    }

    /// The deletions, after both trees were compared.
    pub(super) fn planned_deletions(&self) -> PlannedDeletions {
        if self.is_unlisted.load(Relaxed) {
            return PlannedDeletions::default();
        }
        PlannedDeletions {
            extra: self.counts.extra.load(Relaxed),
            there: self.counts.there.load(Relaxed),
            is_source_empty: self.counts.source.load(Relaxed) == 0,
        }
    }

    /// Notes a path that only the target has. What is below it is not noted by itself.
    pub(super) fn note_unneeded(&self, path: &[u8]) -> Result<()> {
        self.counts.unneeded.fetch_add(1, Relaxed);
        self.unneeded.locked().add(&[path])
    }

    /// Notes an unfinished file of an earlier copy, which is removed without a word.
    pub(super) fn note_leftover(&self, path: &[u8]) -> Result<()> {
        self.has_leftovers.store(true, Relaxed);
        self.unneeded.locked().add(&[path])
    }

    pub(super) fn add_link(&self, path: &[u8], first: &[u8], is_new: bool) -> Result<()> {
        let links = match is_new {
            true => &self.new_links,
            false => &self.links,
        };
        links.locked().add(&[path, first])
    }

    pub(super) fn note_replaced(&self, path: &[u8], replaced: Replaced) {
        self.replaced.locked().insert(path.to_vec(), replaced);
    }

    pub(super) fn replaced(&self, path: &[u8]) -> Option<Replaced> {
        self.replaced.locked().get(path).copied()
    }

    /// Notes that a file of this directory is going to be compared.
    pub(super) fn await_check(&self, directory: &Entry) {
        if self.options.dry_run {
            return;
        }
        let mut awaited = self.awaited.locked();
        let there = awaited.entry(directory.path.clone());
        let new = || AwaitedDirectory {
            entry: directory.clone(),
            files: 0,
        };
        there.or_insert_with(new).files += 1;
    }

    /// Notes that a file was compared. Returns its directory if that changes by it and was not
    /// returned before.
    pub(super) fn settle_check(&self, path: &[u8], is_replaced: bool) -> Option<Entry> {
        let (parent, _) = split(path);
        let mut awaited = self.awaited.locked();
        let there = awaited.get_mut(parent)?;
        there.files = there.files.saturating_sub(1);
        if !is_replaced && there.files > 0 {
            return None;
        }
        let directory = awaited.remove(parent)?;
        is_replaced.then_some(directory.entry)
    }

    /// Notes an entry that cannot be made yet.
    pub(super) fn do_later(&self, scanned: Scanned) {
        self.later.locked().push(scanned);
    }

    pub(super) fn take_later(&self) -> Vec<Scanned> {
        std::mem::take(&mut *self.later.locked())
    }

    /// Makes a directory where the target has something else, before anything in it.
    pub(super) fn make_directory(&self, entry: &Entry) -> Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        if let Some(held) = &mut *self.held.locked() {
            held.directories.push(entry.clone());
            return Ok(());
        }
        self.ask(CopyCall::Directories, &headers([entry])?)
            .map(drop)
    }

    /// Asks the target, and notes what it refuses.
    pub(super) fn ask(&self, call: CopyCall, body: &[u8]) -> Result<CopyAnswer> {
        let answer = self.target.ask(call, body)?;
        self.note_refused(&answer);
        Ok(answer)
    }

    pub(super) fn note_refused(&self, answer: &CopyAnswer) {
        for (_, line) in &answer.refused.named {
            self.skip(line.clone());
        }
        let mut skipped = self.skipped.locked();
        skipped.count = skipped.count.saturating_add(answer.refused.unnamed);
    }

    /// Notes a directory whose content is not known.
    pub(super) fn note_unlisted(&self, path: &[u8], state: &EntryState) {
        self.is_unlisted.store(true, Relaxed);
        self.note_unread(path, state);
    }

    /// Notes an entry that could not be read.
    pub(super) fn note_unread(&self, path: &[u8], state: &EntryState) {
        match state {
            EntryState::Unreadable(why) => {
                self.skip(format!("could not read {}: {why}", quoted(path)));
            }
            EntryState::Changed => {
                self.skip(format!("{} changed while it was read", quoted(path)));
            }
            _ => {}
        }
    }

    fn skip(&self, line: String) {
        let mut skipped = self.skipped.locked();
        skipped.count += 1;
        if skipped.lines.len() < MAX_LINES {
            skipped.lines.push(line);
        }
    }

    pub(super) fn take_skipped(&self) -> SkippedLines {
        std::mem::take(&mut *self.skipped.locked())
    }

    /// Names the paths that only the target has, and removes them. Nothing is removed if a directory
    /// of the source could not be listed.
    pub(super) fn remove_unneeded(&self) -> Result<u64> {
        if self.counts.unneeded.load(Relaxed) == 0 && !self.has_leftovers.load(Relaxed) {
            return Ok(0);
        }
        if self.is_unlisted.load(Relaxed) {
            self.skip(
                "nothing was deleted, because not all of the source could be read".to_owned(),
            );
            return Ok(0);
        }
        let unneeded = self.unneeded.locked();
        unneeded.each_batch(|batch| {
            let paths = batch.split(|c| *c == 0);
            let paths = paths.filter(|path| !path.is_empty() && !is_partial(path));
            paths.for_each(|path| self.watch.entry('-', path));
            Ok(())
        })?;
        self.watch.flush();
        if self.options.dry_run {
            return Ok(self.counts.unneeded.load(Relaxed));
        }
        let mut removed = self.counts.unneeded.load(Relaxed);
        let with_content = self.options.removes_whole_directories();
        let mut remove = |batch: &[u8]| -> Result<()> {
            let answer = self.ask(CopyCall::Remove, batch)?;
            removed = removed.saturating_sub(answer.refused.count());
            Ok(())
        };
        match with_content {
            true => unneeded.each_batch(remove)?,
            // A directory can be removed only when it is empty.
            false => unneeded.each_batch_backwards(&mut remove)?,
        }
        Ok(removed)
    }

    /// Makes all hard links.
    pub(super) fn make_links(&self) -> Result<()> {
        for (links, is_new) in [(&self.new_links, true), (&self.links, false)] {
            links.locked().each_batch(|batch| {
                let answer = self.ask(CopyCall::Link, batch)?;
                self.take_back_some(is_new, answer.refused.count());
                Ok(())
            })?;
        }
        Ok(())
    }
}
