//! The members of a tar that comes as a stream, one after the other, and what the stream says of them.

use super::{
    input::{Plain, decode},
    magic::must_be_tar,
    self_check::SelfCheck,
};
use crate::{
    error::{Error, Result},
    format::{
        digest::{Digest, Running},
        pax::{PaxReader, TarItem, skip_padding},
    },
    metrics::meter::{Meter, lap},
};
use std::{
    io::{BufRead, Read},
    sync::atomic::Ordering::Relaxed,
    time::Instant,
};

/// Content that is read at once.
pub(crate) const PIECE: usize = 1 << 20;

/// See the module.
pub(crate) struct Members<'a> {
    input: Plain,
    /// Once it is known that there is something to read.
    reader: Option<PaxReader>,
    /// What the stream says of itself.
    pub(crate) ledger: SelfCheck,
    /// Of the content of this member, as far as it was read.
    digest: Option<Running>,
    meter: &'a Meter,
    /// When the last of its times was taken.
    clock: Instant,
}

impl<'a> Members<'a> {
    /// Those of `input`.
    pub(crate) fn of(
        input: impl Read + Send + 'static,
        ledger: SelfCheck,
        meter: &'a Meter,
    ) -> Self {
        let (input, reader, clock) = (decode(input), None, Instant::now());
        Self {
            input,
            reader,
            ledger,
            digest: None,
            meter,
            clock,
        }
    }

    /// The next member; the content of the last has been read, or [`Members::skip`]ped.
    ///
    /// # Errors
    /// As [`Reader::next`]; [`crate::error::Kind::Unsupported`] if it is no tar.
    pub(crate) fn next(&mut self) -> Result<Option<TarItem>> {
        lap(&self.meter.sink.busy, &mut self.clock);
        if self.reader.is_none() {
            must_be_tar(self.input.fill_buf().map_err(unreadable)?)?;
        }
        let found = self.reader.get_or_insert_default().next(&mut self.input);
        self.digest = None;
        self.listen();
        found
    }

    /// Read the next piece of the content of a file, of which `left` bytes are left.
    ///
    /// # Errors
    /// Those of the input, or [`crate::error::Kind::Corrupt`] if it ends before.
    pub(crate) fn piece(&mut self, left: u64, data: &mut Vec<u8>) -> Result<()> {
        lap(&self.meter.sink.busy, &mut self.clock);
        let wanted = left.min(PIECE as u64);
        data.clear();
        let read = (&mut self.input).take(wanted).read_to_end(data);
        self.meter.bytes.fetch_add(data.len() as u64, Relaxed);
        if self.ledger.is_kept() {
            self.digest.get_or_insert_default().update(data);
        }
        self.listen();
        read.map_err(unreadable)?;
        if (data.len() as u64) < wanted {
            return Err(Error::corrupt(
                "the tar is cut off in the middle of a member",
            ));
        }
        Ok(())
    }

    /// The digests of all pieces of this member so far.
    pub(crate) fn digests(&mut self) -> Option<[Digest; 2]> {
        self.ledger
            .is_kept()
            .then(|| self.digest.get_or_insert_default().finish())
    }

    /// Pass over `len` bytes of content, and the padding behind them.
    ///
    /// # Errors
    /// As [`Members::piece`].
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
            self.listen();
        }
        self.skip_padding(len)
    }

    /// Pass over the padding behind `len` bytes of content that were read.
    ///
    /// # Errors
    /// As [`Members::piece`].
    pub(crate) fn skip_padding(&mut self, len: u64) -> Result<()> {
        skip_padding(&mut self.input, len)
    }

    /// The members are over. Did something follow them that is none?
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] if they did not end as a tar does.
    pub(crate) fn end(&mut self) -> Result<bool> {
        self.ledger.end();
        match self.reader.as_ref().filter(|reader| reader.has_ended()) {
            Some(reader) => Ok(reader.has_trailing_bytes()),
            None => {
                Err(Error::corrupt("the tar is cut off").because("it ends without closing blocks"))
            }
        }
    }

    /// What the stream has said meanwhile.
    fn listen(&mut self) {
        self.input
            .services()
            .iter()
            .for_each(|frame| self.ledger.hear(frame));
        self.meter
            .stored_bytes
            .store(self.input.stored_bytes(), Relaxed);
        lap(&self.meter.source.busy, &mut self.clock);
    }
}

fn unreadable(error: std::io::Error) -> Error {
    Error::io("could not read the tar", error)
}
