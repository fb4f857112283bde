//! A file that many workers write at once.
//!
//! It is created by whoever has its first piece, allocated as a whole, and written by position. The system is told to
//! start writing every 8 MiB, so that the page cache does not fill with what nobody will read. Until it is
//! finished its mode is 0600; if it is dropped unfinished, it is removed.

use super::{
    dress::Before,
    reach::PRIVATE,
    tree::Tree,
    writer::{Writer, set_length, write_data},
};
use crate::{
    error::Result,
    format::entry::Entry,
    platform::{Tricks, write},
};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard},
};

/// Bytes after which the system is told to start writing: 8 to 16 MiB measured best (`doc/decisions`).
const BEHIND_BYTES: u64 = 8 << 20;

/// What its writers share. Empty until the first piece comes.
#[derive(Debug, Default)]
pub struct Large(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    tree: Option<(Arc<Tree>, Vec<u8>)>,
    fd: Option<Arc<OwnedFd>>,
    /// Bytes before which the system was told to write, and before which it was told to forget.
    told: u64,
    forgotten: u64,
}

impl Large {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Write a piece, `offset` bytes from the start of the data. From any thread.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn write(&self, writer: &mut Writer, entry: &Entry, offset: u64, data: &[u8]) -> Result<()> {
        let fd = self.open(writer, entry)?;
        write_data(&fd, entry, offset, data).map_err(|e| writer.tree.error("write", &entry.path, e))?;
        if writer.tree.options.tricks == Tricks::Auto && !entry.is_sparse() {
            self.write_behind(&fd, offset + data.len() as u64);
        }
        Ok(())
    }

    fn open(&self, writer: &mut Writer, entry: &Entry) -> Result<Arc<OwnedFd>> {
        let mut state = self.state();
        if let Some(fd) = &state.fd {
            return Ok(fd.clone());
        }
        let fd = Arc::new(writer.create(entry, PRIVATE)?);
        state.tree = Some((writer.tree.clone(), entry.path.clone()));
        state.fd = Some(fd.clone());
        if !entry.is_sparse() {
            let allocated = write::preallocate(&fd, entry.size(), writer.tree.options.tricks);
            allocated.map_err(|e| writer.tree.error("write", &entry.path, e))?;
        }
        Ok(fd)
    }

    /// Pieces come nearly in order: what is said of the bytes before `end` is right for almost all of them.
    fn write_behind(&self, fd: &OwnedFd, end: u64) {
        let mut state = self.state();
        if end < state.told + BEHIND_BYTES {
            return;
        }
        let (from, forgotten) = (state.told, state.forgotten);
        (state.told, state.forgotten) = (end, from);
        drop(state);
        write::write_behind(fd, from, end - from);
        write::drop_behind(fd, forgotten, from - forgotten);
    }

    /// All pieces are written and right: give the file its metadata.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn finish(&self, writer: &mut Writer, entry: &Entry) -> Result<()> {
        let fd = self.open(writer, entry)?;
        set_length(&fd, entry).map_err(|e| writer.tree.error("write", &entry.path, e))?;
        writer.dress(fd.as_fd(), entry, Before::Made(PRIVATE))?;
        *self.state() = State::default();
        Ok(())
    }

    /// Some piece is damaged: remove what was written.
    pub fn discard(&self) {
        let state = std::mem::take(&mut *self.state());
        if let Some((tree, path)) = state.tree {
            // What cannot be removed has mode 0600 and the time of now; the caller names it as damaged.
            let _ = Writer::new(&tree).remove(&path);
        }
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        self.discard();
    }
}
