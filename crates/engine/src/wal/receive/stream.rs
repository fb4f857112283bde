//! One stream of one timeline: WAL into segments and pieces, and the positions that are reported.

use super::{
    ReceiveEvent, ReceiveProgress, WalReceive, open_segment::OpenSegment,
    segment_store::SegmentStore,
};
use fullbore_format::error::Result;
use fullbore_postgres::{
    lsn::Lsn,
    replication::{TimelineEnd, WalEvent, WalPositions, WalStream},
};
use fullbore_repository::wal::WalArchive;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// WAL is stored when so much of it waits, also before its time.
const FLUSH_BYTES: usize = 256 << 10;
/// WAL that has arrived is taken together before it is stored: so much of it, for so long.
const TOGETHER_BYTES: usize = 4 << 20;
const TOGETHER: Duration = Duration::from_millis(5);
/// Segments that wait to be stored, at most.
const MAX_WAITING: usize = 2;
/// The server ends a connection that reports nothing for a minute, unless it is configured otherwise.
const REPORT: Duration = Duration::from_secs(10);
/// Longest wait for WAL, and that while a segment is stored.
const WAIT: Duration = Duration::from_secs(1);
const WAIT_FOR_STORE: Duration = Duration::from_millis(20);

/// What a receiver has done since its start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReceiveCounts {
    pub(super) received_bytes: u64,
    pub(super) stored_segments: u64,
}

/// A segment that is whole and not stored yet.
#[derive(Debug)]
struct WaitingSegment {
    end: Lsn,
    /// All of it before this place is durable in pieces.
    durable: Lsn,
}

/// Receives one stream.
pub(super) struct Receiving<'a> {
    pub(super) plan: &'a WalReceive,
    pub(super) archive: &'a WalArchive,
    pub(super) store: &'a SegmentStore,
    pub(super) tell: &'a mut dyn FnMut(ReceiveEvent<'_>),
    pub(super) counts: &'a mut ReceiveCounts,
    pub(super) open: OpenSegment,
    waiting: VecDeque<WaitingSegment>,
    reported: Option<(Lsn, Instant)>,
    told: Option<Instant>,
    /// Since when the server has WAL that is not durable here.
    behind: Option<Instant>,
    /// Since when WAL is taken together.
    together: Option<Instant>,
}

impl<'a> Receiving<'a> {
    /// Into this segment, from its beginning on.
    pub(super) fn new(
        plan: &'a WalReceive,
        archive: &'a WalArchive,
        store: &'a SegmentStore,
        tell: &'a mut dyn FnMut(ReceiveEvent<'_>),
        counts: &'a mut ReceiveCounts,
        open: OpenSegment,
    ) -> Self {
        Self {
            plan,
            archive,
            store,
            tell,
            counts,
            open,
            waiting: VecDeque::new(),
            reported: None,
            told: None,
            behind: None,
            together: None,
        }
    }

    /// Receives until the timeline ends. All of it is durable then.
    ///
    /// # Errors
    /// Those of the connection, of the server and of the storage.
    pub(super) fn run(&mut self, stream: &mut WalStream<'_>) -> Result<TimelineEnd> {
        self.report(stream, true)?;
        loop {
            let mut is_asked = false;
            match stream.next(self.patience())? {
                WalEvent::Data { bytes, .. } => self.take(&bytes)?,
                WalEvent::Alive { wants_report, .. } => is_asked = wants_report,
                WalEvent::Quiet => {}
                WalEvent::End(end) => {
                    self.flush()?;
                    while !self.waiting.is_empty() {
                        self.wait_for_store()?;
                    }
                    return Ok(end);
                }
            }
            self.note_stored()?;
            if stream.is_ready() && !is_asked && self.takes_more() {
                continue;
            }
            self.together = None;
            // A segment that the server has finished is stored as a whole soon.
            let is_last = stream.server_end() < self.open.end();
            if is_last && (is_asked || self.is_due()) {
                self.flush()?;
            }
            self.report(stream, is_asked)?;
        }
    }

    fn takes_more(&mut self) -> bool {
        let begun = self.together.get_or_insert_with(Instant::now);
        begun.elapsed() < TOGETHER && self.open.waiting() < TOGETHER_BYTES
    }

    fn is_due(&self) -> bool {
        let bytes = self.open.waiting();
        let is_enough = self.plan.is_synchronous || bytes >= FLUSH_BYTES;
        bytes > 0 && (is_enough || self.open.waits_since() >= self.plan.every)
    }

    /// How long to wait for WAL.
    fn patience(&self) -> Duration {
        let wait = match self.waiting.is_empty() {
            true => WAIT,
            false => WAIT_FOR_STORE,
        };
        let until_due = self.plan.every.saturating_sub(self.open.waits_since());
        match self.open.waiting() {
            0 => wait,
            _ => wait.min(until_due).max(TOGETHER),
        }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.counts.received_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let (own, rest) = bytes.split_at(bytes.len().min(self.open.room()));
            self.open.append(own);
            if self.open.room() == 0 {
                self.finish()?;
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Hands a whole segment over to be stored, and begins the next.
    fn finish(&mut self) -> Result<()> {
        // Commits in the next segment wait for all of this one: its pieces are durable before the whole is.
        if self.plan.is_synchronous && self.open.has_pieces() {
            self.flush()?;
        }
        let (end, durable) = (self.open.end(), self.open.durable());
        self.store.store(self.open.finish()?)?;
        self.waiting.push_back(WaitingSegment { end, durable });
        self.open = self.open.next();
        while self.waiting.len() >= MAX_WAITING {
            self.wait_for_store()?;
        }
        Ok(())
    }

    fn wait_for_store(&mut self) -> Result<()> {
        self.store.wait()?;
        self.note_one();
        Ok(())
    }

    fn note_stored(&mut self) -> Result<()> {
        while !self.waiting.is_empty() && self.store.was_stored()? {
            self.note_one();
        }
        Ok(())
    }

    fn note_one(&mut self) {
        self.waiting.pop_front();
        self.counts.stored_segments += 1;
    }

    fn flush(&mut self) -> Result<()> {
        let replaced = self.open.flush(self.archive)?;
        match replaced.is_empty() {
            true => Ok(()),
            false => self.store.delete(replaced),
        }
    }

    /// All WAL before this place is durable.
    fn durable(&self) -> Lsn {
        let unfinished = self
            .waiting
            .iter()
            .find(|segment| segment.durable < segment.end);
        unfinished.map_or(self.open.durable(), |segment| segment.durable)
    }

    /// Reports what is durable, if that is new, the server asks, or it was long ago.
    fn report(&mut self, stream: &mut WalStream<'_>, is_asked: bool) -> Result<()> {
        let durable = self.durable();
        let is_old = |(place, time): (Lsn, Instant)| place != durable || time.elapsed() >= REPORT;
        if is_asked || self.reported.is_none_or(is_old) {
            stream.report(WalPositions {
                written: durable,
                durable,
            })?;
            self.reported = Some((durable, Instant::now()));
        }
        self.tell_progress(durable, stream.server_end());
        Ok(())
    }

    fn tell_progress(&mut self, durable: Lsn, server: Lsn) {
        let lag_bytes = server.0.saturating_sub(durable.0);
        match lag_bytes {
            0 => self.behind = None,
            _ => drop(self.behind.get_or_insert_with(Instant::now)),
        }
        if self.told.is_some_and(|time| time.elapsed() < REPORT) {
            return;
        }
        self.told = Some(Instant::now());
        let delay = self.behind.map_or(Duration::ZERO, |since| since.elapsed());
        (self.tell)(ReceiveEvent::Progress(ReceiveProgress {
            durable,
            lag_bytes,
            lag_seconds: delay.as_secs_f64(),
            received_bytes: self.counts.received_bytes,
            stored_segments: self.counts.stored_segments,
        }));
    }
}
