//! The pages of a backup by sequence, for searches that read few of them.
//!
//! A sequence is the pages of one stream, or the late pages of one: they are in archive order among
//! themselves. The number of an entry is its place among the records of all pages, in the order of
//! the root.

use fullbore_format::{entry, root::PageAt};
use std::cmp::Ordering;

/// The sequences of pages, and the numbers of their first entries.
#[derive(Debug, Default)]
pub(super) struct PageIndex {
    /// Indices of the pages of each sequence, in order.
    pub(super) sequences: Vec<Vec<usize>>,
    /// The number of the first entry of each page of the root, and at last their count.
    starts: Vec<u64>,
}

impl PageIndex {
    pub(super) fn new(pages: &[PageAt]) -> Self {
        let sequence = |page: &PageAt| (page.stream, page.late);
        let mut by_sequence: Vec<usize> = (0..pages.len()).collect();
        by_sequence.sort_by_key(|index| (sequence(&pages[*index]), *index));
        let sequences = by_sequence
            .chunk_by(|a, b| sequence(&pages[*a]) == sequence(&pages[*b]))
            .map(<[usize]>::to_vec)
            .collect();
        let mut starts = vec![0u64];
        for page in pages {
            let end = starts[starts.len() - 1].saturating_add(page.entries);
            starts.push(end);
        }
        Self { sequences, starts }
    }

    /// Returns the page that has the entry of this number, and the index in it.
    pub(super) fn place(&self, number: u64) -> Option<(usize, usize)> {
        let page = self.starts.partition_point(|start| *start <= number);
        let page = page.checked_sub(1)?;
        (page + 1 < self.starts.len()).then_some(())?;
        Some((page, usize::try_from(number - self.starts[page]).ok()?))
    }

    /// Returns the number of the entry at `index` of a page.
    pub(super) fn number(&self, page: usize, index: usize) -> u64 {
        self.starts[page].saturating_add(index as u64)
    }

    /// Returns the sequence of a page, and its place in the sequence.
    pub(super) fn sequence_of(&self, page: usize) -> Option<(usize, usize)> {
        let mut sequences = self.sequences.iter().enumerate();
        sequences.find_map(|(number, own)| Some((number, own.binary_search(&page).ok()?)))
    }

    /// Returns the pages that may have records of `path`, or the entry after its place.
    pub(super) fn pages_at(&self, pages: &[PageAt], path: &[u8]) -> Vec<usize> {
        let order_of = |index: &usize| entry::order(&pages[*index].first.0, path);
        let reached = |own: &Vec<usize>| {
            let start = own
                .partition_point(|index| order_of(index).is_lt())
                .saturating_sub(1);
            own[start..]
                .iter()
                .copied()
                .take_while(|index| order_of(index) != Ordering::Greater)
                .collect::<Vec<usize>>()
        };
        self.sequences.iter().flat_map(reached).collect()
    }
}
