//! Protects restored objects on file systems that treat several names as one, such as
//! case-insensitive ones. A restore must not replace or enter an object that it created under
//! another name.
//!
//! A test file whose name has both cases shows whether a target is such a file system. Only there
//! the created objects are recorded: by case-folded path, because some file systems change names,
//! and by inode number, because others change these. A directory with a different rule than the
//! target around it, as ext4 allows, is not detected.

use fullbore_platform::dir::{self, FileKind, Stat};
use std::{
    collections::{HashSet, hash_map::DefaultHasher},
    fmt,
    hash::{Hash, Hasher},
    io,
    os::fd::AsFd,
};

/// Hashes of the paths and inodes that a restore created or kept: about 60 bytes for each.
#[derive(Debug, Default)]
pub(crate) struct MadeNames {
    paths: HashSet<u64>,
    folded: HashSet<u64>,
    inodes: HashSet<(u64, u64)>,
}

/// The reason why an object is not created.
#[derive(Debug)]
struct Taken;

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "on this file system its name is the same as that of another file in the backup",
        )
    }
}

impl std::error::Error for Taken {}

/// The error for a name at which an object of another name was created.
pub(crate) fn name_taken_error() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, Taken)
}

/// Returns whether this is the error of `name_taken_error`.
pub fn is_name_taken(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Taken>())
}

impl MadeNames {
    /// Records that the object at `path` was created, or is kept.
    pub(crate) fn note(&mut self, path: &[u8], stat: &Stat) {
        self.paths.insert(hash(path));
        self.folded.insert(hash(&fold(path)));
        self.inodes.insert((stat.dev, stat.inode));
    }

    /// Forgets the inode of an object that may have been removed and whose path was not created by
    /// this restore. The file may still exist under another name.
    pub(crate) fn forget(&mut self, stat: &Stat) {
        self.inodes.remove(&(stat.dev, stat.inode));
    }

    /// Returns whether an object was created at exactly this path.
    pub(crate) fn has(&self, path: &[u8]) -> bool {
        self.paths.contains(&hash(path))
    }

    /// Returns whether the object at `path` was created under another name.
    pub(crate) fn is_taken(&self, path: &[u8], stat: &Stat) -> bool {
        // An older file with several names may be right under all of them.
        let is_alone = stat.nlink == 1 || stat.kind == FileKind::Directory;
        let is_ours = is_alone && self.inodes.contains(&(stat.dev, stat.inode));
        !self.has(path) && (is_ours || self.folded.contains(&hash(&fold(path))))
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Folds the case of a path and drops the characters that FAT drops at the end of a name. It may
/// fold too much, because it is only used for names that exist according to the file system.
fn fold(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/').map(|name| {
        let text = String::from_utf8_lossy(name);
        text.trim_end_matches(['.', ' '])
            .to_uppercase()
            .to_lowercase()
    });
    names.collect::<Vec<_>>().join("/").into_bytes()
}

/// Returns whether the file system ignores case. A file with this name exists.
pub(crate) fn ignores_case(dir: impl AsFd, name: &[u8]) -> bool {
    dir::stat(dir, &name.to_ascii_uppercase()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::{probe::with_named_test_file, warnings::TargetWarnings};
    use std::fs;

    #[test]
    fn created_objects_are_found_by_inode_and_by_folded_name() {
        let dir = tempfile::tempdir().unwrap();
        let stat = |name: &str| {
            fs::write(dir.path().join(name), "").unwrap();
            dir::stat(fs::File::open(dir.path()).unwrap(), name.as_bytes()).unwrap()
        };
        let one = stat("one");
        let two = stat("two");
        let mut made = MadeNames::default();
        made.note("Stra\u{df}e/A".as_bytes(), &one);
        for path in [
            "STRASSE/a",
            "stra\u{df}e./a ",
            "a name that only the file system takes for it",
        ] {
            assert!(made.is_taken(path.as_bytes(), &one), "{path}");
        }
        assert!(
            !made.is_taken("Stra\u{df}e/A".as_bytes(), &one)
                && made.is_taken("stra\u{df}e/A".as_bytes(), &two)
        );
        assert!(!made.is_taken(b"b", &two) && !made.is_taken(b"A", &Stat { nlink: 2, ..one }));
    }

    #[test]
    fn the_test_for_case_folding_leaves_no_file_behind() {
        let dir = tempfile::tempdir().unwrap();
        let fd = fs::File::open(dir.path()).unwrap();
        let before = dir::stat_fd(&fd).unwrap().mtime;
        fs::write(dir.path().join("here"), "").unwrap();
        let is_so = dir.path().join("HERE").exists();
        let notes = TargetWarnings::default();
        let found = with_named_test_file(&fd, &notes, |_, name| ignores_case(&fd, name));
        assert_eq!((found, notes.lines()), (Some(is_so), vec![]));
        fs::remove_file(dir.path().join("here")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(dir::stat_fd(&fd).unwrap().mtime >= before);
    }
}
