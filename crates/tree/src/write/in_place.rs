//! A file that is updated in place: only blocks that differ are written.
//!
//! A file with several names is compared but never written, because its other names may lie outside
//! of the tree. The same holds for files that the system opens only for reading: a running program,
//! an immutable file, or a file without write permission for this user. A file is replaced by a new
//! one if users whom the backup does not admit may have it open.
//!
//! Until it is finished, a file can hold old and new content side by side. The caller must remove a
//! changed file that it cannot finish.

use super::{
    access::PRIVATE,
    metadata::{Before, has_only_xattrs},
    replace::NewFile,
    writer::{TargetWriter, is_of_kind, write_data},
};
use fullbore_format::{
    entry::{Entry, EntryKind, Xattr},
    error::Result,
};
use fullbore_platform::{
    dir::{self, FileKind, Stat, read_link},
    durable, read, write, xattr,
};
use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// A file of the tree, open for reading and, if the system permits, for writing.
#[derive(Debug)]
pub struct Patch {
    file: PatchSource,
    stat: Stat,
    /// Whether the file is open for writing too.
    writable: bool,
    /// Whether the file was written to.
    touched: AtomicBool,
}

#[derive(Debug)]
enum PatchSource {
    There(File),
    New(NewFile),
}

impl Patch {
    /// Opens the file at `entry.path` for an update. Returns `None` if a new file must be created.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn open(writer: &mut TargetWriter, entry: &Entry) -> Result<Option<Self>> {
        let Some(patch) = Self::open_any(writer, entry)? else {
            return Ok(None);
        };
        let may_keep_file =
            patch.stat.nlink > 1 || writer.may_keep_file(entry, patch.file(), &patch.stat)?;
        Ok(may_keep_file.then_some(patch))
    }

    /// As [`Self::open`], also if other users may have the file open: for one that only gets other
    /// metadata.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn open_any(writer: &mut TargetWriter, entry: &Entry) -> Result<Option<Self>> {
        let tree = writer.tree.clone();
        let (dir, name) = writer.enter(&entry.path)?;
        // Opening a device can have an effect: a tape rewinds, a watchdog starts.
        let (fd, writable) = match tree.unless_name_taken(&entry.path, dir, name, || {
            match dir::stat(dir, name)?.kind {
                FileKind::File => match write::open_write(dir, name) {
                    Err(e) if is_read_only_error(&e) => Ok((dir::open_read(dir, name)?, false)),
                    other => Ok((other?, true)),
                },
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        }) {
            Ok(opened) => opened,
            Err(e) if needs_new_file(&e) => return Ok(None),
            Err(e) => return Err(tree.error("open", &entry.path, e)),
        };
        let stat = dir::stat_fd(&fd).map_err(|e| tree.error("look at", &entry.path, e))?;
        let is_file = stat.kind == FileKind::File;
        Ok(is_file.then(|| Self {
            file: PatchSource::There(fd.into()),
            stat,
            writable,
            touched: false.into(),
        }))
    }

    /// Creates a new file, which replaces the object at `entry.path` when it is finished.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn create(writer: &mut TargetWriter, entry: &Entry) -> Result<Self> {
        let made = writer.create_with_room(entry, PRIVATE)?;
        let stat =
            dir::stat_fd(&made.file).map_err(|e| writer.tree.error("look at", &entry.path, e))?;
        Ok(Self {
            file: PatchSource::New(made),
            stat,
            writable: true,
            touched: true.into(),
        })
    }

    /// Creates a new file whose content a later run finds if this one is interrupted, or opens the
    /// one that an earlier run left. It replaces the object at `entry.path` when it is finished. If
    /// there is none, the file `source` becomes it. Returns whether it may have content.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn partial(
        writer: &mut TargetWriter,
        entry: &Entry,
        source: Option<&[u8]>,
    ) -> Result<(Self, bool)> {
        let (made, has_content) = writer.partial_file(entry, source)?;
        let stat =
            dir::stat_fd(&made.file).map_err(|e| writer.tree.error("look at", &entry.path, e))?;
        let patch = Self {
            file: PatchSource::New(made),
            stat,
            writable: true,
            touched: true.into(),
        };
        Ok((patch, has_content))
    }

    /// Returns whether the file was created by [`Self::create`].
    pub fn is_new(&self) -> bool {
        matches!(self.file, PatchSource::New(_))
    }

    /// Attributes of the file when it was opened.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    pub fn file(&self) -> &File {
        match &self.file {
            PatchSource::There(file) => file,
            PatchSource::New(made) => &made.file,
        }
    }

    /// Returns whether the file may be written to.
    pub fn may_write(&self) -> bool {
        self.writable && self.stat.nlink == 1
    }

    /// Returns whether the file has the metadata of this entry. Only then a file that must not be
    /// written can stay.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn has_metadata_of(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<bool> {
        self.metadata_matches(writer, entry)
            .map_err(|e| writer.tree.error("look at", &entry.path, e))
    }

    /// Sets the length of the file.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_length(&self, entry: &Entry) -> io::Result<()> {
        if dir::stat_fd(self.file())?.size == entry.size() {
            return Ok(());
        }
        self.touched.store(true, Relaxed);
        write::truncate(self.file(), entry.size())
    }

    /// Returns whether this run has destroyed some of the earlier content at this path.
    pub fn old_content_lost(&self) -> bool {
        match &self.file {
            PatchSource::There(_) => self.touched.load(Relaxed),
            PatchSource::New(made) => made.has_final_name(),
        }
    }

    /// Fills `buffer` with data from `offset` on. Returns the number of bytes; it is smaller at the
    /// end of the file.
    ///
    /// # Errors
    /// The system's error.
    pub fn read(&self, entry: &Entry, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        for run in entry.runs(offset, buffer.len() as u64) {
            let end = done + run.len as usize;
            let got = self.read_at(run.offset, &mut buffer[done..end])?;
            done += got;
            if done < end {
                break;
            }
        }
        Ok(done)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self
                .file()
                .read_at(&mut buffer[done..], offset + done as u64)
            {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Punches the holes of the entry where the file has other bytes than zeros.
    ///
    /// # Errors
    /// The system's error.
    pub fn clear_holes(&self, entry: &Entry, buffer: &mut [u8]) -> io::Result<()> {
        let EntryKind::File {
            size,
            map: Some(map),
        } = &entry.kind
        else {
            return Ok(());
        };
        for gap in read::data_outside(self.file(), *size, map)? {
            let end = gap.offset + gap.len;
            let mut offset = gap.offset;
            while offset < end {
                let len = buffer.len().min((end - offset) as usize);
                self.clear_hole(offset, &mut buffer[..len])?;
                offset += len as u64;
            }
        }
        Ok(())
    }

    /// Punches a hole of the length of `piece`, unless the bytes there are zeros already.
    fn clear_hole(&self, offset: u64, piece: &mut [u8]) -> io::Result<()> {
        let got = self.read_at(offset, piece)?;
        if piece[..got].iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        self.touched.store(true, Relaxed);
        if !write::punch(self.file(), offset, piece.len() as u64)? {
            piece.fill(0);
            self.file().write_all_at(&piece[..got], offset)?;
        }
        Ok(())
    }

    /// Writes a piece at `offset` bytes from the start of the data. Safe from any thread.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn write(
        &self,
        writer: &TargetWriter,
        entry: &Entry,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        self.touched.store(true, Relaxed);
        write_data(self.file(), entry, offset, data)
            .map_err(|e| writer.tree.error("write", &entry.path, e))
    }

    /// Sets length and metadata, after all content is right. Returns whether the file was changed.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn finish(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<bool> {
        let tree = writer.tree.clone();
        let failed = tree.failed("write", &entry.path);
        self.set_length(entry).map_err(failed)?;
        if !self.touched.load(Relaxed) && self.metadata_matches(writer, entry).map_err(failed)? {
            // The program that wrote the file may not have synced it.
            if tree.syncs_each_file() {
                durable::sync_and_close(self.file()).map_err(failed)?;
            }
            return Ok(false);
        }
        let previous = match &self.file {
            PatchSource::New(made) if !made.is_partial() => Before::Made(PRIVATE),
            _ => Before::There(dir::stat_fd(self.file()).map_err(failed)?),
        };
        writer.apply_metadata(self.file().as_fd(), entry, previous)?;
        if let PatchSource::New(made) = &self.file {
            made.move_into_place(writer)?;
        }
        Ok(self.touched.load(Relaxed))
    }

    fn metadata_matches(&self, writer: &mut TargetWriter, entry: &Entry) -> io::Result<bool> {
        let stat = &self.stat;
        let is_same = stat.mode == entry.mode
            && (stat.uid, stat.gid) == writer.owner_ids(&entry.owner)
            && stat.mtime == entry.mtime;
        let present = xattr::read_all(self.file())?;
        Ok(is_same
            && has_only_xattrs(entry, &present, |wanted, present| {
                writer.tree.is_same_xattr(wanted, present)
            }))
    }
}

impl TargetWriter {
    /// Reads the file at `entry.path`, if it has no holes and the size and metadata of the entry.
    /// Takes four calls, or three if the file is `opened`. Returns the open file.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn read_if_described(
        &mut self,
        entry: &Entry,
        is_known: bool,
        opened: Option<File>,
        content: &mut Vec<u8>,
    ) -> Result<Option<File>> {
        let tree = self.tree.clone();
        let owner = self.owner_ids(&entry.owner);
        let (dir, name) = self.enter(&entry.path)?;
        let failed = tree.failed("read", &entry.path);
        let is_described = |stat: &Stat| {
            stat.kind == FileKind::File
                && stat.size == entry.size()
                && (stat.mode, stat.mtime) == (entry.mode, entry.mtime)
                && (stat.uid, stat.gid) == owner
        };
        let is_described = is_known || dir::stat(dir, name).is_ok_and(|stat| is_described(&stat));
        // Holes would need their map as well; such a file takes the way that compares pieces.
        if !is_described || entry.is_sparse() || tree.is_taken(&entry.path, dir, name) {
            return Ok(None);
        }
        let opened = opened.or_else(|| dir::open_read(dir, name).ok().map(File::from));
        let Some(file) = opened else {
            return Ok(None);
        };
        let size = entry.size() as usize;
        content.clear();
        let read = read::read_end(&file, content, 0, size, read::PageCacheUse::Keep);
        if read.map_err(failed)? != size {
            return Ok(None);
        }
        let present = xattr::read_all(&file).map_err(failed)?;
        Ok(has_only_xattrs(entry, &present, |wanted, present| {
            tree.is_same_xattr(wanted, present)
        })
        .then_some(file))
    }

    /// Returns whether the file at `entry.path` has the content of `source` and the metadata of the
    /// entry.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub(crate) fn is_copy(&mut self, source: &File, entry: &Entry) -> Result<bool> {
        let Some(patch) = Patch::open(self, entry)? else {
            return Ok(false);
        };
        if patch.stat.size != entry.size() || !patch.has_metadata_of(self, entry)? {
            return Ok(false);
        }
        let same = read::have_same_content(source, patch.file(), patch.stat.size);
        same.map_err(|e| self.tree.error("read", &entry.path, e))
    }
}

/// Returns whether the link, pipe or device of this entry exists with the right metadata.
///
/// # Errors
/// The system's error, with the path.
pub fn is_up_to_date(writer: &mut TargetWriter, entry: &Entry) -> Result<bool> {
    let tree = writer.tree.clone();
    let owner = writer.owner_ids(&entry.owner);
    let (dir, name) = writer.enter(&entry.path)?;
    let failed = tree.failed("look at", &entry.path);
    let stat = match tree.unless_name_taken(&entry.path, dir, name, || dir::stat(dir, name)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(failed)?,
    };
    let same = match &entry.kind {
        EntryKind::Symlink(target) if stat.kind == FileKind::Symlink => {
            read_link(dir, name).map_err(failed)? == *target
        }
        kind => is_of_kind(&stat, kind) && stat.mode == entry.mode,
    };
    // Attributes cost more calls than the rest, so they come last.
    if !same || (stat.uid, stat.gid) != owner || stat.mtime != entry.mtime {
        return Ok(false);
    }
    let present = xattr::read_all_at(dir, name).map_err(failed)?;
    let is_same = |wanted: &Xattr, present: &Xattr| tree.is_same_xattr(wanted, present);
    Ok(has_only_xattrs(entry, &present, is_same))
}

/// Returns whether the file may still be opened for reading after this error.
fn is_read_only_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ExecutableFileBusy
    )
}

/// Returns whether the file is missing or cannot be opened for writing, so that a new one is
/// created.
fn needs_new_file(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    ) || write::is_not_writable_file(error)
}
