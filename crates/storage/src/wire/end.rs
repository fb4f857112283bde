//! Why a connection ended.

use fullbore_format::error::{Error, ErrorKind};

/// Returns the error of a connection over which `peer` cannot be talked to.
pub(super) fn silent_peer(peer: &str, error: std::io::Error) -> Error {
    Error {
        kind: ErrorKind::Unreachable,
        ..Error::io(format!("could not talk to {peer}"), error)
    }
}

/// Returns the error of a session in which the other side broke a rule.
pub(super) fn violated(why: &str) -> Error {
    Error::corrupt("cannot go on with the other side").because(why.to_owned())
}

/// The reason, from which an error is made for each call that waits.
#[derive(Debug, Clone)]
pub(super) struct EndReason {
    peer: String,
    kind: ErrorKind,
    why: String,
}

/// The reason if the other side closed the connection.
const CLOSED: &str = "the connection was closed";

/// Returns the error of a connection that the other side closed.
pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Unreachable, CLOSED)
}

impl EndReason {
    /// Returns the reason that an error is; `peer` is what messages call the other side, in quotes.
    pub(super) fn of(peer: &str, error: &Error) -> Self {
        Self {
            peer: peer.to_owned(),
            kind: error.kind,
            why: error.line(),
        }
    }

    pub(super) fn is_close(&self) -> bool {
        self.why == CLOSED
    }

    pub(super) fn error(&self) -> Error {
        let message = match self.kind {
            ErrorKind::Unreachable => format!("could not go on with {}", self.peer),
            _ => format!("cannot go on with {}", self.peer),
        };
        Error::new(self.kind, message).because(self.why.clone())
    }
}
