//! Going through all that is below a directory, each directory before and behind what is in it, however deep that is: with few
//! descriptors, and no stack. No link is followed.

use super::dir::{self, FileKind, Stat};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Directories that are open at the same time.
const OPEN: usize = 64;

/// What is done on the way.
pub trait Visit {
    /// What ends the way.
    type Error;

    /// What is called `name` in `dir`; not called for what is gone. Whether to go into it is asked of directories.
    ///
    /// # Errors
    /// Whatever ends the way.
    fn meet(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        stat: &Stat,
    ) -> Result<bool, Self::Error>;

    /// The directory called `name` in `dir`, which was gone through.
    ///
    /// # Errors
    /// Whatever ends the way.
    fn leave(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<(), Self::Error>;

    /// The object at `path` cannot be looked at, or it is a directory that was `met` and cannot be opened. The way goes on
    /// behind it.
    ///
    /// # Errors
    /// Whatever ends the way; unless told otherwise, what the system says.
    fn shut(
        &mut self,
        _name: &[u8],
        path: &[u8],
        _met: bool,
        error: io::Error,
    ) -> Result<(), Self::Error> {
        Err(self.failed(path, error))
    }

    /// The error for what the system says of `path`.
    fn failed(&self, path: &[u8], error: io::Error) -> Self::Error;
}

/// Go through what is called `name` in `dir`, and all below it; its path is `path`.
///
/// # Errors
/// Those of `visit`.
pub fn descend<V: Visit>(
    dir: BorrowedFd<'_>,
    name: &[u8],
    path: &[u8],
    visit: &mut V,
) -> Result<(), V::Error> {
    let mut levels: Vec<DescendLevel> = enter(dir, name, path, visit)?.into_iter().collect();
    let mut path = path.to_vec();
    while let Some(level) = levels.last_mut() {
        if let (Some(name), Some(dir)) = (level.names.pop(), &level.dir) {
            let len = path.len();
            path.push(b'/');
            path.extend(&name);
            match enter(dir.as_fd(), &name, &path, visit)? {
                Some(below) => levels.push(below),
                None => path.truncate(len),
            }
            if let Some(far) = levels.len().checked_sub(OPEN + 1) {
                levels[far].dir = None;
            }
            continue;
        }
        let left = levels.pop();
        match (levels.last_mut(), &left) {
            (
                Some(above),
                Some(DescendLevel {
                    name,
                    dir: Some(below),
                    ..
                }),
            ) => {
                let above = above.open_from(below).map_err(|e| visit.failed(&path, e))?;
                visit.leave(above.as_fd(), name, &path)?;
                path.truncate(path.len() - name.len() - 1);
            }
            _ => visit.leave(dir, name, &path)?,
        }
    }
    Ok(())
}

/// Meet one thing; the directory, if it is one to be gone into.
fn enter<V: Visit>(
    dir: BorrowedFd<'_>,
    name: &[u8],
    path: &[u8],
    visit: &mut V,
) -> Result<Option<DescendLevel>, V::Error> {
    let stat = match dir::stat(dir, name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return visit.shut(name, path, false, e).map(|()| None),
        Ok(stat) => stat,
    };
    if !visit.meet(dir, name, path, &stat)? || stat.kind != FileKind::Directory {
        return Ok(None);
    }
    let open = || {
        let below = dir::open_dir(dir, name)?;
        let names = dir::read_dir(&below, &mut Vec::new())?
            .into_iter()
            .map(|name| name.bytes)
            .collect();
        Ok(DescendLevel {
            name: name.to_vec(),
            names,
            object: (stat.dev, stat.inode),
            dir: Some(below),
        })
    };
    match open() {
        Ok(level) => Ok(Some(level)),
        Err(e) => visit.shut(name, path, true, e).map(|()| None),
    }
}

/// A directory that is gone through.
struct DescendLevel {
    name: Vec<u8>,
    /// What is still to be met.
    names: Vec<Vec<u8>>,
    /// Device and inode.
    object: (u64, u64),
    /// Of those far above the one at hand, closed.
    dir: Option<OwnedFd>,
}

impl DescendLevel {
    /// Its descriptor; if it was closed, by way of `below`. Somebody may have moved that elsewhere.
    fn open_from(&mut self, below: &OwnedFd) -> io::Result<&OwnedFd> {
        let dir = match self.dir.take() {
            Some(dir) => dir,
            None => {
                let dir = dir::open_above(below)?;
                let found = dir::stat_fd(&dir)?;
                if (found.dev, found.inode) != self.object {
                    return Err(io::Error::other("it was moved meanwhile"));
                }
                dir
            }
        };
        Ok(self.dir.insert(dir))
    }
}
