//! Chooses the segments of earlier backups that new backups give up, because few of their bytes are
//! live.
//!
//! The live bytes of these segments are stored again, and the segments are deleted once the earlier
//! backups are forgotten. Each backup stores at most a twentieth of its size again, as long as two
//! fifths of all bytes that it refers to are live; below that, it stores as much as is needed to
//! get back there. So the size of a repository with one backup is bounded, and so are the bytes
//! that a restore reads, however often files change: each byte that is stored again frees one and a
//! half. A segment is emptied as a whole or not at all; those with the fewest live bytes come
//! first.

use fullbore_format::{entry::ByteRun, page::SegmentId, sizes};
use std::collections::{HashMap, HashSet};

/// A segment with a larger live share is kept.
const LEAST_LIVE_PERCENT: u64 = 40;
/// Share of the live bytes that may be stored again in any case.
const BUDGET_PERCENT: u64 = 5;

/// Returns the segments to give up, from the live bytes and the size of each.
pub(super) fn chosen(segments: HashMap<SegmentId, (u64, u64)>) -> HashSet<SegmentId> {
    let live = sizes::sum(segments.values().map(|(live, _)| *live));
    let mut bytes = sizes::sum(segments.values().map(|(_, bytes)| *bytes));
    let mut left = live / 100 * BUDGET_PERCENT;
    let mut worn: Vec<_> = segments
        .into_iter()
        .filter(|(_, (live, bytes))| is_worn(*live, *bytes))
        .collect();
    // By share of live bytes, multiplied crosswise to need no fractions; then by id, so that the
    // choice is always the same.
    worn.sort_by(|(a, (live, bytes)), (b, (other, total))| {
        product(*live, *total)
            .cmp(&product(*other, *bytes))
            .then_with(|| (&a.backup, a.stream, a.number).cmp(&(&b.backup, b.stream, b.number)))
    });
    let mut chosen = HashSet::new();
    for (id, (live_bytes, total)) in worn {
        // The budget bounds the bytes that a backup stores again, unless the repository as a whole
        // is worn.
        if live_bytes <= left || is_worn(live, bytes) {
            left = left.saturating_sub(live_bytes);
            bytes -= total - live_bytes;
            chosen.insert(id);
        }
    }
    chosen
}

fn product(live: u64, total: u64) -> u128 {
    u128::from(live) * u128::from(total)
}

fn is_worn(live: u64, bytes: u64) -> bool {
    u128::from(live) * 100 < u128::from(bytes) * u128::from(LEAST_LIVE_PERCENT)
}

/// Returns the blocks of a file of `len` bytes that ascending runs touch, as ascending runs.
pub(super) fn blocks(runs: Vec<ByteRun>, block: u64, len: u64) -> Vec<ByteRun> {
    let mut whole: Vec<ByteRun> = Vec::new();
    for run in runs {
        let (start, end) = (run.offset / block * block, run.offset + run.len);
        let end = end.next_multiple_of(block).min(len.max(end)); // the record of an interrupted file may reach beyond the known length
        match whole.last_mut() {
            Some(last) if last.offset + last.len >= start => last.len = end - last.offset,
            _ => whole.push(ByteRun {
                offset: start,
                len: end - start,
            }),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segments(counts: &[(u64, u64)]) -> HashMap<SegmentId, (u64, u64)> {
        let id = |number: usize| SegmentId {
            backup: "b".to_owned(),
            stream: 1,
            number: number as u32,
        };
        counts
            .iter()
            .enumerate()
            .map(|(number, counts)| (id(number), *counts))
            .collect()
    }

    fn numbers(counts: &[(u64, u64)]) -> Vec<u32> {
        let mut numbers: Vec<u32> = chosen(segments(counts))
            .into_iter()
            .map(|id| id.number)
            .collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn the_emptiest_go_first_and_no_more_than_is_allowed() {
        assert_eq!(
            numbers(&[(1000, 1000), (30, 100), (20, 100), (10, 100)]),
            [2, 3]
        );
        assert_eq!(numbers(&[(1000, 1000), (400, 1000), (900, 1000)]), [0; 0]);
        assert_eq!(numbers(&[]), [0; 0]);
    }

    #[test]
    fn where_too_little_is_live_at_all_more_go() {
        assert_eq!(
            numbers(&[(100, 100), (30, 300), (31, 300), (32, 300)]),
            [1, 2]
        );
    }

    proptest! {
        #[test]
        fn two_fifths_are_live_afterwards(counts in prop::collection::vec((0u64..1000, 0u64..1000), 0..30)) {
            let counts: Vec<(u64, u64)> = counts.iter().map(|(live, dead)| (*live, live + dead)).collect();
            let chosen = chosen(segments(&counts));
            let (mut live, mut bytes) = (0, 0);
            for (id, (here, total)) in segments(&counts) {
                live += here;
                bytes += if chosen.contains(&id) { here } else { total };
            }
            prop_assert!(live * 100 >= bytes * LEAST_LIVE_PERCENT);
        }

        #[test]
        fn blocks_hold_their_runs(cuts in prop::collection::btree_set(0u64..5000, 0..20)) {
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let runs: Vec<ByteRun> = cuts.as_chunks().0.iter().map(|[start, to]| ByteRun { offset: *start, len: to - start }).collect();
            let found = blocks(runs.clone(), 512, 5000);
            for pair in found.windows(2) {
                prop_assert!(pair[0].offset + pair[0].len < pair[1].offset);
            }
            for position in 0..5000 {
                let is_in = |runs: &[ByteRun]| runs.iter().any(|run| (run.offset..run.offset + run.len).contains(&position));
                let block = position / 512 * 512;
                let touched = runs.iter().any(|run| run.offset < (block + 512).min(5000) && run.offset + run.len > block);
                prop_assert_eq!(is_in(&found), touched);
            }
        }
    }
}
