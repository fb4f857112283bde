//! Writes records and keeps those that are not known to be on the medium, so that they can be
//! written again.
//!
//! A drive answers before a record is on the medium, and reports its loss with a later call. So a
//! record is released when the drive says that it is on the medium, or after a wait for all. After
//! an error the head goes to the first record that may be lost, and the same bytes are written again:
//! once a tape. A second error is the end of this tape, and the caller goes on with another one.

use crate::{
    Drive, DriveError, DriveResult, Fault, ReadOutcome, RecordOutcome,
    ring_drive::{RingDrive, RingItem, RingSettings},
};
use std::{
    collections::VecDeque,
    thread,
    time::{Duration, Instant},
};

/// How often the drive is asked which records are on the medium.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// A drive that tells what is on the medium has written nothing for this long: it waits for more.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks at the drive.
const LOOK: Duration = Duration::from_millis(10);
/// Errors of a tape after which its records are written again.
const MOST_REWRITES: u32 = 1;

/// A drive, and the records that it took and may still lose.
pub(crate) struct KeptWriter {
    pub(crate) drive: Box<dyn RingDrive>,
    /// The number of the first item of `kept`: all before it is on the medium.
    pub(crate) first: u64,
    pub(crate) kept: VecDeque<RingItem>,
    kept_bytes: u64,
    most_kept_bytes: u64,
    asked: Instant,
    /// Whether the drive tells what is on the medium.
    tells: bool,
    pub(crate) is_near_end: bool,
    /// How often records were written again.
    pub(crate) rewrites: u32,
}

impl KeptWriter {
    /// The first item gets the number `first` on the medium.
    pub(crate) fn new(drive: Box<dyn RingDrive>, first: u64, settings: RingSettings) -> Self {
        Self {
            drive,
            first,
            kept: VecDeque::new(),
            kept_bytes: 0,
            most_kept_bytes: settings.most_kept_bytes,
            asked: Instant::now(),
            tells: false,
            is_near_end: false,
            rewrites: 0,
        }
    }

    /// Writes an item. `Full`: it was not taken.
    ///
    /// # Errors
    /// Those of the drive, if the records that it lost cannot be written again.
    pub(crate) fn write(&mut self, item: RingItem) -> DriveResult<RecordOutcome> {
        let mut outcome = write_to(&mut *self.drive, &item);
        while let Err(error) = outcome {
            self.write_kept_again(error)?;
            outcome = write_to(&mut *self.drive, &item);
        }
        let outcome = outcome?;
        if outcome == RecordOutcome::Full {
            return Ok(outcome);
        }
        self.is_near_end |= outcome == RecordOutcome::TakenNearEnd;
        self.kept_bytes += item.bytes();
        self.kept.push_back(item);
        if self.kept_bytes > self.most_kept_bytes || self.asked.elapsed() > ASKED_EVERY {
            self.release_written();
        }
        self.wait_for_medium()?;
        Ok(outcome)
    }

    /// Waits until no more is kept than is allowed. A drive that tells what is on the medium goes on meanwhile; another one
    /// is asked to write all, which stops it.
    fn wait_for_medium(&mut self) -> DriveResult<()> {
        let mut last = (self.first, Instant::now());
        while self.kept_bytes > self.most_kept_bytes {
            if self.first != last.0 {
                last = (self.first, Instant::now());
            } else if !self.tells || last.1.elapsed() > PATIENCE {
                return self.flush();
            }
            thread::sleep(LOOK);
            self.release_written();
        }
        Ok(())
    }

    /// Waits until all is on the medium.
    ///
    /// # Errors
    /// As [`KeptWriter::write`].
    pub(crate) fn flush(&mut self) -> DriveResult<()> {
        while let Err(error) = self.drive.flush() {
            self.write_kept_again(error)?;
        }
        self.release_below(u64::MAX);
        Ok(())
    }

    /// Asks the drive which records are on the medium, and releases them.
    fn release_written(&mut self) {
        self.asked = Instant::now();
        let place = self.drive.position().ok();
        let on_medium = place.and_then(|place| place.on_medium);
        self.tells = on_medium.is_some();
        self.release_below(on_medium.unwrap_or(0));
    }

    fn release_below(&mut self, number: u64) {
        while self.first < number
            && let Some(item) = self.kept.pop_front()
        {
            self.kept_bytes -= item.bytes();
            self.first += 1;
        }
    }

    /// Goes to the first record that may be lost, and writes all from there again.
    ///
    /// # Errors
    /// `error` if the tape had its share of errors, or the place cannot be found for sure.
    fn write_kept_again(&mut self, error: DriveError) -> DriveResult<()> {
        let is_of_medium = matches!(error.fault, Fault::Medium | Fault::PositionLost);
        if !is_of_medium || self.rewrites >= MOST_REWRITES || !self.go_to_first_lost() {
            return Err(error);
        }
        self.rewrites += 1;
        for item in &self.kept {
            match write_to(&mut *self.drive, item) {
                Ok(RecordOutcome::Full) | Err(_) => return Err(error),
                Ok(outcome) => self.is_near_end |= outcome == RecordOutcome::TakenNearEnd,
            }
        }
        Ok(())
    }

    /// Goes to the first record that may be lost; false if that place is not there for sure.
    fn go_to_first_lost(&mut self) -> bool {
        match self.drive.position() {
            Ok(place) => self.release_below(place.on_medium.unwrap_or(0)),
            // After a reset only what was known before is known.
            Err(_) if self.drive.rewind().is_ok() => {}
            Err(_) => return false,
        }
        let Some(before) = self.first.checked_sub(1) else {
            return self.drive.rewind().is_ok();
        };
        // The record before must be readable. Then the head is where the lost one was.
        let mut buffer = vec![0; self.drive.limits().most_bytes as usize];
        let is_there = self.drive.locate(before).is_ok()
            && matches!(
                self.drive.read(&mut buffer),
                Ok(ReadOutcome::Record(_) | ReadOutcome::Mark)
            );
        is_there
            && self
                .drive
                .position()
                .is_ok_and(|place| place.next == self.first)
    }
}

fn write_to(drive: &mut dyn Drive, item: &RingItem) -> DriveResult<RecordOutcome> {
    match item {
        RingItem::Record(bytes) => drive.record(bytes),
        RingItem::Mark => drive.mark(),
        // A far ring takes it, and replaces it by its bytes before it comes here.
        RingItem::Held { .. } => Err(DriveError {
            fault: Fault::System,
            action: "write to",
            device: String::new(),
            error: std::io::ErrorKind::Unsupported.into(),
        }),
    }
}
