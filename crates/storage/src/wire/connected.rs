//! A session as the side holds it that uses it: connected, until it is dropped.

use super::{
    calls::MAX_BODIES,
    client::{WireObjects, wrong_answer},
    commands::encode_arguments,
    dialing::{Dialer, keep_connections},
    end::silent_peer,
    limits::{WireLimits, WireTimes},
    offer::Offer,
    peer::{PeerSide, ask},
    session::Session,
    stream::{WireEnds, WireStreams},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::start;
use fullbore_wire::{
    frame::{read_greeting, write_greeting},
    service::ServiceNumber,
};
use std::{
    ffi::{OsStr, OsString},
    fmt,
    num::NonZeroUsize,
    sync::Arc,
    thread::JoinHandle,
};

/// Bytes of the answer to a question at most.
pub const MAX_ANSWER_BYTES: u64 = MAX_BODIES as u64;

/// A session. Dropped, it ends.
#[derive(Debug)]
pub struct Wire {
    session: Arc<Session>,
    reader: Option<JoinHandle<()>>,
    /// What must live as long as the connection.
    kept: Option<Box<dyn fmt::Debug + Send + Sync>>,
}

impl Wire {
    /// Connects to another side, which messages call `peer` (in quotes), and offers it a service.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if the other side does not answer, [`ErrorKind::Unsupported`] if it has another version.
    pub fn connect(
        streams: WireStreams,
        peer: &str,
        offer: Offer,
        times: WireTimes,
    ) -> Result<Self> {
        let ends = WireEnds::new(streams, times.greeting);
        let ends = ends.map_err(|error| silent_peer(peer, error))?;
        Self::greet(ends, peer, offer, &times, WireLimits::default())
    }

    /// As [`Wire::connect`], over a connection that may be encrypted, and with limits.
    ///
    /// # Errors
    /// As [`Wire::connect`].
    pub(crate) fn greet(
        mut ends: WireEnds,
        peer: &str,
        offer: Offer,
        times: &WireTimes,
        limits: WireLimits,
    ) -> Result<Self> {
        // A side that has gone away may have said why.
        let written = write_greeting(&mut ends.output);
        read_greeting(&mut ends.input, peer)?;
        written.map_err(|error| silent_peer(peer, error))?;
        Self::begin(ends, peer, offer, times, limits)
    }

    /// Begins a session after the greetings.
    pub(super) fn begin(
        ends: WireEnds,
        peer: &str,
        offer: Offer,
        times: &WireTimes,
        limits: WireLimits,
    ) -> Result<Self> {
        let session = Session::new(peer, limits, offer);
        let reader = session.begin(ends, times)?;
        Ok(Self {
            session,
            reader: Some(reader),
            kept: None,
        })
    }

    /// Opens further connections once the session moves much: so many in all, or as many as are useful.
    ///
    /// # Errors
    /// A thread could not be started.
    pub(crate) fn dialing(
        self,
        dialer: Arc<dyn Dialer>,
        connections: Option<NonZeroUsize>,
        times: WireTimes,
    ) -> Result<Self> {
        let session = self.session.clone();
        start(move || keep_connections(&session, &*dialer, connections, &times))?;
        Ok(self)
    }

    /// Keeps something until the connection ends, such as the process that it leads to.
    #[must_use]
    pub fn keeping(mut self, kept: Box<dyn fmt::Debug + Send + Sync>) -> Self {
        self.kept = Some(kept);
        self
    }

    /// Opens the objects at a location of the other side, a word of its command line. Messages call them `name`, such as `ssh://db1/backup`.
    ///
    /// # Errors
    /// Those of the other side.
    pub fn objects(self: &Arc<Self>, location: &OsStr, name: &str) -> Result<WireObjects> {
        let line = self.session.line.clone();
        WireObjects::open(line, Some(self.clone()), location, name)
    }

    /// Runs this program on the other side, and returns its exit code. Its output comes to the service of this side.
    ///
    /// # Errors
    /// Those of the other side.
    pub fn run(&self, arguments: &[OsString]) -> Result<u8> {
        let line = &self.session.line;
        let question = encode_arguments(arguments);
        match ask(line, ServiceNumber::COMMANDS, &question, 1)?[..] {
            [code] => Ok(code),
            _ => Err(wrong_answer(line)),
        }
    }

    /// The other side, for questions.
    pub fn peer(&self) -> PeerSide {
        self.session.peer_side()
    }

    /// Waits until the other side ends the connection, and what it has begun is ended.
    ///
    /// # Errors
    /// The reason why it ended, if the other side did not close it between two frames.
    pub fn wait(mut self) -> Result<()> {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join(); // a reader that panicked has ended, too
        }
        let line = &self.session.line;
        match line.ended() {
            Some(error) if !line.calls.is_closed() => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let error = Error::new(ErrorKind::Unreachable, "this side closed the connection");
        self.session.line.end(&error);
        self.kept = None;
    }
}
