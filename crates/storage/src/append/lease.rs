//! Leases of a session that adds backups.

use super::AppendSession;
use crate::Lease;
use fullbore_format::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// The lease on the intent of a backup of this session.
#[derive(Debug)]
pub(super) struct AnnouncedLease {
    pub(super) inner: Box<dyn Lease>,
    pub(super) session: Arc<AppendSession>,
    pub(super) id: String,
}

impl Lease for AnnouncedLease {
    fn update(&mut self, body: &[u8]) -> Result<()> {
        self.session.check_new_intent(&self.id, body)?;
        self.inner.update(body)
    }

    fn is_ours(&self) -> bool {
        self.inner.is_ours()
    }
}

/// Says that the holder of an intent is dead. It was let go at once, so that a host cannot keep a prune from
/// what is left of the backups of others.
#[derive(Debug)]
pub(super) struct DeadLease(pub(super) String);

impl Lease for DeadLease {
    fn update(&mut self, _: &[u8]) -> Result<()> {
        Err(Error::new(ErrorKind::Permission, self.0.clone()))
    }

    fn is_ours(&self) -> bool {
        true
    }
}
