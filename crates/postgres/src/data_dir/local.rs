//! A data directory on this host.

use super::{DataDir, FileIdentity, FileRange, FoundFile, RangeReceiver};
use crate::trees;
use fullbore_format::{
    entry::{Time, split},
    error::{Error, Result, quoted},
    root::Tablespace,
};
use fullbore_platform::{
    dir::{self, DirName, FileKind},
    read::{self, PageCacheUse},
    safe_file,
};
use fullbore_tree::read::SourceTree;
use std::{
    ffi::OsStr,
    fmt, fs, io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

/// A data directory on this host.
pub struct LocalDir {
    path: PathBuf,
    /// Its files as they are backed up; empty before they are opened. Paths are then resolved below
    /// the directories that were opened, and no link is followed.
    trees: Vec<Arc<SourceTree>>,
}

impl LocalDir {
    /// The data directory at `path`.
    pub fn new(path: &Path) -> Self {
        Self::of_trees(path, Vec::new())
    }

    /// The data directory at `path`, of which these trees are open.
    pub fn of_trees(path: &Path, trees: Vec<Arc<SourceTree>>) -> Self {
        Self {
            path: path.to_owned(),
            trees,
        }
    }

    fn place(&self, path: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(path))
    }

    /// Opens a file or a directory.
    fn open(&self, path: &[u8]) -> io::Result<OwnedFd> {
        match self.trees.iter().max_by_key(|tree| tree.top_bytes(path)) {
            Some(tree) => tree.open(path),
            None => safe_file::open(&self.place(path)).map(OwnedFd::from),
        }
    }

    /// Opens a regular file; `None` if there is none.
    fn open_file(&self, path: &[u8]) -> io::Result<Option<OwnedFd>> {
        let opened = self.open(path).and_then(|fd| Ok((dir::stat_fd(&fd)?, fd)));
        match opened {
            Ok((stat, fd)) => Ok((stat.kind == FileKind::File).then_some(fd)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn find(&self, path: &[u8]) -> io::Result<Option<FoundFile>> {
        match fs::metadata(self.place(path)) {
            Ok(facts) => Ok(Some(FoundFile {
                name: split(path).1.to_vec(),
                kind: if facts.is_dir() {
                    FileKind::Directory
                } else {
                    FileKind::File
                },
                size: facts.len(),
                mtime: Time {
                    seconds: facts.mtime(),
                    nanos: facts.mtime_nsec() as u32,
                },
            })),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn not_listed(dir: &[u8], error: io::Error) -> Error {
    Error::io(format!("could not list {}", quoted(dir)), error)
}

fn not_read(path: &[u8], error: io::Error) -> Error {
    Error::io(format!("could not read {}", quoted(path)), error)
}

impl fmt::Debug for LocalDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalDir({:?})", self.path)
    }
}

impl DataDir for LocalDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn list(&self, dir: &[u8]) -> Result<Vec<FoundFile>> {
        let mut found = Vec::new();
        for name in self.names(dir)? {
            let path = match dir {
                b"" => name.bytes,
                _ => [dir, b"/", &name.bytes].concat(),
            };
            found.extend(self.find(&path).map_err(|e| not_read(&path, e))?);
        }
        Ok(found)
    }

    fn names(&self, dir: &[u8]) -> Result<Vec<DirName>> {
        let opened = match self.trees[..] {
            [] => dir::open_root(&self.place(dir)),
            _ => self.open(dir),
        };
        let names = opened.and_then(|open| dir::read_dir(open, &mut Vec::new()));
        names.map_err(|error| not_listed(dir, error))
    }

    fn stat(&self, paths: &[&[u8]]) -> Result<Vec<Option<FoundFile>>> {
        let find = |path: &&[u8]| self.find(path).map_err(|error| not_read(path, error));
        paths.iter().map(find).collect()
    }

    fn read(&self, ranges: &[FileRange<'_>], each: RangeReceiver<'_>) -> Result<()> {
        let mut open: Option<(&[u8], Option<OwnedFd>)> = None;
        let mut bytes = Vec::new();
        for range in ranges {
            let failed = |error| not_read(range.path, error);
            let file = match open.take() {
                Some((path, file)) if path == range.path => file,
                _ => self.open_file(range.path).map_err(failed)?,
            };
            bytes.clear();
            if let Some(file) = &file {
                let len = range.len as usize;
                read::read_full(file, &mut bytes, range.offset, len, PageCacheUse::Keep)
                    .map_err(failed)?;
            }
            each(file.is_some().then_some(&bytes));
            open = Some((range.path, file));
        }
        Ok(())
    }

    fn tablespaces(&self) -> Result<Vec<Tablespace>> {
        trees::linked_tablespaces(&self.path)
    }

    fn identity(&self, path: &[u8]) -> Result<Option<FileIdentity>> {
        match fs::metadata(self.place(path)) {
            Ok(facts) => Ok(Some(FileIdentity {
                inode: facts.ino(),
                ctime: format!("{}.{:09}", facts.ctime(), facts.ctime_nsec()),
            })),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(not_read(path, error)),
        }
    }
}
