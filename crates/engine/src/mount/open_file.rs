//! A file that is read, and how far its readers are.

use fullbore_platform::queue::Locked;
use fullbore_repository::archive::stored_file::StoredFile;
use std::{ops::Range, sync::Mutex};

/// Reads in a row after which a reader counts as sequential.
const FEW_READS: u32 = 2;
/// The kernel sends the requests of one reader in parallel, which may change their order.
const REORDERED_BYTES: u64 = 2 << 20;
/// Bytes that are read ahead at first; each read doubles them.
const FIRST_AHEAD: u64 = 1 << 20;

/// A file of a backup with the position of its reader.
pub(super) struct OpenFile {
    pub(super) file: StoredFile,
    reader: Mutex<ReaderPosition>,
}

#[derive(Debug, Default)]
struct ReaderPosition {
    /// The end of the last read.
    next: u64,
    reads_in_a_row: u32,
    /// The end of what was read ahead.
    ahead: u64,
}

impl OpenFile {
    pub(super) fn new(file: StoredFile) -> Self {
        Self {
            file,
            reader: Mutex::default(),
        }
    }

    /// Returns roughly the bytes that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        512 + self.file.memory_bytes()
    }

    /// Notes a read, and returns the range to read ahead, of at most `most_bytes`: empty for a
    /// reader that jumps.
    pub(super) fn note_read(&self, offset: u64, len: u64, most_bytes: u64) -> Range<u64> {
        self.reader.locked().note(offset, len, most_bytes)
    }
}

impl ReaderPosition {
    fn note(&mut self, offset: u64, len: u64, most_bytes: u64) -> Range<u64> {
        let end = offset.saturating_add(len);
        if offset.abs_diff(self.next) > REORDERED_BYTES {
            *self = Self {
                next: end,
                reads_in_a_row: 0,
                ahead: end,
            };
            return 0..0;
        }
        self.next = self.next.max(end);
        self.reads_in_a_row += 1;
        if self.reads_in_a_row < FEW_READS {
            return 0..0;
        }
        let doublings = (self.reads_in_a_row - FEW_READS).min(16);
        let window = (FIRST_AHEAD << doublings).min(most_bytes);
        let start = self.ahead.max(self.next);
        let stop = self.next.saturating_add(window);
        // In steps of at least half a window, so that not each small read asks.
        if stop < start.saturating_add(window / 2) {
            return 0..0;
        }
        self.ahead = stop;
        start..stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_sequential_reader_gets_more_and_more_ahead() {
        let mut reader = ReaderPosition::default();
        let mut note = |mib: u64| {
            let range = reader.note(mib * MIB, MIB, 8 * MIB);
            range.start / MIB..range.end / MIB
        };
        assert_eq!(note(0), 0..0);
        assert_eq!(note(1), 2..3);
        assert_eq!(note(2), 3..5);
        assert_eq!(note(3), 5..8);
        assert_eq!(note(4), 8..13);
        assert_eq!(note(5), 0..0);
    }

    #[test]
    fn a_reader_that_jumps_gets_nothing_ahead() {
        let mut reader = ReaderPosition::default();
        for jump in [50, 7, 90, 20] {
            assert!(reader.note(jump * MIB, 4096, 8 * MIB).is_empty());
        }
    }
}
