//! A destination whose stream is encrypted on its way: an archive that is one age file, or standard output.
//!
//! Bytes are sealed front to back and never again: nothing can be amended. So a stream whose length is not known is read to its end
//! first.

use fullbore_crypt::{SealingWriter, UserRecipient};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_pipeline::sink::{Abilities, Destination, Place, Placed, Role, Sink, StoredSegment};
use std::{io::Write, mem, sync::Arc};

/// A destination of one stream that people open with their keys.
pub struct SealedDestination {
    inner: Box<dyn Destination>,
    recipients: Arc<[UserRecipient]>,
}

impl SealedDestination {
    /// Seals what goes to `inner`.
    pub fn new(inner: Box<dyn Destination>, recipients: Arc<[UserRecipient]>) -> Self {
        Self { inner, recipients }
    }
}

impl Destination for SealedDestination {
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn stream(&mut self, number: u32) -> Result<Box<dyn Sink>> {
        Ok(Box::new(SealedSink {
            inner: self.inner.stream(number)?,
            writer: SealingWriter::new(Vec::new(), &self.recipients)?,
            stored_bytes: 0,
        }))
    }

    fn places(&self) -> Vec<Place> {
        self.inner.places()
    }

    fn commit(self: Box<Self>, root: &[u8]) -> Result<()> {
        self.inner.commit(root)
    }

    fn abort(self: Box<Self>, keep: bool) {
        self.inner.abort(keep);
    }
}

struct SealedSink {
    inner: Box<dyn Sink>,
    /// Collects sealed bytes until they are passed on.
    writer: SealingWriter<Vec<u8>>,
    stored_bytes: u64,
}

fn failed(error: std::io::Error) -> Error {
    Error::io("could not encrypt the stream", error)
}

/// Sealed bytes of the only segment.
fn placed(offset: u64, sealed: Vec<u8>) -> Placed {
    Placed {
        segment: 1,
        offset,
        data: sealed.into(),
        role: Role::Stream,
    }
}

impl SealedSink {
    fn pass_on(&mut self, sealed: Vec<u8>) -> Result<()> {
        if sealed.is_empty() {
            return Ok(());
        }
        let offset = self.stored_bytes;
        self.stored_bytes += sealed.len() as u64;
        self.inner.put(placed(offset, sealed))
    }
}

impl Sink for SealedSink {
    fn put(&mut self, placed: Placed) -> Result<()> {
        if placed.role == Role::Amend {
            let message = "cannot amend a stream that is encrypted";
            return Err(Error::new(ErrorKind::Bug, message));
        }
        self.writer.write_all(&placed.data).map_err(failed)?;
        let sealed = mem::take(self.writer.get_mut());
        self.pass_on(sealed)
    }

    fn finish(self: Box<Self>) -> Result<Vec<StoredSegment>> {
        let Self {
            mut inner,
            writer,
            stored_bytes,
        } = *self;
        let rest = writer.finish().map_err(failed)?;
        inner.put(placed(stored_bytes, rest))?;
        inner.finish()
    }
}
