//! Calls of this side that wait for the other side, and the room that the other side has for data.

use super::{
    credit::SendCredit,
    end::{EndReason, violated},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::Locked;
use fullbore_wire::{message::CallAnswer, wire_error::WireError};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Calls of one direction that may wait for answers at the same time.
pub(super) const MAX_CALLS: usize = 64;

/// Bytes of the data of all calls that wait for answers, unless one is alone: 6 questions of a copy with 4 MiB each.
pub(super) const BODY_WINDOW: usize = 32 << 20;

/// Bytes of all answers that came and that this side did not bound by what it asked for: one root of the largest size, and some.
pub(super) const MAX_BODIES: usize = (256 << 20) + (16 << 20);

/// Returns whether there is room for the data of another call beside `held_bytes` of others. Both sides ask this, so the other side may
/// refuse what it did not allow.
pub(super) fn has_room_for_body(held_bytes: usize, bytes: usize) -> bool {
    held_bytes == 0 || bytes == 0 || held_bytes.saturating_add(bytes) <= BODY_WINDOW
}

/// Bytes of uploads that are sent and not yet stored: a link of 1 Gbit/s and 100 ms holds 12 MiB.
pub(super) const UPLOAD_WINDOW: u64 = 16 << 20;

/// The calls that wait.
#[derive(Debug)]
pub(super) struct Calls {
    table: Mutex<CallTable>,
    /// Room was given back, or the connection has ended.
    changed: Condvar,
    /// The connection has ended. An answer does not wake a thread that only waits for this.
    over: Condvar,
}

#[derive(Debug)]
struct CallTable {
    waiting: BTreeMap<u64, WaitingCall>,
    last_id: u64,
    body_bytes: usize,
    /// Bytes of answers that are here and may have any length.
    unbounded_bytes: usize,
    upload_credit: SendCredit,
    failed_uploads: BTreeMap<u64, WireError>,
    /// The leases that this side holds, and their keys; `None` once it has deleted the intent.
    leases: BTreeMap<u64, Option<String>>,
    lost_leases: BTreeSet<u64>,
    ended: Option<EndReason>,
}

#[derive(Debug)]
struct WaitingCall {
    data: Vec<u8>,
    /// Bytes that may still come.
    left_bytes: u64,
    /// May the answer have more than other answers beside it?
    is_unbounded: bool,
    /// Is each part of the answer taken when it is here?
    is_streamed: bool,
    answer: Option<CallAnswer>,
    answered: Arc<Condvar>,
    body_bytes: usize,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self {
            table: Mutex::new(CallTable {
                waiting: BTreeMap::new(),
                last_id: 0,
                body_bytes: 0,
                unbounded_bytes: 0,
                upload_credit: SendCredit::new(UPLOAD_WINDOW),
                failed_uploads: BTreeMap::new(),
                leases: BTreeMap::new(),
                lost_leases: BTreeSet::new(),
                ended: None,
            }),
            changed: Condvar::new(),
            over: Condvar::new(),
        }
    }

    /// Waits for room for a call with so many bytes of data, and gives it a number. Its answer may have `max_bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the data is too long, or the reason why the connection ended.
    pub(super) fn begin(
        &self,
        body_bytes: usize,
        max_bytes: u64,
        is_streamed: bool,
    ) -> Result<u64> {
        if body_bytes > MAX_BODIES {
            let message = format!("cannot send {body_bytes} bytes to another host at once");
            return Err(
                Error::new(ErrorKind::Usage, message).because(format!("the limit is {MAX_BODIES}"))
            );
        }
        let mut table = self.wait_until(|table| {
            table.waiting.len() < MAX_CALLS && has_room_for_body(table.body_bytes, body_bytes)
        })?;
        table.last_id += 1;
        table.body_bytes += body_bytes;
        let id = table.last_id;
        table.waiting.insert(
            id,
            WaitingCall {
                data: Vec::new(),
                left_bytes: max_bytes,
                is_unbounded: max_bytes > BODY_WINDOW as u64,
                is_streamed,
                answer: None,
                answered: Arc::default(),
                body_bytes,
            },
        );
        Ok(id)
    }

    /// Returns a number for an upload, which is no call.
    ///
    /// # Errors
    /// The reason why the connection ended.
    pub(super) fn new_number(&self) -> Result<u64> {
        let mut table = self.wait_until(|_| true)?;
        table.last_id += 1;
        Ok(table.last_id)
    }

    fn wait_until(
        &self,
        may_go_on: impl Fn(&CallTable) -> bool,
    ) -> Result<MutexGuard<'_, CallTable>> {
        let mut table = self.table.locked();
        loop {
            if let Some(reason) = &table.ended {
                return Err(reason.error());
            }
            if may_go_on(&table) {
                return Ok(table);
            }
            table = self
                .changed
                .wait(table)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the answer to a call or, if its parts are taken one by one, for the next part.
    fn wait_for(&self, id: u64) -> Result<MutexGuard<'_, CallTable>> {
        let mut table = self.table.locked();
        loop {
            let is_ended = table.ended.is_some();
            let Some(call) = table.waiting.get(&id) else {
                return Err(violated("a call was answered twice"));
            };
            let has_part = call.is_streamed && !call.data.is_empty();
            if call.answer.is_some() || is_ended || has_part {
                return Ok(table);
            }
            let answered = call.answered.clone();
            table = answered.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the next part of the answer to a call; `None` once the rest of it is here, for [`Calls::wait`].
    ///
    /// # Errors
    /// A call was answered twice.
    pub(super) fn next_part(&self, id: u64) -> Result<Option<Vec<u8>>> {
        let mut table = self.wait_for(id)?;
        let is_ended = table.ended.is_some();
        let waiting = table.waiting.get_mut(&id);
        let unfinished = waiting.filter(|call| call.answer.is_none() && !is_ended);
        let Some(call) = unfinished else {
            return Ok(None);
        };
        let part = mem::take(&mut call.data);
        if call.is_unbounded {
            table.unbounded_bytes -= part.len();
        }
        Ok(Some(part))
    }

    /// Waits for the answer to a call, and gives its room back.
    ///
    /// # Errors
    /// The reason why the connection ended.
    pub(super) fn wait(&self, id: u64) -> Result<(CallAnswer, Vec<u8>)> {
        let mut table = self.wait_for(id)?;
        let reason = table.ended.as_ref().map(EndReason::error);
        let call = Self::remove(&mut table, id);
        drop(table);
        self.changed.notify_all();
        match call {
            Some((answer, data)) => Ok((answer, data)),
            None => Err(reason.unwrap_or_else(|| violated("a call has no answer"))),
        }
    }

    fn remove(table: &mut CallTable, id: u64) -> Option<(CallAnswer, Vec<u8>)> {
        let call = table.waiting.remove(&id)?;
        table.body_bytes -= call.body_bytes;
        if call.is_unbounded {
            table.unbounded_bytes -= call.data.len();
        }
        Some((call.answer?, call.data))
    }

    /// Adds data to an answer.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if this side did not ask for it.
    pub(super) fn add_part(&self, id: u64, data: Vec<u8>) -> Result<()> {
        let mut guard = self.table.locked();
        let table = &mut *guard;
        let call = table
            .waiting
            .get_mut(&id)
            .filter(|call| call.answer.is_none())
            .ok_or_else(|| violated("it answers a call that was not made"))?;
        let bytes = data.len();
        let left = call.left_bytes.checked_sub(bytes as u64);
        call.left_bytes =
            left.ok_or_else(|| violated("it answers with more than was asked for"))?;
        if call.is_unbounded {
            table.unbounded_bytes += bytes;
        }
        if call.data.is_empty() {
            call.data = data;
        } else {
            call.data.extend_from_slice(&data);
        }
        let reader = call.is_streamed.then(|| call.answered.clone());
        if table.unbounded_bytes > MAX_BODIES {
            return Err(violated(
                "its answers together are longer than this side takes",
            ));
        }
        // The reader that wakes takes the table at once.
        drop(guard);
        if let Some(reader) = reader.filter(|_| bytes > 0) {
            reader.notify_one();
        }
        Ok(())
    }

    /// Ends an answer.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if this side did not ask for it.
    pub(super) fn complete(&self, id: u64, answer: CallAnswer, data: Vec<u8>) -> Result<()> {
        self.add_part(id, data)?;
        let mut table = self.table.locked();
        let Some(call) = table.waiting.get_mut(&id) else {
            return Ok(());
        };
        call.answer = Some(answer);
        let answered = call.answered.clone();
        // The thread that wakes takes the table at once.
        drop(table);
        answered.notify_one();
        Ok(())
    }

    /// Waits until so many bytes of an upload may be sent.
    ///
    /// # Errors
    /// Those of the upload, or the reason why the connection ended.
    pub(super) fn take_credit(&self, upload: u64, bytes: u64) -> Result<()> {
        let has_failed = |table: &CallTable| table.failed_uploads.contains_key(&upload);
        let mut table =
            self.wait_until(|table| table.upload_credit.has(bytes) || has_failed(table))?;
        if let Some(error) = table.failed_uploads.get(&upload) {
            return Err(error.clone().into_error());
        }
        table.upload_credit.take(bytes);
        Ok(())
    }

    /// Gives bytes of uploads free that were stored.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if so much was not sent.
    pub(super) fn give_credit(&self, bytes: u64) -> Result<()> {
        self.table.locked().upload_credit.give(bytes)?;
        self.changed.notify_all();
        Ok(())
    }

    /// Notes why an upload has failed.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if there are more failures than calls.
    pub(super) fn fail_upload(&self, upload: u64, error: WireError) -> Result<()> {
        let mut table = self.table.locked();
        if upload > table.last_id || table.failed_uploads.len() >= 4 * MAX_CALLS {
            return Err(violated("an upload failed that was not begun"));
        }
        table.failed_uploads.insert(upload, error);
        drop(table);
        self.changed.notify_all();
        Ok(())
    }

    /// Forgets an upload that has ended.
    pub(super) fn forget_upload(&self, upload: u64) {
        self.table.locked().failed_uploads.remove(&upload);
    }

    /// Notes that a lease was lost.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if there are more leases than calls.
    pub(super) fn lose_lease(&self, lease: u64) -> Result<()> {
        let mut table = self.table.locked();
        if lease > table.last_id || table.lost_leases.len() >= 4 * MAX_CALLS {
            return Err(violated("a lease was lost that was not taken"));
        }
        table.lost_leases.insert(lease);
        Ok(())
    }

    /// Notes a lease that was taken.
    pub(super) fn hold_lease(&self, lease: u64, key: &str) {
        let mut table = self.table.locked();
        table.leases.insert(lease, Some(key.to_owned()));
    }

    /// Ends the leases whose intents this side has deleted: the other side lets go of them.
    pub(super) fn end_deleted_leases(&self, keys: &[String]) {
        let mut table = self.table.locked();
        for lease in table.leases.values_mut() {
            if lease.as_ref().is_some_and(|key| keys.contains(key)) {
                *lease = None;
            }
        }
    }

    /// Returns whether the lease is held, as far as this side knows.
    pub(super) fn has_lease(&self, lease: u64) -> bool {
        let table = self.table.locked();
        let is_there = matches!(table.leases.get(&lease), Some(Some(_)));
        is_there && table.ended.is_none() && !table.lost_leases.contains(&lease)
    }

    /// Forgets a lease of this side. Returns whether the other side is still to be told so.
    pub(super) fn forget_lease(&self, lease: u64) -> bool {
        let mut table = self.table.locked();
        table.lost_leases.remove(&lease);
        table.leases.remove(&lease).flatten().is_some()
    }

    /// Lets every call that waits, and every later one, fail. Only the first reason counts.
    pub(super) fn end(&self, reason: EndReason) {
        let mut table = self.table.locked();
        table.ended.get_or_insert(reason);
        for call in table.waiting.values() {
            call.answered.notify_all();
        }
        drop(table);
        self.changed.notify_all();
        self.over.notify_all();
    }

    /// Returns the reason why the connection ended.
    pub(super) fn ended(&self) -> Option<Error> {
        self.table.locked().ended.as_ref().map(EndReason::error)
    }

    /// Returns whether the other side closed the connection between two frames.
    pub(super) fn is_closed(&self) -> bool {
        let table = self.table.locked();
        table.ended.as_ref().is_some_and(EndReason::is_close)
    }

    /// Waits for this time, or until the connection ends. Has it ended?
    pub(super) fn sleep(&self, time: Duration) -> bool {
        let table = self.table.locked();
        let (table, _) = self
            .over
            .wait_timeout_while(table, time, |table| table.ended.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        table.ended.is_some()
    }
}
