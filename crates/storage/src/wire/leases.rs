//! Leases that the other side holds.

use super::line::Line;
use crate::{Lease, Leased};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::Locked;
use fullbore_wire::{
    message::Message,
    object_call::{LeasedWord, ObjectAnswer},
};
use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex},
};

/// Leases that are held at the same time.
const MAX_LEASES: usize = 256;

/// The leases, by the numbers of the calls that took them.
#[derive(Debug, Default)]
pub(super) struct ServedLeases(Mutex<BTreeMap<u64, ServedLease>>);

#[derive(Debug)]
struct ServedLease {
    key: String,
    lease: Arc<Mutex<Box<dyn Lease>>>,
    was_reported: bool,
}

impl ServedLeases {
    pub(super) fn is_empty(&self) -> bool {
        self.0.locked().is_empty()
    }

    /// Keeps a lease, if it is ours.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if too many are held.
    pub(super) fn keep(&self, id: u64, key: String, leased: Leased) -> Result<ObjectAnswer> {
        let lease = match leased {
            Leased::Held => return Ok(ObjectAnswer::Leased(LeasedWord::Held)),
            Leased::Absent => return Ok(ObjectAnswer::Leased(LeasedWord::Absent)),
            Leased::Unknown => return Ok(ObjectAnswer::Leased(LeasedWord::Unknown)),
            Leased::Ours(lease) => lease,
        };
        let mut leases = self.0.locked();
        if leases.len() >= MAX_LEASES {
            let message = format!("could not take a lease: {MAX_LEASES} are held");
            return Err(Error::new(ErrorKind::System, message));
        }
        let held = ServedLease {
            key,
            lease: Arc::new(Mutex::new(lease)),
            was_reported: false,
        };
        leases.insert(id, held);
        Ok(ObjectAnswer::Leased(LeasedWord::Ours))
    }

    /// Replaces the content of an intent.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`] if the lease was let go; those of the lease.
    pub(super) fn update(&self, id: u64, body: &[u8]) -> Result<()> {
        let gone = || Error::new(ErrorKind::Gone, "cannot use a lease that was let go");
        let leases = self.0.locked();
        let lease = leases.get(&id).ok_or_else(gone)?.lease.clone();
        drop(leases);
        lease.locked().update(body)
    }

    /// Lets go of a lease.
    pub(super) fn let_go(&self, id: u64) {
        let held = self.0.locked().remove(&id);
        drop(held); // without the lock: this may take a request
    }

    /// Lets go of leases whose intents the other side has deleted.
    pub(super) fn end_deleted(&self, keys: &[String]) {
        let mut leases = self.0.locked();
        let all = mem::take(&mut *leases).into_iter();
        let (ended, left) = all.partition(|(_, held)| keys.contains(&held.key));
        *leases = left;
        drop(leases);
        drop::<BTreeMap<u64, ServedLease>>(ended); // this may take a request
    }

    /// Lets go of all leases.
    pub(super) fn clear(&self) {
        self.0.locked().clear();
    }

    /// Tells the other side which leases it does not hold any more, before it may let go of them.
    pub(super) fn report_lost(&self, line: &Line) {
        for (id, held) in self.0.locked().iter_mut() {
            let is_lost = held.lease.try_lock().is_ok_and(|lease| !lease.is_ours());
            if is_lost && !held.was_reported {
                held.was_reported = true;
                line.send_or_end(&Message::LeaseLost { lease: *id }, b"");
            }
        }
    }
}
