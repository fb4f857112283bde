//! Inode numbers: computed from the place of an entry, so that no table is needed to read them.
//!
//! The upper 24 bits are the number of a backup, from 1; 0 stands for the directories above the
//! backups. The lower 40 bits are the number of the record in the manifest, plus 1. A directory of
//! which the backup has only entries below it has the number of the first of these, and its depth.

/// Bits of the number within a backup.
const PLACE_BITS: u32 = 40;
/// Bits of a record number beside a depth.
const RECORD_BITS: u32 = 34;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;
const RECORD_MASK: u64 = (1 << RECORD_BITS) - 1;
/// The number of the root directory in its backup.
const ROOT: u64 = PLACE_MASK;
/// Most components of a directory without a record; one more could mean the root.
const MAX_DEPTH: usize = (1 << (PLACE_BITS - RECORD_BITS)) - 2;
/// The inode that the kernel asks first.
pub(super) const FIRST: u64 = 1;

/// The place of an entry in a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EntryPlace {
    /// The root of the tree.
    Root,
    /// The record of this number.
    Record(u64),
    /// The first components of the path of this record, a directory without a record.
    Implied { record: u64, depth: u8 },
}

/// The object that an inode number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InodePlace {
    /// A directory or link above the backups, by its number.
    Top(u64),
    /// An entry of a backup.
    Entry { backup: u64, place: EntryPlace },
}

impl EntryPlace {
    /// Returns the place of a record; `None` if the number is too large for an inode.
    pub(super) fn record(number: u64) -> Option<Self> {
        (number < RECORD_MASK).then_some(Self::Record(number))
    }

    /// Returns the place of a directory without a record; `None` if the numbers are too large for
    /// an inode.
    pub(super) fn implied(record: u64, depth: usize) -> Option<Self> {
        let fits = record < RECORD_MASK && (1..=MAX_DEPTH).contains(&depth);
        fits.then_some(Self::Implied {
            record,
            depth: depth as u8,
        })
    }
}

impl InodePlace {
    pub(super) fn of(inode: u64) -> Self {
        let backup = inode >> PLACE_BITS;
        let number = inode & PLACE_MASK;
        if backup == 0 {
            return Self::Top(number);
        }
        let depth = (number >> RECORD_BITS) as u8;
        let record = (number & RECORD_MASK).wrapping_sub(1);
        let place = match (number, depth) {
            (ROOT, _) => EntryPlace::Root,
            (_, 0) => EntryPlace::Record(record),
            (_, depth) => EntryPlace::Implied { record, depth },
        };
        Self::Entry { backup, place }
    }

    pub(super) fn inode(self) -> u64 {
        let (backup, place) = match self {
            Self::Top(number) => return number,
            Self::Entry { backup, place } => (backup, place),
        };
        let number = match place {
            EntryPlace::Root => ROOT,
            EntryPlace::Record(record) => record + 1,
            EntryPlace::Implied { record, depth } => u64::from(depth) << RECORD_BITS | (record + 1),
        };
        backup << PLACE_BITS | number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_an_inode_of_its_own() {
        let places = [
            Some(EntryPlace::Root),
            EntryPlace::record(0),
            EntryPlace::record(RECORD_MASK - 1),
            EntryPlace::implied(0, 1),
            EntryPlace::implied(RECORD_MASK - 1, MAX_DEPTH),
        ];
        for backup in [1, (1 << 24) - 1] {
            for place in places.map(Option::unwrap) {
                let wanted = InodePlace::Entry { backup, place };
                assert_eq!(InodePlace::of(wanted.inode()), wanted);
            }
        }
        assert_eq!(InodePlace::of(7), InodePlace::Top(7));
        assert_eq!(EntryPlace::record(RECORD_MASK), None);
        assert_eq!(EntryPlace::implied(0, MAX_DEPTH + 1), None);
        assert_eq!(EntryPlace::implied(0, 0), None);
    }
}
