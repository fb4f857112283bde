//! Further connections of a session, as the side sees to them that began it.

use super::{
    end::silent_peer,
    join_words::{JOINED, join_line},
    limits::WireTimes,
    line::{Line, LineNeeds},
    peer::{JoinedSession, ask},
    session::Session,
    stream::{WireEnds, WireStreams},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{debug, queue::run_each};
use fullbore_wire::{
    frame::{read_greeting, read_line},
    message::{JoinOffer, MAX_VALUES, decode},
    service::ServiceNumber,
};
use rustix::net::sockopt::set_tcp_congestion;
use std::{
    fmt,
    io::{self, Write},
    net::{TcpStream, ToSocketAddrs},
    num::NonZeroUsize,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant},
};

/// Makes further connections to the other side of a session.
pub(crate) trait Dialer: fmt::Debug + Send + Sync {
    /// Makes one.
    ///
    /// # Errors
    /// Those of the connection.
    fn dial(&self, offer: &JoinOffer) -> Result<JoinedEnds>;

    /// Returns whether the first connection rests from now on while another one is there.
    fn first_rests(&self, offer: &JoinOffer) -> bool;
}

/// A further connection.
#[derive(Debug)]
pub(crate) struct JoinedEnds {
    /// After the words of both sides.
    pub(crate) ends: WireEnds,
    /// What must live as long as it.
    pub(crate) kept: Option<Box<dyn fmt::Debug + Send + Sync>>,
}

/// The time of an answer from which on a link is far.
const FAR: Duration = Duration::from_millis(20);

/// The time of an answer that makes one more connection useful: ssh has 2 MiB under way, which 1 Gbit/s carries in 17 ms.
const FAR_STEP: Duration = Duration::from_millis(15);

/// Connections over a far link. Servers of ssh refuse some of more than ten that log in at the same time.
const FAR_CONNECTIONS: RangeInclusive<u128> = 4..=8;

/// Attempts in a row that may fail.
const MAX_FAILURES: u32 = 5;

/// Pause before an attempt, times the number of those that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections that are useful where an answer takes so long.
fn useful_connections(answer_time: Duration) -> usize {
    if answer_time <= FAR {
        return 1;
    }
    let steps = answer_time.as_millis() / FAR_STEP.as_millis();
    steps.clamp(*FAR_CONNECTIONS.start(), *FAR_CONNECTIONS.end()) as usize
}

/// Sees to the connections of a session until it ends, or until none can be made any more.
pub(super) fn keep_connections(
    session: &Arc<Session>,
    dialer: &dyn Dialer,
    wanted: Option<NonZeroUsize>,
    times: &WireTimes,
) {
    let line = &session.line;
    let needs = line.needs.sleep(|needs| !needs.is_busy && !needs.is_ended);
    drop(needs);
    let asked = Instant::now();
    let Ok(offer) = ask_for_connections(line) else {
        return; // the first connection does it all
    };
    let useful = || useful_connections(asked.elapsed());
    let wanted = wanted.map_or_else(useful, NonZeroUsize::get);
    let mut failures = 0;
    while failures < MAX_FAILURES {
        let first_rests = dialer.first_rests(&offer);
        let missing = |needs: &LineNeeds| {
            let first_carries = !first_rests && !needs.is_first_lost;
            let further = wanted - usize::from(first_carries);
            further.saturating_sub(needs.connections)
        };
        let needs = line
            .needs
            .sleep(|needs| !needs.is_ended && missing(needs) == 0);
        let (is_ended, missing) = (needs.0.is_ended, missing(&needs.0));
        drop(needs);
        if is_ended || line.calls.sleep(PAUSE * failures) {
            return;
        }
        // At the same time, as each takes several round trips.
        let dialed = run_each(&vec![(); missing], |()| {
            dial(session, dialer, &offer, times)
        });
        match dialed.into_iter().collect() {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                debug(|| format!("could not open a further connection: {}", error.line()));
            }
        }
    }
}

/// Bytes of an offer at most: a secret, a port and a public key.
const OFFER_BYTES: u64 = 4096;

fn ask_for_connections(line: &Line) -> Result<JoinOffer> {
    let offer = ask(line, ServiceNumber::CONNECTIONS, b"", OFFER_BYTES)?;
    decode(&offer, MAX_VALUES)
}

fn dial(
    session: &Arc<Session>,
    dialer: &dyn Dialer,
    offer: &JoinOffer,
    times: &WireTimes,
) -> Result<()> {
    let joined = dialer.dial(offer)?;
    let first_rests = dialer.first_rests(offer);
    session
        .clone()
        .join(joined.ends, times, first_rests, joined.kept)
}

/// Connects to a server, without small delays, and with the control of congestion that copes best with losses where the system has it.
///
/// # Errors
/// [`ErrorKind::Unreachable`] if no address answers in time.
pub(crate) fn connect_tcp(host: &str, port: u16, time: Duration) -> Result<WireStreams> {
    let failed = |error| {
        Error {
        kind: ErrorKind::Unreachable,
        ..Error::io(format!("could not reach port {port} of {host:?}"), error)
            .hint("is the host up, does `fullbore serve --listen` run there, and does a firewall let this host through?")
    }
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&address, time) {
            Ok(socket) => return tcp_streams(socket).map_err(failed),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

/// Returns both directions of a socket.
///
/// # Errors
/// The system's.
pub(super) fn tcp_streams(socket: TcpStream) -> io::Result<WireStreams> {
    socket.set_nodelay(true)?;
    let _ = set_tcp_congestion(&socket, "bbr"); // not every system has or allows it
    Ok(WireStreams {
        input: socket.try_clone()?.into(),
        output: socket.into(),
    })
}

/// Says which session a connection is to join.
///
/// # Errors
/// [`ErrorKind::Unreachable`] if the other side does not take it.
pub(crate) fn greet_to_join(ends: &mut WireEnds, offer: &JoinOffer, peer: &str) -> Result<()> {
    let failed = |error| silent_peer(peer, error);
    let line = join_line(&offer.secret);
    ends.output.write_all(line.as_bytes()).map_err(failed)?;
    read_greeting(&mut ends.input, peer)?;
    if read_line(&mut ends.input, peer)? == JOINED.as_bytes() {
        return Ok(());
    }
    let message = format!("could not open a further connection to {peer}");
    Err(Error::new(ErrorKind::Unreachable, message).because("it was refused"))
}
