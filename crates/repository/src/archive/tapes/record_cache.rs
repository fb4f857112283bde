//! The records of a tape that were read last.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Bytes of records that are kept: what all threads of a restore read at the same time.
const MOST_BYTES: usize = 64 << 20;

/// Records by the names of their tapes and their numbers; the one that was read first goes first. They outlive a change of the
/// tape: bytes on both sides of its end are asked for together.
#[derive(Default)]
pub(super) struct RecordCache {
    records: BTreeMap<(String, u64), Arc<Vec<u8>>>,
    order: VecDeque<(String, u64)>,
    bytes: usize,
}

impl RecordCache {
    pub(super) fn get(&self, tape: &str, block: u64) -> Option<Arc<Vec<u8>>> {
        self.records.get(&(tape.to_owned(), block)).cloned()
    }

    pub(super) fn add(&mut self, tape: &str, block: u64, record: &Arc<Vec<u8>>) {
        let key = (tape.to_owned(), block);
        if self.records.insert(key.clone(), record.clone()).is_some() {
            return;
        }
        self.order.push_back(key);
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
            cache.add("A", block, &record);
        }
        let is_kept = |block: &u64| cache.get("A", *block).is_some();
        let kept: Vec<_> = (0..100).filter(is_kept).collect();
        assert_eq!(kept, (36..100).collect::<Vec<_>>());
        assert!(cache.get("B", 99).is_none());
        assert!(cache.bytes <= MOST_BYTES && cache.order.len() == 64);
    }
}
