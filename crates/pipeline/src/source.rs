//! The data that is backed up: a directory tree, standard input, a stored backup. PostgreSQL
//! clusters are in `postgres`.
//!
//! Belongs here: listing entries in archive order, and reading slices of them from any thread. Does
//! not belong here: what changed since the last backup (`repo`), and how frames are cut
//! (`pipeline`).

use crate::frame::{Buf, Frame, Scanned, Slice};
use fullbore_format::{error::Result, page::Record};
use std::{os::fd::OwnedFd, sync::Arc};

/// Items in order; every part of a pipeline returns this type.
pub type Stream<T> = Box<dyn Iterator<Item = Result<T>> + Send>;

/// Opens files before they are read, only to have them brought into the page cache.
pub trait OpenAhead: Send + Sync {
    /// Opens the regular file that the scan found, without waiting. Returns `None` if that is not
    /// possible, whatever the reason: the later read reports it.
    fn open_ahead(&self, scanned: &Scanned) -> Option<OwnedFd>;
}

/// A source of entries and their bytes: a tree, a cluster, a stored backup.
pub trait Source: Send + Sync {
    /// Lists all entries in archive order, without their content.
    ///
    /// # Errors
    /// Only errors that make the whole backup impossible. A directory that cannot be read is an
    /// entry with that state.
    fn scan(&self) -> Result<Stream<Scanned>>;

    /// Reads one slice into `buf`, as a piece of a tar. Reads are positional, so any number of
    /// readers share one source.
    ///
    /// The parts of the frame report files that vanished, shrank or cannot be read.
    ///
    /// # Errors
    /// Only errors that make the whole backup impossible.
    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame>;

    /// Returns whether the scan is in archive order. Of a source that is not, the records are sorted
    /// when all of it was read; then no checkpoint is stored before.
    fn is_sorted(&self) -> bool {
        true
    }

    /// Passes the slices of the scan on in their order, in the thread that scans. A source whose content comes
    /// in one order takes it meanwhile, and one that answers late reads ahead.
    fn prepare(&self, slices: Stream<Slice>) -> Stream<Slice> {
        slices
    }

    /// Corrects the record of an entry by facts that are known only when all was read. Called for
    /// sources that are not sorted, before [`Source::on_stored`].
    fn settle(&self, _record: &mut Record) {}

    /// Reports that an entry is complete in the archive, with the CRC-32C of its content if
    /// requested. Called in archive order.
    fn on_stored(&self, _record: &Record, _crc32c: Option<u32>) {}

    /// Returns whether the scan of this source goes on until the other sources are read, see
    /// [`Source::on_all_read`]. Such a scan may be empty.
    fn runs_alongside(&self) -> bool {
        false
    }

    /// Returns whether data arrives faster than it is stored. Speed then matters more than size.
    fn is_falling_behind(&self) -> bool {
        false
    }

    /// Reports that everything in the scan was read, or that reading has stopped. Called once,
    /// before any `finish`.
    fn on_all_read(&self) {}

    /// Returns what opens small files ahead of their reading; `None` if that gains nothing.
    fn opener(&self) -> Option<Arc<dyn OpenAhead>> {
        None
    }

    /// Lists the entries that are known only at the end, in archive order; they are read as the
    /// others are. Called once, after the last `read` of all streams.
    ///
    /// # Errors
    /// Errors that make the whole backup invalid.
    fn finish(&self) -> Result<Stream<Scanned>> {
        Ok(Box::new(std::iter::empty()))
    }
}
