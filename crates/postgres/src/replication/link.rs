//! The connection below the messages: a socket, TCP, or TLS over TCP.

use super::message::lost;
use crate::{
    conninfo::{Host, Keepalive, Params, SettingPlace},
    tls,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use postgres::config::SslMode;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt,
};
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};
use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    os::{fd::AsFd, unix::net::UnixStream},
    path::Path,
    sync::Arc,
    time::Duration,
};

/// Asks the server for TLS: a length and a number.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// Time for a connection and for its start, unless a connect_timeout is given.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) enum Link {
    Socket(UnixStream),
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Link {
    /// Connects to a host with one kind of encryption.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`]; those of TLS.
    pub(super) fn open(params: &Params, host: &Host, encryption: SslMode) -> Result<Self> {
        let limit = params.connect_timeout.unwrap_or(PATIENCE);
        let link = match &host.place {
            SettingPlace::Socket(dir) => {
                let path = Path::new(dir).join(format!(".s.PGSQL.{}", host.port));
                Self::Socket(
                    UnixStream::connect(path).map_err(|value| unreachable_host(host, value))?,
                )
            }
            SettingPlace::Network(name, address) => {
                let stream = match address {
                    Some(address) => connect_tcp((*address, host.port), limit),
                    None => connect_tcp((name.as_str(), host.port), limit),
                };
                let stream = stream.map_err(|value| unreachable_host(host, value))?;
                keep_alive(&stream, &params.keepalive)
                    .map_err(|value| unreachable_host(host, value))?;
                stream
                    // A server that accepts and then says nothing must not hold the run.
                    .set_read_timeout(Some(limit))
                    .map_err(|value| unreachable_host(host, value))?;
                match encryption {
                    SslMode::Disable => Self::Tcp(stream),
                    mode => encrypted(params, name, stream, mode == SslMode::Prefer)?,
                }
            }
        };
        link.set_patience(Some(limit))?;
        Ok(link)
    }

    /// Limits the time that a read waits.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn set_patience(&self, limit: Option<Duration>) -> Result<()> {
        let set = match self {
            Self::Socket(stream) => stream.set_read_timeout(limit),
            Self::Tcp(stream) => stream.set_read_timeout(limit),
            Self::Tls(stream) => stream.sock.set_read_timeout(limit),
        };
        set.map_err(|error| lost(&error))
    }

    /// Returns whether there is something to read at once.
    pub(super) fn is_ready(&self) -> bool {
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let fd = match self {
            Self::Socket(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.sock.as_fd(),
        };
        let mut wait = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        matches!(poll(&mut wait, Some(&at_once)), Ok(1..))
    }

    /// Returns the server's certificate, if the connection is encrypted.
    pub(super) fn server_certificate(&self) -> Option<&[u8]> {
        match self {
            Self::Tls(stream) => Some(stream.conn.peer_certificates()?.first()?.as_ref()),
            _ => None,
        }
    }
}

fn unreachable_host(host: &Host, error: io::Error) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!("could not connect to the server at {host}"),
    )
    .because(fullbore_format::error::reason(&error))
}

/// Connects to the first address that answers.
fn connect_tcp(place: impl ToSocketAddrs, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in place.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn keep_alive(stream: &TcpStream, keepalive: &Keepalive) -> io::Result<()> {
    if !keepalive.wanted {
        return Ok(());
    }
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, at_least_a_second(keepalive.idle))?;
    sockopt::set_tcp_keepintvl(stream, at_least_a_second(keepalive.interval))?;
    sockopt::set_tcp_keepcnt(stream, keepalive.count.max(1))?;
    Ok(())
}

fn at_least_a_second(seconds: Duration) -> Duration {
    Duration::from_secs(seconds.as_secs().max(1))
}

/// Begins TLS. A server without it is an error unless `is_optional`.
fn encrypted(
    params: &Params,
    name: &str,
    mut stream: TcpStream,
    is_optional: bool,
) -> Result<Link> {
    if !params.tls.direct {
        let mut answer = [0];
        let asked = stream
            .write_all(&SSL_REQUEST)
            .and_then(|()| stream.read_exact(&mut answer));
        asked.map_err(|error| lost(&error))?;
        match answer {
            // Only this byte is read: clear bytes behind it would spoil the handshake, not pass for
            // the server's.
            [b'S'] => {}
            _ if is_optional => return Ok(Link::Tcp(stream)),
            _ => {
                let message = "the server does not support TLS, and sslmode asks for it";
                return Err(Error::new(ErrorKind::Unsupported, message).hint(
                    "set `ssl = on` there, or sslmode=prefer here, with which the connection may be in clear text",
                ));
            }
        }
    }
    let config = Arc::new(tls::client_config(&params.tls)?);
    let server = ServerName::try_from(name.to_owned()).map_err(|_| {
        Error::new(
            ErrorKind::Usage,
            format!("{name:?} is not a name of a host"),
        )
    })?;
    let mut connection = ClientConnection::new(config, server).map_err(|error| {
        Error::new(ErrorKind::Permission, "could not begin TLS with the server").because(error)
    })?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).map_err(|error| {
            Error::new(ErrorKind::Permission, "could not begin TLS with the server").because(error)
        })?;
    }
    Ok(Link::Tls(Box::new(StreamOwned::new(connection, stream))))
}

impl Read for Link {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => stream.read(out),
            Self::Tcp(stream) => stream.read(out),
            Self::Tls(stream) => stream.read(out),
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Socket(stream) => stream.flush(),
            Self::Tcp(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
