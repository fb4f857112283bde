//! Finds what differs: merges the scan of the source with the entries of the target.
//!
//! Both are in archive order, so memory holds the directories on the current path and a page of the
//! target. The side that writes lists a directory before anything in it is written, and an entry is
//! written only after the merge has passed it.

use super::{
    attributes::AttributeReader,
    kept::KeptPaths,
    options::LARGE_FILE,
    plan::{CopyPlan, Replaced},
};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, Time, is_within, order, split},
    entry_difference::difference,
    error::{Error, Result},
    page::{EntryState, ManifestPage, PageItem, Record},
};
use fullbore_pipeline::{
    frame::Scanned,
    known::{BaseEntry, Trust},
    source::Stream,
};
use fullbore_tree::write::partial::is_partial;
use std::{
    cmp::Ordering,
    collections::{BTreeMap, VecDeque},
    iter::Peekable,
    sync::{Arc, atomic::Ordering::Relaxed},
};

/// New files that wait until all files of the target are known, and files of the target that may be
/// renamed: about 20 MB each.
const MAX_WAITING: usize = 65_536;

/// Files that fit a frame are copied again.
const LEAST_RENAMED: u64 = LARGE_FILE as u64 + 1;

/// The entries of the source that have to be made, in archive order with few exceptions.
pub(super) struct Differences {
    scan: Stream<Scanned>,
    target: Peekable<Stream<Record>>,
    plan: Arc<CopyPlan>,
    attributes: AttributeReader,
    kept: KeptPaths,
    /// The directories on the path to the last entry.
    levels: Vec<DirectoryLevel>,
    ready: VecDeque<Scanned>,
    /// New files that may have another name in the rest of the target.
    waiting: Vec<Scanned>,
    unneeded: UnneededFiles,
    /// The last directory of the target that the source lacks.
    gone: Option<EntryPath>,
    is_at_end: bool,
}

/// A directory of the source.
struct DirectoryLevel {
    scanned: Scanned,
    /// Whether the target gets its metadata again.
    is_sent: bool,
}

/// Files that only the target has, by size and time.
type UnneededFiles = BTreeMap<(u64, Time), Entry>;

impl Differences {
    pub(super) fn new(
        (scan, target): (Stream<Scanned>, Stream<Record>),
        plan: Arc<CopyPlan>,
        attributes: AttributeReader,
        kept: KeptPaths,
    ) -> Self {
        Self {
            scan,
            target: target.peekable(),
            plan,
            attributes,
            kept,
            levels: Vec::new(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            unneeded: BTreeMap::new(),
            gone: None,
            is_at_end: false,
        }
    }

    /// Takes the next entry of the source, and the entries of the target up to it.
    fn advance(&mut self) -> Result<()> {
        let Some(scanned) = self.scan.next().transpose()? else {
            while let Some(record) = self.target.next().transpose()? {
                self.plan.counts.count_there(&record.entry.path);
                self.note_unneeded(record)?;
            }
            self.is_at_end = true;
            return self.release_waiting();
        };
        let path = &scanned.entry.path;
        let mut there = None;
        self.plan.counts.count_source(path);
        while let Some(record) = self.next_up_to(path)? {
            self.plan.counts.count_there(&record.entry.path);
            match record.entry.path == *path {
                true => there = Some(record),
                false => self.note_unneeded(record)?,
            }
        }
        // Those before it may be in directories that end here.
        self.levels
            .retain(|level| is_within(path, &level.scanned.entry.path));
        self.compare(scanned, there)
    }

    fn next_up_to(&mut self, path: &[u8]) -> Result<Option<Record>> {
        let is_due = |record: &Result<Record>| match record {
            Ok(record) => order(&record.entry.path, path) != Ordering::Greater,
            Err(_) => true,
        };
        self.target.next_if(is_due).transpose()
    }

    /// Notes an entry that only the target has.
    fn note_unneeded(&mut self, record: Record) -> Result<()> {
        if !self.plan.options.delete || self.is_kept(&record) {
            return Ok(());
        }
        let entry = record.entry;
        if is_partial(&entry.path) {
            self.touch_parent(&entry.path);
            return self.plan.note_leftover(&entry.path);
        }
        self.plan.counts.extra.fetch_add(1, Relaxed);
        let is_file = entry.is_file() && entry.size() >= LEAST_RENAMED;
        let path = entry.path.clone();
        let is_directory = entry.kind == EntryKind::Directory;
        // Before the return below: a file may have moved out of a directory that is removed whole.
        if is_file && self.unneeded.len() < MAX_WAITING {
            self.unneeded.insert((entry.size(), entry.mtime), entry);
        }
        let is_below = |gone: &EntryPath| is_within(&path, gone);
        if self.plan.options.removes_whole_directories() && self.gone.as_ref().is_some_and(is_below)
        {
            return Ok(());
        }
        self.touch_parent(&path);
        self.plan.note_unneeded(&path)?;
        if is_directory {
            self.gone = Some(path);
        }
        Ok(())
    }

    /// Returns whether an entry that the source does not deliver is kept.
    fn is_kept(&mut self, record: &Record) -> bool {
        let path = &record.entry.path;
        let is_around = |level: &&DirectoryLevel| is_within(path, &level.scanned.entry.path);
        let level = self.levels.iter().rev().find(is_around);
        let is_unknown = level.is_some_and(|level| self.kept.is_unknown(&level.scanned));
        is_unknown || self.kept.keeps(record)
    }

    /// Sends the metadata of the directory of `path` again, because the directory changes.
    fn touch_parent(&mut self, path: &[u8]) {
        let (parent, _) = split(path);
        let is_parent = |level: &&mut DirectoryLevel| level.scanned.entry.path == parent;
        if path.is_empty() {
            return;
        }
        if let Some(level) = self.levels.iter_mut().rev().find(is_parent)
            && !level.is_sent
        {
            level.is_sent = true;
            self.ready.push_back(level.scanned.clone());
        }
    }

    /// Sends the metadata of the directory of `path` again if the file there turns out to differ.
    fn await_check(&mut self, size: u64, path: &[u8]) {
        if size >= LEAST_RENAMED {
            return self.touch_parent(path);
        }
        let (parent, _) = split(path);
        let is_parent = |level: &&DirectoryLevel| level.scanned.entry.path == parent;
        if let Some(level) = self.levels.iter().rev().find(is_parent)
            && !level.is_sent
        {
            self.plan.await_check(&level.scanned.entry);
        }
    }

    fn compare(&mut self, scanned: Scanned, there: Option<Record>) -> Result<()> {
        match &scanned.state {
            EntryState::Whole => {}
            EntryState::Noted if scanned.entry.kind == EntryKind::Socket => {
                self.plan.counts.sockets.fetch_add(1, Relaxed);
                return Ok(());
            }
            EntryState::Noted | EntryState::Vanished => return Ok(()),
            state if scanned.entry.kind == EntryKind::Directory => {
                // Its content is unknown, so nothing below it is deleted.
                self.plan.note_unlisted(&scanned.entry.path, state);
            }
            state => {
                self.plan.note_unread(&scanned.entry.path, state);
                return Ok(());
            }
        }
        let there = there.map(|record| record.entry);
        let is_blocked = there.as_ref().is_some_and(is_directory) && !is_directory(&scanned.entry);
        if is_blocked && self.plan.options.delete {
            return self.make_later(scanned);
        }
        match &scanned.entry.kind {
            EntryKind::Directory => self.compare_directory(scanned, there.as_ref()),
            EntryKind::HardLink(first) => {
                let first = first.clone();
                self.compare_link(scanned, &first, there.as_ref())
            }
            EntryKind::File { .. } => self.compare_file(scanned, there),
            _ => {
                let is_same = |there: &Entry| self.is_same_object(&scanned.entry, there);
                if there.as_ref().is_some_and(is_same) {
                    self.plan.note_same();
                } else {
                    self.send(scanned, there.is_none());
                }
                Ok(())
            }
        }
    }

    /// Handles an entry whose path is a directory in the target: that is removed first.
    fn make_later(&mut self, scanned: Scanned) -> Result<()> {
        let path = scanned.entry.path.clone();
        self.plan.note_other_kind(&path);
        self.plan.say_change(false, &path);
        self.touch_parent(&path);
        self.plan.counts.extra.fetch_add(1, Relaxed);
        self.plan.note_unneeded(&path)?;
        self.gone = Some(path.clone());
        if let EntryKind::HardLink(first) = &scanned.entry.kind {
            return self.plan.add_link(&path, first, false);
        }
        self.plan.do_later(scanned);
        Ok(())
    }

    fn compare_directory(&mut self, scanned: Scanned, there: Option<&Entry>) -> Result<()> {
        let is_sent = match there {
            Some(there) if there.kind == EntryKind::Directory => {
                !self.is_same_object(&scanned.entry, there)
            }
            Some(_) => {
                // Entries below it may be written before the frame with it.
                self.plan.make_directory(&scanned.entry)?;
                true
            }
            None => true,
        };
        if is_sent {
            self.plan.say_change(there.is_none(), &scanned.entry.path);
            self.touch_parent(&scanned.entry.path);
            self.ready.push_back(scanned.clone());
        } else {
            self.plan.note_same();
        }
        self.levels.push(DirectoryLevel { scanned, is_sent });
        Ok(())
    }

    fn compare_link(
        &mut self,
        scanned: Scanned,
        first: &[u8],
        there: Option<&Entry>,
    ) -> Result<()> {
        let path = &scanned.entry.path;
        let is_there = there.is_some_and(|there| there.kind == scanned.entry.kind);
        let replaced = self.plan.replaced(first);
        match replaced {
            _ if !is_there => self.plan.say_change(there.is_none(), path),
            Some(Replaced::Surely) => self.plan.say_change(false, path),
            Some(Replaced::Perhaps) => self.plan.note_same(),
            None => {
                self.plan.note_same();
                return Ok(());
            }
        }
        self.touch_parent(path);
        self.plan.add_link(path, first, there.is_none())
    }

    fn compare_file(&mut self, mut scanned: Scanned, there: Option<Entry>) -> Result<()> {
        let entry = &scanned.entry;
        let Some(there) = there else {
            return self.compare_new(scanned);
        };
        if !there.is_file() {
            self.send(scanned, false);
            return Ok(());
        }
        let found = difference(entry, &there);
        let is_unchanged = !found.size && !found.mtime;
        if self.plan.options.is_compared(entry, &there) {
            // Sizes are equal, so only the workers find out whether the content is.
            self.await_check(entry.size(), &entry.path.clone());
            if scanned.is_first {
                self.plan
                    .note_replaced(&scanned.entry.path, Replaced::Perhaps);
            }
            scanned.known = known(there, Trust::Nothing);
            self.ready.push_back(scanned);
            return Ok(());
        }
        if !is_unchanged {
            scanned.known = known(there, Trust::Nothing);
        } else if self.has_metadata_of(entry.clone(), &there) {
            self.plan.note_same();
            return Ok(());
        } else {
            scanned.known = known(there, Trust::Content);
        }
        self.send(scanned, false);
        Ok(())
    }

    /// Handles a file whose name the target lacks.
    fn compare_new(&mut self, scanned: Scanned) -> Result<()> {
        let is_worth_it = self.plan.options.delete && scanned.entry.size() >= LEAST_RENAMED;
        if !is_worth_it {
            self.send(scanned, true);
        } else if self.target.peek().is_some() && self.waiting.len() < MAX_WAITING {
            self.plan.say_change(true, &scanned.entry.path);
            self.touch_parent(&scanned.entry.path);
            self.note_replaced(&scanned);
            self.waiting.push(scanned);
        } else {
            let scanned = self.as_renamed(scanned);
            self.send(scanned, true);
        }
        Ok(())
    }

    /// Notes the file of the target that may have become this one.
    fn as_renamed(&mut self, mut scanned: Scanned) -> Scanned {
        let key = (scanned.entry.size(), scanned.entry.mtime);
        let earlier = self.unneeded.remove(&key);
        scanned.known = earlier.and_then(|earlier| known(earlier, Trust::Nothing));
        scanned
    }

    fn release_waiting(&mut self) -> Result<()> {
        for scanned in std::mem::take(&mut self.waiting) {
            let scanned = self.as_renamed(scanned);
            self.ready.push_back(scanned);
        }
        Ok(())
    }

    fn send(&mut self, scanned: Scanned, is_new: bool) {
        if !is_new && scanned.known.is_none() {
            self.plan.note_other_kind(&scanned.entry.path);
        }
        self.plan.say_change(is_new, &scanned.entry.path);
        self.touch_parent(&scanned.entry.path);
        self.note_replaced(&scanned);
        self.ready.push_back(scanned);
    }

    /// Later names of a file whose content is sent are linked again.
    fn note_replaced(&self, scanned: &Scanned) {
        let keeps_file = scanned
            .known
            .as_ref()
            .is_some_and(|known| known.trust == Trust::Content);
        if scanned.is_first && !keeps_file {
            self.plan
                .note_replaced(&scanned.entry.path, Replaced::Surely);
        }
    }

    fn has_metadata_of(&mut self, mut entry: Entry, there: &Entry) -> bool {
        if !self.has_same_mode(&entry, there) {
            return false;
        }
        match self.attributes.read(&entry.path) {
            Ok(xattrs) => {
                entry.xattrs = xattrs;
                self.plan.options.has_same_xattrs(&entry, there)
            }
            // The reader of the file reports it.
            Err(_) => false,
        }
    }

    fn is_same_object(&self, entry: &Entry, there: &Entry) -> bool {
        self.plan.options.difference(entry, there).is_none()
    }

    fn has_same_mode(&self, entry: &Entry, there: &Entry) -> bool {
        let options = &self.plan.options;
        options.is_same_mode(entry, there) && options.is_same_owner(entry, there)
    }
}

fn is_directory(entry: &Entry) -> bool {
    entry.kind == EntryKind::Directory
}

/// An entry of the target, as the state before.
fn known(entry: Entry, trust: Trust) -> Option<BaseEntry> {
    let record = Record::without_content(entry, EntryState::Whole);
    let page = ManifestPage {
        records: vec![record],
        ..ManifestPage::default()
    };
    let item = PageItem::new(Arc::new(page), 0)?;
    Some(BaseEntry::new(vec![item].into(), trust))
}

impl Iterator for Differences {
    type Item = Result<Scanned>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(scanned) = self.ready.pop_front() {
                return Some(Ok(scanned));
            }
            if self.is_at_end {
                return None;
            }
            if let Err(error) = self.advance() {
                self.is_at_end = true;
                return Some(Err(error));
            }
        }
    }
}

/// Checks that the entries of a target are in order, which its side may have changed.
pub(super) fn in_order(
    entries: impl Iterator<Item = Result<Record>> + Send + 'static,
) -> Stream<Record> {
    let mut last: Option<EntryPath> = None;
    Box::new(entries.map(move |record| {
        let record = record?;
        let path = record.entry.path.clone();
        let is_after = |last: EntryPath| order(&last, &path) == Ordering::Less;
        if !last.take().is_none_or(is_after) {
            return Err(Error::corrupt(
                "cannot compare with the target: its entries are out of order",
            ));
        }
        last = Some(path);
        Ok(record)
    }))
}
