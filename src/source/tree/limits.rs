//! What this process has too little of: descriptors, memory.
//!
//! That a file could not be opened for want of them is no property of the file, and a backup without it is not one of the tree:
//! whoever meets such an error says so here, and the run ends.

use crate::{
    error::{Error, Result},
    platform,
};
use std::{io, sync::OnceLock};

/// The system's number of the first shortage, if there was one.
#[derive(Default)]
pub(crate) struct Shortage(OnceLock<i32>);

impl Shortage {
    /// An error of the system, of any kind.
    pub(crate) fn notice(&self, error: &io::Error) {
        if let Some(number) = error
            .raw_os_error()
            .filter(|_| platform::is_shortage(error))
        {
            self.0.get_or_init(|| number);
        }
    }

    /// Was there one?
    ///
    /// # Errors
    /// [`Kind::System`].
    pub(crate) fn check(&self) -> Result<()> {
        let Some(number) = self.0.get() else {
            return Ok(());
        };
        let why = io::Error::from_raw_os_error(*number);
        let is_of_memory = why.kind() == io::ErrorKind::OutOfMemory;
        let error = Error::io("could not go on reading", why);
        if is_of_memory {
            return Err(error);
        }
        Err(error
            .hint("raise the limit of open files (`ulimit -n`), and run the same command again"))
    }
}
