//! The records of a tape that were read last.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Bytes of records that are kept: what all threads of a restore read at the same time.
const MOST_BYTES: usize = 64 << 20;

/// Records by their numbers; the one that was read first goes first.
#[derive(Default)]
pub(super) struct RecordCache {
    records: BTreeMap<u64, Arc<Vec<u8>>>,
    order: VecDeque<u64>,
    bytes: usize,
}

impl RecordCache {
    pub(super) fn get(&self, block: u64) -> Option<Arc<Vec<u8>>> {
        self.records.get(&block).cloned()
    }

    pub(super) fn add(&mut self, block: u64, record: &Arc<Vec<u8>>) {
        if self.records.insert(block, record.clone()).is_some() {
            return;
        }
        self.order.push_back(block);
        self.bytes += record.len();
        while self.bytes > MOST_BYTES
            && let Some(first) = self.order.pop_front()
        {
            let gone = self.records.remove(&first);
            self.bytes -= gone.map_or(0, |record| record.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_records_read_last_are_kept() {
        let mut cache = RecordCache::default();
        let record = Arc::new(vec![0; 1 << 20]);
        for block in (0..100).chain([99]) {
            cache.add(block, &record);
        }
        let kept: Vec<_> = (0..100)
            .filter(|block| cache.get(*block).is_some())
            .collect();
        assert_eq!(kept, (36..100).collect::<Vec<_>>());
        assert!(cache.bytes <= MOST_BYTES && cache.order.len() == 64);
    }
}
