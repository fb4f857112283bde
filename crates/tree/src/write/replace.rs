//! Creates new files and other objects beside the ones that they replace, and moves them into place
//! when they are complete. A failed, damaged or interrupted restore leaves the old object as it
//! was.
//!
//! Where the system supports it, a new file has no name until it is complete, so that a killed run
//! leaves nothing behind. If the disk has no room for both files, the old one is removed first,
//! provided that this frees enough space. Otherwise a restore into a full disk would be impossible.

use super::{
    existing::Before,
    probe::{check_can_replace, remove_temporary, temporary_name},
    tree::TargetTree,
    writer::{TargetWriter, set_length, write_data},
};
use fullbore_format::{
    entry::{Entry, EntryPath},
    error::{ErrorKind, Result},
};
use fullbore_platform as platform;
use fullbore_platform::{
    dir::{self, FileKind},
    write,
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

/// A new file. Dropped before it is in place, it is removed.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) file: File,
    pub(super) place: PendingPlace,
}

/// The place that a new file gets when it is complete.
#[derive(Debug)]
pub(super) struct PendingPlace {
    pub(super) name: ReplaceName,
    pub(super) is_placed: AtomicBool,
    pub(super) tree: Arc<TargetTree>,
    pub(super) path: EntryPath,
}

/// Name of a new file while it is written.
#[derive(Debug)]
pub(super) enum ReplaceName {
    /// The final name, because it was free.
    Own,
    /// A temporary name beside the object that the file replaces.
    Aside(Vec<u8>),
    /// A name that a later run finds again: an unfinished file keeps it.
    Partial(Vec<u8>),
    /// No name yet.
    None,
}

impl NewFile {
    /// Returns whether the file has its final name, so that no older object exists there.
    pub(crate) fn has_final_name(&self) -> bool {
        matches!(self.place.name, ReplaceName::Own)
    }

    /// Moves the file, whose content and metadata are complete, to its final name.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub(crate) fn move_into_place(&self, writer: &mut TargetWriter) -> Result<()> {
        if !self.has_final_name() {
            let PendingPlace { tree, path, .. } = &self.place;
            let (dir, name) = writer.enter(path)?;
            let dir = dir.as_fd();
            tree.unless_name_taken(path, dir, name, || {
                tree.with_write_access(path, dir, || self.rename_into_place(dir, name))
            })
            .map_err(|e| tree.error("replace", path, e))?;
        }
        self.place.is_placed.store(true, Relaxed);
        Ok(())
    }

    fn rename_into_place(&self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        let tree = &self.place.tree;
        if let ReplaceName::Aside(aside) | ReplaceName::Partial(aside) = &self.place.name {
            return tree.rename_over(dir, aside, name);
        }
        // Most names are free.
        if tree.options.whole_files {
            match write::give_name(&self.file, dir, name) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                given => return given,
            }
        }
        let aside = temporary_name();
        write::give_name(&self.file, dir, &aside)?;
        tree.rename_over(dir, &aside, name)
            .inspect_err(|_| remove_temporary(dir, &aside, &tree.notes))
    }

    /// Reserves space for the whole file. With `scarce`, the space is really allocated, so that
    /// other files cannot take it.
    pub(super) fn reserve(&self, entry: &Entry, scarce: bool) -> io::Result<()> {
        let size = entry.size();
        if write::compresses(&self.file)? {
            // A compressed file may take less than its size. The check against the free space lets
            // the caller remove the old file first.
            return if self.has_final_name() {
                Ok(())
            } else {
                write::check_space(&self.file, entry.data_len())
            };
        }
        match entry.is_sparse() {
            true if scarce => write::check_space(&self.file, entry.data_len()),
            true => Ok(()),
            false if scarce && size > 0 && platform::tricks() => {
                write::allocate(&self.file, size).map(drop)
            }
            false => write::preallocate(&self.file, size).map(drop),
        }
    }
}

impl Drop for PendingPlace {
    /// A file that cannot be removed keeps mode 0600 and the current time; the caller reports its
    /// path as damaged.
    fn drop(&mut self) {
        if *self.is_placed.get_mut() {
            return;
        }
        let mut writer = TargetWriter::new(&self.tree);
        let _ = match &self.name {
            ReplaceName::None | ReplaceName::Partial(_) => Ok(()),
            ReplaceName::Own => writer.remove(&self.path),
            ReplaceName::Aside(aside) => writer
                .enter(&self.path)
                .map(|(dir, _)| remove_temporary(dir, aside, &self.tree.notes)),
        };
    }
}

impl TargetWriter {
    /// Creates a regular file with all of its content: the data of its runs, one after the other.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn file(&mut self, entry: &Entry, data: &[u8]) -> Result<()> {
        let mode = self.creation_mode(entry);
        let made = self.create(entry, mode)?;
        let made = match self.write_content(&made, entry, mode, data) {
            Err(e) if e.kind == ErrorKind::Full && self.fits_after_removal(&made, entry) => {
                let made = self.recreate(made, entry, mode)?;
                self.write_content(&made, entry, mode, data)?;
                made
            }
            done => done.map(|()| made)?,
        };
        self.close(made.file.into());
        Ok(())
    }

    fn write_content(
        &mut self,
        made: &NewFile,
        entry: &Entry,
        mode: u32,
        data: &[u8],
    ) -> Result<()> {
        let written =
            write_data(&made.file, entry, 0, data).and_then(|()| set_length(&made.file, entry));
        written.map_err(|e| self.tree.error("write", &entry.path, e))?;
        self.apply_metadata(made.file.as_fd(), entry, Before::Made(mode))?;
        made.move_into_place(self)
    }

    /// Creates an empty file with this mode, and reserves space for all of its content.
    pub(crate) fn create_with_room(&mut self, entry: &Entry, mode: u32) -> Result<NewFile> {
        let made = self.create(entry, mode)?;
        let (made, reserved) = match made.reserve(entry, !made.has_final_name()) {
            Err(e)
                if ErrorKind::of(&e) == ErrorKind::Full
                    && self.fits_after_removal(&made, entry) =>
            {
                let made = self.recreate(made, entry, mode)?;
                let reserved = made.reserve(entry, true);
                (made, reserved)
            }
            done => (made, done),
        };
        reserved
            .map(|()| made)
            .map_err(|e| self.tree.error("write", &entry.path, e))
    }

    /// Removes the old object first, and then creates the file again.
    fn recreate(&mut self, made: NewFile, entry: &Entry, mode: u32) -> Result<NewFile> {
        drop(made);
        self.remove(&entry.path)?;
        self.create(entry, mode)
    }

    /// Returns whether `made` replaces an object and has enough room once this object is removed.
    /// This is an estimate: compressed data may need less.
    fn fits_after_removal(&mut self, made: &NewFile, entry: &Entry) -> bool {
        if made.has_final_name() {
            return false;
        }
        write::compresses(&made.file).unwrap_or(true)
            || self
                .room_after_removal(made, entry)
                .is_none_or(|room| room >= entry.data_len())
    }

    /// Returns the bytes that `made` may have once the object with its final name is removed, if the
    /// system says so.
    fn room_after_removal(&mut self, made: &NewFile, entry: &Entry) -> Option<u64> {
        let (dir, name) = self.enter(&entry.path).ok()?;
        // Another name would keep the blocks of the object.
        let replaced = dir::stat(dir, name)
            .ok()
            .filter(|stat| stat.nlink == 1)
            .map_or(0, allocated_bytes);
        let taken = dir::stat_fd(&made.file).map_or(0, allocated_bytes);
        let usable = write::usable_bytes(&made.file).ok()?;
        Some(usable.saturating_add(taken).saturating_add(replaced))
    }

    /// Creates an empty file with this mode.
    pub(super) fn create(&mut self, entry: &Entry, mode: u32) -> Result<NewFile> {
        let tree = self.tree.clone();
        let path = entry.path.clone();
        let (dir, name) = self.enter(&path)?;
        let dir = dir.as_fd();
        let created = tree.unless_name_taken(&path, dir, name, || {
            tree.with_write_access(&path, dir, || match tree.create_whole(dir, name, mode) {
                // The plain creation is tried first: in an empty target it is the only call a file
                // needs.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && tree.options.overwrite => {
                    tree.create_replacement(dir, name, mode)
                }
                made => made,
            })
        });
        let (fd, name) = created.map_err(|e| self.creation_error(&path, e))?;
        Ok(NewFile {
            file: fd.into(),
            place: PendingPlace {
                name,
                is_placed: false.into(),
                tree,
                path,
            },
        })
    }
}

fn allocated_bytes(stat: dir::Stat) -> u64 {
    stat.blocks512.saturating_mul(512)
}

impl TargetTree {
    /// Creates a file that gets its name later, if the options say so, or else the file `name`.
    fn create_whole(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        mode: u32,
    ) -> io::Result<(OwnedFd, ReplaceName)> {
        if self.options.whole_files {
            if platform::tricks()
                && let Ok(fd) = write::create_nameless(dir, mode)
            {
                return Ok((fd, ReplaceName::None));
            }
            let aside = temporary_name();
            return Ok((
                write::create_file(dir, &aside, mode)?,
                ReplaceName::Aside(aside),
            ));
        }
        create_own(dir, name, mode)
    }

    fn create_replacement(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        mode: u32,
    ) -> io::Result<(OwnedFd, ReplaceName)> {
        check_can_replace(dir, &self.notes)?;
        // A file cannot replace a directory by a rename. An empty directory can be removed without
        // loss.
        if dir::stat(dir, name)?.kind == FileKind::Directory {
            write::remove_dir_at(dir, name)?;
            return create_own(dir, name, mode);
        }
        if platform::tricks()
            && let Ok(fd) = write::create_nameless(dir, mode)
        {
            return Ok((fd, ReplaceName::None));
        }
        let aside = temporary_name();
        match write::create_file(dir, &aside, mode) {
            Err(e) if ErrorKind::of(&e) == ErrorKind::Full => {
                self.remove_existing(dir, name)?;
                create_own(dir, name, mode)
            }
            made => Ok((made?, ReplaceName::Aside(aside))),
        }
    }

    /// Calls `create` with the name of an object. If an older object has this name and may be
    /// replaced, `create` gets a temporary name, and a rename replaces the older object.
    pub(crate) fn create_or_replace<T>(
        &self,
        path: &[u8],
        dir: BorrowedFd<'_>,
        name: &[u8],
        create: impl Fn(BorrowedFd<'_>, &[u8]) -> io::Result<T>,
    ) -> io::Result<T> {
        self.unless_name_taken(path, dir, name, || {
            self.with_write_access(path, dir, || {
                self.create_or_replace_once(dir, name, &create)
            })
        })
    }

    fn create_or_replace_once<T>(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        create: impl Fn(BorrowedFd<'_>, &[u8]) -> io::Result<T>,
    ) -> io::Result<T> {
        match create(dir, name) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && self.options.overwrite => {}
            created => return created,
        }
        check_can_replace(dir, &self.notes)?;
        let aside = temporary_name();
        let made = match create(dir, &aside) {
            // The old object may take the space that is missing.
            Err(e) if ErrorKind::of(&e) == ErrorKind::Full => {
                self.remove_existing(dir, name)?;
                return create(dir, name);
            }
            made => made?,
        };
        self.rename_over(dir, &aside, name)
            .inspect_err(|_| self.discard_replacement(dir, &aside))?;
        Ok(made)
    }

    /// Renames `aside` to `name`. Only an empty directory replaces a directory, and a directory
    /// replaces only a directory. After any other failure the old object stays.
    fn rename_over(&self, dir: BorrowedFd<'_>, aside: &[u8], name: &[u8]) -> io::Result<()> {
        use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory};
        match write::rename_at(dir, aside, dir, name) {
            Err(e)
                if matches!(
                    e.kind(),
                    AlreadyExists | DirectoryNotEmpty | IsADirectory | NotADirectory
                ) =>
            {
                self.remove_existing(dir, name)
                    .and_then(|()| write::rename_at(dir, aside, dir, name))
            }
            renamed => renamed,
        }
    }

    /// Removes a temporary object: an empty directory, or anything else.
    fn discard_replacement(&self, dir: BorrowedFd<'_>, aside: &[u8]) {
        if write::remove_dir_at(dir, aside).is_err() {
            remove_temporary(dir, aside, &self.notes);
        }
    }

    /// Removes the object `name`: an empty directory, or anything else.
    pub(crate) fn remove_existing(&self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        match write::unlink_at(dir, name) {
            Err(e) if e.kind() == io::ErrorKind::IsADirectory => write::remove_dir_at(dir, name),
            other => other,
        }
    }
}

/// Creates a file with its final name.
fn create_own(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> io::Result<(OwnedFd, ReplaceName)> {
    Ok((write::create_file(dir, name, mode)?, ReplaceName::Own))
}
