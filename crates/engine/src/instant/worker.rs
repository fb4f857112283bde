//! The process that fetches, checks and writes the content of placeholders.
//!
//! It may be killed at any moment: a unit that is half written has no bit, and no reader of it was answered. The next
//! worker writes the unit again.

use super::{
    content_source::ContentSource,
    event_table::WantedUnits,
    fetch_queue::{FetchQueue, FilePiece, LaneKind, PieceSpan},
    filled_file::FilledFile,
    messages::WorkerRequest,
    order::{file_order, prewarmed},
    plan_file::{InstantPlan, UNIT_BYTES},
    state_dir::StateDir,
    sync_cycle::SyncCycle,
    unit_map::{BAD, FINISHED, HERE, MapNumber, UnitMap},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    root::EntryName,
};
use fullbore_platform::{
    durable,
    pre_content::EventGroup,
    queue::Locked,
    write::{drop_behind, write_behind},
};
use fullbore_repository::archive::Archive;
use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io::Write,
    ops::Range,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    process,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// Exit code of a worker whose guardian has ended.
const ORPHANED: i32 = 3;
/// Time between two looks whether everything is there.
const LOOK: Duration = Duration::from_millis(100);
/// Time after which files that are not finished are looked at again.
const AGAIN: Duration = Duration::from_secs(1);
/// Time after which damaged units are read again: a storage may have been repaired.
const RETRY_BAD: Duration = Duration::from_secs(60);
/// Time that the rest waits for a server at most.
const HOLD: Duration = Duration::from_secs(30);
/// Pauses after an error of the storage.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Bytes of a file that are written to the device together.
const BEHIND_BYTES: u64 = 8 << 20;
/// Added to the niceness of lanes for what nobody waits for.
const LANE_NICENESS: i32 = 10;
/// Bounds of a piece, which is a frame of the backup mostly.
const LEAST_PIECE: u64 = UNIT_BYTES;
const MOST_PIECE: u64 = 4 << 20;

/// The worker of one restore.
pub(super) struct Worker {
    pub(super) state: StateDir,
    pub(super) plan: InstantPlan,
    pub(super) map: UnitMap,
    pub(super) group: EventGroup,
    source: ContentSource,
    pub(super) queue: FetchQueue,
    pub(super) files: Vec<Mutex<FilledFile>>,
    /// Open directories by their devices.
    pub(super) roots: HashMap<u64, File>,
    pub(super) syncs: SyncCycle,
    wake: File,
    piece_bytes: u64,
    problem: Mutex<String>,
}

impl Worker {
    /// Makes the worker of a plan, with the backup that is read.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(
        (state, plan, map): (StateDir, InstantPlan, UnitMap),
        (group, wake): (EventGroup, File),
        (archive, rest_rate, beside): (Archive, Option<u64>, usize),
    ) -> Result<Self> {
        let frame_bytes = archive.root.options.frame_bytes;
        let piece_bytes = frame_bytes.clamp(LEAST_PIECE, MOST_PIECE) / UNIT_BYTES * UNIT_BYTES;
        let files = plan.files.iter().map(|_| Mutex::default()).collect();
        let seconds = rest_rate.map_or(0.0, |rate| piece_bytes as f64 / rate.max(1) as f64);
        let queue = FetchQueue::new(Duration::from_secs_f64(seconds), beside);
        Ok(Self {
            roots: open_roots(&plan.head.roots)?,
            source: ContentSource::new(archive),
            queue,
            syncs: SyncCycle::default(),
            problem: Mutex::default(),
            files,
            state,
            plan,
            map,
            group,
            wake,
            piece_bytes,
        })
    }

    /// Works until everything is there and durable. `demand` and `rest` are numbers of lanes.
    ///
    /// The process ends with it: 0 if everything is there.
    pub(super) fn run(&self, requests: &File, (demand, rest): (usize, usize)) {
        self.take_stock();
        self.queue.hold_rest(self.map.number(MapNumber::Hold) != 0);
        self.plan_rest(true);
        self.wake();
        thread::scope(|scope| {
            scope.spawn(|| self.take_requests(requests));
            scope.spawn(|| self.sync_until_done());
            (0..demand).for_each(|_| drop(scope.spawn(|| self.lane(LaneKind::Demand))));
            (0..rest).for_each(|_| drop(scope.spawn(|| self.lane(LaneKind::Rest))));
            self.wait_until_whole();
            if let Err(error) = self.sync_roots() {
                eprintln!("note: {}", error.line());
                process::exit(1);
            }
            // The other threads wait for the guardian and for work, and need not end.
            process::exit(0);
        })
    }

    /// Finds what an earlier worker left: units that are not durable, and files that are nearly finished.
    fn take_stock(&self) {
        for file in 0..self.plan.files.len() as u32 {
            let planned = &self.plan.files[file as usize];
            let units = planned.first_unit..planned.first_unit + planned.units();
            self.syncs.add(
                units
                    .filter(|unit| self.map.state(*unit) & HERE != 0)
                    .map(|unit| (file, unit)),
            );
            self.end_content(file);
        }
    }

    fn plan_rest(&self, is_first: bool) {
        let mut order = file_order(&self.plan);
        order.retain(|file| self.map.flags(*file as usize) & FINISHED == 0);
        let listed = if is_first { self.listed() } else { Vec::new() };
        self.queue
            .plan(&order, |file| self.last_piece(file), listed);
    }

    fn listed(&self) -> Vec<FilePiece> {
        let places = prewarmed(&self.state.target, &self.plan).into_iter();
        let piece = |(file, offset)| FilePiece {
            file,
            piece: offset / self.piece_bytes,
        };
        let mut pieces: Vec<_> = places.map(piece).collect();
        pieces.dedup();
        pieces
    }

    fn last_piece(&self, file: u32) -> u64 {
        (self.plan.files[file as usize].size - 1) / self.piece_bytes
    }

    /// Wakes the guardian. A full pipe wakes it as well.
    pub(super) fn wake(&self) {
        let _ = (&self.wake).write(&[1]);
    }

    fn take_requests(&self, requests: &File) {
        while let Ok(Some(request)) = WorkerRequest::receive(requests) {
            self.take_request(request);
        }
        // Two workers must never write, and nobody would answer what this one waits for.
        process::exit(ORPHANED);
    }

    fn take_request(&self, request: WorkerRequest) {
        let is_planned = |file: u32| (file as usize) < self.plan.files.len();
        match request {
            WorkerRequest::Fetch(WantedUnits { file, first, last }) if is_planned(file) => {
                let piece = |unit: u64| unit.saturating_mul(UNIT_BYTES) / self.piece_bytes;
                if first <= last {
                    self.queue
                        .want(file, piece(first), piece(last), self.last_piece(file));
                }
            }
            WorkerRequest::Finish(file) if is_planned(file) => {
                let last = self.last_piece(file);
                self.queue.want(file, 0, last, last);
            }
            WorkerRequest::Cut { file, size } if is_planned(file) => self.syncs.cut(file, size),
            WorkerRequest::Sync => self.syncs.ask(),
            _ => {}
        }
    }

    fn lane(&self, kind: LaneKind) {
        if kind == LaneKind::Rest {
            // What somebody waits for, and the server, come first.
            let _ = rustix::process::setpriority_process(None, LANE_NICENESS);
        }
        let mut buffer = Vec::new();
        let mut pause = FIRST_PAUSE;
        let is_settled = |piece| self.is_settled(PieceSpan::one(piece));
        while let Some(span) = self.queue.next(kind, is_settled) {
            let filled = self.fill(span, &mut buffer).or_else(|error| {
                let is_damaged = error.kind == ErrorKind::Corrupt && span.next < span.last;
                match is_damaged {
                    true => self.fill_apart(span, &mut buffer),
                    false => Err(error),
                }
            });
            self.queue.release(span);
            match filled {
                Ok(()) => pause = FIRST_PAUSE,
                Err(error) => {
                    self.note_problem(span, &error);
                    if error.kind != ErrorKind::Corrupt {
                        // The guardian asks again for what somebody waits for.
                        thread::sleep(pause);
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
            }
            self.wake();
        }
    }

    fn note_problem(&self, span: PieceSpan, error: &Error) {
        if error.kind == ErrorKind::Corrupt {
            for unit in self.missing(span) {
                self.map.set(unit, BAD);
            }
        }
        let path = quoted(&self.plan.files[span.file as usize].path.0);
        let line = format!("note: {path}: {}", error.line());
        let mut last = self.problem.locked();
        if *last != line {
            eprintln!("{line}");
            *last = line;
        }
    }

    /// Returns whether nothing of these pieces can be filled now.
    fn is_settled(&self, span: PieceSpan) -> bool {
        let missing = self.missing(span);
        missing
            .into_iter()
            .all(|unit| self.map.state(unit) & BAD != 0)
    }

    /// Returns whether all units of a file up to its limit have these bits.
    pub(super) fn has_all(&self, file: u32, bits: u8) -> bool {
        let planned = &self.plan.files[file as usize];
        let units = self.map.limit(file as usize).div_ceil(UNIT_BYTES);
        let mut units = planned.first_unit..planned.first_unit + units.min(planned.units());
        units.all(|unit| self.map.is(unit, bits))
    }

    /// Returns the units of pieces that are not here, up to the limit of the file.
    fn missing(&self, span: PieceSpan) -> Vec<u64> {
        let planned = &self.plan.files[span.file as usize];
        let start = span.next * self.piece_bytes / UNIT_BYTES;
        let limit = self.map.limit(span.file as usize).div_ceil(UNIT_BYTES);
        let end = ((span.last + 1) * self.piece_bytes / UNIT_BYTES)
            .min(planned.units())
            .min(limit);
        let units = (planned.first_unit + start)..(planned.first_unit + end);
        units
            .filter(|unit| self.map.state(*unit) & HERE == 0)
            .collect()
    }

    /// Fetches pieces, and writes the units that are not here.
    fn fill(&self, span: PieceSpan, buffer: &mut Vec<u8>) -> Result<()> {
        let planned = &self.plan.files[span.file as usize];
        let missing = self.missing(span);
        if missing.is_empty() {
            return Ok(());
        }
        let start = span.next * self.piece_bytes;
        let end = ((span.last + 1) * self.piece_bytes).min(planned.size);
        let content = self.source.file(&self.plan, span.file)?;
        let runs = self.source.read(&content, start..end, buffer)?;
        let file = &mut self.files[span.file as usize].locked();
        // Under the lock: no fill goes behind a limit that was lowered.
        let limit = self.map.limit(span.file as usize);
        let spans = spans_of(&missing, planned.first_unit, limit);
        if let Some(opened) = file.open(self, span.file)? {
            let written = super::filled_file::write_spans(opened, &runs, buffer, &spans);
            let failed = |e| Error::io(format!("could not write {}", quoted(&planned.path.0)), e);
            written.map_err(failed)?;
            if end == planned.size || end.is_multiple_of(BEHIND_BYTES) {
                write_behind_of(opened, end, self.queue.was_touched(span.file));
            }
            file.set_time(self, span.file)?;
        }
        for unit in &missing {
            self.map.set(*unit, HERE);
        }
        self.syncs
            .add(missing.into_iter().map(|unit| (span.file, unit)));
        file.end_content(self, span.file)
    }

    /// Fills pieces one by one, so that damage is that of one piece.
    fn fill_apart(&self, span: PieceSpan, buffer: &mut Vec<u8>) -> Result<()> {
        for one in span.pieces().map(PieceSpan::one) {
            match self.fill(one, buffer) {
                Err(error) if error.kind == ErrorKind::Corrupt => self.note_problem(one, &error),
                filled => filled?,
            }
        }
        Ok(())
    }

    fn end_content(&self, file: u32) {
        let ended = self.files[file as usize].locked().end_content(self, file);
        if let Err(error) = ended {
            eprintln!("note: {}", error.line());
        }
    }

    fn wait_until_whole(&self) {
        let begun = Instant::now();
        let mut looked = Instant::now();
        let mut planned = Instant::now();
        let is_finished = |file: usize| self.map.flags(file) & FINISHED != 0;
        while !(0..self.plan.files.len()).all(is_finished) {
            thread::sleep(LOOK);
            let holds = self.map.number(MapNumber::Hold) != 0 && begun.elapsed() < HOLD;
            self.queue.hold_rest(holds);
            if looked.elapsed() > RETRY_BAD {
                looked = Instant::now();
                (0..self.plan.units()).for_each(|unit| self.map.clear(unit, BAD));
            }
            if self.queue.is_given_out() {
                // Only the sync of the last files is missing, mostly.
                self.syncs.ask();
                if planned.elapsed() > AGAIN {
                    planned = Instant::now();
                    self.plan_rest(false);
                }
            }
        }
        self.queue.end();
    }

    /// Makes everything durable that was written to the file systems of the target.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn sync_roots(&self) -> Result<()> {
        let synced = self.roots.values().try_for_each(durable::sync_fs);
        synced.map_err(|e| Error::io("could not sync the restored files", e))
    }
}

/// Opens a directory of each file system.
pub(super) fn open_roots(names: &[EntryName]) -> Result<HashMap<u64, File>> {
    let mut roots = HashMap::new();
    for name in names {
        let path = OsStr::from_bytes(&name.0);
        let failed = |e| Error::io(format!("could not open {path:?}"), e);
        let file = File::open(path).map_err(failed)?;
        roots.insert(file.metadata().map_err(failed)?.dev(), file);
    }
    Ok(roots)
}

/// Starts to write the stretch of a file that ends at `end`: a sync then waits for little. The stretch before it leaves the
/// page cache if nobody reads the file, so that what others read stays there.
fn write_behind_of(file: &File, end: u64, is_touched: bool) {
    let start = (end - 1) / BEHIND_BYTES * BEHIND_BYTES;
    write_behind(file, start, end - start);
    if let (false, Some(before)) = (is_touched, start.checked_sub(BEHIND_BYTES)) {
        drop_behind(file, before, BEHIND_BYTES);
    }
}

/// Joins units that follow each other into ranges of a file, up to a limit.
fn spans_of(units: &[u64], first_unit: u64, limit: u64) -> Vec<Range<u64>> {
    let chunks = units.chunk_by(|a, b| a + 1 == *b);
    let spans = chunks.map(|chunk| {
        let start = (chunk[0] - first_unit) * UNIT_BYTES;
        let end = start + chunk.len() as u64 * UNIT_BYTES;
        start.min(limit)..end.min(limit)
    });
    spans.filter(|span| !span.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_joined_and_end_at_the_limit() {
        let spans = spans_of(&[10, 11, 13], 10, 3 * UNIT_BYTES + 7);
        assert_eq!(
            spans,
            [0..2 * UNIT_BYTES, 3 * UNIT_BYTES..3 * UNIT_BYTES + 7]
        );
        assert_eq!(spans_of(&[11], 10, 5), []);
    }
}
