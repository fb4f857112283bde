//! Finds the blocks changed since an earlier backup, in the server's summaries of its WAL
//! (PostgreSQL 17 and later).
//!
//! A block that the WAL does not mention has not changed, with two exceptions: hints, which a
//! reader may set at any time, and the free space and visibility maps, which are read as a whole
//! (rule 23).
//!
//! Changed files are read as a whole if the summaries have a gap, if they belong to another past
//! than the earlier backup (see [`summary_anchor`]), or if something changed that the WAL does not
//! record (rules 22, 24).

use super::{
    cluster_backup::ChangedBlocks,
    data_dir::DataDir,
    lsn::Lsn,
    relation::{RelationFile, RelationFork, Sizes, relation_of},
    session::Session,
    summary_anchor,
};
use fullbore_format::{entry::ByteRun, error::Result, page::EntryState, root};
use fullbore_pipeline::{frame::Scanned, known::Trust};
use fullbore_platform as platform;
use std::{collections::HashMap, time::Duration};

/// Time that the server may take to summarize the WAL up to the start of the backup.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Limit for remembered blocks: they take 64 MiB. If more blocks changed, changed files are read.
const MAX_BLOCKS: usize = 16 << 20;

/// Memory of a fork beside its blocks, counted in blocks.
const FORK_BLOCKS: usize = 32;

/// Changed blocks by fork. Memory: four bytes for each changed block, up to `MAX_BLOCKS`.
#[derive(Debug, Clone, Default)]
pub struct BlockChanges {
    forks: HashMap<Name, Blocks>,
    /// Bytes of a page, and pages of a segment file.
    sizes: Sizes,
    /// Memory in use, counted in blocks; at [`MAX_BLOCKS`] further changes are not recorded.
    held: usize,
}

/// Tablespace, database, file number and fork.
type Name = (u32, u32, u32, RelationFork);

#[derive(Debug, Clone, Default)]
struct Blocks {
    /// Blocks from this number on were truncated, or made anew.
    limit: Option<u32>,
    changed: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
pub struct SummaryLine {
    /// Tablespace, database and file number.
    pub relation: (u32, u32, u32),
    pub fork: i16,
    /// A changed block or, if `is_limit`, the shortest length of the fork.
    pub block: u32,
    /// True if `block` is a length.
    pub is_limit: bool,
}

/// A summary of the server: its start and its end.
pub type Span = (Lsn, Lsn);

impl BlockChanges {
    /// Returns the changes from the start of the backup `base` to the start of `now`, on the same
    /// timeline; `None` if the server does not know them.
    ///
    /// # Errors
    /// If the session is lost.
    pub fn since(
        session: &mut Session,
        data: &dyn DataDir,
        base: &root::ClusterInfo,
        now: &root::ClusterInfo,
        sizes: Sizes,
    ) -> Result<Option<Self>> {
        let Some((start, end)) = comparable_starts(base, now) else {
            return Ok(None);
        };
        if !summary_anchor::still_exists(session, data, base)? {
            platform::debug(|| {
                "the server was started since the last backup, or has another history".to_owned()
            });
            return Ok(None);
        }
        // With equal starts there is no need to wait: the WAL of the new backup has all later
        // changes.
        if start != end && !session.await_summaries(end, PATIENCE)? {
            platform::debug(|| format!("the server has not summarized its WAL up to {end}"));
            return Ok(None);
        }
        let Some(spans) = gapless_chain(session.summaries(now.timeline)?, start, end) else {
            platform::debug(|| {
                format!("the server's summaries of its WAL do not reach from {start} to {end}")
            });
            return Ok(None);
        };
        let mut changes = Self {
            sizes,
            ..Self::default()
        };
        for span in spans {
            session.read_summary(now.timeline, span, |line| changes.add(line))?;
            if changes.held >= MAX_BLOCKS {
                platform::debug(|| {
                    format!("more than {MAX_BLOCKS} blocks changed since the last backup")
                });
                return Ok(None);
            }
            if changes.held >= MAX_BLOCKS / 2 {
                changes.sort_blocks();
            }
        }
        changes.sort_blocks();
        Ok(Some(changes))
    }

    /// Sorts the blocks of each fork and drops duplicates: a summary has each block once, but the
    /// next may have it again.
    fn sort_blocks(&mut self) {
        for blocks in self.forks.values_mut() {
            blocks.changed.sort_unstable();
            blocks.changed.dedup();
        }
        let changed: usize = self.forks.values().map(|blocks| blocks.changed.len()).sum();
        self.held = changed + self.forks.len() * FORK_BLOCKS;
    }

    fn add(&mut self, line: SummaryLine) {
        if self.held >= MAX_BLOCKS {
            return;
        }
        let (space, database, number) = line.relation;
        let fork = match line.fork {
            0 => RelationFork::Main,
            1 => RelationFork::FreeSpace,
            2 => RelationFork::Visibility,
            _ => RelationFork::Init,
        };
        let forks = self.forks.len();
        let blocks = self
            .forks
            .entry((space, database, number, fork))
            .or_default();
        self.held += usize::from(!line.is_limit);
        if line.is_limit {
            let limit = blocks.limit.unwrap_or(u32::MAX);
            blocks.limit = Some(limit.min(line.block));
        } else {
            blocks.changed.push(line.block);
        }
        self.held += (self.forks.len() - forks) * FORK_BLOCKS;
    }

    /// Returns the places where a file, now of `size` bytes and formerly of `old_size` bytes, can
    /// have changed; `None` for everywhere.
    fn changed_runs(
        &self,
        (space, database): (u32, u32),
        file: RelationFile,
        size: u64,
        old_size: u64,
    ) -> Option<Vec<ByteRun>> {
        let page = u64::from(self.sizes.page_bytes);
        let is_map = matches!(
            file.fork,
            RelationFork::FreeSpace | RelationFork::Visibility
        );
        if is_map || !size.is_multiple_of(page) || !old_size.is_multiple_of(page) {
            return None;
        }
        // File number 0 means that the files of a whole database were copied, or the database was
        // made: its blocks are not listed.
        if self
            .forks
            .contains_key(&(space, database, 0, RelationFork::Main))
        {
            return None;
        }
        let first = file.segment.checked_mul(self.sizes.segment_blocks)?;
        let none = Blocks::default();
        let blocks = self
            .forks
            .get(&(space, database, file.number, file.fork))
            .unwrap_or(&none);
        Some(blocks.runs(first, page, size / page, old_size / page))
    }
}

impl Blocks {
    /// Returns the changed places of a segment file that begins with block `first` and has `count`
    /// pages, formerly `old_size` pages, of `page` bytes each.
    fn runs(&self, first: u32, page: u64, count: u64, old_size: u64) -> Vec<ByteRun> {
        // New blocks at the end, and blocks truncated meanwhile, have changed.
        let mut end = count.min(old_size);
        if let Some(limit) = self.limit {
            end = end.min(limit.saturating_sub(first).into());
        }
        let mut runs: Vec<ByteRun> = Vec::new();
        let mut push = |position: u64, count: u64| match runs.last_mut() {
            Some(last) if last.offset + last.len == position * page => last.len += count * page,
            _ => runs.push(ByteRun {
                offset: position * page,
                len: count * page,
            }),
        };
        let start = self.changed.partition_point(|block| *block < first);
        for block in &self.changed[start..] {
            let position = u64::from(block - first);
            if position >= end {
                break;
            }
            push(position, 1);
        }
        if end < count {
            push(end, count - end);
        }
        runs
    }
}

impl ChangedBlocks for BlockChanges {
    fn narrow(&self, scanned: &mut Scanned) -> Result<()> {
        let Some(known) = scanned
            .known
            .as_mut()
            .filter(|known| known.trust == Trust::Nothing)
        else {
            return Ok(());
        };
        let old_size = known.parts[0].entry.size();
        let whole = known
            .parts
            .iter()
            .all(|part| part.state == EntryState::Whole);
        let size = scanned.entry.size();
        if let Some((space, database, file)) = relation_of(&scanned.entry.path).filter(|_| whole)
            && let Some(runs) = self.changed_runs((space, database), file, size, old_size)
        {
            known.limit_changes(runs, size);
        }
        Ok(())
    }
}

/// Returns the starts of both backups, if the summaries between them can tell all changes.
pub(super) fn comparable_starts(
    base: &root::ClusterInfo,
    now: &root::ClusterInfo,
) -> Option<(Lsn, Lsn)> {
    let start: Lsn = base.start_lsn.parse().ok()?;
    let end: Lsn = now.start_lsn.parse().ok()?;
    let is_same_kind = base.timeline == now.timeline && base.checksums == now.checksums;
    let both_online = base.online && now.online;
    let is_known = now.major >= 17 && is_same_kind && both_online && start <= end;
    is_known.then_some((start, end))
}

/// Returns the spans that lead from `begin` to `stop` without a gap; `None` if there is a gap.
fn gapless_chain(mut spans: Vec<Span>, begin: Lsn, stop: Lsn) -> Option<Vec<Span>> {
    spans.sort_unstable();
    let mut reached = begin;
    let mut chain = Vec::new();
    for (start, end) in spans {
        if reached >= stop || start > reached {
            break;
        }
        if end > reached {
            chain.push((start, end));
            reached = end;
        }
    }
    (reached >= stop).then_some(chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relation;

    fn run(offset: u64, len: u64) -> ByteRun {
        ByteRun {
            offset: offset * 8192,
            len: len * 8192,
        }
    }

    fn changes(lines: &[(u32, bool)]) -> BlockChanges {
        let mut changes = BlockChanges::default();
        for (block, is_limit) in lines {
            changes.add(SummaryLine {
                relation: (1663, 5, 16384),
                fork: 0,
                block: *block,
                is_limit: *is_limit,
            });
        }
        changes
    }

    fn runs(
        changes: &BlockChanges,
        name: &[u8],
        pages: u64,
        old_size: u64,
    ) -> Option<Vec<ByteRun>> {
        changes.changed_runs(
            (1663, 5),
            relation::parse(name).unwrap(),
            pages * 8192,
            old_size * 8192,
        )
    }

    #[test]
    fn only_blocks_that_the_wal_mentions_have_changed() {
        let changes = changes(&[(3, false), (4, false), (9, false), (131_074, false)]);
        assert_eq!(
            runs(&changes, b"16384", 10, 10),
            Some(vec![run(3, 2), run(9, 1)])
        );
        assert_eq!(runs(&changes, b"16384.1", 10, 10), Some(vec![run(2, 1)]));
        let sizes = Sizes {
            segment_blocks: 65_536,
            ..Sizes::default()
        };
        assert_eq!(
            runs(
                &BlockChanges {
                    sizes,
                    ..changes.clone()
                },
                b"16384.2",
                10,
                10
            ),
            Some(vec![run(2, 1)])
        );
        assert_eq!(runs(&changes, b"16385", 10, 10), Some(vec![]));
        assert_eq!(runs(&changes, b"16384_fsm", 10, 10), None);
        assert_eq!(runs(&changes, b"16384_vm", 10, 10), None);
    }

    #[test]
    fn repeated_changes_are_remembered_once_and_memory_is_limited() {
        let mut known = BlockChanges::default();
        let line = |relation: u32, block: u32| SummaryLine {
            relation: (1663, 5, relation),
            fork: 0,
            block,
            is_limit: false,
        };
        for _ in 0..1000 {
            (0..100).for_each(|block| known.add(line(16384, block)));
            known.sort_blocks();
        }
        assert_eq!(
            (known.held, runs(&known, b"16384", 200, 200)),
            (100 + FORK_BLOCKS, Some(vec![run(0, 100)]))
        );
        (0..MAX_BLOCKS as u32).for_each(|number| known.add(line(number, 0)));
        known.sort_blocks();
        assert!(known.held >= MAX_BLOCKS && known.forks.len() <= MAX_BLOCKS / FORK_BLOCKS);
    }

    #[test]
    fn new_and_truncated_blocks_have_changed() {
        let grown = changes(&[(3, false)]);
        assert_eq!(
            runs(&grown, b"16384", 12, 10),
            Some(vec![run(3, 1), run(10, 2)])
        );
        assert_eq!(runs(&grown, b"16384", 2, 10), Some(vec![]));
        let cut = changes(&[(3, false), (8, false), (5, true)]);
        assert_eq!(
            runs(&cut, b"16384", 10, 10),
            Some(vec![run(3, 1), run(5, 5)])
        );
        let made_anew = changes(&[(0, true)]);
        assert_eq!(runs(&made_anew, b"16384", 4, 4), Some(vec![run(0, 4)]));
        assert_eq!(runs(&made_anew, b"16384.1", 4, 4), Some(vec![run(0, 4)]));
    }

    #[test]
    fn every_block_of_a_copied_database_may_have_changed() {
        let mut copied = changes(&[(3, false)]);
        copied.add(SummaryLine {
            relation: (1663, 5, 0),
            fork: 0,
            block: 0,
            is_limit: true,
        });
        assert_eq!(runs(&copied, b"16384", 10, 10), None);
        assert_eq!(runs(&copied, b"16385", 10, 10), None);
    }

    #[test]
    fn summaries_with_a_gap_are_not_used() {
        let span = |start, end| (Lsn(start), Lsn(end));
        let spans = vec![span(30, 40), span(10, 20), span(20, 30), span(50, 60)];
        assert_eq!(
            gapless_chain(spans.clone(), Lsn(10), Lsn(35)),
            Some(vec![span(10, 20), span(20, 30), span(30, 40)])
        );
        assert_eq!(
            gapless_chain(spans.clone(), Lsn(20), Lsn(40)),
            Some(vec![span(20, 30), span(30, 40)])
        );
        assert_eq!(
            gapless_chain(spans.clone(), Lsn(35), Lsn(40)),
            Some(vec![span(30, 40)])
        );
        assert_eq!(gapless_chain(spans.clone(), Lsn(30), Lsn(55)), None);
        assert_eq!(gapless_chain(spans, Lsn(5), Lsn(15)), None);
        assert_eq!(gapless_chain(vec![], Lsn(5), Lsn(5)), Some(vec![]));
    }
}
