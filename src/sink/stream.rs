//! Standard output; and nothing, to measure the rest.

use super::{Abilities, Destination, Place, Placed, Role, Sink};
use crate::{
    error::{Error, Kind, Result},
    platform::{
        walk::{FileKind, stat_fd},
        write::{fsync, is_stdout_closed},
    },
};
use std::io::{IsTerminal, Write};

/// Standard output.
pub struct Stdout;

impl Stdout {
    /// # Errors
    /// [`Kind::Usage`] if it is closed, or a terminal, which nobody can restore from.
    pub fn begin() -> Result<Self> {
        if is_stdout_closed() {
            let what = "cannot write a backup to standard output: it is closed, or /dev/null";
            return Err(Error::new(Kind::Usage, what).hint("--to null: measures a backup that goes nowhere"));
        }
        match std::io::stdout().is_terminal() {
            false => Ok(Self),
            true => Err(Error::new(Kind::Usage, "cannot write a backup to a terminal")
                .hint("redirect standard output, or pipe it into a program")),
        }
    }
}

impl Destination for Stdout {
    fn abilities(&self) -> Abilities {
        Abilities { objects: false, amends: false, repository: String::new() }
    }

    fn stream(&mut self, _number: u32) -> Result<Box<dyn Sink>> {
        Ok(Box::new(Self))
    }

    fn places(&self) -> Vec<Place> {
        stat_fd(std::io::stdout()).ok().map(|stat| (stat.dev, stat.inode)).into_iter().collect()
    }

    /// A file that it goes to is made durable.
    fn commit(self: Box<Self>, _root: &[u8]) -> Result<()> {
        match stat_fd(std::io::stdout()) {
            Ok(stat) if stat.kind == FileKind::File => fsync(std::io::stdout()).map_err(failed),
            _ => Ok(()),
        }
    }

    fn abort(self: Box<Self>, _keep: bool) {}
}

impl Sink for Stdout {
    fn put(&mut self, placed: Placed) -> Result<()> {
        match placed.role {
            Role::Stream => std::io::stdout().lock().write_all(&placed.data).map_err(failed),
            _ => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        std::io::stdout().lock().flush().map_err(failed)
    }
}

fn failed(error: std::io::Error) -> Error {
    let error = Error::io("could not write to standard output", error);
    match error.kind {
        Kind::BrokenPipe => error.detail("the program that reads it ended before the backup was complete"),
        _ => error,
    }
}

/// Takes everything and keeps nothing.
pub struct Null;

impl Destination for Null {
    fn abilities(&self) -> Abilities {
        Abilities { objects: true, amends: true, repository: String::new() }
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

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
