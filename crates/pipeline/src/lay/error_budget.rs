//! Ends a backup after too many entries that could not be read.

use fullbore_format::error::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The unreadable entries of all streams, and how many there may be.
#[derive(Debug, Default)]
pub struct ErrorBudget {
    most: Option<u64>,
    found: AtomicU64,
}

impl ErrorBudget {
    /// Allows so many; `None`: any number.
    pub fn new(most: Option<u64>) -> Self {
        Self {
            most,
            found: AtomicU64::new(0),
        }
    }

    /// Adds unreadable entries.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if they are too many.
    pub(super) fn add(&self, unreadable: u64) -> Result<()> {
        let found = self.found.fetch_add(unreadable, Relaxed) + unreadable;
        match self.most {
            Some(most) if found > most => {
                let message = format!("the backup ends: {found} entries could not be read");
                Err(Error::new(ErrorKind::System, message)
                    .because(format!("--errors allows {most}")))
            }
            _ => Ok(()),
        }
    }
}
