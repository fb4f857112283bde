//! The units of a file of which a part is written. Most frames end in the middle of a unit, and no frame is decoded a
//! second time for its other end.

use super::plan_file::UNIT_BYTES;
use std::{collections::BTreeMap, iter, ops::Range};

/// The written ranges by units of the file. A unit that is complete is not here.
#[derive(Debug, Default)]
pub(super) struct PartialUnits(BTreeMap<u64, Vec<Range<u64>>>);

impl PartialUnits {
    /// Notes that a range of a file of `size` bytes is written. Returns the units that are complete now.
    pub(super) fn add(&mut self, written: Range<u64>, size: u64) -> Vec<u64> {
        let units = written.start / UNIT_BYTES..written.end.div_ceil(UNIT_BYTES);
        units
            .filter(|unit| {
                let whole = unit_range(*unit, size);
                let part = written.start.max(whole.start)..written.end.min(whole.end);
                let ranges = self.0.entry(*unit).or_default();
                join(ranges, part);
                let is_complete = matches!(&ranges[..], [range] if *range == whole);
                if is_complete {
                    self.forget(*unit);
                }
                is_complete
            })
            .collect()
    }

    /// Forgets what is written of a unit.
    pub(super) fn forget(&mut self, unit: u64) {
        self.0.remove(&unit);
    }

    /// Returns the ranges of these units that are not written, ascending and apart.
    pub(super) fn needed(&self, units: impl Iterator<Item = u64>, size: u64) -> Vec<Range<u64>> {
        let mut needed: Vec<Range<u64>> = Vec::new();
        for unit in units {
            let whole = unit_range(unit, size);
            let mut start = whole.start;
            let written = self.0.get(&unit).into_iter().flatten().cloned();
            let end = iter::once(whole.end..whole.end);
            for range in written.chain(end) {
                if start < range.start {
                    match needed.last_mut().filter(|last| last.end == start) {
                        Some(last) => last.end = range.start,
                        None => needed.push(start..range.start),
                    }
                }
                start = range.end;
            }
        }
        needed
    }
}

fn unit_range(unit: u64, size: u64) -> Range<u64> {
    unit * UNIT_BYTES..((unit + 1) * UNIT_BYTES).min(size)
}

/// Adds a range to ranges that ascend and are apart.
fn join(ranges: &mut Vec<Range<u64>>, mut new: Range<u64>) {
    let first = ranges.partition_point(|range| range.end < new.start);
    let behind = ranges.partition_point(|range| range.start <= new.end);
    if let Some(touched) = ranges
        .get(first..behind)
        .filter(|ranges| !ranges.is_empty())
    {
        new.start = new.start.min(touched[0].start);
        new.end = new.end.max(touched[touched.len() - 1].end);
    }
    ranges.splice(first..behind.max(first), [new]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 3 * UNIT_BYTES + 100;

    #[test]
    fn a_unit_is_complete_when_its_frames_are_written() {
        let mut partial = PartialUnits::default();
        let end = 2 * UNIT_BYTES - 1024;
        assert_eq!(partial.add(0..end, SIZE), [0]);
        let rest = partial.needed(1..3, SIZE);
        assert!(matches!(&rest[..], [Range { start, end: 786_432 }] if *start == end));
        assert_eq!(partial.add(end..SIZE, SIZE), [1, 2, 3]);
        assert!(partial.0.is_empty());
    }

    proptest! {
        #[test]
        fn what_is_needed_is_what_is_not_written(ranges in prop::collection::vec((0..SIZE, 1..2 * UNIT_BYTES), 1..12)) {
            let mut partial = PartialUnits::default();
            let mut written = vec![false; SIZE as usize];
            let mut complete = Vec::new();
            for (start, len) in ranges {
                let range = start..(start + len).min(SIZE);
                written[range.start as usize..range.end as usize].fill(true);
                complete.extend(partial.add(range, SIZE));
            }
            let open = (0..4).filter(|unit| !complete.contains(unit));
            let mut needed = vec![false; SIZE as usize];
            for range in partial.needed(open, SIZE) {
                needed[range.start as usize..range.end as usize].fill(true);
            }
            for (place, (is_written, is_needed)) in written.iter().zip(&needed).enumerate() {
                prop_assert_eq!(is_written, &!is_needed, "{}", place);
            }
        }
    }
}
