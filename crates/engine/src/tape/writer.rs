//! Writes records and marks, one after the other, over as many tapes as they need.
//!
//! All items are counted from 0; each tape has those from one number to another. When a tape is full or has
//! failed, its last number is known only then: what was not on the medium for sure goes to the next tape.

use super::media::{LoadedTape, TapeProgress, TapeSpec};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::TapeExtent,
};
use fullbore_platform::queue::Locked;
use fullbore_tape::{
    DriveError, DriveRing, PaceSettings, RingDrive, RingEnd, RingItem, RingSettings, RingStop,
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

/// Items before the first one of a backup on a tape: its label and a mark.
const LABEL_ITEMS: u64 = 2;

/// A writer over several tapes.
pub(super) struct TapeWriter {
    spec: TapeSpec,
    id: String,
    /// Short digests of the keys that open the parts.
    keys: Vec<String>,
    progress: Arc<Mutex<TapeProgress>>,
    state: DriveState,
    tapes: Vec<WrittenTape>,
    /// The number of the next item.
    next: u64,
    record_bytes: u32,
    /// How often the drive was started.
    starts: u64,
}

/// Items on one tape.
struct WrittenTape {
    name: String,
    /// The number of its first item, and the place of that item.
    first: u64,
    block: u64,
    /// The number behind its last item, once it has ended.
    end: Option<u64>,
}

/// The drive, as far as it is open.
enum DriveState {
    /// A tape that may be written and has not been.
    Loaded(LoadedTape),
    /// The ring writes to it.
    Writing(Box<dyn DriveRing>, LoadedFacts),
    /// All that was pushed is on the medium.
    Idle(Box<dyn RingDrive>, LoadedFacts, bool),
    /// No tape.
    Empty,
}

/// Facts about an open drive.
#[derive(Clone, Copy)]
struct LoadedFacts {
    lowest_rate: f64,
    buffer_bytes: u64,
}

impl TapeWriter {
    pub(super) fn new(
        spec: &TapeSpec,
        id: &str,
        keys: Vec<String>,
        first: LoadedTape,
        progress: Arc<Mutex<TapeProgress>>,
    ) -> Self {
        Self {
            spec: spec.clone(),
            id: id.to_owned(),
            keys,
            progress,
            record_bytes: first.record_bytes,
            state: DriveState::Loaded(first),
            tapes: Vec::new(),
            next: 0,
            starts: 0,
        }
    }

    /// Length of records.
    pub(super) fn record_bytes(&self) -> u32 {
        self.record_bytes
    }

    /// Returns the number of the next item.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns whether the next item would be the first one of a tape other than the first.
    pub(super) fn begins_later_tape(&self) -> bool {
        let begins = |tape: &WrittenTape| tape.end.is_none() && tape.first == self.next;
        self.tapes.len() > 1 && self.tapes.last().is_some_and(begins)
    }

    /// Returns whether the tape is behind its early warning.
    pub(super) fn is_near_end(&self) -> bool {
        match &self.state {
            DriveState::Writing(ring, _) => ring.is_near_end(),
            DriveState::Idle(_, _, is_near_end) => *is_near_end,
            DriveState::Loaded(_) => false,
            DriveState::Empty => true,
        }
    }

    /// Writes an item, behind all before. It need not be on the medium on return.
    ///
    /// # Errors
    /// Those of a drive, if no other tape comes.
    pub(super) fn push(&mut self, item: RingItem) -> Result<()> {
        self.next += 1;
        self.push_all(VecDeque::from([item]))
    }

    fn push_all(&mut self, mut items: VecDeque<RingItem>) -> Result<()> {
        while let Some(item) = items.pop_front() {
            let ring = self.ring(items.len() as u64 + 1)?;
            if let Some(refused) = ring.push(item) {
                items.push_front(refused);
                let mut left = self.end_stopped_tape()?;
                left.append(&mut items);
                items = left;
            }
        }
        Ok(())
    }

    /// Returns the ring, which is begun if there is none. `waiting` items are not pushed yet.
    fn ring(&mut self, waiting: u64) -> Result<&dyn DriveRing> {
        let first = self.next - waiting;
        self.state = match std::mem::replace(&mut self.state, DriveState::Empty) {
            DriveState::Loaded(tape) => self.begin_tape(tape, first)?,
            DriveState::Idle(drive, facts, _) => {
                let tape = self.tapes.last().ok_or_else(no_tape)?;
                let block = tape.block + (first - tape.first);
                let ring = drive.begin_ring(block, settings(facts))?;
                DriveState::Writing(ring, facts)
            }
            DriveState::Empty => {
                let tape = self.ask("the tape is full")?;
                self.begin_tape(tape, first)?
            }
            writing @ DriveState::Writing(..) => writing,
        };
        match &self.state {
            DriveState::Writing(ring, _) => Ok(&**ring),
            _ => Err(no_tape()),
        }
    }

    /// Writes the label of a tape. The item with number `first` follows it.
    fn begin_tape(&mut self, tape: LoadedTape, first: u64) -> Result<DriveState> {
        if tape.record_bytes < self.record_bytes {
            let message = format!("cannot continue on tape {:?}", tape.name);
            return Err(Error::new(ErrorKind::Unsupported, message)
                .because("the drive takes only shorter records"));
        }
        let volume = self.tapes.len() as u32 + 1;
        let mut label = tape.label(&self.spec.options, &self.id, volume, &self.keys);
        label.record_bytes = self.record_bytes;
        let record = RingItem::Record(Arc::new(label.to_record()?));
        let facts = LoadedFacts {
            lowest_rate: tape.lowest_rate,
            buffer_bytes: tape.buffer_bytes,
        };
        let ring = tape.drive.begin_ring(tape.block, settings(facts))?;
        // If the ring has stopped, the next item finds that out.
        let _ = ring.push(record);
        let _ = ring.push(RingItem::Mark);
        let block = tape.block + LABEL_ITEMS;
        self.tapes.push(WrittenTape {
            name: tape.name,
            first,
            block,
            end: None,
        });
        Ok(DriveState::Writing(ring, facts))
    }

    /// Ends the tape whose ring has stopped. Returns the items that are not on it for sure.
    fn end_stopped_tape(&mut self) -> Result<VecDeque<RingItem>> {
        let DriveState::Writing(ring, _) = std::mem::replace(&mut self.state, DriveState::Empty)
        else {
            return Err(no_tape());
        };
        let end = ring.finish()?;
        self.after_stop(end)
    }

    fn after_stop(&mut self, end: RingEnd) -> Result<VecDeque<RingItem>> {
        let RingEnd {
            mut drive,
            stop,
            mut left,
            first_left,
            starts,
            rewrites,
        } = end;
        self.count(starts, rewrites);
        let tape = self.tapes.last_mut().ok_or_else(no_tape)?;
        let name = tape.name.clone();
        // The next tape has a label of its own, if this one did not take all of it.
        let mut first_next = tape.first + first_left.saturating_sub(tape.block);
        for _ in first_left..tape.block {
            left.pop_front();
        }
        // A mark needs no place on the next tape: what is before it ends with the tape.
        while left.front() == Some(&RingItem::Mark) {
            left.pop_front();
            first_next += 1;
        }
        tape.end = Some(first_next);
        let is_written = first_left > tape.block;
        let reason = match stop {
            RingStop::Failed(error) => {
                let reason = format!("tape {name:?} has failed: {}", error.into_error().line());
                self.progress.locked().notes.push(reason.clone());
                reason
            }
            _ => format!("tape {name:?} is full"),
        };
        if is_written {
            self.progress.locked().tapes.push(name);
        }
        // Records that are not on this tape are written to the next one, so errors from here on cost nothing.
        let _ = drive.unload();
        let _ = drive.close();
        let tape = self.ask(&reason)?;
        self.state = DriveState::Loaded(tape);
        Ok(left)
    }

    fn count(&mut self, starts: u64, rewrites: u32) {
        self.starts += starts;
        if rewrites > 0
            && let Some(tape) = self.tapes.last()
        {
            let note = format!(
                "tape {:?} had an error, and what the drive had lost was written again",
                tape.name
            );
            self.progress.locked().notes.push(note);
        }
    }

    fn ask(&mut self, reason: &str) -> Result<LoadedTape> {
        let volume = self.tapes.len() as u32 + 1;
        LoadedTape::ask(&self.spec, &self.id, volume, reason)
    }

    /// Waits until all is on a medium.
    ///
    /// # Errors
    /// As [`TapeWriter::push`].
    pub(super) fn settle(&mut self) -> Result<()> {
        loop {
            let (ring, facts) = match std::mem::replace(&mut self.state, DriveState::Empty) {
                DriveState::Writing(ring, facts) => (ring, facts),
                other => {
                    self.state = other;
                    return Ok(());
                }
            };
            let is_near_end = ring.is_near_end();
            let end = ring.finish()?;
            if matches!(end.stop, RingStop::Ended) {
                self.count(end.starts, end.rewrites);
                self.state = DriveState::Idle(end.drive, facts, is_near_end);
                return Ok(());
            }
            let left = self.after_stop(end)?;
            self.push_all(left)?;
        }
    }

    /// Ends the tape, and asks for the next one.
    ///
    /// # Errors
    /// As [`TapeWriter::push`].
    pub(super) fn change_tape(&mut self) -> Result<()> {
        self.settle()?;
        if let DriveState::Idle(mut drive, ..) =
            std::mem::replace(&mut self.state, DriveState::Empty)
        {
            drive.unload().map_err(DriveError::into_error)?;
            drive.close().map_err(DriveError::into_error)?;
        }
        let next = self.next;
        let tape = self.tapes.last_mut().ok_or_else(no_tape)?;
        tape.end = Some(next);
        let name = tape.name.clone();
        self.progress.locked().tapes.push(name.clone());
        let loaded = self.ask(&format!("tape {name:?} is full"))?;
        self.state = self.begin_tape(loaded, next)?;
        Ok(())
    }

    /// Waits until all is on a medium, and closes the drive with the tape at its begin.
    ///
    /// # Errors
    /// As [`TapeWriter::push`].
    pub(super) fn finish(&mut self) -> Result<()> {
        self.settle()?;
        if let DriveState::Idle(mut drive, ..) =
            std::mem::replace(&mut self.state, DriveState::Empty)
        {
            let rewound = drive.rewind();
            let closed = drive.close();
            rewound.and(closed).map_err(DriveError::into_error)?;
        }
        let last = self.tapes.last().map(|tape| tape.name.clone());
        self.progress.locked().tapes.extend(last);
        Ok(())
    }

    /// Returns where `bytes` stand whose first record is item `first`.
    pub(super) fn extents(&self, first: u64, bytes: u64) -> Vec<TapeExtent> {
        let record_bytes = u64::from(self.record_bytes);
        let end = first + bytes.div_ceil(record_bytes);
        let mut extents = Vec::new();
        for (tape, volume) in self.tapes.iter().zip(1..) {
            let from = first.max(tape.first);
            let to = end.min(tape.end.unwrap_or(u64::MAX));
            // A part whose length is not known yet begins on the last tape.
            if from < to || (bytes == 0 && tape.end.is_none()) {
                let behind = (to.max(from) - first) * record_bytes;
                extents.push(TapeExtent {
                    tape: tape.name.clone(),
                    volume,
                    block: tape.block + (from - tape.first),
                    bytes: behind.min(bytes) - ((from - first) * record_bytes).min(bytes),
                });
            }
        }
        extents
    }
}

fn settings(facts: LoadedFacts) -> RingSettings {
    RingSettings {
        pace: PaceSettings {
            ring_bytes: facts.buffer_bytes / 2,
            lowest_rate: facts.lowest_rate,
        },
        most_kept_bytes: facts.buffer_bytes / 2,
    }
}

fn no_tape() -> Error {
    Error::new(ErrorKind::Bug, "cannot write: no tape is in the drive")
}
