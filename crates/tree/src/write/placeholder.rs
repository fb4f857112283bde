//! Files without their content: of the right size, with their metadata and their space.

use super::{existing::Before, modes::PRIVATE, writer::TargetWriter};
use fullbore_format::{entry::Entry, error::Result};
use fullbore_platform::write;
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
};

impl TargetWriter {
    /// Creates a file whose data is still to be written. Its space is reserved where the backup has data, since
    /// programs that copy a hole do not read it. True holes stay holes.
    ///
    /// `prepare` gets the complete file before it has its name.
    ///
    /// # Errors
    /// The system's, and that of `prepare`, with the path.
    pub fn placeholder(
        &mut self,
        entry: &Entry,
        prepare: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> Result<()> {
        let tree = self.tree.clone();
        let made = self.create(entry, PRIVATE)?;
        let reserved = reserve_data(&made.file, entry);
        reserved.map_err(|e| tree.error("reserve the space of", &entry.path, e))?;
        self.apply_metadata(made.file.as_fd(), entry, Before::Made(PRIVATE))?;
        prepare(made.file.as_fd()).map_err(|e| tree.error("prepare", &entry.path, e))?;
        made.move_into_place(self)?;
        self.close(made.file.into());
        Ok(())
    }
}

fn reserve_data(file: &File, entry: &Entry) -> io::Result<()> {
    write::check_space(file, entry.data_len())?;
    write::truncate(file, entry.size())?;
    let mut runs = entry.runs(0, entry.data_len());
    runs.try_for_each(|run| write::reserve(file, run.offset, run.len))
}
