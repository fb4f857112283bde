//! Files that read right only while somebody serves.
//!
//! `PG_VERSION` is filled at each read, and made zeros again soon after. So a server cannot start on a cluster that
//! nobody serves: PostgreSQL reads this file at its start, and that of a database at each connection.

use super::plan_file::WithheldFile;
use fullbore_format::{entry::Time, error::Error};
use fullbore_platform::{
    dir::stat_fd,
    pre_content::EventGroup,
    write::{self, pwrite_all},
};
use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::{Duration, Instant},
};

/// Time that the content stays after the last read.
const STAYS: Duration = Duration::from_millis(300);
/// Bytes that become a hole: more than such a file has.
const HOLE_BYTES: u64 = 64 << 10;

/// An open file that is withheld.
#[derive(Debug)]
pub(super) struct FedFile {
    file: File,
    content: Vec<u8>,
    mtime: Time,
    /// Device and inode.
    pub(super) id: (u64, u64),
    fed: Option<Instant>,
}

impl FedFile {
    /// Opens a file of a tree, makes it zeros, and marks it. `None` if the file is not there any more.
    ///
    /// The descriptor is older than the mark, so this process is not asked about its own writes.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(
        top: &Path,
        withheld: &WithheldFile,
        group: &EventGroup,
    ) -> Result<Option<Self>, Error> {
        let path = top.join(OsStr::from_bytes(&withheld.path.0));
        // A group that was taken over has its mark, and this process would wait for its own answer.
        let _ = group.unmark_path(&path);
        let opened = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => Err(e),
            Ok(file) => Self::of(file, withheld, group),
        };
        let failed = |e| Error::io(format!("could not open {path:?}"), e);
        opened.map(Some).map_err(failed)
    }

    fn of(file: File, withheld: &WithheldFile, group: &EventGroup) -> io::Result<Self> {
        let stat = stat_fd(&file)?;
        let (seconds, nanos) = withheld.mtime;
        let fed = Self {
            file,
            content: withheld.content.0.clone(),
            mtime: Time { seconds, nanos },
            id: (stat.dev, stat.inode),
            fed: None,
        };
        fed.empty()?;
        group.mark(&fed.file)?;
        Ok(fed)
    }

    /// Makes the file right for a reader.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn feed(&mut self) -> io::Result<()> {
        if self.fed.is_none() {
            pwrite_all(&self.file, &self.content, 0)?;
        }
        self.fed = Some(Instant::now());
        Ok(())
    }

    /// Makes the file zeros again, if the last read is long ago.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if self.fed.is_some_and(|fed| fed.elapsed() > STAYS) {
            self.empty()?;
            self.fed = None;
        }
        Ok(())
    }

    pub(super) fn is_fed(&self) -> bool {
        self.fed.is_some()
    }

    /// Makes the file zeros.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn empty(&self) -> io::Result<()> {
        if write::punch(&self.file, 0, HOLE_BYTES)? {
            return Ok(());
        }
        pwrite_all(&self.file, &vec![0; self.content.len()], 0)
    }

    /// Makes the file right for good.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn finish(&self, group: &EventGroup) -> io::Result<()> {
        pwrite_all(&self.file, &self.content, 0)?;
        write::set_times_fd(&self.file, self.mtime)?;
        self.file.sync_all()?;
        group.unmark(&self.file)
    }
}
