//! The server: requests, answers, connections and sessions. Knows of no backups.
//!
//! Every connection carries one request. So no request can hide behind another one, and a connection is over when its answer
//! is. All input has a bound, and every wait has an end.

pub mod guard;
pub mod passwords;
pub(crate) mod places;
pub mod request;
pub mod response;
pub mod server;
pub(crate) mod timed;
