//! A file that many workers write at once.
//!
//! It is created by whoever has its first piece, allocated as a whole, and written by position. The system is told to
//! start writing every 8 MiB, so that the page cache does not fill with what nobody will read. Until it is
//! finished its mode is 0600, and what it replaces stays; if it is dropped unfinished, it is removed.

use super::{
    access::PRIVATE,
    metadata::Before,
    replace::NewFile,
    writer::{TargetWriter, set_length, write_data},
};
use crate::{
    error::Result,
    format::entry::Entry,
    platform::{self, read::each_piece, write},
    queue::Locked,
};
use std::{
    fs::File,
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard},
};

/// Bytes after which the system is told to start writing: 8 to 16 MiB measured best (`doc/decisions`).
const BEHIND_BYTES: u64 = 8 << 20;

/// What its writers share. Empty until the first piece comes.
#[derive(Debug, Default)]
pub struct ParallelFile(Mutex<ParallelState>);

#[derive(Debug, Default)]
struct ParallelState {
    made: Option<Arc<NewFile>>,
    /// Bytes before which the system was told to write, and before which it was told to forget.
    told: u64,
    forgotten: u64,
}

impl ParallelFile {
    fn state(&self) -> MutexGuard<'_, ParallelState> {
        self.0.locked()
    }

    /// Write a piece, `offset` bytes from the start of the data. From any thread.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn write(
        &self,
        writer: &mut TargetWriter,
        entry: &Entry,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let made = self.open(writer, entry)?;
        write_data(&made.file, entry, offset, data)
            .map_err(|e| writer.tree.error("write", &entry.path, e))?;
        if platform::tricks() && !entry.is_sparse() {
            self.write_behind(&made.file, offset + data.len() as u64);
        }
        Ok(())
    }

    fn open(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<Arc<NewFile>> {
        let mut state = self.state();
        if let Some(made) = &state.made {
            return Ok(made.clone());
        }
        let made = Arc::new(writer.create_with_room(entry, PRIVATE)?);
        Ok(state.made.insert(made).clone())
    }

    /// Pieces come nearly in order: what is said of the bytes before `end` is right for almost all of them.
    fn write_behind(&self, file: &File, end: u64) {
        let mut state = self.state();
        if end < state.told + BEHIND_BYTES {
            return;
        }
        let (from, forgotten) = (state.told, state.forgotten);
        (state.told, state.forgotten) = (end, from);
        drop(state);
        write::write_behind(file, from, end - from);
        write::drop_behind(file, forgotten, from - forgotten);
    }

    /// Hash what was written: its data, without the holes. For the rare file whose pieces cannot be hashed as they come.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn hash(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<blake3::Hash> {
        let made = self.open(writer, entry)?;
        let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; 1 << 20]);
        let hash = |bytes: &[u8]| _ = hasher.update(bytes);
        let read = each_piece(
            &made.file,
            entry.runs(0, entry.data_len()),
            &mut buffer,
            hash,
        );
        read.map_err(|e| writer.tree.error("read back", &entry.path, e))?;
        Ok(hasher.finalize())
    }

    /// All pieces are written and right: give the file its metadata and its place.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn finish(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<()> {
        let made = self.open(writer, entry)?;
        set_length(&made.file, entry).map_err(|e| writer.tree.error("write", &entry.path, e))?;
        writer.dress(made.file.as_fd(), entry, Before::Made(PRIVATE))?;
        made.place(writer)?;
        *self.state() = ParallelState::default();
        Ok(())
    }

    /// Some piece is damaged: remove what was written.
    pub fn discard(&self) {
        *self.state() = ParallelState::default();
    }
}
