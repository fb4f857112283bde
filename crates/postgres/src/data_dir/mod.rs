//! The files of a cluster, wherever they are: on this host, or at a server that is only asked.
//!
//! Paths are those of the backup: relative to the data directory, with the content of a tablespace
//! below `pg_tblspc/OID`. Which files belong to a backup is decided by `layout`, and pages are
//! checked by `page_stage`, for all members alike.

mod fetch_queue;
mod fetched_slices;
pub mod local;
pub mod remote_tree;
mod row_reader;
pub mod sql;

use fullbore_format::{
    entry::Time,
    error::{Error, ErrorKind, Result, quoted},
    root::Tablespace,
};
use fullbore_pipeline::{frame::Scanned, source::Source};
use fullbore_platform::dir::{DirName, FileKind};
use fullbore_tree::read::SourceTree;
use std::{fmt, io, path::Path};

/// Bytes that are read as one row.
///
/// Measured with one statement of many rows: rows of 32 to 256 KiB cost a server 0.4 to 0.8 s of
/// processor time a GB, rows of 8 KiB 1.3 s, and one large row a statement 1.6 to 2.0 s.
pub const ROW_BYTES: u32 = 64 << 10;

/// Limit for small text files, as that of [`read_small_text`](super::stopped::read_small_text).
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// The files of a cluster.
pub trait DataDir: fmt::Debug + Send + Sync {
    /// The path of the data directory on its host, for messages. Empty if it is not known.
    fn path(&self) -> &Path;

    /// Lists a directory with the facts of its files, in any order. A directory that is not there
    /// is empty or [`ErrorKind::NotFound`].
    ///
    /// # Errors
    /// The system's or the server's.
    fn list(&self, dir: &[u8]) -> Result<Vec<FoundFile>>;

    /// Returns the facts of these files; `None` for one that is not there.
    ///
    /// # Errors
    /// The system's or the server's.
    fn stat(&self, paths: &[&[u8]]) -> Result<Vec<Option<FoundFile>>>;

    /// Reads ranges of files, and calls `each` for every range in order: with its bytes, which are
    /// fewer at the end of the file, or with `None` if the file is not there. Safe from any thread.
    ///
    /// # Errors
    /// The system's or the server's.
    fn read(&self, ranges: &[FileRange<'_>], each: RangeReceiver<'_>) -> Result<()>;

    /// Returns the tablespaces that links in `pg_tblspc` lead to, sorted by OID, without names.
    ///
    /// # Errors
    /// The system's or the server's.
    fn tablespaces(&self) -> Result<Vec<Tablespace>>;

    /// Returns what tells this file from another one of the same name; `None` if there is none.
    ///
    /// # Errors
    /// The system's or the server's.
    fn identity(&self, path: &[u8]) -> Result<Option<FileIdentity>>;

    /// Returns how many threads may read ahead at the same time, while others still get answers. Zero
    /// if reading ahead gains nothing.
    fn fetchers(&self) -> usize {
        0
    }

    /// Lists the names in a directory, in any order.
    ///
    /// # Errors
    /// As [`DataDir::list`].
    fn names(&self, dir: &[u8]) -> Result<Vec<DirName>> {
        let found = self.list(dir)?;
        Ok(found.into_iter().map(FoundFile::into_name).collect())
    }

    /// Lists the names in several directories. One that is not there is empty.
    ///
    /// # Errors
    /// As [`DataDir::list`].
    fn names_of_all(&self, dirs: &[&[u8]]) -> Result<Vec<Vec<DirName>>> {
        let names = |dir: &&[u8]| or_empty(self.names(dir));
        dirs.iter().map(names).collect()
    }
}

/// Returns an empty value for what is not there.
pub(crate) fn or_empty<T: Default>(found: Result<T>) -> Result<T> {
    match found {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(T::default()),
        found => found,
    }
}

/// Receives the ranges of [`DataDir::read`].
pub type RangeReceiver<'a> = &'a mut dyn FnMut(Option<&[u8]>);

/// A range of a file, of at most [`ROW_BYTES`] if it may be read by a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange<'a> {
    /// The path of the file.
    pub path: &'a [u8],
    /// Where the range starts.
    pub offset: u64,
    /// How long it is.
    pub len: u32,
}

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundFile {
    /// Its name in its directory.
    pub name: Vec<u8>,
    /// File or directory; or a link, where those are not followed.
    pub kind: FileKind,
    /// Bytes of a file.
    pub size: u64,
    /// Last change of the content.
    pub mtime: Time,
}

/// What tells a file from another one of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileIdentity {
    /// Inode number; zero if it is not known.
    pub inode: u64,
    /// Change time (ctime), in seconds since 1970 with nine decimals.
    pub ctime: String,
}

/// The tree of a cluster's files, as a source.
pub trait DataTree: Source {
    /// Returns the entry of one file by its path.
    fn look(&self, path: &[u8]) -> Scanned;
}

impl DataTree for SourceTree {
    fn look(&self, path: &[u8]) -> Scanned {
        Self::look(self, path)
    }
}

impl FoundFile {
    fn into_name(self) -> DirName {
        DirName {
            bytes: self.name,
            kind: self.kind,
            inode: 0,
        }
    }
}

impl dyn DataDir + '_ {
    /// Reads a file of at most `most` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::Corrupt`] if it is longer; those of
    /// [`DataDir::read`].
    pub fn read_small(&self, path: &[u8], most: u64) -> Result<Vec<u8>> {
        let ranges: Vec<_> = rows(path, 0, most + 1).collect();
        let mut bytes = Vec::new();
        let mut is_there = true;
        self.read(&ranges, &mut |row| match row {
            Some(row) => bytes.extend_from_slice(row),
            None => is_there = false,
        })?;
        if !is_there {
            let missing = io::Error::from(io::ErrorKind::NotFound);
            return Err(Error::io(
                format!("could not read {}", quoted(path)),
                missing,
            ));
        }
        if bytes.len() as u64 > most {
            let message = format!("cannot read {}", quoted(path));
            return Err(Error::new(ErrorKind::Corrupt, message).because("it is too large"));
        }
        Ok(bytes)
    }

    /// Reads a file that has a few lines.
    ///
    /// # Errors
    /// Those of `read_small`.
    pub fn read_text(&self, path: &str) -> Result<String> {
        let bytes = self.read_small(path.as_bytes(), MAX_TEXT_BYTES)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns whether there is a file at `path`. False if that cannot be told.
    pub fn contains(&self, path: &str) -> bool {
        let found = self.stat(&[path.as_bytes()]);
        found.is_ok_and(|found| matches!(found[..], [Some(_)]))
    }
}

/// Cuts a range of a file into rows.
pub(crate) fn rows(path: &[u8], offset: u64, len: u64) -> impl Iterator<Item = FileRange<'_>> {
    let count = len.div_ceil(u64::from(ROW_BYTES));
    (0..count).map(move |number| {
        let position = number * u64::from(ROW_BYTES);
        FileRange {
            path,
            offset: offset + position,
            len: (len - position).min(ROW_BYTES.into()) as u32,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_cover_a_range_without_gaps() {
        let row = u64::from(ROW_BYTES);
        for len in [0, 1, row, row + 1, 3 * row] {
            let mut offset = 7;
            for range in rows(b"x", 7, len) {
                assert_eq!(range.offset, offset);
                assert!(range.len > 0 && range.len <= ROW_BYTES);
                offset += u64::from(range.len);
            }
            assert_eq!(offset, 7 + len);
        }
    }
}
