//! Maps of sparse files: the form that a tar can hold, and GNU tar's four formats.
//!
//! Only version 1.0 is written: the map precedes the content, as decimal lines. See "Storing Sparse
//! Files" in GNU tar's manual.

use super::{
    BLOCK,
    field::{Block, number},
};
use crate::entry::{ByteRun, SparseMap};
use std::io::Write;

/// Maximum runs of one map, written or read. A map of this size takes 24 MiB of memory.
pub const MAX_RUNS: usize = 1 << 20;

/// Returns the map that a tar can hold for a file of `size` bytes. Runs grow to whole blocks of 512
/// bytes, and runs that touch are merged.
///
/// Returns `None`, so that the file is stored whole, if no holes remain or the map has more than
/// [`MAX_RUNS`] runs. GNU tar pads each run to whole blocks and other tools do not; they agree on
/// runs of whole blocks. A map that already fits is returned unchanged. Runs must be ascending and
/// within the file.
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

/// Returns whether the map is ascending, within the file, and made of whole blocks except for the
/// end of the last run.
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

/// Number of bytes that [`write_map`] appends, without padding.
pub(super) fn map_len(map: &[ByteRun], size: u64) -> u64 {
    let runs: u64 = map
        .iter()
        .map(|run| digits(run.offset) + digits(run.len) + 2)
        .sum();
    digits(map.len() as u64 + 1) + 1 + runs + digits(size) + 1 + 2
}

/// Number of decimal digits of `value`.
fn digits(value: u64) -> u64 {
    u64::from(value.checked_ilog10().unwrap_or(0) + 1)
}

/// Appends the map in version 1.0, without padding: the number of runs, then offset and length of
/// each, one number a line.
pub(super) fn write_map(map: &[ByteRun], size: u64, out: &mut Vec<u8>) {
    let _ = writeln!(out, "{}", map.len() + 1);
    for run in map {
        let _ = writeln!(out, "{}\n{}", run.offset, run.len);
    }
    // Without a final empty run GNU tar cuts the file at the end of the last run.
    let _ = write!(out, "{size}\n0\n");
}

/// Checks a map of (offset, length) pairs, for a file of `size` bytes of which `stored` follow.
///
/// Empty runs are dropped and runs that touch are merged. Returns `None` for an invalid map and
/// `Some(None)` if there are no holes.
pub(super) fn read_map(pairs: &[u64], size: u64, stored: u64) -> Option<Option<SparseMap>> {
    let (pairs, []) = pairs.as_chunks::<2>() else {
        return None;
    };
    let mut runs: Vec<ByteRun> = Vec::new();
    let mut end = 0u64;
    let mut sum = 0u64;
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

/// A parser for the map of version 1.0, block by block.
#[derive(Default)]
pub(super) struct MapLines {
    /// Remaining numbers; known after the first line.
    left: Option<usize>,
    /// Value of the current line so far.
    line: Option<u64>,
    pairs: Vec<u64>,
}

impl MapLines {
    /// Parses a block. Returns `Some(true)` if it was the last one, `None` if it is not part of a
    /// map.
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

    /// Takes the number of the line; returns `true` if it was the last one.
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

    /// Returns offsets and lengths in turn.
    pub(super) fn into_pairs(self) -> Vec<u64> {
        self.pairs
    }
}

/// Range of the runs in a header of GNU's older format, and position of the flag that an extension
/// block follows.
pub(super) const OLD_HEADER: (std::ops::Range<usize>, usize) = (386..482, 482);
/// The same for an extension block.
pub(super) const OLD_EXTENSION: (std::ops::Range<usize>, usize) = (0..504, 504);
/// Field of the older format with the size including holes.
pub(super) const OLD_SIZE: std::ops::Range<usize> = 483..495;

/// Appends the offsets and lengths in `fields`, 12 bytes each, up to the first unused pair. Returns
/// `None` if one is not a number.
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
