//! A file that many workers write at once.
//!
//! The worker with the first piece creates the file and allocates all of it. Pieces are written by
//! position. Every 8 MiB the system is told to start writing, so that the page cache does not fill
//! with data that is not read again. An unfinished file has mode 0600, and the old file stays in
//! place. Dropping an unfinished file removes it.

use super::{
    access::PRIVATE,
    metadata::Before,
    replace::NewFile,
    writer::{TargetWriter, set_length, write_data},
};
use fullbore_format::{entry::Entry, error::Result};
use fullbore_platform as platform;
use fullbore_platform::{queue::Locked, read::each_piece, write};
use std::{
    fs::File,
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard},
};

/// Bytes after which the system is told to start writing: 8 to 16 MiB measured best
/// (`doc/decisions`).
const WRITE_BEHIND_BYTES: u64 = 8 << 20;

/// State shared by the writers. Empty until the first piece arrives.
#[derive(Debug, Default)]
pub struct ParallelFile(Mutex<ParallelState>);

#[derive(Debug, Default)]
struct ParallelState {
    made: Option<Arc<NewFile>>,
    /// End of the bytes that the system was told to write, and of those that it was told to drop
    /// from the cache.
    write_end: u64,
    dropped_end: u64,
}

impl ParallelFile {
    fn state(&self) -> MutexGuard<'_, ParallelState> {
        self.0.locked()
    }

    /// Writes a piece at `offset` bytes from the start of the data. Safe from any thread.
    ///
    /// # Errors
    /// The system's error, with the path.
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

    /// Starts writing the bytes before `end`. Pieces arrive nearly in order, so almost all of these
    /// bytes are in the file.
    fn write_behind(&self, file: &File, end: u64) {
        let mut state = self.state();
        if end < state.write_end + WRITE_BEHIND_BYTES {
            return;
        }
        let start = state.write_end;
        let dropped_end = state.dropped_end;
        (state.write_end, state.dropped_end) = (end, start);
        drop(state);
        write::write_behind(file, start, end - start);
        write::drop_behind(file, dropped_end, start - dropped_end);
    }

    /// Reads the data back and hashes it, without the holes. Used for the rare file whose pieces
    /// cannot be hashed as they arrive.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn hash(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<blake3::Hash> {
        let made = self.open(writer, entry)?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        let read = each_piece(
            &made.file,
            entry.runs(0, entry.data_len()),
            &mut buffer,
            |bytes| _ = hasher.update(bytes),
        );
        read.map_err(|e| writer.tree.error("read back", &entry.path, e))?;
        Ok(hasher.finalize())
    }

    /// Gives the complete file its metadata and its final name.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn finish(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<()> {
        let made = self.open(writer, entry)?;
        set_length(&made.file, entry).map_err(|e| writer.tree.error("write", &entry.path, e))?;
        writer.apply_metadata(made.file.as_fd(), entry, Before::Made(PRIVATE))?;
        made.move_into_place(writer)?;
        *self.state() = ParallelState::default();
        Ok(())
    }

    /// Removes the file, because a piece is damaged.
    pub fn discard(&self) {
        *self.state() = ParallelState::default();
    }
}
