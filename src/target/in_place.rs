//! A file that is brought up to date in place: only what differs is written.
//!
//! A file with other names is compared and never written to: they may stand outside of the tree, and would change with
//! it. Nor is one that the system lets be read only: a program that runs, one that is immutable, one of an ordinary user
//! without the mode for it. One that others can have open who may not by the backup is made anew. Until it is finished a
//! file may hold old and new content side by side; one that was touched and cannot be finished is to be removed.

use super::{
    access::PRIVATE,
    metadata::{Before, wears},
    replace::NewFile,
    writer::{TargetWriter, write_data},
};
use crate::{
    error::Result,
    format::entry::{Entry, EntryKind},
    platform::{
        dir::{self, FileKind, Stat, read_link},
        durable, read, write, xattr,
    },
};
use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// A file of the tree that is open for reading and, if that may be, for writing.
#[derive(Debug)]
pub struct Patch {
    file: PatchSource,
    stat: Stat,
    /// Is it open for writing too?
    writable: bool,
    /// Was something written to it?
    touched: AtomicBool,
}

#[derive(Debug)]
enum PatchSource {
    There(File),
    New(NewFile),
}

impl Patch {
    /// Open the file at `entry.path` if it can be brought up to date; `None` if it is to be made anew.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn open(writer: &mut TargetWriter, entry: &Entry) -> Result<Option<Self>> {
        let tree = writer.tree.clone();
        let (dir, name) = writer.enter(&entry.path)?;
        // To open a device may do something: a tape is wound back, a watchdog begins to watch.
        let open = || match dir::stat(dir, name)?.kind {
            FileKind::File => match write::open_write(dir, name) {
                Err(e) if is_for_readers(&e) => {
                    Ok((dir::open_read(dir, name, tree.options.tricks)?, false))
                }
                other => Ok((other?, true)),
            },
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        let (fd, writable) = match tree.making(&entry.path, dir, name, open) {
            Ok(opened) => opened,
            Err(e) if is_another_kind(&e) => return Ok(None),
            Err(e) => return Err(tree.error("open", &entry.path, e)),
        };
        let stat = dir::stat_fd(&fd).map_err(|e| tree.error("look at", &entry.path, e))?;
        let may_stay = stat.kind == FileKind::File
            && (stat.nlink > 1 || writer.may_stay(entry, &fd, &stat)?);
        Ok(may_stay.then(|| Self {
            file: PatchSource::There(fd.into()),
            stat,
            writable,
            touched: false.into(),
        }))
    }

    /// Make the file anew, to take the place of whatever is there when it is finished.
    ///
    /// # Errors
    /// The system's, with the path.
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

    /// Was it made just now?
    pub fn is_new(&self) -> bool {
        matches!(self.file, PatchSource::New(_))
    }

    /// What it was when it was opened.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// The open file.
    pub fn file(&self) -> &File {
        match &self.file {
            PatchSource::There(file) => file,
            PatchSource::New(made) => &made.file,
        }
    }

    /// May it be written to?
    pub fn may_change(&self) -> bool {
        self.writable && self.stat.nlink == 1
    }

    /// Has it the metadata of this entry? Only then a file that may not change can stay.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn is_dressed_as(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<bool> {
        self.is_dressed(writer, entry)
            .map_err(|e| writer.tree.error("look at", &entry.path, e))
    }

    /// Give it the length it should have.
    ///
    /// # Errors
    /// The system's.
    pub fn set_length(&self, entry: &Entry) -> io::Result<()> {
        if dir::stat_fd(self.file())?.size == entry.size() {
            return Ok(());
        }
        self.touched.store(true, Relaxed);
        write::truncate(self.file(), entry.size())
    }

    /// Is something of what was at its place before this run lost?
    pub fn is_touched(&self) -> bool {
        match &self.file {
            PatchSource::There(_) => self.touched.load(Relaxed),
            PatchSource::New(made) => made.has_its_name(),
        }
    }

    /// Fill `buffer` with the data from `offset` on, as far as the file goes; how much came.
    ///
    /// # Errors
    /// The system's.
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

    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file().read_at(&mut buffer[done..], at + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Where the entry has a hole, and there is something else than zeros, make one.
    ///
    /// # Errors
    /// The system's.
    pub fn clear_holes(&self, entry: &Entry, buffer: &mut [u8]) -> io::Result<()> {
        let EntryKind::File {
            size,
            map: Some(map),
        } = &entry.kind
        else {
            return Ok(());
        };
        for gap in read::data_outside(self.file(), *size, map)? {
            let (mut at, end) = (gap.offset, gap.offset + gap.len);
            while at < end {
                let len = buffer.len().min((end - at) as usize);
                let piece = &mut buffer[..len];
                let got = self.read_at(at, piece)?;
                if piece[..got].iter().any(|byte| *byte != 0) {
                    self.touched.store(true, Relaxed);
                    if !write::punch(self.file(), at, len as u64)? {
                        piece.fill(0);
                        self.file().write_all_at(&piece[..got], at)?;
                    }
                }
                at += len as u64;
            }
        }
        Ok(())
    }

    /// Write a piece, `offset` bytes from the start of the data. From any thread.
    ///
    /// # Errors
    /// The system's, with the path.
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

    /// Its content is right: give it its length and, if it has another, its metadata. Was anything changed?
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn finish(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<bool> {
        let tree = writer.tree.clone();
        let failed = |e| tree.error("write", &entry.path, e);
        self.set_length(entry).map_err(failed)?;
        if !self.touched.load(Relaxed) && self.is_dressed(writer, entry).map_err(failed)? {
            // Whoever has written it may not have made it durable.
            let settled = if tree.settles_each() {
                durable::sync_and_close(self.file())
            } else {
                Ok(())
            };
            return settled.map(|()| false).map_err(failed);
        }
        let now = dir::stat_fd(self.file()).map_err(failed)?;
        let before = if self.is_new() {
            Before::Made(PRIVATE)
        } else {
            Before::There(now)
        };
        writer.dress(self.file().as_fd(), entry, before)?;
        if let PatchSource::New(made) = &self.file {
            made.place(writer)?;
        }
        Ok(self.touched.load(Relaxed))
    }

    fn is_dressed(&self, writer: &mut TargetWriter, entry: &Entry) -> io::Result<bool> {
        let Stat {
            mode,
            uid,
            gid,
            mtime,
            ..
        } = self.stat;
        let same =
            (mode, (uid, gid), mtime) == (entry.mode, writer.numbers(&entry.owner), entry.mtime);
        Ok(same && wears(entry, &xattr::read_all(self.file())?))
    }
}

impl TargetWriter {
    /// Is a file at `entry.path` with the content of `from` and the metadata of the entry?
    ///
    /// # Errors
    /// The system's, with the path.
    pub(crate) fn is_copy(&mut self, from: &File, entry: &Entry) -> Result<bool> {
        let Some(there) = Patch::open(self, entry)? else {
            return Ok(false);
        };
        if there.stat.size != entry.size() || !there.is_dressed_as(self, entry)? {
            return Ok(false);
        }
        let same = read::have_same_content(from, there.file(), there.stat.size);
        same.map_err(|e| self.tree.error("read", &entry.path, e))
    }
}

/// Is the link, pipe or device of this entry there, as it should be?
///
/// # Errors
/// The system's, with the path.
pub fn is_there(writer: &mut TargetWriter, entry: &Entry) -> Result<bool> {
    let (tree, owner) = (writer.tree.clone(), writer.numbers(&entry.owner));
    let (dir, name) = writer.enter(&entry.path)?;
    let stat = match tree.making(&entry.path, dir, name, || dir::stat(dir, name)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(|e| tree.error("look at", &entry.path, e))?,
    };
    let same = match (&entry.kind, stat.kind) {
        (EntryKind::Symlink(target), FileKind::Symlink) => {
            read_link(dir, name).map_err(|e| tree.error("look at", &entry.path, e))? == *target
        }
        (EntryKind::Fifo, FileKind::Fifo) => stat.mode == entry.mode,
        (EntryKind::CharDevice(device), FileKind::CharDevice)
        | (EntryKind::BlockDevice(device), FileKind::BlockDevice) => {
            (stat.rdev, stat.mode) == (*device, entry.mode)
        }
        _ => false,
    };
    if !same || ((stat.uid, stat.gid), stat.mtime) != (owner, entry.mtime) {
        return Ok(false);
    }
    let there = xattr::read_all_at(dir, name).map_err(|e| tree.error("look at", &entry.path, e))?;
    Ok(wears(entry, &there))
}

/// Does the system let this be read only?
fn is_for_readers(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ExecutableFileBusy
    )
}

/// Is it not there, or nothing that can be opened for writing?
fn is_another_kind(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    ) || write::is_not_writable_file(error)
}
