//! Reads records of tapes by their places: the right tape is asked for, and the drive moves as little as it can.
//!
//! Records that were passed are kept for a while, so that threads which read near each other do not move the
//! head back. Before another tape is asked for, the reader waits until no thread wants the one in the drive: so each tape is asked
//! for once, in the order of the backup.

use super::record_cache::RecordCache;
use crate::archive::media_turns::MediaTurns;
use crate::tape_drive::NamedDrive;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{TapeExtent, TapePlace},
};
use fullbore_platform::queue::Locked;
use fullbore_storage::{ChangeAction, ChangeRequest, Changed, MediaChange, Storages};
use fullbore_tape::{
    Drive, DriveError, Fault, ReadOutcome, TapeBegin, TapeLabel, TapeUse, read_begin,
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Duration,
};

/// A gap of at most this many bytes is read over: a drive that goes to a place stops and starts, which
/// takes seconds.
const READ_OVER_BYTES: u64 = 128 << 20;
/// No thread wants the tape in the drive if none has read for this time.
const QUIET: Duration = Duration::from_secs(1);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// How often a tape is asked for, if another one is in the drive.
const MOST_ASKED: u32 = 5;

/// A part: the id of its backup, and its number there.
pub(super) type PartId = (String, u32);

/// A tape: the id of the backup, and the number of the tape in it.
type TapeId = (String, u32);

/// A drive, and the tapes that come into it.
pub(super) struct TapeReader {
    drive: NamedDrive,
    change: MediaChange,
    state: Mutex<ReaderState>,
}

#[derive(Default)]
pub(super) struct ReaderState {
    pub(super) drive: Option<Box<dyn Drive>>,
    /// The label of the tape in the drive.
    pub(super) label: Option<TapeLabel>,
    /// The number of the record or mark that comes next, if it is known.
    next: Option<u64>,
    records: RecordCache,
    turns: MediaTurns<TapeId>,
    /// For each tape the first place that may be read, and the id of the backup there.
    firsts: BTreeMap<String, (u64, String)>,
    /// Tapes that did not come, and why.
    lost: BTreeMap<String, String>,
}

impl TapeReader {
    pub(super) fn new(storages: &Storages, drive: &OsStr) -> Self {
        Self {
            drive: NamedDrive::new(storages, drive),
            change: storages.media_change().clone(),
            state: Mutex::default(),
        }
    }

    /// The file of a simulated drive.
    pub(super) fn simulated_file(&self) -> Option<&Path> {
        self.drive.simulated()
    }

    /// Returns the drive for moves that are no reads. The place is unknown afterwards.
    pub(super) fn state(&self) -> MutexGuard<'_, ReaderState> {
        let mut state = self.state.locked();
        state.next = None;
        state
    }

    /// Opens the drive and reads the label of its tape.
    ///
    /// # Errors
    /// Those of the drive; [`ErrorKind::NotFound`] if the tape has no label of this program.
    pub(super) fn load(&self) -> Result<TapeLabel> {
        let mut state = self.state.locked();
        self.load_into(&mut state)
    }

    fn load_into(&self, state: &mut ReaderState) -> Result<TapeLabel> {
        // A drive is opened once at a time.
        state.let_go();
        let mut drive = self.drive.open(TapeUse::Read)?;
        let begin = read_begin(&mut *drive).map_err(DriveError::into_error)?;
        let TapeBegin::Labelled(label) = begin else {
            let is = match begin {
                TapeBegin::Blank => "the tape is blank",
                _ => "the tape has data of another program",
            };
            let message = format!(
                "could not find a backup in \"tape:{}\"",
                self.drive.name().display()
            );
            return Err(Error::new(ErrorKind::NotFound, message).because(is));
        };
        state.next = Some(1);
        state.drive = Some(drive);
        state.label = Some(label.clone());
        Ok(label)
    }

    /// Learns which parts are read: those of a backup, and of earlier ones.
    pub(super) fn expect(&self, places: &BTreeMap<PartId, TapePlace>) {
        let mut state = self.state.locked();
        state.firsts.clear();
        for ((set, _), place) in places {
            for extent in &place.extents {
                let found = (extent.block, set.clone());
                let first = state.firsts.entry(extent.tape.clone());
                let first = first.or_insert_with(|| found.clone());
                *first = found.min(first.clone());
            }
        }
    }

    /// Replaces the contents of `out` by `len` bytes at `offset` of the records of a place of backup `set`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if a tape does not come, [`io::ErrorKind::InvalidData`] if a record is
    /// damaged, [`io::ErrorKind::UnexpectedEof`] if there are fewer bytes; those of the drive.
    pub(super) fn read_at(
        &self,
        (set, place): (&str, &TapePlace),
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        out.clear();
        let record_bytes = u64::from(place.record_bytes.max(1));
        let mut begin = 0;
        for extent in &place.extents {
            let end = begin + extent.bytes;
            while out.len() < len && (begin..end).contains(&(offset + out.len() as u64)) {
                let inner = offset + out.len() as u64 - begin;
                let index = inner / record_bytes;
                let record = self.record((set, extent), index, place.record_bytes)?;
                let from = (inner % record_bytes) as usize;
                let rest = record.get(from..).unwrap_or_default();
                let wanted = rest.len().min(len - out.len());
                if wanted == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                out.extend_from_slice(&rest[..wanted]);
            }
            begin = end;
        }
        if out.len() == len {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Returns record `index` of an extent.
    fn record(
        &self,
        (set, extent): (&str, &TapeExtent),
        index: u64,
        most: u32,
    ) -> io::Result<Arc<Vec<u8>>> {
        let block = extent.block.saturating_add(index);
        if let Some(record) = self.state.locked().records.get(&extent.tape, block) {
            return Ok(record);
        }
        let mut state = self.with_tape(set, extent)?;
        if let Some(record) = state.records.get(&extent.tape, block) {
            return Ok(record);
        }
        state.turns.begin_read();
        let record = state.read_record(&extent.tape, block, most as usize);
        state.turns.end_read();
        record
    }

    /// Returns the state with the tape of an extent in the drive.
    fn with_tape(&self, set: &str, extent: &TapeExtent) -> io::Result<MutexGuard<'_, ReaderState>> {
        let mut state = self.state.locked();
        if state.has_tape(&extent.tape) {
            return Ok(state);
        }
        let wanted = (set.to_owned(), extent.volume);
        state.turns.begin_wait(&wanted);
        loop {
            let is_there = state.has_tape(&extent.tape);
            // A tape that did not come is not waited for again.
            let is_decided = is_there || state.lost.contains_key(&extent.tape);
            if is_decided || !self.change.is_possible() || state.turns.is_next(&wanted, QUIET) {
                state.turns.end_wait(&wanted);
                return match self.fetch_unless(is_there, (set, extent), &mut state) {
                    Ok(()) => Ok(state),
                    Err(error) => Err(io::Error::new(io::ErrorKind::NotFound, error)),
                };
            }
            drop(state);
            thread::sleep(LOOK);
            state = self.state.locked();
        }
    }

    fn fetch_unless(
        &self,
        is_there: bool,
        (set, extent): (&str, &TapeExtent),
        state: &mut ReaderState,
    ) -> std::result::Result<(), String> {
        if is_there {
            return Ok(());
        }
        if let Some(reason) = state.lost.get(&extent.tape) {
            return Err(reason.clone());
        }
        // Threads that wait for another tape begin to look again when it has come.
        state.turns.begin_read();
        let fetched = self.fetch((set, extent), state);
        state.turns.end_read();
        fetched
    }

    /// Asks for a tape until it is in the drive.
    fn fetch(
        &self,
        (set, extent): (&str, &TapeExtent),
        state: &mut ReaderState,
    ) -> std::result::Result<(), String> {
        let tape = &extent.tape;
        fullbore_platform::debug(|| format!("record {} of tape {tape:?} is wanted", extent.block));
        let mut reason = match state.drive.is_some() {
            true => state.other_tape(tape),
            false => self.look(tape, state).err(),
        };
        for _ in 0..MOST_ASKED {
            let Some(why) = &reason else {
                return Ok(());
            };
            let request = ChangeRequest {
                action: ChangeAction::Want,
                drive: self.drive.name().display().to_string(),
                set: set.to_owned(),
                volume: extent.volume,
                label: tape.clone(),
                reason: why.clone(),
            };
            if !self.change.is_possible() {
                break;
            }
            state.unload();
            match self.change.ask(&request) {
                Ok(Changed::Yes) => reason = self.look(tape, state).err(),
                Ok(Changed::No) => break,
                Err(error) => {
                    reason = Some(error.line());
                    break;
                }
            }
        }
        let missing = format!("tape {tape:?} is missing: {}", reason.unwrap_or_default());
        state.lost.insert(tape.clone(), missing.clone());
        Err(missing)
    }

    /// Opens the drive, and says why it does not have this tape.
    fn look(&self, tape: &str, state: &mut ReaderState) -> std::result::Result<(), String> {
        self.load_into(state).map_err(|error| error.line())?;
        state.other_tape(tape).map_or(Ok(()), Err)
    }
}

impl Drop for ReaderState {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl ReaderState {
    fn let_go(&mut self) {
        self.label = None;
        self.next = None;
        if let Some(drive) = self.drive.take() {
            // Nothing was written.
            let _ = drive.close();
        }
    }

    /// Gives the tape back, so that another one can come.
    fn unload(&mut self) {
        if let Some(drive) = &mut self.drive {
            let _ = drive.unload();
        }
        self.let_go();
    }

    /// Returns whether a tape is in the drive, as the backup was written to it.
    fn has_tape(&self, tape: &str) -> bool {
        self.label.is_some() && self.other_tape(tape).is_none()
    }

    /// Returns why the tape in the drive is another one; `None` if it is this one.
    fn other_tape(&self, tape: &str) -> Option<String> {
        let Some(label) = &self.label else {
            return Some("no tape is in the drive".to_owned());
        };
        if label.tape != tape {
            return Some(format!("tape {:?} is in the drive", label.tape));
        }
        // The first backup on a tape stands behind its label: another label, another backup.
        let (first, set) = self.firsts.get(tape)?;
        (*first == FIRST_BLOCK && label.set != *set).then(|| {
            format!(
                "tape {tape:?} was written again, and has backup {:?}",
                label.set
            )
        })
    }

    /// Reads the record with this number.
    fn read_record(&mut self, tape: &str, block: u64, most: usize) -> io::Result<Arc<Vec<u8>>> {
        let is_near = |next: &u64| {
            *next <= block && (block - next).saturating_mul(most as u64) <= READ_OVER_BYTES
        };
        let mut next = match self.next.take().filter(is_near) {
            Some(next) => next,
            None => self.go_to(block)?,
        };
        let mut was_damaged = false;
        loop {
            let Some(drive) = &mut self.drive else {
                return Err(io::ErrorKind::NotFound.into());
            };
            let mut buffer = vec![0; most.min(drive.limits().most_bytes as usize)];
            let found = match drive.read(&mut buffer) {
                Ok(ReadOutcome::Record(len)) => Some(len),
                Ok(ReadOutcome::Mark) => None,
                Ok(ReadOutcome::EndOfData) => return Err(damaged("its data ends before")),
                // Damage before the record costs nothing: the drive is sent to it.
                Err(_) if next < block && !was_damaged => {
                    was_damaged = true;
                    next = self.go_to(block)?;
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            let is_wanted = next == block;
            next += 1;
            match found {
                Some(len) => {
                    buffer.truncate(len);
                    let record = Arc::new(buffer);
                    self.records.add(tape, next - 1, &record);
                    if is_wanted {
                        self.next = Some(next);
                        return Ok(record);
                    }
                }
                None if is_wanted => return Err(damaged("a mark is in its place")),
                None => {}
            }
        }
    }

    fn go_to(&mut self, block: u64) -> io::Result<u64> {
        let Some(drive) = &mut self.drive else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let located = drive.locate(block);
        match located {
            Err(error) if error.fault == Fault::PositionLost => {
                drive.rewind().map_err(failed)?;
                drive.locate(block).map_err(failed)?;
            }
            located => located.map_err(failed)?,
        }
        Ok(block)
    }
}

/// The first record behind the label and its mark.
const FIRST_BLOCK: u64 = 2;

fn damaged(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the record could not be read: {why}"),
    )
}

fn failed(error: DriveError) -> io::Error {
    let kind = match error.fault {
        Fault::Medium | Fault::RecordTooLong => io::ErrorKind::InvalidData,
        Fault::NoMedium => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error.into_error().line())
}
