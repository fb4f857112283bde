//! Connections that come in: they begin sessions or join one, and prove first that they may.
//!
//! A connection has [`READY_TIME`] from its acceptance until it is a part of a session. Its first line is a greeting, or names the secret of a
//! session. Until it has shown a certificate it has one of the few places of strangers, see [`super::arrivals`].

use super::{
    arrivals::Strangers,
    connected::Wire,
    dialing::tcp_streams,
    end::silent_peer,
    join_words::{JOINED, SECRET_BYTES, join_line, named_session},
    limits::{WireLimits, WireTimes},
    offer::Offer,
    offer::{WireService, answer_by},
    peer::PeerSide,
    stream::{WireEnds, WireStreams},
    tls::one_time_server,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{
    debug,
    queue::{Locked, start},
};
use fullbore_wire::{
    frame::{check_greeting, read_line, write_greeting},
    message::{JoinOffer, encode},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::{ServerConfig, ServerConnection};
use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream},
    },
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// From the acceptance of a connection until it is a part of a session.
const READY_TIME: Duration = Duration::from_secs(10);

/// Threads of connections at the same time: more than all strangers and the hosts of one server need.
pub(super) const MAX_THREADS: usize = 4096;

/// Processes that bring further connections of one session, at the same time.
const MAX_PROCESSES: usize = 128;

/// Time after which whoever waits for connections looks whether it is over.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000_000,
};

/// Sessions that further connections may join.
#[derive(Debug, Default)]
pub struct SessionDoor {
    sessions: Mutex<BTreeMap<[u8; 32], PeerSide>>,
}

impl SessionDoor {
    /// Offers a way to further connections that is the way of the first one.
    ///
    /// # Errors
    /// [`ErrorKind::System`] without random bytes.
    pub fn offer(&self, peer: PeerSide) -> Result<JoinOffer> {
        let mut secret = vec![0; SECRET_BYTES];
        aws_lc_rs::rand::fill(&mut secret).map_err(|error| {
            Error::new(ErrorKind::System, "could not make a secret").because(error.to_string())
        })?;
        let mut sessions = self.sessions.locked();
        // A session has one secret, however often it asks.
        sessions.retain(|_, other| !other.is_ended() && !other.is(&peer));
        if let Some(digest) = named_session(join_line(&secret).as_bytes()) {
            sessions.insert(*digest.as_bytes(), peer);
        }
        Ok(JoinOffer {
            secret: secret.into(),
            listener: None,
        })
    }

    /// Lets a connection with this first line join the session that it names, and keeps `kept` while it lasts.
    pub(super) fn admit(
        &self,
        mut ends: WireEnds,
        line: &[u8],
        first_rests: bool,
        kept: Option<Box<dyn fmt::Debug + Send + Sync>>,
    ) -> Result<()> {
        let refused =
            |why| Error::new(ErrorKind::Permission, "cannot let a connection in").because(why);
        let digest = named_session(line).ok_or_else(|| refused("it names no session"))?;
        let peer = self.sessions.locked().get(digest.as_bytes()).cloned();
        let peer = peer.ok_or_else(|| refused("it names a session that is not there"))?;
        ends.output
            .write_all(JOINED.as_bytes())
            .map_err(|error| silent_peer("the other host", error))?;
        let times = WireTimes::default();
        peer.session()?.join(ends, &times, first_rests, kept)
    }

    pub(super) fn end_all(&self, error: &Error) {
        let sessions = std::mem::take(&mut *self.sessions.locked());
        sessions.values().for_each(|peer| peer.end(error));
    }
}

/// A connection whose first line is here.
#[derive(Debug)]
pub struct ArrivedEnds {
    pub(super) ends: WireEnds,
    pub(super) line: Vec<u8>,
}

impl ArrivedEnds {
    /// Greets whoever is at the other end, and hears what it wants.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if it says nothing.
    pub fn hear(streams: WireStreams, times: &WireTimes) -> Result<Self> {
        let ends = WireEnds::new(streams, times.greeting);
        Self::greeted(ends.map_err(|error| silent_peer("the other host", error))?)
    }

    pub(super) fn greeted(mut ends: WireEnds) -> Result<Self> {
        let peer = "the other host";
        write_greeting(&mut ends.output).map_err(|error| silent_peer(peer, error))?;
        let line = read_line(&mut ends.input, peer)?;
        Ok(Self { ends, line })
    }

    /// Returns whether the connection joins a session, rather than begins one.
    pub fn joins(&self) -> bool {
        named_session(&self.line).is_some()
    }

    /// Begins a session.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the other side has another version.
    pub fn begin(self, offer: Offer, times: &WireTimes) -> Result<Wire> {
        let peer = "the other host";
        check_greeting(&self.line, peer)?;
        Wire::begin(self.ends, peer, offer, times, WireLimits::default())
    }
}

/// Returns the service that offers a way to further connections.
pub fn connection_service(
    offer: impl Fn(PeerSide) -> Result<JoinOffer> + Send + Sync + 'static,
) -> impl WireService + 'static {
    answer_by(move |_, peer| Ok(encode(&offer(peer.clone())?)))
}

/// Returns the address of the process that waits for further connections which ssh brings.
fn session_address(line: &[u8]) -> io::Result<UnixAddress> {
    let digest = named_session(line).ok_or(io::ErrorKind::InvalidInput)?;
    let name = blake3::hash(digest.as_bytes()).to_hex();
    UnixAddress::from_abstract_name(format!("fullbore-{name}"))
}

/// Passes bytes between a connection that joins a session and the process that has the session, until one of them ends.
///
/// # Errors
/// [`ErrorKind::Unreachable`] if there is no such process.
pub fn relay_to_session(arrived: ArrivedEnds) -> Result<()> {
    let failed = |error| silent_peer("the process of the session", error);
    let address = session_address(&arrived.line).map_err(failed)?;
    let socket = UnixStream::connect_addr(&address).map_err(failed)?;
    let mut target = socket.try_clone().map_err(failed)?;
    target.write_all(&arrived.line).map_err(failed)?;
    let WireEnds {
        mut input,
        mut output,
        ..
    } = arrived.ends;
    input.silence = WireTimes::default().silence;
    input.deadline = None;
    output.deadline = None;
    let mut source = socket.try_clone().map_err(failed)?;
    start(move || {
        let _ = pass(&mut input, &mut target); // the other direction ends with it
        let _ = target.shutdown(std::net::Shutdown::Both);
    })?;
    let passed = pass(&mut source, &mut output);
    let _ = socket.shutdown(std::net::Shutdown::Both);
    passed.map_err(failed)
}

fn pass(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut bytes = vec![0; 256 << 10];
    loop {
        let read = from.read(&mut bytes)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&bytes[..read])?;
    }
}

/// Waits for further connections of one session: over TCP, and brought by processes that ssh has started.
#[derive(Debug, Clone, Default)]
pub struct HeldDoor {
    door: Arc<SessionDoor>,
    was_offered: Arc<AtomicBool>,
}

impl HeldDoor {
    /// Listens until the session ends. `address` is the one of this host that the other side has reached.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it was offered before; the system's; a thread could not be started.
    pub fn offer(&self, peer: PeerSide, address: Option<IpAddr>) -> Result<JoinOffer> {
        if self.was_offered.swap(true, Relaxed) {
            let message = "cannot offer further connections twice";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let mut offer = self.door.offer(peer.clone())?;
        let failed = |error| Error::io("could not listen", error);
        let unix = session_address(join_line(&offer.secret).as_bytes()).map_err(failed)?;
        let unix = UnixListener::bind_addr(&unix).map_err(failed)?;
        let (door, peer_name) = (self.door.clone(), peer.clone());
        start(move || door.wait_for_processes(&unix, &peer_name))?;
        let (config, pin) = one_time_server()?;
        let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        match TcpListener::bind(SocketAddr::new(address, 0)) {
            Ok(listener) => {
                let port = listener.local_addr().map_err(failed)?.port();
                offer.listener = Some((port, pin.into()));
                let door = self.door.clone();
                start(move || door.wait_for_sockets(&listener, &config, &peer))?;
            }
            // Without a port further connections come in the way of the first one, such as by ssh.
            Err(error) => debug(|| failed(error).line()),
        }
        Ok(offer)
    }
}

impl SessionDoor {
    fn wait_for_processes(self: &Arc<Self>, listener: &UnixListener, peer: &PeerSide) {
        let accept = || listener.accept().map(|(socket, _)| socket);
        let _ = listener.set_nonblocking(true);
        accept_until(
            listener,
            MAX_PROCESSES,
            || peer.is_ended(),
            accept,
            |socket: UnixStream| {
                let door = self.clone();
                move || {
                    let streams = WireStreams {
                        input: socket.try_clone()?.into(),
                        output: socket.into(),
                    };
                    let mut ends = WireEnds::new(streams, READY_TIME)?;
                    let line = read_line(&mut ends.input, "a process").map_err(io::Error::other)?;
                    door.admit(ends, &line, false, None)
                        .map_err(io::Error::other)
                }
            },
        );
    }

    fn wait_for_sockets(
        self: &Arc<Self>,
        listener: &TcpListener,
        config: &Arc<ServerConfig>,
        peer: &PeerSide,
    ) {
        let _ = listener.set_nonblocking(true);
        let strangers = Arc::<Strangers>::default();
        accept_until(
            listener,
            MAX_THREADS,
            || peer.is_ended(),
            || listener.accept(),
            |(socket, address): (TcpStream, SocketAddr)| {
                let (door, config) = (self.clone(), config.clone());
                let place = strangers.admit(address.ip(), &socket);
                move || {
                    // Whoever joins is known by its secret alone, so the place is its own until it has joined.
                    let _place = place?;
                    let ends = encrypted(tcp_streams(socket)?, config)?;
                    let ArrivedEnds { ends, line } =
                        ArrivedEnds::greeted(ends).map_err(io::Error::other)?;
                    door.admit(ends, &line, true, None)
                        .map_err(io::Error::other)
                }
            },
        );
    }
}

/// Encrypts a connection that came in. The other side has shown its certificate, if the settings want one, when this returns.
pub(super) fn encrypted(streams: WireStreams, config: Arc<ServerConfig>) -> io::Result<WireEnds> {
    let mut ends = WireEnds::new(streams, READY_TIME)?;
    let tls = ServerConnection::new(config).map_err(io::Error::other)?;
    ends.encrypt(tls)?;
    Ok(ends)
}

/// Accepts connections until it is over, and serves each in a thread of its own, `most` at the same time. Each of them holds what is
/// returned.
pub(super) fn accept_until<S, R>(
    listener: impl AsFd,
    most: usize,
    is_over: impl Fn() -> bool,
    accept: impl Fn() -> io::Result<S>,
    serve: impl Fn(S) -> R,
) -> Arc<()>
where
    R: FnOnce() -> io::Result<()> + Send + 'static,
{
    let served = Arc::new(());
    while !is_over() {
        let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&LOOK));
        let Ok(socket) = accept() else {
            continue; // it was not one, has gone, or there is no room for it now
        };
        if Arc::strong_count(&served) > most {
            continue; // closes it
        }
        let (serving, one) = (serve(socket), served.clone());
        let started = start(move || {
            if let Err(error) = serving() {
                debug(|| format!("a connection came in and was refused: {error}"));
            }
            drop(one);
        });
        if let Err(error) = started {
            debug(|| error.line());
        }
    }
    served
}
