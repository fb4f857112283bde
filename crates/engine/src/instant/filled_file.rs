//! One placeholder while it is filled.

use super::{
    partial_units::PartialUnits,
    plan_file::PlannedFile,
    unit_map::{DURABLE, FINISHED, HERE, TIMED, TIMING, WRITTEN},
    worker::Worker,
};
use fullbore_format::{
    entry::Time,
    error::{Error, Result, quoted},
};
use fullbore_platform::write::set_times_fd;
use std::{fs::File, io, os::unix::fs::MetadataExt, time::SystemTime};

/// `ESTALE`: the file of a handle is gone.
const GONE: i32 = rustix::io::Errno::STALE.raw_os_error();

/// The state of a placeholder in this worker.
#[derive(Debug, Default)]
pub(super) struct FilledFile {
    /// Open from the first fill until the file is finished.
    opened: Option<File>,
    pub(super) partial: PartialUnits,
}

impl FilledFile {
    /// Returns the open file; `None` if it was deleted, and nobody has it open.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open(&mut self, worker: &Worker, index: u32) -> Result<Option<&File>> {
        if self.opened.is_none() {
            let planned = &worker.plan.files[index as usize];
            match opened(worker, planned) {
                Ok(file) => self.opened = Some(file),
                Err(e) if e.raw_os_error() == Some(GONE) => return Ok(None),
                Err(e) => {
                    let path = quoted(&planned.path.0);
                    return Err(Error::io(format!("could not open {path} by its handle"), e));
                }
            }
        }
        Ok(self.opened.as_ref())
    }

    /// Sets the time of a file back if all of it is here. Then readers get it that need all of it.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn end_content(&mut self, worker: &Worker, index: u32) -> Result<()> {
        let file = index as usize;
        let flags = worker.map.flags(file);
        if flags & FINISHED != 0 || !worker.has_all(index, HERE) {
            return Ok(());
        }
        if flags & TIMED == 0 {
            // The guardian holds back changes from here on until the time is set.
            worker.map.set_flags(file, TIMING);
            self.set_time(worker, index)?;
            worker.map.set_flags(file, TIMED);
        }
        worker.syncs.finish(index);
        if worker.queue.was_touched(index) {
            // Each read of it is an event until then.
            worker.syncs.ask();
        }
        Ok(())
    }

    /// Sets the time of a file back after a fill, so that `stat` shows it as it was. The time of a file that somebody
    /// wrote to is not that of the backup.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn set_time(&mut self, worker: &Worker, index: u32) -> Result<()> {
        let planned = &worker.plan.files[index as usize];
        let (seconds, nanos) = planned.mtime;
        let is_written = worker.map.flags(index as usize) & WRITTEN != 0;
        let Some(file) = self.open(worker, index)? else {
            return Ok(());
        };
        let set = match is_written {
            false => set_times_fd(file, Time { seconds, nanos }),
            true => set_to_now_if(file, planned.mtime),
        };
        let path = || quoted(&planned.path.0);
        set.map_err(|e| Error::io(format!("could not set the time of {}", path()), e))
    }

    /// Removes the mark of a file that is durable. Returns false if it is not durable yet.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn finish(&mut self, worker: &Worker, index: u32) -> Result<bool> {
        let file = index as usize;
        let planned = &worker.plan.files[file];
        if worker.map.flags(file) & FINISHED != 0 {
            return Ok(true);
        }
        if !worker.has_all(index, HERE | DURABLE) {
            return Ok(false);
        }
        if let Some(opened) = self.open(worker, index)? {
            match worker.group.unmark(opened) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    let path = quoted(&planned.path.0);
                    return Err(Error::io(format!("could not remove the mark of {path}"), e));
                }
                _ => {}
            }
        }
        worker.map.set_flags(file, FINISHED);
        self.opened = None;
        Ok(true)
    }

    /// Returns a second descriptor of the file; `None` if the file is gone.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn for_sync(&mut self, worker: &Worker, index: u32) -> Result<Option<File>> {
        let file = self.open(worker, index)?;
        let copied = file.map(File::try_clone).transpose();
        copied.map_err(|e| Error::io("could not open a restored file", e))
    }
}

/// Sets the time to now if it is that of the backup: a fill may have set it back after the write of somebody else.
fn set_to_now_if(file: &File, (seconds, nanos): (i64, u32)) -> io::Result<()> {
    let facts = file.metadata()?;
    if (facts.mtime(), facts.mtime_nsec()) == (seconds, nanos.into()) {
        file.set_modified(SystemTime::now())?;
    }
    Ok(())
}

fn opened(worker: &Worker, planned: &PlannedFile) -> io::Result<File> {
    let root = worker.roots.get(&planned.dev);
    let root = root.ok_or(io::ErrorKind::NotFound)?;
    planned.handle().open(root).map(File::from)
}
