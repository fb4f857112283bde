//! A password for a connection, which is never printed.

use std::fmt;

/// A password and its origin. `Debug` shows only the origin.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectionSecret {
    pub(crate) text: String,
    pub(crate) from: String,
}

impl fmt::Debug for ConnectionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {}", self.from)
    }
}
