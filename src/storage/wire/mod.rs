//! Objects of another process, over two streams of bytes: those of ssh, or a pair of sockets.
//!
//! A connection is symmetrical: either side may offer objects to the other ([`WireService`]), and many threads may use them at the same time.
//! Both sides begin with a greeting, which has the version; then frames follow, each a message and up to 1 MiB of data. Calls and answers
//! have numbers and come in any order. Uploads are not answered but at their ends: a window of 16 MiB bounds what is on its way.
//!
//! The other side is not trusted: every length is bounded, every number checked, and what does not fit ends the connection with an error.
//! When a connection ends, for whatever reason, all calls that wait fail, uploads that are open are aborted, and then leases are let go. So a holder
//! of a lease whose connection is lost can do nothing more. A side that says nothing for a minute is taken for dead.

mod calls;
mod client;
mod credit;
mod end;
mod frame;
mod link;
mod message;
mod server;
mod stream;
mod upload;

pub use client::WireObjects;

use super::Objects;
use crate::{
    error::{Error, ErrorKind, Result},
    queue::start,
};
use client::wrong_answer;
use frame::{read_greeting, write_greeting};
use link::Link;
use message::{Call, CallAnswer, encode};
use minicbor::bytes::ByteVec;
use std::{
    ffi::{OsStr, OsString},
    fmt,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    sync::{Arc, atomic::AtomicBool},
    thread::JoinHandle,
    time::Duration,
};
use stream::WireStream;

/// What one side offers to the other.
pub trait WireService: fmt::Debug + Send + Sync {
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
}

/// Offers nothing.
#[derive(Debug, Clone, Copy)]
pub struct NoService;

impl WireService for NoService {
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

/// Offers objects by themselves, whatever location is asked for, and prints what the other side prints.
#[derive(Debug)]
pub struct OfferedObjects {
    /// The objects.
    pub objects: Arc<dyn Objects>,
    /// Prints output of a command on the other side, if one may run there: standard error, or else standard output.
    pub print: fn(bool, &[u8]) -> Result<()>,
}

impl OfferedObjects {
    /// Offers objects and prints nothing.
    pub fn new(objects: Arc<dyn Objects>) -> Self {
        Self {
            objects,
            print: |_, _| Err(not_offered("to print")),
        }
    }
}

impl WireService for OfferedObjects {
    fn open(&self, _: &[u8]) -> Result<Arc<dyn Objects>> {
        Ok(self.objects.clone())
    }

    fn run(&self, _: Vec<OsString>, _: PeerSide) -> Result<u8> {
        Err(not_offered("to run commands"))
    }

    fn output(&self, is_error: bool, bytes: &[u8]) -> Result<()> {
        (self.print)(is_error, bytes)
    }
}

/// The error of a side that does not offer `what`.
pub fn not_offered(what: &str) -> Error {
    Error::new(
        ErrorKind::Permission,
        format!("cannot do this: this host does not offer {what}"),
    )
}

/// The two directions of a connection; they may be one socket.
#[derive(Debug)]
pub struct WireStreams {
    /// What the other side says.
    pub input: OwnedFd,
    /// What this side says.
    pub output: OwnedFd,
}

/// Times of a connection.
#[derive(Debug, Clone, Copy)]
pub struct WireTimes {
    /// Between two signs of life.
    pub beat: Duration,
    /// After which the other side is taken for dead.
    pub silence: Duration,
    /// For the greeting of the other side; a person may have to type a password before it.
    pub greeting: Duration,
}

impl Default for WireTimes {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(3),
            silence: Duration::from_secs(60),
            greeting: Duration::from_secs(180),
        }
    }
}

/// A connection. Dropped, it ends.
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
    /// The objects that the other side offers by itself.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if it offers none.
    pub fn objects(&self, name: &str) -> Result<WireObjects> {
        WireObjects::open(self.link.clone(), None, OsStr::new(""), name)
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
        let failed = |error| Error {
            kind: ErrorKind::Unreachable,
            ..Error::io(format!("could not talk to {peer}"), error)
        };
        let is_ended = Arc::new(AtomicBool::new(false));
        let stream = |fd| WireStream::new(fd, is_ended.clone(), times.greeting);
        let mut input = stream(streams.input).map_err(failed)?;
        let mut output = stream(streams.output).map_err(failed)?;
        // A side that has gone away may have said why.
        let written = write_greeting(&mut output);
        read_greeting(&mut input, peer)?;
        written.map_err(failed)?;
        input.silence = times.silence;
        let link = Arc::new(Link::new(peer, output, is_ended.clone(), service));
        let reading = link.clone();
        let reader = start(move || reading.read_until_end(input))?;
        let beating = link.clone();
        start(move || beating.beat_until_end(&times))?;
        Ok(Self {
            link,
            reader: Some(reader),
            kept: None,
        })
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

impl Drop for Wire {
    fn drop(&mut self) {
        let error = Error::new(ErrorKind::Unreachable, "this side closed the connection");
        self.link.end(&error);
        self.kept = None;
    }
}
