//! Remembers which records the first pass over volumes planned, so that later passes plan the same.

use fullbore_format::error::Result;
use std::collections::BTreeSet;

/// The records whose content the first pass over volumes planned, by their number in the order of the archive.
#[derive(Default)]
pub(super) struct ContentRecords {
    bits: Vec<u64>,
    /// Records that could not be read.
    failed: BTreeSet<u64>,
}

impl ContentRecords {
    pub(super) fn note(&mut self, number: u64, planned: &Result<bool>) {
        match planned {
            Ok(false) => {}
            Ok(true) => {
                let word = (number / 64) as usize;
                self.bits.resize(self.bits.len().max(word + 1), 0);
                self.bits[word] |= 1 << (number % 64);
            }
            Err(_) => _ = self.failed.insert(number),
        }
    }

    pub(super) fn has_failed(&self, number: u64) -> bool {
        self.failed.contains(&number)
    }

    pub(super) fn has(&self, number: u64) -> bool {
        let word = self.bits.get((number / 64) as usize);
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }
}
