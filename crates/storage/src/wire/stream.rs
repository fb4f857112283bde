//! One direction of a connection: a pipe or a socket that is waited for with `poll`, so that whoever waits notices the end of the
//! connection, and a side that says nothing any more. A socket may be encrypted by TLS.

use fullbore_platform::queue::Locked;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
};
use rustls::{Connection, pki_types::CertificateDer};
use std::{
    fs::File,
    io::{self, IoSlice, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// The two directions of a connection; they may be one socket.
#[derive(Debug)]
pub struct WireStreams {
    /// What the other side says.
    pub input: OwnedFd,
    /// What this side says.
    pub output: OwnedFd,
}

/// Time after which whoever waits looks whether the connection has ended.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000_000,
};

/// Encrypted bytes that are read from a socket at once. With a quarter of it, a copy of small files
/// makes one call more for each file.
const SEALED_BUFFER: usize = 256 << 10;

/// Bytes that are read at once while both sides learn who they are.
const HANDSHAKE_BUFFER: usize = 16 << 10;

/// Bytes that are encrypted and sent at once.
const PLAIN_BUFFER: usize = 512 << 10;

/// Bytes a second of the slowest link that is waited for: a frame of 1 MiB may take 4 minutes.
const SLOWEST_RATE: f64 = 4096.0;

/// A pipe or a socket that does not block.
#[derive(Debug)]
pub(crate) struct WireStream {
    file: File,
    is_ended: Arc<AtomicBool>,
    /// A read fails if nothing comes for so long. A write has this time, and that of its bytes over the slowest link.
    pub(crate) silence: Duration,
    /// A read and a write fail after this time, whatever was moved: else a side that sends or takes a byte now and then would never be
    /// late.
    pub(crate) deadline: Option<Instant>,
    tls: Option<Arc<Mutex<Connection>>>,
    /// Encrypted bytes, on their way to or from the socket. Of those that came, `sealed_at` to
    /// `sealed_end` are not decrypted.
    sealed: Vec<u8>,
    sealed_at: usize,
    sealed_end: usize,
}

/// Both directions of one connection.
#[derive(Debug)]
pub(crate) struct WireEnds {
    pub(crate) input: WireStream,
    pub(crate) output: WireStream,
    /// Set, both directions end.
    pub(super) is_ended: Arc<AtomicBool>,
}

impl WireEnds {
    /// Makes both directions. Until [`WireStream::expect_bytes`] a read and a write fail after `silence`, whatever was moved.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(streams: WireStreams, silence: Duration) -> io::Result<Self> {
        let is_ended = Arc::new(AtomicBool::new(false));
        let stream = |fd| WireStream::new(fd, is_ended.clone(), silence);
        let (mut input, mut output) = (stream(streams.input)?, stream(streams.output)?);
        let deadline = Some(Instant::now() + silence);
        input.deadline = deadline;
        output.deadline = deadline;
        Ok(Self {
            input,
            output,
            is_ended: is_ended.clone(),
        })
    }

    /// Encrypts the connection. Both sides know each other when this returns, but a client learns from its first read that the server
    /// refused it.
    ///
    /// # Errors
    /// The socket's, and why one side refuses the other.
    pub(crate) fn encrypt(&mut self, tls: impl Into<Connection>) -> io::Result<()> {
        let mut tls = tls.into();
        let mut sealed = Vec::new();
        // Whoever is at the other end has not shown who they are.
        let mut piece = [0; HANDSHAKE_BUFFER];
        loop {
            while tls.wants_write() {
                tls.write_tls(&mut sealed)?;
            }
            self.output.write_all(&sealed)?;
            sealed.clear();
            if !tls.is_handshaking() {
                break;
            }
            let read = self.input.read(&mut piece)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut left = &piece[..read];
            while !left.is_empty() {
                tls.read_tls(&mut left)?;
                if let Err(error) = tls.process_new_packets() {
                    let _ = tls.write_tls(&mut sealed);
                    let _ = self.output.write_all(&sealed); // the other side is told why, if it hears
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
        }
        tls.set_buffer_limit(Some(PLAIN_BUFFER));
        let tls = Arc::new(Mutex::new(tls));
        self.input.tls = Some(tls.clone());
        self.output.tls = Some(tls);
        Ok(())
    }
}

impl WireEnds {
    /// Returns the certificate of the other side, if it has shown one.
    pub(super) fn peer_certificate(&self) -> Option<CertificateDer<'static>> {
        let tls = self.input.tls.as_ref()?.locked();
        let chain = tls.peer_certificates()?;
        chain
            .first()
            .map(|certificate| certificate.clone().into_owned())
    }
}

impl WireStream {
    fn new(fd: OwnedFd, is_ended: Arc<AtomicBool>, silence: Duration) -> io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            file: fd.into(),
            is_ended,
            silence,
            deadline: None,
            tls: None,
            sealed: Vec::new(),
            sealed_at: 0,
            sealed_end: 0,
        })
    }

    /// Does the call again until it need not wait.
    fn retried<T>(
        &self,
        flags: PollFlags,
        deadline: Option<Instant>,
        mut call: impl FnMut(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            if self.is_ended.load(Relaxed) {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "the connection has ended",
                ));
            }
            match call(&self.file) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            // After the call: what came in time counts, however late this thread runs.
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(self.late(flags));
            }
            match poll(&mut [PollFd::new(&self.file, flags)], Some(&LOOK)) {
                Err(rustix::io::Errno::INTR) | Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn late(&self, flags: PollFlags) -> io::Error {
        let why = if flags == PollFlags::OUT {
            "a message was not taken as a whole in time".to_owned()
        } else {
            format!("nothing came for {} seconds", self.silence.as_secs_f32())
        };
        io::Error::new(io::ErrorKind::TimedOut, why)
    }

    /// Sets the time in which so many bytes must be moved: within the time of silence, and the time that they take over the slowest link.
    pub(super) fn expect_bytes(&mut self, bytes: usize) {
        let most = Duration::from_secs_f64(bytes as f64 / SLOWEST_RATE);
        self.deadline = Some(Instant::now() + self.silence + most);
    }

    fn read_socket(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let silent = Instant::now() + self.silence;
        let deadline = self.deadline.map_or(silent, |limit| limit.min(silent));
        if Instant::now() >= deadline {
            return Err(late_error());
        }
        let read = self.retried(PollFlags::IN, Some(deadline), |mut file| file.read(bytes));
        read.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut if Instant::now() < silent => late_error(),
            _ => error,
        })
    }

    /// Decrypts what came until there is something to return.
    fn read_sealed(&mut self, tls: &Mutex<Connection>, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut open = tls.locked();
            match open.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            let mut left = &self.sealed[self.sealed_at..self.sealed_end];
            if !left.is_empty() {
                self.sealed_at += open.read_tls(&mut left)?;
                open.process_new_packets()
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                continue;
            }
            // The other direction uses the same session of TLS, and must not wait for what comes.
            drop(open);
            let mut sealed = std::mem::take(&mut self.sealed);
            (self.sealed_at, self.sealed_end) = (0, 0);
            sealed.resize(SEALED_BUFFER, 0);
            let read = self.read_socket(&mut sealed)?;
            self.sealed = sealed;
            (self.sealed_at, self.sealed_end) = (0, read);
            if read == 0 {
                return Ok(0);
            }
        }
    }

    /// Encrypts bytes and sends them all.
    fn write_sealed(
        &mut self,
        tls: &Mutex<Connection>,
        slices: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        let mut open = tls.locked();
        let written = open.writer().write_vectored(slices)?;
        self.sealed.clear();
        while open.wants_write() {
            open.write_tls(&mut self.sealed)?;
        }
        drop(open);
        let mut left = &self.sealed[..];
        while !left.is_empty() {
            let sent = self.retried(PollFlags::OUT, self.deadline, |mut file| file.write(left))?;
            left = &left[sent..];
        }
        Ok(written)
    }

    /// Returns whether a few bytes can be written without waiting.
    pub(super) fn has_room(&self) -> bool {
        let mut wait = [PollFd::new(&self.file, PollFlags::OUT)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(poll(&mut wait, Some(&at_once)), Ok(1..))
    }

    /// Wakes both sides, if this is a socket; the other side of a pipe wakes when this is closed.
    pub(super) fn shut_down(self) {
        let _ = UnixStream::from(OwnedFd::from(self.file)).shutdown(std::net::Shutdown::Both);
    }
}

fn late_error() -> io::Error {
    let why = "a message did not come as a whole in time";
    io::Error::new(io::ErrorKind::TimedOut, why)
}

impl Read for WireStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.tls.clone() {
            None => self.read_socket(bytes),
            Some(tls) => self.read_sealed(&tls, bytes),
        }
    }
}

impl Write for WireStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.tls.clone() {
            None => {
                let write = |mut file: &File| file.write_vectored(slices);
                self.retried(PollFlags::OUT, self.deadline, write)
            }
            Some(tls) => self.write_sealed(&tls, slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
