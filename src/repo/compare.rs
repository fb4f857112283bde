//! Compares a scan with the manifests of earlier backups: both are in archive order, so they are merged as they come.
//!
//! What is the same by all that a look at the file system tells is not read. What may have been touched while the base was
//! made, to the clock's granularity, is read and compared, as is whatever the rules do not trust. Memory is a page of each
//! base; the records of a large file are held as a whole.

use super::base::Base;
use crate::{
    archive::{Archive, Records},
    error::Result,
    format::{
        entry::{Entry, EntryKind, Time, order},
        page::{EntryState, PageItem, Record, are_contiguous, describe_whole_file},
    },
    frame::Scanned,
    known::{BaseEntry, Trust},
    platform,
    source::Stream,
};
use clap::ValueEnum;
use std::{cmp::Ordering, iter::Peekable, sync::Arc};

/// What is taken as proof that a file has not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
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

/// A scan, with what is known of each object.
pub(super) struct ComparedEntries {
    pub(super) base: Arc<Base>,
    pub(super) scan: Stream<Scanned>,
    pub(super) cursors: Vec<BaseCursor>,
}

/// How far one base was read.
pub(super) struct BaseCursor {
    base: Arc<Base>,
    archive: Arc<Archive>,
    records: Peekable<Records<Arc<Archive>>>,
    /// When that base began; what was touched since, or shortly before, may differ from what it holds.
    begun: Time,
}

/// The clocks of file systems tick at least so often (FAT: every 2 s).
const TICK_SECONDS: i64 = 2;
/// So long after a file was written it may be lost by a crash of the system, though its times are not: Linux writes back what is 30 s
/// old, and looks for that every 5 s.
const WRITEBACK_SECONDS: i64 = 120;

impl BaseCursor {
    /// `trusted`: may anything be taken for the same that was not touched since that base began?
    pub(super) fn new(base: &Arc<Base>, archive: &Arc<Archive>, trusted: bool) -> Self {
        let begun = archive
            .root
            .time
            .parse::<jiff::Timestamp>()
            .map_or(i64::MIN, jiff::Timestamp::as_second);
        let crashed = !archive.root.boot.is_empty() && archive.root.boot != platform::boot_id();
        let before = if crashed {
            WRITEBACK_SECONDS
        } else {
            TICK_SECONDS
        };
        let seconds = if trusted {
            begun.saturating_sub(before)
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

    /// The base, and since when nothing may have been touched.
    pub(super) fn place(&self) -> (&Archive, Time) {
        (&self.archive, self.begun)
    }

    /// The next record, if it can be read; damage to a base is no damage to this backup.
    fn peek(&mut self) -> Option<&PageItem> {
        while let Some(Err(error)) = self.records.peek() {
            self.base.note(error);
            self.records.next();
        }
        self.records.peek().and_then(|item| item.as_ref().ok())
    }

    /// All parts of the record of `path`; what stands before it is no longer there.
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
                // Where files are handed on from name to name, as logs are, another one had it.
                let is_other =
                    trust == Trust::Nothing && parts[0].entry.inode != scanned.entry.inode;
                let moved = is_other
                    .then(|| self.base.moved(scanned, &self.cursors))
                    .flatten();
                moved.unwrap_or((parts, trust))
            }
            None if !scanned.entry.is_file() => return None,
            None if unfinished.is_some() => (unfinished.unwrap_or_default(), Trust::Nothing),
            None => self.base.moved(scanned, &self.cursors)?,
        };
        self.base.usable(BaseEntry::new(parts.into(), trust))
    }
}

/// What is trusted.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompareRules {
    pub(super) compare: Compare,
    /// Do digests tell whether content is the same? CRCs do not.
    pub(super) digests: bool,
    /// May blocks of files be referred to of which a backup that was cut off has only the first part? Of a cluster's it must
    /// not be: what its server says has not changed is taken from the record without a look.
    pub(super) unfinished: bool,
}

impl CompareRules {
    /// How far an object is what the record of its path says; `None`: not at all. What somebody else owned then is not given to
    /// the owner of now unread: only the inode tells that it is the same.
    fn trust(self, scanned: &Scanned, record: &Record, begun: Time) -> Option<Trust> {
        let (entry, whole) = (&scanned.entry, record.state == EntryState::Whole);
        let EntryKind::File { size, .. } = entry.kind else {
            return (record.state == scanned.state && record.entry == *entry)
                .then_some(Trust::Same);
        };
        if !record.state.is_stored() || !record.entry.is_file() {
            return None;
        }
        let then = &record.entry;
        let mtime = then.size() == size && then.mtime == entry.mtime;
        let proven = mtime && is_same_inode(then, entry) && entry.mtime.max(entry.ctime) < begun;
        let unchanged = match self.compare {
            Compare::Inode => proven,
            Compare::Mtime => mtime && entry.mtime < begun && then.owner == entry.owner,
            Compare::Size => then.size() == size && then.owner == entry.owner,
            Compare::Content => false,
        };
        match unchanged && whole && then.kind == entry.kind {
            true if !proven => Some(Trust::Unverified),
            true if is_same_but_attributes(then, entry) => Some(Trust::Same),
            true => Some(Trust::Content),
            false => self.digests.then_some(Trust::Nothing),
        }
    }

    /// The same for a file that had another path.
    ///
    /// To rename a directory changes nothing of the files below it. To rename a file changes its ctime, and then nothing tells that
    /// it was not written to before, and its mtime put back; nor that it is no new file, given the inode of a removed one.
    /// So it is read, and stored only if it is another.
    pub(super) fn trust_moved(
        self,
        scanned: &Scanned,
        record: &Record,
        begun: Time,
    ) -> Option<Trust> {
        let (then, entry) = (&record.entry, &scanned.entry);
        let same =
            then.kind == entry.kind && then.mtime == entry.mtime && then.inode == entry.inode;
        if self.compare != Compare::Inode || !same || record.state != EntryState::Whole {
            return None;
        }
        let sure = then.ctime == entry.ctime && entry.mtime.max(entry.ctime) < begun;
        if sure {
            Some(Trust::Content)
        } else {
            self.digests.then_some(Trust::Nothing)
        }
    }
}

fn is_same_inode(a: &Entry, b: &Entry) -> bool {
    a.ctime == b.ctime && a.inode == b.inode
}

/// The scan does not look at the attributes of files; a change of them changes the ctime.
fn is_same_but_attributes(then: &Entry, now: &Entry) -> bool {
    is_same_inode(then, now)
        && then.mtime == now.mtime
        && then.mode == now.mode
        && then.owner == now.owner
}
