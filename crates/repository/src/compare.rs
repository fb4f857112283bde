//! Compares a scan with the manifests of earlier backups: both are in archive order, so they are
//! merged as they come.
//!
//! A file whose metadata is unchanged is not read. A file that may have been modified while the
//! base was made, within the granularity of the clock, is read and compared, as is every file that
//! the rules do not trust. Memory holds one page of each base, and all records of one large file.

use super::base::Base;
use crate::archive::{Archive, Records};
use fullbore_format::{
    entry::{EntryKind, Time, order},
    entry_difference::difference,
    error::Result,
    page::{EntryState, PageItem, Record, are_contiguous, describe_whole_file},
};
use fullbore_pipeline::{
    frame::Scanned,
    known::{BaseEntry, Trust},
    source::Stream,
};
use fullbore_platform as platform;
use std::{cmp::Ordering, iter::Peekable, sync::Arc};

/// The proof that a file has not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compare {
    /// Size, time of content, time of the inode, inode number
    #[default]
    Inode,
    /// Size and time of content
    Mtime,
    /// Size; not of a cluster
    Size,
    /// Nothing: all files are read
    Content,
}

/// A scan, with the record of each object in the base.
pub(super) struct ComparedEntries {
    pub(super) base: Arc<Base>,
    pub(super) scan: Stream<Scanned>,
    pub(super) cursors: Vec<BaseCursor>,
}

/// The read position in one base.
pub(super) struct BaseCursor {
    base: Arc<Base>,
    archive: Arc<Archive>,
    records: Peekable<Records<Arc<Archive>>>,
    /// When the base began. A file that was modified since, or shortly before, may differ from its
    /// record.
    begun: Time,
}

/// Coarsest clock of a file system in seconds (FAT: 2 s).
const TICK_SECONDS: i64 = 2;
/// Seconds after a write during which a crash of the system may lose the content of a file but keep
/// its times: Linux writes back pages that are 30 s old, and looks for them every 5 s.
const WRITEBACK_SECONDS: i64 = 120;

impl BaseCursor {
    /// `trusted`: whether a file counts as unchanged if it was not modified since that base began.
    pub(super) fn new(base: &Arc<Base>, archive: &Arc<Archive>, trusted: bool) -> Self {
        let begun = archive
            .root
            .time
            .parse::<jiff::Timestamp>()
            .map_or(i64::MIN, jiff::Timestamp::as_second);
        let crashed = !archive.root.boot.is_empty() && archive.root.boot != platform::boot_id();
        let earlier = if crashed {
            WRITEBACK_SECONDS
        } else {
            TICK_SECONDS
        };
        let seconds = if trusted {
            begun.saturating_sub(earlier)
        } else {
            i64::MIN
        };
        let records = archive.clone().into_records().peekable();
        Self {
            base: base.clone(),
            archive: archive.clone(),
            records,
            begun: Time { seconds, nanos: 0 },
        }
    }

    /// Returns the base, and the time since which a file must be unmodified.
    pub(super) fn place(&self) -> (&Archive, Time) {
        (&self.archive, self.begun)
    }

    /// Returns the next record that can be read. Damage to a base is no damage to this backup.
    fn peek(&mut self) -> Option<&PageItem> {
        while let Some(Err(error)) = self.records.peek() {
            self.base.note(error);
            self.records.next();
        }
        self.records.peek().and_then(|item| item.as_ref().ok())
    }

    /// Takes all parts of the record of `path`, and drops the records before them.
    fn take(&mut self, path: &[u8]) -> Vec<PageItem> {
        let mut parts: Vec<PageItem> = Vec::new();
        while let Some(item) = self.peek() {
            match order(&item.entry.path, path) {
                Ordering::Greater => break,
                Ordering::Equal => parts.push(item.clone()),
                Ordering::Less => {}
            }
            self.records.next();
        }
        parts
    }
}

impl Iterator for ComparedEntries {
    type Item = Result<Scanned>;

    fn next(&mut self) -> Option<Self::Item> {
        let scanned = self.scan.next()?;
        Some(scanned.map(|mut scanned| {
            scanned.known = self.known(&scanned);
            scanned
        }))
    }
}

impl ComparedEntries {
    fn known(&mut self, scanned: &Scanned) -> Option<BaseEntry> {
        let (mut found, mut unfinished) = (None, None);
        for cursor in &mut self.cursors {
            let parts = cursor.take(&scanned.entry.path);
            if found.is_none() && describe_whole_file(&parts) {
                found = Some((parts, cursor.begun));
            } else if self.base.rules.unfinished
                && are_contiguous(&parts)
                && parts.last().is_some_and(|last| last.more)
            {
                unfinished = Some(parts);
            }
        }
        if !matches!(scanned.state, EntryState::Whole | EntryState::Noted) {
            return None;
        }
        let (parts, trust) = match found {
            Some((parts, begun)) => {
                let trust = self.base.rules.trust(scanned, &parts[0], begun)?;
                // Log rotation passes files from name to name, so another file may have had this
                // name.
                let is_unchanged = matches!(trust, Trust::Same | Trust::Unverified);
                if self.base.rules.whole_files && !is_unchanged {
                    return None;
                }
                let is_other =
                    trust == Trust::Nothing && parts[0].entry.inode != scanned.entry.inode;
                let moved = is_other
                    .then(|| self.base.moved(scanned, &self.cursors))
                    .flatten();
                moved.unwrap_or((parts, trust))
            }
            None if !scanned.entry.is_file() => return None,
            None if unfinished.is_some() => (unfinished.unwrap_or_default(), Trust::Nothing),
            None if self.base.rules.whole_files => return None,
            None => self.base.moved(scanned, &self.cursors)?,
        };
        self.base.usable(BaseEntry::new(parts.into(), trust))
    }
}

impl Base {
    /// Adds the record of an object that comes in any order. Its content arrives anyway, so a file is
    /// never trusted without a look.
    pub(super) fn looked_up(&self, mut scanned: Scanned) -> Scanned {
        // Its content is compared, and so would be stored in parts.
        if scanned.state == EntryState::Whole && !self.rules.whole_files {
            scanned.known = self.find_known(&scanned);
        }
        scanned
    }

    fn find_known(&self, scanned: &Scanned) -> Option<BaseEntry> {
        let parts = self.archives().find_map(|archive| {
            let found = archive.find(&scanned.entry.path);
            let found = found.inspect_err(|error| self.note(error)).ok()?;
            describe_whole_file(&found).then_some(found)
        })?;
        let is_file = scanned.entry.is_file();
        // Any time: files are read whatever it is.
        let trust = self.rules.trust(scanned, &parts[0], Time::default())?;
        let trust = if is_file && self.rules.digests {
            Trust::Nothing
        } else {
            trust
        };
        let is_usable = !is_file || trust == Trust::Nothing;
        self.usable(BaseEntry::new(parts.into(), trust))
            .filter(|_| is_usable)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CompareRules {
    pub(super) compare: Compare,
    /// Whether digests prove that content is the same. CRCs do not.
    pub(super) digests: bool,
    /// Whether blocks of files may be referred to if an interrupted backup has only the first part
    /// of the file. For a cluster this is not allowed: blocks that the server reports as unchanged
    /// are taken from the record without a look.
    pub(super) unfinished: bool,
    /// Whether each file that changed in any way is stored whole, under its own name. So other programs can lay a backup
    /// over its base.
    pub(super) whole_files: bool,
}

impl CompareRules {
    /// Returns how far an object matches the record of its path; `None` if it does not. If the
    /// owner changed, the file counts as the same only if its inode is the same; otherwise it is
    /// read.
    pub(super) fn trust(self, scanned: &Scanned, record: &Record, begun: Time) -> Option<Trust> {
        let (entry, whole) = (&scanned.entry, record.state == EntryState::Whole);
        let EntryKind::File { .. } = entry.kind else {
            return (record.state == scanned.state && record.entry == *entry)
                .then_some(Trust::Same);
        };
        if !record.state.is_stored() || !record.entry.is_file() {
            return None;
        }
        let earlier = &record.entry;
        let found = difference(earlier, entry);
        let mtime = !found.size && !found.mtime;
        // A source that knows neither, such as a server that is asked by SQL, proves nothing: its
        // clock, from which the times of content come, is another one than that of `begun`.
        let is_known = entry.inode != 0 || entry.ctime != Time::default();
        let is_same_inode =
            is_known && earlier.ctime == entry.ctime && earlier.inode == entry.inode;
        let proven = mtime && is_same_inode && entry.mtime.max(entry.ctime) < begun;
        let unchanged = match self.compare {
            Compare::Inode => proven,
            Compare::Mtime => mtime && entry.mtime < begun && !found.owner,
            Compare::Size => !found.size && !found.owner,
            Compare::Content => false,
        };
        match unchanged && whole && !found.size && !found.holes {
            true if !proven => Some(Trust::Unverified),
            // The scan does not read the attributes of files; a change of them changes the ctime.
            true if !found.mode && !found.owner => Some(Trust::Same),
            true => Some(Trust::Content),
            false => self.digests.then_some(Trust::Nothing),
        }
    }

    /// Returns how far a file matches the record of another path.
    ///
    /// Renaming a directory changes no metadata of the files below it. Renaming a file changes its
    /// ctime; the metadata then does not show whether the file was modified and its mtime put back,
    /// nor whether it is a new file with the inode of a removed one. So the file is read, and
    /// stored only if its content differs.
    pub(super) fn trust_moved(
        self,
        scanned: &Scanned,
        record: &Record,
        begun: Time,
    ) -> Option<Trust> {
        let (earlier, entry) = (&record.entry, &scanned.entry);
        let same = earlier.kind == entry.kind
            && earlier.mtime == entry.mtime
            && earlier.inode == entry.inode;
        if self.compare != Compare::Inode || !same || record.state != EntryState::Whole {
            return None;
        }
        let sure = earlier.ctime == entry.ctime && entry.mtime.max(entry.ctime) < begun;
        if sure {
            Some(Trust::Content)
        } else {
            self.digests.then_some(Trust::Nothing)
        }
    }
}
