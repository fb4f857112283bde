//! Copies a backup to another repository, with everything that it refers to.
//!
//! Objects are copied byte by byte under their names and checked on the way: segments against the
//! checksums in the roots, pages against their digests. Objects that the destination has are not
//! copied again. Tags are copied; a pin is not, because it is a decision of one repository.
//!
//! Where one of the repositories is encrypted, objects are opened and sealed anew, and the root gets
//! checksums of what the destination stores (`seals`). Without a key, objects are copied as they
//! are stored, and only to a repository that has the same keys.

mod copied;
mod seals;
mod session;
pub mod sync;
mod tasks;
mod wal;

pub use copied::CopiedBackup;
pub use session::CopySession;

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::{
    archive::Archive,
    open::{open, place},
    select::BackupFilter,
    writer::must_be_possible,
};
use fullbore_storage::{Objects, Storages};
use std::{ffi::OsString, num::NonZeroUsize, sync::Arc};

/// The backup to copy and the destination.
#[derive(Debug, Clone)]
pub struct BackupCopy {
    /// How storages are reached.
    pub storages: Storages,
    /// `REPOSITORY[@BACKUP]`.
    pub from: OsString,
    /// Selects the backups of which the latest is copied.
    pub filter: BackupFilter,
    /// Whether the destination repository must exist already.
    pub no_create: bool,
    /// The destination repository.
    pub to: Arc<dyn Objects>,
    /// Number of objects copied at the same time.
    pub workers: NonZeroUsize,
}

impl BackupCopy {
    /// Copies the backup.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if something is missing or damaged; errors of the destination.
    /// After an error the destination has no new backup.
    pub fn run(&self, meter: &Meter) -> Result<CopiedBackup> {
        must_be_possible(&*self.to, self.no_create)?;
        let archive = self.open_backup()?;
        let from = self.storages.objects(&place(&self.from)?.0)?;
        let mut session = CopySession::begin(from, &self.to, self.workers)?;
        session.copy(&archive, meter)
    }

    /// Opens the backup to copy.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a one-file archive; those of opening the backup.
    fn open_backup(&self) -> Result<Archive> {
        let archive = open(&self.storages, &self.from, &self.filter)?;
        if !archive.repository.is_empty() {
            return Ok(archive);
        }
        let message = format!(
            "cannot copy {:?}: it is not a backup in a repository",
            self.from
        );
        Err(Error::new(ErrorKind::Usage, message)
            .hint("an archive is one file: copy that file, or use `fullbore export`"))
    }
}
