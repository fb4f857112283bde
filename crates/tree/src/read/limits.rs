//! Shortages of this process: file descriptors and memory.
//!
//! A file that could not be opened because of a shortage is not unreadable, and a backup without it
//! is incomplete. Such an error is recorded here and ends the run.

use fullbore_format::error::{Error, Result};
use fullbore_platform as platform;
use std::{io, sync::OnceLock};

/// The system's number of the first shortage.
#[derive(Default)]
pub(crate) struct Shortage(OnceLock<i32>);

impl Shortage {
    /// Records the error if it is a shortage. Accepts any error of the system.
    pub(crate) fn notice(&self, error: &io::Error) {
        if let Some(number) = error
            .raw_os_error()
            .filter(|_| platform::is_shortage(error))
        {
            self.0.get_or_init(|| number);
        }
    }

    /// Fails if a shortage was recorded.
    ///
    /// # Errors
    /// [`ErrorKind::System`](fullbore_format::error::ErrorKind::System).
    pub(crate) fn check(&self) -> Result<()> {
        let Some(number) = self.0.get() else {
            return Ok(());
        };
        let reason = io::Error::from_raw_os_error(*number);
        let is_of_memory = reason.kind() == io::ErrorKind::OutOfMemory;
        let error = Error::io("could not read further files", reason);
        if is_of_memory {
            return Err(error);
        }
        Err(error
            .hint("raise the limit of open files (`ulimit -n`), and run the same command again"))
    }
}
