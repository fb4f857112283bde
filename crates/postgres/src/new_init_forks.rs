//! Finds in the WAL the init forks that the server created.
//!
//! A server that recovers removes the main forks of unlogged relations at its beginning: of those whose init fork is there. At the end
//! it copies init forks to main forks, and does not start if a main fork is there ("File exists"). So a main fork must not be
//! there if its init fork comes by WAL. See also `init_forks`.

use super::{
    lsn::Lsn,
    relation::{self, DEFAULT_TABLESPACE},
    wal_reader::{RecordKind, WalReader, WalSegments},
};
use std::{collections::BTreeSet, io};

/// A file of a relation is created: `XLOG_SMGR_CREATE` of resource manager 2 (storage_xlog.h).
pub const CREATE: RecordKind = RecordKind {
    manager: 2,
    operation: 0x10,
};
/// `INIT_FORKNUM` (relpath.h).
const INIT_FORK: u32 = 3;

/// A relation whose init fork is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewInitFork {
    pub tablespace: u32,
    pub database: u32,
    /// File number of the relation.
    pub number: u32,
}

impl NewInitFork {
    /// Returns the directory of the relation. `version` is the name of the cluster's directory in
    /// each tablespace.
    pub fn directory(&self, version: &str) -> String {
        let Self {
            tablespace,
            database,
            ..
        } = self;
        match *tablespace {
            DEFAULT_TABLESPACE => format!("base/{database}"),
            _ => format!("pg_tblspc/{tablespace}/{version}/{database}"),
        }
    }

    /// Returns whether a file of this name is the init fork.
    pub fn is_init(&self, name: &[u8]) -> bool {
        let file = relation::parse(name).filter(|file| file.number == self.number);
        file.is_some_and(|file| file.fork == relation::RelationFork::Init)
    }

    /// Returns whether a file of this name belongs to another fork of the relation.
    pub fn is_other_fork(&self, name: &[u8]) -> bool {
        let file = relation::parse(name).filter(|file| file.number == self.number);
        file.is_some_and(|file| file.fork != relation::RelationFork::Init)
    }
}

/// Returns the relations whose init fork is created by records from `start` to `end`. The first of
/// the segments is that with `start`.
///
/// # Errors
/// The system's; `InvalidData` if the WAL is not understood.
pub fn new_init_forks(
    segments: &WalSegments<'_>,
    start: Lsn,
    end: Lsn,
) -> io::Result<BTreeSet<NewInitFork>> {
    let mut wal = WalReader::new(segments, start, start, end, CREATE);
    let mut forks = BTreeSet::new();
    while let Some(data) = wal.next_record()? {
        forks.extend(data.and_then(parse));
    }
    Ok(forks)
}

/// Parses `xl_smgr_create`: tablespace, database, file number and fork, 4 bytes each.
fn parse(data: &[u8]) -> Option<NewInitFork> {
    let number = |offset: usize| {
        Some(u32::from_le_bytes(
            data.get(offset..offset + 4)?.try_into().ok()?,
        ))
    };
    (number(12)? == INIT_FORK).then_some(NewInitFork {
        tablespace: number(0)?,
        database: number(4)?,
        number: number(8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_wal::{TEST_SEGMENT, TEST_START, write_wal};

    fn created(numbers: [u32; 4]) -> (RecordKind, Vec<u8>) {
        let data = numbers.map(u32::to_le_bytes);
        (CREATE, [&[255, 16][..], data.as_flattened()].concat())
    }

    #[test]
    fn init_forks_are_found_and_other_forks_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let records = [
            created([1663, 5, 100, 0]),
            created([1663, 5, 101, 3]),
            created([16400, 5, 102, 3]),
        ];
        let end = write_wal(dir.path(), &records);
        let segments = WalSegments {
            files: &dir.path().to_owned(),
            names: &[vec!["0".to_owned()]],
            bytes: TEST_SEGMENT,
        };
        let found = new_init_forks(&segments, TEST_START, end).unwrap();
        let places = found
            .iter()
            .map(|fork| (fork.number, fork.directory("PG_15_1")));
        let wanted = [
            (101, "base/5".to_owned()),
            (102, "pg_tblspc/16400/PG_15_1/5".to_owned()),
        ];
        assert_eq!(places.collect::<Vec<_>>(), wanted);
        let fork = *found.first().unwrap();
        let other = ["101", "101.1", "101_fsm", "101_vm"];
        assert!(other.iter().all(|name| fork.is_other_fork(name.as_bytes())));
        let not = ["101_init", "1011", "102", "t3_101", "101.x"];
        assert!(!not.iter().any(|name| fork.is_other_fork(name.as_bytes())));
        assert!(fork.is_init(b"101_init") && !fork.is_init(b"101"));
    }
}
