//! Where bytes come from.

pub mod archive;
pub mod jobs;
pub mod store;
pub mod stream;

use crate::{
    error::Result,
    format::entry::Entry,
    frame::{Buf, Frame, Slice},
};

/// Items in order; the type every part of a pipeline has.
pub type Stream<T> = Box<dyn Iterator<Item = Result<T>> + Send>;

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

    /// What is known only at the end; called once, after the last `read`.
    fn finish(&self) -> Result<Vec<Entry>> {
        Ok(Vec::new())
    }
}

/// One object the scan saw, and whether it could be looked at.
#[derive(Debug, Clone)]
pub struct Scanned {
    /// The object.
    pub entry: Entry,
    /// Why it will not be read, if it will not.
    pub state: crate::format::page::State,
}
