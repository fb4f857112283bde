//! The side that writes: sends records in batches to the buffer before a drive of another host.
//!
//! Some batches are under way at the same time, so the time of an answer costs no speed. A batch is in memory here until it is
//! answered. All later copies are on the host of the drive.

use super::{
    call::{
        BATCH_BYTES, BATCH_ITEMS, PushedItem, RingWords, StopWord, TapeAnswer, TapeCall,
        not_understood,
    },
    drive::{FarChannel, FarDrive},
};
use crate::{
    device::RecordLimits,
    ring_drive::{DriveRing, RingEnd, RingItem, RingStop},
};
use fullbore_format::error::{Error, Result};
use fullbore_platform::queue::{Locked, start};
use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

/// Batches under way: 12 MiB, which are 120 MB/s if an answer takes 0.1 s.
const SENDERS: usize = 3;

/// A ring before a drive of another host.
pub(super) struct FarRing {
    shared: Arc<SharedBatches>,
    senders: Vec<JoinHandle<()>>,
    /// The number on the medium of the first item.
    first: u64,
    limits: RecordLimits,
    usual_buffer_bytes: u64,
}

struct SharedBatches {
    far: FarChannel,
    state: Mutex<BatchState>,
    changed: Condvar,
}

#[derive(Default)]
struct BatchState {
    /// The batch that is filled.
    filling: Batch,
    /// Batches that no sender has taken.
    waiting: VecDeque<Batch>,
    next_number: u64,
    /// Items that were pushed.
    items: u64,
    has_ended: bool,
    is_stopped: bool,
    is_near_end: bool,
    failed: Option<Error>,
}

#[derive(Default)]
struct Batch {
    items: Vec<RingItem>,
    bytes: u64,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES as u64 || self.items.len() >= BATCH_ITEMS
    }

    fn words(&self) -> (Vec<PushedItem>, Vec<u8>) {
        let mut body = Vec::new();
        let words = self.items.iter().map(|item| match item {
            RingItem::Record(bytes) => {
                body.extend_from_slice(bytes);
                PushedItem::Record(bytes.len() as u32)
            }
            RingItem::Mark => PushedItem::Mark,
            RingItem::Held { serial, .. } => PushedItem::Held(*serial),
        });
        (words.collect(), body)
    }
}

impl FarRing {
    /// Begins to send. The other host has begun the ring.
    ///
    /// # Errors
    /// If the system has no thread.
    pub(super) fn begin(
        far: FarChannel,
        first: u64,
        limits: RecordLimits,
        usual_buffer_bytes: u64,
    ) -> Result<Self> {
        let shared = Arc::new(SharedBatches {
            far,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut ring = Self {
            shared: shared.clone(),
            senders: Vec::new(),
            first,
            limits,
            usual_buffer_bytes,
        };
        for _ in 0..SENDERS {
            let own = shared.clone();
            ring.senders.push(start(move || own.send_all())?);
        }
        Ok(ring)
    }

    fn end_senders(&mut self) {
        self.shared.state.locked().has_ended = true;
        self.shared.changed.notify_all();
        for sender in self.senders.drain(..) {
            // A panic has left its batch unanswered: the last question tells.
            let _ = sender.join();
        }
    }

    /// Returns what the other host says at the end: each item is on the medium or left.
    fn ended(&self, items: u64) -> Result<RingWords> {
        let TapeAnswer::RingEnded(words) = self.shared.far.ask(&TapeCall::FinishRing, b"")? else {
            return Err(not_understood());
        };
        let written = words.first_left.checked_sub(self.first);
        let all = written.and_then(|written| written.checked_add(words.left.len() as u64));
        match all == Some(items) {
            true => Ok(words),
            false => Err(not_understood().because("records are missing")),
        }
    }
}

impl SharedBatches {
    fn wait<'a>(&self, state: MutexGuard<'a, BatchState>) -> MutexGuard<'a, BatchState> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn send_all(&self) {
        let mut state = self.state.locked();
        loop {
            let Some(batch) = state.waiting.pop_front() else {
                if state.has_ended {
                    return;
                }
                state = self.wait(state);
                continue;
            };
            let number = state.next_number;
            state.next_number += 1;
            self.changed.notify_all();
            drop(state);
            let (items, body) = batch.words();
            let answer = self.far.ask(&TapeCall::Push { number, items }, &body);
            drop(batch);
            state = self.state.locked();
            match answer {
                Ok(TapeAnswer::Pushed {
                    is_near_end,
                    is_stopped,
                }) => {
                    state.is_near_end |= is_near_end;
                    state.is_stopped |= is_stopped;
                }
                answer => {
                    let error = answer.err().unwrap_or_else(not_understood);
                    state.failed.get_or_insert(error);
                    state.is_stopped = true;
                    state.waiting.clear();
                }
            }
            self.changed.notify_all();
        }
    }
}

impl Drop for FarRing {
    fn drop(&mut self) {
        let mut state = self.shared.state.locked();
        state.waiting.clear();
        drop(state);
        self.end_senders();
    }
}

impl DriveRing for FarRing {
    fn push(&self, item: RingItem) -> Option<RingItem> {
        let mut state = self.shared.state.locked();
        while !state.is_stopped && !state.waiting.is_empty() && state.filling.is_full() {
            state = self.shared.wait(state);
        }
        // Batches that wait are sent all the same: the other host keeps their items.
        if state.is_stopped {
            return Some(item);
        }
        if state.filling.is_full() {
            let full = mem::take(&mut state.filling);
            state.waiting.push_back(full);
            self.shared.changed.notify_all();
        }
        state.items += 1;
        state.filling.bytes += item.bytes();
        state.filling.items.push(item);
        None
    }

    fn is_near_end(&self) -> bool {
        let state = self.shared.state.locked();
        state.is_near_end || state.is_stopped
    }

    fn finish(mut self: Box<Self>) -> Result<RingEnd> {
        let mut state = self.shared.state.locked();
        let last = mem::take(&mut state.filling);
        if !last.items.is_empty() && state.failed.is_none() {
            state.waiting.push_back(last);
        }
        drop(state);
        self.end_senders();
        let mut state = self.shared.state.locked();
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        let items = state.items;
        drop(state);
        let words = self.ended(items)?;
        let far = self.shared.far.clone();
        let stop = match words.stop {
            StopWord::Ended if words.left.is_empty() => RingStop::Ended,
            StopWord::Ended => return Err(not_understood()),
            StopWord::Full => RingStop::Full,
            StopWord::Failed(failure) => {
                RingStop::Failed(failure.into_error("write to", &far.name))
            }
        };
        let mut serial = words.first_serial;
        let left = words.left.iter().map(|bytes| match *bytes {
            0 => RingItem::Mark,
            bytes => {
                serial = serial.wrapping_add(1);
                RingItem::Held {
                    serial: serial.wrapping_sub(1),
                    bytes,
                }
            }
        });
        Ok(RingEnd {
            left: left.collect(),
            drive: Box::new(FarDrive::of_ring(far, self.limits, self.usual_buffer_bytes)),
            stop,
            first_left: words.first_left,
            starts: words.starts.min(u32::MAX.into()),
            rewrites: words.rewrites,
        })
    }
}
