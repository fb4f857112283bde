//! A server that hosts reach with certificates.

use super::{
    arrivals::{KnownConnection, KnownHosts, MAX_SESSIONS, Strangers},
    dialing::tcp_streams,
    door::{ArrivedEnds, MAX_THREADS, SessionDoor, accept_until, encrypted},
    limits::WireTimes,
    offer::Offer,
    peer::PeerSide,
    tls_server::TlsServer,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::Locked;
use fullbore_wire::certificate::certificate_name;
use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// For all sessions to end when the server does.
const ENDING_TIME: Duration = Duration::from_secs(10);

/// After which a session of a server ends whose other side asks nothing, and has no upload and no lease.
const IDLE_TIME: Duration = Duration::from_secs(3600);

/// Makes what a server offers to a host whose certificate has this name, if it has one.
pub type OfferToHost = dyn Fn(Option<String>) -> Offer + Send + Sync;

/// A server that hosts reach with certificates.
struct CertifiedDoor {
    tls: TlsServer,
    offer_to: Box<OfferToHost>,
    door: Arc<SessionDoor>,
    strangers: Arc<Strangers>,
    hosts: Arc<KnownHosts>,
    running: Mutex<Vec<PeerSide>>,
}

impl CertifiedDoor {
    /// Serves a connection that came in, until it is a part of a session or the session that it began has ended.
    fn serve(&self, socket: TcpStream, address: IpAddr) -> io::Result<()> {
        let place = self.strangers.admit(address, &socket)?;
        let ends = encrypted(tcp_streams(socket)?, self.tls.config())?;
        drop(place);
        let certificate = ends.peer_certificate();
        let certificate = certificate.ok_or(io::ErrorKind::PermissionDenied)?;
        let known = self.hosts.admit(&certificate);
        let known = known.ok_or_else(|| io::Error::other("its certificate has too many"))?;
        let arrived = ArrivedEnds::greeted(ends).map_err(io::Error::other)?;
        if arrived.joins() {
            let ArrivedEnds { ends, line } = arrived;
            let kept = Some(Box::new(known) as _);
            return self
                .door
                .admit(ends, &line, false, kept)
                .map_err(io::Error::other);
        }
        self.serve_session(arrived, known, certificate_name(&certificate))
    }

    fn serve_session(
        &self,
        arrived: ArrivedEnds,
        mut known: KnownConnection,
        name: Option<String>,
    ) -> io::Result<()> {
        let offer = match known.begin_session() {
            true => (self.offer_to)(name),
            false => Offer::refusing(too_many_sessions),
        };
        let times = WireTimes {
            idle: Some(IDLE_TIME),
            ..WireTimes::default()
        };
        let wire = arrived.begin(offer, &times).map_err(io::Error::other)?;
        let mut all = self.running.locked();
        all.retain(|peer| !peer.is_ended());
        all.push(wire.peer());
        drop(all);
        wire.wait().map_err(io::Error::other)
    }
}

/// The error for a host that has too many sessions.
fn too_many_sessions() -> Error {
    Error::new(ErrorKind::Unreachable, "could not use the server")
        .because(format!(
            "{MAX_SESSIONS} sessions of this certificate are open"
        ))
        .hint("wait until another command of this host ends")
}

/// Serves everyone who comes with a certificate, until it is over; then all sessions end.
///
/// # Errors
/// The system's.
pub fn listen_for_sessions(
    listener: &TcpListener,
    tls: TlsServer,
    offer_to: Box<OfferToHost>,
    door: Arc<SessionDoor>,
    is_over: impl Fn() -> bool,
) -> Result<()> {
    let failed = |error| Error::io("could not listen", error);
    listener.set_nonblocking(true).map_err(failed)?;
    let certified = Arc::new(CertifiedDoor {
        tls,
        offer_to,
        door,
        strangers: Arc::default(),
        hosts: Arc::default(),
        running: Mutex::default(),
    });
    let accept = || listener.accept();
    let served = accept_until(listener, MAX_THREADS, &is_over, accept, |came| {
        let (socket, address): (TcpStream, SocketAddr) = came;
        let certified = certified.clone();
        move || certified.serve(socket, address.ip())
    });
    let error = Error::new(ErrorKind::Unreachable, "the server ends");
    certified.door.end_all(&error);
    let running = certified.running.locked();
    running.iter().for_each(|peer| peer.end(&error));
    drop(running);
    // Uploads are given up and leases let go, unless a disk hangs.
    let began = Instant::now();
    while Arc::strong_count(&served) > 1 && began.elapsed() < ENDING_TIME {
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
