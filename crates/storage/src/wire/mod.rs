//! Objects of another process, over one connection or several: those of ssh, sockets, or a pair of them.
//!
//! A session is symmetrical: either side may offer services to the other, a table by number ([`Offer`]), and objects are one of them, and many threads may use them at the same time.
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
mod commands;
mod connected;
mod credit;
mod delete_keys;
mod dialing;
mod documents;
mod door;
mod end;
mod inlet;
mod join_words;
mod leases;
mod limits;
mod line;
mod listen;
mod offer;
mod outlet;
mod peer;
mod server;
mod session;
mod stream;
mod tls;
mod tls_server;
mod upload;
mod workers;

pub use client::WireObjects;
pub use commands::{command_service, print_service};
pub use connected::{MAX_ANSWER_BYTES, Wire};
pub(super) use dialing::{Dialer, JoinedEnds, connect_tcp, greet_to_join};
pub use door::{ArrivedEnds, HeldDoor, SessionDoor, connection_service, relay_to_session};
pub use fullbore_wire::{message::JoinOffer, object_call::ObjectBody, service::ServiceNumber};
pub use limits::{WireLimits, WireTimes};
pub use listen::{OfferToHost, listen_for_sessions};
pub use offer::{
    ANSWER_WINDOW, ObjectService, Offer, OfferedObjects, WireService, answer_by, not_offered,
};
pub use peer::PeerSide;
pub(super) use stream::WireEnds;
pub use stream::WireStreams;
pub use tls::TlsFiles;
pub(super) use tls::pinned_client;
pub use tls_server::{TlsClients, TlsServer};
