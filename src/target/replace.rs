//! What is new is made beside what it replaces, and takes that one's place when it is right: what cannot be made, is found
//! damaged or is cut off costs nothing of what is there.
//!
//! A file has no name until then, where the system knows such files, so that nothing of it is left if the run is killed. Where
//! there is no room for both, what is there is removed first, if that makes enough: nobody could restore into a disk that is full
//! otherwise.

use super::{
    metadata::Before,
    probe::{can_replace, name_aside, remove_own},
    tree::TargetTree,
    writer::{TargetWriter, set_length, write_data},
};
use crate::{
    error::{ErrorKind, Result},
    format::entry::{Entry, EntryPath},
    platform::{
        Tricks,
        dir::{self, FileKind},
        write,
    },
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// A file that was made. Dropped before it was placed, it is removed.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) file: File,
    name: ReplaceName,
    is_placed: AtomicBool,
    tree: Arc<TargetTree>,
    path: EntryPath,
}

/// What a new file is called.
#[derive(Debug)]
enum ReplaceName {
    /// As it is to be: there was nothing of this name.
    Own,
    /// Otherwise: it stands beside what it replaces.
    Aside(Vec<u8>),
    /// Not yet at all.
    None,
}

impl NewFile {
    /// Does it stand where it belongs, so that nothing else does?
    pub(crate) fn has_its_name(&self) -> bool {
        matches!(self.name, ReplaceName::Own)
    }

    /// Its content and metadata are right: put it where it belongs.
    ///
    /// # Errors
    /// The system's, with the path.
    pub(crate) fn place(&self, writer: &mut TargetWriter) -> Result<()> {
        if !self.has_its_name() {
            let tree = &self.tree;
            let (dir, name) = writer.enter(&self.path)?;
            let dir = dir.as_fd();
            let put = || tree.opening_up(&self.path, dir, || self.put(dir, name));
            tree.making(&self.path, dir, name, put)
                .map_err(|e| tree.error("replace", &self.path, e))?;
        }
        self.is_placed.store(true, Relaxed);
        Ok(())
    }

    fn put(&self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        let aside = match &self.name {
            ReplaceName::Aside(aside) => return self.tree.exchange(dir, aside, name),
            _ => name_aside(),
        };
        write::give_name(&self.file, dir, &aside)?;
        self.tree
            .exchange(dir, &aside, name)
            .inspect_err(|_| remove_own(dir, &aside, &self.tree.notes))
    }

    /// Have room for all of it; so that nothing else takes it if that is `scarce`.
    fn reserve(&self, entry: &Entry, scarce: bool) -> io::Result<()> {
        let (size, tricks) = (entry.size(), self.tree.options.tricks);
        if write::compresses(&self.file)? {
            // It may take less than its size. But what it replaces goes first where there would be no room for both without that.
            return if self.has_its_name() {
                Ok(())
            } else {
                write::check_space(&self.file, entry.data_len())
            };
        }
        match entry.is_sparse() {
            true if scarce => write::check_space(&self.file, entry.data_len()),
            true => Ok(()),
            false if scarce && size > 0 && tricks == Tricks::Auto => {
                write::allocate(&self.file, size).map(drop)
            }
            false => write::preallocate(&self.file, size, tricks).map(drop),
        }
    }
}

impl Drop for NewFile {
    /// What cannot be removed has mode 0600 and the time of now; the caller names it as damaged.
    fn drop(&mut self) {
        if *self.is_placed.get_mut() {
            return;
        }
        let mut writer = TargetWriter::new(&self.tree);
        let _ = match &self.name {
            ReplaceName::None => Ok(()),
            ReplaceName::Own => writer.remove(&self.path),
            ReplaceName::Aside(aside) => writer
                .enter(&self.path)
                .map(|(dir, _)| remove_own(dir, aside, &self.tree.notes)),
        };
    }
}

impl TargetWriter {
    /// Create a regular file with all of its content: the data of its runs, one after the other.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn file(&mut self, entry: &Entry, data: &[u8]) -> Result<()> {
        let mode = self.creation_mode(entry);
        let made = self.create(entry, mode)?;
        match self.fill(&made, entry, mode, data) {
            Err(e) if e.kind == ErrorKind::Full && self.fits_without(&made, entry) => {
                let made = self.create_instead(made, entry, mode)?;
                self.fill(&made, entry, mode, data)
            }
            done => done,
        }
    }

    fn fill(&mut self, made: &NewFile, entry: &Entry, mode: u32, data: &[u8]) -> Result<()> {
        let written =
            write_data(&made.file, entry, 0, data).and_then(|()| set_length(&made.file, entry));
        written.map_err(|e| self.tree.error("write", &entry.path, e))?;
        self.dress(made.file.as_fd(), entry, Before::Made(mode))?;
        made.place(self)
    }

    /// Create a file with this mode, empty and with room for all of its content.
    pub(crate) fn create_with_room(&mut self, entry: &Entry, mode: u32) -> Result<NewFile> {
        let made = self.create(entry, mode)?;
        let (made, reserved) = match made.reserve(entry, !made.has_its_name()) {
            Err(e) if ErrorKind::of(&e) == ErrorKind::Full && self.fits_without(&made, entry) => {
                let made = self.create_instead(made, entry, mode)?;
                let reserved = made.reserve(entry, true);
                (made, reserved)
            }
            done => (made, done),
        };
        reserved
            .map(|()| made)
            .map_err(|e| self.tree.error("write", &entry.path, e))
    }

    /// Create it once more, and remove first what it replaces.
    fn create_instead(&mut self, made: NewFile, entry: &Entry, mode: u32) -> Result<NewFile> {
        drop(made);
        self.remove(&entry.path)?;
        self.create(entry, mode)
    }

    /// Does `made` replace something, and is there room for it where that does not take any? As far as is known: what is compressed may need less.
    fn fits_without(&mut self, made: &NewFile, entry: &Entry) -> bool {
        let bytes = |stat: dir::Stat| stat.blocks512.saturating_mul(512);
        let mut room = || {
            let (dir, name) = self.enter(&entry.path).ok()?;
            let replaced = dir::stat(dir, name)
                .ok()
                .filter(|stat| stat.nlink == 1)
                .map_or(0, bytes);
            let taken = dir::stat_fd(&made.file).map_or(0, bytes);
            Some(
                write::usable_bytes(&made.file)
                    .ok()?
                    .saturating_add(taken)
                    .saturating_add(replaced),
            )
        };
        let mut fits = || {
            write::compresses(&made.file).unwrap_or(true)
                || room().is_none_or(|room| room >= entry.data_len())
        };
        !made.has_its_name() && fits()
    }

    /// Create an empty file with this mode.
    fn create(&mut self, entry: &Entry, mode: u32) -> Result<NewFile> {
        let (tree, path) = (self.tree.clone(), entry.path.clone());
        let (dir, name) = self.enter(&path)?;
        let dir = dir.as_fd();
        let create = || match write::create_file(dir, name, mode) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && tree.options.overwrite => {
                tree.create_beside(dir, name, mode)
            }
            made => Ok((made?, ReplaceName::Own)),
        };
        let created = tree.making(&path, dir, name, || tree.opening_up(&path, dir, create));
        let (fd, name) = created.map_err(|e| self.in_the_way(&path, e))?;
        Ok(NewFile {
            file: fd.into(),
            name,
            is_placed: false.into(),
            tree,
            path,
        })
    }
}

impl TargetTree {
    fn create_beside(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        mode: u32,
    ) -> io::Result<(OwnedFd, ReplaceName)> {
        can_replace(dir, &self.notes)?;
        let in_place = || Ok((write::create_file(dir, name, mode)?, ReplaceName::Own));
        // No file takes the place of a directory; one that is empty is no loss.
        if dir::stat(dir, name)?.kind == FileKind::Directory {
            write::remove_dir_at(dir, name)?;
            return in_place();
        }
        if self.options.tricks == Tricks::Auto
            && let Ok(fd) = write::create_nameless(dir, mode)
        {
            return Ok((fd, ReplaceName::None));
        }
        let aside = name_aside();
        match write::create_file(dir, &aside, mode) {
            Err(e) if ErrorKind::of(&e) == ErrorKind::Full => {
                self.clear_way(dir, name).and_then(|()| in_place())
            }
            made => Ok((made?, ReplaceName::Aside(aside))),
        }
    }

    /// Do `create`, which makes what is called as it is told; if something stands in the way and may be replaced, do it under another
    /// name and put it in that place.
    pub(crate) fn replacing<T>(
        &self,
        path: &[u8],
        dir: BorrowedFd<'_>,
        name: &[u8],
        create: impl Fn(BorrowedFd<'_>, &[u8]) -> io::Result<T>,
    ) -> io::Result<T> {
        let once = || match create(dir, name) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && self.options.overwrite => {
                can_replace(dir, &self.notes)?;
                let aside = name_aside();
                let made = match create(dir, &aside) {
                    // What is there may be all that is in its way.
                    Err(e) if ErrorKind::of(&e) == ErrorKind::Full => {
                        return self.clear_way(dir, name).and_then(|()| create(dir, name));
                    }
                    other => other?,
                };
                let placed = self.exchange(dir, &aside, name);
                placed
                    .inspect_err(|_| self.remove_aside(dir, &aside))
                    .map(|()| made)
            }
            other => other,
        };
        self.making(path, dir, name, || self.opening_up(path, dir, once))
    }

    /// Nothing but an empty directory takes the place of a directory, and no directory that of anything else. After any other
    /// failure what is there stays.
    fn exchange(&self, dir: BorrowedFd<'_>, aside: &[u8], name: &[u8]) -> io::Result<()> {
        use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory};
        match write::rename_at(dir, aside, dir, name) {
            Err(e)
                if matches!(
                    e.kind(),
                    AlreadyExists | DirectoryNotEmpty | IsADirectory | NotADirectory
                ) =>
            {
                self.clear_way(dir, name)
                    .and_then(|()| write::rename_at(dir, aside, dir, name))
            }
            renamed => renamed,
        }
    }

    /// Remove what did not take its place: a directory that is empty, or anything else.
    fn remove_aside(&self, dir: BorrowedFd<'_>, aside: &[u8]) {
        if write::remove_dir_at(dir, aside).is_err() {
            remove_own(dir, aside, &self.notes);
        }
    }

    /// Remove whatever is called `name`, if it may be replaced.
    pub(crate) fn clear_way(&self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        match write::unlink_at(dir, name) {
            Err(e) if e.kind() == io::ErrorKind::IsADirectory => write::remove_dir_at(dir, name),
            other => other,
        }
    }
}
