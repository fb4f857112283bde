//! Repositories of servers of this program: `fullbore serve --listen`, over TLS.

use super::{
    ssh::HostSettings,
    wire::{
        Dialer, JoinOffer, JoinedEnds, Offer, TlsFiles, Wire, WireEnds, WireObjects, WireTimes,
        connect_tcp, greet_to_join,
    },
};
use fullbore_format::error::{Error, ErrorKind, Result};
use std::{ffi::OsStr, sync::Arc, time::Duration};

/// For a connection to a server to be ready.
const READY_TIME: Duration = Duration::from_secs(20);

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ServerAddress {
    host: String,
    port: u16,
}

impl ServerAddress {
    /// Reads `HOST:PORT`; an address of IPv6 is in brackets.
    fn parse(text: &str) -> Result<Self> {
        let (host, port) = text
            .rsplit_once(':')
            .ok_or_else(|| refused_address("it names no port", text))?;
        let port = port
            .parse()
            .map_err(|_| refused_address("its port is no number", text))?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        if host.is_empty() {
            return Err(refused_address("it names no host", text));
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

fn refused_address(why: &str, text: &str) -> Error {
    let message = format!("cannot use {:?}", format!("fullbore://{text}"));
    Error::new(ErrorKind::Usage, message).because(why.to_owned())
}

/// Connects to the objects of `HOST:PORT/PATH`; without a path, those that the server offers.
///
/// # Errors
/// [`ErrorKind::Usage`] for an address without a port or without the files of TLS, [`ErrorKind::Unreachable`] if the server does not
/// answer, [`ErrorKind::Permission`] if it refuses; those of the server.
pub(super) fn connect(server: &str, settings: &HostSettings) -> Result<WireObjects> {
    let (address, path) = server.split_at(server.find('/').unwrap_or(server.len()));
    let dialer = ServerDialer {
        address: ServerAddress::parse(address)?,
        peer: format!("{:?}", format!("fullbore://{address}")),
        tls: settings.tls.clone(),
    };
    let times = WireTimes {
        greeting: READY_TIME,
        ..WireTimes::default()
    };
    let ends = dialer.connect()?;
    let limits = settings.limits.clone();
    let wire = Wire::greet(ends, &dialer.peer, Offer::none(), &times, limits)
        .map_err(|error| refused_by_server(error, &dialer.peer))?
        .dialing(Arc::new(dialer), settings.connections, times)?;
    let path = if path == "/" { "" } else { path };
    Arc::new(wire).objects(OsStr::new(path), &format!("fullbore://{server}"))
}

/// Returns the error of a connection with the refusal of the server. A server that refuses a certificate says so after the client has greeted it.
fn refused_by_server(error: Error, peer: &str) -> Error {
    let is_alert = error.line().contains("fatal alert");
    if !is_alert {
        return error;
    }
    Error::new(ErrorKind::Permission, format!("cannot use {peer}"))
        .because(error.line())
        .hint("the server refuses the certificate of --tls-cert: its --tls-ca must have signed it, and its --tls-name and --tls-crl must admit it")
}

/// Opens connections to a server, all in one way.
#[derive(Debug)]
struct ServerDialer {
    address: ServerAddress,
    peer: String,
    tls: TlsFiles,
}

impl ServerDialer {
    fn connect(&self) -> Result<WireEnds> {
        let tls = self.tls.client(&self.address.host)?;
        let streams = connect_tcp(&self.address.host, self.address.port, READY_TIME / 2)?;
        let failed = |error| Error {
            kind: ErrorKind::Unreachable,
            ..Error::io(format!("could not talk to {}", self.peer), error)
        };
        let mut ends = WireEnds::new(streams, READY_TIME).map_err(failed)?;
        ends.encrypt(tls).map_err(failed)?;
        Ok(ends)
    }
}

impl Dialer for ServerDialer {
    fn dial(&self, offer: &JoinOffer) -> Result<JoinedEnds> {
        let mut ends = self.connect()?;
        greet_to_join(&mut ends, offer, &self.peer)?;
        Ok(JoinedEnds { ends, kept: None })
    }

    fn first_rests(&self, _: &JoinOffer) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_host_and_a_port() {
        for (text, host, port) in [("vault:9000", "vault", 9000), ("[::1]:1", "::1", 1)] {
            let address = ServerAddress::parse(text).unwrap();
            assert_eq!((&*address.host, address.port), (host, port));
        }
        for bad in ["vault", ":1", "vault:x", "vault:99999", ""] {
            let error = ServerAddress::parse(bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{bad}");
        }
    }
}
