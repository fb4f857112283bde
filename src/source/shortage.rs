//! What this process has too little of: descriptors, memory.
//!
//! That a file could not be opened for want of them is no property of the file, and a backup without it is not one of the tree:
//! whoever meets such an error says so here, and the run ends.

use crate::{
    error::{Error, Kind, Result, reason},
    platform,
};
use std::{io, sync::OnceLock};

/// The first shortage, if there was one.
#[derive(Default)]
pub(super) struct Shortage(OnceLock<String>);

impl Shortage {
    /// An error of the system, of any kind.
    pub(super) fn notice(&self, error: &io::Error) {
        if platform::is_shortage(error) {
            self.0.get_or_init(|| reason(error));
        }
    }

    /// Was there one?
    ///
    /// # Errors
    /// [`Kind::System`].
    pub(super) fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |why| {
            Err(Error::new(Kind::System, "could not go on reading")
                .because(why.clone())
                .hint("raise the limit (of open files: `ulimit -n`), and run the same command again"))
        })
    }
}
