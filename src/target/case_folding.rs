//! Where the file system takes several names for one, as those without upper and lower case do: what a restore has made
//! must not be replaced by it, or entered, under another name.
//!
//! Whether a target is such a place is found out once, by a file with a name of both cases. Only there it is remembered what was
//! made: by its name without case, which some file systems change, and by its inode number, which others change. A directory
//! that differs in this from the target it is in, as ext4 may have it, is not known.

use crate::platform::dir::{self, FileKind, Stat};
use std::{
    collections::{HashSet, hash_map::DefaultHasher},
    fmt,
    hash::{Hash, Hasher},
    io,
    os::fd::AsFd,
};

/// What a restore has made or taken as it was, as hashes: about 60 bytes for each.
#[derive(Debug, Default)]
pub(crate) struct MadeNames {
    paths: HashSet<u64>,
    folded: HashSet<u64>,
    inodes: HashSet<(u64, u64)>,
}

/// Why something is not made.
#[derive(Debug)]
struct Taken;

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the file system takes its name for that of something else in the backup")
    }
}

impl std::error::Error for Taken {}

/// What stands at a name was made under another one.
pub(crate) fn taken() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, Taken)
}

/// Is it the error that says so?
pub fn is_taken(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Taken>())
}

impl MadeNames {
    /// What stands at `path` was made, or may stay.
    pub(crate) fn note(&mut self, path: &[u8], stat: &Stat) {
        self.paths.insert(hash(path));
        self.folded.insert(hash(&fold(path)));
        self.inodes.insert((stat.dev, stat.inode));
    }

    /// This may be there no more, and stands at no path that was made: another of its names may be left.
    pub(crate) fn forget(&mut self, stat: &Stat) {
        self.inodes.remove(&(stat.dev, stat.inode));
    }

    /// Was something made at exactly this path?
    pub(crate) fn has(&self, path: &[u8]) -> bool {
        self.paths.contains(&hash(path))
    }

    /// Was what stands at `path` made under another name?
    pub(crate) fn is_taken(&self, path: &[u8], stat: &Stat) -> bool {
        // A file of several names that was there before may be right under all of them.
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

/// A path without case, and without what FAT drops at the end of a name. Only asked of names of which the file system says
/// that something stands there, so it may be too much.
fn fold(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/').map(|name| {
        let text = String::from_utf8_lossy(name);
        text.trim_end_matches(['.', ' '])
            .to_uppercase()
            .to_lowercase()
    });
    names.collect::<Vec<_>>().join("/").into_bytes()
}

/// Does the file system take names of another case for the same? There is a file of this name.
pub(crate) fn folds(dir: impl AsFd, name: &[u8]) -> bool {
    dir::stat(dir, &name.to_ascii_uppercase()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{probe::trial_of_names, warnings::TargetWarnings};
    use std::fs;

    #[test]
    fn what_was_made_is_known_by_its_inode_or_its_name_without_case() {
        let dir = tempfile::tempdir().unwrap();
        let stat = |name: &str| {
            fs::write(dir.path().join(name), "").unwrap();
            dir::stat(fs::File::open(dir.path()).unwrap(), name.as_bytes()).unwrap()
        };
        let (one, two) = (stat("one"), stat("two"));
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
    fn whether_names_are_folded_is_found_out_without_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        let fd = fs::File::open(dir.path()).unwrap();
        let before = dir::stat_fd(&fd).unwrap().mtime;
        fs::write(dir.path().join("here"), "").unwrap();
        let is_so = dir.path().join("HERE").exists();
        let notes = TargetWarnings::default();
        let found = trial_of_names(&fd, &notes, |_, name| folds(&fd, name));
        assert_eq!((found, notes.lines()), (Some(is_so), vec![]));
        fs::remove_file(dir.path().join("here")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(dir::stat_fd(&fd).unwrap().mtime >= before);
    }
}
