//! One placeholder while it is filled.

use super::{
    plan_file::PlannedFile,
    unit_map::{DURABLE, FINISHED, HERE, TIMED, TIMING, WRITTEN},
    worker::Worker,
};
use fullbore_format::{
    entry::{ByteRun, Time},
    error::{Error, Result, quoted},
};
use fullbore_platform::write::{pwrite_all, set_times_fd};
use std::{fs::File, io, ops::Range};

/// `ESTALE`: the file of a handle is gone.
const GONE: i32 = rustix::io::Errno::STALE.raw_os_error();

/// The state of a placeholder in this worker.
#[derive(Debug, Default)]
pub(super) struct FilledFile {
    /// Open from the first fill until the file is finished.
    opened: Option<File>,
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
            let before = worker.map.set_flags(file, TIMING);
            if before & WRITTEN == 0 {
                self.set_time(worker, index)?;
            }
            worker.map.set_flags(file, TIMED);
        }
        worker.syncs.finish(index);
        Ok(())
    }

    fn set_time(&mut self, worker: &Worker, index: u32) -> Result<()> {
        let planned = &worker.plan.files[index as usize];
        let (seconds, nanos) = planned.mtime;
        let Some(file) = self.open(worker, index)? else {
            return Ok(());
        };
        let path = || quoted(&planned.path.0);
        set_times_fd(file, Time { seconds, nanos })
            .map_err(|e| Error::io(format!("could not set the time of {}", path()), e))
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

fn opened(worker: &Worker, planned: &PlannedFile) -> io::Result<File> {
    let root = worker.roots.get(&planned.dev);
    let root = root.ok_or(io::ErrorKind::NotFound)?;
    planned.handle().open(root).map(File::from)
}

/// Writes the parts of the runs that lie in the spans. `data` is the data of the runs, one after the other.
///
/// # Errors
/// The system's.
pub(super) fn write_spans(
    file: &File,
    runs: &[ByteRun],
    data: &[u8],
    spans: &[Range<u64>],
) -> io::Result<()> {
    let mut rest = data;
    for run in runs {
        let (piece, tail) = rest.split_at(run.len as usize);
        for span in spans {
            let start = span.start.max(run.offset);
            let end = span.end.min(run.offset + run.len);
            if start < end {
                let part = (start - run.offset) as usize..(end - run.offset) as usize;
                pwrite_all(file, &piece[part], start)?;
            }
        }
        rest = tail;
    }
    Ok(())
}
