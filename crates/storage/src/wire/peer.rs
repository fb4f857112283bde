//! The other side of a session, as services of this side see it.

use super::{
    client::{WireObjects, wrong_answer},
    limits::WireTimes,
    line::Line,
    stream::WireEnds,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_wire::{
    message::{Call, CallAnswer},
    service::ServiceNumber,
};
use std::{
    ffi::OsStr,
    fmt,
    sync::{Arc, Weak},
};

/// A session that further connections can join.
pub(super) trait JoinedSession: fmt::Debug + Send + Sync {
    /// Adds a connection, and keeps `kept` until it ends. With `first_rests`, the first one is used only while there is no other.
    ///
    /// # Errors
    /// The session has ended; a thread could not be started.
    fn join(
        self: Arc<Self>,
        ends: WireEnds,
        times: &WireTimes,
        first_rests: bool,
        kept: Option<Box<dyn fmt::Debug + Send + Sync>>,
    ) -> Result<()>;
}

/// The other side of a session.
#[derive(Debug, Clone)]
pub struct PeerSide {
    line: Arc<Line>,
    /// Weak: services of the session hold this.
    session: Weak<dyn JoinedSession>,
}

impl PeerSide {
    pub(super) fn new(line: Arc<Line>, session: Weak<dyn JoinedSession>) -> Self {
        Self { line, session }
    }

    /// Returns whether both are the other side of one session.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.line, &other.line)
    }

    /// Returns whether the session has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.line.ended().is_some()
    }

    /// Ends the session.
    pub(super) fn end(&self, error: &Error) {
        self.line.end(error);
    }

    /// Returns the session, for further connections.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if it has ended.
    pub(super) fn session(&self) -> Result<Arc<dyn JoinedSession>> {
        let ended = || Error::new(ErrorKind::Unreachable, "the session has ended");
        self.session.upgrade().ok_or_else(ended)
    }

    /// Returns the objects that the other side offers by itself.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if it offers none.
    pub fn objects(&self, name: &str) -> Result<WireObjects> {
        WireObjects::open(self.line.clone(), None, OsStr::new(""), name)
    }

    /// Asks a service of the other side. The answer may have `max_bytes`, and never more than [`MAX_ANSWER_BYTES`].
    ///
    /// # Errors
    /// Those of the other side.
    ///
    /// [`MAX_ANSWER_BYTES`]: super::MAX_ANSWER_BYTES
    pub fn ask(&self, service: ServiceNumber, body: &[u8], max_bytes: u64) -> Result<Vec<u8>> {
        ask(&self.line, service, body, max_bytes)
    }

    /// Has the other side print something.
    ///
    /// # Errors
    /// Those of the other side.
    pub fn print(&self, is_error: bool, bytes: &[u8]) -> Result<()> {
        let service = match is_error {
            true => ServiceNumber::ERRORS,
            false => ServiceNumber::OUTPUT,
        };
        self.ask(service, bytes, 0).map(drop)
    }
}

/// Asks a service whose answers are nothing but data.
///
/// # Errors
/// Those of the other side.
pub(super) fn ask(
    line: &Line,
    service: ServiceNumber,
    body: &[u8],
    max_bytes: u64,
) -> Result<Vec<u8>> {
    let call = Call::new(service, Vec::new());
    match line.call(call, body, max_bytes)? {
        (_, CallAnswer::Done(words), data) if words.is_empty() => Ok(data),
        _ => Err(wrong_answer(line)),
    }
}
