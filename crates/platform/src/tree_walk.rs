//! Walks everything below a directory and visits each directory before and after its content, at
//! any depth. The walk uses few descriptors and does not recurse. No link is followed.

use super::dir::{self, FileKind, Stat};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Maximum number of directories that are open at the same time.
const OPEN: usize = 64;

/// The actions of a walk.
pub trait Visit {
    /// The error that ends the walk.
    type Error;

    /// Visits the object `name` in `dir`; not called for objects that are gone. For a directory the
    /// result tells whether to walk its content.
    ///
    /// # Errors
    /// Any error ends the walk.
    fn meet(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        stat: &Stat,
    ) -> Result<bool, Self::Error>;

    /// Visits the directory `name` in `dir` again, after its content.
    ///
    /// # Errors
    /// Any error ends the walk.
    fn leave(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<(), Self::Error>;

    /// Reports that the object at `path` has no readable metadata, or that it is a directory that
    /// was `met` and cannot be opened. The walk continues after it.
    ///
    /// # Errors
    /// Any error ends the walk. The default returns the system's error.
    fn shut(
        &mut self,
        _name: &[u8],
        path: &[u8],
        _met: bool,
        error: io::Error,
    ) -> Result<(), Self::Error> {
        Err(self.failed(path, error))
    }

    /// Returns the error for a failed system call on `path`.
    fn failed(&self, path: &[u8], error: io::Error) -> Self::Error;
}

/// Walks the object `name` in `dir`, whose path is `path`, and everything below it.
///
/// # Errors
/// Those of `visit`.
pub fn descend<V: Visit>(
    dir: BorrowedFd<'_>,
    name: &[u8],
    path: &[u8],
    visit: &mut V,
) -> Result<(), V::Error> {
    let top = dir;
    let first = enter(top, name, path, visit)?;
    let mut levels: Vec<DescendLevel> = first.into_iter().collect();
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
            // A deep tree would take a descriptor for each level. Those far above are closed and
            // opened again on the way back.
            close_far_level(&mut levels);
        } else if let Some(left) = levels.pop() {
            let above = levels.last_mut();
            leave_level(top, above, &left, name, &mut path, visit)?;
        }
    }
    Ok(())
}

/// Closes the directory that is [`OPEN`] levels above the current one.
fn close_far_level(levels: &mut [DescendLevel]) {
    if let Some(far) = levels.len().checked_sub(OPEN + 1) {
        levels[far].dir = None;
    }
}

/// Visits a directory after its content. `above` is its parent, or `None` for the first directory,
/// which is `name` in `top`.
fn leave_level<V: Visit>(
    top: BorrowedFd<'_>,
    above: Option<&mut DescendLevel>,
    left: &DescendLevel,
    name: &[u8],
    path: &mut Vec<u8>,
    visit: &mut V,
) -> Result<(), V::Error> {
    let (Some(above), Some(dir)) = (above, &left.dir) else {
        return visit.leave(top, name, path);
    };
    let above = above.open_from(dir).map_err(|e| visit.failed(path, e))?;
    visit.leave(above.as_fd(), &left.name, path)?;
    path.truncate(path.len() - left.name.len() - 1);
    Ok(())
}

/// Visits one object. Returns the directory if its content is to be walked.
fn enter<V: Visit>(
    dir: BorrowedFd<'_>,
    name: &[u8],
    path: &[u8],
    visit: &mut V,
) -> Result<Option<DescendLevel>, V::Error> {
    // Something that is gone by now needs no visit: programs delete files while a tree is walked.
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

/// A directory on the current path of the walk.
struct DescendLevel {
    name: Vec<u8>,
    /// Names that were not visited yet.
    names: Vec<Vec<u8>>,
    /// Device and inode.
    object: (u64, u64),
    /// Closed for directories far above the current one.
    dir: Option<OwnedFd>,
}

impl DescendLevel {
    /// Returns the descriptor. If it was closed, opens the parent of `below` and checks that it is
    /// the same directory, because `below` may have been moved.
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
