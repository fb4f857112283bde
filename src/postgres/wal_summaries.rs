//! Which blocks changed since an earlier backup, as the server's summaries of its WAL say (PostgreSQL 17 and later).
//!
//! What the WAL does not mention has not changed, but for hints that a reader may set at any time, and maps of free space and
//! of what is visible, which are read as a whole (rule 23). If the summaries have a gap, or are of another past than the earlier backup (see
//! [`witness`]), or anything of the cluster changed that the WAL does not tell (rules 22, 24), nobody knows, and changed files
//! are read.

use super::{
    lsn::Lsn,
    relation::{RelationFile, RelationFork, Sizes, relation_of},
    session::Session,
    summary_anchor,
};
use crate::{
    error::Result,
    format::{entry::ByteRun, page::EntryState, root},
    frame::Scanned,
    known::Trust,
    platform,
};
use std::{collections::HashMap, time::Duration};

/// How long the server may take to summarize the WAL up to the start of the backup.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Blocks that are remembered, 64 MiB of them; of a cluster where more changed, changed files are read.
const MAX_BLOCKS: usize = 16 << 20;

/// What a fork costs beside its blocks, in blocks.
const FORK_BLOCKS: usize = 32;

/// See the module. Four bytes for each block that changed, up to `MAX_BLOCKS`.
#[derive(Debug, Clone, Default)]
pub struct BlockChanges {
    forks: HashMap<Name, Blocks>,
    /// Of pages, and of files of them.
    sizes: Sizes,
    /// What is in memory of them, in blocks; at [`MAX_BLOCKS`] the rest is missing.
    held: usize,
}

/// Tablespace, database, number of the files, and which fork.
type Name = (u32, u32, u32, RelationFork);

#[derive(Debug, Clone, Default)]
struct Blocks {
    /// Blocks from this on were cut off, or made anew.
    limit: Option<u32>,
    changed: Vec<u32>,
}

/// A line of a summary.
#[derive(Debug, Clone, Copy)]
pub struct SummaryLine {
    /// Tablespace, database, number of the files.
    pub relation: (u32, u32, u32),
    /// Number of the fork.
    pub fork: i16,
    /// A block that changed, or, if `is_limit`, the least length that the fork had.
    pub block: u32,
    /// See `block`.
    pub is_limit: bool,
}

/// A summary that the server has: from where to where.
pub type Span = (Lsn, Lsn);

impl BlockChanges {
    /// Changes from the start of the backup `base` to `start`, on the same timeline; `None` if the server does not know.
    ///
    /// # Errors
    /// If the session is lost.
    pub fn since(
        session: &mut Session,
        base: &root::ClusterInfo,
        now: &root::ClusterInfo,
        sizes: Sizes,
    ) -> Result<Option<Self>> {
        let (Ok(from), Ok(to)) = (base.start_lsn.parse::<Lsn>(), now.start_lsn.parse::<Lsn>())
        else {
            return Ok(None);
        };
        let alike = base.timeline == now.timeline
            && base.checksums == now.checksums
            && base.online
            && now.online;
        if now.major < 17 || !alike || from > to {
            return Ok(None);
        }
        if !summary_anchor::is_there(session, base, now)? {
            platform::debug(|| {
                "the server was started since the last backup, or has another past".to_owned()
            });
            return Ok(None);
        }
        // Nothing to wait for: what is behind this place is in the WAL of the new backup.
        if from != to && !session.summarizes(to, PATIENCE)? {
            platform::debug(|| format!("the server has not summarized its WAL up to {to}"));
            return Ok(None);
        }
        let Some(spans) = chain(session.summaries(now.timeline)?, from, to) else {
            platform::debug(|| {
                format!("the server's summaries of its WAL do not reach from {from} to {to}")
            });
            return Ok(None);
        };
        let mut changes = Self {
            sizes,
            ..Self::default()
        };
        for span in spans {
            session.summary(now.timeline, span, |line| changes.add(line))?;
            if changes.held >= MAX_BLOCKS {
                platform::debug(|| {
                    format!("more than {MAX_BLOCKS} blocks changed since the last backup")
                });
                return Ok(None);
            }
            if changes.held >= MAX_BLOCKS / 2 {
                changes.settle();
            }
        }
        changes.settle();
        Ok(Some(changes))
    }

    /// Put the blocks of each fork in order. A summary has each of them once, but the next may have it again.
    fn settle(&mut self) {
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
            blocks.limit = Some(
                blocks
                    .limit
                    .map_or(line.block, |limit| limit.min(line.block)),
            );
        } else {
            blocks.changed.push(line.block);
        }
        self.held += (self.forks.len() - forks) * FORK_BLOCKS;
    }

    /// Say of a file that would be read and compared where it can have changed.
    pub fn narrow(&self, scanned: &mut Scanned) {
        let Some(known) = scanned
            .known
            .as_mut()
            .filter(|known| known.trust == Trust::Nothing)
        else {
            return;
        };
        let before = known.parts[0].entry.size();
        let whole = known
            .parts
            .iter()
            .all(|part| part.state == EntryState::Whole);
        let size = scanned.entry.size();
        if let Some((space, database, file)) = relation_of(&scanned.entry.path).filter(|_| whole)
            && let Some(runs) = self.runs((space, database), file, size, before)
        {
            known.limit_changes(runs, size);
        }
    }

    /// Where a file of `size` bytes that had `before` bytes can have changed; `None`: anywhere.
    fn runs(
        &self,
        (space, database): (u32, u32),
        file: RelationFile,
        size: u64,
        before: u64,
    ) -> Option<Vec<ByteRun>> {
        let page = u64::from(self.sizes.page_bytes);
        if matches!(
            file.fork,
            RelationFork::FreeSpace | RelationFork::Visibility
        ) || !size.is_multiple_of(page)
            || !before.is_multiple_of(page)
        {
            return None;
        }
        // Number 0 speaks of a whole database whose files were copied, or that was made anew: its blocks are not mentioned.
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
        // What is new at the end, or was cut off meanwhile, is not what it was.
        let limit = blocks
            .limit
            .map_or(u64::MAX, |limit| u64::from(limit.saturating_sub(first)));
        let end = (size / page).min(before / page).min(limit);
        let mut runs: Vec<ByteRun> = Vec::new();
        let mut push = |at: u64, count: u64| match runs.last_mut() {
            Some(last) if last.offset + last.len == at * page => last.len += count * page,
            _ => runs.push(ByteRun {
                offset: at * page,
                len: count * page,
            }),
        };
        let from = blocks.changed.partition_point(|block| *block < first);
        for block in blocks.changed[from..]
            .iter()
            .map(|block| u64::from(block - first))
            .take_while(|at| *at < end)
        {
            push(block, 1);
        }
        if end < size / page {
            push(end, size / page - end);
        }
        Some(runs)
    }
}

/// Those of the spans that lead from `from` to `to` without a gap.
fn chain(mut spans: Vec<Span>, from: Lsn, to: Lsn) -> Option<Vec<Span>> {
    spans.sort_unstable();
    let (mut at, mut chain) = (from, Vec::new());
    for (start, end) in spans {
        if at >= to || start > at {
            break;
        }
        if end > at {
            chain.push((start, end));
            at = end;
        }
    }
    (at >= to).then_some(chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::relation;

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

    fn runs(changes: &BlockChanges, name: &[u8], pages: u64, before: u64) -> Option<Vec<ByteRun>> {
        changes.runs(
            (1663, 5),
            relation::parse(name).unwrap(),
            pages * 8192,
            before * 8192,
        )
    }

    #[test]
    fn blocks_that_the_wal_mentions_have_changed_and_no_others() {
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
    fn blocks_that_change_again_and_again_are_remembered_once_and_no_more_than_there_is_room_for() {
        let mut known = BlockChanges::default();
        let line = |relation: u32, block: u32| SummaryLine {
            relation: (1663, 5, relation),
            fork: 0,
            block,
            is_limit: false,
        };
        for _ in 0..1000 {
            (0..100).for_each(|block| known.add(line(16384, block)));
            known.settle();
        }
        assert_eq!(
            (known.held, runs(&known, b"16384", 200, 200)),
            (100 + FORK_BLOCKS, Some(vec![run(0, 100)]))
        );
        (0..MAX_BLOCKS as u32).for_each(|number| known.add(line(number, 0)));
        known.settle();
        assert!(known.held >= MAX_BLOCKS && known.forks.len() <= MAX_BLOCKS / FORK_BLOCKS);
    }

    #[test]
    fn what_is_new_or_was_cut_off_has_changed() {
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
    fn of_a_database_that_was_copied_everything_may_have_changed() {
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
    fn summaries_with_a_gap_say_nothing() {
        let span = |from, to| (Lsn(from), Lsn(to));
        let spans = vec![span(30, 40), span(10, 20), span(20, 30), span(50, 60)];
        assert_eq!(
            chain(spans.clone(), Lsn(10), Lsn(35)),
            Some(vec![span(10, 20), span(20, 30), span(30, 40)])
        );
        assert_eq!(
            chain(spans.clone(), Lsn(20), Lsn(40)),
            Some(vec![span(20, 30), span(30, 40)])
        );
        assert_eq!(
            chain(spans.clone(), Lsn(35), Lsn(40)),
            Some(vec![span(30, 40)])
        );
        assert_eq!(chain(spans.clone(), Lsn(30), Lsn(55)), None);
        assert_eq!(chain(spans, Lsn(5), Lsn(15)), None);
        assert_eq!(chain(vec![], Lsn(5), Lsn(5)), Some(vec![]));
    }
}
