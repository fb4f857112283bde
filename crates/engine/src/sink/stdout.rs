//! Standard output; and a null destination, to measure the rest of a backup.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_pipeline::sink::{Abilities, Destination, Place, Placed, Role, Sink, StoredSegment};
use fullbore_platform::{
    BlockedCalls,
    dir::{FileKind, stat_fd},
    write::{fsync, is_stdout_closed},
};
use std::{
    fs::File,
    io::{IsTerminal, Write},
    os::fd::AsFd,
};

/// Standard output by its file descriptor, because [`std::io::Stdout`] hides a descriptor that
/// cannot be written to.
pub struct Stdout(BlockedCalls<File>);

impl Stdout {
    /// Opens standard output.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it is closed or a terminal; the system's error.
    pub fn begin() -> Result<Self> {
        if is_stdout_closed() {
            let message = "cannot write a backup to standard output: it is closed, or /dev/null";
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("--to null: measures a backup without storing it"));
        }
        let out = std::io::stdout();
        if out.is_terminal() {
            return Err(
                Error::new(ErrorKind::Usage, "cannot write a backup to a terminal")
                    .hint("redirect standard output, or pipe it into a program"),
            );
        }
        Ok(Self(BlockedCalls(
            out.as_fd().try_clone_to_owned().map_err(failed)?.into(),
        )))
    }
}

impl Destination for Stdout {
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn stream(&mut self, _number: u32) -> Result<Box<dyn Sink>> {
        Ok(Box::new(Self(BlockedCalls(
            self.0.0.try_clone().map_err(failed)?,
        ))))
    }

    fn places(&self) -> Vec<Place> {
        stat_fd(&self.0.0)
            .ok()
            .map(|stat| (stat.dev, stat.inode))
            .into_iter()
            .collect()
    }

    /// Syncs standard output if it is a file.
    fn commit(self: Box<Self>, _root: &[u8]) -> Result<()> {
        match stat_fd(&self.0.0) {
            Ok(stat) if stat.kind == FileKind::File => fsync(&self.0.0).map_err(failed),
            _ => Ok(()),
        }
    }

    fn abort(self: Box<Self>, _keep: bool) {}
}

impl Sink for Stdout {
    fn put(&mut self, placed: Placed) -> Result<()> {
        match placed.role {
            Role::Stream => self.0.write_all(&placed.data).map_err(failed),
            // The length of the input was known: there is nothing to amend.
            Role::Amend => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<Vec<StoredSegment>> {
        Ok(Vec::new())
    }
}

fn failed(error: std::io::Error) -> Error {
    let error = Error::io("could not write to standard output", error);
    match error.kind {
        ErrorKind::BrokenPipe => {
            error.detail("the program that reads it ended before the backup was complete")
        }
        _ => error,
    }
}

/// Accepts all data and discards it.
pub struct Null;

impl Destination for Null {
    fn abilities(&self) -> Abilities {
        Abilities {
            objects: true,
            repository: String::new(),
            is_new: false,
        }
    }

    fn stream(&mut self, _number: u32) -> Result<Box<dyn Sink>> {
        Ok(Box::new(Self))
    }

    fn commit(self: Box<Self>, _root: &[u8]) -> Result<()> {
        Ok(())
    }

    fn abort(self: Box<Self>, _keep: bool) {}
}

impl Sink for Null {
    fn put(&mut self, _placed: Placed) -> Result<()> {
        Ok(())
    }

    /// Pages count as stored, as in a repository.
    fn put_page(&mut self, _page: &[u8]) -> Result<Option<u64>> {
        Ok(Some(0))
    }

    fn finish(self: Box<Self>) -> Result<Vec<StoredSegment>> {
        Ok(Vec::new())
    }
}
