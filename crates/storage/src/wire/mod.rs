//! Objects of another process, over one connection or several: those of ssh, sockets, or a pair of them.
//!
//! A session is symmetrical: either side may offer objects to the other ([`WireService`]), and many threads may use them at the same time.
//! Both sides begin with a greeting, which has the version; then frames follow, each a message and up to 1 MiB of data. Calls and answers
//! have numbers and come in any order. Uploads are not answered but at their ends: a window of 16 MiB bounds what is on its way.
//!
//! A session that moves much gets further connections (`Dialer`): frames go by any of them, are received in order, and are sent again
//! if a connection breaks. The session ends with its last connection.
//!
//! The other side is not trusted: every length is bounded, every number checked, and what does not fit ends the session with an error.
//! A session holds at most 32 MiB of answers that the other side does not take, as much of questions, as much of frames that it may have to
//! send again, 48 MiB of frames that came too early, and 16 MiB of uploads; a single larger object comes on top.
//! When a session ends, for whatever reason, all calls that wait fail, uploads that are open are aborted, and then leases are let go. So a holder
//! of a lease whose connection is lost can do nothing more. A side that says nothing for a minute is taken for dead.

mod answers;
mod arrivals;
mod bodies;
mod calls;
mod client;
mod credit;
mod dialing;
mod documents;
mod door;
mod end;
mod inlet;
mod leases;
mod limits;
mod link;
mod listen;
mod outlet;
mod server;
mod stream;
mod tls;
mod tls_server;
mod upload;
mod workers;

pub use bodies::CallBody;
pub use client::WireObjects;
pub(super) use dialing::{Dialer, JoinedEnds, connect_tcp, greet_to_join};
pub use door::{ArrivedEnds, HeldDoor, SessionDoor, relay_to_session};
pub use fullbore_wire::message::{AskTopic, JoinOffer};
pub use limits::{WireLimits, WireTimes};
pub use listen::{ServiceOfHost, listen_for_sessions};
pub(super) use stream::WireEnds;
pub use tls::TlsFiles;
pub(super) use tls::pinned_client;
pub use tls_server::{TlsClients, TlsServer};

use super::Objects;
use calls::MAX_BODIES;
use client::wrong_answer;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::{ByteBudget, start};
use fullbore_wire::frame::{read_greeting, write_greeting};
use fullbore_wire::message::{Call, CallAnswer, encode};
use link::Link;
use minicbor::bytes::ByteVec;
use std::{
    ffi::{OsStr, OsString},
    fmt,
    num::NonZeroUsize,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    sync::Arc,
    thread::JoinHandle,
};

/// Bytes of answers that are read from the storage and not yet sent, unless one is alone. A worker waits for room before it reads.
pub const ANSWER_WINDOW: usize = 32 << 20;

/// Bytes of the answer to a question at most.
pub const MAX_ANSWER_BYTES: u64 = MAX_BODIES as u64;

/// What one side offers to the other.
pub trait WireService: fmt::Debug + Send + Sync {
    /// Bytes of the data of a call that this side takes, as far as the protocol allows them. Asked before any of them is kept.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if such a call is not allowed; its data is dropped then.
    fn body_limit(&self, body: CallBody) -> Result<u64> {
        Ok(body.max_bytes())
    }

    /// The objects at a location, a word of the command line; for an empty word the ones that this side offers by itself.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if they are not offered; the storage's.
    fn open(&self, location: &[u8]) -> Result<Arc<dyn Objects>>;

    /// Runs this program with other arguments, which may use the objects of the other side. Returns its exit code.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if that is not offered; the program could not be started.
    fn run(&self, arguments: Vec<OsString>, peer: PeerSide) -> Result<u8>;

    /// Prints what a command printed that this side has run on the other.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if there is no such command.
    fn output(&self, is_error: bool, bytes: &[u8]) -> Result<()>;

    /// Offers a way to further connections of the session with this other side.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if there is none.
    fn offer(&self, _peer: PeerSide) -> Result<JoinOffer> {
        Err(not_offered("further connections"))
    }

    /// Room for the answers of a session: that of all sessions of one host, if they share it.
    fn answer_room(&self) -> Arc<ByteBudget> {
        Arc::new(ByteBudget::new(ANSWER_WINDOW))
    }

    /// Bytes of memory that a question takes here, until its answer is sent. A worker waits for that room before it asks.
    fn question_room(&self, _topic: AskTopic, _question: &[u8]) -> usize {
        0
    }

    /// Answers a question that the session does not understand, from any thread.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if the topic is not offered; those of the question.
    fn ask(&self, topic: AskTopic, _question: &[u8]) -> Result<Vec<u8>> {
        Err(unknown_topic(topic))
    }
}

/// Offers nothing.
#[derive(Debug, Clone, Copy)]
pub struct NoService;

impl WireService for NoService {
    fn body_limit(&self, body: CallBody) -> Result<u64> {
        Err(body.not_offered())
    }

    fn open(&self, _: &[u8]) -> Result<Arc<dyn Objects>> {
        Err(not_offered("a repository"))
    }

    fn run(&self, _: Vec<OsString>, _: PeerSide) -> Result<u8> {
        Err(not_offered("to run commands"))
    }

    fn output(&self, _: bool, _: &[u8]) -> Result<()> {
        Err(not_offered("to print"))
    }
}

/// Offers objects by themselves, whatever location is asked for.
#[derive(Debug)]
pub struct OfferedObjects(Arc<dyn Objects>);

impl OfferedObjects {
    /// Offers objects.
    pub fn new(objects: Arc<dyn Objects>) -> Self {
        Self(objects)
    }
}

impl WireService for OfferedObjects {
    fn open(&self, _: &[u8]) -> Result<Arc<dyn Objects>> {
        Ok(self.0.clone())
    }

    fn run(&self, _: Vec<OsString>, _: PeerSide) -> Result<u8> {
        Err(not_offered("to run commands"))
    }

    fn output(&self, _: bool, _: &[u8]) -> Result<()> {
        Err(not_offered("to print"))
    }
}

/// The error of a side that does not offer `what`.
pub fn not_offered(what: &str) -> Error {
    Error::new(
        ErrorKind::Permission,
        format!("cannot do this: this host does not offer {what}"),
    )
}

/// The error of a side that does not know the topic.
pub fn unknown_topic(topic: AskTopic) -> Error {
    not_offered(match topic {
        AskTopic::Files => "its files",
        AskTopic::Copy => "to copy trees",
        AskTopic::Report => "to write a report",
    })
}

/// The two directions of a connection; they may be one socket.
#[derive(Debug)]
pub struct WireStreams {
    /// What the other side says.
    pub input: OwnedFd,
    /// What this side says.
    pub output: OwnedFd,
}

/// A session. Dropped, it ends.
#[derive(Debug)]
pub struct Wire {
    link: Arc<Link>,
    reader: Option<JoinHandle<()>>,
    /// What must live as long as the connection.
    kept: Option<Box<dyn fmt::Debug + Send + Sync>>,
}

/// The other side of a connection, for a command that runs on this one.
#[derive(Debug, Clone)]
pub struct PeerSide {
    link: Arc<Link>,
}

impl PeerSide {
    /// Has the session ended?
    fn is_ended(&self) -> bool {
        self.link.ended().is_some()
    }

    /// Ends the session.
    fn end(&self, error: &Error) {
        self.link.end(error);
    }

    /// The objects that the other side offers by itself.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if it offers none.
    pub fn objects(&self, name: &str) -> Result<WireObjects> {
        WireObjects::open(self.link.clone(), None, OsStr::new(""), name)
    }

    /// Asks the service of the other side. The answer may have `max_bytes`, and never more than [`MAX_ANSWER_BYTES`].
    ///
    /// # Errors
    /// Those of the other side.
    pub fn ask(&self, topic: AskTopic, question: &[u8], max_bytes: u64) -> Result<Vec<u8>> {
        match self.link.call(Call::Ask { topic }, question, max_bytes)? {
            (_, CallAnswer::Bytes, answer) => Ok(answer),
            _ => Err(wrong_answer(&self.link)),
        }
    }

    /// Has the other side print something.
    ///
    /// # Errors
    /// Those of the other side.
    pub fn print(&self, is_error: bool, bytes: &[u8]) -> Result<()> {
        self.link
            .call(Call::Output { is_error }, bytes, 0)
            .map(drop)
    }
}

impl Wire {
    /// Connects to another side, which messages call `peer` (in quotes), and offers it a service.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if the other side does not answer, [`ErrorKind::Unsupported`] if it has another version.
    pub fn connect(
        streams: WireStreams,
        peer: &str,
        service: Arc<dyn WireService>,
        times: WireTimes,
    ) -> Result<Self> {
        let ends = WireEnds::new(streams, times.greeting);
        let ends = ends.map_err(|error| silent_peer(peer, error))?;
        Self::greet(ends, peer, service, &times, WireLimits::default())
    }

    /// As [`Wire::connect`], over a connection that may be encrypted, and with limits.
    ///
    /// # Errors
    /// As [`Wire::connect`].
    pub(super) fn greet(
        mut ends: WireEnds,
        peer: &str,
        service: Arc<dyn WireService>,
        times: &WireTimes,
        limits: WireLimits,
    ) -> Result<Self> {
        // A side that has gone away may have said why.
        let written = write_greeting(&mut ends.output);
        read_greeting(&mut ends.input, peer)?;
        written.map_err(|error| silent_peer(peer, error))?;
        Self::begin(ends, peer, service, times, limits)
    }

    /// Begins a session after the greetings.
    fn begin(
        ends: WireEnds,
        peer: &str,
        service: Arc<dyn WireService>,
        times: &WireTimes,
        limits: WireLimits,
    ) -> Result<Self> {
        let link = Arc::new(Link::new(peer, limits, service));
        let reader = link.begin(ends, times)?;
        Ok(Self {
            link,
            reader: Some(reader),
            kept: None,
        })
    }

    /// Opens further connections once the session moves much: so many in all, or as many as are useful.
    ///
    /// # Errors
    /// A thread could not be started.
    pub(super) fn dialing(
        self,
        dialer: Arc<dyn Dialer>,
        connections: Option<NonZeroUsize>,
        times: WireTimes,
    ) -> Result<Self> {
        let link = self.link.clone();
        start(move || dialing::keep_connections(&link, &*dialer, connections, &times))?;
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
        WireObjects::open(self.link.clone(), Some(self.clone()), location, name)
    }

    /// Runs this program on the other side, and returns its exit code. Its output comes to the service of this side.
    ///
    /// # Errors
    /// Those of the other side.
    pub fn run(&self, arguments: &[OsString]) -> Result<u8> {
        let words = arguments
            .iter()
            .map(|argument| ByteVec::from(argument.as_bytes().to_vec()));
        let body = encode(&words.collect::<Vec<_>>());
        match self.link.call(Call::Run, &body, 0)? {
            (_, CallAnswer::Exited(code), _) => Ok(code),
            _ => Err(wrong_answer(&self.link)),
        }
    }

    /// The other side, for questions.
    pub fn peer(&self) -> PeerSide {
        self.link.peer_side()
    }

    /// Waits until the other side ends the connection, and what it has begun is ended.
    ///
    /// # Errors
    /// The reason why it ended, if the other side did not close it between two frames.
    pub fn wait(mut self) -> Result<()> {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join(); // a reader that panicked has ended, too
        }
        match self.link.ended() {
            Some(error) if !self.link.calls.is_closed() => Err(error),
            _ => Ok(()),
        }
    }
}

fn silent_peer(peer: &str, error: std::io::Error) -> Error {
    Error {
        kind: ErrorKind::Unreachable,
        ..Error::io(format!("could not talk to {peer}"), error)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let error = Error::new(ErrorKind::Unreachable, "this side closed the connection");
        self.link.end(&error);
        self.kept = None;
    }
}
