//! The matches of a pattern in the backups of one source.
//!
//! Each page is read once, however many backups refer to it, and only if it can match the pattern.
//! The pages of all backups are read side by side in path order, and a path is returned as soon as
//! no unread page can hold it: memory holds the records of a few pages, whatever the number of
//! matches.

use super::{find_pattern::FindPattern, listing::kind_parts};
use fullbore_format::{
    digest::Digest,
    entry::{self, EntryPath, Time, order},
    error::Result,
    page::Record,
    root::EntryName,
};
use fullbore_repository::{
    archive::Archive,
    inventory::{PageRef, sheets},
    open::backup_ids,
};
use fullbore_storage::Objects;
use fullbore_tree::patterns::Patterns;
use std::{cmp::Ordering, collections::BTreeMap, ops::RangeInclusive, sync::Arc};

/// The properties that distinguish two versions of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundVersion {
    pub(super) kind: &'static str,
    pub(super) size: u64,
    pub(super) mtime: Time,
    pub(super) digest: Option<Digest>,
    pub(super) target: Option<EntryName>,
}

/// A version and the backups that hold it, as ranges of positions among the backups of the source.
/// A version that disappeared and came back has several ranges.
#[derive(Debug)]
struct HeldVersion {
    version: FoundVersion,
    runs: Vec<RangeInclusive<usize>>,
}

/// A version in one range of backups.
pub(super) type InRange = (FoundVersion, RangeInclusive<usize>);

/// A path and its versions, ordered by the first backup of each range.
pub(super) type FoundVersions = (EntryPath, Vec<InRange>);

/// The matches of one source, in archive order.
///
/// Pages are read in the order of their first paths, so a path before the start of the next page is
/// on no unread page.
pub(super) struct PathSweep<'a> {
    /// The repository of the archives, if they are in one.
    repository: Option<&'a Arc<dyn Objects>>,
    /// The backups of the source, oldest first.
    archives: Vec<Archive>,
    pattern: Arc<FindPattern>,
    /// The pages to read, the next one last.
    sheets: Vec<PageRef>,
    met: BTreeMap<ArchiveOrder, Vec<HeldVersion>>,
}

/// A path, ordered as in archives.
#[derive(PartialEq, Eq)]
struct ArchiveOrder(EntryPath);

impl Ord for ArchiveOrder {
    fn cmp(&self, other: &Self) -> Ordering {
        order(&self.0, &other.0)
    }
}

impl PartialOrd for ArchiveOrder {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> PathSweep<'a> {
    pub(super) fn new(
        repository: Option<&'a Arc<dyn Objects>>,
        archives: Vec<Archive>,
        pattern: FindPattern,
    ) -> Self {
        let selection = &pattern.selection;
        let wanted = |archive: &Archive| archive.pages(selection).into_iter().flatten().collect();
        let mut sheets = sheets(&archives, wanted);
        sheets.sort_by(|a, b| order(first_path(&archives, b), first_path(&archives, a)));
        Self {
            repository,
            archives,
            pattern: Arc::new(pattern),
            sheets,
            met: BTreeMap::new(),
        }
    }

    /// Returns whether all backups that have this page were forgotten since. Then the page may have
    /// been pruned.
    fn is_gone(&self, sheet: &PageRef) -> bool {
        let Some(repository) = self.repository else {
            return false;
        };
        let listed = backup_ids(&**repository)
            .unwrap_or_else(|_| self.archives.iter().map(|a| a.root.id.clone()).collect());
        !sheet
            .of
            .iter()
            .any(|index| listed.contains(&self.archives[*index].root.id))
    }

    fn read(&mut self, sheet: &PageRef) -> Result<()> {
        let archive = &self.archives[sheet.at.0];
        let page = archive.read_page(&archive.root.pages[sheet.at.1])?;
        let backups = join_ranges(sheet.of.iter().map(|index| *index..=*index).collect());
        let pattern = self.pattern.clone();
        let mut links = Vec::new();
        for record in page
            .records
            .iter()
            .filter(is_held)
            .filter(|record| matches(&pattern.patterns, record))
        {
            match &record.entry.kind {
                entry::EntryKind::HardLink(target) => links.push((record, target)),
                _ => add_holders(self.versions(record), version(record), &backups),
            }
        }
        // Size and digest of a file are in the record of its first name, which may be on another
        // page in each backup. Sorted, each page is read once.
        links.sort_by(|(_, a), (_, b)| order(a, b));
        for index in sheet.of.iter().filter(|_| !links.is_empty()) {
            for (record, target) in &links {
                let link = version(record);
                let file = self.archives[*index].last_of(target);
                let (size, digest) = file.map_or((link.size, link.digest), |file| {
                    (file.entry.size(), file.digest)
                });
                add_holders(
                    self.versions(record),
                    FoundVersion {
                        size,
                        digest,
                        ..link
                    },
                    &[*index..=*index],
                );
            }
            self.archives[*index].let_go();
        }
        Ok(())
    }

    fn versions(&mut self, record: &Record) -> &mut Vec<HeldVersion> {
        self.met
            .entry(ArchiveOrder(record.entry.path.clone()))
            .or_default()
    }
}

/// A file that spans several pages is found once, by the part with its digest. A file that
/// was not captured counts as not held.
fn is_held(record: &&Record) -> bool {
    !record.more && (record.state.is_stored() || !record.entry.is_file())
}

impl Iterator for PathSweep<'_> {
    type Item = Result<FoundVersions>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let next = self
                .sheets
                .last()
                .map(|sheet| first_path(&self.archives, sheet));
            if let Some(met) = self.met.first_entry()
                && next.is_none_or(|next| order(&met.key().0, next).is_lt())
            {
                let (ArchiveOrder(path), versions) = met.remove_entry();
                return Some(Ok((path, by_range(versions))));
            }
            let sheet = self.sheets.pop()?;
            match self.read(&sheet) {
                Err(error) if !self.is_gone(&sheet) => return Some(Err(error)),
                _ => {}
            }
        }
    }
}

/// Returns the first path of a page.
fn first_path<'a>(archives: &'a [Archive], sheet: &PageRef) -> &'a [u8] {
    &archives[sheet.at.0].root.pages[sheet.at.1].first.0
}

fn matches(pattern: &Patterns, record: &Record) -> bool {
    let path = &record.entry.path;
    let is_dir = record.entry.kind == entry::EntryKind::Directory;
    !path.is_empty() && pattern.matches(path, is_dir)
}

fn version(record: &Record) -> FoundVersion {
    let (kind, target, _) = kind_parts(&record.entry.kind);
    let size = record.entry.size();
    let mtime = record.entry.mtime;
    FoundVersion {
        kind,
        size,
        mtime,
        digest: record.digest,
        target,
    }
}

/// Adds the backups `of` to a version.
fn add_holders(
    versions: &mut Vec<HeldVersion>,
    version: FoundVersion,
    of: &[RangeInclusive<usize>],
) {
    match versions.iter_mut().find(|held| held.version == version) {
        Some(held) => held.runs = join_ranges(held.runs.iter().chain(of).cloned().collect()),
        None => versions.push(HeldVersion {
            version,
            runs: of.to_vec(),
        }),
    }
}

/// Sorts ranges, and joins those that touch or overlap.
fn join_ranges(mut runs: Vec<RangeInclusive<usize>>) -> Vec<RangeInclusive<usize>> {
    runs.sort_by_key(|run| *run.start());
    runs.dedup_by(|run, before| {
        let touches = *run.start() <= before.end() + 1;
        if touches {
            *before = *before.start()..=*before.end().max(run.end());
        }
        touches
    });
    runs
}

fn by_range(versions: Vec<HeldVersion>) -> Vec<InRange> {
    let mut all: Vec<_> = versions.into_iter().flat_map(version_runs).collect();
    all.sort_by_key(|(_, run)| *run.start());
    all
}

/// Returns the version with each run of backups that hold it.
fn version_runs(
    HeldVersion { version, runs }: HeldVersion,
) -> impl Iterator<Item = (FoundVersion, RangeInclusive<usize>)> {
    runs.into_iter().map(move |run| (version.clone(), run))
}
