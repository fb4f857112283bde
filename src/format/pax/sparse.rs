//! Maps of sparse files: what a tar can hold, and GNU tar's four ways to write one.
//!
//! Only version 1.0 is written: the map stands in front of the content, as decimal lines. See "Storing Sparse Files" in
//! GNU tar's manual.

use super::{
    BLOCK,
    field::{Block, number},
};
use crate::format::entry::{ByteRun, SparseMap};
use std::io::Write;

/// Most runs of one map, written or read. A map of so many takes 24 MiB of memory.
pub const MAX_RUNS: usize = 1 << 20;

/// The map that a tar can hold for a file of `size` bytes: runs grow to whole blocks of 512 bytes and are merged if they
/// touch. `None`, meaning the file is to be stored whole, if there are no holes left or over [`MAX_RUNS`] runs.
///
/// GNU tar pads each run to whole blocks and other tools do not; where runs are whole blocks they agree. A map that is
/// good already is returned as it is. Runs must be ascending and within the file.
pub fn storable_map(map: SparseMap, size: u64) -> Option<SparseMap> {
    let map = if is_storable(&map, size) {
        map
    } else {
        widen(&map, size).into()
    };
    let whole = matches!(map[..], [run] if run.len == size) || size == 0;
    (!whole && map.len() <= MAX_RUNS).then_some(map)
}

fn widen(map: &[ByteRun], size: u64) -> Vec<ByteRun> {
    let block = BLOCK as u64;
    let mut wide: Vec<ByteRun> = Vec::with_capacity(map.len());
    for run in map {
        let start = run.offset - run.offset % block;
        let end = (run.offset + run.len).next_multiple_of(block).min(size);
        match wide.last_mut() {
            Some(last) if start <= last.offset + last.len => last.len = end - last.offset,
            _ => wide.push(ByteRun {
                offset: start,
                len: end - start,
            }),
        }
    }
    wide
}

/// Is the map ascending, within the file, and made of whole blocks but for the end of the last run?
pub(super) fn is_storable(map: &[ByteRun], size: u64) -> bool {
    let blocks = map
        .split_last()
        .is_none_or(|(_, runs)| runs.iter().all(|run| run.len % BLOCK as u64 == 0));
    let mut end = None;
    blocks
        && map.iter().all(|run| {
            let fits = run.len > 0 && end.is_none_or(|end| run.offset > end);
            end = run.offset.checked_add(run.len);
            fits && end.is_some_and(|end| end <= size)
        })
}

/// Bytes that [`write_map`] appends, without its padding.
pub(super) fn map_len(map: &[ByteRun], size: u64) -> u64 {
    let runs: u64 = map
        .iter()
        .map(|run| digits(run.offset) + digits(run.len) + 2)
        .sum();
    digits(map.len() as u64 + 1) + 1 + runs + digits(size) + 1 + 2
}

/// Decimal digits of `value`.
fn digits(value: u64) -> u64 {
    u64::from(value.checked_ilog10().unwrap_or(0) + 1)
}

/// Append the map as version 1.0 has it, without padding: the number of runs, then offset and length of each, a line each.
pub(super) fn write_map(map: &[ByteRun], size: u64, out: &mut Vec<u8>) {
    let _ = writeln!(out, "{}", map.len() + 1);
    for run in map {
        let _ = writeln!(out, "{}\n{}", run.offset, run.len);
    }
    // Without a run at the end GNU tar cuts the file there.
    let _ = write!(out, "{size}\n0\n");
}

/// A map that was read, from pairs of offset and length, for a file of `size` bytes of which `stored` follow.
///
/// Empty runs are dropped and runs that touch are merged. The outer `None` is a map that cannot be; the inner one says
/// that there are no holes.
pub(super) fn read_map(pairs: &[u64], size: u64, stored: u64) -> Option<Option<SparseMap>> {
    let (pairs, []) = pairs.as_chunks::<2>() else {
        return None;
    };
    let mut runs: Vec<ByteRun> = Vec::new();
    let (mut end, mut sum) = (0u64, 0u64);
    for &[offset, len] in pairs {
        if offset < end {
            return None;
        }
        end = offset.checked_add(len).filter(|end| *end <= size)?;
        sum += len; // no overflow: the runs are disjoint and within `size`
        match runs.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => runs.push(ByteRun { offset, len }),
        }
    }
    (sum == stored).then(|| (sum < size).then(|| runs.into()))
}

/// The map of version 1.0, read block by block.
#[derive(Default)]
pub(super) struct MapLines {
    /// Numbers still to come, once the first line has said so.
    left: Option<usize>,
    /// The line under way.
    line: Option<u64>,
    pairs: Vec<u64>,
}

impl MapLines {
    /// Take a block. `Some(true)` if it was the last one, `None` if it is not a map.
    pub(super) fn push(&mut self, block: &Block) -> Option<bool> {
        for byte in block {
            match byte {
                b'0'..=b'9' => {
                    let digit = u64::from(byte - b'0');
                    self.line = Some(self.line.unwrap_or(0).checked_mul(10)?.checked_add(digit)?);
                }
                b'\n' if self.end_line()? => return Some(true),
                b'\n' => {}
                _ => return None,
            }
        }
        Some(false)
    }

    /// Take the number of the line; `true` if it was the last one.
    fn end_line(&mut self) -> Option<bool> {
        let value = self.line.take()?;
        match &mut self.left {
            None => {
                self.left = Some(
                    usize::try_from(value)
                        .ok()
                        .filter(|runs| *runs <= MAX_RUNS + 1)?
                        * 2,
                )
            }
            Some(left) => {
                *left -= 1;
                self.pairs.push(value);
            }
        }
        Some(self.left == Some(0))
    }

    /// Offsets and lengths, in turn.
    pub(super) fn into_pairs(self) -> Vec<u64> {
        self.pairs
    }
}

/// Where GNU's older format keeps runs in the header of a member, and in the blocks after it; and the flag that one follows.
pub(super) const OLD_HEADER: (std::ops::Range<usize>, usize) = (386..482, 482);
/// See [`OLD_HEADER`].
pub(super) const OLD_EXTENSION: (std::ops::Range<usize>, usize) = (0..504, 504);
/// Where the older format keeps the size with holes.
pub(super) const OLD_SIZE: std::ops::Range<usize> = 483..495;

/// Append the offsets and lengths in `fields`, 12 bytes each, up to the first unused ones. `None` if one is not a number.
pub(super) fn read_old(fields: &[u8], pairs: &mut Vec<u64>) -> Option<()> {
    for pair in fields
        .as_chunks::<24>()
        .0
        .iter()
        .take_while(|pair| pair[12] != 0)
    {
        for field in pair.as_chunks::<12>().0 {
            pairs.push(u64::try_from(number(field)?).ok()?);
        }
    }
    (pairs.len() <= 2 * (MAX_RUNS + 1)).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs(pairs: &[(u64, u64)]) -> SparseMap {
        pairs
            .iter()
            .map(|&(offset, len)| ByteRun { offset, len })
            .collect()
    }

    #[test]
    fn runs_grow_to_whole_blocks_and_merge() {
        let map = storable_map(runs(&[(100, 1), (600, 1), (2000, 100), (4000, 50)]), 4060);
        assert_eq!(map, Some(runs(&[(0, 1024), (1536, 1024), (3584, 476)])));
    }

    #[test]
    fn a_map_of_blocks_stays_as_it_is() {
        let good = runs(&[(7, 512), (8192, 100)]);
        assert_eq!(storable_map(good.clone(), 9000), Some(good));
    }

    #[test]
    fn a_file_without_holes_has_no_map() {
        assert_eq!(storable_map(runs(&[(0, 600), (700, 300)]), 1000), None);
        assert_eq!(storable_map(runs(&[]), 0), None);
        assert_eq!(storable_map(runs(&[]), 1), Some(runs(&[])));
    }

    #[test]
    fn maps_that_cannot_be_are_refused() {
        for (pairs, size, stored) in [
            (&[10, 10, 5, 10][..], 100, 20),
            (&[90, 20], 100, 20),
            (&[0, 10], 100, 11),
            (&[0, 10, 20], 100, 10),
            (&[u64::MAX, 2], u64::MAX, 2),
        ] {
            assert_eq!(read_map(pairs, size, stored), None, "{pairs:?}");
        }
    }

    proptest! {
        #[test]
        fn a_written_map_is_read_back_whatever_its_length(gaps in proptest::collection::vec((1u64..1 << 40, 1u64..1 << 40), 0..90)) {
            let mut end = 0;
            let map: Vec<ByteRun> = gaps.iter().map(|(gap, len)| {
                let run = ByteRun { offset: end + gap, len: len * 512 };
                end = run.offset + run.len;
                run
            }).collect();
            prop_assert!(is_storable(&map, end + 1));
            let mut text = Vec::new();
            write_map(&map, end + 1, &mut text);
            prop_assert_eq!(text.len() as u64, map_len(&map, end + 1));
            text.resize(text.len().next_multiple_of(BLOCK), 0);
            let mut lines = MapLines::default();
            let (blocks, _) = text.as_chunks::<BLOCK>();
            let ends: Vec<_> = blocks.iter().map(|block| lines.push(block).unwrap()).collect();
            prop_assert!(ends.iter().rev().skip(1).all(|end| !end) && ends[ends.len() - 1]);
            let stored = map.iter().map(|run| run.len).sum();
            prop_assert_eq!(read_map(&lines.into_pairs(), end + 1, stored), Some(Some(map.into())));
        }
    }
}
