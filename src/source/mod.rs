//! What is backed up: a directory tree, standard input, a stored backup. PostgreSQL clusters are in `postgres`.

pub mod backup;
pub mod patterns;
pub mod stdin;
pub mod tree;

use crate::{
    error::Result,
    format::page::Record,
    frame::{Buf, Frame, Scanned, Slice},
};
use std::{os::fd::OwnedFd, sync::Arc};

/// Items in order; the type every part of a pipeline has.
pub type Stream<T> = Box<dyn Iterator<Item = Result<T>> + Send>;

/// Opens files only to have them read into the page cache.
pub trait OpenAhead: Send + Sync {
    /// Open the regular file that the scan saw, at once; `None` if that cannot be done, for whatever reason.
    fn open_ahead(&self, scanned: &Scanned) -> Option<OwnedFd>;
}

/// Where bytes come from: a tree, a cluster, the far half of a pipeline.
pub trait Source: Send + Sync {
    /// What there is, in archive order. Reads no content.
    ///
    /// # Errors
    /// Only what makes the whole backup impossible; a directory that cannot be read is an entry with that state.
    fn scan(&self) -> Result<Stream<Scanned>>;

    /// Read one slice into `buf`, as a piece of a tar. Positional, so any number of readers share one source.
    ///
    /// What vanished, shrank or cannot be read is said in the parts of the frame, not as an error.
    ///
    /// # Errors
    /// Only what makes the whole backup impossible.
    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame>;

    /// An entry is complete in the archive, with the CRC-32C of its content if that was asked for. In archive order.
    fn laid(&self, _record: &Record, _crc32c: Option<u32>) {}

    /// Does its scan go on for as long as the others are read, see [`Source::drained`]? It may then come to nothing at all.
    fn accompanies(&self) -> bool {
        false
    }

    /// Does more come than is stored? Then time matters more than size.
    fn is_pressed(&self) -> bool {
        false
    }

    /// All that its scan named was read, or nobody reads on. Called once, before any `finish`.
    fn drained(&self) {}

    /// Opens its small files before they are read; `None` where nothing is gained by that.
    fn opener(&self) -> Option<Arc<dyn OpenAhead>> {
        None
    }

    /// What is known only at the end, again in archive order, and read as the rest was. Called once, after the last `read`
    /// of all streams.
    ///
    /// # Errors
    /// What makes the whole backup void.
    fn finish(&self) -> Result<Stream<Scanned>> {
        Ok(Box::new(std::iter::empty()))
    }
}
