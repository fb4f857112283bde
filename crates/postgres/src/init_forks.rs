//! Init forks that the server creates while a backup runs.
//!
//! An index of an unlogged table has a main fork while it is built, and gets its init fork at the end. So a directory may have been
//! listed in between: the main fork is stored, and the init fork comes by WAL. At the end of recovery the server copies init forks to
//! main forks, finds that file there, and does not start ("File exists"). But at the beginning of recovery it removes the main forks of
//! relations that have an init fork. So the init forks that exist when the backup ends are stored as late files: then the main forks are
//! removed, also where a stock tar extracts the backup.
//!
//! An index that is still being built when the backup ends is not known here: a recovery that goes on to its end has the same fault, as
//! that of a `pg_basebackup`. A second start succeeds, because the init fork is there then.

use super::{
    data_dir::{DataDir, or_empty},
    relation::{self, RelationFork},
};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, split},
    error::Result,
};
use fullbore_platform::{dir::DirName, queue::Locked};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Mutex,
};

/// Init forks have a page or two of at most 32 KiB.
const MOST_BYTES: u64 = 1 << 20;
/// Directories that are listed at once. Each question takes a round trip, and the names of all are in memory.
const LISTED_AT_ONCE: usize = 32;

/// The directories of databases that were listed, and the init forks that were listed in them. Memory grows with their number.
#[derive(Default)]
pub(super) struct InitForks(Mutex<HashMap<EntryPath, ListedForks>>);

/// File numbers of the relations whose init fork was listed.
type ListedForks = HashSet<u32>;

/// Init forks that were not listed, with their content.
pub(super) type NewForks = BTreeMap<EntryPath, Vec<u8>>;

impl InitForks {
    /// Notes an entry of a scan. A directory comes before its files.
    pub(super) fn note(&self, entry: &Entry) {
        match entry.kind {
            EntryKind::Directory if is_database(&entry.path) => {
                self.0.locked().insert(entry.path.clone(), HashSet::new());
            }
            EntryKind::File { .. } if entry.path.ends_with(b"_init") => self.note_fork(&entry.path),
            _ => {}
        }
    }

    fn note_fork(&self, path: &[u8]) {
        let (dir, name) = split(path);
        if let Some(number) = init_number(name)
            && let Some(database) = self.0.locked().get_mut(dir)
        {
            database.insert(number);
        }
    }

    /// Adds the init forks that exist now and were not listed, to those that existed before.
    ///
    /// One that is gone by now stays: its removal may not be in the WAL of the backup. Its content need not be right, because WAL
    /// repairs it.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn look(&self, data: &dyn DataDir, forks: &mut NewForks) -> Result<()> {
        let databases = self.0.locked();
        let databases: Vec<(&EntryPath, &ListedForks)> = databases.iter().collect();
        for some in databases.chunks(LISTED_AT_ONCE) {
            let paths: Vec<&[u8]> = some.iter().map(|(path, _)| &path[..]).collect();
            for ((path, listed), found) in some.iter().zip(data.names_of_all(&paths)?) {
                for name in new_names(found, listed) {
                    let fork = [path, &b"/"[..], &name].concat();
                    let content = or_empty(data.read_small(&fork, MOST_BYTES))?;
                    forks.insert(fork, content);
                }
            }
        }
        Ok(())
    }
}

/// Returns the names of init forks in a directory that were not listed.
fn new_names(found: Vec<DirName>, listed: &ListedForks) -> BTreeSet<Vec<u8>> {
    let is_new = |name: &Vec<u8>| init_number(name).is_some_and(|n| !listed.contains(&n));
    let names = found.into_iter().map(|name| name.bytes);
    names.filter(is_new).collect()
}

/// Returns whether relations are in the directory at `path`.
fn is_database(path: &[u8]) -> bool {
    relation::database_of(&[path, b"/1"].concat()).is_some()
}

/// Returns the file number of the relation whose init fork has this name.
fn init_number(name: &[u8]) -> Option<u32> {
    let file = relation::parse(name)?;
    (file.fork == RelationFork::Init && file.segment == 0).then_some(file.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_forks_are_those_of_the_first_segment_in_directories_of_databases() {
        assert_eq!(init_number(b"16384_init"), Some(16384));
        for name in [
            "16384",
            "16384_init.1",
            "16384_fsm",
            "x_init",
            "t3_16384_init",
        ] {
            assert_eq!(init_number(name.as_bytes()), None, "{name}");
        }
        assert!(is_database(b"base/5") && is_database(b"pg_tblspc/16400/PG_15_202209061/5"));
        assert!(!is_database(b"base") && !is_database(b"global") && !is_database(b"pg_wal"));
    }
}
