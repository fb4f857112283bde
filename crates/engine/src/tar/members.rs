//! The members of a tar stream in order, and the description that an own stream has of itself.

use super::{
    input::{PlainInput, decode},
    magic::check_is_tar,
    self_check::SelfCheck,
};
use fullbore_format::{
    digest::{Digest, Running},
    error::{Error, Result},
    pax::{PaxReader, TarItem, skip_padding},
};
use fullbore_platform::metrics::{
    cpu::ThreadClock,
    meter::{Meter, lap},
};
use std::{
    io::{BufRead, Read},
    sync::atomic::Ordering::Relaxed,
};

/// Bytes of content that are read at once.
pub(crate) const PIECE: usize = 1 << 20;

/// Reads the members of a stream.
pub(crate) struct TarMembers<'a> {
    input: PlainInput,
    /// The header reader, once the input is known to be non-empty.
    reader: Option<PaxReader>,
    /// The check of the stream against its own description.
    pub(crate) self_check: SelfCheck,
    /// Digest of the content of this member so far.
    digest: Option<Running>,
    meter: &'a Meter,
    /// Time of the last measurement.
    clock: ThreadClock,
}

impl<'a> TarMembers<'a> {
    /// Reads the members of `input`.
    pub(crate) fn of(
        input: impl Read + Send + 'static,
        self_check: SelfCheck,
        meter: &'a Meter,
    ) -> Self {
        let input = decode(input);
        let reader = None;
        let clock = ThreadClock::now();
        Self {
            input,
            reader,
            self_check,
            digest: None,
            meter,
            clock,
        }
    }

    /// Returns the next member. The content of the last one must have been read or
    /// [`TarMembers::skip`]ped.
    ///
    /// # Errors
    /// Those of [`PaxReader::next`]; [`fullbore_format::error::ErrorKind::Unsupported`] if the input is not a
    /// tar.
    pub(crate) fn next(&mut self) -> Result<Option<TarItem>> {
        lap(&self.meter.sink, &mut self.clock);
        if self.reader.is_none() {
            check_is_tar(self.input.fill_buf().map_err(unreadable)?)?;
        }
        let found = self.reader.get_or_insert_default().next(&mut self.input);
        self.digest = None;
        self.check_services();
        found
    }

    /// Reads the next piece of a file's content, of which `left` bytes remain.
    ///
    /// # Errors
    /// Errors of the input, or [`fullbore_format::error::ErrorKind::Corrupt`] if it ends early.
    pub(crate) fn piece(&mut self, left: u64, data: &mut Vec<u8>) -> Result<()> {
        lap(&self.meter.sink, &mut self.clock);
        let wanted = left.min(PIECE as u64);
        data.clear();
        let read = (&mut self.input).take(wanted).read_to_end(data);
        self.meter.bytes.fetch_add(data.len() as u64, Relaxed);
        if self.self_check.is_comparing() {
            self.digest.get_or_insert_default().update(data);
        }
        self.check_services();
        read.map_err(unreadable)?;
        if (data.len() as u64) < wanted {
            return Err(Error::corrupt(
                "the tar is cut off in the middle of a member",
            ));
        }
        Ok(())
    }

    /// Returns the digests of the content of this member so far.
    pub(crate) fn digests(&mut self) -> Option<[Digest; 2]> {
        self.self_check
            .is_comparing()
            .then(|| self.digest.get_or_insert_default().finish())
    }

    /// Skips `len` bytes of content and their padding.
    ///
    /// # Errors
    /// Those of [`TarMembers::piece`].
    pub(crate) fn skip(&mut self, len: u64) -> Result<()> {
        let mut left = len;
        while left > 0 {
            let there = self.input.fill_buf().map_err(unreadable)?.len() as u64;
            if there == 0 {
                return Err(Error::corrupt(
                    "the tar is cut off in the middle of a member",
                ));
            }
            let passed = there.min(left);
            self.input.consume(passed as usize);
            left -= passed;
            self.check_services();
        }
        self.skip_padding(len)
    }

    /// Skips the padding after `len` bytes of content that were read.
    ///
    /// # Errors
    /// Those of [`TarMembers::piece`].
    pub(crate) fn skip_padding(&mut self, len: u64) -> Result<()> {
        skip_padding(&mut self.input, len)
    }

    /// Ends the stream. Returns whether other data followed the tar.
    ///
    /// # Errors
    /// [`fullbore_format::error::ErrorKind::Corrupt`] if the tar has no proper end.
    pub(crate) fn end(&mut self) -> Result<bool> {
        self.self_check.end();
        match self.reader.as_ref().filter(|reader| reader.has_ended()) {
            Some(reader) => Ok(reader.has_trailing_bytes()),
            None => {
                Err(Error::corrupt("the tar is cut off").because("it ends without closing blocks"))
            }
        }
    }

    /// Takes the service frames that came since the last call.
    fn check_services(&mut self) {
        self.input
            .take_services()
            .iter()
            .for_each(|frame| self.self_check.add_service(frame));
        self.meter
            .stored_bytes
            .store(self.input.stored_bytes(), Relaxed);
        lap(&self.meter.source, &mut self.clock);
    }
}

fn unreadable(error: std::io::Error) -> Error {
    Error::io("could not read the tar", error)
}
