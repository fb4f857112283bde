//! What both directions of a session share: its calls, the frames that it sends, and its end.
//!
//! Whoever has the line of a session may make calls and send frames, and cannot receive any: that is the session's own part.

use super::{calls::Calls, end::EndReason, limits::WireLimits, outlet::Outlet};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{debug, queue::Monitor};
use fullbore_wire::{
    frame::MAX_DATA,
    message::{Call, CallAnswer, Message},
};
use std::{
    io,
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Bytes of data, in both directions, after which a session is worth further connections. Most commands that only look move less.
const BUSY_BYTES: u64 = 4 << 20;

/// The sending half of a session.
#[derive(Debug)]
pub(super) struct Line {
    /// What messages call the other side, in quotes.
    pub(super) peer: String,
    pub(super) outlet: Outlet,
    pub(super) limits: WireLimits,
    moved_bytes: AtomicU64,
    pub(super) needs: Monitor<LineNeeds>,
    pub(super) calls: Calls,
}

/// What threads beside the readers wait for.
#[derive(Debug, Default)]
pub(super) struct LineNeeds {
    /// Bytes that came while there were further connections, and that the other side was not told to be received.
    pub(super) untold_bytes: usize,
    /// The other side is told what was received, however little it is.
    pub(super) is_told_now: bool,
    /// Has so much been moved that further connections help?
    pub(super) is_busy: bool,
    /// Further connections that are open.
    pub(super) connections: usize,
    /// Has the first connection ended, and the session goes on without it?
    pub(super) is_first_lost: bool,
    pub(super) is_ended: bool,
}

impl Line {
    pub(super) fn new(peer: &str, limits: WireLimits) -> Self {
        Self {
            peer: peer.to_owned(),
            outlet: Outlet::default(),
            limits,
            moved_bytes: AtomicU64::new(0),
            needs: Monitor::default(),
            calls: Calls::new(),
        }
    }

    /// Goes on without a connection, or ends the session for the reason why the connection has ended.
    pub(super) fn lose(&self, connection: u64, error: &Error) {
        debug(|| format!("a connection has ended: {}", error.line()));
        if self.outlet.lose(connection).is_err() {
            self.end(error);
        }
    }

    /// Makes a call. The answer may have `max_bytes` of data.
    ///
    /// # Errors
    /// Those of the call, or the reason why the connection ended.
    pub(super) fn call(
        &self,
        call: Call,
        body: &[u8],
        max_bytes: u64,
    ) -> Result<(u64, CallAnswer, Vec<u8>)> {
        let id = self.begin_call(call, body, max_bytes)?;
        let (answer, data) = self.end_call(id)?;
        Ok((id, answer, data))
    }

    /// Sends a call and returns its number, for [`Line::end_call`].
    ///
    /// # Errors
    /// As [`Line::call`].
    pub(super) fn begin_call(&self, call: Call, body: &[u8], max_bytes: u64) -> Result<u64> {
        let id = self.calls.begin(body.len(), max_bytes, false)?;
        self.send_call(id, call, body);
        Ok(id)
    }

    fn send_call(&self, id: u64, call: Call, body: &[u8]) {
        let (first, rest) = body.split_at(body.len().min(MAX_DATA));
        let following = NonZeroU64::new(rest.len() as u64);
        let call = Message::Call {
            id,
            call,
            following,
        };
        self.send_or_end(&call, first);
        for part in rest.chunks(MAX_DATA) {
            self.send_or_end(&Message::CallPart { id }, part);
        }
    }

    /// Makes a call without data, and takes the parts of its answer, of at most `max_bytes`, while others come.
    ///
    /// # Errors
    /// Those of the call and the reason why the connection ended; those of `take`, which end the session.
    pub(super) fn call_in_parts(
        &self,
        call: Call,
        max_bytes: u64,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<CallAnswer> {
        let id = self.calls.begin(0, max_bytes, true)?;
        self.send_call(id, call, b"");
        let mut take = |part: &[u8]| take(part).inspect_err(|error| self.end(error));
        while let Some(part) = self.calls.next_part(id)? {
            take(&part)?;
        }
        let (answer, last) = self.end_call(id)?;
        take(&last)?;
        Ok(answer)
    }

    /// Waits for the answer to a call, once.
    ///
    /// # Errors
    /// As [`Line::call`].
    pub(super) fn end_call(&self, id: u64) -> Result<(CallAnswer, Vec<u8>)> {
        match self.calls.wait(id)? {
            (CallAnswer::Failed(error), _) => Err(error.into_error()),
            answered => Ok(answered),
        }
    }

    /// Sends data of any length: all but the last part of it behind `part`, the rest behind `last`. An error ends the session.
    pub(super) fn send_in_parts(&self, data: &[u8], part: Message, last: Message) {
        let mut data = data;
        while let Some((first, rest)) = data.split_at_checked(MAX_DATA)
            && !rest.is_empty()
        {
            self.send_or_end(&part, first);
            data = rest;
        }
        self.send_or_end(&last, data);
    }

    /// Sends a frame. An error ends the session, since a part of the frame may have been sent.
    pub(super) fn send_or_end(&self, message: &Message, data: &[u8]) {
        self.limits.wait_to_send(data.len());
        self.count(data.len());
        let sent = self.outlet.send(message, data);
        self.end_unless_sent(sent);
    }

    pub(super) fn end_unless_sent(&self, sent: io::Result<()>) {
        if let Err(error) = sent {
            let kind = match error.kind() {
                io::ErrorKind::InvalidInput => ErrorKind::Bug,
                _ => ErrorKind::Unreachable,
            };
            let error = Error::io("could not write to the other side", error);
            self.end(&Error { kind, ..error });
        }
    }

    pub(super) fn count(&self, bytes: usize) {
        let before = self.moved_bytes.fetch_add(bytes as u64, Relaxed);
        if before < BUSY_BYTES && before + bytes as u64 >= BUSY_BYTES {
            self.needs.change(|needs| needs.is_busy = true);
        }
    }

    /// Ends the session: all calls fail, and nothing is sent any more.
    pub(super) fn end(&self, error: &Error) {
        self.calls.end(EndReason::of(&self.peer, error));
        self.outlet.end();
        self.needs.change(|needs| needs.is_ended = true);
    }

    /// The reason why the session ended.
    pub(super) fn ended(&self) -> Option<Error> {
        self.calls.ended()
    }
}
